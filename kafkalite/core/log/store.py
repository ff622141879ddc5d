"""All logs of one data directory: opened, made, deleted, checkpointed.                    [D]

    .lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint      (checkpoints.py)
    orders-0/  orders-1/                      a log each, from its first file on (partition_log.py)
    orders-2.18f2c1a-delete/                  a deleted one, on its way out

Owns   which directory belongs to which partition, and whether the last shutdown was clean: then
       opening a log scans nothing. Opening the store removes the marker of a clean shutdown, so a
       crash from then on counts as one.
Fails  with StorageError naming the partition or the file. A log that fails does not harm others,
       but the shutdown is not clean then.
Source apache/kafka LogManager.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from uuid import UUID

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log import checkpoints
from kafkalite.core.log.checkpoints import OffsetCheckpoint
from kafkalite.core.log.flushing import Flush, run_all
from kafkalite.core.log.index import IndexCache
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.place import Report
from kafkalite.core.log.port import TEMPORARY_SUFFIX, Storage
from kafkalite.core.types import Now, TopicPartition
from kafkalite.errors import StorageError

DELETE_SUFFIX: Final = "-delete"
NAME_LENGTH_MAX: Final = 255  # of a directory
_PARTITION_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")


class Deletion:
    """Directories of deleted logs, which are to get other names."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.names: list[tuple[str, str]] = []  # which they have, and which they get
        self.renamed: list[tuple[str, str]] = []
        self.failure: StorageError | None = None  # the first

    def run(self) -> None:
        """Renames them, and waits for the disk once. May run in another thread."""
        for name, gone in self.names:
            try:
                self._storage.rename(name, gone)
            except OSError as error:
                self.failure = self.failure or StorageError(f"{name}: deletion: {error}")
            else:
                self.renamed.append((name, gone))
        if self.names:
            try:
                self._storage.sync_directory("")
            except OSError as error:
                first, _ = self.names[0]
                self.failure = self.failure or StorageError(f"{first}: deletion: {error}")


