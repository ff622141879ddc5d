"""What an operator is told of transactions.                                                [P]

Source KIP-664, KIP-994 (by duration); apache/kafka `TransactionStateManager.listTransactionStates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kafkalite.core.protocol.transactions import (
    ListedTransaction,
    ListTransactionsRequest,
)
from kafkalite.core.protocol.transactions import TransactionState as DescribedTransaction
from kafkalite.core.transactions.coordinator import Entry
from kafkalite.core.transactions.partitions import NO_PARTITIONS, Partitions
from kafkalite.core.transactions.transaction import DEAD, DECIDED, TransactionState
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import ErrorCode

STATES: Final = {state.label: state for state in TransactionState}


def described(
    entries: Mapping[str, Entry], transactional_id: str
) -> tuple[DescribedTransaction, Partitions]:
    """How one transactional id stands, and its partitions, which the description still lacks: of a
    decided transaction, those that still need their marker."""
    entry = entries.get(transactional_id)
    if entry is None or not _is_known(entry):
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribedTransaction(code, transactional_id), NO_PARTITIONS
    transaction = entry.transaction
    is_decided = transaction.state in DECIDED
    description = DescribedTransaction(
        ErrorCode.NONE,
        transactional_id,
        transaction.state.label,
        transaction.timeout_ms,
        transaction.start_ms,
        transaction.producer_id,
        transaction.producer_epoch,
    )
    return description, entry.markers_missing if is_decided else transaction.partitions


def filter_of(request: ListTransactionsRequest, now_ms: int) -> Callable[[Entry], bool]:
    """Whether the filters of a request let a transactional id through."""
    states = {STATES[name] for name in request.state_filters if name in STATES}
    producer_ids = frozenset(request.producer_id_filters)
    longest_ms = request.duration_filter  # -1: any

    def passes(entry: Entry) -> bool:
        transaction = entry.transaction
        return (
            _is_known(entry)
            and (not request.state_filters or transaction.state in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (longest_ms < 0 or now_ms - transaction.start_ms > longest_ms)
        )

    return passes


def listed(transactional_id: str, entry: Entry) -> ListedTransaction:
    """One line of a list of transactions."""
    transaction = entry.transaction
    return ListedTransaction(transactional_id, transaction.producer_id, transaction.state.label)


def unknown_states(request: ListTransactionsRequest) -> tuple[str, ...]:
    """Filters that name no state."""
    return tuple(name for name in request.state_filters if name not in STATES)


def _is_known(entry: Entry) -> bool:
    """Whether the log speaks of the id, and will go on to."""
    going = entry.pending is not None and entry.pending.state is DEAD
    return entry.transaction.producer_epoch != NO_EPOCH and not going
