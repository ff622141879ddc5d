"""The port to the cluster's shared state: a small tree of values, as ZooKeeper keeps it.     [P]

A path such as `/topics/orders` holds a value and its version, which rises by one with every
write. Several operations go through as one or not at all, which is how a controller that lost its
place is kept from writing over its successor: its `Check` fails, and with it all the rest.

    Create  path must be free, its parent must exist (the root "/" always does)
    Set     path must exist; `version` must match unless it is ANY_VERSION
    Delete  path must exist and have no children; version as in Set
    Check   path must exist in exactly that version, or in any if it is ANY_VERSION

Sessions. An ephemeral path lives as long as the session of its creator. Without a connection the
session may end; its owner learns that with the next connection:

    SUSPENDED ──> CONNECTED ──> SUSPENDED ──> CONNECTED            the same session
                                SUSPENDED ──> EXPIRED ──> CONNECTED  a new one, without its paths

Lost answers. A write fails with `OutcomeUnknown` where the connection broke before its answer.
It has then happened, or never will, by the time at which a later read of the same client returns:
so the caller reads and decides. Requests that find no connection wait for one, a bounded time, and
fail with `CoordinationUnavailable`: nothing was written. A write must not be cancelled: shield it.

Watches. A watcher is called at least once after each change that the client's reads do not show
yet: after changes in quick succession perhaps once, after a lost connection and in a new session
also without a change. It is called later than the change and reads the path anew.

Owns   the words of the port. `local` keeps the tree in the data directory, `zookeeper` in
       ZooKeeper, `kafkalite.testing.coordination` in memory, for many brokers in one process.
Never  knows what the values mean.
Fails  with NoSuchNode, NodeExists, VersionMismatch, CoordinationUnavailable, OutcomeUnknown, else
       CoordinationError.
Source ZooKeeper programmer's guide: data model, sessions, watches, multi.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from kafkalite.errors import CoordinationError

ANY_VERSION: Final = -1
VERSION_MAX: Final = 2**31 - 1
VALUE_BYTES_MAX: Final = 1_000_000  # what ZooKeeper accepts by default (jute.maxbuffer), rounded
TRANSACTION_BYTES_MAX: Final = 1_020_000  # the same of all operations together
OPERATION_BYTES: Final = 72  # what an operation takes beside its path and value, at most


class Entry(NamedTuple):
    """A value and the number of times that it was written since its creation."""

    value: bytes
    version: int = 0
    is_ephemeral: bool = False  # gone when the session that created it ends


class Create(NamedTuple):
    """Makes a new path."""

    path: str
    value: bytes
    is_ephemeral: bool = False


class Set(NamedTuple):
    """Writes an existing path."""

    path: str
    value: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Removes a path without children."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing, and fails the whole transaction unless the version matches."""

    path: str
    version: int


class Session(Enum):
    """The state of a client's session."""

    CONNECTED = "requests are answered, ephemeral paths live"
    SUSPENDED = "there is no connection; the session may end, or have ended"
    EXPIRED = "the session has ended and its ephemeral paths are gone; a new session begins"


LEGAL: Final[Mapping[Session, frozenset[Session]]] = {
    Session.SUSPENDED: frozenset({Session.CONNECTED, Session.EXPIRED}),
    Session.CONNECTED: frozenset({Session.SUSPENDED, Session.EXPIRED}),
    Session.EXPIRED: frozenset({Session.CONNECTED}),
}

Operation = Create | Set | Delete | Check
Watcher = Callable[[str], None]  # called with the path that changed; reads it anew
SessionListener = Callable[[Session], None]
Stop = Callable[[], None]


class Coordination(Protocol):
    """A broker's interface to the cluster's shared state. Several calls may wait at once."""

    @property
    def session(self) -> Session:
        """The state of the session."""

    def listen(self, listener: SessionListener) -> Stop:
        """Calls `listener` with each new state of the session. Returns a function that ends it."""

    async def get(self, path: str) -> Entry:
        """The value at `path`. NoSuchNode if there is none."""

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`, sorted. NoSuchNode if the path does not exist."""

    async def get_many(self, paths: Sequence[str]) -> list[Entry | None]:
        """The values at `paths` in their order, None where there is none. One after the other is
        sent without waiting for answers, so they may be of different moments."""

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names below each of `paths`, as `get_many` has the values."""

    async def transact(self, operations: Sequence[Operation]) -> None:
        """Runs all operations or none; durable when it returns."""

    def watch(self, path: str, watcher: Watcher) -> Stop:
        """Calls `watcher` after each change of the value at `path`, of whether it exists, and of
        the set of its children. Returns a function that ends the watch."""

    async def close(self) -> None:
        """Ends the session: its ephemeral paths go. Later calls fail."""


def parent_of(path: str) -> str:
    """The path that `path` lies in: "/" for "/topics"."""
    return path.rpartition("/")[0] or "/"


def size_bytes(operation: Operation) -> int:
    """The size of an operation in a request, or a little more."""
    value = operation.value if isinstance(operation, Create | Set) else b""
    return OPERATION_BYTES + len(operation.path.encode()) + len(value)


def check_path(path: str) -> None:
    """CoordinationError for a text that is no path."""
    if path == "/":
        return
    names = path.split("/")
    if names[0] or any(name in ("", ".", "..") for name in names[1:]) or not path.isprintable():
        raise CoordinationError(f"{path!r} is no path")


def check_operations(operations: Sequence[Operation]) -> None:
    """CoordinationError for what no tree accepts: paths, the root, versions, the size."""
    for operation in operations:
        check_path(operation.path)
        if operation.path == "/" and isinstance(operation, Create | Delete):
            raise CoordinationError("the root / can be neither created nor deleted")
        version = 0 if isinstance(operation, Create) else operation.version
        if not ANY_VERSION <= version <= VERSION_MAX:
            raise CoordinationError(f"{operation.path}: {version} is no version")
    size = sum(map(size_bytes, operations))
    if size > TRANSACTION_BYTES_MAX:
        raise CoordinationError(
            f"a transaction of {len(operations)} operations from {operations[0].path} takes "
            f"{size} bytes, at most {TRANSACTION_BYTES_MAX} fit"
        )
