"""A topology as SVG: well-formed, everything in it once, nothing upon something else."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from kafkalite.errors import TopologyError
from kafkalite.streams import Streams, count, json, string, tumbling

SVG = "{http://www.w3.org/2000/svg}"


def diamonds() -> Streams:
    app = Streams("shop", key=string(), value=json())
    orders = app.stream("orders")
    large, small = orders.branch(lambda order: order["amount"] > 100, default=True)
    large.merge(small).to("all")
    by_customer = orders.group_by("customer", name="by-customer")
    by_customer.window(tumbling("1m")).count(name="per-minute").final().to("totals")
    by_customer.aggregate(n=count(), name="customers")
    return app


def rectangles(svg: str) -> list[tuple[float, float, float, float]]:
    root = ElementTree.fromstring(svg)
    return [
        tuple(float(each.attrib[name]) for name in ("x", "y", "width", "height"))  # type: ignore[misc]
        for each in root.iter(f"{SVG}rect")
    ]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_topic_operator_and_store_is_there_once() -> None:
    told = texts(diamonds().describe("svg"))
    for name in (
        "orders", "all", "totals", "shop-by-customer-repartition", "aggregate per-minute",
        "store per-minute", "store customers", "branch orders-branch",
    ):  # fmt: skip
        assert told.count(name) == 1, (name, told)


def test_boxes_lie_side_by_side_within_the_picture_and_below_what_leads_to_them() -> None:
    svg = diamonds().describe("svg")
    found = rectangles(svg)
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(found, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1
    root = ElementTree.fromstring(svg)
    for x, y, width, height in found:
        assert x >= 0
        assert y >= 0
        assert x + width <= float(root.attrib["width"])
        assert y + height <= float(root.attrib["height"])
    for path in root.iter(f"{SVG}path"):
        numbers = list(map(float, re.findall(r"-?[\d.]+", path.attrib["d"])))
        assert numbers[1] < numbers[-1], "lines lead down"


def test_a_topology_that_reads_what_it_writes_is_drawn() -> None:
    app = Streams("loop", value=string())
    app.stream("in").merge(app.stream("again")).filter(len).to("again")
    assert texts(app.describe("svg")).count("again") == 1


def test_names_cannot_break_the_picture() -> None:
    app = Streams("odd", value=string())
    app.stream(re.compile("<b>&\"'.*")).to("out")
    assert any("<b>&" in told for told in texts(app.describe("svg")))


def test_a_notebook_gets_text_and_picture() -> None:
    shown = diamonds()._repr_mimebundle_()
    assert shown["text/plain"].startswith("Topology: shop")
    assert shown["image/svg+xml"].startswith("<svg ")


def test_another_form_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TopologyError, match="expected one of text, mermaid, svg, json, got 'png'"):
        diamonds().describe("png")  # type: ignore[arg-type]
