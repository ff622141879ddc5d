"""Requests that wait for records of partitions, and the answers that have become due.      [IO]

    park ──> purgatory ──advanced, gone, time is up──> finished ──> tokens are called, in order

While the server answers requests, completed operations are held back (`hold`) and their tokens
called afterwards (`settle`): an answer may let a connection go on, whose next request completes
more operations.

Owns   the order in which tokens are called: the order in which operations completed.
Never  calls a token from within the append that completes it.
Fails  with a line in the broker's log for a token that failed; the others are called all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kafkalite.core.broker.agenda import NEVER_MS, Agenda
from kafkalite.core.broker.purgatory import DelayedProduce, Operation, Purgatory
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import TopicPartition

log: Final = logging.getLogger(__name__)

KEPT_MAX: Final = 16  # batches that are kept in memory until they count, the newest
UNREACHABLE: Final = 1 << 62  # beyond what anybody waits for


class Waiting:
    """All that waits for partitions of one broker."""

    def __init__(self, agenda: Agenda) -> None:
        self.purgatory: Final[Purgatory[TopicPartition]] = Purgatory()
        self._agenda = agenda
        self._loop = asyncio.get_running_loop()
        self._finished: deque[Operation[TopicPartition]] = deque()
        self._is_answering = False  # `settle` will follow
        self._fresh: list[Partition] = []  # whose last append is in memory until then
        self._kept: dict[Partition, MemoryRecords] = {}  # last batches that do not count yet
        self._is_finishing = False
        agenda.watch("requests that wait", self._expire)

    def __len__(self) -> int:
        return len(self.purgatory)

    # -- who waits

    def park(
        self,
        operation: Operation[TopicPartition],
        keys: Sequence[TopicPartition],
        deadline_ms: int,
    ) -> bool:
        """Lets `operation` wait; its token is called once it is complete or its time is up.

        False, and nothing happens, where too many wait already.
        """
        parked = self.purgatory.park(operation, keys, deadline_ms)
        self._agenda.wake_at(deadline_ms)
        return parked

    def complete(self, operation: Operation[TopicPartition]) -> None:
        """Completes `operation`: the event that it waits for has happened."""
        if self.purgatory.cancel(operation):
            self._finish((operation,))

    def forget(self, operation: Operation[TopicPartition]) -> None:
        """Removes `operation`: its reader is gone."""
        self.purgatory.cancel(operation)

    def when_committed(
        self,
        partition: Partition,
        offset: int,
        then: Callable[[], None],
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Calls `then` once the high watermark has reached `offset`, at once if it has. Callbacks
        run in the order of their offsets.

        Calls `otherwise` if the records may be lost: the log has failed, the topic is gone, another
        leader epoch has begun, or too few replicas are in sync by then.
        """
        is_committed = partition.log.high_watermark >= offset
        if is_committed and not self._finished:
            then()
            return
        key, epoch = partition.topic_partition, partition.replication.leader_epoch

        def left() -> None:
            is_lost = operation.lost or operation.offsets_wanted
            (otherwise if is_lost else then)()

        def acknowledges(key: TopicPartition) -> bool:
            return partition.why_unsafe(epoch) is None

        operation: DelayedProduce[TopicPartition] = DelayedProduce(
            left, {} if is_committed else {key: offset}, acknowledges
        )
        if is_committed:
            self._finish((operation,))
            return
        if not self.purgatory.park(operation, (key,), NEVER_MS):
            # The records are appended, so their callback must have room: requests that could have
            # waited longer are answered now, with what there is.
            first_deadline_ms = self.purgatory.next_deadline_ms()
            assert first_deadline_ms is not None, "nothing waits, and there is no room"
            self._finish(self.purgatory.expire(first_deadline_ms))
            parked = self.purgatory.park(operation, (key,), NEVER_MS)
            assert parked, f"{len(self.purgatory)} wait"

    # -- what they wait for

    def advanced(
        self, partition: Partition, byte_count: int, fresh: MemoryRecords | None = None
    ) -> None:
        """`byte_count` bytes more of `partition` count, or its high watermark has moved. Until the
        next `settle` those that this wakes may read the batch itself, `fresh`, from memory."""
        where = partition.topic_partition
        is_watched = bool(partition.watchers)
        partition.counts(byte_count)
        kept = self._kept.get(partition) if self._kept else None
        if kept is not None and kept.before_offset <= partition.log.high_watermark:
            fresh = self._kept.pop(partition)
        if fresh is not None and is_watched and self._is_answering:
            partition.fresh = fresh
            self._fresh.append(partition)
        if self.purgatory.waits_on(where):
            high_watermark = partition.log.high_watermark
            self._finish(self.purgatory.advance(where, high_watermark, byte_count))

    def grew(self, partition: Partition, byte_count: int, fresh: MemoryRecords | None) -> None:
        """The same for the partition's followers, which also read records that do not count yet.
        Consumers get the batch `fresh` from memory once it counts."""
        partition.grew(byte_count)
        kept = self._kept
        kept.pop(partition, None)
        if fresh is None:
            return
        kept[partition] = fresh
        if len(kept) > KEPT_MAX:
            del kept[next(iter(kept))]
        if self._is_answering:
            partition.fresh = fresh
            self._fresh.append(partition)

    def look_again(self, partition: Partition) -> None:
        """Something else than the high watermark has moved: a follower's log start."""
        where = partition.topic_partition
        if self.purgatory.waits_on(where):
            self._finish(self.purgatory.advance(where, partition.log.high_watermark))

    def failed(self, partition: Partition) -> None:
        """The log has failed: requests that wait for its records are answered."""
        self.gone(partition)

    def gone(self, partition: Partition) -> None:
        """The partition was deleted, or is led elsewhere or in another epoch: requests that wait
        for its records are answered."""
        self._kept.pop(partition, None)
        partition.changed(UNREACHABLE)
        self._finish(self.purgatory.drop(partition.topic_partition))

    def _expire(self, now_ms: int) -> int | None:
        self._finish(self.purgatory.expire(now_ms))
        return self.purgatory.next_deadline_ms()

    # -- answers

    def soon(self, act: Callable[[], None]) -> None:
        """Calls `act` in the next turn of the loop, after the answers of this one."""
        self._loop.call_soon(act)

    def hold(self) -> None:
        """A request is about to be answered: operations that it completes wait for `settle`."""
        self._is_answering = True

    def settle(self) -> None:
        """Calls the tokens of what the requests answered since have completed."""
        self._is_answering = False
        if self._finished:
            self._finish_now()
        if self._fresh:
            for partition in self._fresh:
                partition.fresh = None
            self._fresh.clear()

    def _finish(self, operations: Iterable[Operation[TopicPartition]]) -> None:
        """Calls the tokens of what has waited, after whatever runs now."""
        is_idle = not self._finished
        self._finished.extend(operations)
        if is_idle and self._finished and not self._is_answering:
            self._loop.call_soon(self._finish_now)

    def _finish_now(self) -> None:
        """Calls them all. An answer may let a connection go on, and that call this again."""
        if self._is_finishing:
            return
        self._is_finishing = True
        for _ in range(len(self._finished)):
            operation = self._finished.popleft()
            try:
                operation.token()
            except Exception:
                log.exception("an answer that had waited")
        self._is_finishing = False
        if self._finished:
            self._loop.call_soon(self._finish_now)
