"""The admin client's calls about consumer groups and their offsets.                        [IO]

Owns   nothing.
Fails  with ApiError for the first group or offset refused.
Source KIP-222, KIP-229, KIP-396 (alter offsets), KIP-496 (delete offsets), KIP-518 (states).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafkalite.clients.admin.calls import AdminCalls, raise_for
from kafkalite.clients.consumer.member import (
    OffsetAndMetadata,
    offset_commit_request,
    offset_fetch_request,
    read_committed_offsets,
    refused_offsets,
)
from kafkalite.clients.consumer.membership import GroupMetadata
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkalite.core.protocol.subscriptions import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from kafkalite.core.types import TopicPartition, by_topic
from kafkalite.errors import WireError


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it. The state is empty where the broker is too old."""

    group_id: str
    protocol_type: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member of a group, with a consumer's partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    user_data: bytes = b""  # of its subscription: what its assignor tells the leader


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group: `protocol` is the assignor that it uses."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberInfo, ...]


class GroupCalls(AdminCalls):
    """Groups and the offsets they committed."""

    async def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """The groups in one of `states`, or all, that brokers coordinate; sorted by id."""
        answers = await self._ask_all(
            ListGroupsRequest(states_filter=tuple(states)),
            lambda r: [("the list of groups", r.error_code, None)],
        )
        found = {
            group.group_id: GroupListing(group.group_id, group.protocol_type, group.group_state)
            for answer in answers.values()
            for group in answer.groups
        }
        return [found[group_id] for group_id in sorted(found)]

    async def describe_groups(self, group_ids: Iterable[str]) -> list[GroupInfo]:
        """Members and assignments. A group that does not exist is Dead."""
        described: list[GroupInfo] = []
        for group_id in group_ids:
            response = await self._ask_coordinator(
                group_id,
                DescribeGroupsRequest((group_id,)),
                lambda r: [(f"group {g.group_id}", g.error_code, None) for g in r.groups],
            )
            described += [_group_info(group) for group in response.groups]
        return described

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Forgets groups and their offsets. NON_EMPTY_GROUP while one has members."""
        for group_id in group_ids:
            await self._ask_coordinator(
                group_id,
                DeleteGroupsRequest((group_id,)),
                lambda r: [(f"group {g.group_id}", g.error_code, None) for g in r.results],
                after_breaks=False,  # what is deleted is not found the second time
            )

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All offsets that a group has committed."""

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
            request = offset_fetch_request(group_id, None, stable=False)
            response = await self._client.ask_coordinator(request, group_id)
            return read_committed_offsets(response, group_id)

        return await self._at_coordinator(group_id, attempt)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Sets a group's offsets; UNKNOWN_MEMBER_ID while the group has members."""
        await self._ask_coordinator(
            group_id,
            offset_commit_request(GroupMetadata(group_id), offsets),
            lambda r: [
                (f"group {group_id}, offset of {tp}", code, None)
                for tp, code in refused_offsets(r).items()
            ],
        )

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Forgets offsets. GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""
        topics = tuple(
            OffsetDeleteRequestTopic(t, tuple(map(OffsetDeleteRequestPartition, numbers)))
            for t, numbers in by_topic(partitions).items()
        )
        response = await self._ask_coordinator(
            group_id,
            OffsetDeleteRequest(group_id, topics),
            lambda r: [(f"group {group_id}", r.error_code, None)],
        )
        raise_for(
            (f"group {group_id}, offset of {t.name}-{p.partition_index}", p.error_code, None)
            for t in response.topics
            for p in t.partitions
        )


def _group_info(group: DescribedGroup) -> GroupInfo:
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    return GroupInfo(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(
            GroupMemberInfo(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                decode_assignment(member.member_assignment).partitions if is_consumer else (),
                _user_data(member.member_metadata) if is_consumer else b"",
            )
            for member in group.members
        ),
    )


def _user_data(metadata: bytes) -> bytes:
    """The user data of a subscription; empty if it cannot be decoded."""
    try:
        return decode_subscription(metadata).user_data if metadata else b""
    except WireError:
        return b""
