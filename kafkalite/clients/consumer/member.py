"""Carries a member's part in its group to the coordinator and back.                        [IO]

Joining runs as a task, so that polls stay short; heartbeats run as another for as long as the
member is in the group, whatever the user does between polls.

Owns   the membership, a lane of connections to the coordinator (a join may wait there for
       minutes), the join and the heartbeat task.
Never  calls the user: the consumer applies changes within a poll.
Fails  with ApiError when the group refuses the member for good: from the join's task, or kept in
       `error` when a heartbeat learns of it.
Source KIP-62; apache/kafka `AbstractCoordinator`, `ConsumerCoordinator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from kafkalite.clients.consumer.membership import (
    FIND_COORDINATOR,
    GroupMetadata,
    Membership,
    MemberState,
    Next,
)
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.groups import HeartbeatRequest
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kafkalite.core.protocol.subscriptions import NO_GENERATION
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, TopicPartition, by_topic
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, KafkaliteError

if TYPE_CHECKING:
    from kafkalite.clients.cluster import Client

R = TypeVar("R")

log = logging.getLogger(__name__)

JOIN_MARGIN_MS: Final = 5_000  # a coordinator answers a join when the rebalance times out
LEAVE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset to commit, or committed: the next to read, with a note of the client's own."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class GroupMember:
    """One consumer's seat in its group. `wake` is called when a poll has something to do."""

    def __init__(self, client: Client, membership: Membership, wake: Callable[[], None]) -> None:
        self.membership = membership
        self.error: Exception | None = None
        self.assigned_for: dict[str, int] = {}  # partition counts that the leader last went by
        self._client = client
        self._wake = wake
        self._group_id = membership.config.group_id
        self._lane = client.new_lane("group")
        self._loop = asyncio.get_running_loop()
        self._joining: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._beat_backoff = client.backoff()  # after heartbeats that reached no coordinator
        self.membership.polled(self._now_ms())

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    @property
    def is_joining(self) -> bool:
        """Whether a join is under way, or its end has not been processed yet."""
        return self._joining is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether others may have the member's partitions: the group was silent for a session."""
        membership = self.membership
        is_member = membership.group_metadata.generation_id != NO_GENERATION
        return not is_member or membership.is_session_over(self._now_ms())

    def polled(self) -> None:
        """The user polls. ApiError if the group has refused the member."""
        self.membership.polled(self._now_ms())
        if self.error is not None:
            raise self.error

    async def close(self, reason: str, leaves: bool | None) -> None:
        """Leaves the group (without a word of `leaves`, unless it is a static member), and stops
        all tasks."""
        tasks = [task for task in (self._joining, self._heartbeats) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        leaving = self.membership.leave_request(reason, leaves)
        if leaving is not None:
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._ask(leaving)
            except (KafkaliteError, TimeoutError) as error:
                log.debug("leaving group %s: %s", self._group_id, error)
        self.membership.leave()
        await self._client.close_lane(self._lane)

    # ---- join ----

    def start_join(self) -> None:
        """Begins to join; `wake` is called when `end_join` has something to tell."""
        assert self._joining is None, "a join is under way"
        self._joining = asyncio.create_task(self._join())
        self._joining.add_done_callback(lambda _: self._wake())

    def end_join(self) -> bool:
        """Whether the member has joined a generation. Raises the join's error."""
        if self._joining is None or not self._joining.done():
            return False
        joined, self._joining = self._joining, None
        try:
            joined.result()
        except Exception as error:
            self.error = error  # every later poll says the same
            raise
        return self.membership.state is MemberState.STABLE

    async def _join(self) -> None:
        backoff = self._client.backoff()
        while True:
            try:
                step = await self._join_once()
            except (BrokerUnavailable, ApiError) as error:
                if isinstance(error, ApiError) and not error.error_code.is_retriable:
                    raise
                log.warning("joining group %s: %s", self._group_id, error)
                step = Next.FIND
            if step is Next.DONE:
                break
            if step is Next.FIND:
                self._client.forget_coordinator(self._group_id)
            if step is not Next.JOIN:
                await asyncio.sleep(backoff.failed() / 1000)
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._beat())

    async def _join_once(self) -> Next:
        """One join and, if it goes well, one sync."""
        membership = self.membership
        timeout_ms = membership.config.max_poll_interval_ms + JOIN_MARGIN_MS
        node_id = await self._client.coordinator(self._group_id)
        # That takes time: the request is to be new.
        await self._client.connect(node_id, self._lane)
        joined = await self._ask(membership.join_request(), timeout_ms=timeout_ms)
        step = membership.joined(joined, self._now_ms())
        if step not in (Next.LEAD, Next.SYNC):
            return step
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._beat())
        assignments = None
        if membership.is_leader:
            await self._look_at_topics()
        if step is Next.LEAD:
            assignments = membership.assignor.assign(self.assigned_for, membership.subscriptions)
        if membership.state is not MemberState.SYNCING:
            return Next.DONE
        synced = await self._ask(membership.sync_request(assignments), timeout_ms=timeout_ms)
        return membership.synced(synced, self._now_ms())

    async def _look_at_topics(self) -> None:
        """As the leader, notes the topics behind the assignment. A static leader that came back
        assigns nothing, but notices changes from then on."""
        membership = self.membership
        topics = {topic for s in membership.subscriptions.values() for topic in s.topics}
        if topics:
            await self._client.refresh(topics)
        self.assigned_for = self._client.cluster.partitions_of(topics)
        # A topic that does not exist yet counts as one without partitions: it may come to be.
        self.assigned_for |= dict.fromkeys(topics - self.assigned_for.keys(), 0)

    def check_partitions(self) -> None:
        """As the leader, asks for a rebalance if topics have grown, come or gone."""
        assert not self.is_joining, "the leader is about to look at them itself"
        if not self.membership.is_leader:
            return
        count = self._client.cluster.partition_count
        for topic, before in self.assigned_for.items():
            if count(topic) != before:
                reason = f"topic {topic} has {count(topic)} partitions, it had {before}"
                self.membership.rejoin(reason)
                return

    # ---- heartbeats ----

    async def _beat(self) -> None:
        """Sends what must be sent, when it must, until the group refuses the member."""
        membership = self.membership
        while membership.state is not MemberState.LEFT and self.error is None:
            now_ms = self._now_ms()
            request = membership.beat(now_ms)
            if isinstance(request, HeartbeatRequest):
                await self._heartbeat(request)
            elif request is not None:
                seconds = membership.config.max_poll_interval_ms / 1000
                log.warning(
                    "group %s: no poll for %g s, the member leaves", self._group_id, seconds
                )
                await self._ask_or_log(request)
            pause_ms = membership.config.heartbeat_interval_ms
            if membership.state in (MemberState.SYNCING, MemberState.STABLE):
                pause_ms = max(1, round(membership.next_beat_ms() - self._now_ms()))
            await asyncio.sleep(min(pause_ms, membership.config.heartbeat_interval_ms) / 1000)

    async def _heartbeat(self, request: HeartbeatRequest) -> None:
        membership = self.membership
        try:
            answer = await self._ask(request, timeout_ms=membership.config.session_timeout_ms)
            step = membership.heartbeat_answered(request, answer.error_code, self._now_ms())
        except ApiError as error:
            if not error.error_code.is_retriable:
                self.error = error
                self._wake()
                return
            step = Next.FIND
        except KafkaliteError as error:
            log.warning("heartbeat to group %s: %s", self._group_id, error)
            step = Next.FIND
        if step is Next.FIND:
            membership.beat_again(self._beat_backoff.failed(), self._now_ms())
        else:
            self._beat_backoff.succeeded()
        if step is Next.FIND or membership.is_session_over(self._now_ms()):
            self._client.forget_coordinator(self._group_id)
        if membership.rejoin_needed:
            self._wake()

    async def confirm(self) -> None:
        """Asks the group whether the member still belongs to it, where that is in doubt: after a
        pause longer than the session others may do its work. ApiError where it does not."""
        membership = self.membership
        if membership.group_metadata.generation_id == NO_GENERATION:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self._group_id}: no member of it")
        if membership.is_session_over(self._now_ms()):
            await self._client.retrying(f"group {self._group_id}", self._confirm_once)

    async def _confirm_once(self) -> None:
        membership = self.membership
        request = membership.heartbeat_request()
        answer = await self._ask(request, timeout_ms=membership.config.session_timeout_ms)
        code = answer.error_code
        if membership.heartbeat_answered(request, code, self._now_ms()) is Next.FIND:
            self._client.forget_coordinator(self._group_id)
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._wake()
            raise ApiError(code, f"group {self._group_id}: a member that was silent for too long")

    async def _ask_or_log(self, request: Request[R]) -> None:
        try:
            await self._ask(request)
        except KafkaliteError as error:
            log.debug("group %s: %s", self._group_id, error)

    async def _ask(self, request: Request[R], timeout_ms: int | None = None) -> R:
        return await self._client.ask_coordinator(
            request, self._group_id, lane=self._lane, timeout_ms=timeout_ms
        )

    # ---- offsets ----

    async def commit(self, offsets: Offsets) -> None:
        """Commits offsets as the member that it is now.

        ApiError, naming a partition, when the coordinator refuses; REBALANCE_IN_PROGRESS,
        UNKNOWN_MEMBER_ID and ILLEGAL_GENERATION mean that the group goes on without these offsets.
        """
        if offsets:
            await self._client.retrying(
                f"offsets of group {self._group_id}", lambda: self._commit_once(offsets)
            )

    async def _commit_once(self, offsets: Offsets) -> None:
        identity = self.membership.group_metadata
        response = await self._ask(offset_commit_request(identity, offsets))
        for tp, code in refused_offsets(response).items():
            self._refused(tp, code, identity)

    def _refused(self, tp: TopicPartition, code: ErrorCode, identity: GroupMetadata) -> None:
        if code in FIND_COORDINATOR:
            self._client.forget_coordinator(self._group_id)
        else:
            self.membership.commit_refused(identity, code, self._now_ms())
            self._wake()
        raise ApiError(code, f"group {self._group_id} does not take the offset of {tp}")

    async def committed(self, partitions: Iterable[TopicPartition], *, stable: bool) -> Offsets:
        """The committed offsets of the group, without partitions that have none.

        With `stable` offsets that an open transaction may yet change are waited for.
        """
        wanted = sorted(set(partitions))
        if not wanted:
            return {}
        return await self._client.retrying(
            f"offsets of group {self._group_id}", lambda: self._committed_once(wanted, stable)
        )

    async def _committed_once(self, wanted: Sequence[TopicPartition], stable: bool) -> Offsets:
        response = await self._ask(offset_fetch_request(self._group_id, wanted, stable=stable))
        try:
            return read_committed_offsets(response, self._group_id)
        except ApiError as error:
            if error.error_code in FIND_COORDINATOR:
                self._client.forget_coordinator(self._group_id)
            raise


