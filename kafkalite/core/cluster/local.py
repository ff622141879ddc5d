"""The cluster's shared state for a broker that stands alone: a journal in its data directory. [D]

    journal   a line for each transaction, in their order:
              crc32 (8 hex digits) " " JSON [[path, value in base64 or null, version], …] "\n"

A transaction is one line, written with one append and one fsync. A crash may leave a part of the
last line, which does not match its checksum and is cut off: the transaction did not happen. A
journal that is mostly history is replaced, atomically, by one with a single line that holds the
whole tree.

Owns   the tree, the journal file, and the watches. Ephemeral paths live in memory alone, since
       the session that owns them is this process.
Fails  with StorageError when the disk refuses: a full one until it has room, a failed sync for
       good. A line that is damaged but not the last is refused with the line's number, for then
       acknowledged transactions are lost.
Source ZooKeeper's transaction log and snapshots, in one file.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Final, NoReturn

from kafkalite.core.cluster.coordination import (
    Entry,
    Operation,
    Session,
    SessionListener,
    Stop,
    Watcher,
    parent_of,
)
from kafkalite.core.cluster.tree import Changes, Tree, touched
from kafkalite.core.log.port import Storage
from kafkalite.errors import CoordinationUnavailable, StorageError

JOURNAL: Final = "coordination.journal"
CHECKSUM_CHARACTERS: Final = 8
HISTORY_BYTES_MIN: Final = 1 << 20  # below it, a journal is not worth compacting
InThread = Callable[[Callable[[], None]], Awaitable[None]]


async def at_once(act: Callable[[], None]) -> None:
    """Runs `act` here."""
    act()


class LocalCoordination:
    """The `Coordination` port over a file of `storage`."""

    def __init__(
        self,
        storage: Storage,
        path: str = JOURNAL,
        *,
        in_thread: InThread = at_once,
        turns: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        """`in_thread` runs what waits for the disk. One transaction at a time: `turns` is a lock
        that lets one after the other in, needed where `in_thread` lets others run meanwhile."""
        self._storage = storage
        self._in_thread = in_thread
        self._turns = turns or nullcontext()
        self._is_writing = False
        self._is_closed = False
        self._path = path
        self._tree = Tree()
        self._watchers: dict[str, list[Watcher]] = {}
        self._live_bytes = 0  # of the journal when it was last written anew
        self._broken: StorageError | None = None
        self._load()
        self._file = storage.open(path)

    # -- the port

    @property
    def session(self) -> Session:
        """The session is this process."""
        return Session.CONNECTED

    def listen(self, listener: SessionListener) -> Stop:
        """The session never changes."""
        return lambda: None

    async def get(self, path: str) -> Entry:
        """The value at `path`. NoSuchNode if there is none."""
        return self._open_tree().get(path)

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`, sorted. NoSuchNode if the path does not exist."""
        return self._open_tree().children(path)

    async def get_many(self, paths: Sequence[str]) -> list[Entry | None]:
        """The values at `paths` in their order, None where there is none."""
        return self._open_tree().get_many(paths)

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names below each of `paths`, None where there is none."""
        return self._open_tree().children_many(paths)

    async def transact(self, operations: Sequence[Operation]) -> None:
        """Runs all operations or none; durable when it returns."""
        async with self._turns:
            tree = self._open_tree()
            assert not self._is_writing, "one transaction at a time"
            changes = tree.check(operations)
            durable = {
                path: after
                for path, each in changes.items()
                if (after := _durable(each)) or _durable(tree.entries.get(path))
            }
            if durable:
                self._is_writing = True
                try:
                    await self._in_thread(partial(self._append, durable))
                finally:
                    self._is_writing = False
            tree.apply(changes)
        for path in sorted(touched(operations)):
            for watcher in tuple(self._watchers.get(path, ())):
                watcher(path)

    def watch(self, path: str, watcher: Watcher) -> Stop:
        """Calls `watcher` after each change, before the transaction returns."""
        watchers = self._watchers.setdefault(path, [])
        watchers.append(watcher)

        def stop() -> None:
            if watcher in watchers:
                watchers.remove(watcher)

        return stop

    async def close(self) -> None:
        """Ends the session. The journal needs nothing more: each transaction is durable."""
        async with self._turns:
            if not self._is_closed:
                self._is_closed = True
                self._file.close()

    def _open_tree(self) -> Tree:
        if self._is_closed:
            raise CoordinationUnavailable(f"{self._path} is closed")
        return self._tree

    # -- the journal

    def _load(self) -> None:
        """Replays the journal, and cuts off a last line that a crash left torn."""
        try:
            data = self._storage.read_small(self._path) or b""
        except OSError as error:
            raise StorageError(f"{self._path}: {error}") from error
        position = number = 0
        while position < len(data):
            number += 1
            end = data.find(b"\n", position)
            changes = _parse(data[position:end]) if end >= 0 else None
            if changes is None:
                self._cut(data, position, number)
                return
            self._tree.apply(changes)
            position = end + 1
        self._live_bytes = len(data)

    def _cut(self, data: bytes, position: int, number: int) -> None:
        if data.find(b"\n", position) not in (-1, len(data) - 1):
            raise StorageError(f"{self._path}: line {number} is damaged, and others follow it")
        try:
            torn = self._storage.open(self._path)
            torn.truncate(position)
            torn.close()
        except OSError as error:
            raise StorageError(f"{self._path}: {error}") from error
        self._live_bytes = position

    def _append(self, changes: Changes) -> None:
        """Makes the line of `changes` durable, or removes the written part of it.

        After a failed sync the journal's state is unknown, and it takes no more: a second sync
        would succeed and mean nothing.
        """
        if self._broken is not None:
            raise self._broken
        line = _line(changes)
        size_before = self._file.size_bytes
        try:
            self._file.append(line)
        except OSError as error:
            self._take_back(size_before, error)
        try:
            self._file.sync()
            if not size_before:
                self._storage.sync_directory(parent_of(f"/{self._path}")[1:])
        except OSError as error:
            self._broken = StorageError(f"{self._path} takes no more changes: {error}")
            raise self._broken from error
        if self._file.size_bytes > HISTORY_BYTES_MIN + 2 * self._live_bytes:
            self._compact(changes)

    def _take_back(self, size: int, error: OSError) -> NoReturn:
        refusal = StorageError(f"{self._path}: {error}")
        try:
            self._file.truncate(size)
        except OSError:
            self._broken = refusal  # nobody knows what the journal holds now
        raise refusal from error

    def _compact(self, last: Changes) -> None:
        """Replaces the journal by one line that holds the tree as the `last` changes make it."""
        whole: Changes = {
            path: entry
            for path, entry in (self._tree.entries | last).items()
            if path != "/" and _durable(entry)
        }
        data = _line(whole)
        self._live_bytes = len(data)
        try:
            self._file.close()
            self._storage.replace(self._path, data)
        except OSError:  # a full disk: whichever journal is there now has every transaction
            self._live_bytes = self._file.size_bytes // 2  # again when it has grown
        try:
            self._file = self._storage.open(self._path)
        except OSError as error:
            self._broken = StorageError(f"{self._path} takes no more changes: {error}")


def _durable(entry: Entry | None) -> Entry | None:
    """An entry as the journal has it; None for an ephemeral one."""
    return None if entry is None or entry.is_ephemeral else entry


def _line(changes: Changes) -> bytes:
    """Entry by entry: a call that encodes a whole tree would keep the interpreter from others."""
    text = f"[{','.join(_entry_text(path, entry) for path, entry in changes.items())}]".encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _entry_text(path: str, entry: Entry | None) -> str:
    value = None if entry is None else base64.b64encode(entry.value).decode()
    version = 0 if entry is None else entry.version
    return json.dumps([path, value, version], separators=(",", ":"))


def _parse(line: bytes) -> Changes | None:
    """The changes of a line without its end; None if it is torn or damaged."""
    checksum, text = line[:CHECKSUM_CHARACTERS], line[CHECKSUM_CHARACTERS + 1 :]
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    return {
        path: None if value is None else Entry(base64.b64decode(value), version)
        for path, value, version in json.loads(text)
    }
