"""Fetch: whole batches from the log, now or when enough of them have come.                 [D]

A follower sees all that the log has, and its leader learns from each fetch how far it is. Before
anything is read the last epoch that a reader has fetched is compared with the log's: where the
histories part, the answer says where, and has no records.

A consumer sees records below the high watermark, and under read_committed below the last stable
offset, with the aborted transactions in what it is given. Too few bytes wait until what becomes
readable in the partitions asked for is enough; then, or at the deadline, the partitions that have
changed are read again and all is answered as it is. Nothing is waited for while a partition has
more to read than the answer holds: the next append would bring nothing sooner.

Consumers since v11 may read followers: up to the high watermark that these know. Where a selector
of replicas is set, a leader sends a consumer that names its rack to a follower there.

A request about very many partitions, or with very many that have changed, is read and answered in
slices, and its answer is encoded in a thread.

Which partitions a request is about, and which of them an answer tells of, is for `broker.sessions`;
which of them must be read, for `broker.reading`.

Source KIP-74 (size limits), KIP-98 (isolation), KIP-227 (sessions), KIP-516 (topic ids), KIP-595
(diverging epochs), KIP-392 (followers), KIP-903 (replica epochs), KIP-951 (leaders in answers);
apache/kafka `ReplicaManager`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kafkalite.core.broker.metrics import errors_in
from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.broker.reading import Asked, Key
from kafkalite.core.broker.sessions import OpenFetch, by_topic, has_failed, partitions_asked
from kafkalite.core.handlers.frames import framed_poll
from kafkalite.core.handlers.parts import Parts
from kafkalite.core.handlers.routes import handles
from kafkalite.core.handlers.slices import Answered, Answering, in_slices
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.uncached import ColdRead
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.pending import Encoded, Framed, Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import RequestHeader
from kafkalite.core.protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.protocol.primitives import ZERO_UUID, Buffer, records_size
from kafkalite.core.protocol.produce import LeaderIdAndEpoch, NodeEndpoint
from kafkalite.core.replicas.partition import (
    READ_AS_REPLICA,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
)
from kafkalite.core.replicas.selection import preferred_read_replica
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

PARTITIONS_AT_ONCE: Final = 1_000  # more go on in slices
PARTITIONS_PER_SLICE: Final = 500  # some 5 us each
COLD_READS_MAX: Final = 1_000  # of a request, beyond which the loop itself waits for the disk
UNKNOWN_OFFSET: Final = -1
TOPIC_IDS_SINCE_V: Final = 13
FOLLOWERS_SINCE_V: Final = 11  # that consumers read them
LEADERS_SINCE_V: Final = 16
UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
Answer: TypeAlias = FetchResponse | Framed | Pending[Any]
NAMES_A_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


@handles(ApiKey.FETCH, versions=(4, 17))
def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> Answer:
    """Returns records at once if there are enough or an error; waits for more otherwise."""
    by_id = context.api_version >= TOPIC_IDS_SINCE_V
    now_ms = broker.monotonic_ms()
    if _is_long(request):
        return _in_slices(broker, context, _opened_in_slices(broker, request, context, now_ms))
    opened = broker.fetch_sessions.open(request, broker.image.names, by_id, now_ms)
    if isinstance(opened, ErrorCode):
        return FetchResponse(error_code=opened)
    return _opened(_Fetching(broker, request, opened, context), now_ms)


class Limits(NamedTuple):
    """The fields of a request that are not about partitions."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack_id: str = ""  # such requests name no rack


def fetch_opened(
    broker: Broker, limits: Limits, opened: OpenFetch, context: RequestContext,
    header: RequestHeader, now_ms: int, *, notes_followers: bool = True,
) -> Answer:  # fmt: skip
    """The same for a request whose partitions are known. An answer about one of them is a frame.
    `notes_followers`: the leader has not learnt from the request yet how far its reader is."""
    fetching = _Fetching(broker, limits, opened, context, header, notes_followers=notes_followers)
    return _opened(fetching, now_ms)


def _opened(fetching: _Fetching, now_ms: int) -> Answer:
    broker, request = fetching.broker, fetching.request
    if not fetching.read_at_once():
        slices = _slices(fetching, now_ms + request.max_wait_ms)
        return _in_slices(broker, fetching.context, slices)
    missing = request.min_bytes - fetching.bytes_found
    if missing > 0 and fetching.may_wait and request.max_wait_ms > 0:
        pending: Pending[Any] = Pending()
        if _wait(fetching, pending, missing, now_ms + request.max_wait_ms):
            return pending
    return fetching.answer()


