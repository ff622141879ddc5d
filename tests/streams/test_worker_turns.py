"""A worker's turns without a broker: what it waits for, what it commits, what it lets go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.app import _run
from kafkalite.streams.local import starter as starter_module
from kafkalite.streams.local import worker as worker_module
from kafkalite.streams.local.assignor import TaskAssignor
from kafkalite.streams.local.committer import AtLeastOnce
from kafkalite.streams.local.replay import Replay
from kafkalite.streams.local.rounds import LAG_WAIT_MS_MAX, REST_SECONDS
from kafkalite.streams.local.starter import TaskStarter
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.task_inputs import TaskInputs
from kafkalite.streams.local.task_manager import Life
from kafkalite.streams.local.worker import POLL_MS, Worker, WorkerConfig


class Producer:
    """Writes down what it is given."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.sent: dict[str, list[Columns]] = {}

    async def start(self) -> None: ...

    def end_offset(self, partition: TopicPartition) -> int | None:
        return None

    async def send_columns(self, topic: str, columns: Columns, **to: Any) -> None:
        self.events.append(topic)
        self.sent.setdefault(topic, []).append(columns)

    async def flush(self) -> None:
        self.events.append("flush")

    async def close(self, *, flush: bool) -> None:
        """Of what was sent nothing waits here."""


