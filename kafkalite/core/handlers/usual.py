"""The short way of the requests that come most often: one batch, or a poll of one partition. [D]

    bytes ──native──> fields ──> log ──native──> bytes           no message is made in between

    poll of a session ──native──> what it changes ──> the general way of reading ──native──> bytes

Answers and effects are those of the general handlers (`produce`, `fetch`), which answer everything
that is not usual: what the native reader does not know, transactional batches outside an open
transaction, errors of a fetch. A request goes there before anything was done for it; a batch that
the log refuses, or that takes too long to decompress, is not checked anew there.

Owns   nothing. A poll or a write that waits is parked like every other.
Fails  as the general handlers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kafkalite.core.broker.reading import Asked, Key, Replica
from kafkalite.core.broker.sessions import FINAL_EPOCH, NO_SESSION
from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.handlers import produce as general_produce
from kafkalite.core.handlers.fetch import (
    FOLLOWERS_SINCE_V,
    TOPIC_IDS_SINCE_V,
    Limits,
    fetch,
    fetch_opened,
)
from kafkalite.core.handlers.frames import framed_poll
from kafkalite.core.handlers.replica_polls import replica_poll
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.uncached import ColdRead
from kafkalite.core.log.validation import validated
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.pending import Framed, Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import RequestHeader, RequestReceived
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.primitives import ZERO_UUID, Buffer, to_uuid
from kafkalite.core.protocol.produce import ProduceRequest, ProduceResponse
from kafkalite.core.protocol.records import Allowance
from kafkalite.core.protocol.usual_requests import (
    FETCH_FLEXIBLE_SINCE_V,
    NO_FOLLOWER,
    FollowerPoll,
    read_follower,
    read_poll,
    read_produce,
    read_transactional,
    timeout_of,
    write_produce,
)
from kafkalite.core.replicas.partition import READ_COMMITTED, READ_UNCOMMITTED, Partition
from kafkalite.core.replicas.replication import ACKS_ALL, ACKS_LEADER
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, RecordsTooLarge

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

HEADER_BYTES: Final = 61  # of a batch
ZSTD_V: Final = general_produce.ZSTD_V  # since when any codec is allowed
# What a poll of one partition asks for: max_wait_ms, min_bytes, max_bytes, isolation_level,
# partition, current_leader_epoch, fetch_offset, partition_max_bytes.
Wanted = tuple[int, int, int, int, int, int, int, int]
UNUSUAL: Final = general_produce.CODEC | general_produce.TRANSACTIONAL


def produce(
    broker: Broker, request: RequestReceived, listener: str
) -> Framed | ProduceResponse | Pending[ProduceResponse] | None:
    """Appends one batch. None, and nothing is done: the request is not a usual one."""
    header, body = request
    transactional_id, fields = None, read_produce(body, header.api_version)
    if fields is None:
        if (read := read_transactional(body, header.api_version)) is None:
            return None
        transactional_id, fields = read
    acks, topic, index, start, end = fields
    size = end - start
    if not HEADER_BYTES <= size <= general_produce.BYTES_AT_ONCE or topic in INTERNAL_TOPICS:
        return None
    partition = broker.partitions.find(topic, index)
    if partition is None or not _takes(partition, acks):
        return None
    records, log, now_ms = body[start:end], partition.log, broker.wall_ms()
    attributes, allowance = records[general_produce.ATTRIBUTES_POSITION], None
    if attributes & UNUSUAL:
        if attributes & general_produce.TRANSACTIONAL and not _may_write(
            broker, transactional_id, partition, records
        ):
            return None
        if attributes & general_produce.CODEC:
            if header.api_version < ZSTD_V:
                return None
            allowance = Allowance(general_produce.BYTES_AT_ONCE)
    where = partition.topic_partition
    try:
        checked = validated(records, log.config, where, now_ms, True, allowance=allowance)
        if checked.header.producer_id >= 0:
            general_produce.check_earlier(broker, partition, checked)
        appended = partition.append_validated(checked, now_ms)
    except RecordsTooLarge:
        asked = codec.decode(ProduceRequest, body, header.api_version)
        return general_produce.aside(broker, asked, RequestContext(header.api_version))
    except ApiError as error:
        return general_produce.not_appended(broker, partition, records, error)
    last_offset = appended.last_offset
    counts_at_once = partition.replication.is_alone and log.config.flush_messages == LONG_MAX
    if not appended.duplicate:
        fresh = None
        has_readers = partition.watchers or partition.followers
        if has_readers and size < general_produce.FRESH_BYTES_MAX:
            fresh = MemoryRecords(checked.records, appended.base_offset, last_offset + 1)
        if counts_at_once:
            broker.waiting.advanced(partition, size, fresh)
        else:
            broker.appended(partition, size, fresh)
        broker.metrics.appended(topic, last_offset - appended.base_offset + 1, size)
    frame = write_produce(
        header.api_version,
        header.correlation_id,
        topic,
        index,
        appended.base_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )
    answer, is_all = Framed([frame], len(frame)), acks == ACKS_ALL
    is_due = counts_at_once or log.high_watermark > last_offset
    if is_due or not (is_all or log.flush_is_due):
        return answer
    write = Write(broker, partition, last_offset, answer, is_all=is_all)
    return write.begin(timeout_of(body, header.api_version))


def _may_write(
    broker: Broker, transactional_id: str | None, partition: Partition, records: Buffer
) -> bool:
    """Whether a transactional batch belongs to a transaction that is open in the partition."""
    if transactional_id is None:
        return False
    try:
        broker.transactions.check_batch(transactional_id, partition, records)
    except ApiError:
        return False
    return True


def _takes(partition: Partition, acks: int) -> bool:
    """Whether a batch may be appended now: by the leader, with enough replicas in sync."""
    replication, log = partition.replication, partition.log
    if acks not in (ACKS_LEADER, ACKS_ALL) or log.health.failure is not None:
        return False
    leader = replication.leader
    if replication.is_alone or leader is None:
        return leader is not None
    least = min(log.config.min_insync_replicas, replication.replica_count)
    return acks == ACKS_LEADER or len(leader.in_sync_replicas) >= least


class Write(Pending[Any]):
    """A batch in the log that waits for its replicas or the disk: the operation that waits, and the
    answer."""

    __slots__ = (
        "_answer",
        "_broker",
        "_epoch",
        "_error",
        "_is_all",
        "_is_lost",
        "_is_replicated",
        "_last_offset",
        "_partition",
    )

    def __init__(
        self,
        broker: Broker,
        partition: Partition,
        last_offset: int,
        answer: Framed,
        *,
        is_all: bool,
    ) -> None:
        """`answer` is given once the batch, up to `last_offset`, counts. `is_all`: it counts only
        if enough replicas are in sync then."""
        super().__init__(is_only_waiting=True)
        self._is_all = is_all
        self._broker = broker
        self._partition = partition
        self._last_offset = last_offset
        self._answer = answer
        self._epoch = partition.replication.leader_epoch
        self._error: ApiError | None = None  # why nobody vouches for the batch
        self._is_replicated = self._is_lost = False

    def begin(self, timeout_ms: int) -> Write:
        """Waits, `timeout_ms` at the most."""
        deadline_ms = self._broker.monotonic_ms() + max(0, timeout_ms)
        if not self._broker.waiting.park(self, (self._partition.topic_partition,), deadline_ms):
            self.token()  # too many wait
        return self

    def advance(self, key: TopicPartition, high_watermark: int, bytes_added: int) -> bool:
        """Whether the batch is replicated; why not, if it is called unsafe, is asked just then."""
        if high_watermark <= self._last_offset:
            return False
        self._is_replicated = True
        if self._is_all:
            self._error = self._partition.why_unsafe(self._epoch)
        return True

    def lose(self, key: TopicPartition) -> bool:
        """Another broker leads, or this one in another epoch, or the log has failed."""
        self._is_lost = True
        return True

    def token(self) -> None:
        """Answers: the batch is replicated, or never will be, or the time is up."""
        error = self._error
        if self._is_lost:
            error = general_produce.why_lost(self._broker, self._awaited())
        elif not self._is_replicated:
            error = general_produce.too_late(self._awaited())
        if error is None:
            self.complete(self._answer)
        else:
            self.complete(general_produce.unacknowledged(self._partition, error))

    def _awaited(self) -> general_produce.Awaited:
        return general_produce.Awaited(self._partition, self._last_offset + 1, self._epoch)

    def abandon(self) -> None:
        """The producer is gone."""
        if self.response is None and not self.is_abandoned:
            super().abandon()
            self._broker.waiting.forget(self)


def poll(broker: Broker, request: RequestReceived, listener: str) -> Any:
    """One partition's records, or a poll that waits for them. None: the request is not usual."""
    header = request.header
    fields = read_poll(request.body, header.api_version)
    if fields is None:
        follower = read_follower(request.body, header.api_version)
        if follower is None or follower.fields[0] == NO_SESSION:
            return None
        waits = replica_poll(broker, header, follower, listener)
        return waits or _poll_in_session(broker, header, follower.fields, listener, follower)
    if broker.selects_replicas and _names_rack(request.body, header):
        return None
    session_id, epoch, topic = fields[0], fields[1], fields[6]
    if session_id != NO_SESSION:
        return _poll_in_session(broker, header, fields, listener)
    if epoch != FINAL_EPOCH or topic is None:
        return None
    topic_id = None
    if not isinstance(topic, str):
        topic_id = to_uuid(topic)
        named = broker.image.names.get(topic_id)
        if named is None:
            return None
        topic = named
    return Poll(broker, header, listener, topic, topic_id, (*fields[2:6], *fields[7:])).begin()


