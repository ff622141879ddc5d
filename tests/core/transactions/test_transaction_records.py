"""The bytes of `__transaction_state`, as Apache Kafka has them."""

from __future__ import annotations

import pytest

from kafkalite.core.protocol.codec import encode_with_version
from kafkalite.core.protocol.transaction_records import TransactionLogValue
from kafkalite.core.transactions.partitions import Partitions
from kafkalite.core.transactions.records import (
    decode_key,
    decode_value,
    transaction_record,
    transaction_tombstone,
)
from kafkalite.core.transactions.transaction import (
    EMPTY,
    LEGAL,
    ONGOING,
    Transaction,
    TransactionState,
)
from kafkalite.errors import WireError

PARTITIONS = Partitions.of_topics((("t", (1, 0)), ("u", (3,))))
STANDING = Transaction("tx", 7, 60_000, 5, 2, ONGOING, PARTITIONS, 4)

KEY = bytes.fromhex("0000 0002 7478")
VALUE = bytes.fromhex(
    "0000"  # version
    "0000000000000007 0002"  # producer id and epoch
    "0000ea60 01"  # timeout, Ongoing
    "00000002 0001 74 00000002 00000000 00000001 0001 75 00000001 00000003"  # t-0 t-1 u-3
    "0000000000000005 0000000000000004"  # last update, start
)


def test_a_transaction_is_written_as_kafka_writes_it() -> None:
    assert transaction_record(STANDING) == (KEY, VALUE)
    assert transaction_tombstone("tx") == (KEY, None)
    assert decode_key(KEY) == "tx"
    assert decode_value("tx", VALUE) == STANDING


def test_an_id_without_a_transaction_has_null_partitions() -> None:
    made = Transaction("tx", 7, 60_000, 5, 0, EMPTY)
    _, value = transaction_record(made)
    assert value is not None
    assert value[17:21] == b"\xff\xff\xff\xff"
    assert decode_value("tx", value) == made


def test_the_flexible_version_is_read_too_and_its_tagged_fields_skipped() -> None:
    value = TransactionLogValue(7, 2, 60_000, 1, (), 5, 4)
    encoded = encode_with_version(value, 1)
    assert encoded.endswith(b"\0")  # no tagged fields
    tagged = encoded[:-1] + b"\x01\x02\x02\0\x02"  # one: tag 2, two bytes
    assert decode_value("tx", tagged) == Transaction("tx", 7, 60_000, 5, 2, ONGOING, start_ms=4)


@pytest.mark.parametrize("state", TransactionState)
def test_every_state_keeps_its_number_and_has_its_transitions(state: TransactionState) -> None:
    made = Transaction("tx", 7, 60_000, 5, 0, state)
    value = transaction_record(made)[1]
    assert value is not None
    assert decode_value("tx", value).state is state
    assert state in LEGAL


def test_what_is_no_record_is_refused_and_another_kind_passed_over() -> None:
    assert decode_key(b"\0\x01\0\x02tx") is None
    with pytest.raises(WireError):
        decode_key(b"\0")
    with pytest.raises(WireError):
        decode_value("tx", VALUE[:-1])
    with pytest.raises(WireError, match="tx: transaction status 9 is unknown"):
        decode_value("tx", VALUE[:16] + b"\x09" + VALUE[17:])


def test_states_have_the_names_of_kafkas_tools() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
