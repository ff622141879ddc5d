"""What aggregates and tables share: their stores, and keys as the stores have them.          [P]

Owns   nothing. Records without a key, or without a value where one is needed, are dropped and
       counted.
Source Kafka Streams' KStreamAggregate, KTableSource.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import Any

from kafkalite.core.columns import has_nulls
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.serde import Serde
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED, convert
from kafkalite.streams.local.runtime import Needs, Runtime
from kafkalite.streams.local.spans.native import is_packed
from kafkalite.streams.local.spans.store import PackedStore
from kafkalite.streams.local.state import Layout, SpanStore, StateStore
from kafkalite.streams.windows import SpanWindow


def open_store(node: p.Node, layout: Layout, runtime: Runtime) -> StateStore:
    """The store of `node`, registered with the task."""
    store = runtime.store_of(node)
    assert store is not None, f"{node.name!r} owns no store"
    window = node.window if isinstance(node, p.Aggregate) else None
    value = store.value if layout.is_plain else msgpack()
    key_codec = runtime.codec(store.key, is_key=True)
    value_codec = runtime.codec(value, is_key=False)
    backend = runtime.place.backend(store.name)
    name, topic = store.name, store.changelog_topic
    opened: StateStore
    if not isinstance(window, SpanWindow):
        opened = StateStore(name, topic, layout, window, key_codec, value_codec, backend)
    elif is_packed(node, runtime):
        opened = PackedStore(name, topic, layout, window, key_codec, value_codec, backend)
    else:
        opened = SpanStore(name, topic, layout, window, key_codec, value_codec, backend)
    runtime.stores[name] = opened
    return opened


# Keys as the store has them


def store_keys(node: p.Node, runtime: Runtime) -> Callable[[Batch], Batch]:
    """Gives batches the key bytes of the node's table: as they came, or by the table's serde."""
    serde = _table_key(node, runtime)
    if serde == _input_key(node, runtime):
        return _unchanged
    codec = runtime.codec(serde, is_key=True)

    def run(batch: Batch) -> Batch:
        assert batch.keys is not None
        keys, bad = convert(
            codec.serialize,
            node.name,
            batch.keys,
            lambda index, error: runtime.failures.at(node, error, batch, index),
        )
        encoded = Batch(batch.timestamps, batch.origin, batch.keys, keys, batch.values,
                        batch.raw_values, batch.olds, batch.headers, batch.times)  # fmt: skip
        return encoded.where([i not in bad for i in range(len(batch))]) if bad else encoded

    return run


def store_key_needs(node: p.Node, runtime: Runtime) -> Needs:
    """The key column that `store_keys` looks at."""
    raw = _table_key(node, runtime) == _input_key(node, runtime)
    return Needs(key=not raw, raw_key=raw)


def _table_key(node: p.Node, runtime: Runtime) -> Serde:
    store = runtime.store_of(node)
    serde = runtime.schema(node).key if store is None else store.key
    assert serde is not None, f"{node.name!r}: a table knows its key's serde"
    return serde


def _input_key(node: p.Node, runtime: Runtime) -> Serde | None:
    """The serde of the keys that come; a join with a table has those of the stream."""
    return runtime.schema(node.parents[0] if node.parents else node).key


def _unchanged(batch: Batch) -> Batch:
    return batch


def null_needs(node: p.Node, runtime: Runtime) -> Needs:
    """The column that tells null values, at the least cost."""
    raw = runtime.input_schema(node).has_raw_value
    return Needs(value=not raw, raw_value=raw)


def without_nulls(
    batch: Batch, node: p.Node, runtime: Runtime, *, values: bool, keys: bool = True
) -> Batch:
    """The records with a key, and a value if those are wanted; the others count as dropped."""
    assert batch.raw_keys is not None
    if keys and has_nulls(batch.raw_keys):
        batch = drop_nulls(batch, batch.raw_keys, Reason.NULL_KEY, node, runtime)
    if values and has_none(column := batch.nulls()):
        batch = drop_nulls(batch, column, Reason.NULL_VALUE, node, runtime)
    return batch


def has_none(column: Sequence[Any]) -> bool:
    """Whether None is in a column. `in` would compare the user's objects."""
    if isinstance(column, ArrowForm):
        return column.has_nulls
    return any(map(is_, column, repeat(None, len(column))))


def drop_nulls(
    batch: Batch, column: Sequence[Any], reason: Reason, node: p.Node, runtime: Runtime
) -> Batch:
    """The records for which `column` is not None; the others count as dropped."""
    keep = [value is not None for value in column]
    dropped = len(keep) - sum(keep)
    runtime.metrics[DROPPED] += dropped
    runtime.drops.add(reason, node.name, dropped)
    return batch.where(keep)


# Streams without windows
