"""The care for the logs of a broker: retention, syncs, removal of files, second tries.       [D]

    append ──flush.messages──> await_flush ─┐
    each second ──flush.ms──────────────────┼──> one flush of a log at a time, in a thread
    each minute ──rolled segments───────────┘         └──> `flushed` or `failed`

Group commit: requests that append during a flush of a log share the next flush.

Owns   the flushes in flight, and the number of bytes that each will make visible to readers.
Never  waits for a disk itself. Never forgets a failed sync: the log refuses appends from then on.
Fails  with one line in the broker's log; a failed log harms no other. A log that failed in another
       way, or could not be opened, is tried again: a full disk may have room by then.
Source apache/kafka LogManager (its scheduled tasks); group commit as databases have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.duties import Duty, Slices
from kafkalite.core.log.flushing import Flush
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.shared_write import SharedWrite
from kafkalite.core.log.store import LogStore
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import Now
from kafkalite.errors import ApiError, StorageError

HOUSEKEEPING_MS: Final = 10_000
IN_SYNC_CHECK_MS: Final = 500
FLUSH_CHECK_MS: Final = 1_000
FLUSH_CHECK_MS_MIN: Final = 10
LOGS_PER_SLICE: Final = 32
PARTITIONS_PER_SLICE: Final = 500  # of looks at their followers, some 5 us each


class Host(Protocol):
    """The upkeep's interface to its broker."""

    logs: LogStore
    log_starts: SharedWrite

    def now(self) -> Now:
        """This moment."""

    def monotonic_ms(self) -> int:
        """The monotonic clock."""

    def in_thread(self, act: Callable[[], Any]) -> Any:
        """Runs `act` in another thread. Returns a future of its result."""

    def topics_held(self) -> Sequence[Sequence[Partition]]:
        """The partitions held here, by topic."""

    def flushed(self, partition: Partition, byte_count: int) -> None:
        """Acknowledges the writes that waited for a flush; readers learn of `byte_count` bytes."""

    def failed(self, partition: Partition) -> None:
        """Nothing that waits for records of `partition` will come: its log has failed."""

    def look_for_lag(self, partition: Partition, monotonic_ms: int) -> None:
        """Looks for followers of `partition` that lag, or are caught up."""

    def try_again(self) -> Slices:
        """Opens the logs that could not be opened or have failed, where that may help."""

    def note(self, message: str) -> None:
        """Logs one line for the operator."""

    def inform(self, message: str) -> None:
        """Logs one line at INFO, about normal work."""


