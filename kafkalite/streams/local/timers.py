"""Timers of a task's processors: on its stream time, and on the wall clock.                [P]

    stream_time    due at the multiples of the period; the first record is later than due. A timer
                   is called after the record that makes it due has gone all its way, once however
                   many periods the record skips, with the stream time.
    wall_clock     due at its start + n periods, once for each look at the clock, with the time.

So that a batch gives what its records would one by one, it is cut behind each record that makes a
timer due. A processor that sets a timer while it takes a record goes through the rest of its batch
one record at a time: the new timer may be due between two of them.

What survives a restart is the stream time, and of each timer when it is due: so a timer of a day
comes even if the worker restarts every hour. Functions cannot be kept, so processors set their
timers again in `init`; the n-th timer there is the n-th of before if period and clock are the same.
A timer that was set later comes back if its function is a method of the processor.

Owns   one heap a clock, the stream time as processors see it, and the form of what is kept.
Never  reads a clock.
Source Kafka Streams' PunctuationQueue, PunctuationSchedule, StreamTask.maybePunctuateStreamTime;
       java.util.PriorityQueue for the order of timers that are due together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

from kafkalite.core.columns import greatest
from kafkalite.streams.local.batch import Batch, Origin
from kafkalite.streams.local.inputs import first_not_before
from kafkalite.streams.local.watermarks import NEVER
from kafkalite.streams.processors import Clock

SET_LATER: Final = -1  # the number of a timer that was not set in init
CANCELLED: Final = -1  # when a timer is due that is due no more
CANCELLED_MIN: Final = 16  # timers that may wait in a heap to be forgotten


class Owner(Protocol):
    """The processor of one node, to its timers."""

    @property
    def name(self) -> str:
        """The name of the node."""

    def call(self, timer: Timer, time: int) -> None:
        """Calls the timer's function, and sends on what it forwards."""

    def method(self, name: str) -> Callable[[int], object] | None:
        """A method of the processor's; None if there is none of that name."""


