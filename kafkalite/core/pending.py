"""An answer that is not there yet.                                                         [P]

A handler that must wait (a long poll, a join, the controller) returns a `Pending` at once. The part
that learns the answer completes it, and the connection, which asked for it by `when_done`, writes
it. If the peer leaves before that, the connection abandons it, and its parked operation can go.

An answer may also fail, or turn out to be none (Produce with acks=0): then the connection is given
the error, or NO_ANSWER.

Owns   nothing but the moment. Completed once; a completion after abandonment is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from kafkalite.errors import ErrorCode

R = TypeVar("R")

NO_ANSWER: Final = object()  # completes what no answer is due to


class Encoded(NamedTuple):
    """A large answer that was encoded aside, in the version of its request."""

    message: Any
    data: bytes | list[Any]  # the latter where parts of it lie in files
    errors: Mapping[ErrorCode, int] | None = None  # in `message`; None: they are not counted yet


class Framed(NamedTuple):
    """A whole encoded answer without an error: its pieces, and their size in all."""

    parts: list[Any]
    size_bytes: int


class Pending(Generic[R]):
    """A response to come."""

    __slots__ = (
        "_on_abandon", "_on_done", "_response", "is_abandoned", "is_only_waiting", "keeps_peer",
    )  # fmt: skip

    def __init__(self, *, keeps_peer: bool = False, is_only_waiting: bool = False) -> None:
        """`keeps_peer`: the work goes on even if the peer leaves, which is not looked for before
        the work is done. `is_only_waiting`: a write that is in the log, and waits for others or
        for the disk alone. So the peer's next write may be taken before the answer."""
        self.keeps_peer = keeps_peer
        self.is_only_waiting = is_only_waiting
        self._response: R | None = None
        self._on_done: Callable[[R], None] | None = None
        self._on_abandon: Callable[[], None] | None = None
        self.is_abandoned = False

    @property
    def response(self) -> R | None:
        """The answer, None while it is open."""
        return self._response

    def complete(self, response: R) -> None:
        """Gives the answer."""
        assert self._response is None, "answered twice"
        if self.is_abandoned:
            return
        self._response = response
        # Let go of: they often hold this object, and a cycle is left for the garbage collector.
        on_done, self._on_done, self._on_abandon = self._on_done, None, None
        if on_done is not None:
            on_done(response)

    def fail(self, error: Exception) -> None:
        """Fails with `error`, which the waiting caller gets instead of an answer."""
        self.complete(cast(R, error))

    def when_done(self, on_done: Callable[[R], None]) -> None:
        """Calls `on_done` with the answer, now if it is there already."""
        assert self._on_done is None, "one listener only"
        if self._response is None:
            self._on_done = on_done
        else:
            on_done(self._response)

    def when_abandoned(self, on_abandon: Callable[[], None]) -> None:
        """Calls `on_abandon` if the answer is no longer wanted."""
        self._on_abandon = on_abandon

    def abandon(self) -> None:
        """The answer is no longer wanted."""
        if self._response is None and not self.is_abandoned:
            self.is_abandoned = True
            on_abandon, self._on_done, self._on_abandon = self._on_abandon, None, None
            if on_abandon is not None:
                on_abandon()


def after(answer: Any, make: Callable[[Any], R | Pending[R]]) -> R | Pending[R]:
    """The result of `make` for an answer, a response or a `Pending`, once it is there.

    That may be a `Pending` too. If `make` fails later, so does the result: not whatever completes
    the answer, on which others wait.
    """
    if not isinstance(answer, Pending):
        return make(answer)
    if answer.response is not None:
        return make(answer.response)
    later: Pending[R] = Pending()

    def go_on(response: Any) -> None:
        if isinstance(response, Exception):
            later.fail(response)
            return
        try:
            made = make(response)
        except Exception as error:
            later.fail(error)
            return
        if isinstance(made, Pending):
            made.when_done(later.complete)
        else:
            later.complete(made)

    answer.when_done(go_on)
    return later


def when_all(answers: Sequence[Any], combine: Callable[[list[Any]], R]) -> R | Pending[R]:
    """One answer made of several, each a response or a `Pending`, in their order."""
    parts = [each.response if isinstance(each, Pending) else each for each in answers]
    open_places = [place for place, part in enumerate(parts) if part is None]
    if not open_places:
        return combine(parts)
    whole: Pending[R] = Pending()
    missing = set(open_places)

    def put(place: int, response: Any) -> None:
        parts[place] = response
        missing.discard(place)
        if not missing:
            whole.complete(combine(parts))

    for place in open_places:
        answers[place].when_done(lambda response, place=place: put(place, response))
    return whole
