"""Which partition a record belongs to, a column at a time.                                [P]

Java's default: `toPositive(murmur2(key)) % partition_count`, so that our clients and others put a
key into the same partition. A null key has no partition: -1, and the caller picks one (Kafka's
producers stick to one partition until a batch is full).

Never  changes a record, or its order within a partition.
Fails  with TypeError or ValueError naming the record: these columns come from our own side.
Source apache/kafka BuiltInPartitioner, Utils.murmur2, Utils.toPositive.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.protocol.record_codec import murmur2, partition_column, split

__all__ = ["NO_PARTITION", "murmur2", "partition_column", "split", "to_positive"]

NO_PARTITION: Final = -1


def to_positive(number: int) -> int:
    """Clears the sign of a 32-bit number, as Java clients do before the modulo."""
    return number & 0x7FFFFFFF
