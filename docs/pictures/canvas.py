"""A drawing over a time axis: records, stretches of time, lines and words as SVG.         [P]

        a       b             c          records are circles with a letter
    ----+-------+-------------+----->    seconds run to the right
    [========]                           a stretch is a bar with its label

Owns   the scale: 14 pixels a second, from the left margin on; rows of equal height.
Never  fetches a font or a style: the colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Final

SECOND: Final = 14  # pixels
MARGIN: Final = 24
ROW: Final = 28
BAR: Final = 20
RADIUS: Final = 9
CHARACTER: Final = 7.3  # the width of one, about
STYLE: Final = """
  svg { color: #333 } @media (prefers-color-scheme: dark) { svg { color: #ccc } }
  text { font: 12px ui-monospace, monospace; fill: currentColor }
  .middle { text-anchor: middle } .quiet { opacity: .65 } .bold { font-weight: bold }
  .record { fill: #4c78a8 } .right { fill: #72a24d } .rejected { fill: #c4553b }
  .letter { fill: #fff; text-anchor: middle; font-weight: bold }
  .window { fill: #4c78a8; fill-opacity: .25; stroke: #4c78a8 }
  .grace { fill: #e0a030; fill-opacity: .2; stroke: #e0a030; stroke-dasharray: 4 3 }
  .axis { stroke: currentColor; stroke-opacity: .5 }
  .time { stroke: #c4553b; stroke-width: 2; fill: none } .pair { stroke: currentColor; fill: none }
"""


@dataclass(slots=True)
class Canvas:
    """A picture that grows. `y` counts rows from the top, `at` seconds from the left."""

    title: str
    description: str
    seconds: int
    aside: int = 0  # pixels for words to the right of the axis
    rows: float = 0.0
    parts: list[str] = field(default_factory=list)

    def x(self, at: float) -> float:
        """The place of a time."""
        return MARGIN + at * SECOND

    def y(self, row: float) -> float:
        """The middle of a row; the picture reaches at least below it."""
        self.rows = max(self.rows, row + 1)
        return row * ROW + ROW / 2 + MARGIN / 2

    def axis(self, row: float, step: int = 10) -> None:
        """A line through a row, with a mark and a number every `step` seconds."""
        y = self.y(row)
        end = self.x(self.seconds)
        self.parts.append(f'<path class="axis" d="M{MARGIN} {y:g} H{end:g}"/>')
        for at in range(0, self.seconds + 1, step):
            x = self.x(at)
            self.parts.append(f'<path class="axis" d="M{x:g} {y - 4:g} V{y + 4:g}"/>')
            self.words(row + 0.6, at, f"{at} s", "middle quiet")

    def record(self, row: float, at: float, letter: str, style: str = "record") -> None:
        """A circle with a letter."""
        x, y = self.x(at), self.y(row)
        mark = f'data-record="{escape(letter)}" data-at="{at:g}"'
        self.parts.append(f'<circle class="{style}" cx="{x:g}" cy="{y:g}" r="{RADIUS}" {mark}/>')
        self.parts.append(f'<text class="letter" x="{x:g}" y="{y + 4:g}">{escape(letter)}</text>')

    def stretch(
        self, row: float, start: float, end: float, label: str = "", style: str = "window"
    ) -> None:
        """A bar from one time to another; one of no length is a thin line."""
        x, y = self.x(start), self.y(row)
        mark = f'data-start="{start:g}" data-end="{end:g}" data-label="{escape(label)}"'
        self.parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y - BAR / 2:g}" '
            f'width="{max((end - start) * SECOND, 2):g}" height="{BAR}" {mark}/>'
        )
        self.words(row, start, label, before=6)

    def column(self, first: float, last: float, start: float, end: float, style: str) -> None:
        """A stretch of time through several rows."""
        x, y, bottom = self.x(start), self.y(first) - ROW / 2, self.y(last) + ROW / 2
        self.parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{(end - start) * SECOND:g}" '
            f'height="{bottom - y:g}" data-start="{start:g}" data-end="{end:g}"/>'
        )

    def line(self, places: Iterable[tuple[float, float]], style: str) -> None:
        """A line through (row, time) places."""
        points = " L".join(f"{self.x(at):g} {self.y(row):g}" for row, at in places)
        self.parts.append(f'<path class="{style}" d="M{points}"/>')

    def words(self, row: float, at: float, text: str, style: str = "", before: float = 0) -> None:
        """A line of text from a time on."""
        if text:
            x, y = self.x(at) + before, self.y(row) + 4
            named = f'class="{style}" ' if style else ""
            self.parts.append(f'<text {named}x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def svg(self) -> str:
        """The document."""
        width = self.x(self.seconds) + MARGIN + self.aside
        height = self.rows * ROW + MARGIN
        size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
        head = [f"<title>{escape(self.title)}</title>", f"<desc>{escape(self.description)}</desc>"]
        inside = "\n".join([*head, f"<style>{STYLE}</style>", *self.parts])
        return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n{inside}\n</svg>\n'


def rows_of(stretches: Iterable[tuple[float, float, str]]) -> list[int]:
    """A row for each (start, end, label), so that neither bars nor labels of a row overlap."""
    taken: list[float] = []
    rows = []
    for start, end, label in stretches:
        free = next((row for row, until in enumerate(taken) if until <= start), len(taken))
        taken[free:] = [
            max(end, start + (len(label) * CHARACTER + 10) / SECOND),
            *taken[free + 1 :],
        ]
        rows.append(free)
    return rows
