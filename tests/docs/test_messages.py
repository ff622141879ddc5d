"""The messages that pages show are those that the engine gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafkalite.errors import ProcessingError
from kafkalite.streams import Record, Streams, TopologyTestDriver, int64, json, string

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
BLOCK = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"\([^()]*\.py:\d+\)")


def message_on(page: str) -> str:
    """The message in a text block of a page, on one line and without the user's file."""
    (shown,) = (block for block in BLOCK.findall((GUIDE / page).read_text()) if "offset" in block)
    return PLACE.sub("(FILE)", " ".join(shown.split()))


def message_of(app: Streams, topic: str, values: list[object]) -> str:
    with TopologyTestDriver(app) as driver, pytest.raises(ProcessingError) as caught:
        for value in values:
            driver.pipe(topic, value, key="k", timestamp=0)
    return PLACE.sub("(FILE)", str(caught.value))


def test_a_missing_field() -> None:
    app = Streams("messages", key=string(), value=json())
    app.stream("orders").map("amount", name="total").to("totals")
    orders = [*[{"amount": 1}] * 8, {"price": 1, "vat": 2}]
    assert message_of(app, "orders", list(orders)) == message_on("running.md")


def test_a_processor_that_fails() -> None:
    class Changes:
        def process(self, record: Record[str, int]) -> None:
            assert 1 / (7 - record.value)

    app = Streams("messages", key=string(), value=int64())
    app.stream("readings").process(Changes, name="changes").to("changes")
    shown = message_on("processors.md").removesuffix(" …")
    assert message_of(app, "readings", list(range(8))).startswith(shown)
