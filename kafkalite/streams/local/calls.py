"""Calls of async functions, as a task sees them: handed in, and later done.                [P]

    submit      the arguments of some calls; they begin as soon as there is room for them
    completed   the calls that are done since it was last asked, with their results

A task never waits: it hands calls in, goes on, and looks for results at its next turn. A worker has
a loop in a thread of its own for them (call_loop.py), the test driver waits for each (below), and a
test may end them in any order it likes.

Owns   the port.
Never  runs a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kafkalite.streams.call_limits import CallLimits


@dataclass(frozen=True, slots=True)
class AsyncCallee:
    """An async function, and how it is called."""

    call: Callable[..., object]
    limits: CallLimits


@dataclass(frozen=True, slots=True)
class Call:
    """One record's call. The number is its own within the task's operator."""

    number: int
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """How a call ended: with a result, or with the error of its last try."""

    number: int
    result: Any = None
    error: BaseException | None = None


class Calls(Protocol):
    """The calls of one operator of one task."""

    def submit(self, calls: Sequence[Call]) -> None:
        """Begins them in this order, each once fewer than `concurrency` run."""

    def completed(self) -> Sequence[Done]:
        """Those that are done and were not given yet, in the order in which they ended."""

    @property
    def has_completed(self) -> bool:
        """Whether `completed` would give any."""

    def cancel(self) -> None:
        """Drops what runs and what waits; nothing is done any more."""


OpenCalls = Callable[[AsyncCallee], Calls]


class CallTimeout(TimeoutError):
    """A call that took too long, at its last try."""

    def __init__(self, timeout: str, tries: int) -> None:
        tried = f", tried {tries} times" if tries > 1 else ""
        super().__init__(f"no result within {timeout}{tried}")


class WaitedCalls:
    """Calls that are over when somebody asks: for the test driver. `run_all` waits for them."""

    def __init__(
        self, callee: AsyncCallee, run_all: Callable[[AsyncCallee, Sequence[Call]], list[Done]]
    ) -> None:
        self._callee = callee
        self._run_all = run_all
        self._waiting: list[Call] = []

    def submit(self, calls: Sequence[Call]) -> None:
        """Keeps them until they are asked for."""
        self._waiting += calls

    def completed(self) -> Sequence[Done]:
        """All of them, in the order in which they came, however they ended."""
        waiting, self._waiting = self._waiting, []
        return self._run_all(self._callee, waiting) if waiting else ()

    @property
    def has_completed(self) -> bool:
        """Whether there are any: they need only be waited for."""
        return bool(self._waiting)

    def cancel(self) -> None:
        """Forgets those that wait."""
        self._waiting.clear()