class Upkeep:
    """The care for all logs of one broker."""

    def __init__(self, host: Host, config: BrokerConfig) -> None:
        self._host = host
        self._config = config
        self._awaited: dict[Partition, int] = {}  # bytes appended that a next flush acknowledges
        self._in_flight: dict[Partition, Any] = {}  # futures of flushes

    def duties(self) -> Iterator[Duty]:
        """The periodic duties."""
        config = self._config
        yield Duty("retention", config["log.retention.check.interval.ms"], self._retain)
        yield Duty("housekeeping", HOUSEKEEPING_MS, self._keep_house)
        interval_ms = config["log.flush.scheduler.interval.ms"]  # may be 0, or less
        interval_ms = max(FLUSH_CHECK_MS_MIN, min(FLUSH_CHECK_MS, interval_ms))
        yield Duty("flush", interval_ms, self._flush_overdue)
        yield Duty("in-sync replicas", IN_SYNC_CHECK_MS, self._look_for_lag)
        interval_ms = max(1, config["replica.high.watermark.checkpoint.interval.ms"])
        yield Duty("high watermarks", interval_ms, self._write_high_watermarks)
        interval_ms = config["log.flush.offset.checkpoint.interval.ms"]
        yield Duty("recovery points", interval_ms, self._move_recovery_points)
        interval_ms = config["log.flush.start.offset.checkpoint.interval.ms"]
        yield Duty("log start offsets", interval_ms, self._write_log_start_offsets)

    # -- group commit

    def await_flush(self, partition: Partition, byte_count: int) -> None:
        """Bytes were appended that flush.messages wants on the disk before they count."""
        self._awaited[partition] = self._awaited.get(partition, 0) + byte_count
        self._flush(partition)

    def in_flight(self) -> list[Any]:
        """The futures of all flushes that have begun."""
        return list(self._in_flight.values())

    def is_flushing(self, partition: Partition) -> bool:
        """Whether a flush of it has begun, which may yet find that its log has failed for good."""
        return partition in self._in_flight

    def _flush(self, partition: Partition) -> Any | None:
        """Begins a flush; its future, None where one is under way or no sense in it."""
        log = partition.log
        if log.failure is not None:
            self._awaited.pop(partition, None)
            return None
        if partition in self._in_flight:
            return None
        flush, byte_count = log.begin_flush(), self._awaited.pop(partition, 0)
        future = self._host.in_thread(flush.run)
        self._in_flight[partition] = future
        future.add_done_callback(partial(self._flushed, partition, log, flush, byte_count))
        return future

    def _flushed(
        self, partition: Partition, log: PartitionLog, flush: Flush, byte_count: int, future: Any
    ) -> None:
        del self._in_flight[partition]
        try:
            log.end_flush(flush, future.result(), self._host.monotonic_ms())
        except StorageError as error:
            self._refused(partition, log, byte_count, error)
            return
        self._host.flushed(partition, byte_count)
        if partition in self._awaited:
            self._flush(partition)

    def _refused(
        self, partition: Partition, log: PartitionLog, byte_count: int, error: StorageError
    ) -> None:
        if log.failure is None:  # nothing is lost: once more, with the next append or second
            self._host.note(str(error))
            self._awaited[partition] = self._awaited.get(partition, 0) + byte_count
        else:
            self._host.note(f"{partition.topic_partition} takes no more records: {error}")
            self._awaited.pop(partition, None)
            self._host.failed(partition)

    # -- duties

    def _retain(self, monotonic_ms: int) -> Slices:
        """Deletes segments beyond the retention."""
        shorter: list[PartitionLog] = []

        def retain(log: PartitionLog) -> None:
            if log.delete_old_segments(self._host.now(), self._host.inform):
                shorter.append(log)

        yield from self._each_log(retain)
        yield from self._run([log.sync_directory for log in shorter])

    def _keep_house(self, monotonic_ms: int) -> Slices:
        """Removes files whose time has come, forgets silent producers, tries again what failed."""
        removals = self._host.logs.tick(monotonic_ms, self._config["log.segment.delete.delay.ms"])
        yield from self._each_log(lambda log: removals.extend(log.tick(self._host.now())))
        yield from self._run(removals)
        yield from self._host.try_again()

    def _flush_overdue(self, monotonic_ms: int) -> Slices:
        """Syncs logs whose flush.ms is over; most topics have none, and cost a look at one log."""
        overdue = [
            partition
            for held in self._host.topics_held()
            if held and held[0].log.config.flush_ms < LONG_MAX
            for partition in held
            if partition.log.flush_is_overdue(monotonic_ms)
        ]
        yield from self._flush_all([*self._awaited, *overdue])

    def _move_recovery_points(self, monotonic_ms: int) -> Slices:
        """Syncs logs that have rolled since, and writes how far each is synced: a recovery after a
        crash starts there."""
        logs = [(each, each.log) for each in self._partitions() if each.log.failure is None]
        rolled = [each for each, log in logs if log.segments[-1].base_offset > log.recovery_point]
        yield from self._flush_all(rolled)
        writer = self._host.logs.recovery_points_writer()
        yield from self._run([] if writer is None else [writer])

    def _look_for_lag(self, monotonic_ms: int) -> Slices:
        """Looks at the followers of the partitions led here."""
        replicated = [each for each in self._partitions() if each.replication.replica_count > 1]
        for number, partition in enumerate(replicated, start=1):
            self._host.look_for_lag(partition, monotonic_ms)
            if number % PARTITIONS_PER_SLICE == 0:
                yield None

    def _write_high_watermarks(self, monotonic_ms: int) -> Slices:
        """Writes the high watermarks of partitions that have other replicas: alone a log counts as
        far as it goes, whatever was written."""
        replicated = [each for each in self._partitions() if each.replication.replica_count > 1]
        writer = self._host.logs.high_watermarks_writer([each.log for each in replicated])
        yield from self._run([] if writer is None else [writer])

    def _write_log_start_offsets(self, monotonic_ms: int) -> Slices:
        """Writes where logs begin, as retention may have moved it."""
        self._host.log_starts.ask(self._note)
        yield None

    def _note(self, error: StorageError | None) -> None:
        if error is not None:
            self._host.note(str(error))

    def _flush_all(self, partitions: Iterable[Partition]) -> Slices:
        """Flushes some; LOGS_PER_SLICE wait for the disk at once."""
        todo = iter(partitions)
        while some := list(islice(todo, LOGS_PER_SLICE)):
            for future in [self._flush(partition) for partition in some]:
                if future is not None:
                    yield future

    def _run(self, acts: Iterable[Callable[[], None]]) -> Slices:
        """Runs each in a thread, one after the other."""
        for act in acts:
            future = self._host.in_thread(act)
            yield future
            self._guarded(future.result)

    def _partitions(self) -> list[Partition]:
        return [partition for held in self._host.topics_held() for partition in held]

    def _each_log(self, act: Callable[[PartitionLog], object]) -> Slices:
        """Does something to every log, LOGS_PER_SLICE at a time."""
        for number, partition in enumerate(self._partitions(), start=1):
            if partition.log.failure is None:
                self._guarded(partial(act, partition.log))
            if number % LOGS_PER_SLICE == 0:
                yield None

    def _guarded(self, act: Callable[[], object]) -> None:
        """Reports errors of the disk; the other logs continue."""
        try:
            act()
        except (ApiError, StorageError) as error:
            self._host.note(str(error))
