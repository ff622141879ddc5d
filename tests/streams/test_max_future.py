"""Records from the future go the way of errors, before they move stream time."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import Streams, TopologyTestDriver, int64, string, tumbling
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.streams.stream import Stream

NOW = 1_700_000_000_000
DAY = 86_400_000
YEAR_3000 = 32_503_680_000_000


def ran(timestamps: list[int], source: dict[str, Any] | None = None, **options: Any) -> list[int]:
    """The timestamps that come through; value and key are of no interest."""
    app = Streams("app", key=string(), value=string(), **options)
    app.stream("in", **(source or {})).to("out")
    (sub,) = compile_topology(app.plan())
    task = Task(sub, 3)
    data = [str(timestamp).encode() for timestamp in timestamps]
    task.enqueue("in", Columns(data, data, timestamps, range(100, 100 + len(timestamps))))
    task.process(1_000, NOW)
    return [t for o in task.drain() if o.topic == "out" for t in o.columns.timestamps]


def test_a_day_ahead_is_the_limit_and_the_record_is_named() -> None:
    assert ran([NOW + DAY, 0]) == [NOW + DAY, 0]
    with pytest.raises(ProcessingError) as caught:
        ran([NOW, NOW + DAY + 1])
    assert "topic 'in', partition 3, offset 101" in str(caught.value)
    assert f"timestamp {NOW + DAY + 1} is more than 1d ahead of the wall clock" in str(caught.value)


def test_the_policy_decides_what_becomes_of_it() -> None:
    assert ran([1, YEAR_3000, 2], on_error="skip") == [1, 2]
    options: dict[str, Any] = {"on_error": "dlq", "dead_letter_topic": "letters"}
    assert ran([1, YEAR_3000, 2], **options) == [1, 2]


def test_the_application_says_how_far_and_a_source_for_itself() -> None:
    assert ran([NOW + 2 * DAY], max_future="2d") == [NOW + 2 * DAY]
    assert ran([YEAR_3000], {"max_future": "1000000d"}) == [YEAR_3000]
    with pytest.raises(ProcessingError, match="more than 1h ahead"):
        ran([NOW + DAY], {"max_future": "1h"})
    with pytest.raises(TopologyError, match="app: max_future: expected 0 or more"):
        Streams("app", max_future=-1)


def test_a_timestamp_that_a_function_gives_is_judged_too() -> None:
    assert ran([YEAR_3000], {"timestamp": lambda v: int(v) // 1_000}) == [YEAR_3000 // 1_000]
    with pytest.raises(ProcessingError, match="ahead of the wall clock"):
        ran([NOW], {"timestamp": lambda v: int(v) * 2})


def windows(stream: Stream) -> None:
    counts = stream.group_by(lambda v: "all", name="g").window(tumbling("1m")).count(name="n")
    counts.final().to("out", value=int64())


def test_one_record_of_the_year_3000_closes_no_window() -> None:
    app = Streams("app", key=string(), value=string(), on_error="skip")
    windows(app.stream("in"))
    reader, counter = (Task(sub, 0) for sub in compile_topology(app.plan()))
    times = [NOW, YEAR_3000, NOW + 1, NOW + 120_000]
    reader.enqueue("in", Columns([b"k"] * 4, [b"v"] * 4, times, range(4)))
    reader.process(10, NOW)
    (out,) = reader.drain()
    assert list(out.columns.timestamps) == [NOW, NOW + 1, NOW + 120_000]
    counter.enqueue(out.topic, Columns(*_read(out.columns)))
    counter.process(10, 0)  # no guard: what is in an internal topic was let through
    (final,) = counter.commit().outputs
    assert [int.from_bytes(value, "big") for value in final.columns.values if value] == [2]


def _read(columns: Columns) -> tuple[Any, ...]:
    return columns.keys, columns.values, columns.timestamps, range(len(columns))


def test_the_test_driver_has_no_guard_its_clock_stands_at_1970() -> None:
    app = Streams("app", key=string(), value=string())
    windows(app.stream("in", max_future="1s"))
    driver = TopologyTestDriver(app)
    for timestamp in (NOW, NOW + 60_000, YEAR_3000):
        driver.pipe("in", "v", timestamp=timestamp)
    assert [record.value for record in driver.read("out")] == [1, 1]
