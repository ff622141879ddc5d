"""The log of one partition: append, read, truncate, retain, recover.                      [D]

    log_start_offset        high_watermark      log_end_offset
           |   committed, readable    |   not yet on all in-sync replicas   |
    [ segment ][ segment ][ segment ...                     active segment ]
                     last_stable_offset <= high_watermark: no open transaction below it

An append checks one batch, sets its base offset and leader epoch, and writes it with one call.
A read returns places in files (`FileRecords`), never bytes.

Owns   the segments, producers and leader epochs of the partition. One owner, one thread; only
       `Flush.run`, `sync_directory` and what `tick` returns may run in another.
Never  reads a clock. Never waits for the disk at an append: the caller does if `flush_is_due`.
Fails  with ApiError for clients (append, read), StorageError elsewhere; both name the partition
       and the system's error. The bytes of a failed write are cut off. If that fails, or a sync
       fails, the log has failed: it refuses all appends, and reads of bytes that may not be on
       the disk. After a failed sync that is final; else the log may be opened again.
Source apache/kafka UnifiedLog, LocalLog; KIP-101 (truncation), KIP-107 (log start offset).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn

from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.flushing import Durability, Flush
from kafkalite.core.log.health import refuse
from kafkalite.core.log.index import IndexCache
from kafkalite.core.log.loading import Loaded, load
from kafkalite.core.log.place import Place, Report
from kafkalite.core.log.port import Buffer, Storage
from kafkalite.core.log.producer_state import BatchMetadata, ProducerState
from kafkalite.core.log.readable import ReadableLog
from kafkalite.core.log.retention import deletable, farewell
from kafkalite.core.log.runs import Run, checked_run, next_batch
from kafkalite.core.log.segment import Segment
from kafkalite.core.log.snapshots import Snapshots
from kafkalite.core.log.validation import Batch, Validated, validated
from kafkalite.core.log.values import AbortedTransaction, Appended
from kafkalite.core.protocol.records import BatchHeader, patch
from kafkalite.core.types import NO_TIMESTAMP, Now, TopicPartition
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, StorageError


class PartitionLog(ReadableLog):
    """One partition's log. See the module's docstring for the order of its offsets."""

    __slots__ = (
        "_durability",
        "_expired_ms",
        "_high_watermark",
        "_place",
        "_snapshots",
        "loss",
        "producers",
    )

    def __init__(self, place: Place, loaded: Loaded, now: Now, *, is_new: bool) -> None:
        super().__init__(place, loaded)
        self._place = place
        self._snapshots: Final[Snapshots] = loaded.snapshots
        self.producers: Final[ProducerState] = loaded.producers
        self.loss: Final = loaded.loss  # what opening it found missing or cut, in words
        self._high_watermark = loaded.log_start_offset
        opened_ms, synced = now.monotonic_ms, loaded.recovery_point
        self._durability = Durability(place, loaded.epochs, synced, opened_ms, is_new=is_new)
        self._expired_ms = opened_ms

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        now: Now,
        *,
        clean_shutdown: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        is_new: bool = False,
        was_cleaned: bool = False,
        index_cache: IndexCache | None = None,
        report: Report = lambda _: None,
    ) -> PartitionLog:
        """Opens the log in `directory`, or makes one there.

        After an unclean shutdown the segments from `recovery_point` on are read and a torn end
        is cut. `is_new`: the directory is not yet on the disk. `was_cleaned`: compaction has left
        gaps in it. `report` gets a line for each damage. StorageError names the partition."""
        cache = index_cache if index_cache is not None else IndexCache()
        place = Place(storage, directory, topic_partition, cache, config, now, report, was_cleaned)
        try:
            loaded = load(
                place,
                clean_shutdown=clean_shutdown,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
            )
        except (OSError, CorruptBatchError, StorageError) as error:
            raise StorageError(f"{topic_partition}: cannot be opened: {error}") from error
        return cls(place, loaded, now, is_new=is_new)

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The settings that it goes by; may be set while it is open."""
        return self._place.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._place.config = config
        self._durability.set_due()

    @property
    def directory(self) -> str:
        """The log's directory in its storage."""
        return self._place.directory

    @property
    def segments(self) -> Sequence[Segment]:
        """By base offset; the last is the active one."""
        return self._segments.all

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' logs."""
        return self._segments.size_bytes

    @property
    def recovery_point(self) -> int:
        """Below it everything is on the disk."""
        return self._durability.recovery_point

    @property
    def failure(self) -> str | None:
        """Why nothing can be appended any more: it failed or was closed; None if all is well."""
        return self.health.failure

    @property
    def can_reopen(self) -> bool:
        """Whether it has failed in a way that a fresh look at the disk may mend."""
        return self.health.can_reopen

    @property
    def high_watermark(self) -> int:
        """Below it records are on all in-sync replicas, and readable."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self._high_watermark = offset
        if self.producers.first_unstable_offset is not None:
            self.producers.on_high_watermark(offset)

    @property
    def last_stable_offset(self) -> int:
        """No transaction is open below it; readers of committed records stop here."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self.log_start_offset)

    # ---- append --------------------------------------------------------------------------------

    def append_as_leader(
        self, records: Batch, leader_epoch: int, now_ms: int, *, from_client: bool = True
    ) -> Appended:
        """Appends one batch, which gets the next offsets. ApiError when it is refused.

        `records` is changed in place where it is writable. `from_client`: not the broker's own.
        """
        config = self._place.config
        self.health.check()
        if not isinstance(records, Validated):
            records = validated(records, config, self.topic_partition, now_ms, from_client)
        records, header = records
        if header.producer_id >= 0:
            repeated = self.producers.admit(header, records, from_client=from_client)
            if repeated is not None:
                return self._as_before(repeated)
        base_offset = self.log_end_offset
        log_append_time_ms = NO_TIMESTAMP
        max_timestamp = header.max_timestamp
        if config.message_timestamp_type == "LogAppendTime":
            log_append_time_ms = max_timestamp = now_ms
            patch(records, 0, base_offset, leader_epoch, now_ms)
        else:
            patch(records, 0, base_offset, leader_epoch)
        self._store(records, header, leader_epoch, max_timestamp, now_ms)
        last_offset = base_offset + header.last_offset_delta
        return Appended(base_offset, last_offset, log_append_time_ms, self.log_start_offset)

    def _as_before(self, batch: BatchMetadata) -> Appended:
        """The first answer to a batch that its producer sends again."""
        by_broker = self._place.config.message_timestamp_type == "LogAppendTime"
        time_ms = batch.timestamp if by_broker else NO_TIMESTAMP
        return Appended(
            batch.base_offset, batch.last_offset, time_ms, self.log_start_offset, duplicate=True
        )

    def append_as_follower(
        self, records: Buffer, now_ms: int, leader_epoch: int = LONG_MAX
    ) -> Appended | None:
        """Appends a run of batches as the leader of `leader_epoch` sent them, offsets and epochs
        included, with one write for each segment; None for no batch.

        An incomplete batch at the end is left out. CorruptBatchError, and nothing is done, for a
        bad CRC, for offsets or epochs that fall, and for a batch that begins before the log's end.
        """
        self.health.check()
        run = checked_run(records, self.topic_partition, self.epochs.latest, leader_epoch)
        if not run:
            return None
        first_offset, start, data = (
            run[0][1].base_offset,
            self.log_start_offset,
            memoryview(records),
        )
        try:
            if first_offset < self.log_end_offset:
                self._begin_within(run[0][1])
            while run:
                run = self._store_run(data, run, now_ms)
        except StorageError as error:
            refuse(error)
        if start > self.log_start_offset:
            self.log_start_offset = start
            self.high_watermark = self._high_watermark
        return Appended(first_offset, self.log_end_offset - 1, NO_TIMESTAMP, self.log_start_offset)

    def append_next(self, records: memoryview, now_ms: int) -> bool:
        """The same of one batch that comes next in the log's last epoch, as nearly always. False
        where it is another, or the disk refuses it: then `append_as_follower` tells why."""
        header = next_batch(records, self.log_end_offset, self.epochs.latest)
        if header is None or self.health.failure is not None:
            return False
        epoch, timestamp = header.partition_leader_epoch, header.max_timestamp
        try:
            self._store(records, header, epoch, timestamp, now_ms)
        except ApiError:
            return False
        return True

    def commit(self, high_watermark: int, log_start_offset: int) -> bool:
        """A follower's log counts as committed, and begins, where its leader's does. Neither moves
        back. True if the high watermark has moved."""
        before = self._high_watermark
        if high_watermark > before:
            self.high_watermark = high_watermark  # or the log's end
        if log_start_offset > self.log_start_offset:
            start = min(log_start_offset, self._high_watermark)
            if start > self.log_start_offset:
                self.increment_log_start_offset(start)
        return self._high_watermark > before

    def _begin_within(self, header: BatchHeader) -> None:
        """The leader's log may begin within a batch, where records were deleted. A log that is to
        begin there holds the whole batch."""
        first, last, end = header.base_offset, header.last_offset, self.log_end_offset
        if self.log_start_offset < end or last < end:
            raise CorruptBatchError(
                f"{self.topic_partition}: batch at offset {first}, the log ends at {end}"
            )
        self.truncate_fully(first)

    def _store_run(self, data: memoryview, run: Run, now_ms: int) -> Run:
        """Writes the batches for which one segment has room, and returns the others. What `_store`
        does for a batch is done for each. StorageError."""
        position, header = run[0]
        self.log_end_offset = header.base_offset  # over what the leader has compacted away
        count = self._segments.room_for(run, now_ms)
        if not count:
            self.roll(now_ms)
            count = self._segments.room_for(run, now_ms)
        segment, (last_position, last) = self._segments.active, run[count - 1]
        size = segment.log.size_bytes
        try:
            written = segment.log.append(data[position : last_position + last.size_bytes])
        except OSError as error:
            self._undo(segment, size, error)
        self.log_end_offset, shift = last.next_offset, written - position
        for position, header in run[:count]:
            segment.reindex(position + shift, header, self._place.config.index_interval_bytes)
            if header.partition_leader_epoch > self.epochs.latest:
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                batch = data[position : position + header.size_bytes]
                offset, timestamp = header.base_offset, header.max_timestamp
                aborted = self.producers.replay(header, offset, timestamp, batch)
                if aborted is not None:
                    self._note_abort(segment, aborted)
        return run[count:]

    def _store(
        self,
        records: Buffer,
        header: BatchHeader,
        leader_epoch: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """Writes a batch at the log's end. ApiError: it is not there, or the log has failed."""
        base_offset, segment = self.log_end_offset, self._segments.active
        last_offset = base_offset + header.last_offset_delta
        try:
            if self._segments.must_roll(len(records), last_offset, max_timestamp, now_ms):
                segment = self.roll(now_ms)
            size, interval_bytes = segment.log.size_bytes, self._place.config.index_interval_bytes
            try:
                segment.append(records, last_offset, max_timestamp, interval_bytes)
            except OSError as error:
                self._undo(segment, size, error)
            if leader_epoch > self.epochs.latest:  # an epoch without records parts from all others
                self.epochs.assign(leader_epoch, base_offset)
            self.log_end_offset = last_offset + 1
            if header.producer_id >= 0:
                aborted = self.producers.replay(header, base_offset, max_timestamp, records)
                if aborted is not None:
                    self._note_abort(segment, aborted)
        except StorageError as error:
            refuse(error)

    def _undo(self, segment: Segment, size: int, error: OSError) -> NoReturn:
        """Cuts off what a failed write may have left: nothing, where not even its directory is."""
        if not self._place.storage.is_promised(self._place.directory):
            try:
                segment.log.truncate(size)
            except OSError as worse:
                self.health.fail(f"append: {error}; cannot be cut back to {size} bytes", worse)
        self.health.refuses = True
        raise StorageError(f"{self.topic_partition}: append: {error}") from error

    def _note_abort(self, segment: Segment, aborted: AbortedTransaction) -> None:
        """Adds to the index what a marker, which is in the log, has ended."""
        try:
            segment.transaction_index.append(aborted)
        except OSError as error:
            self.health.fail("transaction index", error)

    def roll(self, now_ms: int) -> Segment:
        """Closes the active segment and opens the next one; without effect while it is empty.

        After a StorageError the active segment is unchanged.
        """
        if not self._segments.active.size_bytes:
            return self._segments.active
        try:
            segment = self._segments.roll(self.log_end_offset, now_ms, self._write_snapshot)
        except OSError as error:
            raise StorageError(f"{self.topic_partition}: roll: {error}") from error
        self._durability.made_file()
        return segment

    # ---- truncate ------------------------------------------------------------------------------

    def retract(self, offset: int) -> None:
        """Promises nothing from `offset` on: before it is cut there, and for a crash in between."""
        self._durability.retract(offset)

    def truncate_to(self, offset: int) -> None:
        """Removes the batches from the one that holds `offset` on, durably.

        A follower does this, through `LogStore.truncate`, with records that the leader lacks.
        """
        if offset >= self.log_end_offset:
            return
        if offset <= max(self._segments.first_offset, self.log_start_offset):
            self.truncate_fully(offset)
            return
        try:
            end_offset = self._segments.truncate_to(offset)
            if end_offset < self.log_start_offset:  # both lie in one batch, which is gone
                self.truncate_fully(self.log_start_offset)
                return
            self._after_truncation(end_offset)
            self._snapshots.reload(self.producers, self.segments, self.log_start_offset, end_offset)
            self.producers.on_high_watermark(self._high_watermark)
        except OSError as error:
            self.health.fail(f"truncation to offset {offset}", error, readable_end=offset)

    def truncate_fully(self, offset: int) -> None:
        """Removes everything; the log begins and ends at `offset`."""
        try:
            self._segments.start_anew(offset)
            self.log_start_offset = offset
            self.epochs.clear()
            self._after_truncation(offset)
            self.producers.clear()
        except OSError as error:
            self.health.fail(f"truncation to offset {offset}", error, readable_end=offset)

    def _after_truncation(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.retract(end_offset)
        self.epochs.truncate_to(end_offset)
        self.epochs.write()
        self._snapshots.drop(lambda snapshot: snapshot > end_offset)
        self._segments.active.sync(after_truncation=True)
        self._place.storage.sync_directory(self._place.directory)
        self.high_watermark = min(self._high_watermark, end_offset)
        self.health.on_change()

    # ---- retain --------------------------------------------------------------------------------

    def increment_log_start_offset(self, offset: int) -> None:
        """Gives up all records below `offset` (DeleteRecords); whole segments of them go at the
        next `delete_old_segments`. ApiError OFFSET_OUT_OF_RANGE beyond the high watermark."""
        if offset > self._high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: log start offset {offset} is beyond the high watermark "
                f"{self._high_watermark}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_before(offset)
            self.health.on_change()

    def delete_old_segments(self, now: Now, tell: Report = lambda _: None) -> int:
        """Removes the oldest segments by retention.ms, .bytes or .records or the log start offset,
        and returns their number. An empty segment remains. `tell` gets each one and the reason.
        Only segments below the high watermark go, durably after the next `sync_directory`. The
        files keep their bytes, under another name, for file.delete.delay.ms.
        """
        start, committed, end = self.log_start_offset, self._high_watermark, self.log_end_offset
        config, age_ms = self._place.config, now.retention_ms
        try:
            why = deletable(self.segments, config, start, committed, end, age_ms)
        except (OSError, CorruptBatchError) as error:
            raise StorageError(f"{self.topic_partition}: retention: {error}") from error
        if not why:
            return 0
        if len(why) == len(self.segments):
            self.roll(now.wall_ms)
        for line in farewell(self.topic_partition, self.segments, why):
            tell(line)
        first_offset = self.segments[len(why)].base_offset
        self.log_start_offset = max(self.log_start_offset, first_offset)
        self.epochs.truncate_before(self.log_start_offset)
        self.health.on_change()
        try:
            self._segments.delete_first(len(why), now.monotonic_ms)
            self._snapshots.drop(lambda snapshot: snapshot < first_offset)
        except OSError as error:
            self.health.fail(f"deletion of segments below offset {self.log_start_offset}", error)
        return len(why)

    def new_cleaned_segment(self, base_offset: int, now_ms: int) -> Segment:
        """A segment for what compaction keeps, to be filled, sealed and given to
        `replace_segments`. Until then it is the caller's alone, in whatever thread."""
        return self._segments.new_cleaned(base_offset, now_ms)

    def replace_segments(self, cleaned: Segment, old: Sequence[Segment], monotonic_ms: int) -> bool:
        """Puts `cleaned` where the neighbours `old` were, so that a crash leaves one or the other;
        durable after the next `sync_directory`. False where the log has changed meanwhile: it is
        closed, or some of `old` are gone; nothing is done then.

        The base offset of `cleaned` is that of the first of them.
        """
        if self.health.failure is not None or not self._segments.are_neighbours(old):
            return False
        merged = {segment.base_offset for segment in old[1:]}
        try:
            self._segments.replace(cleaned, old, monotonic_ms)
            self._snapshots.drop(merged.__contains__)
        except OSError as error:
            self.health.fail(f"replacement of segments from {cleaned.base_offset} on", error)
        return True

    def sync_directory(self) -> None:
        """Waits until changes of names are on the disk; may run in another thread. StorageError."""
        try:
            self._place.storage.sync_directory(self._place.directory)
        except OSError as error:
            raise StorageError(f"{self.topic_partition}: directory: {error}") from error

    # ---- the disk ------------------------------------------------------------------------------

    @property
    def flush_is_due(self) -> bool:
        """Whether flush.messages asks for a flush before the last append is acknowledged."""
        return self.log_end_offset >= self._durability.due_at

    @property
    def acknowledged_end(self) -> int:
        """The end of this replica's safe records: the log's end, unless a flush is due."""
        return self.recovery_point if self.flush_is_due else self.log_end_offset

    def flush_is_overdue(self, monotonic_ms: int) -> bool:
        """Whether flush.ms asks for a flush."""
        return self._durability.is_overdue(self.log_end_offset, monotonic_ms)

    def begin_flush(self) -> Flush:
        """The writes that must reach the disk before the recovery point is the log's end."""
        return self._durability.begin(self._segments.since, self.log_end_offset)

    def end_flush(
        self, flush: Flush, error: OSError | StorageError | None, monotonic_ms: int | None = None
    ) -> None:
        """`flush.run` has returned `error`. Without one, nothing below its offset can be lost any
        more. Else StorageError; after a failed sync the log has failed for good.

        If the log failed for another reason while the flush ran, that error is raised. A flush
        of a closed or permanently failed log is ignored.
        """
        if self.health.failure is not None and not self.health.can_reopen:
            return
        if error is None:
            self._durability.end(flush, monotonic_ms)
            return
        self._durability.undo(flush)
        if isinstance(error, StorageError):
            raise error
        what, end = f"flush at offset {flush.offset}", self.recovery_point
        self.health.fail(what, error, readable_end=end, is_final=True)

    def flush(self, monotonic_ms: int | None = None) -> None:
        """Waits until all that was appended is on the disk; as `end_flush`."""
        if self.health.failure is not None:
            raise StorageError(self.health.failure)
        if self._durability.is_behind(self.log_end_offset):
            flush = self.begin_flush()
            self.end_flush(flush, flush.run(), monotonic_ms)

    def tick(self, now: Now) -> list[Callable[[], None]]:
        """Forgets producers. Returns functions for another thread that remove files whose delay is
        over, one a segment. They raise StorageError; the next start removes the rest.
        """
        config = self._place.config
        if now.monotonic_ms - self._expired_ms >= config.producer_id_expiration_check_interval_ms:
            self.producers.expire(now.retention_ms, config.producer_id_expiration_ms)
            self._expired_ms = now.monotonic_ms
        return [partial(self._remove, each) for each in self._segments.take_due(now.monotonic_ms)]

    def _remove(self, segment: Segment) -> None:
        try:
            segment.delete_files()
        except OSError as error:
            raise StorageError(f"{self.topic_partition}: removal: {error}") from error

    def _write_snapshot(self) -> None:
        if self.log_end_offset > self.log_start_offset:
            self._snapshots.write(self.producers, self.log_end_offset)

    def close(self) -> None:
        """Flushes, writes the snapshot of the producers and gives all descriptors back.

        StorageError when that fails; a log that has failed is only let go.
        """
        flush = self.begin_close()
        self.end_close(flush, None if flush is None else flush.run())

    def begin_close(self) -> Flush | None:
        """Writes unwritten data. Returns the flush that must follow, or None.

        `end_close` follows, unless it raises StorageError: then the log was let go.
        """
        if self.health.failure is not None:
            return None
        try:
            self._write_snapshot()
            has_written = self._segments.end_writing()
        except OSError as error:
            self.abandon()
            self.health.fail("close", error)
        if has_written or self._durability.is_behind(self.log_end_offset):
            return self.begin_flush()
        return None

    def end_close(self, flush: Flush | None, error: OSError | StorageError | None) -> None:
        """`flush.run` has returned `error`: gives all descriptors back. As `end_flush`."""
        try:
            if flush is not None:
                self.end_flush(flush, error)
        finally:
            self.abandon()

    def abandon(self, *, hide: bool = False) -> None:
        """Gives memory and descriptors back and writes nothing: it failed or is to be deleted.

        `hide`: until the next time nothing is read either, as its files are opened anew.
        """
        self.health.close(hide=hide)
        self._segments.abandon()

    def join(self, cache: IndexCache) -> None:
        """Was opened with an index cache of its own, and now shares one with others."""
        self._segments.join(cache)
