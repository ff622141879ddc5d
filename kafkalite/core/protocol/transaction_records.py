"""Keys and values of the records in `__transaction_state`.                                [P]

The bytes are a version, then the value in that version (`codec.encode_with_version`).

Source: TransactionLog{Key,Value}.json.
  TransactionLogValue  v1 flexible; its tagged fields belong to the second transaction protocol
                       (KIP-890), which this broker does not speak: they are skipped
"""

from __future__ import annotations

from kafkalite.core.protocol.codec import schema, struct
from kafkalite.core.protocol.primitives import Int8, Int16, Int32, Int64, String


@schema(versions=(0, 0))
class TransactionLogKey:
    """Which transactional id the record is about."""

    transactional_id: String


@struct
class TransactionPartitions:
    """A topic's partitions in the transaction."""

    topic: String
    partition_ids: tuple[Int32, ...]


@schema(versions=(0, 1), flexible_since=1)
class TransactionLogValue:
    """How a transactional id stands; null partitions where it has no transaction."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: tuple[TransactionPartitions, ...] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