class LogStore:
    """The logs below the top of `storage`. The storage's lock is for the caller to take."""

    def __init__(
        self,
        storage: Storage,
        *,
        index_cache: IndexCache | None = None,
        report: Report = lambda _: None,
    ) -> None:
        """`report` gets one line for each damage."""
        self._storage = storage
        self._report = report
        self._cache = index_cache if index_cache is not None else IndexCache()
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._doomed: list[tuple[int | None, str]] = []  # when which directory goes
        self._deleted = 0
        self._failed_to_open: set[TopicPartition] = set()
        try:
            self.was_clean_shutdown: Final = checkpoints.take_clean_shutdown(storage)
            self._recovery_points = OffsetCheckpoint(storage, checkpoints.RECOVERY_POINTS)
            self._start_offsets = OffsetCheckpoint(
                storage, checkpoints.LOG_START_OFFSETS, is_guarded=True
            )
            self._watermarks = OffsetCheckpoint(storage, checkpoints.HIGH_WATERMARKS)
            self._cleaned = OffsetCheckpoint(storage, checkpoints.CLEANED_OFFSETS)
            self._directories = self._find_directories()
            self._report_damage()
        except OSError as error:
            raise StorageError(f"data directory: {error}") from error

    def _report_damage(self) -> None:
        """A damaged checkpoint counts as empty, which loses no record: logs are read from their
        beginning, records that were deleted may be there again, all counts as not compacted. Which
        logs compaction has left gaps in is not known then, so that it may be any."""
        for checkpoint, instead in (
            (self._recovery_points, "logs that were not closed are read whole"),
            (self._start_offsets, "logs begin with their first files"),
            (self._watermarks, "logs are committed as far as replicas have them"),
            (self._cleaned, "compacted logs are cleaned anew"),
        ):
            if checkpoint.damage is not None:
                self._report(f"{checkpoint.damage}; {instead}")
        if self._cleaned.damage is not None:
            self._cleaned.offsets |= dict.fromkeys(self.unopened(), 0)

    def _find_directories(self) -> set[str]:
        """The directories of partitions; those of deleted ones go now, and half-written files."""
        for name in self._storage.files(""):
            if name.endswith(TEMPORARY_SUFFIX):
                self._storage.delete(name)
        found = set()
        for name in self._storage.directories(""):
            if name.endswith(DELETE_SUFFIX):
                self._storage.delete(name)
            elif _PARTITION_NAME.fullmatch(name):
                found.add(name)
        return found

    @property
    def location(self) -> str:
        """The data directory, as operators know it."""
        return self._storage.location

    def capacity(self) -> tuple[int, int]:
        """Bytes of the data directory's disk, and those still free. StorageError."""
        try:
            return self._storage.capacity()
        except OSError as error:
            raise StorageError(f"{self.location}: {error}") from error

    # ---- logs ----------------------------------------------------------------------------------

    def open(
        self,
        where: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        now: Now,
        *,
        is_elsewhere: bool = False,
    ) -> PartitionLog:
        """The partition's log, made if it is not there; its high watermark as last written.

        The directory of an earlier, deleted topic of that name is removed; so is one that does not
        say any more, after a power cut, whose it is, if all its records are elsewhere, too.
        StorageError.
        """
        opener = self.begin_open(where, topic_id, config, now, is_elsewhere=is_elsewhere)
        return self.end_open(opener())

    def begin_open(
        self,
        where: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        now: Now,
        *,
        is_elsewhere: bool = False,
    ) -> Callable[[], PartitionLog]:
        """`open` in steps: a function that opens the log, in any thread, for `end_open`. Each may
        raise StorageError. Until then no other step may use its name."""
        assert where not in self.logs, f"{where} is open"
        self._failed_to_open.add(where)  # until it is open
        try:
            is_new = self._prepare(where, topic_id, is_elsewhere=is_elsewhere)
        except OSError as error:
            raise StorageError(f"{where}: cannot be opened: {error}") from error
        return partial(
            PartitionLog.open,
            self._storage,
            str(where),
            where,
            config,
            now,
            clean_shutdown=self.was_clean_shutdown or is_new,
            recovery_point=self._recovery_points.offsets.get(where, 0),
            log_start_offset=self._start_offsets.offsets.get(where, 0),
            is_new=is_new,
            was_cleaned=where in self.cleaned_offsets,
            report=self._report,
        )

    def end_open(self, log: PartitionLog) -> PartitionLog:
        """From now on `log` is one of ours."""
        where = log.topic_partition
        log.high_watermark = self._watermarks.offsets.get(where, 0)
        self._adopt(log)
        self._failed_to_open.discard(where)
        return log

    def _adopt(self, log: PartitionLog) -> None:
        """From now on `log` is its partition's. StorageError, and it is not: what was promised of
        the one before it cannot be taken back."""
        where = log.topic_partition
        log.join(self._cache)
        before = self.logs.pop(where, None)
        self.logs[where] = log
        try:
            self._take_back(log)
        except StorageError:
            log.abandon()
            del self.logs[where]
            if before is not None:
                self.logs[where] = before
            raise

    def _prepare(self, where: TopicPartition, topic_id: UUID, *, is_elsewhere: bool) -> bool:
        """Promises the partition's directory if it is missing. True for a new one."""
        name = str(where)
        if name in self._directories and not self._storage.is_promised(name):
            found = checkpoints.read_topic_id(self._storage, name, topic_id)
            if found == topic_id:
                return False
            if found is None and (self.was_clean_shutdown or not is_elsewhere):
                checkpoints.write_topic_id(self._storage, name, topic_id)
                return False
            if found is None:
                self._report(f"{where} does not say whose it is, and is fetched anew")
            self.delete_unopened(where)
        write_topic_id = partial(checkpoints.write_topic_id, self._storage, name, topic_id)
        self._storage.promise_directory(name, write_topic_id)
        self._directories.add(name)
        return True

    def begin_reopen(self, log: PartitionLog, now: Now) -> Callable[[], PartitionLog]:
        """What opens another log in the place of one that has failed, as the disk has it: in
        whatever thread, StorageError. `end_reopen` is to follow, however that went.

        Only where `can_reopen` says so. What was appended is found again, like after a kill.
        """
        assert log.can_reopen, log.failure
        log.abandon(hide=True)
        return partial(
            PartitionLog.open,
            self._storage,
            log.directory,
            log.topic_partition,
            log.config,
            now,
            clean_shutdown=False,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            is_new=True,  # whether its name was synced is not known any more
            was_cleaned=log.topic_partition in self.cleaned_offsets,
            report=self._report,
        )

    def end_reopen(self, log: PartitionLog, opened: PartitionLog | None) -> None:
        """`opened` takes the place of `log`, if there is one. StorageError, and it does not."""
        log.abandon()
        if opened is not None:
            self._adopt(opened)
            opened.high_watermark = log.high_watermark

    def unopened(self) -> list[TopicPartition]:
        """Partitions that have a directory and were not opened."""
        found = map(_PARTITION_NAME.fullmatch, sorted(self._directories))
        partitions = [
            TopicPartition(match["topic"], int(match["partition"])) for match in found if match
        ]
        return [where for where in partitions if where not in self.logs]

    def truncate(self, log: PartitionLog, offset: int) -> None:
        """Cuts a log, as its `truncate_to`. Corrects the checkpoints first, as a crash in between
        may leave any part of the rest."""
        log.retract(offset)
        self._take_back(log)
        log.truncate_to(offset)
        self._take_back(log)
        self._retract_cleaned(log)

    def start_anew(self, log: PartitionLog, offset: int) -> None:
        """Empties a log, which begins at `offset` from then on; else as `truncate`. A crash in
        between leaves its oldest records, and it begins with those that there are."""
        where = log.topic_partition
        log.retract(0)
        self._take_back(log)
        if self._start_offsets.offsets.pop(where, 0) > offset and (
            write := self._start_offsets.writer()
        ):
            write()
        log.truncate_fully(offset)
        self._take_back(log)
        self._retract_cleaned(log)

    def _retract_cleaned(self, log: PartitionLog) -> None:
        """What comes after the cut is not compacted."""
        where, cleaned = log.topic_partition, self._cleaned.offsets
        if cleaned.get(where, 0) > log.log_end_offset:
            cleaned[where] = log.log_end_offset
            if write := self.cleaned_offsets_writer():
                write()

    def delete(self, *logs: PartitionLog) -> None:
        """Lets go of logs. Their directories get other names at once and go after the delay.

        StorageError names the first for which that failed; it is done for all others.
        """
        deletion = self.begin_delete()
        for log in logs:
            self.let_go(log, deletion)
        deletion.run()
        self.end_delete(deletion)

    def delete_unopened(self, *partitions: TopicPartition) -> None:
        """The same for partitions of `unopened`."""
        deletion = self.begin_delete()
        for where in partitions:
            self._doom(where, deletion)
        deletion.run()
        self.end_delete(deletion)

    def begin_delete(self) -> Deletion:
        """`delete` in steps: `let_go` of each log, `run` the deletion in whatever thread, and tell
        `end_delete`. Until then nothing may be opened under the names of its logs."""
        return Deletion(self._storage)

    def let_go(self, log: PartitionLog, deletion: Deletion) -> None:
        """The log is no more; `deletion` will have its directory."""
        log.abandon()
        del self.logs[log.topic_partition]
        self._doom(log.topic_partition, deletion)

    def end_delete(self, deletion: Deletion) -> None:
        """A deletion has run. StorageError as `delete`."""
        for name, gone in deletion.renamed:
            self._directories.discard(name)
            self._doomed.append((None, gone))
        if deletion.failure is not None:
            raise deletion.failure

    def _doom(self, where: TopicPartition, deletion: Deletion) -> None:
        name = str(where)
        self._deleted += 1
        suffix = f".{self._deleted:x}{DELETE_SUFFIX}"
        deletion.names.append((name, name[: NAME_LENGTH_MAX - len(suffix)] + suffix))
        for checkpoint in (
            self._recovery_points,
            self._start_offsets,
            self._watermarks,
            self._cleaned,
        ):
            checkpoint.offsets.pop(where, None)

    # ---- time ----------------------------------------------------------------------------------

    def tick(self, monotonic_ms: int, delete_delay_ms: int = 60_000) -> list[Callable[[], None]]:
        """Functions that remove directories of logs deleted `delete_delay_ms` ago, one each, for
        another thread, as large ones take a while. They raise StorageError; the next
        start removes the rest."""
        due = [
            name for due_ms, name in self._doomed if due_ms is not None and due_ms <= monotonic_ms
        ]
        self._doomed = [
            (monotonic_ms + delete_delay_ms if due_ms is None else due_ms, name)
            for due_ms, name in self._doomed
            if due_ms is None or due_ms > monotonic_ms
        ]
        return [partial(self._remove, name) for name in due]

    def _remove(self, name: str) -> None:
        try:
            self._storage.delete(name)
        except OSError as error:
            raise StorageError(f"{name}: deletion: {error}") from error

    # ---- checkpoints ---------------------------------------------------------------------------

    @property
    def cleaned_offsets(self) -> checkpoints.Offsets:
        """Below them the logs are compacted; the cleaner's to change."""
        return self._cleaned.offsets

    def recovery_points_writer(self) -> Callable[[], None] | None:
        """A function that writes how far each log is on the disk, where a recovery starts. It may
        run in another thread, and raises StorageError; None if the file is up to date."""
        self._recovery_points.offsets |= {w: log.recovery_point for w, log in self.logs.items()}
        return self._recovery_points.writer()

    def log_start_offsets_writer(self) -> Callable[[], None] | None:
        """The same of where logs begin, for those where the files alone would not tell."""
        offsets = self._start_offsets.offsets
        for where, log in self.logs.items():
            if log.log_start_offset > log.segments[0].base_offset:
                offsets[where] = log.log_start_offset
            else:
                offsets.pop(where, None)
        return self._start_offsets.writer()

    def high_watermarks_writer(self, logs: Iterable[PartitionLog]) -> Callable[[], None] | None:
        """The same of how far `logs` are committed; of the others as it was last written."""
        self._watermarks.offsets |= {log.topic_partition: log.high_watermark for log in logs}
        return self._watermarks.writer()

    def cleaned_offsets_writer(self) -> Callable[[], None] | None:
        """The same of `cleaned_offsets`."""
        return self._cleaned.writer()

    def write_recovery_points(self) -> None:
        """Writes them now."""
        if write := self.recovery_points_writer():
            write()

    def write_log_start_offsets(self) -> None:
        """Writes them now."""
        if write := self.log_start_offsets_writer():
            write()

    def write_high_watermarks(self) -> None:
        """Writes up to where each log is committed."""
        if write := self.high_watermarks_writer(self.logs.values()):
            write()

    def _take_back(self, log: PartitionLog) -> None:
        """Writes the checkpoints if they promise more of `log` than is true: it was cut, or has the
        name of one that was deleted. After a crash they would hide what is torn, take the rest, or
        call committed what is not.
        """
        where = log.topic_partition
        if self._recovery_points.written.get(where, 0) > log.recovery_point:
            self.write_recovery_points()
        if self._start_offsets.written.get(where, 0) > log.log_start_offset:
            self.write_log_start_offsets()
        if not log.log_end_offset and self._watermarks.written.get(where, 0):
            self.write_high_watermarks()  # not of each log that a power cut has made shorter

    # ---- the end -------------------------------------------------------------------------------

    def close(self, monotonic_ms: int, *, as_clean: bool = True) -> None:
        """Closes all logs. When all went well the next start need not look into them, unless it is
        to count as one after a crash: not `as_clean`.

        StorageError names the first log that could not be closed, or the directory or checkpoint
        that the disk refused; all others were.
        """
        is_clean = as_clean and self._all_well()
        failed = self._close_all()
        for write in (
            *self.tick(monotonic_ms),
            self.write_recovery_points,
            self.write_log_start_offsets,
            self.write_high_watermarks,
        ):
            try:
                write()
            except StorageError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        if is_clean:
            try:
                checkpoints.mark_clean_shutdown(self._storage)
            except OSError as error:
                raise StorageError(f"{checkpoints.CLEAN_SHUTDOWN}: {error}") from error
        self.logs.clear()

    def _close_all(self) -> StorageError | None:
        """Waits for the disk once for all logs, not for each in turn; the first error."""
        first: StorageError | None = None
        flushes: list[tuple[PartitionLog, Flush]] = []
        for log in self.logs.values():
            try:
                flush = log.begin_close()
            except StorageError as refusal:
                first = first or refusal
            else:
                if flush is None:
                    log.end_close(None, None)
                else:
                    flushes.append((log, flush))
        try:
            errors = run_all(self._storage, [flush for _, flush in flushes])
        except OSError as failed:  # whose it is, each sync of its own may tell
            first = first or StorageError(f"data directory: sync: {failed}")
            errors = [flush.run() for _, flush in flushes]
        for (log, flush), error in zip(flushes, errors, strict=True):
            try:
                log.end_close(flush, error)
            except StorageError as refusal:
                first = first or refusal
        return first

    def _all_well(self) -> bool:
        """Whether no log failed. A log not yet opened after a crash still needs its recovery."""
        if self._failed_to_open or any(log.failure for log in self.logs.values()):
            return False
        return self.was_clean_shutdown or not self.unopened()
