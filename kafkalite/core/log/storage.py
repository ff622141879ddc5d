"""Files: the `Storage` port on a directory of the file system, and the only opener of files. [IO]

Owns   file descriptors. At most `open_files_max` are open: the least recently used is closed and
       opened again when it is needed, so a log of many segments costs nothing at rest. One whose
       bytes are not synced goes last: an open descriptor learns of every failed write.
Never  knows a file's content.
Fails  with the system's OSError; with DataDirectoryInUse when another process holds the
       lock. A failed append may leave a part of its bytes: the caller truncates.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from kafkalite.core.log.cold import read_cached
from kafkalite.core.log.port import TEMPORARY_SUFFIX, WAITING_THREADS_MAX, Buffer, T
from kafkalite.core.log.promises import Promises
from kafkalite.core.log.uncached import must_be_cached
from kafkalite.errors import DataDirectoryInUse, StorageError

_libc: Final = ctypes.CDLL(None, use_errno=True)
_RELEASE: Final = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
SYNCFS_TELLS: Final = sys.platform == "linux" and _RELEASE >= (5, 8)

OPEN_FILES_MAX: Final = 32_768
SPARED_MAX: Final = 64  # descriptors passed over when one must be closed
LOCK_NAME: Final = ".lock"


class Descriptor:
    """An open file. It is closed when the last holder lets go of it, never under a reader."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`: fewer where the file ends. ColdRead where a reader
        may not wait."""
        if must_be_cached.get() and (cached := read_cached(self, self.fd, position, size)):
            return bytes(cached)
        data = os.pread(self.fd, size, position)
        if len(data) in (0, size):
            return data
        parts, have = [data], len(data)
        while have < size and (data := os.pread(self.fd, size - have, position + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def fileno(self) -> int | None:
        """The descriptor's number, valid as long as this object is held."""
        return self.fd

    def __del__(self) -> None:
        os.close(self.fd)