class Timer:
    """One timer. `number`: it was the n-th that was set in init, or SET_LATER."""

    def __init__(
        self,
        owner: Owner,
        clock: Clock,
        interval_ms: int,
        function: Callable[[int], object],
        due: int,
        number: int,
    ) -> None:
        self.owner = owner
        self.clock = clock
        self.interval_ms = interval_ms
        self.function = function
        self.due = due
        self.number = number
        self.is_cancelled = False
        self.heap: Heap | None = None  # in which it waits

    def cancel(self) -> None:
        """The function is called no more."""
        self.is_cancelled = True
        if self.heap is not None:
            self.heap.forget_cancelled()

    def pass_by(self, time: int) -> None:
        """Goes on to the first moment of its grid after `time`."""
        self.due += max(1, (time - self.due) // self.interval_ms + 1) * self.interval_ms

    @property
    def method(self) -> str:
        """The name of its function, where that is a method of a processor; else empty."""
        name = getattr(self.function, "__name__", "")
        return name if self.owner.method(name) == self.function else ""


class Heap:
    """Timers by when they are due. Those due together leave it as they leave a Java queue."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self._cancelled = 0  # of them, at most

    @property
    def due(self) -> int | None:
        """When the first one is due."""
        return self.timers[0].due if self.timers else None

    def push(self, timer: Timer) -> None:
        """Puts a timer in."""
        timer.heap = self
        timers = self.timers
        timers.append(timer)
        at = len(timers) - 1
        while at and timers[parent := (at - 1) >> 1].due > timer.due:
            timers[at] = timers[parent]
            at = parent
        timers[at] = timer

    def pop(self) -> Timer:
        """Takes the first one out."""
        timers = self.timers
        first, last = timers[0], timers.pop()
        at, count = 0, len(timers)
        while at < count >> 1:
            child = 2 * at + 1
            if child + 1 < count and timers[child].due > timers[child + 1].due:
                child += 1
            if last.due <= timers[child].due:
                break
            timers[at] = timers[child]
            at = child
        if timers:
            timers[at] = last
        first.heap = None
        return first

    def forget_cancelled(self) -> None:
        """Lets those go that were cancelled, once they are half of all."""
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_MIN, len(self.timers) // 2):
            self._cancelled = 0
            self._refill([timer for timer in self.timers if not timer.is_cancelled])

    def take_of(self, owner: Owner, time: int) -> Timer | None:
        """Takes the first timer of one owner out, if it is due."""
        due = (timer for timer in self.timers if timer.owner is owner and timer.due <= time)
        if (found := min(due, key=lambda timer: timer.due, default=None)) is not None:
            self._refill([timer for timer in self.timers if timer is not found])
            found.heap = None
        return found

    def _refill(self, timers: Sequence[Timer]) -> None:
        self.timers = []
        for timer in timers:
            self.push(timer)


class Kept(NamedTuple):
    """A timer as it is kept."""

    owner: str
    number: int
    clock: Clock
    interval_ms: int
    method: str
    due: int


class Timers:
    """All timers of one task.

    `is_timed`: stream time is what others say, and not that of the records.
    """

    def __init__(self, *, is_timed: bool) -> None:
        self.stream_time = NEVER
        self.now_ms = 0
        self.was_set = False  # a timer on stream time, since somebody put this to False
        self._is_timed = is_timed
        self._heaps: dict[Clock, Heap] = {"stream_time": Heap(), "wall_clock": Heap()}
        self._set_in_init: list[Timer] = []
        self._run: Batch | None = None  # that is under way
        self._moments: tuple[dict[int, int], list[int]] | None = None  # of it

    def schedule(
        self,
        owner: Owner,
        clock: Clock,
        interval_ms: int,
        function: Callable[[int], object],
        number: int = SET_LATER,
    ) -> Timer:
        """Sets a timer."""
        is_stream = clock == "stream_time"
        due = 0 if is_stream else self.now_ms + interval_ms
        timer = Timer(owner, clock, interval_ms, function, due, number)
        self._heaps[clock].push(timer)
        if number != SET_LATER:
            self._set_in_init.append(timer)
        self.was_set = self.was_set or (is_stream and not self._is_timed)
        return timer

    # Time passes

    def run(self, batch: Batch, push: Callable[[Batch], None]) -> None:
        """Pushes the records of a run; timers that they make due are called behind them."""
        if self._is_timed:
            push(batch)
            return
        timestamps, first, count = batch.timestamps, 0, len(batch)
        while first < count:
            end, due = count, self._heaps["stream_time"].due
            if due is not None:
                end = min(count, first_not_before(timestamps, due, first, count) + 1)
            part = self._run = batch.slice(first, end)
            push(part)
            self._run = self._moments = None
            self.advance(max(self.stream_time, greatest(part.timestamps)))
            first = end

    def advance(self, stream_time: int) -> None:
        """The task has come so far in stream time."""
        self.stream_time = max(self.stream_time, stream_time)
        if self.stream_time != NEVER:
            self._call_due("stream_time", self.stream_time)

    def tick(self, now_ms: int) -> None:
        """Looks at the wall clock."""
        self.now_ms = now_ms
        self._call_due("wall_clock", now_ms)

    def _call_due(self, clock: Clock, time: int) -> None:
        heap = self._heaps[clock]
        while (due := heap.due) is not None and due <= time:
            self._call(heap, heap.pop(), time)

    @staticmethod
    def _call(heap: Heap, timer: Timer, time: int) -> None:
        if timer.is_cancelled:
            return
        timer.owner.call(timer, time)
        if not timer.is_cancelled:  # by its function
            timer.pass_by(time)
            heap.push(timer)

    # Between the records of a run

    def as_of(self, origin: Origin, index: int) -> int:
        """The stream time when the record came that led to this one."""
        at, times = self._moment(origin, index)
        return times[-1 if at is None else at] if times else self.stream_time

    @property
    def is_among_records(self) -> bool:
        """Whether a run of several records is under way."""
        return self._run is not None and len(self._run) > 1

    def call_own(self, owner: Owner, origin: Origin, index: int, until: int | None) -> None:
        """Calls the timers of one owner that come due behind record `index` of a batch: up to where
        record `until` comes, or the last record of the run."""
        heap = self._heaps["stream_time"]
        first, times = self._moment(origin, index)
        last = len(times) - 1 if until is None else self._moment(origin, until)[0]
        if first is None or last is None:
            return
        before, run = self.stream_time, self._run
        for time in times[first:last]:
            while (due := heap.due) is not None and due <= time:
                if (timer := heap.take_of(owner, time)) is None:
                    break
                self.stream_time, self._run = time, None
                self._call(heap, timer, time)
        self.stream_time, self._run = before, run

    def _moment(self, origin: Origin, index: int) -> tuple[int | None, list[int]]:
        """Which record of the run led to this one, and the stream times of all of them."""
        if (run := self._run) is None:
            return None, []
        if self._moments is None:
            places = run.origin.places(range(len(run)))
            indexes = {place.at: i for i, place in enumerate(places) if place is not None}
            times = list(accumulate(run.timestamps, max, initial=self.stream_time))[1:]
            self._moments = indexes, times
        indexes, times = self._moments
        (place,) = origin.places([index])
        return (None if place is None else indexes.get(place.at)), times

    # What is kept

    def dump(self) -> list[Any]:
        """What a restart goes on from."""
        waiting = [timer for heap in self._heaps.values() for timer in heap.timers]
        there = [timer for timer in waiting if not timer.is_cancelled]
        gone = [timer for timer in self._set_in_init if timer.is_cancelled]
        kept = [*_kept(there), *_kept(gone)]
        return [list(each) for each in kept if each.number != SET_LATER or each.method]

    def load(self, dumped: Sequence[Any], owners: Sequence[Owner]) -> None:
        """Goes on from what `dump` gave, once every processor has set its timers anew."""
        named = {owner.name: owner for owner in owners}
        anew = [timer for heap in self._heaps.values() for timer in heap.timers]
        for heap in self._heaps.values():
            heap.timers = []
        for each in dumped:
            kept = Kept(*each)
            if (timer := self._like(kept, anew)) is not None:
                anew.remove(timer)
            elif kept.due != CANCELLED and kept.number == SET_LATER and kept.owner in named:
                timer = _again(kept, named[kept.owner])
            if timer is None:
                continue
            timer.due, timer.is_cancelled = kept.due, kept.due == CANCELLED
            if not timer.is_cancelled:
                self._heaps[kept.clock].push(timer)
        for timer in anew:
            self._heaps[timer.clock].push(timer)

    @staticmethod
    def _like(kept: Kept, anew: Sequence[Timer]) -> Timer | None:
        """The timer set anew that is the kept one: by its number, or else by its method."""
        (like,) = [[t for t, each in zip(anew, _kept(anew), strict=True)
                    if each[2:5] == kept[2:5] and each.owner == kept.owner]]  # fmt: skip
        if kept.number != SET_LATER:
            like = [timer for timer in like if timer.number == kept.number]
        return like[0] if like else None


def _kept(timers: Sequence[Timer]) -> Iterator[Kept]:
    for timer in timers:
        due = CANCELLED if timer.is_cancelled else timer.due
        yield Kept(
            timer.owner.name, timer.number, timer.clock, timer.interval_ms, timer.method, due
        )


def _again(kept: Kept, owner: Owner) -> Timer | None:
    """A timer that was set later, if the processor still has its method."""
    function = owner.method(kept.method)
    if function is None:
        return None
    return Timer(owner, kept.clock, kept.interval_ms, function, kept.due, SET_LATER)
