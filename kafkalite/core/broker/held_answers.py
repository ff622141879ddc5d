"""The controller's answers to clients, held until the brokers have a change in force.       [IO]

    hold ──> the brokers that lack a record ──each asks for what follows it──> release
                 ├── 1 s: those that are late are not waited for any more
                 └── 5 s: nor is the broker that the client asked

A client that makes a topic through one broker finds it at any other broker. After a broker was late
once, no answer waits for it until it has all records again.

Owns   how far each broker is; the answers that wait, HELD_MAX of them; which brokers are late.
Never  holds an answer for a broker that is not registered, but for the one that was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from kafkalite.core.types import NO_OFFSET

ASKED_MS: Final = 5_000  # an answer waits so long for the broker whose client asked
OTHERS_MS: Final = 1_000  # and so long for the others
HELD_MAX: Final = 1_000


@dataclass(slots=True, eq=False)
class _Held:
    """An answer, and the brokers that lack records before `offset`."""

    offset: int
    asked: int
    missing: set[int]
    release: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


class HeldAnswers:
    """The answers of one term of the controller."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # broker -> the offset up to which it has our records
        self._late: set[int] = set()
        self._held: dict[_Held, None] = {}

    def hold(
        self, offset: int, asked: int, brokers: Collection[int], release: Callable[[], None]
    ) -> None:
        """Calls `release` once all `brokers`, those registered, have the records before `offset`,
        and the one that was `asked`; at once where they have."""
        awaited = {*brokers} - self._late | {asked}
        missing = {each for each in awaited if self._known.get(each, NO_OFFSET) < offset}
        if not missing or len(self._held) >= HELD_MAX:
            release()
            return
        held = _Held(offset, asked, missing, release)
        self._held[held] = None
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(OTHERS_MS / 1_000, self._wait_for_asked_alone, held)

    def note(self, broker_id: int, offset: int, end_offset: int, brokers: Collection[int]) -> None:
        """A broker has the records before `offset` in force; the next record is `end_offset`."""
        if broker_id not in self._known:  # any client can say that it is a broker
            self.keep(brokers)
        self._known[broker_id] = offset
        if offset >= end_offset:
            self._late.discard(broker_id)
        for held in tuple(self._held):
            if held.offset <= offset:
                self._remove_missing(held, {broker_id})

    def keep(self, brokers: Collection[int]) -> None:
        """Only these brokers are registered: no answer waits for the others any more."""
        self._known = {each: known for each, known in self._known.items() if each in brokers}
        self._late.intersection_update(brokers)
        for held in tuple(self._held):
            self._remove_missing(held, held.missing - {*brokers, held.asked})

    def release_all(self) -> None:
        """The term is over."""
        for held in tuple(self._held):
            self._release(held)

    def _wait_for_asked_alone(self, held: _Held) -> None:
        late = held.missing - {held.asked}
        self._late |= late
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later((ASKED_MS - OTHERS_MS) / 1_000, self._release, held)
        self._remove_missing(held, late)

    def _remove_missing(self, held: _Held, brokers: set[int]) -> None:
        held.missing -= brokers
        if not held.missing:
            self._release(held)

    def _release(self, held: _Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        del self._held[held]
        held.release()
