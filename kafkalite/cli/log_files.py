"""The files of a data directory, found and read without a broker; nothing is ever written.  [IO]

    DIR                  a data directory: its checkpoints, and the directories below
    DIR/orders-3         a partition: its segments, snapshots, checkpoints
    FILE                 one of these files

Owns   descriptors, opened for reading alone, one at a time.
Fails  with StorageError naming the path: it does not exist, cannot be read, or is no log's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from kafkalite.core.log import checkpoints
from kafkalite.core.log.epochs import CHECKPOINT_NAME
from kafkalite.core.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_of,
)
from kafkalite.errors import StorageError

EXPECTED: Final = ".log, .index, .timeindex, .txnindex, .snapshot or a checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"


class FileKind(StrEnum):
    """The kinds of files, each by its suffix or name."""

    LOG = LOG_SUFFIX
    INDEX = INDEX_SUFFIX
    TIME_INDEX = TIME_INDEX_SUFFIX
    TRANSACTION_INDEX = TRANSACTION_INDEX_SUFFIX
    SNAPSHOT = SNAPSHOT_SUFFIX
    EPOCHS = CHECKPOINT_NAME
    PARTITION_METADATA = checkpoints.PARTITION_METADATA
    META_PROPERTIES = checkpoints.META_PROPERTIES
    OFFSETS = "offset-checkpoint"


OFFSET_CHECKPOINTS: Final = frozenset(
    {
        checkpoints.RECOVERY_POINTS,
        checkpoints.LOG_START_OFFSETS,
        checkpoints.HIGH_WATERMARKS,
        CLEANER_OFFSETS,
    }
)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file; `base_offset` comes from its name, if that is an offset."""

    path: Path
    kind: FileKind
    base_offset: int = 0

    def whole(self) -> bytes:
        """The whole content, of a small file."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}") from None


@dataclass(slots=True)
class Directory:
    """The files of one directory: a partition's, or those of the data directory itself."""

    path: Path
    files: list[LogFile] = field(default_factory=list)

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments, ascending."""
        return sorted(f.base_offset for f in self.files if f.kind is FileKind.LOG)

    def find(self, kind: FileKind, base_offset: int = 0) -> LogFile | None:
        """The file of that kind, of that segment."""
        return next(
            (f for f in self.files if f.kind is kind and f.base_offset == base_offset), None
        )


class Opened:
    """A file opened for reading."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size_bytes = os.fstat(fd).st_size

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; bytes added after the opening are not read."""
        size = min(size, self.size_bytes - position)
        parts: list[bytes] = []
        while size > 0 and (data := os.pread(self._fd, size, position)):
            parts.append(data)
            position += len(data)
            size -= len(data)
        return b"".join(parts)


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Opens a file for reading. StorageError, also for system errors within the block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    try:
        yield Opened(fd)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def kind_of(path: Path) -> LogFile | None:
    """The file with its kind, by its name; None for a name that no log has."""
    name = path.name
    if name in OFFSET_CHECKPOINTS:
        return LogFile(path, FileKind.OFFSETS)
    if name in (FileKind.EPOCHS, FileKind.PARTITION_METADATA, FileKind.META_PROPERTIES):
        return LogFile(path, FileKind(name))
    base_offset = offset_of(name)
    suffixes = {kind.value: kind for kind in FileKind if kind.value.startswith(".")}
    kind = suffixes.get(path.suffix)
    if base_offset is None or kind is None or name != f"{base_offset:020d}{path.suffix}":
        return None
    return LogFile(path, kind, base_offset)


def directories(path: Path) -> list[Directory]:
    """The directories to inspect at `path`: itself, and the partitions in a data directory."""
    if not path.exists():
        raise StorageError(f"{path}: no such file or directory")
    if not path.is_dir():
        file = kind_of(path)
        if file is None:
            raise StorageError(f"{path}: not a file of a log: expected {EXPECTED}")
        return [Directory(path.parent, [file])]
    own = _listed(path)
    below = [_listed(entry) for entry in sorted(path.iterdir(), key=_place) if entry.is_dir()]
    found = [directory for directory in (own, *below) if directory.files]
    if not found:
        raise StorageError(f"{path}: the directory holds no files of a log")
    return found


def _place(path: Path) -> tuple[str, int]:
    """Partitions stand in the order of their numbers."""
    topic, _, number = path.name.rpartition("-")
    return (topic, int(number)) if number.isascii() and number.isdigit() else (path.name, -1)


def _listed(path: Path) -> Directory:
    try:
        files = [kind_of(entry) for entry in sorted(path.iterdir()) if entry.is_file()]
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    return Directory(path, [file for file in files if file is not None])
