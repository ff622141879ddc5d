"""The short way of a follower's poll, in a session, of one partition that it has in full. [D]

    fetch ──> position noted ──> answers to those who waited for it ──> parked ──grew──> frame

A producer with acks=all waits for the fetches of all followers: each fetch proves that its follower
has the batch. So the leader first notes the follower's position and sends the answers that waited
for it, and parks the poll in the next turn of the loop. A follower that has the whole log misses
nothing by that. Its next batch is sent as a frame, without a message.

Answers and effects are those of the general way (`fetch`). The general way answers everything else:
records that are there already, news of other partitions, errors, throttled replication, polls
whose time is up.

Owns   nothing.
Fails  as the general way does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.core.broker.reading import Key, Replica
from kafkalite.core.broker.sessions import OpenFetch
from kafkalite.core.handlers.fetch import Limits, fetch_opened
from kafkalite.core.handlers.frames import framed_poll
from kafkalite.core.log.uncached import ColdRead
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.pending import Framed, Pending
from kafkalite.core.protocol.connection import RequestHeader
from kafkalite.core.protocol.fetch import FetchPartition
from kafkalite.core.protocol.usual_requests import FollowerPoll
from kafkalite.core.replicas.partition import READ_AS_REPLICA, Partition
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker


def replica_poll(
    broker: Broker, header: RequestHeader, follower: FollowerPoll, listener: str
) -> Any:
    """A pending answer to a follower's poll, or the answer. None, and nothing is done, for a poll
    that must go the general way."""
    session_id, epoch, max_wait_ms, *_, topic, index, leader_epoch, offset, size = follower.fields
    if topic is None or max_wait_ms <= 0:
        return None
    if broker.selects_replicas or broker.throttles.leader.rate is not None:
        return None
    last_epoch, start = follower.last_fetched_epoch, follower.log_start_offset
    wanted = FetchPartition(index, leader_epoch, offset, last_epoch, start, size)
    replica = Replica(follower.replica_id, follower.replica_epoch)
    now_ms = broker.monotonic_ms()
    opened = broker.fetch_sessions.resume_at(
        session_id, epoch, (topic, index), wanted, now_ms, replica
    )
    if opened is None:
        return None
    poll = ReplicaPoll(broker, header, listener, follower, opened)
    return poll if poll.begin() else poll.general_answer(now_ms, notes_followers=True)


class ReplicaPoll(Pending[Any]):
    """A follower that waits for the next batch: its request, its operation, its answer."""

    __slots__ = (
        "_broker",
        "_bytes_missing",
        "_deadline_ms",
        "_follower",
        "_header",
        "_key",
        "_listener",
        "_min_bytes",
        "_opened",
        "_partition",
        "_wanted",
    )

    def __init__(
        self, broker: Broker, header: RequestHeader, listener: str, follower: FollowerPoll,
        opened: OpenFetch,
    ) -> None:  # fmt: skip
        """`opened` is the session with the follower's new position."""
        super().__init__()
        fields, reading = follower.fields, opened.reading
        self._broker, self._header, self._listener = broker, header, listener
        self._follower, self._opened = follower, opened
        self._key: Key = fields[6], fields[7]  # the partition, as the session calls it
        self._wanted = reading.asked[self._key].partition
        self._partition: Partition | None = None
        self._deadline_ms = reading.fetched_ms + fields[2]
        self._min_bytes: int = fields[3]
        self._bytes_missing: int = fields[3]

    def begin(self) -> bool:
        """Notes the follower's position in the leader; `_park` follows in the loop's next turn.
        False, and nothing is done, if the follower lacks records or the general way must answer."""
        broker, wanted, opened = self._broker, self._wanted, self._opened
        topic, topic_id, _ = opened.reading.asked[self._key]
        partition = None if topic is None else broker.partitions.find(topic, wanted.partition)
        if (
            partition is None
            or topic is None
            or not partition.has_no_more_than(
                wanted.current_leader_epoch, wanted.last_fetched_epoch, wanted.fetch_offset
            )
        ):
            return False
        if broker.image.topics[topic].topic_id != topic_id:
            return False
        try:
            broker.follower_fetched(partition, opened.reading, wanted)
        except ApiError:
            return False
        self._partition = partition
        broker.waiting.soon(self._park)
        return True

    # -- waiting

    def _park(self) -> None:
        if self.is_abandoned:
            return
        reading, partition, wanted = self._opened.reading, self._partition, self._wanted
        assert partition is not None
        has_all = partition.log.log_end_offset == wanted.fetch_offset
        if (
            not has_all
            or self._opened.is_superseded
            or not reading.must_look_only_at(self._key)
            or not self._broker.waiting.park(self, (), self._deadline_ms)
        ):
            self._go_on_generally()
            return
        reading.watch(partition, self._key)
        reading.park(self, self._broker.waiting.complete)

    def advance(self, key: TopicPartition, high_watermark: int, bytes_added: int) -> bool:
        """Whether the log has grown by the least number of bytes that the follower asks for."""
        self._bytes_missing -= bytes_added
        return self._bytes_missing <= 0

    def lose(self, key: TopicPartition) -> bool:
        """As an operation it is parked on no key: its reading completes it."""
        return False

    def token(self) -> None:
        """The log has grown, the poll's time is up, or a later request uses the session."""
        if self.is_abandoned:  # after the event, before its turn
            return
        frame = None if self._opened.is_superseded else self._frame()
        if frame is None:
            self._go_on_generally()
        else:
            self.complete(frame)

    def abandon(self) -> None:
        """The follower is gone."""
        if self.response is None and not self.is_abandoned:
            super().abandon()
            self._broker.waiting.forget(self)
            self._opened.leave()

    # -- answering

    def _frame(self) -> Framed | None:
        """The answer with the next batch; None if the general way must answer."""
        broker, partition, wanted = self._broker, self._partition, self._wanted
        opened, key = self._opened, self._key
        reading, session = opened.reading, opened.session
        assert partition is not None
        assert session is not None
        if not reading.must_look_only_at(key) or broker.throttles.leader.rate is not None:
            return None
        max_bytes: int = self._follower.fields[4]
        bytes_max = min(wanted.partition_max_bytes, max_bytes, broker.fetch_bytes_max)
        try:
            records = partition.read(
                wanted.fetch_offset,
                max(0, bytes_max),
                READ_AS_REPLICA,
                wanted.current_leader_epoch,
            )
        except (ApiError, ColdRead):
            return None
        if records is None or records.size_bytes < self._min_bytes:
            return None
        log = partition.log
        reading.unpark()
        offsets = log.high_watermark, log.last_stable_offset, log.log_start_offset
        session.told[key] = offsets[0], offsets[2]
        reading.found.pop(key, None)
        reading.move_to_end(key)
        reading.answered_ms = broker.monotonic_ms()
        data = records.data if isinstance(records, MemoryRecords) else records
        return framed_poll(
            self._header, session.session_id, *key, offsets, False, data, records.size_bytes
        )

    def _go_on_generally(self) -> None:
        """Completes with the general way's answer, which may wait until the deadline."""
        broker, opened = self._broker, self._opened
        if opened.is_superseded:  # the later request reads the partitions
            self.complete(broker.fetch_sessions.answer(opened, broker.monotonic_ms))
            return
        opened.reading.unpark()
        answer = self.general_answer(broker.monotonic_ms(), notes_followers=False)
        if not isinstance(answer, Pending):
            self.complete(answer)
        elif answer.response is not None:
            self.complete(answer.response)
        else:
            self.when_abandoned(answer.abandon)
            answer.when_done(self.complete)

    def general_answer(self, now_ms: int, *, notes_followers: bool) -> Any:
        """The answer of the general way, which may wait until the deadline."""
        header, max_wait_ms = self._header, max(0, self._deadline_ms - now_ms)
        limits = Limits(max_wait_ms, *self._follower.fields[3:6])
        context = RequestContext(header.api_version, header.client_id, listener=self._listener)
        return fetch_opened(
            self._broker, limits, self._opened, context, header, now_ms,
            notes_followers=notes_followers,
        )  # fmt: skip