# ---- very many partitions ------------------------------------------------------------------------


def _is_long(request: FetchRequest) -> bool:
    """Whether the list of partitions alone takes a while. Most requests name few topics."""
    topics, forgotten = request.topics, request.forgotten_topics_data
    if len(topics) == 1 and not forgotten:
        return len(topics[0].partitions) > PARTITIONS_AT_ONCE
    named = sum(len(topic.partitions) for topic in topics)
    return named + sum(len(topic.partitions) for topic in forgotten) > PARTITIONS_AT_ONCE


def _in_slices(broker: Broker, context: RequestContext, slices: Answering) -> Pending[Any]:
    answer = in_slices(broker, ApiKey.FETCH, context, slices, is_large=False)
    if isinstance(answer, Pending):
        return answer
    pending: Pending[Any] = Pending()
    pending.complete(answer)
    return pending


def _opened_in_slices(
    broker: Broker, request: FetchRequest, context: RequestContext, now_ms: int
) -> Answering:
    by_id = context.api_version >= TOPIC_IDS_SINCE_V
    names = broker.image.names
    asked: dict[Key, Asked] = {}
    for part in Parts("topics.partitions", "", PARTITIONS_PER_SLICE).split(request):
        asked |= partitions_asked(part, names, by_id)
        yield
    opened = yield from broker.fetch_sessions.open_in_slices(request, names, by_id, now_ms, asked)
    if isinstance(opened, ErrorCode):
        return FetchResponse(error_code=opened)
    fetching = _Fetching(broker, request, opened, context)
    return (yield from _slices(fetching, now_ms + request.max_wait_ms))


def _slices(fetching: _Fetching, deadline_ms: int) -> Answering:
    """Reads, waits and answers as `fetch` does, a part of the partitions in each turn of the loop.

    What changes while others are read is looked at again before anything is waited for.
    """
    broker, opened = fetching.broker, fetching.opened
    is_answered = False
    try:
        while True:
            yield from fetching.read_in_slices()
            missing = fetching.request.min_bytes - fetching.bytes_found
            is_late = broker.monotonic_ms() >= deadline_ms
            if missing <= 0 or not fetching.may_wait or is_late or opened.is_superseded:
                break
            if opened.reading.has_changed:
                continue
            if not (yield from _parked(fetching, missing, deadline_ms)):
                break
        answer = yield from fetching.answer_in_slices()
        is_answered = True
        return answer
    finally:
        if not is_answered:
            opened.leave()


def _parked(fetching: _Fetching, missing: int, deadline_ms: int) -> Generator[Any, None, bool]:
    """Waits until `missing` bytes more can be read; False if there is no room to, or no use."""
    broker, opened = fetching.broker, fetching.opened
    woken: Pending[bool] = Pending()
    operation: DelayedFetch[TopicPartition] = DelayedFetch(lambda: woken.complete(True), missing)
    if not broker.waiting.park(operation, (), deadline_ms):
        return False
    opened.reading.park(operation, broker.waiting.complete)
    try:
        yield Answered(woken)
    finally:
        broker.waiting.forget(operation)
    if opened.is_superseded:
        return False
    opened.reading.unpark()
    return True


def _encoded(
    response: FetchResponse, topics: tuple[FetchableTopicResponse, ...], version: int
) -> Encoded:
    """The response with its topics, as it is sent."""
    response = replace(response, responses=topics)
    return Encoded(response, codec.encode_parts(response, version), errors_in(response))


# ---- few partitions ------------------------------------------------------------------------------


def _wait(fetching: _Fetching, pending: Pending[Any], missing: int, deadline_ms: int) -> bool:
    """Parks the fetch until `missing` bytes more can be read; False if there is no room to."""
    broker, opened = fetching.broker, fetching.opened

    def finish() -> None:
        if pending.is_abandoned:  # after the event, before its turn: it must not wait on
            return
        if opened.is_superseded:
            pending.complete(fetching.answer())
            return
        opened.reading.unpark()
        if not fetching.read_at_once():
            rest = _in_slices(broker, fetching.context, _slices(fetching, deadline_ms))
            pending.when_abandoned(rest.abandon)
            rest.when_done(pending.complete)
            return
        still_missing = fetching.request.min_bytes - fetching.bytes_found
        # What became readable may lie behind an open transaction, or be less than it was.
        waits_on = (
            still_missing > 0
            and fetching.may_wait
            and broker.monotonic_ms() < deadline_ms
            and _wait(fetching, pending, still_missing, deadline_ms)
        )
        if not waits_on:
            pending.complete(fetching.answer())

    def leave() -> None:
        broker.waiting.forget(operation)
        opened.leave()

    operation: DelayedFetch[TopicPartition] = DelayedFetch(finish, missing)
    if not broker.waiting.park(operation, (), deadline_ms):
        return False
    opened.reading.park(operation, broker.waiting.complete)
    pending.when_abandoned(leave)
    return True


