"""The consumer: columns of records out of topics, alone or as a member of a group.         [IO]

    async with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        while True:
            for partition, columns in (await consumer.poll(1_000)).items():
                handle(columns.keys, columns.values)

All that concerns the user happens within `poll`: callbacks, positions, automatic commits.
Heartbeats and the next fetches continue between polls.

Owns   the order of events in a poll; the fetcher, and with a group id the member and its commits.
Never  moves a position past records that the user has not been given.
Fails  from `poll` with ApiError or CorruptBatchError naming the partition, and with ApiError when
       the group refuses the member for good. A broker out of reach is waited for.
Source KIP-62, KIP-320, KIP-345, KIP-429; apache/kafka `KafkaConsumer`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kafkalite.clients.cluster import Client, client_of
from kafkalite.clients.consumer.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from kafkalite.clients.consumer.commits import Commits
from kafkalite.clients.consumer.fetcher import Fetcher, OffsetAndTimestamp
from kafkalite.clients.consumer.member import (
    GroupMember,
    OffsetAndMetadata,
    Offsets,
    offsets_to_commit,
)
from kafkalite.clients.consumer.membership import (
    GroupMetadata,
    MemberConfig,
    Membership,
    MemberState,
)
from kafkalite.clients.consumer.positions import EARLIEST, LATEST, FetchSettings, Positions, Stage
from kafkalite.clients.lifetime import Lifetime
from kafkalite.clients.metadata import Cluster
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, Columns, TopicPartition
from kafkalite.errors import ConfigError

__all__ = [
    "Consumer",
    "GroupMetadata",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Offsets",
]

log = logging.getLogger(__name__)

Partitions = tuple[TopicPartition, ...]
Callback = Callable[[Partitions], Awaitable[None] | None]

RESETS: Final[Mapping[str, int | None]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
ISOLATION_LEVELS: Final = {"read_uncommitted": False, "read_committed": True}
MISSING_TOPIC_MS: Final = 1_000  # how often a subscribed topic that does not exist is looked for
IDLE_SECONDS: Final = 1.0
ITERATION_MS: Final = 60_000  # how long an iteration waits in one poll
CLOSE_COMMIT_SECONDS: Final = 5.0
SHORTEST_WAIT_SECONDS: Final = 0.001


@dataclass(slots=True)
class Listener:
    """The user's callbacks. `on_lost` defaults to `on_revoked`."""

    on_revoked: Callback | None = None
    on_assigned: Callback | None = None
    on_lost: Callback | None = None

    async def revoked(self, partitions: Partitions) -> None:
        """Partitions that are about to go to another member."""
        if partitions:
            await _call(self.on_revoked, partitions)

    async def assigned(self, partitions: Partitions) -> None:
        """This member's new partitions; called also without any, as in Kafka."""
        await _call(self.on_assigned, partitions)

    async def lost(self, partitions: Partitions) -> None:
        """Partitions that another member may be reading already."""
        if partitions:
            await _call(self.on_lost or self.on_revoked, partitions)


async def _call(callback: Callback | None, partitions: Partitions) -> None:
    if callback is not None:
        result = callback(partitions)
        if inspect.isawaitable(result):
            await result


