"""Fetches of very many partitions go on in slices, whatever happens between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from polls import HOUR_MS, PARTITIONS, Game, Looks, lies, look_in_slices

from kafkalite.errors import ErrorCode
from kafkalite.node import Node

Start = Any


def run(start: Start, story: Callable[[Node], Awaitable[None]]) -> None:
    async def running() -> None:
        async with start(num_partitions=str(PARTITIONS)) as running:
            await story(running.node)

    asyncio.run(running())


@pytest.mark.parametrize("in_session", [False, True])
def test_what_changes_during_a_look_in_slices_is_found_before_anything_is_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch, in_session: bool
) -> None:
    async def story(node: Node) -> None:
        look_in_slices(monkeypatch, node)
        game = Game(node, Looks(monkeypatch), in_session=in_session)
        await game.begin()
        reader = game.readers[0]
        if in_session:
            reader.ask(game.request(0), in_session=True)
            await game.settle()
            session = node.broker.fetch_sessions._sessions[reader.session_id]
            assert not session.reading.unsettled(), "all were looked at, and have nothing"
            game.changed = set(range(PARTITIONS))
        first = game.partition(0)
        assert first is not None
        first.watchers.clear()
        reader.ask(game.request(HOUR_MS), in_session=in_session)
        while not first.watchers:
            await asyncio.sleep(0)
        assert reader.pending is not None
        assert not len(node.broker.waiting), "it is still being read"
        game.produce(0, 10)  # which was looked at first, and had nothing
        await game.settle()
        assert reader.answer is not None, "not an hour later"
        (topic,) = reader.answer.responses
        with_records = [p.partition_index for p in topic.partitions if lies(p.records)]
        assert with_records == [0]

    run(start, story)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 40])
def test_nobody_watches_for_a_reader_who_has_left_a_look_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    async def story(node: Node) -> None:
        look_in_slices(monkeypatch, node)
        game = Game(node, Looks(monkeypatch), in_session=False)
        await game.begin()
        game.readers[0].ask(game.request(HOUR_MS), in_session=False)
        for _ in range(turns):
            await asyncio.sleep(0)
        game.end()
        await game.settle()
        assert not len(node.broker.waiting)
        held = [game.partition(index) for index in range(PARTITIONS)]
        assert [len(each.watchers) for each in held if each is not None] == [0] * PARTITIONS

    run(start, story)


def test_a_session_that_goes_on_elsewhere_ends_a_look_in_slices(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(node: Node) -> None:
        look_in_slices(monkeypatch, node)
        game = Game(node, Looks(monkeypatch), in_session=True)
        await game.begin()
        old, new = game.readers
        old.ask(game.request(0), in_session=True)
        await game.settle()
        for index in range(PARTITIONS):
            game.produce(index, 10)
        new.session_id, new.epoch = old.session_id, old.epoch + 1
        old.ask(game.request(0), in_session=True)
        new.ask(game.request(0), in_session=True)
        await game.settle()
        assert old.answer is not None
        assert new.answer is not None
        assert old.answer.error_code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        (topic,) = new.answer.responses
        with_records = {p.partition_index for p in topic.partitions if lies(p.records)}
        assert with_records == set(range(PARTITIONS))

    run(start, story)
