"""The records of `__consumer_offsets`, byte by byte, as Apache Kafka writes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.groups.records import (
    CommittedOffset,
    GroupRecordKey,
    OffsetRecordKey,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from kafkalite.core.protocol.group_records import GroupMetadataValue, MemberMetadata
from kafkalite.core.types import NO_TIMESTAMP, TopicPartition
from kafkalite.errors import WireError

ORDERS_3 = TopicPartition("orders", 3)
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_an_offset_is_written_in_version_3() -> None:
    key, value = offset_record("g", ORDERS_3, CommittedOffset(258, 7, "é", 1_000))
    assert key == b"\0\1\0\1g\0\6orders\0\0\0\3"
    assert value == (b"\0\3\0\0\0\0\0\0\1\2\0\0\0\7\0\2\xc3\xa9\0\0\0\0\0\0\3\xe8")


def test_an_offset_with_an_expiry_of_its_own_is_written_in_version_1() -> None:
    _, value = offset_record("g", ORDERS_3, CommittedOffset(258, 7, "", 1_000, 2_000))
    assert value == (b"\0\1\0\0\0\0\0\0\1\2\0\0\0\0\0\0\0\0\3\xe8\0\0\0\0\0\0\7\xd0")
    assert decode_offset(value) == CommittedOffset(258, -1, "", 1_000, 2_000)


@given(
    offset=st.builds(
        CommittedOffset,
        INT64,
        st.integers(-1, 2**31 - 1),
        st.text(max_size=9),
        INT64,
        st.just(NO_TIMESTAMP),
    )
)
def test_an_offset_comes_back(offset: CommittedOffset) -> None:
    key, value = offset_record("g", ORDERS_3, offset)
    assert decode_key(key) == OffsetRecordKey("g", ORDERS_3)
    assert value is not None
    assert decode_offset(value) == offset


def test_a_group_comes_back_from_a_record_in_version_3() -> None:
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="a",
        current_state_timestamp=9,
        members=(MemberMetadata("a", "i", "c", "/h", 1, 2, b"s", b"t"),),
    )
    key, value = group_record("g", group)
    assert key == b"\0\2\0\1g"
    assert value is not None
    assert value[:2] == b"\0\3"
    assert decode_key(key) == GroupRecordKey("g")
    assert decode_group(value) == group


@pytest.mark.parametrize("members", [[("a", None), ("a", None)], [("a", "i"), ("b", "i")]])
def test_a_group_in_which_somebody_is_twice_does_not_read(members: list[Any]) -> None:
    """Else a single record that a client wrote would keep its coordinator from being loaded."""
    twice = tuple(
        MemberMetadata(member_id, instance, "c", "/h", 1, 2, b"s", b"t")
        for member_id, instance in members
    )
    group = GroupMetadataValue("consumer", 4, "range", "a", 9, twice)
    _, value = group_record("g", group)
    assert value is not None
    with pytest.raises(WireError, match="a group of 2 members, some of them more than once"):
        decode_group(value)


def test_a_tombstone_has_its_record_s_key() -> None:
    offset = offset_record("g", ORDERS_3, CommittedOffset(1))
    assert offset_tombstone("g", ORDERS_3) == (offset[0], None)
    assert group_tombstone("g") == (b"\0\2\0\1g", None)


def test_keys_of_other_kinds_of_groups_are_passed_over() -> None:
    assert decode_key(b"\0\3\0\1g") is None  # a consumer group of KIP-848


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1\0\1g", b"\0\2\xff\xff"])
def test_a_damaged_key_is_refused(key: bytes) -> None:
    with pytest.raises(WireError):
        decode_key(key)
