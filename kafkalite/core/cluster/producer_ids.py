"""The producer ids that this broker may give away, a block of them at a time.              [P]

Owns   the current block, and the requests that wait for the next one. No id is given twice.
Never  asks for more than one block at once.
Source KIP-730.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kafkalite.core.pending import Pending
from kafkalite.errors import ApiError


class ProducerIds:
    """Gives away ids; `request_block` is called when there are none left."""

    def __init__(self, request_block: Callable[[], None]) -> None:
        self._request_block = request_block
        self._left = iter(range(0))
        self._waiting: deque[Pending[int | ApiError]] = deque()

    def take(self) -> Pending[int | ApiError]:
        """An id, or the error with which the next block was refused."""
        pending: Pending[int | ApiError] = Pending()
        producer_id = next(self._left, None)
        if producer_id is not None:
            pending.complete(producer_id)
            return pending
        self._waiting.append(pending)
        if len(self._waiting) == 1:
            self._request_block()
        return pending

    def add_block(self, first: int, size: int) -> None:
        """The block that was asked for: the ids [first, first + size)."""
        self._left = iter(range(first, first + size))
        while self._waiting and (producer_id := next(self._left, None)) is not None:
            self._waiting.popleft().complete(producer_id)
        if self._waiting:
            self._request_block()

    def refuse(self, error: ApiError) -> None:
        """No block can be had: waiting requests get the error, and the next `take` asks again."""
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.complete(error)
