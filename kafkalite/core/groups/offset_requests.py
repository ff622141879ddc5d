"""What OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete come to.                [P]

Members commit in their generation. Whoever is no member (generation −1, no member id) may commit
while the group has none. A transaction's commits need no member: versions 0 to 2 cannot name one.

Owns   who may commit for a group.
Never  writes an offset: it asks for records, whose replay does.
Fails  with an error code, per partition where the response has room for it.
Source KIP-211, KIP-320, KIP-447 (transactional commits name their member), KIP-496 (OffsetDelete),
       KIP-709 (several groups at once); apache/kafka `OffsetMetadataManager`, `ClassicGroup`.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.coordinators.machine import AppendInTransaction, Step
from kafkalite.core.groups.group import COMPLETING_REBALANCE, EMPTY, Group
from kafkalite.core.groups.offsets import Offsets
from kafkalite.core.groups.rebalance import Rebalances
from kafkalite.core.groups.records import CommittedOffset
from kafkalite.core.protocol.groups import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kafkalite.core.protocol.subscriptions import PROTOCOL_TYPE
from kafkalite.core.protocol.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kafkalite.core.types import NO_OFFSET, NO_TIMESTAMP, RequestContext, TopicPartition, by_topic
from kafkalite.errors import ErrorCode

NO_RETENTION_TIME: Final = -1  # OffsetCommit: the broker's retention rules
TIMESTAMP_MAX_MS: Final = 2**63 - 1
GROUPS_SINCE: Final = 8  # OffsetFetch
GROUP_ID_NOT_FOUND_SINCE: Final = 9  # OffsetCommit

NOTHING_COMMITTED: Final = CommittedOffset(NO_OFFSET)


class OffsetRequests:
    """The requests about offsets. Each adds its results to a `Step`."""

    def __init__(self, rebalances: Rebalances, offsets: Offsets) -> None:
        self._groups = rebalances.groups
        self._rebalances = rebalances
        self._offsets = offsets

    # -- OffsetCommit, TxnOffsetCommit

    def commit(self, request: OffsetCommitRequest, context: RequestContext, step: Step) -> None:
        """Commits offsets; the answer follows their records."""
        group = self._committing_group(request, context)
        expires_ms = _expiry_ms(request.retention_time_ms, step.now.wall_ms)
        topics = []
        for topic in request.topics:
            partitions = []
            for p in topic.partitions:
                made_ms = (
                    step.now.wall_ms if p.commit_timestamp == NO_TIMESTAMP else p.commit_timestamp
                )
                offset = CommittedOffset(
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.committed_metadata or "",
                    made_ms,
                    expires_ms,
                )
                error = self._commit_one(group, topic.name, p.partition_index, offset, step)
                partitions.append(OffsetCommitResponsePartition(p.partition_index, error))
            topics.append(OffsetCommitResponseTopic(topic.name, tuple(partitions)))
        step.reply(context.token, OffsetCommitResponse(topics=tuple(topics)))
        if isinstance(group, Group):
            self._keep_alive(group, request.member_id, step)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, context: RequestContext, step: Step
    ) -> None:
        """Commits offsets that count once the transaction's marker says so."""
        group = self._group_committing_in_transaction(request)
        topics = []
        for topic in request.topics:
            partitions = []
            for p in topic.partitions:
                offset = CommittedOffset(
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.committed_metadata or "",
                    step.now.wall_ms,
                )
                error = self._commit_one(group, topic.name, p.partition_index, offset, step)
                partitions.append(TxnOffsetCommitResponsePartition(p.partition_index, error))
            topics.append(TxnOffsetCommitResponseTopic(topic.name, tuple(partitions)))
        step.reply(context.token, TxnOffsetCommitResponse(topics=tuple(topics)))
        if step.records:
            step.effects.append(
                AppendInTransaction(
                    request.transactional_id, request.producer_id, request.producer_epoch
                )
            )
        elif isinstance(group, Group):
            self._rebalances.forget_if_vacant(group)

    def _committing_group(
        self, request: OffsetCommitRequest, context: RequestContext
    ) -> Group | ErrorCode:
        """The group, if the request may commit for it."""
        generation_id = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is None and generation_id >= 0:
            by_name = context.api_version >= GROUP_ID_NOT_FOUND_SINCE
            return ErrorCode.GROUP_ID_NOT_FOUND if by_name else ErrorCode.ILLEGAL_GENERATION
        group = group or self._rebalances.get_or_create(request.group_id)
        if group is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and group.state is EMPTY:
            return group
        if generation_id < 0 and not request.member_id and request.group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _not_in_generation(
            group, request.member_id, request.group_instance_id, generation_id
        )
        if error is ErrorCode.ILLEGAL_GENERATION:
            return group.wrong_generation
        if error:
            return error
        # the member knows this generation, but not yet what it is to read in it
        rebalances = group.state is COMPLETING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if rebalances else group

    def _group_committing_in_transaction(
        self, request: TxnOffsetCommitRequest
    ) -> Group | ErrorCode:
        """The group, if the request may commit for it; its state does not matter here."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(request.group_id)
        if group is None and request.generation_id >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        group = group or self._rebalances.get_or_create(request.group_id)
        if group is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        names_member = request.member_id or request.group_instance_id is not None
        if request.generation_id < 0 and (group.state is EMPTY or not names_member):
            return group
        error = _not_in_generation(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        return error or group

    def _commit_one(
        self,
        group: Group | ErrorCode,
        topic: str,
        number: int,
        offset: CommittedOffset,
        step: Step,
    ) -> ErrorCode:
        if isinstance(group, ErrorCode):
            return group
        record = self._offsets.commit(group.group_id, TopicPartition(topic, number), offset)
        if isinstance(record, ErrorCode):
            return record
        step.append(record)
        return ErrorCode.NONE

    def _keep_alive(self, group: Group, member_id: str, step: Step) -> None:
        """A commit counts as a heartbeat; a group created for failed commits goes."""
        if (member := group.members.get(member_id)) is not None:
            self._rebalances.expect_heartbeat(group, member, step.now.monotonic_ms)
        self._rebalances.forget_if_vacant(group)

    # -- OffsetFetch

    def fetch(self, request: OffsetFetchRequest, context: RequestContext, step: Step) -> None:
        """Answers with offsets as they are committed now."""
        if context.api_version < GROUPS_SINCE:
            step.reply(context.token, self._fetch_one_group(request))
            return
        groups = []
        for group in request.groups:
            topics = []
            for name, numbers in self._wanted(group.group_id, group.topics).items():
                partitions = tuple(
                    OffsetFetchResponsePartitions(
                        n, found.offset, found.leader_epoch, found.metadata, error
                    )
                    for n, found, error in self._look_up(group.group_id, name, numbers, request)
                )
                topics.append(OffsetFetchResponseTopics(name, partitions))
            groups.append(OffsetFetchResponseGroup(group.group_id, tuple(topics)))
        step.reply(context.token, OffsetFetchResponse(groups=tuple(groups)))

    def _fetch_one_group(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        topics = []
        for name, numbers in self._wanted(request.group_id, request.topics).items():
            partitions = tuple(
                OffsetFetchResponsePartition(
                    n, found.offset, found.leader_epoch, found.metadata, error
                )
                for n, found, error in self._look_up(request.group_id, name, numbers, request)
            )
            topics.append(OffsetFetchResponseTopic(name, partitions))
        return OffsetFetchResponse(topics=tuple(topics))

    def _wanted(
        self,
        group_id: str,
        topics: tuple[OffsetFetchRequestTopic, ...] | tuple[OffsetFetchRequestTopics, ...] | None,
    ) -> dict[str, list[int]]:
        """Partition numbers by topic; null topics are all that the group has committed."""
        if topics is None:
            return by_topic(self._offsets.committed(group_id))
        return by_topic(TopicPartition(t.name, n) for t in topics for n in t.partition_indexes)

    def _look_up(
        self, group_id: str, topic: str, numbers: list[int], request: OffsetFetchRequest
    ) -> list[tuple[int, CommittedOffset, ErrorCode]]:
        """Each partition's offset, and whether it may not be used because it is about to change."""
        found = []
        for number in numbers:
            partition = TopicPartition(topic, number)
            if request.require_stable and self._offsets.is_unstable(group_id, partition):
                found.append((number, NOTHING_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                offset = self._offsets.fetch(group_id, partition) or NOTHING_COMMITTED
                found.append((number, offset, ErrorCode.NONE))
        return found

    # -- OffsetDelete

    def delete(self, request: OffsetDeleteRequest, context: RequestContext, step: Step) -> None:
        """Forgets offsets, except those of topics that the group's members read."""
        error = self._why_not_delete(request.group_id)
        if error:
            step.reply(context.token, OffsetDeleteResponse(error_code=error))
            return
        group = self._groups[request.group_id]
        gone: set[TopicPartition] = set()
        topics = []
        for topic in request.topics:
            read = group.is_subscribed(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if read else ErrorCode.NONE
            if not read:
                gone.update(TopicPartition(topic.name, p.partition_index) for p in topic.partitions)
            partitions = (
                OffsetDeleteResponsePartition(p.partition_index, code) for p in topic.partitions
            )
            topics.append(OffsetDeleteResponseTopic(topic.name, tuple(partitions)))
        step.append(*self._offsets.forget(request.group_id, gone.__contains__))
        step.reply(context.token, OffsetDeleteResponse(topics=tuple(topics)))

    def _why_not_delete(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not EMPTY and group.protocol_type != PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE


def _expiry_ms(retention_time_ms: int, wall_ms: int) -> int:
    """When offsets with a retention of their own go; −1 for those without."""
    if retention_time_ms == NO_RETENTION_TIME:
        return NO_TIMESTAMP
    return min(wall_ms + max(retention_time_ms, 0), TIMESTAMP_MAX_MS)


def _not_in_generation(
    group: Group, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    """Why a commit does not come from a member of the current generation; NONE if it does."""
    member = group.find(member_id, group_instance_id)
    if isinstance(member, ErrorCode):
        return member
    current = generation_id == group.generation_id
    return ErrorCode.NONE if current else ErrorCode.ILLEGAL_GENERATION