class Consumer(Lifetime):
    """Reads topics. Use it as an async context manager; leaving it leaves the group.

    `client` is a Client to share, or bootstrap servers. `auto_offset_reset` says where to begin
    without a committed offset: "latest", "earliest", or "none" (an error). With a group id offsets
    are committed every `auto_commit_interval_ms` by `poll`, for the records of earlier polls,
    unless `enable_auto_commit` is False. `records_max` bounds a poll's records. Times are in ms. In
    `client_rack` the cluster may let the consumer read followers.
    With `as_forms` columns of many records are sequences that make an object of a record when it
    is looked at: `columns.to_arrow()` then costs a copy of the bytes, and no object a record.

        import asyncio
        from kafkalite.clients import Consumer

        async def main() -> None:
            async with Consumer(
                "127.0.0.1:9092", group_id="billing", auto_offset_reset="earliest"
            ) as consumer:
                consumer.subscribe(["orders"])
                async for partition, columns in consumer:
                    for key, value in zip(columns.keys, columns.values):
                        print(partition, key, value)
                    if b"shipped" in columns.values:
                        break

        asyncio.run(main())
    """

    def __init__(
        self,
        client: Client | str | Sequence[str],
        *,
        client_id: str = "kafkalite-consumer",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        auto_offset_reset: Literal["latest", "earliest", "none"] = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        assignors: Sequence[Assignor] = (RANGE, COOPERATIVE_STICKY),
        records_max: int | None = None,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        fetch_max_wait_ms: int = 500,
        check_crcs: bool = True,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        allow_auto_create_topics: bool = True,
        as_forms: bool = False,
        client_rack: str = "",
    ) -> None:
        _check_choice("auto_offset_reset", auto_offset_reset, RESETS)
        _check_choice("isolation_level", isolation_level, ISOLATION_LEVELS)
        if records_max is not None and records_max < 1:
            raise ConfigError(f"records_max is {records_max}, less than 1")
        if group_instance_id is not None and group_id is None:
            raise ConfigError(f"group_instance_id is {group_instance_id!r} without a group_id")
        self._client, self._owns_client = client_of(client, client_id)
        self._settings = FetchSettings(
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            auto_offset_reset=RESETS[auto_offset_reset],
            read_committed=ISOLATION_LEVELS[isolation_level],
            check_crcs=check_crcs,
            as_forms=as_forms,
            client_rack=client_rack,
            preferred_max_age_ms=self._client.timing.metadata_max_age_ms,
        )
        self._positions = Positions(self._settings, self._client.random)
        self._membership: Membership | None = None
        if group_id is not None:
            config = MemberConfig(
                group_id,
                group_instance_id,
                session_timeout_ms,
                heartbeat_interval_ms,
                max_poll_interval_ms,
            )
            _check_heartbeats(config)
            self._membership = Membership(config, assignors)
        self._records_max = records_max
        self._auto_commit_ms = auto_commit_interval_ms if enable_auto_commit and group_id else None
        self._create_topics = allow_auto_create_topics
        self._listener = Listener()
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._begin()

    def _begin(self) -> None:
        """The state of a consumer that changes during its life."""
        self._fetcher: Fetcher | None = None
        self._group: GroupMember | None = None
        self._commits: Commits | None = None  # there is one where there is a group
        self._is_polling = self._is_woken = self._closed = False
        self._knows_topics = True  # False until a pattern has been matched for the first time
        self._given: dict[TopicPartition, int] = {}  # positions after the last poll
        self._cluster_applied: Cluster | None = None  # the metadata that the group last went by
        self._refreshing: asyncio.Task[None] | None = None
        self._look_for_topics_at = 0.0  # in the loop's time, as the next one
        self._refresh_at = 0.0

    async def start(self) -> None:
        """Finds the cluster. A group is joined by the first poll."""
        self._loop = asyncio.get_running_loop()
        await self._client.start()  # a client of our own closes itself when it fails
        self._refresh_at = self._loop.time() + self._client.timing.metadata_max_age_ms / 1000
        self._fetcher = Fetcher(self._client, self._positions)
        if self._membership is not None:
            wake = self._fetcher.wake
            self._group = GroupMember(self._client, self._membership, wake)
            self._commits = Commits(self._group, self._positions, wake, self._auto_commit_ms)

    async def close(self, *, leave_group: bool | None = None) -> None:
        """Commits if that is automatic, gives partitions up, leaves the group, disconnects.

        A static member stays in its group for the rest of its session, and other members leave.
        `leave_group` says it otherwise. Leaving the context manager is a close without it.
        """
        if self._closed or self._fetcher is None:
            return
        self._closed = True
        self._fetcher.wake()  # a poll in another task ends
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._commits is not None:
            await self._commits.close()
        try:
            await self._give_up_all()
        finally:
            if self._group is not None:
                await self._group.close("the consumer was closed", leave_group)
            await self._fetcher.close()
            if self._owns_client:
                await self._client.close()

    async def _give_up_all(self) -> None:
        if self._group is not None and self._commits is not None and self._is_subscribed:
            try:
                async with asyncio.timeout(CLOSE_COMMIT_SECONDS):
                    await self._commits.before_revoke()
            except TimeoutError:
                log.warning("closing: no coordinator took the last offsets")
            await self._listener.lost(self._group.membership.take_lost())
            await self._listener.revoked(tuple(sorted(self._group.membership.owned)))

    # ---- what to read ----

    @property
    def _is_subscribed(self) -> bool:
        return bool(self._topics) or self._pattern is not None

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_revoked: Callback | None = None,
        on_assigned: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Reads these topics, or all whose whole name matches, shared with the rest of the group.

        The callbacks get the partitions concerned, run within `poll`, and may be coroutines. A
        partition is lost, and not revoked, when the group went on without this member; without
        `on_lost`, `on_revoked` is called then as well. ConfigError without a group id.
        """
        if self._membership is None:
            raise ConfigError("subscribe needs a group_id; assign does not")
        self._check_not_closed()
        if not self._is_subscribed and self._positions.assigned:
            raise ConfigError("partitions are assigned already; a consumer does one or the other")
        self._listener = Listener(on_revoked, on_assigned, on_lost)
        self._look_for_topics_at = 0.0
        self._knows_topics = not isinstance(topics, re.Pattern)
        if isinstance(topics, re.Pattern):
            self._pattern, self._topics = topics, ()
            return
        self._pattern = None
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._membership.subscribe(self._topics)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, without a group. Kept partitions keep their position."""
        self._check_not_closed()
        if self._is_subscribed:
            raise ConfigError("topics are subscribed to; a consumer does one or the other")
        self._positions.assign(partitions)
        if self._membership is None:
            for tp in self._positions.awaiting_committed():
                self._positions.committed(tp, NO_OFFSET, NO_EPOCH)

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer reads now."""
        return self._positions.assigned

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """The next poll gives the record at `offset`, or the first one after it."""
        at = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if at.offset < 0:
            raise ValueError(f"{partition}: offset {at.offset} is negative")
        self._positions[partition].seek(at.offset, at.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition]) -> None:
        """The next poll gives the first records there are."""
        for tp in partitions:
            self._positions[tp].reset(EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition]) -> None:
        """The next poll gives records that come from now on."""
        for tp in partitions:
            self._positions[tp].reset(LATEST)

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset a poll gives; None until it is known."""
        place = self._positions[partition]
        known = place.stage is Stage.FETCHING and place.position != NO_OFFSET
        return place.position if known else None

    def lag(self, partition: TopicPartition) -> int | None:
        """The offsets up to the end of the partition in the last fetch; None before a fetch."""
        place = self._positions[partition]
        end = place.last_stable_offset if self._settings.read_committed else place.high_watermark
        if end == NO_OFFSET or place.stage is not Stage.FETCHING:
            return None
        return max(0, end - place.position)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls return no records of these until `resume`; fetched records are kept."""
        for tp in partitions:
            self._positions[tp].is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""
        for tp in partitions:
            self._positions[tp].is_paused = False

    @property
    def paused(self) -> Partitions:
        """The partitions that are paused."""
        return tuple(tp for tp in self._positions.assigned if self._positions[tp].is_paused)

    # ---- reading ----

    async def poll(self, timeout_ms: float = 0) -> dict[TopicPartition, Columns]:
        """Records of the partitions that have some, or nothing after `timeout_ms`.

        In a group this must be called at least every `max_poll_interval_ms`.
        """
        fetcher = self._started()
        if self._is_polling:
            raise RuntimeError("a poll of this consumer is under way in another task")
        self._is_polling = True
        until = self._loop.time() + timeout_ms / 1000
        try:
            await asyncio.sleep(0)  # heartbeats and answers get their turn, however often we poll
            while True:
                await self._maintain()
                self._check_not_closed()  # by another task, meanwhile
                if taken := fetcher.take(self._records_max):
                    self._given = {tp: self._positions[tp].position for tp in taken}
                    return taken
                now = self._loop.time()
                if now >= until or self._is_woken:
                    self._is_woken = False
                    return {}
                await fetcher.wait(min(until, self._next_maintenance_at()) - now)
                self._check_not_closed()
        finally:
            self._is_polling = False

    def wakeup(self) -> None:
        """Ends a poll that waits for records, or lets the next one not wait."""
        self._is_woken = True
        if self._fetcher is not None:
            self._fetcher.wake()

    async def __aiter__(self) -> AsyncGenerator[tuple[TopicPartition, Columns], None]:
        """All records from here on, a partition's columns at a time, until the consumer is closed.

        Offsets are committed as in polls. If the loop ends early, the next poll reads
        the columns again that the loop did not get.
        """
        while True:
            try:
                polled = await self.poll(ITERATION_MS)
            except RuntimeError:
                if self._closed:
                    return
                raise
            try:
                while polled:
                    partition = next(iter(polled))
                    yield partition, polled.pop(partition)
            finally:
                self.give_back(polled)

    def give_back(self, polled: Mapping[TopicPartition, Columns]) -> None:
        """Makes the next poll give these records of the last one again.

        A partition that was taken away or sought in since then stays where it is.
        """
        for tp, columns in polled.items():
            place, offsets = self._positions.get(tp), columns.offsets
            assert offsets is not None, "records out of a log have offsets"
            is_there = place is not None and place.stage is Stage.FETCHING
            if place is not None and is_there and place.position == self._given.get(tp):
                place.seek(offsets[0])

    def _started(self) -> Fetcher:
        self._check_not_closed()
        if self._fetcher is None:
            raise RuntimeError("the consumer is not started")
        return self._fetcher

    def _check_not_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the consumer is closed")

    def _next_maintenance_at(self) -> float:
        """When `_maintain` has something to do at the latest, in the loop's time."""
        due_times = [self._loop.time() + IDLE_SECONDS]
        if self._commits is not None and self._commits.due_at is not None:
            due_times.append(self._commits.due_at)
        return max(min(due_times), self._loop.time() + SHORTEST_WAIT_SECONDS)

    async def _maintain(self) -> None:
        """Updates group, metadata and commits before a poll reads."""
        if self._group is None or self._commits is None:
            return
        if self._is_subscribed:
            self._maintain_metadata(self._group)
            await self._maintain_group(self._group, self._commits)
        self._commits.maintain()

    # ---- metadata ----

    def _maintain_metadata(self, group: GroupMember) -> None:
        """Keeps the subscribed topics' metadata fresh, and rejoins the group after changes."""
        if self._refreshing is not None and self._refreshing.done():
            refreshed, self._refreshing = self._refreshing, None
            if (error := refreshed.exception()) is not None:
                log.warning("metadata of the subscribed topics: %s", error)
        cluster = self._client.cluster
        missing = not self._knows_topics or any(t not in cluster.topics for t in self._topics)
        due = missing and self._loop.time() >= self._look_for_topics_at
        now = self._loop.time()
        if self._refreshing is None and (due or now >= self._refresh_at):
            self._look_for_topics_at = now + MISSING_TOPIC_MS / 1000
            self._refresh_at = now + self._client.timing.metadata_max_age_ms / 1000
            self._refreshing = asyncio.create_task(self._refresh(group))
        if self._cluster_applied is not cluster and not group.is_joining:
            self._cluster_applied = cluster
            group.check_partitions()

    async def _refresh(self, group: GroupMember) -> None:
        try:
            if self._pattern is None:
                topics = {*self._topics, *group.assigned_for}
                await self._client.refresh(topics, create=self._create_topics)
                return
            cluster = await self._client.refresh(None)
            matches = self._pattern.fullmatch
            group.membership.subscribe(
                [t.name for t in cluster.topics.values() if not t.is_internal and matches(t.name)]
            )
            self._knows_topics = True
        finally:
            self._started().wake()

    # ---- group ----

    async def _maintain_group(self, group: GroupMember, commits: Commits) -> None:
        """Applies what the group has decided, and joins it (again) when that is due."""
        membership = group.membership
        group.polled()
        if lost := membership.take_lost():
            await self._listener.lost(lost)
            self._positions.assign(sorted(membership.owned))
        if group.end_join():
            await self._apply_assignment(membership, commits)
        if group.is_joining:
            return
        if membership.rejoin_needed and self._knows_topics:
            if not membership.is_cooperative:
                await commits.before_revoke()
            await self._listener.revoked(membership.revoke_before_join())
            self._positions.assign(sorted(membership.owned))
            group.start_join()

    async def _apply_assignment(self, membership: Membership, commits: Commits) -> None:
        change = membership.take()
        if change.revoked:
            await commits.before_revoke()
            await self._listener.revoked(change.revoked)
        self._positions.assign(sorted(membership.owned))
        await self._listener.assigned(change.assigned)

    # ---- offsets ----

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commits these offsets (the next to read), or the positions of all partitions.

        ValueError for a negative offset. ApiError REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION or
        UNKNOWN_MEMBER_ID when the group has moved on: another member will read the records
        since the last commit again.
        """
        if offsets is None:
            wanted = {tp: OffsetAndMetadata(*at) for tp, at in self._positions.consumed().items()}
        else:
            wanted = offsets_to_commit(offsets)
        await self._grouped("commit").commit(wanted)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group; None for partitions without one."""
        wanted = list(partitions)
        stable = self._settings.read_committed
        found = await self._grouped("committed").committed(wanted, stable=stable)
        return {tp: found.get(tp) for tp in wanted}

    def group_metadata(self) -> GroupMetadata:
        """This consumer's identity in its group, for the offsets of a transaction."""
        return self._grouped("group_metadata").membership.group_metadata

    def enforce_rebalance(self, reason: str = "") -> None:
        """Asks for a rebalance: the next poll joins the group again. The assignment may change
        if the assignor or its user data changed."""
        self._grouped("enforce_rebalance").membership.rejoin(reason)

    async def confirm_membership(self) -> None:
        """After a session without an answer, asks the group whether this member still belongs
        to it. ApiError UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION where others have its partitions."""
        await self._grouped("confirm_membership").confirm()

    @property
    def is_in_doubt(self) -> bool:
        """Whether others may have this member's partitions: the group was silent for a session."""
        return self._group is None or self._group.is_in_doubt

    @property
    def is_rebalancing(self) -> bool:
        """Whether a join is under way: commits may be refused until a poll has ended it."""
        return self._group is not None and self._group.is_joining

    def _grouped(self, what: str) -> GroupMember:
        if self._membership is None:
            raise ConfigError(f"{what} needs a group_id")
        if self._group is None:
            raise RuntimeError("the consumer is not started")
        if self._membership.state is MemberState.LEFT:  # callbacks of a close come before that
            raise RuntimeError("the consumer is closed")
        return self._group

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset there is, of each partition."""
        return await self._list_offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record will have; under read_committed, the last stable one."""
        return await self._list_offsets(partitions, LATEST)

    async def _list_offsets(
        self, partitions: Iterable[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        found = await self._started().list_offsets(dict.fromkeys(partitions, which))
        return {tp: there.offset for tp, there in found.items() if there is not None}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (epoch ms); None where there is none."""
        for tp, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"{tp}: timestamp {timestamp} is negative")
        return await self._started().list_offsets(timestamps)


def _check_choice(name: str, value: str, choices: Mapping[str, object]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; it may be {', '.join(choices)}")


def _check_heartbeats(config: MemberConfig) -> None:
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigError(
            f"heartbeat_interval_ms is {config.heartbeat_interval_ms}, not below "
            f"session_timeout_ms, {config.session_timeout_ms}"
        )
