"""The way of bytes between two machines: links, and the flow of a connection.               [P]

    events    what happens by itself, and when
    link      one way between two machines: delay, rate, cut or not
    flow      what one end of a connection sends the other, in order

Owns   the order of events: by time, and of one time by their numbers.
Never  loses bytes of a flow that goes on: a cut makes them wait, as TCP sends them again.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
TRACE_LINES: Final = 2_000


class Trace:
    """Everything that happened, as a digest, and its last lines."""

    def __init__(self, lines_max: int = TRACE_LINES) -> None:
        self.lines: deque[str] = deque(maxlen=lines_max)
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, line: str) -> None:
        """One more event."""
        self.lines.append(line)
        self._hash.update(line.encode() + b"\n")

    @property
    def digest(self) -> str:
        """The same for the same events."""
        return self._hash.hexdigest()


class Events:
    """What will happen in a network, its chance and its trace."""

    def __init__(self, random: Random, now_ns: Callable[[], int], trace: Trace) -> None:
        self.random = random
        self.now_ns = now_ns
        self.trace = trace
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0

    def number(self) -> int:
        """The next number."""
        self._numbers += 1
        return self._numbers

    def note(self, line: str) -> None:
        """Writes into the trace what happens now."""
        self.trace.note(f"{self.now_ns()} {line}")

    def at(self, due_ns: int, act: Callable[[], None]) -> None:
        """Lets something happen then."""
        heapq.heappush(self._due, (due_ns, self.number(), act))

    @property
    def next_due_ns(self) -> int | None:
        """When the next thing happens."""
        return self._due[0][0] if self._due else None

    def run_due(self) -> bool:
        """Lets all happen that is due; whether anything was."""
        due, has_run = self._due, False
        while due and due[0][0] <= self.now_ns():
            heapq.heappop(due)[2]()
            has_run = True
        return has_run


@dataclass(slots=True)
class Link:
    """One way between two machines."""

    least_ns: int
    most_ns: int
    spike_chance: float = 0.01  # a segment was lost, and sent again
    spike_ns: int = 40 * NS_PER_MS
    bytes_per_second: int | None = None
    is_cut: bool = False
    cut_at_ns: int = 0
    free_at_ns: int = 0  # when the segments before have left

    def arrival_ns(self, now_ns: int, size: int, random: Random) -> int:
        """When a segment that leaves now is there."""
        if self.bytes_per_second is not None:
            now_ns = max(now_ns, self.free_at_ns)
            now_ns += size * NS_PER_SECOND // self.bytes_per_second
            self.free_at_ns = now_ns
        delay_ns = random.randint(self.least_ns, self.most_ns)
        if random.random() < self.spike_chance:
            delay_ns += random.randint(0, self.spike_ns)
        return now_ns + delay_ns


class Flow:
    """What one end of a connection sends the other, in order."""

    __slots__ = (
        "_events",
        "_is_scheduled",
        "_is_up",
        "_queue",
        "is_lost",
        "is_over",
        "is_waiting",
        "link",
    )  # fmt: skip

    def __init__(self, events: Events, link: Link, is_up: Callable[[], bool]) -> None:
        self.link = link
        self.is_waiting = False  # for the end of a cut, or for the machine
        self.is_lost = False  # nothing arrives any more
        self.is_over = False  # and nobody is there to send or receive
        self._events = events
        self._is_up = is_up
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_scheduled = False

    def put(self, arrive: Callable[[], None], size: int = 0) -> None:
        """Calls `arrive` when a segment of `size` bytes has made its way."""
        if self.is_lost:
            return
        events = self._events
        at_ns = self.link.arrival_ns(events.now_ns(), size, events.random)
        if self._queue:
            at_ns = max(at_ns, self._queue[-1][0])
        self._queue.append((at_ns, arrive))
        self._schedule(at_ns)

    def lose(self) -> None:
        """What is under way and all that follows vanishes."""
        self.is_lost = True
        self._queue.clear()

    def forget(self) -> None:
        """What waits is not sent again."""
        if self.is_waiting:
            self.is_waiting = False
            self._queue.clear()

    def drop(self) -> bool:
        """What waits, or would have to, is not sent; whether what follows may arrive."""
        if not (self.is_waiting or self.link.is_cut or not self._is_up()):
            return True
        self.is_waiting = False
        self._queue.clear()
        return False

    def go_on(self, after_ns: int) -> None:
        """What waited is sent again."""
        self.is_waiting = False
        self._schedule(self._events.now_ns() + after_ns)

    def _schedule(self, at_ns: int) -> None:
        if not (self._is_scheduled or self.is_waiting):
            self._is_scheduled = True
            self._events.at(at_ns, self._arrive)

    def _arrive(self) -> None:
        self._is_scheduled = False
        if not self._queue:
            return
        if self.link.is_cut or not self._is_up():
            self.is_waiting = True
            return
        _, arrive = self._queue.popleft()
        if self._queue:
            self._schedule(max(self._queue[0][0], self._events.now_ns()))
        arrive()
