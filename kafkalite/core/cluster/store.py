"""The cluster's records in the coordination tree: read once, then written conditionally.     [D]

The controller's records are a compacted log keyed by path; this module writes each step's records
as one transaction and remembers every path's version, so a write by anyone else in between makes
the transaction fail rather than be lost.

Owns   the versions of the paths it has read or written.
Fails  with VersionMismatch or NodeExists when another controller writes, else CoordinationError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkalite.core.cluster.coordination import (
    VALUE_BYTES_MAX,
    Coordination,
    Create,
    Delete,
    Entry,
    Operation,
    Set,
)
from kafkalite.core.cluster.image import CLUSTER_PATH, PRODUCER_IDS_PATH, ROOTS
from kafkalite.core.cluster.image import ClusterRecord as Record
from kafkalite.errors import CoordinationError, NoSuchNode


@dataclass(slots=True)
class ClusterStore:
    """Reads and writes the cluster's records through `coordination`."""

    coordination: Coordination
    _versions: dict[str, int] = field(default_factory=dict)

    async def load(self) -> tuple[Record, ...]:
        """All records, parents before children. Makes the tree's roots in a new cluster."""
        for root in ROOTS:
            if await self._get(root) is None:
                await self.coordination.transact((Create(root, b""),))
        records: list[Record] = []
        for path in (CLUSTER_PATH, PRODUCER_IDS_PATH):
            await self._load_into(records, path)
        for root in ROOTS:
            for name in await self.coordination.children(root):
                await self._load_into(records, f"{root}/{name}")
                for child in await self.coordination.children(f"{root}/{name}"):
                    await self._load_into(records, f"{root}/{name}/{child}")
        return tuple(records)

    async def append(self, records: Sequence[Record], *, ephemeral: bool = False) -> None:
        """Writes `records` as one transaction; durable when it returns."""
        operations: list[Operation] = []
        versions = dict[str, int | None]()
        for path, value in records:
            version = versions.get(path, self._versions.get(path))
            if value is not None and len(value) > VALUE_BYTES_MAX:
                raise CoordinationError(
                    f"{path} would hold {len(value)} bytes, at most {VALUE_BYTES_MAX} fit"
                )
            if value is None:
                assert version is not None, f"{path} was never written"
                operations.append(Delete(path, version))
                versions[path] = None
            elif version is None:
                operations.append(Create(path, value, ephemeral))
                versions[path] = 0
            else:
                operations.append(Set(path, value, version))
                versions[path] = version + 1
        await self.coordination.transact(operations)
        for path, version in versions.items():
            if version is None:
                del self._versions[path]
            else:
                self._versions[path] = version

    async def _load_into(self, records: list[Record], path: str) -> None:
        entry = await self._get(path)
        if entry is not None:
            self._versions[path] = entry.version
            records.append(Record(path, entry.value))

    async def _get(self, path: str) -> Entry | None:
        try:
            return await self.coordination.get(path)
        except NoSuchNode:
            return None
