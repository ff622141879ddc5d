"""A `Storage` in memory that can lose power, run full and break.                          [D]

    storage = MemoryStorage()
    storage.crash_after(17)           the 17th change from now on raises PowerLoss, half done
    survivor = storage.after_crash(Random(1))      what a disk may hold then

What `sync` and `sync_directory` promised survives. Of the rest a crash keeps what it likes:

    bytes appended    a prefix, in which stretches may read as zeros; a cut may be undone
    names             changes (made, renamed, removed) are kept up to some point in their order

A `Storage` whose process is killed, not its power cut, loses nothing: `after_kill`.

Owns   contents, and which of them are safe.
Never  touches a disk or a clock; `now_ms` is what files are stamped with, for the test to set.
Source cockroachdb/pebble `vfs` (crashable memory file system), for the idea.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

from kafkalite.core.log.port import Buffer
from kafkalite.core.log.promises import Promises
from kafkalite.errors import DataDirectoryInUse

T = TypeVar("T")

CAPACITY_BYTES: Final = 1 << 40
_UNSAFE_MAX: Final = 64
_TORN_BYTES: Final = 512  # a crash zeroes stretches of whole sectors


class PowerLoss(BaseException):
    """The moment at which everything stops. Not an Exception: nobody may handle it."""


class _Content:
    """The content of a name: its current bytes, and its safe bytes."""

    __slots__ = ("data", "modified_ms", "synced")

    def __init__(self, data: Buffer = b"") -> None:
        self.data = bytearray(data)
        self.synced = b""
        self.modified_ms = 0

    def after_crash(self, random: Random) -> bytes:
        """The possible rest: the safe bytes, or these and a torn part of the later ones."""
        data, safe = bytes(self.data), self.synced
        if not data.startswith(safe):  # it was cut and not synced: one or the other
            if random.random() < 0.5:
                return safe
            pairs = enumerate(zip(data, safe, strict=False))
            safe = safe[: next((i for i, (a, b) in pairs if a != b), min(len(data), len(safe)))]
        kept = data[: random.randint(len(safe), len(data))]
        if len(kept) > len(safe) and random.random() < 0.5:
            start = random.randint(len(safe), len(kept) - 1)
            end = min(len(kept), start + random.randint(1, _TORN_BYTES))
            kept = kept[:start] + bytes(end - start) + kept[end:]
        return kept


class MemoryReader:
    """A hold on a file's bytes, whatever happens to its name."""

    __slots__ = ("_content",)

    def __init__(self, content: _Content) -> None:
        self._content = content

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`."""
        return bytes(self._content.data[position : position + size])

    def fileno(self) -> int | None:
        """None: there is no descriptor."""
        return None


class MemoryFile:
    """A `File` of a `MemoryStorage`."""

    __slots__ = ("_storage", "path", "size_bytes")

    def __init__(self, storage: MemoryStorage, path: str) -> None:
        self._storage = storage
        self.path = path
        content = storage.names.get(path)
        self.size_bytes = 0 if content is None else len(content.data)

    def append(self, data: Buffer) -> int:
        """Writes all of `data` at the end. When it fails, some of it is there."""
        content = self._storage.made(self.path)
        position = len(content.data)
        whole = bytes(data)

        def torn(share: float) -> None:
            content.data += whole[: int(len(whole) * share)]

        try:
            self._storage.change("append", torn)
        finally:
            self.size_bytes = len(content.data)
        content.data += whole
        content.modified_ms = self._storage.now_ms
        self.size_bytes = len(content.data)
        return position

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`."""
        return self.reader().read(position, size)

    def reader(self) -> MemoryReader:
        """A hold on the bytes."""
        return MemoryReader(self._storage.made(self.path))

    def create(self) -> None:
        """Makes the file, empty, if it is not there."""
        self._storage.made(self.path)

    def truncate(self, size: int) -> None:
        """Cuts the file."""
        content = self._storage.made(self.path)
        self._storage.change("truncate")
        del content.data[size:]
        content.data += bytes(size - len(content.data))
        self.size_bytes = size

    def sync(self) -> None:
        """Makes the bytes safe; not the name."""
        self._storage.change("sync")
        content = self._storage.names.get(self.path)
        if content is not None:
            content.synced = bytes(content.data)

    def rename(self, path: str) -> None:
        """Gives the file another name."""
        self._storage.rename(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Removes the file, if it is there."""
        self._storage.delete(self.path)
        self.size_bytes = 0

    def close(self) -> None:
        """Nothing is held."""


