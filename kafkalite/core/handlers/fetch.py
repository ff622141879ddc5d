"""Fetch: whole batches from the log, now or when enough of them have come.                 [P]

A consumer sees what lies below the high watermark, and under read_committed below the last stable
offset. Too few bytes wait in purgatory, which counts what becomes readable in the partitions asked
for; then, or at the deadline, everything is read again and answered as it is.

No fetch sessions are kept: every answer says session 0, and clients go on with full requests.

Source KIP-74 (size limits), KIP-98 (isolation), KIP-227 (sessions); apache/kafka `ReplicaManager`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import handles
from kafkalite.core.partition import READ_COMMITTED, READ_UNCOMMITTED
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.purgatory import DelayedFetch
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker

CONSUMER: Final = -1
FULL_FETCH_EPOCHS: Final = (0, -1)  # begins a session, ends one: legal without one
UNKNOWN_OFFSET: Final = -1


@handles(ApiKey.FETCH, versions=(4, 12))
def fetch(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> FetchResponse | Pending[FetchResponse]:
    """What there is, if it is enough, an error, or all that may be waited for."""
    if request.session_id != 0 and request.session_epoch not in FULL_FETCH_EPOCHS:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if request.replica_id != CONSUMER:
        return _refuse_follower(request)
    attempt = _Attempt(broker, request)
    response = attempt.read()
    missing = request.min_bytes - attempt.bytes_found
    if missing <= 0 or attempt.has_errors or request.max_wait_ms <= 0 or not request.topics:
        return response
    pending: Pending[FetchResponse] = Pending()
    deadline_ms = broker.now_ms() + request.max_wait_ms
    if not _wait(broker, request, pending, missing, deadline_ms):
        return response
    return pending


def _refuse_follower(request: FetchRequest) -> FetchResponse:
    """Replication is not built: whoever fetches as a follower is told so for each partition."""
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    PartitionData(p.partition, code, UNKNOWN_OFFSET, records=b"")
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _wait(
    broker: Broker,
    request: FetchRequest,
    pending: Pending[FetchResponse],
    missing: int,
    deadline_ms: int,
) -> bool:
    """Parks the fetch until `missing` bytes more can be read; False if there is no room to."""

    def finish() -> None:
        attempt = _Attempt(broker, request)
        response = attempt.read()
        still_missing = request.min_bytes - attempt.bytes_found
        # What became readable may lie behind an open transaction, or be less than it was.
        waits_on = (
            still_missing > 0
            and not attempt.has_errors
            and broker.now_ms() < deadline_ms
            and _wait(broker, request, pending, still_missing, deadline_ms)
        )
        if not waits_on:
            pending.complete(response)

    operation: DelayedFetch[TopicPartition] = DelayedFetch(finish, missing)
    keys = [TopicPartition(t.topic, p.partition) for t in request.topics for p in t.partitions]
    if not broker.park(operation, keys, deadline_ms):
        return False
    pending.when_abandoned(lambda: broker.forget(operation))
    return True


@dataclass(slots=True)
class _Attempt:
    """One reading of all partitions that a request asks for."""

    broker: Broker
    request: FetchRequest
    bytes_found: int = 0
    has_errors: bool = False

    def read(self) -> FetchResponse:
        """Every partition's answer, in the order asked for, within the request's max_bytes."""
        return FetchResponse(
            responses=tuple(
                FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=tuple(self._read(topic.topic, each) for each in topic.partitions),
                )
                for topic in self.request.topics
            )
        )

    def _read(self, topic: str, wanted: FetchPartition) -> PartitionData:
        request = self.request
        bytes_max = min(request.max_bytes, self.broker.fetch_bytes_max) - self.bytes_found
        committed = request.isolation_level == READ_COMMITTED
        try:
            partition = self.broker.partition(topic, wanted.partition)
            isolation_level = READ_COMMITTED if committed else READ_UNCOMMITTED
            records = partition.read(
                wanted.fetch_offset,
                max(0, min(wanted.partition_max_bytes, bytes_max)),
                isolation_level,
                wanted.current_leader_epoch,
            )
        except ApiError as error:
            self.broker.note_storage_error(error)
            self.has_errors = True
            return PartitionData(wanted.partition, error.error_code, UNKNOWN_OFFSET, records=b"")
        log = partition.log
        # The first batch comes whole however large it is, but only one such an answer.
        if records is not None and self.bytes_found and records.size_bytes > bytes_max:
            records = None
        if records is not None:
            self.bytes_found += records.size_bytes
        return PartitionData(
            wanted.partition,
            ErrorCode.NONE,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            aborted_transactions=() if committed else None,
            records=b"" if records is None else records,
        )
