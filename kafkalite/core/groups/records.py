"""The records of `__consumer_offsets`: what a group coordinator remembers.                 [P]

    key                                        value
    1  group  topic  partition                 offset, leader epoch, metadata, when    or tombstone
    2  group                                   generation, protocol, leader, members   or tombstone

Keys and values begin with their version (Int16). Values are written in version 3, as Apache Kafka
writes them; an offset with an expiry of its own needs version 1, which knows no leader epoch.

Owns   the bytes of keys and values.
Fails  with WireError; a key of a kind that we do not know (another group type) is no error: None.
Source KIP-211 (expiry), KIP-320 (leader epoch), KIP-345 (group_instance_id);
       `OffsetCommitKey.json`, `OffsetCommitValue.json`, `GroupMetadata{Key,Value}.json`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.protocol.codec import decode_with_version, encode_with_version, read_version
from kafkalite.core.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafkalite.core.types import NO_EPOCH, NO_TIMESTAMP, TopicPartition
from kafkalite.errors import WireError

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3
EXPIRING_VALUE_VERSION: Final = 1


class CommittedOffset(NamedTuple):
    """A group's next offset in a partition. `expire_timestamp_ms` is −1 if retention decides."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int = NO_TIMESTAMP


class OffsetRecordKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    partition: TopicPartition


class GroupRecordKey(NamedTuple):
    """The key of a group."""

    group_id: str


def decode_key(key: bytes) -> OffsetRecordKey | GroupRecordKey | None:
    """The subject of a record; None for a kind that the classic protocol does not have."""
    version = read_version(key)
    if version in (0, OFFSET_KEY_VERSION):
        offset_key = decode_with_version(OffsetCommitKey, key)
        partition = TopicPartition(offset_key.topic, offset_key.partition)
        return OffsetRecordKey(offset_key.group, partition)
    if version == GROUP_KEY_VERSION:
        return GroupRecordKey(decode_with_version(GroupMetadataKey, key).group)
    return None


def decode_offset(value: bytes) -> CommittedOffset:
    """A committed offset's value."""
    found = decode_with_version(OffsetCommitValue, value)
    return CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
    )


def decode_group(value: bytes) -> GroupMetadataValue:
    """A group's value, without a member named twice."""
    found = decode_with_version(GroupMetadataValue, value)
    ids = [member.member_id for member in found.members]
    instances = [m.group_instance_id for m in found.members if m.group_instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise WireError(f"a group of {len(ids)} members, some of them more than once")
    return found


def offset_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> Record:
    """The record that commits an offset."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    expires = committed.expire_timestamp_ms != NO_TIMESTAMP
    version = EXPIRING_VALUE_VERSION if expires else VALUE_VERSION
    return _offset_key(group_id, partition), encode_with_version(value, version)


def offset_tombstone(group_id: str, partition: TopicPartition) -> Record:
    """The record that forgets an offset."""
    return _offset_key(group_id, partition), None


def group_record(group_id: str, value: GroupMetadataValue) -> Record:
    """The record that remembers a group's generation."""
    return _group_key(group_id), encode_with_version(value, VALUE_VERSION)


def group_tombstone(group_id: str) -> Record:
    """The record that forgets a group."""
    return _group_key(group_id), None


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    topic, number = partition
    return encode_with_version(OffsetCommitKey(group_id, topic, number), OFFSET_KEY_VERSION)


def _group_key(group_id: str) -> bytes:
    return encode_with_version(GroupMetadataKey(group_id), GROUP_KEY_VERSION)