@dataclass(slots=True)
class _Fetching:
    """One request, which may be read for several times before it is answered."""

    broker: Broker
    request: FetchRequest | Limits
    opened: OpenFetch
    context: RequestContext
    header: RequestHeader | None = None  # of a request whose answer may be a frame
    isolation_level: int = READ_UNCOMMITTED  # what of the log the reader may see
    notes_followers: bool = True  # their first look at a partition; the next ones are no fetches
    bytes_found: int = 0
    found_by_topic: dict[str, int] = field(default_factory=dict)
    throttled_bytes: int = 0  # for followers, of partitions whose replication has a rate
    has_errors: bool = False
    has_more: bool = False  # a partition has more to read than was found

    @property
    def may_wait(self) -> bool:
        """Whether what was read gives no reason to answer at once, and something was asked for."""
        return not self.has_errors and not self.has_more and bool(self.opened.reading.asked)

    def _begin(self) -> None:
        if self.opened.reading.replica is not None:
            self.isolation_level = READ_AS_REPLICA
        elif self.request.isolation_level == READ_COMMITTED:
            self.isolation_level = READ_COMMITTED
        self.bytes_found = self.throttled_bytes = 0
        self.found_by_topic.clear()
        self.has_errors = self.has_more = False

    def read(self) -> None:
        """Reads the partitions that may have changed, in their order, within max_bytes."""
        self._begin()
        reading = self.opened.reading
        asked, found = reading.asked, reading.found
        isolation_level = self.isolation_level
        stale: set[Key] = set()
        for key in reading.stale(isolation_level):
            found[key] = self._read(key, asked[key], isolation_level, stale)
        reading.looked(stale)
        self.notes_followers = False

    def read_at_once(self) -> bool:
        """Reads, unless that takes long: very many partitions, or bytes that only the disk has.
        Then `read_in_slices` begins anew."""
        if len(self.opened.reading.unsettled()) > PARTITIONS_AT_ONCE:
            return False
        try:
            self.read()
        except ColdRead:
            return False
        return True

    def read_in_slices(self) -> Answering:
        """The same, PARTITIONS_PER_SLICE at a time, unless another request goes on meanwhile with
        the session. Bytes that are not cached are read in a thread first."""
        self._begin()
        reading = self.opened.reading
        isolation = self.isolation_level
        keys = deque(reading.begin_look(isolation))
        cold_reads = 0
        while not self.opened.is_superseded:
            some, stale = list[Key](), set[Key]()
            cold: ColdRead | None = None
            while keys and len(some) < PARTITIONS_PER_SLICE and cold is None:
                key, may_wait = keys[0], cold_reads > COLD_READS_MAX
                try:
                    data = self._read(key, reading.asked[key], isolation, stale, may_wait=may_wait)
                except ColdRead as error:
                    cold = error
                    cold_reads += 1
                else:
                    reading.found[key] = data
                    some.append(keys.popleft())
            reading.looked_at(some, stale)
            if not keys:
                self.notes_followers = False
                return
            yield None if cold is None else self.broker.in_thread(cold.warm)

    def answer(self) -> FetchResponse | Framed:
        """The answer to the reader, from the data found."""
        broker, found, session = self.broker, self.opened.reading.found, self.opened.session
        self._count()
        if self.header is None or session is None or self.opened.is_superseded:
            response = broker.fetch_sessions.answer(self.opened, broker.monotonic_ms)
            return self._with_endpoints(response, found)
        news = tuple(session.news())
        if len(news) == 1 and (frame := _framed(self.header, session.session_id, *news[0])):
            return frame
        response = FetchResponse(session_id=session.session_id, responses=by_topic(news))
        return self._with_endpoints(response, found)

    def answer_in_slices(self) -> Answering:
        """The same as a message, encoded in a thread where it is long."""
        if self.opened.is_superseded:
            return self.answer()
        broker, found = self.broker, self.opened.reading.found
        self._count()
        sessions, version = broker.fetch_sessions, self.context.api_version
        response, told = yield from sessions.answer_in_slices(self.opened, broker.monotonic_ms)
        response = self._with_endpoints(response, found)
        if len(told) <= PARTITIONS_AT_ONCE:
            return replace(response, responses=by_topic(told))
        encoding = broker.compute(lambda: _encoded(response, by_topic(told), version))
        yield encoding
        return encoding.result()

    def _count(self) -> None:
        if self.opened.reading.replica is not None and not self.opened.is_superseded:
            self.opened.reading.answered_ms = self.broker.monotonic_ms()
        for topic, byte_count in self.found_by_topic.items():
            self.broker.metrics.fetched(topic, byte_count)
        if self.throttled_bytes:
            self.broker.throttles.leader.record(self.throttled_bytes, self.broker.monotonic_ms())

    def _with_endpoints(
        self, response: FetchResponse, found: Mapping[Key, PartitionData]
    ) -> FetchResponse:
        """The response, with the addresses of leaders that the client does not know."""
        if self.has_errors and self.context.api_version >= LEADERS_SINCE_V:
            named = {data.current_leader.leader_id for data in found.values()}
            return replace(response, node_endpoints=self._endpoints(named))
        return response

    def _endpoints(self, node_ids: set[int]) -> tuple[NodeEndpoint, ...]:
        """The addresses of those brokers that the client can reach."""
        nodes = self.broker.image.nodes(self.context.listener)
        return tuple(NodeEndpoint(*node, rack) for node, rack in nodes if node.node_id in node_ids)

    def _read(
        self,
        key: Key,
        asked: Asked,
        isolation_level: int,
        stale: set[Key],
        *,
        may_wait: bool = False,
    ) -> PartitionData:
        """What one partition has; `stale` takes it in unless a look before it changes is idle.
        ColdRead, unless this `may_wait` for the disk."""
        request, wanted = self.request, asked.partition
        bytes_max = min(request.max_bytes, self.broker.fetch_bytes_max) - self.bytes_found
        only_leader = (
            isolation_level == READ_AS_REPLICA or self.context.api_version < FOLLOWERS_SINCE_V
        )
        try:
            partition = self._partition(asked)
            if request.rack_id and not only_leader:
                elsewhere = self._elsewhere(partition, wanted)
                if elsewhere is not None:
                    stale.add(key)
                    return elsewhere
            if wanted.last_fetched_epoch >= 0 or isolation_level == READ_AS_REPLICA:
                diverging = self._lineage(partition, wanted, only_leader=only_leader)
                if diverging is not None:
                    stale.add(key)
                    return diverging
            records = partition.read(
                wanted.fetch_offset,
                max(0, min(wanted.partition_max_bytes, bytes_max)),
                isolation_level,
                wanted.current_leader_epoch,
                may_wait=may_wait,
                only_leader=only_leader,
            )
            if records is not None:
                stale.add(key)
                if isolation_level == READ_AS_REPLICA and self._is_held_back(partition, records):
                    records = None
            if records is not None and self.bytes_found and records.size_bytes > bytes_max:
                # The first batch comes whole however large it is, but only one such an answer.
                records, self.has_more = None, True
            aborted = None
            if isolation_level == READ_COMMITTED:
                aborted = _aborted(partition, wanted.fetch_offset, records, may_wait)
        except ApiError as error:
            stale.add(key)
            return self._refused(asked, error)
        self.opened.reading.watch(partition, key)
        log = partition.log
        if isolation_level == READ_AS_REPLICA and self.broker.selects_replicas:
            self.has_more |= self.opened.knows_less(key, log.high_watermark)
        if records is not None:
            size, topic = records.size_bytes, partition.topic_partition.topic
            self.bytes_found += size
            if isolation_level != READ_AS_REPLICA:
                self.found_by_topic[topic] = self.found_by_topic.get(topic, 0) + size
            self.has_more |= records.before_offset < partition.end(isolation_level)
        return PartitionData(
            wanted.partition,
            ErrorCode.NONE,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            aborted_transactions=aborted,
            records=_data(records),
        )

    def _is_held_back(self, partition: Partition, records: FileRecords | MemoryRecords) -> bool:
        """Whether a follower gets nothing for now, as what followers of such partitions got lately
        exceeds its rate. Followers in sync are not held back, but count."""
        broker, where = self.broker, partition.topic_partition
        throttles = broker.throttles
        if throttles.leader.rate is None:
            return False
        topic = broker.image.topics.get(where.topic)
        if topic is None or not throttles.gives(topic.configs, where):
            return False
        is_in_sync = self.opened.reading.replica_id in partition.replication.in_sync_replicas
        if not is_in_sync and throttles.leader.is_exceeded(broker.monotonic_ms()):
            return True
        self.throttled_bytes += records.size_bytes
        return False

    def _elsewhere(self, partition: Partition, wanted: FetchPartition) -> PartitionData | None:
        """The answer that sends a consumer to a follower near it; None: it reads here."""
        broker, leader = self.broker, partition.replication.leader
        if leader is None or not broker.selects_replicas or not leader.followers:
            return None
        partition.replication.check_leader(wanted.current_leader_epoch)
        nodes = broker.image.nodes(self.context.listener)
        racks = {node.node_id: rack for node, rack in nodes}
        offset = wanted.fetch_offset
        preferred = preferred_read_replica(leader, self.request.rack_id, racks, offset)
        if preferred is None:
            return None
        self.has_more = True  # nothing is waited for
        return replace(_without_records(partition), preferred_read_replica=preferred)

    def _lineage(
        self, partition: Partition, wanted: FetchPartition, *, only_leader: bool
    ) -> PartitionData | None:
        """Compares the reader's history with the log's: the answer where they part, else None. A
        follower's leader learns how far it is. ApiError."""
        partition.replication.check_reader(wanted.current_leader_epoch, only_leader=only_leader)
        parts_at = partition.check_lineage(wanted.last_fetched_epoch, wanted.fetch_offset)
        if parts_at is not None:
            self.has_errors = True  # nothing is waited for
            return replace(_without_records(partition), diverging_epoch=EpochEndOffset(*parts_at))
        if self.opened.reading.replica is not None and self.notes_followers:
            self.broker.follower_fetched(partition, self.opened.reading, wanted)
        return None

    def _partition(self, asked: Asked) -> Partition:
        """The partition asked for, of the very topic that the reader means. ApiError."""
        topic, topic_id, wanted = asked
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, str(topic_id))
        partition = self.broker.partition(topic, wanted.partition)
        if topic_id is not ZERO_UUID and self.broker.image.topics[topic].topic_id != topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic} is not {topic_id}")
        return partition

    def _refused(self, asked: Asked, error: ApiError) -> PartitionData:
        self.broker.note_storage_error(error)
        self.has_errors = True
        index, code = asked.partition.partition, error.error_code
        leader = LeaderIdAndEpoch()
        if code in NAMES_A_LEADER and asked.topic is not None:
            known = self.broker.image.partition(asked.topic, index)
            if known is not None:
                leader = LeaderIdAndEpoch(known.leader, known.leader_epoch)
        aborted = () if code in UNKNOWN_TOPIC else None  # the rest was refused by the log
        start = UNKNOWN_OFFSET
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self.opened.reading.replica is not None:
            start = self._partition(asked).log.log_start_offset  # where the follower goes on
        return PartitionData(
            index,
            code,
            UNKNOWN_OFFSET,
            log_start_offset=start,
            current_leader=leader,
            aborted_transactions=aborted,
            records=b"",
        )


