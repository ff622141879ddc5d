"""Time: how records out of order move stream time, and which of them count for a window.  [IO]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalite.streams import (
    Processor,
    Record,
    Streams,
    TopologyTestDriver,
    collect,
    json,
    string,
    tumbling,
)
from pictures.canvas import Canvas

ARRIVALS: Final = (("a", 2), ("b", 7), ("c", 12), ("d", 5), ("e", 16), ("f", 8), ("g", 19))
SIZE, GRACE = 10, 5  # of the window, in seconds
SECONDS: Final = 24


@dataclass(slots=True)
class Arrival:
    """A record, and the effect of its arrival."""

    letter: str
    at: int
    stream_time: float
    is_late: bool
    closed: list[list[str]] = field(default_factory=list)  # records of windows that it closed


class _Clock(Processor[Any, Any, Any, Any]):
    """Forwards stream time, as a processor sees it."""

    def init(self, context: Any) -> None:
        self._context = context

    def process(self, record: Record[Any, Any]) -> None:
        self._context.forward(record.replace(value=self._context.stream_time))


def stream_time() -> str:
    """Stream time is the newest timestamp so far."""
    canvas = Canvas("Stream time", "Records out of order, and stream time.", SECONDS, aside=150)
    canvas.words(0, 0, "records from top to bottom in order of arrival", "bold")
    arrivals = list(_arrivals())
    _draw_arrivals(canvas, arrivals, lambda arrival: "record")
    for row, arrival in enumerate(arrivals, start=1):
        canvas.words(row, SECONDS, f"stream time {arrival.stream_time:g} s")
    return canvas.svg()


def grace() -> str:
    """A window takes records until stream time reaches its end and grace."""
    canvas = Canvas("Grace", "Records for one window with a grace.", SECONDS, aside=190)
    canvas.words(0, 0, f'tumbling("{SIZE}s", grace="{GRACE}s")', "bold")
    arrivals = list(_arrivals())
    canvas.column(1, len(arrivals), 0, SIZE, "window")
    canvas.column(1, len(arrivals), SIZE, SIZE + GRACE, "grace")
    _draw_arrivals(canvas, arrivals, lambda arrival: "rejected" if arrival.is_late else "record")
    for row, arrival in enumerate(arrivals, start=1):
        for letters in arrival.closed:
            canvas.words(row, SECONDS, f"closes [0, {SIZE}): {' '.join(letters)}", "bold")
        if arrival.is_late:
            canvas.words(row, SECONDS, "late")
    return canvas.svg()


def _draw_arrivals(
    canvas: Canvas, arrivals: list[Arrival], style: Callable[[Arrival], str]
) -> None:
    steps = []
    for row, arrival in enumerate(arrivals, start=1):
        steps += [(row, arrival.stream_time), (row + 1, arrival.stream_time)]
    canvas.line(steps, "time")
    for row, arrival in enumerate(arrivals, start=1):
        canvas.record(row, arrival.at, arrival.letter, style(arrival))
    canvas.axis(len(arrivals) + 1)


def _arrivals() -> Iterable[Arrival]:
    app = Streams("times", key=string(), value=json())
    records = app.stream("records")
    records.process(_Clock).to("times")
    window = tumbling(f"{SIZE}s", grace=f"{GRACE}s")
    letters = records.group_by_key().window(window).aggregate(collect(), name="letters")
    letters.final().to("closed")
    letters.late().to("late")
    with TopologyTestDriver(app) as driver:
        for letter, at in ARRIVALS:
            driver.pipe("records", letter, key="k", timestamp=at * 1_000)
            (time,) = driver.read("times")
            late, closed = driver.read("late"), driver.read("closed")
            yield Arrival(letter, at, time.value / 1_000, bool(late), [r.value for r in closed])
