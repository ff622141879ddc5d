"""A worker's turns without a broker: what it waits for, what it commits, what it lets go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string, tumbling
from kafkalite.streams.app import _run
from kafkalite.streams.local import worker as worker_module
from kafkalite.streams.local.assignor import TaskAssignor
from kafkalite.streams.local.committer import AtLeastOnce
from kafkalite.streams.local.worker import LAG_WAIT_MS_MAX, Worker


class Producer:
    """Writes down what it is given."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.sent: dict[str, list[Columns]] = {}

    async def send_columns(self, topic: str, columns: Columns, **to: Any) -> None:
        self.events.append(topic)
        self.sent.setdefault(topic, []).append(columns)

    async def flush(self) -> None:
        self.events.append("flush")

    def end_offset(self, partition: TopicPartition) -> int | None:
        return None


class Consumer:
    """Knows what the test says; writes down what is asked of it."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.positions: dict[TopicPartition, int] = {}
        self.lags: dict[TopicPartition, int] = {}
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.at_the_end: list[TopicPartition] = []
        self.is_fenced = False

    def position(self, tp: TopicPartition) -> int | None:
        return self.positions.get(tp)

    def lag(self, tp: TopicPartition) -> int | None:
        return self.lags.get(tp, 0)

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

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


class Turns(Worker):
    """A worker between a producer and a consumer of the test."""

    def __init__(self, app: Streams, **partitions_of: int) -> None:
        super().__init__(app.plan(), "127.0.0.1:1", MemoryRegistry())
        self.producer = Producer()
        self.consumer = Consumer(self.producer)
        self._consumer = self.consumer  # type: ignore[assignment]
        self._committer = AtLeastOnce(self.producer, self._consumer, None)  # type: ignore[arg-type]
        subs = self._sub_topologies.values()
        sources = {s.id: tuple(t for src in s.sources for t in src.topics) for s in subs}
        self._sub_topology_of = {topic: sub for sub, topics in sources.items() for topic in topics}
        self._partitions_of = {topic: 1 for topics in sources.values() for topic in topics}
        self._partitions_of |= {c.name: 1 for s in subs for c in s.changelogs} | partitions_of
        self._assignor = TaskAssignor(sources)

    async def assign(self, *partitions: tuple[str, int]) -> None:
        await self._on_assigned([TopicPartition(*tp) for tp in partitions])

    def receive(self, topic: str, *timestamps: int, first: int = 0, partition: int = 0) -> None:
        keys = [b"k"] * len(timestamps)
        offsets = range(first, first + len(timestamps))
        batch = Columns(keys, keys, list(timestamps), offsets)
        self._receive(TopicPartition(topic, partition), batch)


@pytest.fixture(autouse=True)
def nothing_to_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    async def restore_tasks(*_: Any) -> int:
        return 0

    monkeypatch.setattr(worker_module, "restore_tasks", restore_tasks)


def passing(name: str = "app") -> Streams:
    app = Streams(name)
    app.stream("in").to("out")
    return app


def merging() -> Streams:
    app = Streams("app")
    app.stream("a").merge(app.stream("b")).to("out")
    return app


IN = TopicPartition("in", 0)


class TestCommit:
    def test_final_rows_are_in_the_log_before_the_changelog_forgets_their_window(self) -> None:
        async def scenario() -> None:
            app = Streams("app", key=string())
            app.stream("in").group_by_key().window(tumbling(10)).count(name="n").final().to("out")
            turns = Turns(app)
            await turns.assign(IN)
            turns.receive("in", 1)
            await turns._round()
            await turns._commit()
            turns.producer.events.clear()
            turns.receive("in", 30, first=1)
            await turns._round()
            await turns._commit()
            assert turns.producer.events == ["out", "flush", "app-n-changelog", "flush", "commit"]

        asyncio.run(scenario())

    def test_what_has_not_changed_is_not_committed_again(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._round()
            for _ in range(3):
                await turns._commit()
            assert turns.producer.events.count("commit") == 1

        asyncio.run(scenario())

    def test_where_nothing_waits_the_consumers_position_is_committed(self) -> None:
        """Behind the last record there may be markers of transactions."""

        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._round()
            turns.consumer.positions[IN] = 3
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 3
            turns.receive("in", 3, 4, first=3)
            turns.consumer.positions[IN] = 5
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 2, "two records wait"
            await turns._round()
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 5

        asyncio.run(scenario())


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

            def stop(self) -> None:
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
            turns._pace[0].records = 2  # the function is slow
            await turns.assign(IN)
            turns.receive("in", *range(20))
            turns.consumer.positions[IN] = 20
            await turns._round()
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
            await turns._round()
            sent = turns.producer.sent["app-all-repartition"]
            assert [columns.timestamps for columns in sent] == [[1, 9], [2, 9]]

        asyncio.run(scenario())

    def test_a_stop_while_state_is_restored_takes_over_no_task(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def scenario() -> None:
            turns = Turns(passing())

            async def restore_tasks(client: Any, tasks: Any, stopping: Any, *_: Any) -> int:
                turns.stop()
                assert stopping()
                return 0

            monkeypatch.setattr(worker_module, "restore_tasks", restore_tasks)
            await turns.assign(IN)
            assert not turns._tasks

        asyncio.run(scenario())


class TestAssignment:
    def test_tasks_that_come_back_at_once_keep_their_state(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            before = dict(turns._tasks)
            await turns._on_revoked([IN])
            assert not turns._tasks
            await turns.assign(IN)
            assert turns._tasks == before

        asyncio.run(scenario())

    @pytest.mark.parametrize("how", ["went elsewhere", "fenced", "lost"])
    def test_tasks_that_were_elsewhere_in_between_are_made_anew(self, how: str) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            before = dict(turns._tasks)
            turns.receive("in", 1, 2)
            await turns._round()
            if how == "lost":
                turns.producer.events.clear()
                await turns._on_lost([IN])
                assert set(turns.producer.events) <= {"flush"}, "others write there by now"
                assert turns._assignor.owned == frozenset()
            else:
                turns.consumer.is_fenced = how == "fenced"
                await turns._on_revoked([IN])
            if how == "went elsewhere":
                await turns.assign()
            await turns.assign(IN)
            assert turns._tasks.keys() == before.keys()
            assert turns._tasks != before

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
                await turns._on_revoked([IN])
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
            assert not await turns._round()
            turns.receive("b", 1, 9)
            assert await turns._round()
            (out,) = turns.producer.sent["out"]
            assert out.timestamps == [1, 5], "9 waits until more of the other is known"
            turns.consumer.lags[late] = 0
            assert await turns._round()

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
            assert not await turns._round()
            now += LAG_WAIT_MS_MAX / 1000
            for offset in range(1, 4):
                assert await turns._round(), "not for five seconds each time"
                turns.receive("a", 5 + offset, first=offset)
            turns.receive("b", 3)
            assert await turns._round()
            assert not await turns._round(), "it had recovered"

        asyncio.run(scenario())
