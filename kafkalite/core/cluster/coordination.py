"""The port to the cluster's shared state: a small tree of values, as ZooKeeper keeps it.     [P]

A path such as `/topics/orders` holds a value and its version, which rises by one with every
write. Several operations go through as one or not at all, which is how a controller that lost its
place is kept from writing over its successor: its `Check` fails, and with it all the rest.

    Create  path must be free, its parent must exist (the root "/" always does)
    Set     path must exist; `version` must match unless it is ANY_VERSION
    Delete  path must exist and have no children; version as in Set
    Check   path must exist in exactly that version

Owns   the words of the port; `local` keeps the tree in the data directory.
Never  knows what the values mean.
Fails  with NoSuchNode, NodeExists, VersionMismatch, else CoordinationError.
Source ZooKeeper programmer's guide: data model, watches, multi.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

ANY_VERSION: Final = -1
VALUE_BYTES_MAX: Final = 1_000_000  # what ZooKeeper accepts by default (jute.maxbuffer), rounded


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


Operation = Create | Set | Delete | Check
Watcher = Callable[[str], None]  # called with the path that changed; reads it anew


class Coordination(Protocol):
    """A broker's interface to the cluster's shared state."""

    async def get(self, path: str) -> Entry:
        """The value at `path`. NoSuchNode if there is none."""

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`, sorted. NoSuchNode if the path does not exist."""

    async def transact(self, operations: Sequence[Operation]) -> None:
        """Runs all operations or none; durable when it returns."""

    def watch(self, path: str, watcher: Watcher) -> Callable[[], None]:
        """Calls `watcher` whenever the value at `path` or the set of its children changes.

        Returns a function that ends the watch. Changes in quick succession may cause one call.
        """

    async def close(self) -> None:
        """Ends the session: its ephemeral paths go."""


def parent_of(path: str) -> str:
    """The path that `path` lies in: "/" for "/topics"."""
    return path.rpartition("/")[0] or "/"
