"""Answers of one connection that come out of order and leave in order.                     [P]

    add ──> [ write 1: waits ][ write 2: answered ][ write 3: waits ] ──due──> in this order

A write that is in the log waits for other brokers, or for the disk. The peer's next write need not
wait for that: then many writes are replicated, or synced, together.

Owns   the answers that wait, or that wait for those before them.
Source the order of answers: Kafka's protocol guide, "Network".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.core.pending import Pending
from kafkalite.core.protocol.connection import RequestHeader, RequestReceived, UnknownApi

WRITES_MAX: Final = 100  # of one connection


@dataclass(slots=True, eq=False)
class Ahead:
    """One request, and its answer once that is there."""

    header: RequestHeader
    counters: Any  # of the requests of its API
    began: float
    pending: Pending[Any] | None = None
    response: Any = None


class AnswersAhead(deque[Ahead]):
    """The answers that are due before that of the next request, in order."""

    @property
    def is_full(self) -> bool:
        """Whether no other request is taken before one of these is answered."""
        return len(self) >= WRITES_MAX

    def may_follow(self, request: RequestReceived | UnknownApi) -> bool:
        """Whether a request may be taken while these wait: one of their kind."""
        first = self[0].header
        return isinstance(request, RequestReceived) and request.header.api_key is first.api_key

    def due(self) -> Iterator[Ahead]:
        """Takes out those that are answered, up to the first that is not."""
        while self and self[0].response is not None:
            yield self.popleft()

    def abandon(self) -> None:
        """Nobody wants the answers any more."""
        while self:
            if (pending := self.popleft().pending) is not None:
                pending.abandon()
