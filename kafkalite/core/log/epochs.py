"""The start offset of each leader epoch: with these a replica finds where histories part.  [D]

    leader-epoch-checkpoint      0            version
                                 2            entries
                                 0 0          epoch, start offset
                                 3 1200

Owns   the entries: epochs and start offsets ascend together.
Never  writes at an append, but when the log is flushed. Every batch has its epoch, so entries lost
       in a crash are rebuilt from the batches after the recovery point.
Fails  never on a damaged file: `damage` describes it, and the entries are read from the log.
Source KIP-101, KIP-279; apache/kafka LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final, NamedTuple

from kafkalite.core.log.port import Storage
from kafkalite.core.types import NO_EPOCH, NO_OFFSET
from kafkalite.errors import StorageError

CHECKPOINT_NAME: Final = "leader-epoch-checkpoint"


class EpochEntry(NamedTuple):
    """From `start_offset` on, the leader of `leader_epoch` wrote."""

    leader_epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epochs of one partition's log."""

    __slots__ = ("_changes", "_directory", "_storage", "_written", "damage", "entries")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._changes = 0  # so far, and as many as the file has
        self._written = 0
        self.damage: str | None = None  # of the file: then there are no entries yet
        self.entries: list[EpochEntry] = []
        path = f"{directory}/{CHECKPOINT_NAME}"
        try:
            self.entries = parse_epochs(storage.read_small(path) or b"", path)
        except StorageError as error:
            self.damage = str(error)
            self._changes += 1  # so that it is written anew

    @property
    def latest(self) -> int:
        """The epoch that wrote last; -1 before any."""
        return self.entries[-1].leader_epoch if self.entries else NO_EPOCH

    def assign(self, leader_epoch: int, start_offset: int) -> None:
        """A new epoch begins to write. Entries that it contradicts go: they were never committed.

        Without effect for an epoch that is there or older than the latest.
        """
        if leader_epoch <= self.latest:
            return
        while self.entries and self.entries[-1].start_offset >= start_offset:
            self.entries.pop()
        self.entries.append(EpochEntry(leader_epoch, start_offset))
        self._changes += 1

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 when that is not known."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[found - 1].leader_epoch if found else NO_EPOCH

    def end_offset(
        self, leader_epoch: int, log_end_offset: int, current_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """The largest epoch up to `leader_epoch` and where it stopped writing; (-1, -1): unknown.

        What OffsetForLeaderEpoch answers, and what a follower truncates to. `current_epoch` is the
        leader's own, which begins at the end of the log as long as it has not written.
        """
        latest = self.latest
        if leader_epoch == NO_EPOCH or leader_epoch > max(latest, current_epoch):
            return NO_EPOCH, NO_OFFSET
        if leader_epoch >= latest or not self.entries:
            has_written = self.entries and leader_epoch < current_epoch
            return (latest if has_written else leader_epoch), log_end_offset
        found = bisect_right(self.entries, leader_epoch, key=lambda entry: entry.leader_epoch)
        next_start = self.entries[found].start_offset
        return (self.entries[found - 1].leader_epoch if found else leader_epoch), next_start

    def truncate_to(self, offset: int) -> None:
        """Forgets the epochs that began at or after `offset`: their records are gone."""
        while self.entries and self.entries[-1].start_offset >= offset:
            self.entries.pop()
            self._changes += 1

    def truncate_before(self, offset: int) -> None:
        """Forgets the epochs that ended before `offset`; the epoch of `offset` begins there."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        if found and self.entries[found - 1].start_offset < offset:
            first = EpochEntry(self.entries[found - 1].leader_epoch, offset)
            self.entries[:found] = [first]
            self._changes += 1
        elif found > 1:
            del self.entries[: found - 1]
            self._changes += 1

    def clear(self) -> None:
        """Forgets all: the log begins anew."""
        self._changes += bool(self.entries)
        self.entries = []

    def write(self) -> None:
        """Writes the checkpoint if it is not as on the disk."""
        if (new := self.unwritten()) is not None:
            self._storage.replace(f"{self._directory}/{CHECKPOINT_NAME}", new[1])
            self.written(new)

    def unwritten(self) -> tuple[int, bytes] | None:
        """The entries for the checkpoint, for the caller to write and confirm with `written`;
        None if the file has them."""
        if self._changes == self._written:
            return None
        rows = "".join(f"{epoch} {start}\n" for epoch, start in self.entries)
        return self._changes, f"0\n{len(self.entries)}\n{rows}".encode()

    def written(self, new: tuple[int, bytes] | None) -> None:
        """The entries are in the file. Later changes remain to be written."""
        if new is not None:
            self._written = new[0]


def parse_epochs(data: bytes, path: str) -> list[EpochEntry]:
    """The entries in a checkpoint's text, which Kafka leaves empty while there is no epoch."""
    if not data:
        return []
    try:
        version, count, *rows = data.decode("ascii").split("\n")
        numbers = [tuple(map(int, row.split())) for row in rows if row]
        entries = [EpochEntry(epoch, start) for epoch, start in numbers]
    except ValueError as error:
        raise StorageError(f"{path}: no checkpoint of leader epochs: {data[:40]!r}") from error
    for before, after in pairwise(entries):
        if after.leader_epoch <= before.leader_epoch or after.start_offset <= before.start_offset:
            raise StorageError(f"{path}: {after} does not ascend from {before}")
    if version.strip() != "0" or count.strip() != str(len(entries)):
        raise StorageError(
            f"{path}: version {version}, {len(entries)} entries where {count} are announced"
        )
    return entries
