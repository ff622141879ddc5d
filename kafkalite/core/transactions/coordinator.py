"""The coordinator of the transactions of one `__transaction_state` partition.              [P]

How the runtime drives it is drawn in `machine`. Two of its effects come back as requests:

    TakeProducerId ──> the broker takes an id from its block ──> ProducerIdTaken
    WriteMarkers   ──> the leaders of the partitions         ──> MarkersWritten

One step of an id is on its way to the log at a time; whoever comes meanwhile is told
CONCURRENT_TRANSACTIONS. An end is answered once it is decided: the markers follow by themselves,
again and again until every partition has its own, and after a restart too.

Owns   the transactional ids of one partition, and when they time out and expire.
Never  reads a clock, writes a log or answers a socket.
Fails  with error codes in responses; `replay` with WireError on a record that is none.
Source KIP-98, KIP-360, KIP-588 (PRODUCER_FENCED), KIP-890 (verification); apache/kafka
       `TransactionCoordinator`, `TransactionStateManager`, `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.core.coordinators.append_errors import with_append_error
from kafkalite.core.coordinators.deadlines import Deadlines
from kafkalite.core.coordinators.machine import Record, Step
from kafkalite.core.protocol.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafkalite.core.transactions.partitions import NO_PARTITIONS, Partitions
from kafkalite.core.transactions.records import (
    decode_key,
    decode_value,
    transaction_record,
    transaction_tombstone,
)
from kafkalite.core.transactions.transaction import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DECIDED,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    ProducerIdentity,
    Transaction,
)
from kafkalite.core.types import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NOTHING,
    Now,
    Outcome,
    Reply,
    RequestContext,
    TopicPartition,
)
from kafkalite.errors import ErrorCode

RETRY_MS: Final = 500  # after markers that were not all written
SILENCE_MS: Final = 30_000  # markers of which nobody has said a word are written again
STEP_BYTES_MAX: Final = 262_144  # of the clock's records: a batch that is too large is refused
# What a marker is no longer needed for: it is there, or what it would end is not.
DONE: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The limits of transactions, by the names of Kafka's settings where it has them."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transactional_ids_max: int = 100_000  # of one coordinator


# ---- what comes from within the broker ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """A request: partitions are to be part of a transaction. Answered with an ErrorCode.

    What AddPartitionsToTxn asks, and AddOffsetsToTxn of the group's partition.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class ProducerIdTaken:
    """A request: `TakeProducerId` was done; the id, or why there is none."""

    request: InitProducerIdRequest
    producer_id: int | ErrorCode


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """A request: the results of the markers of `WriteMarkers`. It needs no answer."""

    transactional_id: str
    attempt: int
    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class TakeProducerId:
    """An effect: the request waits for a producer id."""

    request: InitProducerIdRequest
    context: RequestContext


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """An effect: write markers to the partitions that end the transaction.

    Each `attempt` of an id has a number: what is heard of an earlier one may be about the
    transaction before, which had the same producer and epoch.
    """

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    partitions: Partitions
    attempt: int


# ---- the machine -------------------------------------------------------------------------------


@dataclass(slots=True)
class Entry:
    """A transactional id: its state in the log, and its state under way."""

    transaction: Transaction
    pending: Transaction | None = None  # its record is on the way to the log
    pending_value: bytes | None = None  # of that record; None of a tombstone
    fenced_epoch: int = NO_EPOCH  # whose record may be in the log, though it was refused
    markers_missing: Partitions = NO_PARTITIONS
    writing_since_ms: int | None = None  # markers are on their way
    attempt: int = 0  # at markers, the last one

    @property
    def epoch(self) -> int:
        """Producers of older epochs are shut out."""
        return max(self.transaction.producer_epoch, self.fenced_epoch)


