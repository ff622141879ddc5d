"""The columns of JSON values, inferred from a sample of the log.                           [IO]

The sample has the first and the last records of each partition, in equal shares: an old form of
the objects and today's are both seen.

Owns   the bound: `records_max` offsets, and BYTES_MAX bytes of keys and values.
Fails  with SchemaError if the sample has no object with a value, and as `read_range` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from kafkalite.columnar.json_columns import Seen, columns_of, unframed
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.rows import payload_bytes
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.types import TopicPartition
from kafkalite.errors import SchemaError

BYTES_MAX: Final = 64 << 20

Offsets = Mapping[TopicPartition, int]


def sampled_columns(
    settings: ReadSettings, first: Offsets, end: Offsets, records_max: int
) -> pa.StructType:
    """The columns of the JSON objects in a sample of the log between two sets of offsets."""
    seen, size = Seen(), 0
    for wanted in sample_ranges(first, end, records_max):
        for rows in read_range(settings, wanted, fail_on_data_loss=False):
            seen.add(map(unframed, rows.columns.values))
            size += payload_bytes(rows.columns)
            if size >= BYTES_MAX:
                break
        if size >= BYTES_MAX:
            break
    columns = columns_of(seen.shape)
    if not columns.num_fields:
        topics = ", ".join(sorted({tp.topic for tp in end}))
        raise SchemaError(f"a sample of {topics} has no JSON object with a value")
    return columns


def sample_ranges(first: Offsets, end: Offsets, records_max: int) -> list[OffsetRange]:
    """The heads and tails of all partitions; about `records_max` offsets together. The newest come
    first, so that they decide where two objects differ.
    """
    sizes = {tp: end[tp] - first.get(tp, 0) for tp in sorted(end)}
    sizes = {tp: size for tp, size in sizes.items() if size > 0}
    share = max(2, records_max // max(1, len(sizes)))
    heads, tails = [], []
    for tp, size in sizes.items():
        start, stop = first.get(tp, 0), end[tp]
        if size <= share:
            tails.append(OffsetRange(tp.topic, tp.partition, start, stop))
            continue
        head = start + share // 2
        heads.append(OffsetRange(tp.topic, tp.partition, start, head))
        tails.append(OffsetRange(tp.topic, tp.partition, stop - (share - share // 2), stop))
    return tails + heads
