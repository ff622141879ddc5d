"""The coordinator of the groups of one `__consumer_offsets` partition.                     [P]

How the runtime drives it is drawn in `machine`.

Everything that a group must survive a restart with is a record, and `replay` alone writes it; what
it writes may make something due, so ask for `next_deadline_ms` after every call.

Owns   the groups and offsets of one partition, and when offsets expire.
Never  reads a clock, writes a log or answers a socket; asks randomness only of the `Random` it got.
Fails  with error codes in responses; `replay` with WireError on a record that is none.
Source KIP-211 (expiry); apache/kafka `GroupCoordinatorShard`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any, Final

from kafkalite.core.coordinators.append_errors import with_append_error
from kafkalite.core.coordinators.deadlines import Deadlines
from kafkalite.core.coordinators.machine import Record, Step
from kafkalite.core.groups.admin import Description, GroupAdmin
from kafkalite.core.groups.group import EMPTY, STABLE, Group, GroupConfig
from kafkalite.core.groups.membership import Membership
from kafkalite.core.groups.offset_requests import OffsetRequests
from kafkalite.core.groups.offsets import Offsets, OffsetsConfig
from kafkalite.core.groups.rebalance import Rebalances
from kafkalite.core.groups.records import (
    GroupRecordKey,
    decode_group,
    decode_key,
    decode_offset,
    group_tombstone,
)
from kafkalite.core.protocol.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
from kafkalite.core.protocol.offsets import OffsetCommitRequest, OffsetFetchRequest
from kafkalite.core.protocol.transactions import TxnOffsetCommitRequest
from kafkalite.core.types import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    NOTHING,
    Now,
    Outcome,
    Reply,
    RequestContext,
    TopicPartition,
)
from kafkalite.errors import ErrorCode

DEFAULT_GROUP_CONFIG: Final = GroupConfig()
DEFAULT_OFFSETS_CONFIG: Final = OffsetsConfig()


class GroupCoordinator:
    """The machine of one `__consumer_offsets` partition."""

    only_last_counts = False  # an offset in a transaction leaves the one before it in force

    def __init__(
        self,
        random: Random,
        config: GroupConfig = DEFAULT_GROUP_CONFIG,
        offsets_config: OffsetsConfig = DEFAULT_OFFSETS_CONFIG,
    ) -> None:
        self._check_interval_ms = offsets_config.offsets_retention_check_interval_ms
        self._offsets = Offsets(offsets_config)
        self._rebalances = Rebalances(config, self._offsets.has_any)
        self._membership = Membership(self._rebalances, config, random)
        self._groups = self._rebalances.groups
        self._expiry: Deadlines[str] = Deadlines()  # group id -> when to look at its offsets
        requests = OffsetRequests(self._rebalances, self._offsets)
        admin = GroupAdmin(self._rebalances, self._offsets)
        self._handlers: dict[type, Callable[[Any, RequestContext, Step], None]] = {
            JoinGroupRequest: self._membership.join,
            SyncGroupRequest: self._membership.sync,
            LeaveGroupRequest: self._membership.leave,
            OffsetCommitRequest: requests.commit,
            TxnOffsetCommitRequest: requests.commit_in_transaction,
            OffsetFetchRequest: requests.fetch,
            OffsetDeleteRequest: requests.delete,
            DescribeGroupsRequest: admin.describe,
            ListGroupsRequest: admin.list,
            DeleteGroupsRequest: admin.delete,
        }

    # -- requests

    def handle(self, request: Any, context: RequestContext, now: Now) -> Outcome[Record]:
        """The outcome of a request. A later step may answer JoinGroup and SyncGroup.

        A request about several groups concerns those of this partition: the rim splits it.
        Raises TypeError for a request that is not about groups or their offsets.
        """
        if type(request) is HeartbeatRequest:
            response = self._membership.heartbeat(request, now.monotonic_ms)
            return Outcome(replies=(Reply(context.token, response),))
        handler = self._handlers.get(type(request))
        if handler is None:
            raise TypeError(f"{type(request).__name__} is no request to a group coordinator")
        step = Step(now)
        handler(request, context, step)
        return step.outcome()

    def topics_deleted(self, names: Collection[str], now: Now) -> Outcome[Record]:
        """Forgets what groups committed in topics that are gone."""
        gone = frozenset(names)
        step = Step(now)
        for group_id in self._offsets.group_ids():
            step.append(*self._offsets.forget(group_id, lambda p: p.topic in gone))
        return step.outcome()

    # -- for whoever watches

    def committing(self) -> list[str]:
        """Groups that have committed offsets."""
        return self._offsets.committing()

    def committed_offsets(self, group_id: str) -> tuple[list[TopicPartition], list[int]]:
        """How far a group has read: partitions, in no order, and their offsets."""
        return self._offsets.committed_offsets(group_id)

    def committed_count(self, group_id: str) -> int:
        """How many partitions a group has committed offsets for."""
        return self._offsets.committed_count(group_id)

    def member_count(self, group_id: str) -> int:
        """How many members a group has."""
        group = self._groups.get(group_id)
        return 0 if group is None else len(group.members)

    def description(self, group_id: str) -> Description:
        """A group as it is now, whose members are described one by one."""
        return Description(group_id, self._groups.get(group_id))

    # -- time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, or a little before; None while nothing can fall due."""
        deadlines = (self._rebalances.next_deadline_ms(), self._expiry.next_ms())
        return min((ms for ms in deadlines if ms is not None), default=None)

    def tick(self, now: Now) -> Outcome[Record]:
        """Runs due sessions and rebalances. Expiry runs only in a step without replies: a reply
        must not fail because of records that have nothing to do with it."""
        step = Step(now)
        self._rebalances.tick(step)
        if step.replies:
            return step.outcome()
        for group_id in self._expiry.due(now.monotonic_ms):
            group = self._groups.get(group_id)
            if group is not None:
                self._expire(group, step)
        return step.outcome()

    def _expire(self, group: Group, step: Step) -> None:
        """Forgets expired offsets, and the group if it is empty then."""
        gone, next_ms = self._expired(group, step.now.retention_ms)
        idle = group.state is EMPTY and not group.pending_members
        if idle and self._offsets.has_only(group.group_id, gone):
            step.append(*self._offsets.forget(group.group_id), group_tombstone(group.group_id))
            group.records_in_flight += 1
        elif gone:
            step.append(*self._offsets.forget(group.group_id, gone.__contains__))
        self._expiry.set(group.group_id, self._look_ms(step.now, next_ms))

    def _expired(self, group: Group, retention_ms: int) -> tuple[set[TopicPartition], int | None]:
        """Expired partitions, and the time of the next expiry.

        Retention begins when a group becomes empty; with each commit where there never were
        members, or where members no longer read the topic. While members rebalance, who knows.
        """
        since_ms: int | None = None
        if group.protocol_type is not None:
            if group.state is EMPTY and group.state_timestamp_ms != NO_TIMESTAMP:
                since_ms = group.state_timestamp_ms
            elif group.state is not EMPTY and (group.state is not STABLE or group.topics is None):
                return set(), None
        return self._offsets.expired(
            group.group_id, retention_ms, retained_since_ms=since_ms, is_read=group.is_subscribed
        )

    def _look_ms(self, now: Now, expires_ms: int | None) -> int:
        """When to look at a group's offsets, by the monotonic clock: once something may have
        expired, but not all the time."""
        left_ms = 0 if expires_ms is None else expires_ms - now.retention_ms
        return now.monotonic_ms + max(self._check_interval_ms, left_ms)

    def _expire_later(self, group_id: str, now: Now, expires_ms: int | None = None) -> None:
        """Looks at the group's offsets in time, and no later than is planned."""
        look_ms = self._look_ms(now, expires_ms)
        planned_ms = self._expiry.time(group_id)
        if planned_ms is None or look_ms < planned_ms:
            self._expiry.set(group_id, look_ms)

    # -- the log

    def replay(
        self, key: bytes, value: bytes | None, now: Now, *, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Notes one record of the log, of this coordinator or of one before it.

        `producer_id` is that of a record in a transactional batch, −1 in any other.
        """
        kind = decode_key(key)
        if kind is None:
            return
        if isinstance(kind, GroupRecordKey):
            self._replay_group(kind.group_id, value, now)
        else:
            self._replay_offset(*kind, value, now, producer_id)
        if kind.group_id not in self._groups:
            self._expiry.cancel(kind.group_id)

    def _replay_group(self, group_id: str, value: bytes | None, now: Now) -> None:
        stored = None if value is None else self._rebalances.read(group_id, value)
        self._rebalances.replay(group_id, stored, now)
        if stored is not None and not stored.members:
            self._expire_later(group_id, now)

    def _replay_offset(
        self,
        group_id: str,
        partition: TopicPartition,
        value: bytes | None,
        now: Now,
        producer_id: int,
    ) -> None:
        offset = None if value is None else decode_offset(value)
        self._offsets.replay(group_id, partition, offset, producer_id)
        if offset is not None:
            self._rebalances.keep(group_id)
            expires_ms = offset.expire_timestamp_ms
            self._expire_later(group_id, now, None if expires_ms == NO_TIMESTAMP else expires_ms)
        elif (group := self._groups.get(group_id)) is not None:
            self._rebalances.forget_if_vacant(group)

    def complete_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Notes a transaction's marker, in the log's order with the records.

        The marker may be of a newer epoch than the offsets: then the producer was fenced.
        """
        for group_id in self._offsets.complete_transaction(producer_id, commit=commit):
            if (group := self._groups.get(group_id)) is not None:
                self._rebalances.forget_if_vacant(group)

    def loaded(self, now: Now) -> Outcome[Record]:
        """The whole log has been replayed: from now on members have their full time."""
        for group in self._groups.values():
            self._rebalances.renew_deadlines(group, now.monotonic_ms)
        return NOTHING

    def append_failed(
        self, outcome: Outcome[Record], error: ErrorCode, now: Now
    ) -> Outcome[Record]:
        """The replies in the place of `outcome`, whose records did not get into the log."""
        step = Step(now)
        for reply in outcome.replies:
            step.reply(reply.token, with_append_error(reply.response, error))
        for key, value in outcome.records:
            kind = decode_key(key)
            assert kind is not None, f"{key!r} is no key of ours"
            if isinstance(kind, GroupRecordKey):
                group_value = None if value is None else decode_group(value)
                self._rebalances.append_failed(kind.group_id, group_value, step)
            else:
                self._offsets.not_written(kind.group_id, kind.partition)
            if (group := self._groups.get(kind.group_id)) is not None:
                self._rebalances.forget_if_vacant(group)
        return step.outcome()

    def resign(self, now: Now) -> Outcome[Record]:
        """Answers all waiting requests. The machine is of no use afterwards."""
        step = Step(now)
        self._rebalances.resign(step)
        return step.outcome()