class DiskFile:
    """A `File` below a `FileStorage`; its descriptor comes and goes."""

    __slots__ = ("_descriptor", "_storage", "is_dirty", "path", "recent", "size_bytes")

    def __init__(self, storage: FileStorage, path: str, size_bytes: int) -> None:
        self._storage = storage
        self._descriptor: Descriptor | None = None
        self.path = path
        self.size_bytes = size_bytes
        self.recent = False  # used since the storage last looked for a descriptor to close
        self.is_dirty = False  # written to through the descriptor, and not synced since

    def append(self, data: Buffer) -> int:
        """Writes all of `data` at the end; the position where it begins."""
        descriptor = self._descriptor or self._open()
        self.recent = self.is_dirty = True
        position = self.size_bytes
        written = os.write(descriptor.fd, data)
        self.size_bytes = position + written
        while written < len(data):  # a full disk or a signal: the rest, or the error
            more = os.write(descriptor.fd, memoryview(data)[written:])
            written += more
            self.size_bytes += more
        return position

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`: fewer where the file ends."""
        return self.reader().read(position, size)

    def reader(self) -> Descriptor:
        """A hold on the file's bytes that survives everything done to its name."""
        self.recent = True
        return self._descriptor or self._open()

    def create(self) -> None:
        """Makes the file, empty, if it is not there."""
        self.reader()

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes."""
        os.ftruncate(self.reader().fd, size)
        self.is_dirty = True
        self.size_bytes = size

    def sync(self) -> None:
        """Returns when all bytes are on the disk. A file that is not there is in sync."""
        if descriptor := self._descriptor:  # held: another thread may sync while we close
            self.is_dirty = False  # before: what is appended meanwhile may not be in it
            try:
                os.fdatasync(descriptor.fd)
            except OSError:
                self.is_dirty = True
                # The cache holds what the disk does not. Whoever reads next reads the disk.
                os.posix_fadvise(descriptor.fd, 0, 0, os.POSIX_FADV_DONTNEED)
                raise
            return
        with suppress(FileNotFoundError):  # never there, or gone since
            _sync_path(self._storage.absolute(self.path))

    def rename(self, path: str) -> None:
        """Gives the file another name; an existing file of that name goes."""
        self._storage.rename(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Removes the file, if it is there."""
        self.close()
        self._storage.delete(self.path)
        self.size_bytes = 0

    def close(self) -> None:
        """Gives the descriptor back; the next use opens it again."""
        self.release()
        self._storage.forget(self)

    def release(self) -> None:
        """Lets go of the descriptor, for the storage to count."""
        self._descriptor = None
        self.is_dirty = False

    def _open(self) -> Descriptor:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._storage.promises.keep(self.path)
        self._storage.make_room(self)
        descriptor = Descriptor(os.open(self._storage.full(self.path), flags, 0o644))
        self._descriptor = descriptor
        return descriptor


class FileStorage:
    """A `Storage` in a directory of the file system, which is made if it is not there."""

    def __init__(self, root: str | Path, *, open_files_max: int | None = None) -> None:
        """`open_files_max`: half of what the process may open where not given, 4,096 at most."""
        if open_files_max is None:
            allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            unlimited = allowed == resource.RLIM_INFINITY
            open_files_max = OPEN_FILES_MAX if unlimited else min(OPEN_FILES_MAX, allowed // 2)
        assert open_files_max > 0, open_files_max
        self.root = Path(root)
        self._open_files_max = open_files_max
        self._open: OrderedDict[DiskFile, None] = OrderedDict()
        self._counting = threading.Lock()  # of `_open`: the cleaner opens files in its own thread
        self._lock: Descriptor | None = None
        self._replacements = count()
        self._root = str(self.root)
        self.promises: Final = Promises(self.make_directory)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            # Open from the beginning: what fails to be written from here on, `sync_all` is told.
            self._top = Descriptor(os.open(self.root, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise _unusable(self.root, error) from error

    @property
    def location(self) -> str:
        """The directory's path in the file system."""
        return str(self.root.absolute())

    def absolute(self, path: str) -> Path:
        """The location of `path` in the file system."""
        return self.root / path

    def full(self, path: str) -> str:
        """The same as a string, which costs less."""
        return f"{self._root}/{path}"

    def make_room(self, file: DiskFile) -> None:
        """Closes the least recently used descriptor when there are enough; counts `file` in."""
        spared = SPARED_MAX  # with unsynced bytes; not all, when all have some
        with self._counting:
            while len(self._open) >= self._open_files_max:
                oldest, _ = self._open.popitem(last=False)
                if oldest.recent:  # a second chance
                    oldest.recent = False
                    self._open[oldest] = None
                elif oldest.is_dirty and spared > 0:
                    spared -= 1
                    self._open[oldest] = None
                else:
                    oldest.release()
            self._open[file] = None

    def forget(self, file: DiskFile) -> None:
        """Counts `file` out: it is closed."""
        with self._counting:
            self._open.pop(file, None)

    def open(self, path: str, size_bytes: int | None = None) -> DiskFile:
        """A file that is or will be there. `size_bytes`, if known, spares asking for it."""
        if size_bytes is None:
            try:
                size_bytes = os.stat(self.absolute(path)).st_size
            except FileNotFoundError:
                size_bytes = 0
        return DiskFile(self, path, size_bytes)

    def files(self, directory: str) -> dict[str, int]:
        """Names and sizes of the files in `directory`; empty when that is not there."""
        if directory in self.promises:
            return {}
        try:
            with os.scandir(self.full(directory)) as entries:
                return {e.name: e.stat().st_size for e in entries if e.is_file()}
        except FileNotFoundError:
            return {}

    def directories(self, directory: str) -> list[str]:
        """Names of the directories in `directory`."""
        with os.scandir(self.absolute(directory)) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def modified_ms(self, path: str) -> int:
        """When the file was last written to, epoch ms."""
        return os.stat(self.absolute(path)).st_mtime_ns // 1_000_000

    def make_directory(self, path: str) -> None:
        """Makes a directory; nothing to do when it is there."""
        os.makedirs(self.full(path), exist_ok=True)

    def promise_directory(self, path: str, fill: Callable[[], None]) -> None:
        """A directory that is made just before the first file in it, and filled by `fill`."""
        self.promises.give(path, fill)

    def is_promised(self, path: str) -> bool:
        """Whether a directory is promised, and not made yet."""
        return path in self.promises

    def read_small(self, path: str) -> bytes | None:
        """All of a small file, None when it is not there."""
        if path.rpartition("/")[0] in self.promises:
            return None
        try:
            with open(self.full(path), "rb", buffering=0) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        """Writes a small file whole, durably: a reader sees the old bytes or the new."""
        temporary = self._write_temporary(path, data, sync=True)
        absolute = self.absolute(path)
        _moved(temporary, absolute)
        _sync_path(absolute.parent)

    def _write_temporary(self, path: str, data: bytes, *, sync: bool) -> Path:
        """Writes the new content of `path` to a temporary file beside it."""
        self.promises.keep(path)
        absolute = self.absolute(path)
        # Threads may replace one file at once: the last counts, and is whole.
        number = next(self._replacements)
        temporary = absolute.with_name(f"{absolute.name}.{number}{TEMPORARY_SUFFIX}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def sync_all(self) -> bool:
        """As the port says: with syncfs, which reports errors from Linux 5.8 on."""
        if not SYNCFS_TELLS:
            return False
        if _libc.syncfs(self._top.fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self._root)
        return True

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """As the port says: two syncs of the file system, however many files."""
        if not SYNCFS_TELLS:
            for path, data in files.items():
                self.replace(path, data)
            return
        written: dict[str, Path] = {}
        try:
            for path, data in files.items():
                written[path] = self._write_temporary(path, data, sync=False)
            self.sync_all()
        except OSError:
            for temporary in written.values():
                temporary.unlink(missing_ok=True)
            raise
        for path, temporary in written.items():
            _moved(temporary, self.absolute(path))
        self.sync_all()

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory."""
        if not self.promises.withdraw(old):
            self.absolute(old).replace(self.absolute(new))

    def delete(self, path: str) -> None:
        """Removes a file, or a directory with all in it; nothing to do when it is not there."""
        self.promises.withdraw(path)
        absolute = self.absolute(path)
        if absolute.is_dir():
            shutil.rmtree(absolute)
        else:
            absolute.unlink(missing_ok=True)

    def sync_directory(self, path: str) -> None:
        """Returns when all renames, deletions and creations in `path` are on the disk."""
        if path not in self.promises:
            _sync_path(self.absolute(path))

    def wait_for_all(self, waits: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all `waits`; WAITING_THREADS_MAX wait at once."""
        with ThreadPoolExecutor(min(WAITING_THREADS_MAX, len(waits)) or 1, "disk") as pool:
            return list(pool.map(lambda wait: wait(), waits))

    def capacity(self) -> tuple[int, int]:
        """Bytes of the disk, and how many of them can still be written."""
        disk = os.statvfs(self.root)
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize

    def lock(self) -> None:
        """Locks the directory for this process; DataDirectoryInUse names the other process."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = Descriptor(os.open(self.absolute(LOCK_NAME), flags, 0o644))
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            fcntl.flock(descriptor.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = descriptor.read(0, 32).decode("ascii", "replace").strip() or "unknown"
            raise DataDirectoryInUse(
                f"{self.root}: in use by process {pid}, one broker at a time may use it"
            ) from None
        self._lock = descriptor
        with suppress(OSError):  # on a full disk the next one is told of no process, that is all
            os.ftruncate(descriptor.fd, 0)
            os.pwrite(descriptor.fd, b"%d\n" % os.getpid(), 0)

    def close(self) -> None:
        """Closes all descriptors and gives the lock back."""
        for file in list(self._open):
            file.close()
        self._lock = None


def _moved(temporary: Path, path: Path) -> None:
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _unusable(root: Path, error: OSError) -> StorageError:
    """The reason why a directory cannot hold a log, and its remedy."""
    why = "not a directory" if isinstance(error, FileExistsError) else error.strerror
    return StorageError(f"data directory {root}: {why}; the broker must be able to write it")


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