def _framed(
    header: RequestHeader, session_id: int, asked: Asked, data: PartitionData
) -> Framed | None:
    """The answer about one partition; None if it needs a message."""
    records, aborted = data.records, data.aborted_transactions
    is_plain = not has_failed(data) and data.preferred_read_replica == UNKNOWN_OFFSET
    if not is_plain or aborted or records is None:
        return None
    by_id = header.api_version >= TOPIC_IDS_SINCE_V
    return framed_poll(
        header,
        session_id,
        asked.topic_id.bytes if by_id else asked.topic or "",
        data.partition_index,
        (data.high_watermark, data.last_stable_offset, data.log_start_offset),
        aborted is not None,
        records,  # type: ignore[arg-type]
        records_size(records),
    )


def _without_records(partition: Partition) -> PartitionData:
    """The answer about a partition whose records the reader does not get."""
    log = partition.log
    return PartitionData(
        partition.topic_partition.partition,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        records=b"",
    )


def _data(records: FileRecords | MemoryRecords | None) -> Buffer | FileRecords:
    if records is None:
        return b""
    return records.data if isinstance(records, MemoryRecords) else records


def _aborted(
    partition: Partition,
    offset: int,
    records: FileRecords | MemoryRecords | None,
    may_wait: bool,
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that a reader must leave out of `records`."""
    if records is None:
        return ()
    found = partition.aborted_transactions(offset, records.before_offset, may_wait=may_wait)
    return tuple(AbortedTransaction(each.producer_id, each.first_offset) for each in found)
