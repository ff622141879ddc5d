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

from itertools import repeat
from typing import Final

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.protocol.codec import decode_with_version, encode_with_version, read_version
from kafkalite.core.protocol.transaction_records import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from kafkalite.core.transactions.transaction import EMPTY, Transaction, TransactionState
from kafkalite.core.types import TopicPartition, sorted_by_topic
from kafkalite.errors import WireError

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0


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
        frozenset(
            where
            for topic in found.transaction_partitions or ()
            for where in map(TopicPartition, repeat(topic.topic), topic.partition_ids)
        ),
        found.transaction_start_timestamp_ms,
    )


def transaction_record(transaction: Transaction) -> Record:
    """The record that remembers how a transactional id stands."""
    topics = sorted_by_topic(transaction.partitions).items()
    partitions = tuple(TransactionPartitions(name, tuple(numbers)) for name, numbers in topics)
    value = TransactionLogValue(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.state,
        None if transaction.state is EMPTY else partitions,
        transaction.last_update_ms,
        transaction.start_ms,
    )
    return _key(transaction.transactional_id), encode_with_version(value, VALUE_VERSION)


def transaction_tombstone(transactional_id: str) -> Record:
    """The record that forgets a transactional id."""
    return _key(transactional_id), None


def _key(transactional_id: str) -> bytes:
    return encode_with_version(TransactionLogKey(transactional_id), KEY_VERSION)
