"""How far one log is on the disk, and its flushes.                                        [D]

    begin ──> Flush ──run, in any thread──> None or an error ──> end

Owns   the recovery point: below it everything is on the disk, and no crash takes it. When
       flush.messages and flush.ms ask for it to move.
Never  repeats a failed sync. The system reports the failure once and drops the unwritten bytes, so
       a second sync would succeed and mean nothing.
Fails  by handing the error back: an OSError is final, a StorageError may be tried again.
Source apache/kafka UnifiedLog.flush; PostgreSQL's "fsyncgate" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kafkalite.core.log.checkpoints import PARTITION_METADATA
from kafkalite.core.log.epochs import CHECKPOINT_NAME, LeaderEpochs
from kafkalite.core.log.place import Place
from kafkalite.core.log.port import Storage
from kafkalite.core.log.segment import Segment
from kafkalite.errors import StorageError

SYNC_EACH_MAX: Final = 64  # of more logs, each sync costs more than one of everything


@dataclass(frozen=True, slots=True)
class Flush:
    """The syncs of a flush: `run` may be called in another thread."""

    offset: int  # everything below it is on the disk once `run` returned None
    generation: int
    segments: tuple[Segment, ...]
    place: Place
    epochs: tuple[int, bytes] | None  # the checkpoint, if the disk has another one
    made_files: bool
    made_directory: bool  # and in it the file that says whose it is

    def run(self) -> OSError | StorageError | None:
        """Waits for the disk. An OSError: the state of the files is unknown. A StorageError: the
        appended batches are on the disk, their indexes and checkpoints are not yet."""
        storage = self.place.storage
        try:
            for segment in self.segments:
                segment.sync()
            if self.made_directory:
                storage.open(self.place.path(PARTITION_METADATA)).sync()
                storage.sync_directory("")
            if self.made_files and self.epochs is None:
                storage.sync_directory(self.place.directory)
        except OSError as error:
            return error
        if self.epochs is not None:
            try:
                storage.replace(self.epochs_path, self.epochs[1])  # syncs the directory too
            except OSError as error:
                return StorageError(f"{self.place.partition}: leader epochs: {error}")
        return None

    @property
    def epochs_path(self) -> str:
        """The file of the leader epochs."""
        return self.place.path(CHECKPOINT_NAME)


def run_all(storage: Storage, flushes: Sequence[Flush]) -> list[OSError | StorageError | None]:
    """The result of each flush. Many flushes use three syncs of the whole file system, if it has
    such a call. Raises OSError if such a sync fails, as any of the logs may have lost bytes."""
    if len(flushes) > SYNC_EACH_MAX and storage.sync_all():
        epochs = {flush.epochs_path: flush.epochs[1] for flush in flushes if flush.epochs}
        storage.replace_all(epochs)
        return [None] * len(flushes)
    return storage.wait_for_all([flush.run for flush in flushes])


class Durability:
    """How much of the log in `place` is on the disk."""

    __slots__ = (
        "_directory_is_new",
        "_epochs",
        "_files_are_new",
        "_generation",
        "_has_rolled",
        "_place",
        "due_at",
        "flushed_ms",
        "recovery_point",
    )

    def __init__(
        self,
        place: Place,
        epochs: LeaderEpochs,
        recovery_point: int,
        monotonic_ms: int,
        *,
        is_new: bool,
    ) -> None:
        """`is_new`: the directory is not yet on the disk."""
        self._place = place
        self._epochs = epochs
        self._generation = 0  # of truncations: a flush begun before one says nothing after it
        self._directory_is_new = is_new
        self._files_are_new = True
        self._has_rolled = False
        self.recovery_point = recovery_point
        self.flushed_ms = monotonic_ms
        self.set_due()

    def set_due(self) -> None:
        """From which end of the log on flush.messages asks for a flush: it was set, or the recovery
        point has moved."""
        self.due_at = self.recovery_point + self._place.config.flush_messages

    def is_overdue(self, end_offset: int, monotonic_ms: int) -> bool:
        """Whether flush.ms asks to flush a log that ends at `end_offset`."""
        is_late = monotonic_ms - self.flushed_ms >= self._place.config.flush_ms
        return is_late and self.recovery_point < end_offset

    def made_file(self) -> None:
        """A segment was added: its name is not on the disk yet, nor are the last index entries of
        the one before it."""
        self._files_are_new = self._has_rolled = True

    def is_behind(self, end_offset: int) -> bool:
        """Whether there is anything to flush of a log that ends at `end_offset`."""
        is_short = self.recovery_point < end_offset
        return is_short or self._has_rolled or self._epochs.unwritten() is not None

    def retract(self, offset: int) -> None:
        """From `offset` on nothing is promised any more: the log is cut there."""
        self.recovery_point = min(self.recovery_point, offset)
        self._generation += 1
        self.set_due()

    def begin(self, since: Callable[[int], Sequence[Segment]], end_offset: int) -> Flush:
        """The files to sync before the recovery point may move to `end_offset`; `since` gives
        the segments that hold an offset and all after it. A segment that ends at the recovery point
        is among them: its last index entries were written when it was closed, after its sync."""
        flush = Flush(
            end_offset,
            self._generation,
            tuple(since(self.recovery_point - 1)),
            self._place,
            self._epochs.unwritten(),
            self._files_are_new,
            self._directory_is_new,
        )
        self._files_are_new = self._directory_is_new = self._has_rolled = False
        return flush

    def end(self, flush: Flush, monotonic_ms: int | None) -> None:
        """`flush.run` has returned None."""
        if flush.generation == self._generation:
            self.recovery_point = max(self.recovery_point, flush.offset)
            self._epochs.written(flush.epochs)
            self.set_due()
        if monotonic_ms is not None:
            self.flushed_ms = monotonic_ms

    def undo(self, flush: Flush) -> None:
        """`flush.run` has returned an error: all that it was to do is still to be done."""
        self._files_are_new |= flush.made_files
        self._has_rolled |= flush.made_files
        self._directory_is_new |= flush.made_directory
