"""The tree of values in memory, and what a transaction does to it.                          [P]

Owns   the entries and the names of their children. `check` finds the changes of a transaction
       without making them, so that they can be made durable first; `apply` makes them.
Fails  with the error of the first operation that fails: NoSuchNode, NodeExists, VersionMismatch,
       else CoordinationError.
Source ZooKeeper's DataTree and PrepRequestProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.core.cluster.coordination import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Entry,
    Operation,
    Set,
    check_operations,
    check_path,
    parent_of,
)
from kafkalite.errors import CoordinationError, NodeExists, NoSuchNode, VersionMismatch

Changes = dict[str, Entry | None]


class Tree:
    """The paths in memory."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {"/": Entry(b"")}
        self._children: dict[str, set[str]] = {"/": set()}

    def get(self, path: str) -> Entry:
        """The value at `path`; NoSuchNode if there is none."""
        check_path(path)
        try:
            return self.entries[path]
        except KeyError:
            raise NoSuchNode(f"{path} does not exist") from None

    def children(self, path: str) -> list[str]:
        """The names directly below `path`, sorted; NoSuchNode if the path does not exist."""
        self.get(path)
        return sorted(self._children.get(path, ()))

    def get_many(self, paths: Sequence[str]) -> list[Entry | None]:
        """The values at `paths`, None where there is none."""
        return [self.entries.get(path) for path in paths]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names below each of `paths`, None where there is none."""
        return [self.children(path) if path in self.entries else None for path in paths]

    def check(self, operations: Sequence[Operation]) -> Changes:
        """The changes by `operations`, without making them. Raises for the first that fails."""
        check_operations(operations)
        changes: Changes = {}
        with_new_children: set[str] = set()
        for operation in operations:
            path = operation.path
            known = changes[path] if path in changes else self.entries.get(path)
            if isinstance(operation, Create):
                self._check_create(operation, known, changes)
                changes[path] = Entry(operation.value, 0, operation.is_ephemeral)
                with_new_children.add(parent_of(path))
                continue
            if known is None:
                raise NoSuchNode(f"{path} does not exist")
            if operation.version not in (ANY_VERSION, known.version):
                raise VersionMismatch(
                    f"{path} is in version {known.version}, expected {operation.version}"
                )
            if isinstance(operation, Set):
                changes[path] = Entry(operation.value, known.version + 1, known.is_ephemeral)
            elif isinstance(operation, Delete):
                if self._keeps_child(path, changes) or (
                    path in with_new_children and _has_new_child(path, changes)
                ):
                    raise NodeExists(f"{path} has children")
                changes[path] = None
            else:
                assert isinstance(operation, Check)
        return changes

    def apply(self, changes: Changes) -> None:
        """Makes changes that were checked."""
        for path, entry in changes.items():
            parent, _, name = path.rpartition("/")
            siblings = self._children.setdefault(parent or "/", set())
            if entry is None:
                self.entries.pop(path, None)
                self._children.pop(path, None)
                siblings.discard(name)
            else:
                self.entries[path] = entry
                siblings.add(name)

    def _keeps_child(self, path: str, changes: Changes) -> bool:
        """Whether a child from before the transaction is left."""
        before = (f"{path}/{name}" for name in self._children.get(path, ()))
        return any(changes.get(child, self.entries[child]) is not None for child in before)

    def _check_create(self, operation: Create, known: Entry | None, changes: Changes) -> None:
        path = operation.path
        if known is not None:
            raise NodeExists(f"{path} exists")
        parent = parent_of(path)
        above = changes[parent] if parent in changes else self.entries.get(parent)
        if above is None:
            raise NoSuchNode(f"{parent} does not exist, so {path} cannot be made")
        if above.is_ephemeral:
            raise CoordinationError(
                f"{parent} is ephemeral and can have no children, so {path} cannot be made"
            )


def _has_new_child(path: str, changes: Changes) -> bool:
    return any(entry is not None and parent_of(each) == path for each, entry in changes.items())


def touched(operations: Sequence[Operation]) -> set[str]:
    """The paths whose watchers hear of `operations`: those written, and those whose children came
    or went."""
    paths = {each.path for each in operations if not isinstance(each, Check)}
    return paths | {
        parent_of(each.path) for each in operations if isinstance(each, Create | Delete)
    }