class MemoryStorage:
    """A `Storage` of dictionaries. `changes` counts all that would change a disk."""

    def __init__(self) -> None:
        self.names: dict[str, _Content] = {}
        self.now_ms = 0
        self.changes = 0
        self._paths = {""}  # of directories
        self._safe_names: dict[str, _Content] = {}
        self._safe_paths = {""}
        # Changes of names since the last sync, each as the names and directories were after it.
        self._unsafe: list[tuple[dict[str, _Content], set[str]]] = []
        self._crash_at: int | None = None
        self._share = 0.5
        self._faults: dict[str, list[int]] = {}
        self._broken: int | None = None
        self._is_locked = False
        self._promises = Promises(self.make_directory)

    # ---- what a test does to it ----------------------------------------------------------------

    @property
    def is_without_power(self) -> bool:
        """Whether `crash_after` has come true."""
        return self._crash_at is not None and self.changes >= self._crash_at

    def crash_after(self, changes: int, *, share: float = 0.5) -> None:
        """The `changes`-th change from now on, 1 the next, raises PowerLoss. An append that it
        hits has written `share` of its bytes; all else is not done."""
        self._crash_at = self.changes + changes
        self._share = share

    def fail(self, operation: str, number: int = errno.ENOSPC, *, times: int = 1) -> None:
        """The next `times` of "append", "truncate", "sync", "rename", "delete", "create",
        "replace" or "sync_directory" raise OSError of that errno; an append is half done."""
        self._faults.setdefault(operation, []).extend([number] * times)

    @property
    def will_fail(self) -> bool:
        """Whether a change will be refused that `fail` or `break_down` were told of."""
        return self._broken is not None or any(self._faults.values())

    def break_down(self, number: int = errno.EIO) -> None:
        """From now on every change raises OSError of that errno; what is there can be read."""
        self._broken = number

    def spare(self) -> None:
        """What `fail` and `break_down` were told does not happen any more."""
        self._faults.clear()
        self._broken = None

    def pass_over(self, operation: str) -> None:
        """The next `operation` succeeds; what `fail` was told afterwards comes after it."""
        self._faults.setdefault(operation, []).append(0)

    def after_crash(self, random: Random) -> MemoryStorage:
        """A disk that may be found after the power came back."""
        states = [(self._safe_names, self._safe_paths), *self._unsafe]
        names, paths = states[random.randrange(len(states))]
        survivor = MemoryStorage()
        for path, content in names.items():
            survivor.names[path] = _Content(content.after_crash(random))
        survivor._paths = set(paths)
        return survivor._settle()

    def after_kill(self) -> MemoryStorage:
        """The disk as the next process finds it when this one was killed: all is there."""
        survivor = MemoryStorage()
        survivor.names = {path: _Content(c.data) for path, c in self.names.items()}
        survivor._paths = set(self._paths)
        return survivor._settle()

    def contents(self) -> Hashable:
        """All directories, and all files with their bytes: equal for disks that hold the same."""
        files = ((path, bytes(content.data)) for path, content in self.names.items())
        return frozenset(self._paths), tuple(files)

    def _settle(self) -> MemoryStorage:
        for content in self.names.values():
            content.synced = bytes(content.data)
        self._safe_names, self._safe_paths = dict(self.names), set(self._paths)
        return self

    # ---- what its files call -------------------------------------------------------------------

    def change(self, operation: str, torn: Callable[[float], None] | None = None) -> None:
        """Counts a change; crashes or fails if it is its turn, after `torn(share)`."""
        self.changes += 1
        if self._crash_at is not None and self.changes >= self._crash_at:
            if torn is not None and self.changes == self._crash_at:
                torn(self._share)
            raise PowerLoss(f"{operation}, change {self.changes}")
        number = self._broken
        if number is None and (faults := self._faults.get(operation)):
            number = faults.pop(0)
        if number:
            if torn is not None:
                torn(0.5)
            raise OSError(number, errno.errorcode[number])

    def made(self, path: str) -> _Content:
        """The content of a file, which is made if it is not there."""
        content = self.names.get(path)
        if content is None:
            self._promises.keep(path)
            if path.rpartition("/")[0] not in self._paths:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self.change("create")
            content = self.names[path] = _Content()
            content.modified_ms = self.now_ms
            self._renamed()
        return content

    def _renamed(self) -> None:
        if len(self._unsafe) >= _UNSAFE_MAX:  # a disk does not wait for ever either
            self._safe_names, self._safe_paths = self._unsafe.pop(0)
        self._unsafe.append((dict(self.names), set(self._paths)))

    # ---- Storage -------------------------------------------------------------------------------

    def open(self, path: str, size_bytes: int | None = None) -> MemoryFile:
        """A file that is or will be there."""
        file = MemoryFile(self, path)
        assert size_bytes is None or size_bytes == file.size_bytes, (path, size_bytes)
        return file

    def files(self, directory: str) -> dict[str, int]:
        """Names and sizes of the files in `directory`."""
        prefix = f"{directory}/" if directory else ""
        return {
            path[len(prefix) :]: len(content.data)
            for path, content in self.names.items()
            if path.startswith(prefix) and "/" not in path[len(prefix) :]
        }

    def directories(self, directory: str) -> list[str]:
        """Names of the directories in `directory`."""
        prefix = f"{directory}/" if directory else ""
        found = (path[len(prefix) :] for path in self._paths if path.startswith(prefix) and path)
        return [name for name in found if name and "/" not in name]

    def modified_ms(self, path: str) -> int:
        """When the file was last appended to."""
        return self.names[path].modified_ms

    def make_directory(self, path: str) -> None:
        """Makes a directory, and those above it."""
        if path not in self._paths:
            self.change("create")
            parts = path.split("/")
            self._paths |= {"/".join(parts[: end + 1]) for end in range(len(parts))}
            self._renamed()

    def promise_directory(self, path: str, fill: Callable[[], None]) -> None:
        """A directory that is made just before the first file in it, and filled by `fill`."""
        self._promises.give(path, fill)

    def is_promised(self, path: str) -> bool:
        """Whether a directory is promised, and not made yet."""
        return path in self._promises

    def read_small(self, path: str) -> bytes | None:
        """All of a file, None when it is not there."""
        content = self.names.get(path)
        return None if content is None else bytes(content.data)

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file whole, durably; like a disk it makes earlier changes of names safe."""
        self._promises.keep(path)
        if path.rpartition("/")[0] not in self._paths:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self.change("replace")
        content = self.names[path] = _Content(data)
        content.synced = bytes(data)
        content.modified_ms = self.now_ms
        self._make_names_safe()

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory."""
        if self._promises.withdraw(old):
            return
        self.change("rename")
        if old in self._paths:
            moved = {path for path in self._paths if path == old or path.startswith(old + "/")}
            self._paths = (self._paths - moved) | {new + path[len(old) :] for path in moved}
            for path in [path for path in self.names if path.startswith(old + "/")]:
                self.names[new + path[len(old) :]] = self.names.pop(path)
        elif old in self.names:
            self.names[new] = self.names.pop(old)
        else:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._renamed()

    def delete(self, path: str) -> None:
        """Removes a file, or a directory with all in it."""
        self._promises.withdraw(path)
        if path in self.names:
            self.change("delete")
            del self.names[path]
        elif path in self._paths:
            self.change("delete")
            inside = path + "/"
            self._paths = {p for p in self._paths if p != path and not p.startswith(inside)}
            for name in [name for name in self.names if name.startswith(inside)]:
                del self.names[name]
        else:
            return
        self._renamed()

    def sync_directory(self, path: str) -> None:
        """Makes all changes of names safe: they are kept in order, so those before go first."""
        if path not in self._promises:
            self.change("sync_directory")
            self._make_names_safe()

    def _make_names_safe(self) -> None:
        self._safe_names, self._safe_paths = dict(self.names), set(self._paths)
        self._unsafe.clear()

    def sync_all(self) -> bool:
        """Makes all bytes and names safe."""
        self.change("sync")
        for content in self.names.values():
            content.synced = bytes(content.data)
        self._make_names_safe()
        return True

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """One after the other: a crash finds some done."""
        for path, data in files.items():
            self.replace(path, data)

    def wait_for_all(self, waits: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all `waits`, one after the other: a crash finds some done."""
        return [wait() for wait in waits]

    @property
    def location(self) -> str:
        """Nowhere."""
        return "memory"

    def capacity(self) -> tuple[int, int]:
        """A disk of CAPACITY_BYTES, less what the files hold."""
        used = sum(size for path in self._paths for size in self.files(path).values())
        return CAPACITY_BYTES, CAPACITY_BYTES - used

    def lock(self) -> None:
        """Takes the storage; DataDirectoryInUse when it is taken."""
        if self._is_locked:
            raise DataDirectoryInUse("memory: in use by this process")
        self._is_locked = True

    def close(self) -> None:
        """Gives the lock back."""
        self._is_locked = False
