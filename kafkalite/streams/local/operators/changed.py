"""Batches with some of their columns changed.                                              [P]"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.streams.local.batch import Batch


def with_values(batch: Batch, values: Sequence[Any] | None) -> Batch:
    """The batch with other values; their bytes are gone."""
    return Batch(
        batch.timestamps,
        batch.origin,
        batch.keys,
        batch.raw_keys,
        values,
        headers=batch.headers,
        times=batch.times,
    )


def with_keys(batch: Batch, keys: Sequence[Any]) -> Batch:
    """The batch with other keys; their bytes are gone."""
    return Batch(
        batch.timestamps,
        batch.origin,
        keys,
        None,
        batch.values,
        batch.raw_values,
        headers=batch.headers,
        times=batch.times,
    )


def with_pairs(batch: Batch, pairs: Sequence[tuple[Any, Any]]) -> Batch:
    """The batch with other keys and values."""
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    return with_values(with_keys(batch, keys), values)


def without_values(batch: Batch) -> Batch:
    """The batch that new values are put into."""
    return with_values(batch, None)


def without_null_keys(batch: Batch) -> Batch:
    """The records that have a key."""
    keys = batch.raw_keys if batch.keys is None else batch.keys
    assert keys is not None
    if isinstance(keys, Spans | ArrowForm) and not keys.has_nulls:
        return batch
    # Neither the truth nor the equality of a user's object is asked for.
    if not any(map(is_, keys, repeat(None))):
        return batch
    return batch.where([key is not None for key in keys])
