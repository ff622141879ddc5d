"""The batches that a producer holds until the brokers have them: by partition, in order.    [P]

    append ──> open batch ──close──> waiting ──drain──> in flight ──settle──> settled
                                        ^                   │
                                        └──── to retry ─────┘

A batch is encoded once, when it closes, and gets its sequence then; every retry sends the same
bytes, so a broker that has them already says so and appends nothing. At most `in_flight_max`
batches of a partition are in flight, and a batch that failed goes before all later ones. The first
batch of an epoch goes alone: a broker that knows no sequence of ours takes any for the first one,
the second batch's too if the first got lost.

A batch that fails for good leaves a gap in its partition's sequences. The gap is closed by a new
producer epoch for that partition, from sequence 0, once nothing of it is in flight: brokers keep
sequences by partition, so other partitions go on. When the epochs are used up the accumulator
asks for another producer id. Within a transaction nothing more is sent to the partition instead:
the transaction must be aborted, and the abort starts all partitions anew.

Owns   batches and sequences, the bytes they occupy, which partitions may send now.
Never  reads a clock or sends: the producer drains it and reports what came back.
Fails  a batch with ApiError once it is refused for good or older than `delivery_timeout_ms`.
Source KIP-98 (sequences), KIP-91 (delivery timeout), KIP-360 (epoch bump), KIP-480 (batching of
       keyless records); apache/kafka `RecordAccumulator`, `TransactionManager`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from kafkalite.clients.producer.batching import (
    OpenBatch,
    Waiter,
    check_bytes,
    halves,
    record_bytes,
    restamp,
)
from kafkalite.core.backoff import delay_ms
from kafkalite.core.protocol import records
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.types import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Columns,
    Headers,
    TopicPartition,
)
from kafkalite.errors import ApiError, ErrorCode

SEQUENCES: Final = 2**31  # a sequence is an Int32 that starts over at 0
EPOCH_MAX: Final = 2**15 - 1
NO_SEQUENCE: Final = -1

STALE_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
SEQUENCE_BROKEN: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How batches are made and how long they are tried. Times in ms."""

    batch_bytes: int = 524_288
    linger_ms: float = 0
    request_bytes_max: int = 1_048_576
    in_flight_max: int = 5
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    compression: Compression = Compression.NONE
    idempotent: bool = True
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """The producer's identity at the broker. Only the epoch changes, and only upwards."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(slots=True, eq=False)
class Batch:
    """One encoded record batch. `order` counts the partition's records, the sequence follows it."""

    topic_partition: TopicPartition
    data: bytes
    record_count: int
    order: int
    number: int
    created_ms: float
    waiters: Sequence[Waiter] = ()
    base_sequence: int = NO_SEQUENCE
    failures: int = 0
    retry_at_ms: float = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of sending a batch: a broker's answer, or its absence."""

    error_code: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    message: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """A batch's end: stored at `base_offset` (−1 if unknown), or failed."""

    batch: Batch
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: ApiError | None = None


@dataclass(slots=True, eq=False)
class Queue:
    """One partition's batches. `waiting` and `in_flight` are sorted by order."""

    topic_partition: TopicPartition
    identity: Identity
    open: OpenBatch | None = None
    waiting: deque[Batch] = field(default_factory=deque)
    in_flight: list[Batch] = field(default_factory=list)
    next_order: int = 0
    epoch_start: int = 0  # the order that has sequence 0 in the current epoch
    known: bool = False  # the broker has stored a batch of the current epoch
    broken: bool = False  # the sequences have a gap: a new epoch is due

    def is_empty(self) -> bool:
        """Whether nothing of the partition is left to send or to wait for."""
        return self.open is None and not self.waiting and not self.in_flight

    def requeue(self, batch: Batch) -> None:
        """Puts a batch back before all that came after it."""
        later = 0
        while later < len(self.waiting) and self.waiting[later].order < batch.order:
            later += 1
        self.waiting.insert(later, batch)


