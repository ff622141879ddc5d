"""The cluster's records in the coordination tree: read once, then written conditionally.     [D]

The controller's records are a compacted log keyed by path; this module writes each step's records
and remembers every path's version, so a write by anyone else in between makes the transaction fail
rather than be lost. With a `guard`, each transaction also checks the controller's epoch.

    append ──> transact ──┬─> written                          the versions are remembered
                          ├─> refused: read again ──> StaleState with others' records, or refusal
                          └─> OutcomeUnknown: read again ──┬─> it is written
                                                           ├─> it is not: once more
                                                           └─> no connection: `settle` later

A topic whose deletion does not fit into one transaction is emptied first. Its path then holds no
bytes, which every reader takes for a topic that is gone, and `load` deletes what is left of it.

Owns   the versions of the paths it has read or written. One call at a time.
Fails  with ControllerDeposed when another controller was elected, StaleState, NodeExists or
       VersionMismatch when another has written, CoordinationUnavailable or OutcomeUnknown when
       there is no connection, else CoordinationError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafkalite.core.cluster.coordination import (
    OPERATION_BYTES,
    VALUE_BYTES_MAX,
    Check,
    Coordination,
    Create,
    Delete,
    Entry,
    Operation,
    Set,
)
from kafkalite.core.cluster.image import ROOTS, TOPICS_PATH, VALUES
from kafkalite.core.cluster.image import ClusterRecord as Record
from kafkalite.errors import (
    ControllerDeposed,
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    NoSuchNode,
    OutcomeUnknown,
    VersionMismatch,
)

BATCH_RECORDS_MAX: Final = 500  # in one transaction, unless one topic has more
BATCH_BYTES_MAX: Final = 900_000  # ZooKeeper takes a little more than 1 MB in one request
ATTEMPTS_MAX: Final = 5  # to write what turned out not to be written


class StaleState(VersionMismatch):
    """Others wrote what this store had read before; `records` are the present values."""

    def __init__(self, message: str, records: tuple[Record, ...]) -> None:
        super().__init__(message)
        self.records = records


@dataclass(frozen=True, slots=True)
class _Write:
    """A transaction, and the tree before and after it; None stands for no such path."""

    records: tuple[Record, ...]
    operations: tuple[Operation, ...]
    versions_before: dict[str, int | None]
    entries_after: dict[str, Entry | None]


@dataclass(slots=True)
class ClusterStore:
    """Reads and writes the cluster's records through `coordination`."""

    coordination: Coordination
    guard: Check | None = None  # of the controller's epoch, for every transaction
    _versions: dict[str, int] = field(default_factory=dict)
    _unsettled: _Write | None = None  # whose outcome is unknown

    async def load(self) -> tuple[Record, ...]:
        """All records, parents before children. Makes the tree's roots in a new cluster."""
        self._versions.clear()
        self._unsettled = None
        await self._make_roots()
        tops = [*VALUES]
        for root, names in await self._children(ROOTS):
            tops += [f"{root}/{name}" for name in names]
        found = await self._read(tops)
        below: dict[str, list[Record]] = {}
        parents = [record.path for record in found if record.path.count("/") > 1]
        children = [
            f"{path}/{name}" for path, names in await self._children(parents) for name in names
        ]
        for record in await self._read(children):
            below.setdefault(record.path.rpartition("/")[0], []).append(record)
        records: list[Record] = []
        for record in found:
            if record.value == b"" and record.path.startswith(f"{TOPICS_PATH}/"):
                await self._end_deletion(record.path, below.get(record.path, []))
            else:
                records += [record, *below.get(record.path, [])]
        return tuple(records)

    async def append(self, records: Sequence[Record], *, ephemeral: bool = False) -> None:
        """Writes `records` as one transaction; durable when it returns."""
        for _ in range(ATTEMPTS_MAX):
            write = self._plan(records, ephemeral=ephemeral)
            if not write.operations:
                return
            try:
                await self._transact(write)
            except OutcomeUnknown:
                self._unsettled = write
                if await self._happened_at_last(write):
                    return
                continue
            except (NoSuchNode, NodeExists, VersionMismatch) as refusal:
                raise await self._reason(write, refusal) from None
            self._remember(write)
            return
        first = records[0].path
        raise CoordinationUnavailable(
            f"{len(records)} records from {first} were not written in {ATTEMPTS_MAX} attempts"
        )

    @property
    def is_unsettled(self) -> bool:
        """Whether it is unknown if the last write happened."""
        return self._unsettled is not None

    async def settle(self) -> tuple[Record, ...]:
        """Finds out whether the last write happened; returns its records if it did."""
        write = self._unsettled
        return write.records if write is not None and await self._happened(write) else ()

    # -- reading

    async def _make_roots(self) -> None:
        found = await self.coordination.get_many(ROOTS)
        for root, entry in zip(ROOTS, found, strict=True):
            if entry is None:
                await self._make_root(root)

    async def _make_root(self, root: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self.coordination.transact((Create(root, b""),))
            except NodeExists:  # another broker makes it at the same time
                return None
            except OutcomeUnknown:
                continue
        raise CoordinationUnavailable(f"{root} was not made in {ATTEMPTS_MAX} attempts")

    async def _children(self, paths: Sequence[str]) -> list[tuple[str, list[str]]]:
        found = await self.coordination.children_many(paths)
        return [(path, names or []) for path, names in zip(paths, found, strict=True)]

    async def _read(self, paths: Sequence[str]) -> list[Record]:
        """The records at those of `paths` that exist; their versions are remembered."""
        found = await self.coordination.get_many(paths)
        records: list[Record] = []
        for path, entry in zip(paths, found, strict=True):
            if entry is not None:
                self._versions[path] = entry.version
                records.append(Record(path, entry.value))
        return records

    async def _end_deletion(self, topic: str, children: Sequence[Record]) -> None:
        gone = [Record(child.path, None) for child in children]
        for batch in batches([*gone, Record(topic, None)]):
            await self.append(batch)

    # -- writing

    def _plan(self, records: Sequence[Record], *, ephemeral: bool) -> _Write:
        operations: list[Operation] = []
        before = {path: self._versions.get(path) for path, _ in records}
        after: dict[str, Entry | None] = {}
        versions = dict(before)
        for path, value in records:
            version = versions[path]
            if value is None:
                if version is None:
                    continue  # it is gone already
                operations.append(Delete(path, version))
                after[path] = versions[path] = None
                continue
            if len(value) > VALUE_BYTES_MAX:
                raise CoordinationError(
                    f"{path} would hold {len(value)} bytes, at most {VALUE_BYTES_MAX} fit"
                )
            if version is None:
                operations.append(Create(path, value, ephemeral))
                versions[path] = 0
            else:
                operations.append(Set(path, value, version))
                versions[path] = version + 1
            after[path] = Entry(value, versions[path] or 0)
        return _Write(
            tuple(records), tuple(operations), {path: before[path] for path in after}, after
        )

    async def _transact(self, write: _Write) -> None:
        guards = () if self.guard is None else (self.guard,)
        await self.coordination.transact((*guards, *write.operations))

    def _remember(self, write: _Write) -> None:
        for path, entry in write.entries_after.items():
            self._set_version(path, entry)

    def _set_version(self, path: str, entry: Entry | None) -> None:
        if entry is None:
            self._versions.pop(path, None)
        else:
            self._versions[path] = entry.version

    # -- after a refusal, or without an answer

    async def _happened(self, write: _Write) -> bool:
        """Whether an unsettled write is in the tree. StaleState if others wrote there as well."""
        found = await self._find(write)
        self._unsettled = None
        if all(_same(entry, write.entries_after[path]) for path, entry in found.items()):
            self._remember(write)
            return True
        stale = self._heal(write, found)
        if stale:
            paths = ", ".join(record.path for record in stale[:3])
            raise StaleState(f"others wrote {paths} while an answer was lost", stale)
        return False

    async def _happened_at_last(self, write: _Write) -> bool:
        try:
            return await self._happened(write)
        except CoordinationUnavailable as error:
            raise OutcomeUnknown(
                f"{write.records[0].path} may be written or not: {error}"
            ) from error

    async def _reason(self, write: _Write, refusal: CoordinationError) -> CoordinationError:
        """The error for a refused write; the versions are then as in the tree."""
        try:
            found = await self._find(write)
        except CoordinationError as error:
            return error if isinstance(error, ControllerDeposed) else refusal
        stale = self._heal(write, found)
        return StaleState(str(refusal), stale) if stale else refusal

    async def _find(self, write: _Write) -> dict[str, Entry | None]:
        """The entries at the paths of `write`. ControllerDeposed where the guard fails."""
        paths = list(write.entries_after)
        guard = self.guard
        if guard is not None:
            paths.append(guard.path)
        found = dict(zip(paths, await self.coordination.get_many(paths), strict=True))
        if guard is not None:
            epoch = found.pop(guard.path)
            if epoch is None or epoch.version != guard.version:
                self._unsettled = None
                now = "gone" if epoch is None else f"in version {epoch.version}"
                raise ControllerDeposed(f"{guard.path} is {now}, expected {guard.version}")
        return found

    def _heal(self, write: _Write, found: dict[str, Entry | None]) -> tuple[Record, ...]:
        """Takes over the versions in the tree; the records that others wrote."""
        stale: list[Record] = []
        for path, entry in found.items():
            version = None if entry is None else entry.version
            if version != write.versions_before[path]:
                self._set_version(path, entry)
                stale.append(Record(path, None if entry is None else entry.value))
        return tuple(stale)


def _same(found: Entry | None, expected: Entry | None) -> bool:
    """Equal in value and version."""
    if found is None or expected is None:
        return found is expected
    return (found.value, found.version) == (expected.value, expected.version)


def batches(records: Sequence[Record]) -> Iterator[tuple[Record, ...]]:
    """The records of a step, as transactions that ZooKeeper accepts.

    The records of one topic that follow each other stay together, unless they do not fit.
    """
    batch: list[Record] = []
    size = 0
    for group in _groups(records):
        group_size = sum(map(_size, group))
        if batch and (
            len(batch) + len(group) > BATCH_RECORDS_MAX or size + group_size > BATCH_BYTES_MAX
        ):
            yield tuple(batch)
            batch, size = [], 0
        if group_size > BATCH_BYTES_MAX and len(group) > 1:
            yield from _pieces(group)
        else:
            batch += group
            size += group_size
    if batch:
        yield tuple(batch)


def _groups(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Records that belong together: those of one topic."""
    group: list[Record] = []
    for record in records:
        if group and _owner(group[0].path) != _owner(record.path):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _pieces(group: Sequence[Record]) -> Iterator[tuple[Record, ...]]:
    """The records of one topic that is too large for a transaction."""
    last = group[-1]
    if last.value is None and last.path == _owner(last.path):
        group = [Record(last.path, b""), *group]  # readers take the topic for gone from here on
    piece: list[Record] = []
    size = 0
    for record in group:
        if piece and size + _size(record) > BATCH_BYTES_MAX:
            yield tuple(piece)
            piece, size = [], 0
        piece.append(record)
        size += _size(record)
    yield tuple(piece)


def _owner(path: str) -> str:
    """The topic that the record at `path` belongs to, as a path; any other path is its own."""
    names = path.split("/", 3)
    return f"{TOPICS_PATH}/{names[2]}" if len(names) > 2 and path.startswith(TOPICS_PATH) else path


def _size(record: Record) -> int:
    return OPERATION_BYTES + len(record.path) + len(record.value or b"")