def _names_rack(body: Buffer, header: RequestHeader) -> bool:
    """Whether a poll says where its reader is: the last field, which the native reader skips."""
    if header.api_version < FOLLOWERS_SINCE_V:
        return False
    is_flexible = header.api_version >= FETCH_FLEXIBLE_SINCE_V
    return bytes(body[-2:]) != (b"\1\0" if is_flexible else b"\0\0")


def _poll_in_session(
    broker: Broker,
    header: RequestHeader,
    fields: tuple[Any, ...],
    listener: str,
    follower: FollowerPoll = NO_FOLLOWER,
) -> Any:
    """The next poll of a session, a consumer's or a follower's, which changes one partition or
    none. None where the session does not go on with it."""
    session_id, epoch, *limits = fields[:6]
    topic, index, leader_epoch, offset, size = fields[6:]
    _, last_epoch, start, *life = follower
    replica = None if follower is NO_FOLLOWER else Replica(*life)
    by_id = header.api_version >= TOPIC_IDS_SINCE_V
    names, now_ms = broker.image.names, broker.monotonic_ms()
    asked: dict[Key, Asked] = {}
    if topic is not None:
        partition = FetchPartition(index, leader_epoch, offset, last_epoch, start, size)
        if by_id:
            topic_id = to_uuid(topic)
            asked[topic, index] = Asked(names.get(topic_id), topic_id, partition)
        else:
            asked[topic, index] = Asked(topic, ZERO_UUID, partition)
    opened = broker.fetch_sessions.resume(session_id, epoch, by_id, asked, names, now_ms, replica)
    if opened is None:
        return None
    context = RequestContext(header.api_version, header.client_id, listener=listener)
    return fetch_opened(broker, Limits(*limits), opened, context, header, now_ms)


