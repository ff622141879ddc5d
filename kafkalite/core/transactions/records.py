"""The records of `__transaction_state`: what a transaction coordinator remembers.          [P]

    key                    value
    0  transactional id    producer id and epoch, timeout, state, partitions, when     or tombstone

Keys and values begin with their version (Int16). Values are written in version 0, as Apache Kafka
writes them for the classic protocol; neither knows the producer before this one.

Owns   the bytes of keys and values.
Fails  with WireError; a key of a kind that we do not know is no error: None.
Source `TransactionLog{Key,Value}.json`; apache/kafka `TransactionLog`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.protocol.codec import decode_with_version, encode_with_version, read_version
from kafkalite.core.protocol.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
)
from kafkalite.core.transactions.partitions import Partitions
from kafkalite.core.transactions.transaction import EMPTY, Transaction, TransactionState
from kafkalite.errors import WireError

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0

_COUNT: Final = Struct(">i")  # of an array's entries
TIMES_BYTES: Final = 16  # behind the array of partitions: last update, start


def decode_key(key: bytes) -> str | None:
    """The transactional id that a record is about; None if it is about something else."""
    if read_version(key) != KEY_VERSION:
        return None
    return decode_with_version(TransactionLogKey, key).transactional_id


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """How a transactional id stands."""
    found = decode_with_version(TransactionLogValue, value)
    try:
        state = TransactionState(found.transaction_status)
    except ValueError as error:
        status = found.transaction_status
        raise WireError(f"{transactional_id}: transaction status {status} is unknown") from error
    return Transaction(
        transactional_id,
        found.producer_id,
        found.transaction_timeout_ms,
        found.transaction_last_update_timestamp_ms,
        found.producer_epoch,
        state,
        Partitions.of_topics(
            (topic.topic, topic.partition_ids) for topic in found.transaction_partitions or ()
        ),
        found.transaction_start_timestamp_ms,
    )


def transaction_record(transaction: Transaction) -> Record:
    """The record that remembers how a transactional id stands.

    The partitions hold the bytes of their array, which may be long; the codec makes the others.
    """
    value = TransactionLogValue(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.state,
        None if transaction.state is EMPTY else (),
        transaction.last_update_ms,
        transaction.start_ms,
    )
    data = encode_with_version(value, VALUE_VERSION)
    if partitions := transaction.partitions:
        head, times = data[: -TIMES_BYTES - _COUNT.size], data[-TIMES_BYTES:]
        count = _COUNT.pack(partitions.topic_count)
        data = b"".join((head, count, partitions.encoded(), times))
    return _key(transaction.transactional_id), data


def transaction_tombstone(transactional_id: str) -> Record:
    """The record that forgets a transactional id."""
    return _key(transactional_id), None


def _key(transactional_id: str) -> bytes:
    return encode_with_version(TransactionLogKey(transactional_id), KEY_VERSION)
