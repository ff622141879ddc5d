"""The port of the log to its files: the operations and their guarantees.                  [D]

A log appends to files, reads slices of them, and renames and deletes them; small files are
replaced whole. `Storage` and `File` guarantee:

    append   at the end; several appends reach the disk in any state until `sync` returns
    read     appended bytes are readable at once through every `Reader`, even after the file was
             renamed or deleted
    rename, delete, create    are durable, in order, once `sync_directory` returns
    replace  is all or nothing, and durable when it returns
    promise  a promised directory is there from its first file on; before that it is as if deleted
    sync     after a failure, later syncs mean nothing: bytes since the last good sync may be lost
             although a later one succeeds

Never  opens a file. `core.log.storage` is the port's one implementation on a disk,
       `testing.storage` the one in memory, which can lose power; one suite tests both.
Fails  with the system's OSError; with DataDirectoryInUse when another process holds the
       lock. A failed append may leave a part of its bytes: the caller truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

Buffer: TypeAlias = bytes | bytearray | memoryview

T = TypeVar("T")

WAITING_THREADS_MAX: Final = 16  # a disk joins what so many wait for into one commit
TEMPORARY_SUFFIX: Final = ".tmp"  # of a file that a crash kept from replacing another


class Reader(Protocol):
    """A file's bytes, readable as long as this is held: also once it is renamed or deleted."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`: fewer where the file ends."""
        ...

    def fileno(self) -> int | None:
        """A descriptor for sendfile; None where there is none, and `read` is the way."""
        ...


class File(Protocol):
    """An append-only file. It exists from the first append on, if it did not before."""

    path: str
    size_bytes: int

    def append(self, data: Buffer) -> int:
        """Writes all of `data` at the end; the position where it begins."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`: fewer where the file ends."""
        ...

    def reader(self) -> Reader:
        """A hold on the file's bytes that survives everything done to its name."""
        ...

    def create(self) -> None:
        """Makes the file, empty, if it is not there."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Returns when all bytes are on the disk. A file that is not there is in sync."""
        ...

    def rename(self, path: str) -> None:
        """Gives the file another name; an existing file of that name goes."""
        ...

    def delete(self) -> None:
        """Removes the file, if it is there."""
        ...

    def close(self) -> None:
        """Gives the descriptor back; the next use opens it again."""
        ...


class Storage(Protocol):
    """A tree of files below one data directory. Paths are relative, with `/`; `""` is the top."""

    @property
    def location(self) -> str:
        """The location of the directory."""
        ...

    def open(self, path: str, size_bytes: int | None = None) -> File:
        """A file that is or will be there. `size_bytes`, if known, spares asking for it."""
        ...

    def files(self, directory: str) -> dict[str, int]:
        """Names and sizes of the files in `directory`; empty when that is not there."""
        ...

    def directories(self, directory: str) -> list[str]:
        """Names of the directories in `directory`."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written to, epoch ms."""
        ...

    def make_directory(self, path: str) -> None:
        """Makes a directory; nothing to do when it is there."""
        ...

    def promise_directory(self, path: str, fill: Callable[[], None]) -> None:
        """A directory that is made just before the first file in it, with the files that `fill`
        writes. Until then to rename or delete it ends the promise, and it is in sync."""
        ...

    def is_promised(self, path: str) -> bool:
        """Whether a directory is promised, and not made yet."""
        ...

    def read_small(self, path: str) -> bytes | None:
        """All of a small file, None when it is not there."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Writes a small file whole, durably: a reader sees the old bytes or the new."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file, or a directory with all in it; nothing to do when it is not there."""
        ...

    def sync_directory(self, path: str) -> None:
        """Returns when all renames, deletions and creations in `path` are on the disk."""
        ...

    def sync_all(self) -> bool:
        """Returns when everything ever written, made, renamed or removed is on the disk. False, and
        nothing was done, where the system cannot do that at once, or would not tell of an error."""
        ...

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """Replaces many small files: durable when it returns; each is then, or earlier, replaced
        whole."""
        ...

    def wait_for_all(self, waits: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all `waits`; several wait for the disk at once where that helps."""
        ...

    def capacity(self) -> tuple[int, int]:
        """Bytes of the disk, and how many of them can still be written."""
        ...

    def lock(self) -> None:
        """Takes the directory for this process; DataDirectoryInUse."""
        ...

    def close(self) -> None:
        """Closes all descriptors and gives the lock back."""
        ...
