"""How one transactional id stands: its producer, and the transaction that it has open.     [P]

            partitions are added          EndTxn                    every partition has its marker
    EMPTY ───────────────────> ONGOING ──────────> PREPARE_COMMIT ──────────────> COMPLETE_COMMIT
      ^                        │ ^  │  ──────────> PREPARE_ABORT  ──────────────> COMPLETE_ABORT
      │     time is up, or the │ │  │                   ^                           │   │
      │     id is taken anew   v │  └ partitions        │                           │   │
      │        PREPARE_EPOCH_FENCE ─────────────────────┘                           │   │
      │                          └──────────────── partitions are added ────────────┘   │
      └─────────────────────────────────────────── the id is taken anew ────────────────┘
    and DEAD from EMPTY and both COMPLETE states: not heard of for long, forgotten

A commit or abort is decided once its PREPARE record is in the log: from then on it happens, whoever
coordinates. PREPARE_EPOCH_FENCE is passed through in memory and never written.

Owns   which states may follow which, and what each step changes.
Never  is changed: each step makes a new value, which `TransactionCoordinator` writes and replays.
Fails  on an illegal step, with an assert.
Source KIP-98, KIP-360 (epochs after errors); apache/kafka `TransactionMetadata`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from kafkalite.core.transactions.partitions import NO_PARTITIONS, Partitions
from kafkalite.core.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from kafkalite.errors import ErrorCode

EPOCH_MAX: Final = 32_767
EPOCHS_EXHAUSTED: Final = EPOCH_MAX - 1  # one is left, to fence the producer with


class TransactionState(IntEnum):
    """A transactional id's state, by its number in the log."""

    EMPTY = 0  # has a producer, and no transaction yet
    ONGOING = 1  # partitions are part of the transaction
    PREPARE_COMMIT = 2  # decided: markers are on their way
    PREPARE_ABORT = 3  # decided: markers are on their way
    COMPLETE_COMMIT = 4  # every partition has its marker
    COMPLETE_ABORT = 5  # every partition has its marker
    DEAD = 6  # about to be forgotten
    PREPARE_EPOCH_FENCE = 7  # the producer is shut out, its transaction about to be aborted

    @property
    def label(self) -> str:
        """The name that Kafka's tools show."""
        return self.name.title().replace("_", "")


EMPTY: Final = TransactionState.EMPTY
ONGOING: Final = TransactionState.ONGOING
PREPARE_COMMIT: Final = TransactionState.PREPARE_COMMIT
PREPARE_ABORT: Final = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT: Final = TransactionState.COMPLETE_ABORT
DEAD: Final = TransactionState.DEAD
PREPARE_EPOCH_FENCE: Final = TransactionState.PREPARE_EPOCH_FENCE

