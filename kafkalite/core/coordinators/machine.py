"""The interface between a coordinator's machine and the runtime that carries out its effects. [P]

    runtime                                   machine
    a request ──────────────────────────────> handle ──> records, replies, effects
    append the records, wait until committed
    each record, in the log's order ────────> replay
    send the replies, run the effects
    the log refuses them ───────────────────> append_failed ──> replies
    a marker in the machine's own log ──────> complete_transaction
    at next_deadline_ms() ──────────────────> tick   ──> records, replies, effects
    the log, when leadership begins ────────> replay of every record, then loaded
    leadership ends ────────────────────────> resign ──> replies; the machine is dropped

Owns   nothing: `Machine` is the shape of `GroupCoordinator` and of `TransactionCoordinator`.
Source apache/kafka `CoordinatorShard`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafkalite.core.types import NO_PRODUCER_ID, Now, Outcome, Reply, RequestContext
from kafkalite.errors import ErrorCode

Record = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class AppendInTransaction:
    """An effect: the step's records are to be appended in a batch of this producer's transaction.

    They are replayed with its producer id, and count once its marker does.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Step:
    """The outcome of a machine's step so far: each part of the machine adds to it."""

    now: Now
    records: list[Record] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    effects: list[object] = field(default_factory=list)
    size_bytes: int = 0  # of the records

    def append(self, *records: Record) -> None:
        """Asks for records to be appended to the log."""
        self.records += records
        self.size_bytes += sum(len(key) + len(value or b"") for key, value in records)

    def reply(self, token: Any, response: object) -> None:
        """Answers a request, once the records are in force."""
        self.replies.append(Reply(token, response))

    def outcome(self) -> Outcome[Record]:
        """All of it, for the runtime."""
        return Outcome(tuple(self.records), tuple(self.replies), tuple(self.effects))


class Machine(Protocol):
    """The machine of one partition of a coordinator's topic.

    `only_last_counts`: its state depends on the last record of each key alone, so the others need
    no replay.
    """

    only_last_counts: bool

    def handle(self, request: Any, context: RequestContext, now: Now) -> Outcome[Record]:
        """The outcome of a request. A later step may answer it."""

    def replay(
        self, key: bytes, value: bytes | None, now: Now, *, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Notes one record of the log; WireError if it does not read.

        `producer_id` is that of a record in a transactional batch, −1 in any other.
        """

    def complete_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Notes a transaction's marker, in the log's order with the records."""

    def topics_deleted(self, names: Collection[str], now: Now) -> Outcome[Record]:
        """Topics are gone."""

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, or a little before; None while nothing can be due."""

    def tick(self, now: Now) -> Outcome[Record]:
        """Does all that is due."""

    def loaded(self, now: Now) -> Outcome[Record]:
        """The whole log has been replayed. Returns the work before the first request."""

    def append_failed(
        self, outcome: Outcome[Record], error: ErrorCode, now: Now
    ) -> Outcome[Record]:
        """The replies in the place of `outcome`, whose records did not get into the log."""

    def resign(self, now: Now) -> Outcome[Record]:
        """Answers all waiting requests. The machine is of no use afterwards."""
