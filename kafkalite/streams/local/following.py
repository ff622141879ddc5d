"""Following: a restore that never ends, for tasks that another worker runs.               [IO]

    add ──> step ... step ──> remove

What is read is committed, so a follower's rows are never ahead of a commit. They are written now
and then, into memory or RocksDB, with the changelog's offset: a worker that takes the task over
restores what is left from there.

Owns   one consumer without a group for all tasks that are followed.
Never  keeps the loop longer than its budget and a batch of records.
Fails  with the errors of the broker, and of a row that cannot be read; all that is followed is then
       to be closed, and may be followed anew.
Source KIP-441; Kafka Streams' StandbyTask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.streams.local.placement import TaskId
from kafkalite.streams.local.replay import Replay
from kafkalite.streams.local.restore import make_reader, start_over
from kafkalite.streams.local.task_manager import Life

WRITE_SECONDS: Final = 1.0  # how often rows are written that have been read


class Follower:
    """The standbys of one worker, as far as their changelogs go."""

    def __init__(
        self, client: Client, clock: Callable[[], float], now_ms: Callable[[], int]
    ) -> None:
        self.records = 0
        self._client = client
        self._clock = clock
        self._now_ms = now_ms
        self._lives: dict[Life, Sequence[Replay]] = {}
        self._replays: dict[TopicPartition, Replay] = {}
        self._fresh: set[TopicPartition] = set()  # to be sought to their starts
        self._changed: set[TopicPartition] = set()  # with rows that wait to be written
        self._consumer: Consumer | None = None
        self._written_at = clock()

    def add(self, life: Life, replays: Sequence[Replay]) -> None:
        """From now on the task is followed."""
        self._lives[life] = replays
        for replay in replays:
            self._replays[replay.changelog] = replay
            self._fresh.add(replay.changelog)

    def remove(self, life: Life) -> None:
        """The task is followed no more; what was read of it is written."""
        for replay in self._lives.pop(life, ()):
            replay.settle()
            self._write(replay.changelog)
            replay.settle()
            del self._replays[replay.changelog]
            self._fresh.discard(replay.changelog)
        if self._consumer is not None:
            self._consumer.assign(self._replays)

    @property
    def lags(self) -> dict[TaskId, int]:
        """How many records each task is behind."""
        return {life.task_id: sum(map(self._lag, replays)) for life, replays in self._lives.items()}

    @property
    def known_lags(self) -> dict[TaskId, int]:
        """The same of tasks whose changelogs have all been read from here, as of the last fetch."""
        consumer = self._consumer
        if consumer is None:
            return {}
        found: dict[TaskId, int] = {}
        for life, replays in self._lives.items():
            changelogs = [replay.changelog for replay in replays]
            lags = [consumer.lag(tp) for tp in changelogs if tp not in self._fresh]
            known = [lag for lag in lags if lag is not None]
            if len(known) == len(replays):
                found[life.task_id] = sum(known)
        return found

    async def step(self, budget_ms: float) -> bool:
        """Reads for about as long as the budget; whether there was something to read."""
        if not self._replays:
            return False
        consumer = await self._reader()
        until = self._clock() + budget_ms / 1000
        had_some = False
        for replay in self._replays.values():  # rows come before records: memory has a bound
            while replay.write_on():
                if self._clock() >= until:
                    return True
        while polled := await self._poll(consumer):
            had_some = True
            for tp, columns in polled.items():
                self._replays[tp].take(columns)
                self._changed.add(tp)
                self.records += len(columns)
            if self._clock() >= until:
                break
        self._note_positions(consumer)
        return had_some

    async def close(self) -> None:
        """Disconnects. All tasks that were followed have been removed before."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()

    async def _reader(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await make_reader(self._client)
            self._fresh = set(self._replays)
        if self._fresh:
            self._consumer.assign(self._replays)
            for tp in self._fresh:
                self._consumer.seek(tp, self._replays[tp].start)
            self._fresh = set()
        return self._consumer

    async def _poll(self, consumer: Consumer) -> Mapping[TopicPartition, Columns]:
        try:
            return await consumer.poll(0)
        except ApiError as error:
            if error.error_code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            if not await start_over(consumer, self._replays):
                raise
            return {}

    def _note_positions(self, consumer: Consumer) -> None:
        now = self._clock()
        is_due = now - self._written_at >= WRITE_SECONDS
        for tp, replay in self._replays.items():
            position = consumer.position(tp)
            if position is not None and position != replay.start:
                replay.start = position
                replay.passed(position, self._now_ms(), writes=False)
        if is_due:
            self._written_at = now
            for tp in list(self._changed):
                self._write(tp)

    def _write(self, tp: TopicPartition) -> None:
        replay = self._replays[tp]
        if tp in self._changed and not replay.is_writing:  # else it has its turn later
            self._changed.discard(tp)
            replay.passed(replay.start, self._now_ms(), writes=True)

    def _lag(self, replay: Replay) -> int:
        consumer, tp = self._consumer, replay.changelog
        known = None if consumer is None or tp in self._fresh else consumer.lag(tp)
        return max(0, replay.end - replay.start) if known is None else known