def offsets_to_commit(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets as users give them, with metadata or without. ValueError for a negative one."""
    wanted = {
        tp: at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
        for tp, at in offsets.items()
    }
    for tp, at in wanted.items():
        if at.offset < 0:
            raise ValueError(f"{tp}: offset {at.offset} is negative")
    return wanted


def offset_commit_request(identity: GroupMetadata, offsets: Offsets) -> OffsetCommitRequest:
    """Commits offsets as a member, or from outside the group with the group's id alone."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for tp, committed in offsets.items():
        topics.setdefault(tp.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=identity.group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id if identity.member_id else None,
        topics=tuple(OffsetCommitRequestTopic(t, tuple(ps)) for t, ps in topics.items()),
    )


def refused_offsets(response: OffsetCommitResponse) -> dict[TopicPartition, ErrorCode]:
    """The partitions whose offsets were not committed, and why."""
    return {
        TopicPartition(topic.name, told.partition_index): told.error_code
        for topic in response.topics
        for told in topic.partitions
        if told.error_code is not ErrorCode.NONE
    }


def offset_fetch_request(
    group_id: str, wanted: Sequence[TopicPartition] | None, *, stable: bool
) -> OffsetFetchRequest:
    """Asks for a group's offsets, in a shape that fits every version; None asks for all."""
    topics = by_topic(wanted or ())
    old = tuple(OffsetFetchRequestTopic(t, tuple(ps)) for t, ps in topics.items())
    new = tuple(OffsetFetchRequestTopics(t, tuple(ps)) for t, ps in topics.items())
    return OffsetFetchRequest(
        group_id=group_id,
        topics=None if wanted is None else old,
        groups=(OffsetFetchRequestGroup(group_id, topics=None if wanted is None else new),),
        require_stable=stable,
    )


def read_committed_offsets(
    response: OffsetFetchResponse, group_id: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets in an answer of any version. ApiError for the first one refused."""
    answer = response.groups[0] if response.groups else response
    if answer.error_code is not ErrorCode.NONE:
        raise ApiError(answer.error_code, f"offsets of group {group_id}")
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in answer.topics:
        for told in topic.partitions:
            tp = TopicPartition(topic.name, told.partition_index)
            if told.error_code is not ErrorCode.NONE:
                raise ApiError(told.error_code, f"group {group_id}, offset of {tp}")
            if told.committed_offset != NO_OFFSET:
                offsets[tp] = OffsetAndMetadata(
                    told.committed_offset, told.committed_leader_epoch, told.metadata or ""
                )
    return offsets