LEGAL: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    EMPTY: frozenset({EMPTY, ONGOING, DEAD}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE}),
    PREPARE_EPOCH_FENCE: frozenset({PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, DEAD}),
    DEAD: frozenset(),
}
DECIDED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
AT_REST: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id. Epoch −1: it was just made up, and no record says so yet."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int  # epoch ms
    producer_epoch: int = NO_EPOCH
    state: TransactionState = EMPTY
    partitions: Partitions = NO_PARTITIONS
    start_ms: int = NO_TIMESTAMP  # of the transaction, epoch ms
    last_producer_id: int = NO_PRODUCER_ID  # before this one; known until the coordinator changes
    last_producer_epoch: int = NO_EPOCH  # likewise

    @property
    def is_commit(self) -> bool:
        """The decision about a decided transaction."""
        return self.state is PREPARE_COMMIT

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether only the epoch is left with which the coordinator shuts the producer out."""
        return self.producer_epoch >= EPOCHS_EXHAUSTED

    @property
    def times_out_ms(self) -> int:
        """When an ongoing transaction is aborted, epoch ms."""
        return self.start_ms + self.longest_ms

    @property
    def longest_ms(self) -> int:
        """How long a transaction may be ongoing."""
        return self.timeout_ms + 1

    # -- the id is taken anew

    def knows(self, expected: ProducerIdentity) -> bool:
        """Whether a producer that says who it was may go on.

        It may as the producer that holds the id; as the one before, whose epochs were used up, for
        then the answer may have been lost; and where the coordinator has forgotten the id.
        """
        if self.producer_epoch == NO_EPOCH or expected.producer_id == self.producer_id:
            return True
        used_up = expected.producer_epoch >= EPOCHS_EXHAUSTED
        return used_up and expected.producer_id == self.last_producer_id

    def has_later_epoch_than(self, expected: ProducerIdentity | None) -> bool:
        """Whether the producer went on to an epoch, or an id, after the one that it says it has."""
        if expected is None:
            return False
        if expected.producer_id != self.producer_id:
            return expected.producer_id == self.last_producer_id
        return expected.producer_epoch < self.producer_epoch

    def needs_producer_id(self, expected: ProducerIdentity | None) -> bool:
        """Whether the id can be taken anew only with another producer id."""
        is_current = expected is None or expected.producer_epoch == self.producer_epoch
        return self.is_epoch_exhausted and is_current

    def rotated(
        self, producer_id: int, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """With another producer id, in its epoch 0."""
        last_epoch = NO_EPOCH if expected is None else self.producer_epoch
        return self._identified(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def bumped(
        self, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
    ) -> Transaction | ErrorCode:
        """In the next epoch; in the same one where the producer repeats a request that succeeded.

        PRODUCER_FENCED where another producer has taken the id meanwhile.
        """
        epoch, last_epoch = self.producer_epoch + 1, NO_EPOCH
        if expected is not None:
            if self.producer_epoch in (NO_EPOCH, expected.producer_epoch):
                last_epoch = self.producer_epoch
            elif expected.producer_epoch == self.last_producer_epoch:
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
            else:
                return ErrorCode.PRODUCER_FENCED
        return self._identified(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def _identified(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        return self._to(
            EMPTY,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
        )

    # -- the transaction

    def joined_by(self, partitions: Partitions, now_ms: int) -> Transaction:
        """With more partitions; the first ones begin it."""
        return self._to(
            ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=now_ms if self.state in AT_REST else self.start_ms,
            last_update_ms=now_ms,
        )

    def fenced(self, known_epoch: int = NO_EPOCH) -> Transaction:
        """The state after fencing; `known_epoch`, of an earlier try, may be in the log.

        The epoch is never given to a producer.
        """
        epoch = max(self.producer_epoch + 1, known_epoch)
        assert epoch <= EPOCH_MAX, f"{self.transactional_id}: epoch {self.producer_epoch}"
        return self._to(PREPARE_EPOCH_FENCE, producer_epoch=epoch, last_producer_epoch=NO_EPOCH)

    def decided(self, *, commit: bool, now_ms: int) -> Transaction:
        """To be committed or aborted, whatever happens."""
        return self._to(PREPARE_COMMIT if commit else PREPARE_ABORT, last_update_ms=now_ms)

    def completed(self, now_ms: int) -> Transaction:
        """Every partition has its marker."""
        state = COMPLETE_COMMIT if self.is_commit else COMPLETE_ABORT
        return self._to(state, partitions=NO_PARTITIONS, last_update_ms=now_ms)

    def forgotten(self) -> Transaction:
        """The state of an id that has expired."""
        return self._to(DEAD, partitions=NO_PARTITIONS)

    def _to(self, state: TransactionState, **changes: object) -> Transaction:
        step = f"{self.transactional_id}: {self.state.name} -> {state.name}"
        assert state in LEGAL[self.state], step
        changed = replace(self, state=state, **changes)  # type: ignore[arg-type]
        if changed.producer_id == self.producer_id:
            return changed
        return replace(changed, last_producer_id=self.producer_id)
