"""Long polls and sessions, which look only at what has changed: they find what a look at everything
would find, whatever happens to the partitions in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polls import HOUR_MS, PARTITIONS, Game, Looks, look_in_slices

from kafkalite.core.replicas.partition import Partition
from kafkalite.node import Node, start_node


async def play(game: Game, steps: list[tuple[str, str, int, int]]) -> None:
    await game.begin()
    for index in range(PARTITIONS):
        game.happen("produce", index, index)
    game.want("all to end", 0, 0)
    game.ask(0)
    await game.settle()
    game.compare()
    waiting = game.broker.waiting
    for kind, what, index, amount in steps:
        if what == "mend":
            await game.mend()
        elif kind == "happens":
            waiting.hold()
            game.happen(what, index, amount)
            waiting.settle()
        elif kind == "topic":
            await game.remake(what)
        elif kind == "wants":
            game.want(what, index, amount)
        elif what == "time passes":
            game.pass_time()
        elif what == "leave":
            game.end()
        else:
            game.ask(HOUR_MS if what == "wait" else 0)
        await game.settle()
        game.compare()
    game.pass_time()
    await game.settle()
    game.compare()
    game.end()
    await game.remake("delete topic")
    assert not len(waiting), "somebody waits for ever"


HAPPENS = (
    "produce", "produce", "transaction", "commit", "abort", "delete records", "retention",
    "truncate", "fail", "fail and tell", "mend", "lag", "catch up", "new epoch", "other leader",
)  # fmt: skip
WANTS = (
    "to end", "all to end", "to offset", "forget", "leader epoch", "isolation", "min bytes",
    "max bytes",
)  # fmt: skip
ASKS = ("wait", "wait", "wait", "now", "time passes", "leave")
TOPIC = ("delete topic", "create topic")


def step(kind: str, names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, str, int, int]]:
    indexes, amounts = st.integers(0, PARTITIONS - 1), st.integers(0, 6)
    return st.tuples(st.just(kind), st.sampled_from(names), indexes, amounts)


HAPPENING = step("happens", HAPPENS)
# A round: what is asked now, what happens while the reader waits or does something else, the end.
rounds = st.tuples(
    st.lists(step("wants", WANTS), max_size=2),
    step("asks", ASKS),
    st.lists(HAPPENING, min_size=1, max_size=4),
    st.lists(st.one_of(step("asks", ASKS), HAPPENING, step("topic", TOPIC)), max_size=1),
    st.just([("wants", "all to end", 0, 0)]) | st.just([]),
).map(lambda parts: [*parts[0], parts[1], *parts[2], *parts[3], *parts[4]])
story = st.lists(rounds, min_size=2, max_size=8).map(lambda each: [s for r in each for s in r])


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def node(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    settings = {"num.partitions": str(PARTITIONS), "auto.create.topics.enable": "false"}
    directory: Path = tmp_path_factory.mktemp("node")
    started = loop.run_until_complete(start_node(directory, "127.0.0.1:0", settings))
    yield started
    loop.run_until_complete(started.close())


@settings(deadline=None, max_examples=60)
@given(in_session=st.booleans(), in_slices=st.booleans(), steps=story)
def test_a_look_at_what_changed_finds_what_a_look_at_everything_finds(
    loop: asyncio.AbstractEventLoop,
    node: Node,
    in_session: bool,
    in_slices: bool,
    steps: list[Any],
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if in_slices:
            look_in_slices(monkeypatch, node)
        game = Game(node, Looks(monkeypatch), in_session=in_session)
        loop.run_until_complete(play(game, steps))


@pytest.mark.parametrize("in_session", [False, True])
def test_a_record_that_wakes_a_long_poll_costs_one_look(
    loop: asyncio.AbstractEventLoop,
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    in_session: bool,
) -> None:
    looks: list[int] = []

    async def story() -> None:
        looked = Looks(monkeypatch)
        game = Game(node, looked, in_session=in_session)
        reader = game.readers[0]
        read = Partition.read

        def counted(partition: Partition, *more: Any, **given: Any) -> Any:
            looks.append(partition.topic_partition.partition)
            return read(partition, *more, **given)

        await game.begin()
        reader.ask(game.request(0), in_session=in_session)
        monkeypatch.setattr(Partition, "read", counted)
        for number in range(1, 4):
            looks.clear()
            reader.ask(game.request(HOUR_MS), in_session=in_session)
            every = sorted(range(PARTITIONS))
            assert sorted(looks) == ([2] * (number > 1) if in_session else every)
            looks.clear()
            node.broker.waiting.hold()
            game.produce(2, 10)
            node.broker.waiting.settle()
            assert (looks, looked.from_memory) == ([2], number)
            (held,) = [game.partition(2)]
            assert held is not None
            assert held.fresh is None, "the batch is not held any longer"
            game.want("to end", 2, 0)
            game.changed = {2} if in_session else set(range(PARTITIONS))
        (partition,) = [game.partition(1)]
        assert partition is not None
        assert len(partition.watchers) == in_session, "nobody watches for an answer that is given"

    loop.run_until_complete(story())
