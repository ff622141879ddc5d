"""A producer's own view of its transactions.                                               [P]

            begin                  commit                      the coordinator has decided
    READY ────────> IN_TRANSACTION ──────────> COMMITTING ────────────────────────────────> READY
      ^                 │   │ abort                 │ some records did not arrive
      │     it failed   │   └──────────> ABORTING   │
      │                 v      abort        ^ │     │
      │             ABORTABLE ──────────────┘ │     │
      │                 ^                     │     │
      │                 └─────────────────────┼─────┘
      └───────────────────────────────────────┘
    and FENCED from everywhere: another producer has the transactional id

A partition becomes part of a transaction before anything is sent to it, and is so until the end.

Owns   the state, the partitions of the transaction and the waiting ones, the first error.
Never  sends: `Transactional` asks the coordinator and reports the answers.
Fails  with ApiError where only an abort, or nothing, helps; RuntimeError where the order of calls
       is wrong.
Source KIP-98, KIP-360 (epoch after a failure), KIP-588; apache/kafka `TransactionManager`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode


class ProducerState(Enum):
    """The state of a transactional producer."""

    NEW = "has no producer id yet"
    READY = "is between transactions: begin one first"
    IN_TRANSACTION = "is in a transaction"
    ABORTABLE = "has failed within its transaction: abort it"
    COMMITTING = "is committing its transaction"
    ABORTING = "is aborting its transaction"
    FENCED = "is fenced: another producer has its transactional id"


NEW: Final = ProducerState.NEW
READY: Final = ProducerState.READY
IN_TRANSACTION: Final = ProducerState.IN_TRANSACTION
ABORTABLE: Final = ProducerState.ABORTABLE
COMMITTING: Final = ProducerState.COMMITTING
ABORTING: Final = ProducerState.ABORTING
FENCED: Final = ProducerState.FENCED

LEGAL: Final[Mapping[ProducerState, frozenset[ProducerState]]] = {
    NEW: frozenset({READY, FENCED}),
    READY: frozenset({IN_TRANSACTION, FENCED}),
    IN_TRANSACTION: frozenset({COMMITTING, ABORTING, ABORTABLE, FENCED}),
    ABORTABLE: frozenset({ABORTING, FENCED}),
    COMMITTING: frozenset({READY, ABORTABLE, FENCED}),
    ABORTING: frozenset({READY, FENCED}),
    FENCED: frozenset(),
}
FENCING: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class ProducerTransaction:
    """The transactions of one transactional id, one after the other."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id: Final = transactional_id
        self.state = NEW
        self.error: ApiError | None = None  # of the first thing that failed in the transaction
        self.was_announced = False  # the coordinator may know of the transaction
        # Sequences have a gap that only a new epoch closes, or a request has had no answer.
        self.needs_epoch = False
        self._partitions: set[TopicPartition] = set()
        self._waiting: dict[TopicPartition, None] = {}

    # -- what may be done now

    def check_in_transaction(self) -> None:
        """Raises ApiError or RuntimeError if records and offsets are not accepted now."""
        if self.state is IN_TRANSACTION:
            return
        if self.error is not None:
            raise self.error
        raise RuntimeError(self._describe())

    def check_not_fenced(self) -> None:
        """Raises ApiError if another producer has the id."""
        if self.state is FENCED and self.error is not None:
            raise self.error

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether the partition is part of the transaction; if not, it waits to be added."""
        if partition in self._partitions:
            return self.state in (IN_TRANSACTION, COMMITTING)
        if self.state is IN_TRANSACTION:
            self._waiting[partition] = None
        return False

    @property
    def waiting(self) -> tuple[TopicPartition, ...]:
        """Partitions that are to become part of the transaction."""
        return tuple(self._waiting)

    @property
    def is_committed(self) -> bool:
        """Whether the commit is decided, and only the next epoch is to come."""
        return self.state is COMMITTING and not self.was_announced

    # -- what happens

    def identified(self) -> None:
        """There is a producer id, or a new epoch of it."""
        self.needs_epoch = False
        if self.state is NEW:
            self._become(READY)

    def begin(self) -> None:
        """A transaction begins, in memory alone."""
        self.check_not_fenced()
        if self.state is not READY:
            raise RuntimeError(self._describe())
        self._become(IN_TRANSACTION)

    def announced(self) -> None:
        """The coordinator is asked to take something in: from now on it may know."""
        self.was_announced = True

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are part of the transaction."""
        for partition in partitions:
            self._partitions.add(partition)
            self._waiting.pop(partition, None)

    def failed(self, error: ApiError) -> None:
        """Something did not work: only an abort helps, or nothing."""
        if self.state is FENCED:
            return
        self.error = self.error or error
        self._waiting.clear()
        if self.state in (IN_TRANSACTION, COMMITTING):
            self._become(ABORTABLE)

    def fenced(self, error: ApiError) -> None:
        """Another producer has the id."""
        if self.state is not FENCED:
            self.error = error
            self._waiting.clear()
            self._become(FENCED)

    def committing(self) -> None:
        """All was sent and acknowledged; the end is to be decided. May be said again."""
        if self.state is not COMMITTING:
            self.check_in_transaction()
            self._become(COMMITTING)

    def aborting(self) -> None:
        """Nothing more is sent; the end is to be decided. May be said again."""
        if self.state is ABORTING:
            return
        self.check_not_fenced()
        if self.state not in (IN_TRANSACTION, ABORTABLE):
            raise RuntimeError(self._describe())
        self._waiting.clear()
        self._become(ABORTING)

    def decided(self) -> None:
        """The coordinator has decided the end, and need not be asked again."""
        self.was_announced = False

    def ended(self) -> None:
        """The end is decided, and the next transaction may begin."""
        self._partitions.clear()
        self._waiting.clear()
        self.error, self.was_announced = None, False
        self._become(READY)

    def _describe(self) -> str:
        return f"the producer {self.transactional_id} {self.state.value}"

    def _become(self, state: ProducerState) -> None:
        step = f"{self.transactional_id}: {self.state.name} -> {state.name}"
        assert state in LEGAL[self.state], step
        self.state = state
