"""Versioned tables: their updates, and the rows that they had at a time.                  [P]

An update is a version from its timestamp on, also if it comes out of order. One that is older than
the table's history is dropped and counted. Every other one goes on, marked as the latest of its key
or not: groups and joins of tables, by a foreign key too, take the latest ones alone.

Owns   nothing: the versions are in state/versions.py.
Source Kafka Streams' KTableSource on a VersionedKeyValueStore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

from kafkalite.serde.serde import Codec, Serde, SerdeContext
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import Row
from kafkalite.streams.local.state.versions import VersionCodec, VersionStore


@dataclass(frozen=True, slots=True)
class VersionSerde:
    """Values of versions, which may be deletions."""

    inner: Serde

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return VersionCodec(self.inner.open(context))


class VersionedRows:
    """The store of a versioned table."""

    def __init__(self, node: p.TableSource | p.ToTable, runtime: Runtime) -> None:
        assert node.history_ms is not None
        owned = runtime.store_of(node)
        assert owned is not None, f"{node.name!r} owns no store"
        self.node = node
        self.runtime = runtime
        self.versions = VersionStore(
            owned.name,
            owned.changelog_topic,
            node.history_ms,
            runtime.codec(owned.key, is_key=True),
            runtime.codec(VersionSerde(owned.value), is_key=False),
            runtime.place.backend(owned.name),
        )
        runtime.stores[owned.name] = self.versions

    def put(self, batch: Batch) -> Batch:
        """Takes updates over; those that are kept, with the rows that the latest ones replace."""
        assert batch.raw_keys is not None
        assert batch.values is not None
        put = self.versions.put_version
        headers = batch.headers or repeat(())
        records = zip(batch.raw_keys, batch.values, batch.timestamps, headers, strict=False)
        puts = [
            put(key, value, stamp, its) for key, value, stamp, its in records if key is not None
        ]
        self.versions.expire()
        kept = [each.is_kept for each in puts]
        latest, olds = [each.is_latest for each in puts], [each.old for each in puts]
        dropped = kept.count(False)
        self.runtime.metrics[DROPPED] += dropped
        self.runtime.drops.add(Reason.PAST_RETENTION, self.node.name, dropped)
        return replace(batch, raw_values=None, olds=olds, latest=latest).where(kept)


def latest_only(batch: Batch, node: p.Node, runtime: Runtime) -> Batch:
    """The updates that are the latest of their keys; others of a versioned table are dropped."""
    latest = batch.latest_ones()
    if dropped := len(batch) - len(latest):
        runtime.metrics[DROPPED] += dropped
        runtime.drops.add(Reason.NOT_LATEST, node.name, dropped)
    return latest


class VersionsGetter:
    """Rows of a versioned table: the latest ones, or those at the timestamps of the batch."""

    def __init__(self, node: p.TableSource | p.ToTable, runtime: Runtime, *, as_of: bool) -> None:
        owned = runtime.store_of(node)
        assert owned is not None, f"{node.name!r} owns no store"
        self._find = partial(runtime.stores.__getitem__, owned.name)  # it is opened later
        self._as_of = as_of

    def rows(self, batch: Batch) -> tuple[Sequence[Any], Sequence[int]]:
        """Values and their timestamps; None for no row."""
        assert batch.raw_keys is not None
        versions = self._find()
        assert isinstance(versions, VersionStore)
        found: list[Row | None]
        if self._as_of:
            pairs = zip(batch.raw_keys, batch.timestamps, strict=True)
            found = [versions.at(key, stamp) for key, stamp in pairs if key is not None]
        else:
            found = [versions.latest(key) for key in batch.raw_keys if key is not None]
        values = [None if row is None else row.value for row in found]
        return values, [0 if row is None else row.stamp for row in found]
