"""Joins of two streams: which records form a pair.                                       [IO]"""

from __future__ import annotations

from typing import Final

from kafkalite.streams import Streams, TopologyTestDriver, json, string
from pictures.canvas import Canvas

Records = tuple[tuple[str, int], ...]
Pair = tuple[str, str | None]  # letters of the left and of the right record

LEFT: Final[Records] = (("a", 10), ("b", 30), ("c", 48))
RIGHT: Final[Records] = (("p", 2), ("q", 7), ("r", 18), ("s", 27), ("t", 41))
BEFORE, AFTER = 5, 10  # seconds
TRADES: Final[Records] = (("a", 4), ("b", 16), ("c", 26), ("d", 48))
QUOTES: Final[Records] = (("p", 8), ("q", 13), ("r", 20), ("s", 33))
TOLERANCE: Final = 10
SECONDS: Final = 60


def stream_join() -> str:
    """Each left record, the stretch of its partners, and its pairs."""
    app = Streams("join", key=string(), value=json())
    app.stream("left").join(
        app.stream("right"),
        lambda left, right: [left, right],
        within=(f"{BEFORE}s", f"{AFTER}s"),
        how="left",
    ).to("pairs")
    canvas = Canvas("A join of two streams", "Records and their pairs.", SECONDS, aside=70)
    canvas.words(0, 0, f'left.join(right, f, within=("{BEFORE}s", "{AFTER}s"), how="left")', "bold")
    for _, at in LEFT:
        canvas.stretch(3, at - BEFORE, at + AFTER)
    return _finished(canvas, LEFT, RIGHT, _pairs(app, LEFT, RIGHT))


def as_of_join() -> str:
    """Each left record, its tolerance, and its one partner."""
    app = Streams("as-of", key=string(), value=json())
    app.stream("left").join_as_of(
        app.stream("right"),
        lambda left, right: [left, right],
        tolerance=f"{TOLERANCE}s",
        how="left",
    ).to("pairs")
    canvas = Canvas("An as-of join", "Records and their partners.", SECONDS, aside=70)
    canvas.words(0, 0, f'left.join_as_of(right, f, tolerance="{TOLERANCE}s", how="left")', "bold")
    for _, at in TRADES:
        canvas.stretch(3, max(at - TOLERANCE, 0), at)
    return _finished(canvas, TRADES, QUOTES, _pairs(app, TRADES, QUOTES))


def _pairs(app: Streams, left: Records, right: Records) -> list[Pair]:
    """The pairs, when the records arrive in order of time. A last record ends all waiting."""
    records = sorted(
        [(at, "right", letter) for letter, at in right]
        + [(at, "left", letter) for letter, at in left]
    )
    with TopologyTestDriver(app) as driver:
        for at, topic, letter in records:
            driver.pipe(topic, letter, key="k", timestamp=at * 1_000)
        for topic in ("left", "right"):
            driver.pipe(topic, "end", key="other", timestamp=3_600_000)
        pairs = [tuple(record.value) for record in driver.read("pairs")]
    return [(ours, theirs) for ours, theirs in pairs if ours != "end"]


def _finished(canvas: Canvas, left: Records, right: Records, pairs: list[Pair]) -> str:
    at_left, at_right = dict(left), dict(right)
    for ours, theirs in pairs:
        if theirs is not None:
            canvas.line([(1.3, at_left[ours]), (3, at_right[theirs])], "pair")
    for letter, at in left:
        canvas.record(1.3, at, letter)
    for letter, at in right:
        canvas.record(3, at, letter, "right")
    canvas.words(1.3, SECONDS, "left", "quiet")
    canvas.words(3, SECONDS, "right", "quiet")
    canvas.axis(4)
    spelled = ", ".join(f"({ours}, {theirs})" for ours, theirs in sorted(pairs, key=_order))
    canvas.words(5.4, 0, f"results: {spelled}")
    return canvas.svg()


def _order(pair: Pair) -> tuple[str, str]:
    return pair[0], pair[1] or ""
