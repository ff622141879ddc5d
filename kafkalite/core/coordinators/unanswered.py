"""Requests that wait until the replicas have their records, but no longer than a time.      [P]

    append ──> wait ──committed, lost──> take: the replies are due
                 └──the time is up─────> overdue: errors; what becomes of the records is not known

A coordinator that is cut off from its followers takes requests and can answer none. Its clients are
to look for another one before their own time is up.

Owns   the replies of steps whose records are appended, in order.
Never  gives a reply twice.
Source apache/kafka `GroupCoordinatorConfig.offsetCommitTimeoutMs`, `CoordinatorRuntime`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kafkalite.core.coordinators.append_errors import with_append_error
from kafkalite.core.types import Reply
from kafkalite.errors import ErrorCode


@dataclass(slots=True, eq=False)
class Waiting:
    """The replies of one step."""

    deadline_ms: int
    replies: tuple[Reply, ...]

    def take(self) -> tuple[Reply, ...]:
        """The replies that nobody has been given yet."""
        replies, self.replies = self.replies, ()
        return replies


class Unanswered:
    """All that waits at the coordinators of one topic."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()  # in the order of their deadlines

    def wait(self, replies: tuple[Reply, ...], deadline_ms: int) -> Waiting:
        """Keeps replies until then; no deadline may be before an earlier one."""
        waiting = Waiting(deadline_ms, replies)
        self._drop_answered()
        if replies:
            self._waiting.append(waiting)
        return waiting

    def next_deadline_ms(self) -> int | None:
        """When something is overdue; None if nothing waits."""
        self._drop_answered()
        return self._waiting[0].deadline_ms if self._waiting else None

    def overdue(self, now_ms: int) -> tuple[Reply, ...]:
        """Replies with errors in the place of those whose time is up. A response that has no place
        for an error waits on, however long."""
        early: list[Reply] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            waiting = self._waiting.popleft()
            late: list[Reply] = []
            for reply in waiting.take():
                response = with_append_error(reply.response, ErrorCode.REQUEST_TIMED_OUT)
                if response is reply.response:
                    late.append(reply)
                else:
                    early.append(Reply(reply.token, response))
            waiting.replies = tuple(late)
        return tuple(early)

    def _drop_answered(self) -> None:
        while self._waiting and not self._waiting[0].replies:
            self._waiting.popleft()
