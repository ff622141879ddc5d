"""A topology as a picture: SVG, for a notebook, a page, a browser.                        [P]

    orders          topics are rounded, operators are boxes with their word and name,
      │             stores hang beside their operator; each stands below all that leads to it
    filter big
      │
    large-orders

Owns   the layout: layers by the longest way from an input, an order within a layer that keeps lines
       short.
Never  fetches a font or a style: the picture follows the page's colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from kafkalite.streams import plan as p
from kafkalite.streams.describe import detail, kind
from kafkalite.streams.rewrites import SubTopology

CHARACTER: Final = 7.0  # about the width of one, in px
LINE: Final = 16
PADDING: Final = 10
GAP_X, GAP_Y = 28, 44
TEXT_MAX: Final = 44
SWEEPS: Final = 4
STYLE: Final = """
  text { font: 12px ui-monospace, monospace; fill: currentColor; text-anchor: middle }
  .name { font-weight: bold } .what { opacity: .7 }
  .operator, .topic, .store { fill: none; stroke: currentColor; stroke-opacity: .6 }
  .topic { stroke-dasharray: 5 3 } .store { stroke-width: 2 }
  path { fill: none; stroke: currentColor; stroke-opacity: .5 }
"""


@dataclass(slots=True, eq=False)
class Box:
    """Something in the picture. `x` is its middle, `y` its upper edge."""

    style: str  # operator, topic, store
    lines: tuple[str, ...]
    x: float = 0.0
    y: float = 0.0
    layer: int = 0
    above: list[Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        """With its padding."""
        return max(map(len, self.lines)) * CHARACTER + 2 * PADDING

    @property
    def height(self) -> float:
        """With its padding."""
        return len(self.lines) * LINE + 2 * PADDING - 4


def draw(application_id: str, subs: Sequence[SubTopology]) -> str:
    """The sub-topologies of an application as one SVG document."""
    boxes = _boxes(subs)
    layers = _layers(boxes)
    _order(layers)
    width, height = _place(layers)
    parts = [f"<title>{escape(application_id)}</title>", f"<style>{STYLE}</style>"]
    parts += [_line(above, box) for box in boxes for above in box.above]
    parts += [part for box in boxes for part in _drawn(box)]
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    inside = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{inside}\n</svg>\n'


def _boxes(subs: Sequence[SubTopology]) -> list[Box]:
    boxes: list[Box] = []
    topics: dict[str, Box] = {}

    def topic(name: str) -> Box:
        if name not in topics:
            topics[name] = Box("topic", (_short(name),))
            boxes.append(topics[name])
        return topics[name]

    for sub in subs:
        operators: dict[p.Node, Box] = {}
        for node in sub.nodes:
            if isinstance(node, p.Source):
                read = node.topics or (f"/{node.pattern.pattern if node.pattern else ''}/",)
                inputs = [topic(name) for name in read]
            else:
                inputs = [operators[parent] for parent in node.parents]
            what = "" if isinstance(node, p.Source | p.Sink) else _short(detail(node))
            lines = tuple(line for line in (f"{kind(node)} {_short(node.name)}", what) if line)
            operators[node] = box = Box("operator", lines, above=inputs)
            boxes.append(box)
            if isinstance(node, p.Sink):
                named = node.topic if isinstance(node.topic, str) else f"{node.topic}()"
                topic(named).above.append(box)
        boxes += [
            Box("store", (f"store {_short(store.name)}",), above=[operators[store.node]])
            for store in sub.stores
        ]
    return boxes


def _layers(boxes: Sequence[Box]) -> list[list[Box]]:
    """The boxes by the longest way to them. Where a topology reads what it writes, the line that
    would close the circle counts for nothing."""
    depth: dict[Box, int] = {}
    on_the_way: set[Box] = set()

    def deepest(box: Box) -> int:
        if box not in depth:
            on_the_way.add(box)
            above = [deepest(each) for each in box.above if each not in on_the_way]
            on_the_way.discard(box)
            depth[box] = max(above, default=-1) + 1
        return depth[box]

    layers: list[list[Box]] = []
    for box in boxes:
        box.layer = deepest(box)
        layers += [[] for _ in range(box.layer + 1 - len(layers))]
        layers[box.layer].append(box)
    return layers


def _order(layers: Sequence[list[Box]]) -> None:
    """Puts each box near those that it hangs on, by turns from above and from below."""
    below: dict[Box, list[Box]] = {box: [] for layer in layers for box in layer}
    for layer in layers:
        for box in layer:
            for above in box.above:
                below[above].append(box)
    for sweep in range(SWEEPS):
        goes_down = sweep % 2 == 0
        for layer in layers if goes_down else reversed(layers):
            places = {box: at for each in layers for at, box in enumerate(each)}
            near = {box: box.above if goes_down else below[box] for box in layer}
            layer.sort(key=lambda box: _middle(near[box], places, places[box]))


def _middle(boxes: Sequence[Box], places: Mapping[Box, int], otherwise: int) -> float:
    return sum(places[box] for box in boxes) / len(boxes) if boxes else otherwise


def _place(layers: Sequence[Sequence[Box]]) -> tuple[float, float]:
    """Gives each box its place; the size of the picture."""
    widths = [sum(box.width + GAP_X for box in layer) - GAP_X for layer in layers]
    width = max(widths, default=0.0) + 2 * GAP_X
    y = float(GAP_X)
    for layer, taken in zip(layers, widths, strict=True):
        x = (width - taken) / 2
        for box in layer:
            box.x, box.y = x + box.width / 2, y
            x += box.width + GAP_X
        y += max(box.height for box in layer) + GAP_Y
    return width, y - GAP_Y + GAP_X


def _drawn(box: Box) -> Iterable[str]:
    radius = {"operator": 3, "topic": box.height / 2, "store": 10}[box.style]
    yield (
        f'<rect class="{box.style}" x="{box.x - box.width / 2:.1f}" y="{box.y:.1f}" '
        f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{radius:.1f}"/>'
    )
    for number, line in enumerate(box.lines):
        y = box.y + PADDING + LINE * (number + 1) - 6
        style = "what" if number else "name"
        yield f'<text class="{style}" x="{box.x:.1f}" y="{y:.1f}">{escape(line)}</text>'


def _line(above: Box, box: Box) -> str:
    start, end = above.y + above.height, box.y
    middle = (start + end) / 2
    return (
        f'<path d="M{above.x:.1f} {start:.1f} C{above.x:.1f} {middle:.1f} '
        f'{box.x:.1f} {middle:.1f} {box.x:.1f} {end:.1f}"/>'
    )


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
