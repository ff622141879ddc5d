"""The four kinds of window: which records each window of the store holds.                [IO]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    collect,
    hopping,
    session,
    sliding,
    string,
    tumbling,
)
from pictures.canvas import Canvas, rows_of

Window = tuple[float, float, list[str]]  # its start and end in seconds, its records

RECORDS: Final = (("a", 2), ("b", 6), ("c", 13), ("d", 17), ("e", 31))
OUT_OF_ORDER: Final = (("a", 2), ("b", 6), ("c", 31), ("d", 24), ("e", 15))
SECONDS: Final = 45
GRACE: Final = "1h"  # so that all windows are still in the store


def tumbling_windows() -> str:
    """Windows side by side."""
    return _drawn("Tumbling windows", 'tumbling("10s")', tumbling("10s", grace=GRACE), ")")


def hopping_windows() -> str:
    """Windows that overlap."""
    window = hopping("10s", "5s", grace=GRACE)
    return _drawn("Hopping windows", 'hopping("10s", "5s")', window, ")")


def sliding_windows() -> str:
    """A window that ends with each record, and one that begins behind it."""
    return _drawn("Sliding windows", 'sliding("10s")', sliding("10s", grace=GRACE), "]")


def session_windows() -> str:
    """Sessions after each of five records that arrive out of order."""
    steps = list(_contents(session("10s", grace=GRACE), OUT_OF_ORDER))
    canvas = Canvas("Session windows", "The sessions after each record.", SECONDS, aside=60)
    canvas.words(0, 0, 'session("10s"), from top to bottom in order of arrival', "bold")
    for row, ((letter, at), open_sessions) in enumerate(
        zip(OUT_OF_ORDER, steps, strict=True), start=1
    ):
        for start, end, letters in open_sessions:
            canvas.stretch(row, start, end)
            canvas.words(row, end, " ".join(sorted(letters)), before=14)
        canvas.record(row, at, letter)
    canvas.axis(len(steps) + 1)
    return canvas.svg()


def _drawn(title: str, code: str, window: Any, bracket: str) -> str:
    *_, windows = _contents(window, RECORDS)
    labels = [
        f"[{_spelled(start)}, {_spelled(end)}{bracket} {' '.join(letters)}"
        for start, end, letters in windows
    ]
    canvas = Canvas(title, "Five records, and the windows that hold them.", SECONDS, aside=60)
    canvas.words(0, 0, code, "bold")
    canvas.axis(1.2)
    for letter, at in RECORDS:
        canvas.record(1.2, at, letter)
    bars = [(start, end, label) for (start, end, _), label in zip(windows, labels, strict=True)]
    for row, bar in zip(rows_of(bars), bars, strict=True):
        canvas.stretch(row + 2.8, *bar)
    return canvas.svg()


def _contents(window: Any, records: Iterable[tuple[str, int]]) -> Iterable[list[Window]]:
    """The store's windows after each record, in order of their starts."""
    app = Streams("windows", key=string(), value=string())
    app.stream("records").group_by_key().window(window).aggregate(collect(), name="windows")
    with TopologyTestDriver(app) as driver:
        for letter, at in records:
            driver.pipe("records", letter, key="k", timestamp=at * 1_000)
            rows = driver.store("windows").all()
            yield [(key.start / 1_000, key.end / 1_000, value) for key, value in rows]


def _spelled(seconds: float) -> str:
    return f"{seconds:g}" if seconds == int(seconds) else f"{seconds:.3f}"
