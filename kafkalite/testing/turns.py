"""How long the turns of an event loop take, for tests of what must not hold it.             [IO]

    select returns ──> callbacks, one after another ──> select is called again
                    └────────── one turn: other callbacks wait for its end ──┘

Owns   the loop's selector, in which both ends of a turn are seen; the callbacks cost nothing more.
Never  changes when or in which order anything runs. A turn costs it some 0.7 µs.
Fails  never.
Source asyncio.BaseEventLoop._run_once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(slots=True)
class Watch:
    """The longest turn while something was done."""

    longest_s: float = 0.0


class Turns:
    """The turns of one loop, and the longest of a while."""

    __slots__ = ("_began_s", "_clock", "_longest_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock()
        self._longest_s = 0.0

    def begin(self) -> None:
        """A turn begins."""
        self._began_s = self._clock()

    def end(self) -> None:
        """The turn has ended."""
        self._longest_s = max(self._longest_s, self._clock() - self._began_s)

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """`with turns.watch() as watch:`, and afterwards `watch.longest_s`.

        The turns in which the block begins and ends count as two: only what lies within is in it.
        """
        watch = Watch()
        self.end()
        before, self._longest_s = self._longest_s, 0.0
        self.begin()
        try:
            yield watch
        finally:
            self.end()
            watch.longest_s = self._longest_s
            self._longest_s = max(before, watch.longest_s)
            self.begin()


class _Selector(selectors.DefaultSelector):
    """The system's selector, which reports the turns between its selects."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns.end()
        ready = super().select(timeout)
        self._turns.begin()
        return ready


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that measures its turns with `clock`, in seconds."""

    def __init__(self, clock: Clock) -> None:
        self.turns = Turns(clock)
        super().__init__(_Selector(self.turns))