class Consumer:
    """Knows what the test says; writes down what is asked of it."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.positions: dict[TopicPartition, int] = {}
        self.lags: dict[TopicPartition, int] = {}
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.at_the_end: list[TopicPartition] = []
        self.is_fenced = False
        self.is_rebalancing = False
        self.assignment: tuple[TopicPartition, ...] = ()
        self.paused: set[TopicPartition] = set()

    async def confirm_membership(self) -> None:
        """It is a member."""

    def position(self, tp: TopicPartition) -> int | None:
        return self.positions.get(tp)

    def lag(self, tp: TopicPartition) -> int | None:
        return self.lags.get(tp, 0)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def seek(self, tp: TopicPartition, at: OffsetAndMetadata) -> None:
        self.positions[tp] = at.offset

    def seek_to_beginning(self, partitions: Iterable[TopicPartition]) -> None: ...

    def seek_to_end(self, partitions: Iterable[TopicPartition]) -> None:
        self.at_the_end += partitions

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return {tp: self.offsets.get(tp) for tp in partitions}

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.producer.events.append("commit")
        if self.is_fenced:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "commit")
        self.offsets |= offsets


class Starter(TaskStarter):
    """May hold tasks back, as a long changelog would."""

    is_held = False

    async def advance(self) -> list[Life]:
        return [] if self.is_held else await super().advance()


class Inline:
    """Runs calls of the task thread where it stands."""

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(call())
        return future


@pytest.fixture(autouse=True)
def nothing_to_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(*_: Any) -> list[Replay]:
        return []

    monkeypatch.setattr(starter_module, "look_up", look_up)


class Turns(Worker):
    """A worker between a producer and a consumer of the test."""

    def __init__(self, app: Streams, **partitions_of: int) -> None:
        super().__init__(app.plan(), "127.0.0.1:1", MemoryRegistry(), WorkerConfig())
        self.producer = Producer()
        self.consumer: Any = Consumer(self.producer)
        self._consumer = self.consumer
        producer: Any = self.producer
        self._committer = AtLeastOnce(lambda: producer, self._consumer, None)
        subs = self._sub_topologies.values()
        self._sources = {s.id: tuple(t for src in s.sources for t in src.topics) for s in subs}
        counts = {topic: 1 for topics in self._sources.values() for topic in topics}
        counts |= {c.name: 1 for s in subs for c in s.changelogs} | partitions_of
        self._inputs = TaskInputs("app", list(subs), self._sources, counts)
        self._assignor = TaskAssignor(self._sources)
        self._rounds.begin(self.consumer)
        self._polling.begin(self.consumer)
        self._commits.begin(self._committer)
        inline: Any = Inline()
        self._starter = self.starter = Starter(
            "app",
            self._client,
            self.consumer,
            self._committer,
            self._assignor,
            inline,
            self._places,
            self._new_task,
            self._inputs.reader,
            lambda: 0.0,
            lambda: 0,
        )
        self._thread = inline

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return call()

    @property
    def tasks(self) -> dict[str, Task]:
        """Those that run."""
        return {str(life): task for life, task in self._rounds.tasks.items()}

    async def assign(self, *partitions: tuple[str, int]) -> None:
        """Beside what is assigned already; until all of it runs, if nobody holds it back."""
        added = tuple(TopicPartition(*tp) for tp in partitions)
        self.consumer.assignment += added
        await self._on_assigned(added)
        await self.start()

    async def start(self) -> None:
        """What was assigned comes to run."""
        for _ in range(20):
            await asyncio.sleep(0)
            await self._start_tasks()

    async def revoke(self, *partitions: TopicPartition) -> None:
        gone = set(partitions)
        self.consumer.assignment = tuple(tp for tp in self.consumer.assignment if tp not in gone)
        await self._on_revoked(partitions)

    def receive(self, topic: str, *timestamps: int, first: int = 0, partition: int = 0) -> None:
        keys = [b"k"] * len(timestamps)
        offsets = range(first, first + len(timestamps))
        batch = Columns(keys, keys, list(timestamps), offsets)
        self._rounds.receive(TopicPartition(topic, partition), batch)


def passing(name: str = "app") -> Streams:
    app = Streams(name)
    app.stream("in").to("out")
    return app


def merging() -> Streams:
    app = Streams("app")
    app.stream("a").merge(app.stream("b")).to("out")
    return app


IN = TopicPartition("in", 0)


class TestRound:
    def test_a_task_without_records_has_no_turn_until_it_is_to_look_at_the_clock(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        looks: list[str] = []
        clock = SimpleNamespace(monotonic=lambda: now, time_ns=lambda: 0)
        monkeypatch.setattr(worker_module, "time", clock)
        monkeypatch.setattr(Task, "tick", lambda task, _: looks.append(str(task)))

        async def scenario() -> None:
            nonlocal now
            turns = Turns(passing(), **{"in": 2})
            await turns.assign(("in", 0), ("in", 1))
            assert not await turns._rounds.run()
            assert looks == ["0_0", "0_1"]
            for offset in range(3):
                turns.receive("in", offset, first=offset, partition=1)
                assert await turns._rounds.run()
            assert looks[2:] == ["0_1"] * 3
            assert not await turns._rounds.run()
            now += REST_SECONDS
            assert not await turns._rounds.run()
            assert looks[5:] == ["0_0", "0_1"]

        asyncio.run(scenario())

    def test_small_outputs_of_several_tasks_leave_together(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing(), **{"in": 3})
            await turns.assign(*(("in", p) for p in range(3)))
            for p in range(3):
                turns.receive("in", p, partition=p)
            assert await turns._rounds.run() == 3
            (out,) = turns.producer.sent["out"]
            assert out.timestamps == [0, 1, 2]

        asyncio.run(scenario())

    @pytest.mark.parametrize("until_caught_up", [False, True])
    def test_a_worker_that_has_run_all_it_has_waits_for_records_at_once(
        self, until_caught_up: bool
    ) -> None:
        """Not after a round for nothing, unless it waits for the end."""
        waits: list[float] = []

        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns._has_assignment = False  # nobody asks brokers for the end

            async def poll(timeout_ms: float) -> dict[TopicPartition, Columns]:
                waits.append(timeout_ms)
                if len(waits) == 3:
                    turns.stop()
                if len(waits) > 1:
                    return {}
                return {IN: Columns([b"k"], [b"v"], [1], range(1))}

            turns.consumer.poll = poll
            turns._commit_interval_ms = 1_000
            turns._holdings = SimpleNamespace(turn=lambda: None)  # type: ignore[assignment]
            await turns._loop(until_caught_up)

        asyncio.run(scenario())
        assert waits[0] == waits[2] == POLL_MS
        assert (waits[1] == 0) is until_caught_up


class TestStop:
    def test_when_all_is_over_the_group_may_take_the_tasks_without_another_flush(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(("in", 0))
            turns._is_over = True
            await turns._on_revoked([IN])
            assert turns.producer.events == []

        asyncio.run(scenario())

    def test_a_second_signal_does_not_wait_for_the_last_commit(self) -> None:
        class Stuck:
            is_stopping = False
            stops = 0

            def stop(self, *, comes_back: bool) -> None:
                assert not comes_back, "Ctrl-C is for good"
                self.is_stopping = True
                self.stops += 1
                signal.raise_signal(signal.SIGTERM)

            async def run(self, **_: Any) -> None:
                signal.raise_signal(signal.SIGINT)
                await asyncio.Event().wait()

        stuck = Stuck()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(asyncio.wait_for(_run(stuck, False), 60))  # type: ignore[arg-type]
        assert stuck.stops == 1

    def test_a_stop_comes_after_a_slice_not_after_all_that_was_read(self) -> None:
        async def scenario() -> None:
            seen: list[bytes] = []
            app = Streams("app")
            app.stream("in").for_each(seen.append)
            turns = Turns(app)
            turns._rounds._pace[0].records = 2  # the function is slow
            await turns.assign(IN)
            turns.receive("in", *range(20))
            turns.consumer.positions[IN] = 20
            await turns._rounds.run()
            await turns._commit()
            assert len(seen) == 2
            assert turns.consumer.offsets[IN].offset == 2

        asyncio.run(scenario())

    def test_a_stop_comes_when_all_that_keep_together_have_had_their_round(self) -> None:
        """Else the records of one would be behind those of another after the next start."""

        async def scenario() -> None:
            app = Streams("app", key=string(), value=string())
            seen = app.stream("in").peek(lambda v: turns.stop())
            seen.group_by(lambda v: "all", name="all").count().to_stream().to("out")
            turns = Turns(app, **{"in": 2})
            await turns.assign(("in", 0), ("in", 1))
            turns.receive("in", 1, 9)
            turns.receive("in", 2, 9, partition=1)
            await turns._rounds.run()
            sent = turns.producer.sent["app-all-repartition"]
            assert [columns.timestamps for columns in sent] == [[1, 9, 2, 9]]

        asyncio.run(scenario())


class TestAssignment:
    def test_tasks_that_stay_go_on_while_others_come_and_go(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing(), **{"in": 2})
            await turns.assign(("in", 0))
            stays = turns.tasks["0_0"]
            turns.starter.is_held = True
            await turns.assign(("in", 1))
            assert turns.tasks == {"0_0": stays}, "the other is being restored"
            assert turns.consumer.paused == {TopicPartition("in", 1)}
            turns.receive("in", 1, 2)
            assert await turns._rounds.run() == 2
            turns.starter.is_held = False
            await turns.start()
            assert turns.tasks.keys() == {"0_0", "0_1"}
            assert turns.consumer.paused == set()
            await turns.revoke(TopicPartition("in", 1))
            assert turns.tasks == {"0_0": stays}

        asyncio.run(scenario())

    def test_a_task_that_goes_before_it_ran_is_not_taken_over(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            turns.starter.is_held = True
            await turns.assign(IN)
            await turns.revoke(IN)
            turns.starter.is_held = False
            await turns.start()
            assert not turns.tasks
            assert turns.producer.events == [], "it has nothing to commit"

        asyncio.run(scenario())

    def test_a_task_whose_inputs_have_grown_is_made_anew_with_all_of_them(self) -> None:
        async def scenario() -> None:
            turns = Turns(merging())
            await turns.assign(("a", 0))
            (before,) = turns.tasks.values()
            await turns.assign(("b", 0))
            (life,) = turns._rounds.tasks
            assert {tp.topic for tp in life.partitions} == {"a", "b"}
            assert turns.tasks["0_0"] is not before

        asyncio.run(scenario())

    @pytest.mark.parametrize("how", ["went elsewhere", "fenced", "lost"])
    def test_tasks_that_were_elsewhere_in_between_are_made_anew(self, how: str) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            before = turns.tasks
            turns.receive("in", 1, 2)
            await turns._rounds.run()
            turns.producer.events.clear()
            turns.consumer.is_fenced = how == "fenced"
            if how == "lost":
                await turns._on_lost([IN])
                assert turns.producer.events == [], "others write there by now"
            else:
                await turns.revoke(IN)
            assert not turns.tasks
            await turns.assign(IN)
            assert turns.tasks.keys() == before.keys()
            assert turns.tasks != before

        asyncio.run(scenario())

    def test_after_a_commit_that_failed_all_tasks_begin_anew_from_the_last_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        clock = SimpleNamespace(monotonic=lambda: now, time_ns=lambda: 0)
        monkeypatch.setattr(worker_module, "time", clock)

        async def scenario() -> None:
            nonlocal now
            turns = Turns(passing())
            turns.consumer.offsets[IN] = OffsetAndMetadata(5)
            await turns.assign(IN)
            before = turns.tasks
            turns.receive("in", 1, 2, first=5)
            await turns._rounds.run()
            turns.consumer.positions[IN] = 7
            turns.consumer.is_fenced = True
            await turns._commit_or_begin_anew()
            assert not turns.tasks
            turns.consumer.is_fenced = False
            await turns.start()
            assert not turns.tasks, "not at once"
            now += 1
            await turns.start()
            assert turns.tasks.keys() == before.keys()
            assert turns.tasks != before
            assert turns.consumer.positions[IN] == 5

        asyncio.run(scenario())

    def test_what_no_other_try_would_mend_ends_the_worker(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns._client.refresh = AsyncMock(side_effect=BrokerUnavailable("nobody answers"))
            gone, large = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.MESSAGE_TOO_LARGE
            for code, words in ((gone, "topic out"), (large, "a row")):
                with pytest.raises(ApiError, match=words):
                    await turns._begin_anew(ApiError(code, words))

        asyncio.run(scenario())

    def test_nothing_is_committed_while_a_join_is_under_way(self) -> None:
        """The generation that this worker knows may be refused by then."""

        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._rounds.run()
            turns.consumer.is_rebalancing = True
            await turns._commit()
            assert "commit" not in turns.producer.events
            turns.consumer.is_rebalancing = False
            await turns._commit()
            assert turns.producer.events[-1] == "commit"

        asyncio.run(scenario())

    def test_a_latest_source_without_a_commit_starts_at_the_end_whoever_had_it(self) -> None:
        async def scenario() -> None:
            app = Streams("app")
            app.stream("in", offset_reset="latest").to("out")
            turns = Turns(app)
            for _ in range(2):
                await turns.assign(IN)
                assert turns.consumer.at_the_end == [IN]
                turns.consumer.at_the_end.clear()
                await turns.revoke(IN)
            turns.consumer.offsets[IN] = OffsetAndMetadata(7)
            await turns.assign(IN)
            assert turns.consumer.at_the_end == []

        asyncio.run(scenario())

    def test_partitions_that_came_later_run_where_there_is_no_state(self) -> None:
        asyncio.run(Turns(passing()).assign(("in", 0), ("in", 5)))

    def test_partitions_that_came_later_and_have_no_changelog_are_named(self) -> None:
        app = Streams("app")
        app.stream("in").group_by_key().count(name="n")
        with pytest.raises(TopologyError, match="'in' has more partitions than .*app-n-changelog"):
            asyncio.run(Turns(app).assign(("in", 0), ("in", 1)))


class TestWaiting:
    def test_one_input_waits_for_another_that_has_more_to_come(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        clock = SimpleNamespace(monotonic=lambda: now, time_ns=lambda: 0)
        monkeypatch.setattr(worker_module, "time", clock)

        async def scenario() -> None:
            nonlocal now
            turns = Turns(merging())
            late = TopicPartition("b", 0)
            await turns.assign(("a", 0), ("b", 0))
            turns.consumer.lags[late] = 2
            turns.receive("a", 5)
            assert not await turns._rounds.run()
            turns.receive("b", 1, 9)
            assert await turns._rounds.run()
            (out,) = turns.producer.sent["out"]
            assert out.timestamps == [1, 5], "9 waits until more of the other is known"
            turns.consumer.lags[late] = 0
            assert await turns._rounds.run()

        asyncio.run(scenario())

    def test_a_partition_that_gives_nothing_holds_others_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        clock = SimpleNamespace(monotonic=lambda: now, time_ns=lambda: 0)
        monkeypatch.setattr(worker_module, "time", clock)

        async def scenario() -> None:
            nonlocal now
            turns = Turns(merging())
            await turns.assign(("a", 0), ("b", 0))
            turns.consumer.lags[TopicPartition("b", 0)] = 2
            turns.receive("a", 5)
            assert not await turns._rounds.run()
            now += LAG_WAIT_MS_MAX / 1000
            for offset in range(1, 4):
                assert await turns._rounds.run(), "not for five seconds each time"
                turns.receive("a", 5 + offset, first=offset)
            turns.receive("b", 3)
            assert await turns._rounds.run()
            assert not await turns._rounds.run(), "it had recovered"

        asyncio.run(scenario())