class TransactionCoordinator:
    """The machine of one `__transaction_state` partition."""

    only_last_counts = True

    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self.entries: dict[str, Entry] = {}  # by transactional id
        self._deadlines: Deadlines[str] = Deadlines()
        self._handlers: dict[type, Callable[[Any, RequestContext, Step], None]] = {
            InitProducerIdRequest: self._init_producer_id,
            ProducerIdTaken: self._producer_id_taken,
            AddPartitions: self._add_partitions,
            EndTxnRequest: self._end_transaction,
            MarkersWritten: self._markers_written,
        }

    def handle(self, request: Any, context: RequestContext, now: Now) -> Outcome[Record]:
        """The outcome of a request. TypeError for a request of another kind."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise TypeError(f"{type(request).__name__} is no request to a transaction coordinator")
        step = Step(now)
        handler(request, context, step)
        return step.outcome()

    def verify(
        self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition
    ) -> ErrorCode:
        """Whether the producer may write to the partition within its transaction now."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        entry = self.entries.get(transactional_id)
        if entry is None or entry.transaction.producer_id != identity.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != identity.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if entry.transaction.state in DECIDED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_part = partition in entry.transaction.partitions
        return ErrorCode.NONE if is_part else ErrorCode.INVALID_TXN_STATE

    # -- InitProducerId

    def _init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext, step: Step
    ) -> None:
        self._identify(request, None, context, step)

    def _producer_id_taken(
        self, taken: ProducerIdTaken, context: RequestContext, step: Step
    ) -> None:
        if isinstance(taken.producer_id, ErrorCode):
            _refuse_producer(taken.producer_id, context, step)
        else:
            self._identify(taken.request, taken.producer_id, context, step)

    def _identify(
        self,
        request: InitProducerIdRequest,
        new_id: int | None,
        context: RequestContext,
        step: Step,
    ) -> None:
        """Gives the transactional id to the caller, and fences its former holder."""
        error = self._why_not_identify(request)
        if error:
            _refuse_producer(error, context, step)
            return
        assert request.transactional_id is not None
        entry = self.entries.get(request.transactional_id)
        expected = _expected(request)
        needs_id = entry is None or entry.transaction.needs_producer_id(expected)
        if needs_id and new_id is None and not _is_busy(entry):
            step.effects.append(TakeProducerId(request, context))
            return
        if entry is None:
            assert new_id is not None
            entry = self._made_up(request.transactional_id, new_id, step.now.wall_ms)
        before = entry.transaction
        if entry.pending is not None:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        elif expected is not None and not before.knows(expected):
            error = ErrorCode.PRODUCER_FENCED
        elif before.state in DECIDED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        elif before.state is ONGOING and before.has_later_epoch_than(expected):
            error = ErrorCode.PRODUCER_FENCED  # it comes late, and harms no later transaction
        elif before.state is ONGOING:
            # The next attempt finds the transaction aborted, and gets an epoch of its own.
            self._fence(entry, step)
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error:
            _refuse_producer(error, context, step)
            return
        timeout_ms = request.transaction_timeout_ms
        after: Transaction | ErrorCode
        if new_id is not None and before.needs_producer_id(expected):
            after = before.rotated(new_id, expected, timeout_ms, step.now.wall_ms)
        else:
            after = before.bumped(expected, timeout_ms, step.now.wall_ms)
        if isinstance(after, ErrorCode):
            _refuse_producer(after, context, step)
            return
        self._write(entry, after, step)
        response = InitProducerIdResponse(
            producer_id=after.producer_id, producer_epoch=after.producer_epoch
        )
        step.reply(context.token, response)

    def _why_not_identify(self, request: InitProducerIdRequest) -> ErrorCode:
        name = request.transactional_id
        if not name:
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if name not in self.entries and len(self.entries) >= self._config.transactional_ids_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _made_up(self, transactional_id: str, producer_id: int, now_ms: int) -> Entry:
        made = Transaction(transactional_id, producer_id, 0, now_ms)
        entry = self.entries[transactional_id] = Entry(made)
        return entry

    # -- AddPartitionsToTxn, AddOffsetsToTxn

    def _add_partitions(self, request: AddPartitions, context: RequestContext, step: Step) -> None:
        entry = self.entries.get(request.transactional_id)
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        error = _why_not_go_on(entry, identity)
        if error or entry is None:
            step.reply(context.token, error)
            return
        before = entry.transaction
        if before.state in DECIDED:
            step.reply(context.token, ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        after = before.joined_by(request.partitions, step.now.wall_ms)
        if before.state is not ONGOING or after.partitions is not before.partitions:
            self._write(entry, after, step)
        step.reply(context.token, ErrorCode.NONE)

    # -- EndTxn

    def _end_transaction(self, request: EndTxnRequest, context: RequestContext, step: Step) -> None:
        entry = self.entries.get(request.transactional_id)
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        error = _why_not_go_on(entry, identity)
        if not error and entry is not None:
            if entry.transaction.state is ONGOING:
                after = entry.transaction.decided(commit=request.committed, now_ms=step.now.wall_ms)
                self._write(entry, after, step)
                _ask_for_markers(entry, after, after.partitions, step)
            else:
                error = _why_not_end(entry.transaction, commit=request.committed)
        step.reply(context.token, EndTxnResponse(error_code=error))

    def _fence(self, entry: Entry, step: Step) -> None:
        """Fences the producer and aborts its open transaction."""
        fenced = entry.transaction.fenced(entry.fenced_epoch)
        after = fenced.decided(commit=False, now_ms=step.now.wall_ms)
        self._write(entry, after, step)
        _ask_for_markers(entry, after, after.partitions, step)

    # -- markers

    def _markers_written(
        self, written: MarkersWritten, context: RequestContext, step: Step
    ) -> None:
        """Completes the transaction, if every partition has its marker."""
        entry = self.entries.get(written.transactional_id)
        if entry is None or entry.transaction.state not in DECIDED:
            return
        if written.attempt != entry.attempt:
            return
        entry.writing_since_ms = None
        assert len(written.errors) == len(entry.markers_missing), "each partition has its answer"
        entry.markers_missing = Partitions(
            where for where, error in written.errors.items() if error and error not in DONE
        )
        if not entry.markers_missing and entry.pending is None:
            self._write(entry, entry.transaction.completed(step.now.wall_ms), step)

    # -- time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, or a little before; None while nothing can be due."""
        return self._deadlines.next_ms()

    def tick(self, now: Now) -> Outcome[Record]:
        """Aborts transactions whose time is up, tries markers again, forgets silent ids."""
        step = Step(now)
        for transactional_id in self._deadlines.due(now.monotonic_ms):
            entry = self.entries[transactional_id]
            state = entry.transaction.state
            if state is ONGOING:
                wait_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
                if entry.pending is None:
                    self._fence(entry, step)
            elif state in DECIDED:
                wait_ms = RETRY_MS
                self._go_on(entry, step)
            else:
                wait_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
                left_ms = self._expires_ms(entry.transaction) - now.retention_ms
                if left_ms > 0:  # the clock was set: it is not as old as was foreseen
                    wait_ms = left_ms
                elif entry.pending is None:
                    entry.pending, entry.pending_value = entry.transaction.forgotten(), None
                    step.append(transaction_tombstone(transactional_id))
            # Once the record is replayed there is another deadline; if it is refused, this one.
            self._deadlines.set(transactional_id, now.monotonic_ms + wait_ms)
            if step.size_bytes >= STEP_BYTES_MAX:
                break
        return step.outcome()

    def _go_on(self, entry: Entry, step: Step) -> None:
        """Completes a transaction whose end is decided."""
        since_ms, now_ms = entry.writing_since_ms, step.now.monotonic_ms
        if entry.markers_missing and (since_ms is None or now_ms - since_ms >= SILENCE_MS):
            entry.writing_since_ms = now_ms
            _ask_for_markers(entry, entry.transaction, entry.markers_missing, step)
        elif not entry.markers_missing and entry.pending is None:
            self._write(entry, entry.transaction.completed(step.now.wall_ms), step)

    # -- the log

    def replay(
        self, key: bytes, value: bytes | None, now: Now, *, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Notes one record of the log, of this coordinator or of one before it."""
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        if value is None:
            self.entries.pop(transactional_id, None)
            self._deadlines.cancel(transactional_id)
            return
        entry = self.entries.get(transactional_id)
        # Our own step is not decoded: it also knows the producer before this one.
        ours = None if entry is None or entry.pending_value != value else entry.pending
        transaction = decode_value(transactional_id, value) if ours is None else ours
        before = None if entry is None else entry.transaction
        if entry is None:
            entry = self.entries[transactional_id] = Entry(transaction)
        entry.transaction, entry.fenced_epoch = transaction, NO_EPOCH
        entry.pending = entry.pending_value = None
        decided = transaction.state in DECIDED
        entry.markers_missing = transaction.partitions if decided else NO_PARTITIONS
        # Its effect follows.
        entry.writing_since_ms = now.monotonic_ms if decided and ours is not None else None
        if before is None or not _is_same_ongoing(before, transaction):
            self._deadlines.set(transactional_id, self._due_ms(transaction, now))

    def _due_ms(self, transaction: Transaction, now: Now) -> int:
        """When there is something to do, by the monotonic clock."""
        if transaction.state is ONGOING:
            # One from before a restart may have begun in what is the future by now.
            left_ms = min(transaction.times_out_ms - now.wall_ms, transaction.longest_ms)
        elif transaction.state in DECIDED:
            left_ms = RETRY_MS
        else:
            left_ms = self._expires_ms(transaction) - now.retention_ms
        return now.monotonic_ms + left_ms

    def _expires_ms(self, transaction: Transaction) -> int:
        """When an id at rest is forgotten, epoch ms."""
        return transaction.last_update_ms + self._config.transactional_id_expiration_ms

    def complete_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """No transaction writes to this log: a marker has no effect."""

    def topics_deleted(self, names: Collection[str], now: Now) -> Outcome[Record]:
        """Partitions that are gone need no marker; who writes the markers says so."""
        return NOTHING

    def loaded(self, now: Now) -> Outcome[Record]:
        """Carries out the ends that were decided before."""
        step = Step(now)
        for entry in self.entries.values():
            if entry.transaction.state in DECIDED:
                self._go_on(entry, step)
        return step.outcome()

    def append_failed(
        self, outcome: Outcome[Record], error: ErrorCode, now: Now
    ) -> Outcome[Record]:
        """Takes back the steps whose records did not reach the log; clients may try again.

        The epoch with which a producer was to be shut out counts all the same: nobody knows for
        sure that its record will not be read one day.
        """
        for key, _ in outcome.records:
            transactional_id = decode_key(key)
            assert transactional_id is not None, f"{key!r} is no key of ours"
            entry = self.entries[transactional_id]
            pending, entry.pending, entry.pending_value = entry.pending, None, None
            if pending is not None and pending.state is PREPARE_ABORT:
                entry.fenced_epoch = max(entry.fenced_epoch, pending.producer_epoch)
            if entry.transaction.producer_epoch == NO_EPOCH:
                del self.entries[transactional_id]
        replies = (Reply(r.token, with_append_error(r.response, error)) for r in outcome.replies)
        return Outcome(replies=tuple(replies))

    def resign(self, now: Now) -> Outcome[Record]:
        """No request waits here: records under way are answered when they are in the log."""
        return NOTHING

    def _write(self, entry: Entry, after: Transaction, step: Step) -> None:
        assert entry.pending is None, f"{after.transactional_id}: {entry.pending}, then {after}"
        key, value = transaction_record(after)
        entry.pending, entry.pending_value = after, value
        step.append((key, value))


def _identity(transaction: Transaction) -> ProducerIdentity:
    return ProducerIdentity(transaction.producer_id, transaction.producer_epoch)


def _expected(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """The producer's own claim of its id and epoch."""
    if request.producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def _is_busy(entry: Entry | None) -> bool:
    """Whether the id cannot be taken now, with or without a new producer id."""
    if entry is None:
        return False
    return entry.pending is not None or entry.transaction.state not in AT_REST


def _is_same_ongoing(before: Transaction, transaction: Transaction) -> bool:
    """Whether it is a transaction that goes on: then it has its deadline, whatever the clock is set
    to meanwhile."""
    is_ongoing = before.state is ONGOING and transaction.state is ONGOING
    return is_ongoing and before.start_ms == transaction.start_ms


def _ask_for_markers(
    entry: Entry, transaction: Transaction, partitions: Partitions, step: Step
) -> None:
    entry.attempt += 1
    step.effects.append(
        WriteMarkers(
            transaction.transactional_id,
            _identity(transaction),
            transaction.is_commit,
            partitions,
            entry.attempt,
        )
    )


def _why_not_go_on(entry: Entry | None, identity: ProducerIdentity) -> ErrorCode:
    """Why the producer may not say anything about its transaction now."""
    if entry is None or entry.transaction.producer_id != identity.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if entry.epoch != identity.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if entry.pending is not None else ErrorCode.NONE


def _why_not_end(transaction: Transaction, *, commit: bool) -> ErrorCode:
    """The answer to ending a transaction that is not ongoing; repeating an end is no error."""
    if transaction.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return ErrorCode.NONE
    if transaction.state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    assert transaction.state in AT_REST | DECIDED, transaction
    return ErrorCode.INVALID_TXN_STATE


def _refuse_producer(error: ErrorCode, context: RequestContext, step: Step) -> None:
    response = InitProducerIdResponse(error_code=error, producer_epoch=NO_EPOCH)
    step.reply(context.token, response)