class Poll(Pending[Any]):
    """A reader of one partition: its request, its operation while it waits, its answer.

    It keeps the fields of its request and not its bytes, which lie in what a connection received.
    """

    __slots__ = (
        "_broker",
        "_bytes_missing",
        "_committed",
        "_deadline_ms",
        "_header",
        "_listener",
        "_only_leader",
        "_partition",
        "_records",
        "_topic",
        "_topic_id",
        "_wanted",
    )

    def __init__(
        self,
        broker: Broker,
        header: RequestHeader,
        listener: str,
        topic: str,
        topic_id: UUID | None,  # if its reader calls it so
        wanted: Wanted,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._header = header
        self._listener = listener
        self._only_leader = header.api_version < FOLLOWERS_SINCE_V
        self._topic = topic
        self._topic_id = topic_id
        self._wanted = wanted
        self._committed = wanted[3] == READ_COMMITTED
        self._partition: Partition | None = None
        self._records: FileRecords | MemoryRecords | None = None
        self._bytes_missing = 0
        self._deadline_ms = 0

    # -- looking

    def begin(self) -> Framed | Poll | None:
        """The answer, itself if it waits for one, None if the general handler must answer."""
        if not self._look():
            return None
        max_wait_ms = self._wanted[0]
        if self._bytes_missing > 0 and max_wait_ms > 0:
            self._deadline_ms = self._broker.monotonic_ms() + max_wait_ms
            if self._waits():
                return self
        return self._answer()

    def _look(self) -> bool:
        """Reads the partition; False if the answer needs more than records."""
        _, min_bytes, max_bytes, _, index, leader_epoch, offset, partition_max_bytes = self._wanted
        broker, topic, topic_id = self._broker, self._topic, self._topic_id
        partition = self._partition = broker.partitions.find(topic, index)
        if partition is None:
            return False
        if topic_id is not None and broker.image.topics[topic].topic_id != topic_id:
            return False
        isolation_level = READ_COMMITTED if self._committed else READ_UNCOMMITTED
        bytes_max = max(0, min(partition_max_bytes, max_bytes, broker.fetch_bytes_max))
        try:
            records = partition.read(
                offset, bytes_max, isolation_level, leader_epoch, only_leader=self._only_leader
            )
            if records is None:
                self._bytes_missing = min_bytes
            else:
                has_more = records.before_offset < partition.end(isolation_level)
                self._bytes_missing = 0 if has_more else min_bytes - records.size_bytes
                if self._committed and partition.aborted_transactions(
                    offset, records.before_offset
                ):
                    return False
        except (ApiError, ColdRead):
            return False
        self._records = records
        return True

    # -- waiting

    def _waits(self) -> bool:
        """Parks itself until enough has come; False if there is no room to."""
        partition = self._partition
        assert partition is not None
        if not self._broker.waiting.park(self, (), self._deadline_ms):
            return False
        self._records = None  # records hold their file, and are looked at again
        partition.watchers[self] = None
        return True

    def changed(self, partition: Partition, byte_count: int) -> bool:
        """As a watcher of the partition: whether it needs the next change too."""
        self._bytes_missing -= byte_count
        if self._bytes_missing > 0:
            return True
        self._broker.waiting.complete(self)
        return False

    def advance(self, key: TopicPartition, high_watermark: int, bytes_added: int) -> bool:
        """As an operation it is parked on no key: the partition calls `changed`."""
        return False

    def lose(self, key: TopicPartition) -> bool:
        """As `advance`: the partition calls `changed`."""
        return False

    def token(self) -> None:
        """Enough has come, or the time is up: answers, unless it must wait on."""
        if self.is_abandoned:  # after the event, before its turn
            return
        partition, broker = self._partition, self._broker
        assert partition is not None
        partition.watchers.pop(self, None)
        if not self._look():
            answer = self._generally()
            if isinstance(answer, Pending):
                answer.when_done(self.complete)
            else:
                self.complete(answer)
        elif not (
            self._bytes_missing > 0 and broker.monotonic_ms() < self._deadline_ms and self._waits()
        ):
            self.complete(self._answer())

    def abandon(self) -> None:
        """The reader is gone."""
        if self.response is None and not self.is_abandoned:
            super().abandon()
            self._broker.waiting.forget(self)
            if self._partition is not None:
                self._partition.watchers.pop(self, None)

    # -- answering

    def _answer(self) -> Framed:
        partition, records, topic = self._partition, self._records, self._topic
        assert partition is not None
        log, size = partition.log, 0
        data: Buffer | FileRecords = b""
        if records is not None:
            size = records.size_bytes
            data = records.data if isinstance(records, MemoryRecords) else records
            self._broker.metrics.fetched(topic, size)
        return framed_poll(
            self._header,
            NO_SESSION,
            topic if self._topic_id is None else self._topic_id.bytes,
            partition.topic_partition.partition,
            (log.high_watermark, log.last_stable_offset, log.log_start_offset),
            self._committed,
            data,
            size,
        )

    def _generally(self) -> Any:
        """The general handler's answer, without a wait for records: an error, aborted transactions,
        or records that a thread must read first."""
        _, least, most, isolation, index, leader_epoch, offset, size = self._wanted
        asked = FetchPartition(index, leader_epoch, offset, partition_max_bytes=size)
        request = FetchRequest(
            min_bytes=least,
            max_bytes=most,
            isolation_level=isolation,
            topics=(FetchTopic(self._topic, self._topic_id or ZERO_UUID, partitions=(asked,)),),
        )
        version, client_id = self._header.api_version, self._header.client_id
        context = RequestContext(version, client_id, listener=self._listener)
        return fetch(self._broker, request, context)


USUAL: Final[dict[ApiKey, Callable[[Broker, RequestReceived, str], Any]]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: poll,
}
