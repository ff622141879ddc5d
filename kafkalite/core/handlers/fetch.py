"""Fetch: whole batches from the log, now or when enough of them have come.                 [D]

A consumer sees records below the high watermark, and under read_committed below the last stable
offset, with the aborted transactions in what it is given. Too few bytes wait until what becomes
readable in the partitions asked for is enough; then, or at the deadline, the partitions that have
changed are read again and all is answered as it is. Nothing is waited for while a partition has
more to read than the answer holds: the next append would bring nothing sooner.

Which partitions a request is about, and which of them an answer tells of, is for `broker.sessions`;
which of them must be read, for `broker.reading`.

Source KIP-74 (size limits), KIP-98 (isolation), KIP-227 (sessions), KIP-516 (topic ids), KIP-951
(leaders in answers); apache/kafka `ReplicaManager`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.broker.reading import Asked, Key
from kafkalite.core.broker.sessions import OpenFetch
from kafkalite.core.handlers.routes import handles
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.protocol.primitives import ZERO_UUID, Buffer
from kafkalite.core.protocol.produce import LeaderIdAndEpoch, NodeEndpoint
from kafkalite.core.replicas.partition import READ_COMMITTED, READ_UNCOMMITTED, Partition
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

CONSUMER: Final = -1
UNKNOWN_OFFSET: Final = -1
TOPIC_IDS_SINCE_V: Final = 13
LEADERS_SINCE_V: Final = 16
UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
NAMES_A_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


@handles(ApiKey.FETCH, versions=(4, 16))
def fetch(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> FetchResponse | Pending[FetchResponse]:
    """What there is, if it is enough, an error, or all that may be waited for."""
    if request.replica_id != CONSUMER or request.replica_state.replica_id != CONSUMER:
        return _refuse_follower(request)
    by_id = context.api_version >= TOPIC_IDS_SINCE_V
    now_ms = broker.monotonic_ms()
    opened = broker.fetch_sessions.open(request, broker.image.names, by_id, now_ms)
    if isinstance(opened, ErrorCode):
        return FetchResponse(error_code=opened)
    fetching = _Fetching(broker, request, opened, context)
    fetching.read()
    missing = request.min_bytes - fetching.bytes_found
    if missing > 0 and fetching.may_wait and request.max_wait_ms > 0:
        pending: Pending[FetchResponse] = Pending()
        if _wait(fetching, pending, missing, now_ms + request.max_wait_ms):
            return pending
    return fetching.answer()


def _refuse_follower(request: FetchRequest) -> FetchResponse:
    """Replication is not built: whoever fetches as a follower is told so for each partition."""
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic.topic,
                topic.topic_id,
                tuple(
                    PartitionData(p.partition, code, UNKNOWN_OFFSET, records=b"")
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _wait(
    fetching: _Fetching, pending: Pending[FetchResponse], missing: int, deadline_ms: int
) -> bool:
    """Parks the fetch until `missing` bytes more can be read; False if there is no room to."""
    broker, opened = fetching.broker, fetching.opened

    def finish() -> None:
        if pending.is_abandoned:  # after the event, before its turn: it must not wait on
            return
        if opened.is_superseded:
            pending.complete(fetching.answer())
            return
        opened.reading.unpark()
        fetching.read()
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
    request: FetchRequest
    opened: OpenFetch
    context: RequestContext
    bytes_found: int = 0
    found_by_topic: dict[str, int] = field(default_factory=dict)
    has_errors: bool = False
    has_more: bool = False  # a partition has more to read than was found

    @property
    def may_wait(self) -> bool:
        """Whether what was read gives no reason to answer at once, and something was asked for."""
        return not self.has_errors and not self.has_more and bool(self.opened.reading.asked)

    def read(self) -> None:
        """What may have changed in each partition, in their order, within the max_bytes."""
        self.bytes_found = 0
        self.found_by_topic.clear()
        self.has_errors = self.has_more = False
        reading = self.opened.reading
        asked, found = reading.asked, reading.found
        committed = self.request.isolation_level == READ_COMMITTED
        stale: set[Key] = set()
        for key in reading.stale(READ_COMMITTED if committed else READ_UNCOMMITTED):
            found[key] = self._read(key, asked[key], committed, stale)
        reading.looked(stale)

    def answer(self) -> FetchResponse:
        """What its reader is told of what was found."""
        broker, found = self.broker, self.opened.reading.found
        for topic, byte_count in self.found_by_topic.items():
            broker.metrics.fetched(topic, byte_count)
        response = broker.fetch_sessions.answer(self.opened, broker.monotonic_ms)
        if self.has_errors and self.context.api_version >= LEADERS_SINCE_V:
            named = {data.current_leader.leader_id for data in found.values()}
            return replace(response, node_endpoints=self._endpoints(named))
        return response

    def _endpoints(self, node_ids: set[int]) -> tuple[NodeEndpoint, ...]:
        """Where the client reaches those of these brokers that it can reach."""
        nodes = self.broker.image.nodes(self.context.listener)
        return tuple(NodeEndpoint(*node, rack) for node, rack in nodes if node.node_id in node_ids)

    def _read(self, key: Key, asked: Asked, committed: bool, stale: set[Key]) -> PartitionData:
        """What one partition has; `stale` takes it in unless a look before it changes is idle."""
        request, wanted = self.request, asked.partition
        bytes_max = min(request.max_bytes, self.broker.fetch_bytes_max) - self.bytes_found
        isolation_level = READ_COMMITTED if committed else READ_UNCOMMITTED
        try:
            partition = self._partition(asked)
            records = partition.read(
                wanted.fetch_offset,
                max(0, min(wanted.partition_max_bytes, bytes_max)),
                isolation_level,
                wanted.current_leader_epoch,
            )
            if records is not None:
                stale.add(key)
                # The first batch comes whole however large it is, but only one such an answer.
                if self.bytes_found and records.size_bytes > bytes_max:
                    records, self.has_more = None, True
            aborted = _aborted(partition, wanted.fetch_offset, records) if committed else None
        except ApiError as error:
            stale.add(key)
            return self._refused(asked, error)
        self.opened.reading.watch(partition, key)
        log = partition.log
        if records is not None:
            size, topic = records.size_bytes, partition.topic_partition.topic
            self.bytes_found += size
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
        return PartitionData(
            index,
            code,
            UNKNOWN_OFFSET,
            current_leader=leader,
            aborted_transactions=aborted,
            records=b"",
        )


def _data(records: FileRecords | MemoryRecords | None) -> Buffer | FileRecords:
    if records is None:
        return b""
    return records.data if isinstance(records, MemoryRecords) else records


def _aborted(
    partition: Partition, offset: int, records: FileRecords | MemoryRecords | None
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that a reader must leave out of `records`."""
    if records is None:
        return ()
    return tuple(
        AbortedTransaction(aborted.producer_id, aborted.first_offset)
        for aborted in partition.log.aborted_transactions(offset, records.before_offset)
    )