class Accumulator:
    """All queues of one producer. `buffered_bytes` is what they hold, to bound it from outside."""

    def __init__(self, settings: Settings, random: Random) -> None:
        self.settings = settings
        self.buffered_bytes = 0
        self.needs_producer_id = False
        self.stale_topics: set[str] = set()  # whose metadata a broker has called outdated
        self._random = random
        self._identity = Identity()
        self._queues: dict[TopicPartition, Queue] = {}
        self._busy: dict[TopicPartition, Queue] = {}  # not empty; who was served goes to the end
        self._outstanding: dict[int, int] = {}  # batch number -> how many batches bear it
        self._unencodable: list[Settled] = []
        self._next_number = 0

    # ---- in ----

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """The producer's id and epoch: once at the start, and again after `needs_producer_id`."""
        self._identity = Identity(producer_id, producer_epoch)
        self.needs_producer_id = False

    def append(
        self,
        topic_partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        whose: object,
        now_ms: float,
    ) -> None:
        """Adds one record to the open batch; `whose` comes back with the batch's end."""
        size = record_bytes(key, value, headers)
        queue = self._queue(topic_partition)
        into = self._open_with_room(queue, size, now_ms)
        into.append(key, value, timestamp_ms, headers, whose)
        into.size_bytes += size
        self.buffered_bytes += size

    def append_columns(
        self, topic_partition: TopicPartition, columns: Columns, size_bytes: int, now_ms: float
    ) -> None:
        """Adds columns of about `size_bytes`: to the open batch, or as a batch of their own.

        Raises TypeError for an entry that is no bytes; nothing is added then.
        """
        queue = self._queue(topic_partition)
        if columns.headers is None and 2 * size_bytes <= self.settings.batch_bytes:
            check_bytes(columns)
            self._open_with_room(queue, size_bytes, now_ms).extend(columns, size_bytes)
            self.buffered_bytes += size_bytes
            return
        if queue.open is not None:
            self._close(queue)
        number = self._number()
        try:
            self._enqueue(queue, columns, (), number, now_ms)
        finally:
            if not self._outstanding[number]:  # refused by the encoder
                del self._outstanding[number]

    def close_open(self) -> int:
        """Closes all open batches, for a flush. Returns the number of the last batch made."""
        for queue in list(self._busy.values()):
            if queue.open is not None:
                self._close(queue)
        return self._next_number - 1

    def has_settled(self, number: int) -> bool:
        """Whether every batch up to `number` has come to its end."""
        oldest = next(iter(self._outstanding), None)
        return oldest is None or oldest > number

    @property
    def topics(self) -> set[str]:
        """The topics that something is still to be sent to, or waited for."""
        return {topic for topic, _ in self._busy}

    def abandon(self, error: ApiError) -> list[Settled]:
        """Ends everything, as the producer closes. Callers that wait for a batch get `error`."""
        for queue in list(self._busy.values()):
            if queue.open is not None:
                self._close(queue)
        settled = self.take_unencodable()
        for queue in list(self._busy.values()):
            batches = [*queue.in_flight, *queue.waiting]
            queue.in_flight.clear()
            queue.waiting.clear()
            settled += [self._settled(batch, error=error) for batch in batches]
        return settled

    def _queue(self, topic_partition: TopicPartition) -> Queue:
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = Queue(topic_partition, self._identity)
        self._busy.setdefault(topic_partition, queue)
        return queue

    def _open_with_room(self, queue: Queue, size_bytes: int, now_ms: float) -> OpenBatch:
        into = queue.open
        if into is not None and into.size_bytes + size_bytes > self.settings.batch_bytes:
            self._close(queue)
            into = None
        if into is None:
            into = queue.open = OpenBatch(self._number(), now_ms)
        return into

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        self._outstanding[number] = 0
        return number

    def _close(self, queue: Queue) -> None:
        gathered, queue.open = queue.open, None
        assert gathered is not None
        self.buffered_bytes -= gathered.size_bytes
        columns, waiters = gathered.columns(), gathered.waiters
        try:
            self._enqueue(queue, columns, waiters, gathered.number, gathered.created_ms)
        except (TypeError, ValueError, OverflowError) as error:  # whoever handed it in has left
            why = f"{queue.topic_partition}: {len(columns):,} records, {error}"
            batch = Batch(
                queue.topic_partition, b"", 0, 0, gathered.number, gathered.created_ms, waiters
            )
            self._outstanding[gathered.number] += 1
            refused = ApiError(ErrorCode.INVALID_RECORD, why)
            self._unencodable.append(self._settled(batch, error=refused))

    def _enqueue(
        self,
        queue: Queue,
        columns: Columns,
        waiters: Sequence[Waiter],
        number: int,
        created_ms: float,
    ) -> None:
        """Encodes columns and lets them wait; in halves if one batch would be too large."""
        base_sequence = self._sequence(queue, queue.next_order)
        data = self._encoded(queue, columns, base_sequence)
        count = len(columns)
        if len(data) > self.settings.request_bytes_max and count > 1:
            for part, mine in halves(columns, waiters):
                self._enqueue(queue, part, mine, number, created_ms)
            return
        order, queue.next_order = queue.next_order, queue.next_order + count
        batch = Batch(
            queue.topic_partition, data, count, order, number, created_ms, waiters, base_sequence
        )
        queue.waiting.append(batch)
        self._outstanding[number] += 1
        self.buffered_bytes += len(data)

    def _encoded(self, queue: Queue, columns: Columns, base_sequence: int) -> bytes:
        return records.encode(
            columns,
            compression=self.settings.compression,
            producer_id=queue.identity.producer_id,
            producer_epoch=queue.identity.producer_epoch,
            base_sequence=base_sequence,
            transactional=self.settings.transactional,
        )

    def _sequence(self, queue: Queue, order: int) -> int:
        return (order - queue.epoch_start) % SEQUENCES if self.settings.idempotent else NO_SEQUENCE

    # ---- out ----

    def drain(
        self,
        leader_of: Callable[[TopicPartition], int | None],
        free: Mapping[int, int],
        now_ms: float,
        may_send: Callable[[TopicPartition], bool] | None = None,
    ) -> list[tuple[int, list[Batch]]]:
        """The requests to send now: (node id, one batch each of some of its partitions).

        `free[node_id]` is how many more requests the node may have in flight; nodes that are not
        in it get nothing. Topics whose leader is unknown join `stale_topics`. `may_send` is asked
        of each partition that has something to send.
        """
        by_node: dict[int, list[Queue]] = {}
        for topic_partition, queue in list(self._busy.items()):
            if self._next_batch(queue, now_ms) is None:
                continue
            if may_send is not None and not may_send(topic_partition):
                continue
            node_id = leader_of(topic_partition)
            if node_id is None:
                self.stale_topics.add(topic_partition.topic)
            elif free.get(node_id, 0) > 0:
                by_node.setdefault(node_id, []).append(queue)
        requests: list[tuple[int, list[Batch]]] = []
        for node_id, queues in by_node.items():
            for _ in range(free[node_id]):
                if not (batches := self._fill_request(queues, now_ms)):
                    break
                requests.append((node_id, batches))
        return requests

    def _fill_request(self, queues: list[Queue], now_ms: float) -> list[Batch]:
        """Takes one batch of each queue, as many as fit into a request; the first always fits."""
        taken: list[Batch] = []
        room = self.settings.request_bytes_max
        for queue in queues:
            batch = self._next_batch(queue, now_ms)
            if batch is None or (taken and len(batch.data) > room):
                continue
            room -= len(batch.data)
            queue.waiting.popleft()
            queue.in_flight.append(batch)
            taken.append(batch)
            self._busy[queue.topic_partition] = self._busy.pop(queue.topic_partition)
        return taken

    def _next_batch(self, queue: Queue, now_ms: float) -> Batch | None:
        """The batch that the partition may send now."""
        if queue.broken:
            if queue.in_flight or self.needs_producer_id or self.settings.transactional:
                return None
            self._start_epoch(queue)
            if queue.broken:
                return None
        is_unknown = self.settings.idempotent and not queue.known
        if len(queue.in_flight) >= (1 if is_unknown else self.settings.in_flight_max):
            return None
        if not queue.waiting:
            gathered = queue.open
            if gathered is None or now_ms < gathered.created_ms + self.settings.linger_ms:
                return None
            self._close(queue)
            if not queue.waiting:
                return None
        first = queue.waiting[0]
        if first.retry_at_ms > now_ms:
            return None
        # A retry waits for all that is in flight: those behind it come back to be sorted in.
        behind = self.settings.idempotent and first.failures and queue.in_flight
        return None if behind else first

    def _start_epoch(self, queue: Queue) -> None:
        """Numbers what waits from sequence 0 in a new epoch, or asks for a producer id."""
        epoch = queue.identity.producer_epoch
        if queue.identity.producer_id != self._identity.producer_id:
            queue.identity = self._identity
        elif epoch < EPOCH_MAX:
            queue.identity = Identity(queue.identity.producer_id, epoch + 1)
        else:
            self.needs_producer_id = True
            return
        queue.broken = queue.known = False
        # A failed batch took its records' numbers with it: those that wait close the ranks.
        queue.epoch_start = queue.next_order = 0
        for batch in queue.waiting:
            batch.order, queue.next_order = queue.next_order, queue.next_order + batch.record_count
            batch.base_sequence = self._sequence(queue, batch.order)
            batch.data = restamp(
                batch.data,
                queue.identity.producer_id,
                queue.identity.producer_epoch,
                batch.base_sequence,
            )

    # ---- back ----

    def acknowledge_all(self, batches: Sequence[Batch]) -> list[Settled]:
        """Ends batches that were sent with acks=0, which get no answer."""
        for batch in batches:
            self._queues[batch.topic_partition].in_flight.remove(batch)
        return [self._settled(batch) for batch in batches]

    def settle(self, batch: Batch, answer: Answer, now_ms: float) -> list[Settled]:
        """Takes a broker's word on a batch: ends it, or lets it wait for another try."""
        queue = self._queues[batch.topic_partition]
        queue.in_flight.remove(batch)
        code = answer.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.known = True
            return [self._settled(batch, answer.base_offset, answer.log_append_time_ms)]
        batch.last_error = answer.message or code.name
        if code in STALE_METADATA:
            self.stale_topics.add(batch.topic_partition.topic)
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.record_count > 1:
            self._split(queue, batch)
            return []
        if self.settings.idempotent and code in SEQUENCE_BROKEN:
            if not _is_behind_another(queue, batch):
                if self.settings.transactional:
                    return [self._failed(batch, code, answer.message)]
                queue.broken = True
        elif not code.is_retriable:
            return [self._failed(batch, code, answer.message)]
        self._retry(queue, batch, now_ms)
        return []

    def expire(self, now_ms: float) -> list[Settled]:
        """Ends the batches without an acknowledgement in time, except batches in flight."""
        oldest_ms = now_ms - self.settings.delivery_timeout_ms
        settled = self.take_unencodable()
        for queue in list(self._busy.values()):
            if queue.open is not None and queue.open.created_ms <= oldest_ms:
                self._close(queue)
            while queue.waiting and queue.waiting[0].created_ms <= oldest_ms:
                batch = queue.waiting.popleft()
                why = f"not acknowledged in {self.settings.delivery_timeout_ms / 1000:,g} s"
                if batch.last_error:
                    why += f", last error {batch.last_error}"
                settled.append(self._failed(batch, ErrorCode.REQUEST_TIMED_OUT, why))
        return settled

    def take_unencodable(self) -> list[Settled]:
        """Ends the batches that `drain` closed and could not encode."""
        settled, self._unencodable = self._unencodable, []
        return settled

    def drop_waiting(self, error: ApiError) -> list[Settled]:
        """Ends all that is not in flight: its transaction is aborted."""
        settled = self.take_unencodable()
        for queue in list(self._busy.values()):
            if queue.open is not None:
                self._close(queue)
            batches = list(queue.waiting)
            queue.waiting.clear()
            settled += [self._settled(batch, error=error) for batch in batches]
        return settled

    def restart(self, producer_id: int, producer_epoch: int) -> None:
        """All partitions begin anew in another epoch. Nothing may wait or be in flight."""
        assert not self._outstanding, f"{len(self._outstanding)} batches are not settled"
        self.identify(producer_id, producer_epoch)
        self._queues.clear()

    def _retry(self, queue: Queue, batch: Batch, now_ms: float) -> None:
        settings = self.settings
        batch.retry_at_ms = now_ms + delay_ms(
            batch.failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms, self._random
        )
        batch.failures += 1
        queue.requeue(batch)

    def _split(self, queue: Queue, batch: Batch) -> None:
        """Puts two halves in a batch's place, with the same sequences: none of it was stored."""
        order = batch.order
        for part, waiters in halves(records.decode(batch.data), batch.waiters):
            half = replace(batch, record_count=len(part), order=order, waiters=waiters)
            half.failures += 1
            half.base_sequence = self._sequence(queue, order)
            half.data = self._encoded(queue, replace(part, offsets=None), half.base_sequence)
            self.buffered_bytes += len(half.data)
            self._outstanding[batch.number] += 1
            queue.requeue(half)
            order += half.record_count
        self._forget(batch)

    def _failed(self, batch: Batch, code: ErrorCode, why: str) -> Settled:
        queue = self._queues[batch.topic_partition]
        queue.broken = self.settings.idempotent
        message = f"{batch.topic_partition}: {batch.record_count:,} records"
        return self._settled(batch, error=ApiError(code, f"{message}, {why}" if why else message))

    def _settled(
        self,
        batch: Batch,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        error: ApiError | None = None,
    ) -> Settled:
        self._forget(batch)
        if self._queues[batch.topic_partition].is_empty():
            self._busy.pop(batch.topic_partition, None)
        return Settled(batch, base_offset, log_append_time_ms, error)

    def _forget(self, batch: Batch) -> None:
        self.buffered_bytes -= len(batch.data)
        self._outstanding[batch.number] -= 1
        if not self._outstanding[batch.number]:
            del self._outstanding[batch.number]

    # ---- time ----

    def next_deadline_ms(self, now_ms: float) -> float | None:
        """When `drain` or `expire` will have something to do that they have not now."""
        moments: list[float] = []
        for queue in self._busy.values():
            if queue.open is not None:
                moments.append(queue.open.created_ms + self.settings.linger_ms)
                moments.append(queue.open.created_ms + self.settings.delivery_timeout_ms)
            if queue.waiting:
                first = queue.waiting[0]
                moments.append(first.retry_at_ms)
                moments.append(first.created_ms + self.settings.delivery_timeout_ms)
        return min((moment for moment in moments if moment > now_ms), default=None)


def _is_behind_another(queue: Queue, batch: Batch) -> bool:
    """Whether an earlier batch of the partition is outstanding, which explains a gap."""
    earlier = itertools.chain(queue.waiting, queue.in_flight)
    return any(other.order < batch.order for other in earlier)
