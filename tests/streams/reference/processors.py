"""Processors, stores and timers of one task, one record at a time, from the rules alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from kafkalite.streams import Record
from kafkalite.streams.processors import StoreSpec


class PlainKeyValues:
    """Keys are texts, in the order of their bytes. Values are the caller's own."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return deepcopy(self.rows.get(key))

    def put(self, key: str, value: Any) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = deepcopy(value)

    def delete(self, key: str) -> Any:
        return self.rows.pop(key, None)

    def range(self, start: str | None = None, end: str | None = None) -> Iterator[tuple[str, Any]]:
        for key in sorted(self.rows, key=str.encode):
            if (start is None or key.encode() >= start.encode()) and (
                end is None or key.encode() <= end.encode()
            ):
                yield key, deepcopy(self.rows[key])

    def all(self) -> Iterator[tuple[str, Any]]:
        return self.range()


class PlainWindows:
    """Values by key and time; those that are `retention` older than the newest are gone."""

    def __init__(self, retention: int) -> None:
        self.retention = retention
        self.newest = -1
        self.rows: dict[tuple[str, int], Any] = {}
        self.dropped = 0

    def put(self, key: str, value: Any, timestamp: int) -> None:
        self.newest = max(self.newest, timestamp)
        if timestamp <= self.newest - self.retention:
            self.dropped += 1
        elif value is None:
            self.rows.pop((key, timestamp), None)
        else:
            self.rows[key, timestamp] = deepcopy(value)

    def fetch(self, key: str, start: int, end: int) -> list[tuple[int, Any]]:
        return sorted(
            (time, deepcopy(value))
            for (other, time), value in self.rows.items()
            if other == key and start <= time <= end and time > self.newest - self.retention
        )


@dataclass(eq=False)
class PlainTimer:
    due: int
    period: int
    call: Callable[[int], object]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class PlainTask:
    """A source with arms: each has a test and processors one below the other, which all forward
    into one list at the end. Timers that are due together are called in the order of setting."""

    def __init__(
        self,
        arms: Sequence[tuple[Callable[[Record], bool], Sequence[Callable[[], Any]]]],
        specs: Sequence[StoreSpec],
    ) -> None:
        self.stores: dict[str, Any] = {
            spec.name: PlainKeyValues()
            if spec.retention_ms is None
            else PlainWindows(spec.retention_ms)
            for spec in specs
        }
        self.out: list[Record] = []
        self.stream_time = -1
        self.timers: list[PlainTimer] = []
        self.arms = [(test, [PlainContext(self, make()) for make in makes]) for test, makes in arms]
        for _, contexts in self.arms:
            for context, below in zip(contexts, [*contexts[1:], None], strict=True):
                context.below = below
                context.processor.init(context)

    def process(self, record: Record) -> None:
        self.stream_time = max(self.stream_time, record.timestamp)
        for test, contexts in self.arms:
            if test(record):
                contexts[0].processor.process(record)
        while due := [timer for timer in self.timers if timer.due <= self.stream_time]:
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            if not timer.is_cancelled:
                timer.call(self.stream_time)
            if not timer.is_cancelled:
                timer.due = (self.stream_time // timer.period + 1) * timer.period
                self.timers.append(timer)


class PlainContext:
    """The context of one processor."""

    def __init__(self, task: PlainTask, processor: Any) -> None:
        self.task = task
        self.processor = processor
        self.below: PlainContext | None = None

    @property
    def stream_time(self) -> int:
        return self.task.stream_time

    def forward(self, record: Record) -> None:
        if self.below is None:
            self.task.out.append(record)
        else:
            self.below.processor.process(record)

    def store(self, name: str) -> Any:
        return self.task.stores[name]

    def schedule(self, interval: int, clock: str, function: Callable[[int], object]) -> PlainTimer:
        assert clock == "stream_time"
        timer = PlainTimer(0, interval, function)
        self.task.timers.append(timer)
        return timer
