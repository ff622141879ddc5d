"""A task gives for forms what it gives for lists: the same records, the same failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import objects
from kafkalite.core.protocol.record_codec import NATIVE, Int64s, Spans
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError
from kafkalite.streams import bytes_, json, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.watermarks import MARKER_KEY, Marker, TaskId, without_markers

if not NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)


def as_forms(columns: Columns) -> Columns:
    """The columns of a fetch as the worker's consumer gives them."""
    keys, values = Spans.gathered(columns.keys), Spans.gathered(columns.values)
    assert keys is not None
    assert values is not None
    return Columns(keys, values, Int64s(columns.timestamps), columns.offsets, columns.headers)


def upper(builder: StreamsBuilder) -> None:
    stream = builder.stream("in").filter(lambda v: v is not None and len(v) > 1)
    stream.map(lambda v: v.upper()).to("out")


def passed_on(builder: StreamsBuilder) -> None:
    builder.stream("in").filter(lambda v: v != b"a").to("out")


def in_two_arms(builder: StreamsBuilder) -> None:
    short, long = builder.stream("in").branch(lambda v: v is None or len(v) < 2, default=True)
    short.merge(long.map(lambda v: v + b"!")).to("out")


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by_key().count().to_stream().to("out", value=json())


def counted_by_window(builder: StreamsBuilder) -> None:
    windows = builder.stream("in").group_by_key().window(tumbling(10))
    windows.count(name="n").to_stream().map(str).to("out", value=json())


def as_a_table(builder: StreamsBuilder) -> None:
    builder.table("in").filter(lambda v: len(v) > 1).to_stream().to("out")


def failing(builder: StreamsBuilder) -> None:
    builder.stream("in").map(lambda v: v[2:] if v[0] else None).to("out")


TOPOLOGIES = [upper, passed_on, in_two_arms, counted, counted_by_window, as_a_table, failing]

keys = st.none() | st.binary(max_size=2)
values = st.none() | st.binary(max_size=4)
batches = st.lists(
    st.lists(st.tuples(keys, values, st.integers(0, 60)), min_size=1, max_size=8), max_size=4
)


def results(
    build: Callable[[StreamsBuilder], None],
    batches: Sequence[Sequence[tuple[bytes | None, bytes | None, int]]],
    change: Callable[[Columns], Columns],
    on_error: str,
) -> Any:
    """All that the first task of a topology writes, or why it fails."""
    builder = StreamsBuilder(
        "app", key=bytes_(), value=bytes_(), on_error=on_error, dead_letter_topic="dead"
    )
    build(builder)
    task: Task = TopologyTestDriver(builder)._tasks[0]
    offset = 0
    written = []
    try:
        for batch in batches:
            columns = Columns(
                *map(list, zip(*batch, strict=True)), range(offset, offset + len(batch))
            )
            offset += len(batch)
            task.enqueue("in", change(columns))
            task.process(3, 0)
            task.process(100, 0)
        commit = task.commit()
    except ProcessingError as error:
        return str(error)
    for output in [*commit.outputs, *commit.changelog]:
        for column in (output.columns.keys, output.columns.values):
            assert {type(entry) for entry in column} <= {bytes, type(None)}
        columns = output.columns
        lists = map(objects, (columns.keys, columns.values, columns.timestamps))
        written.append((output.topic, *lists, columns.headers))
    return written, commit.offsets


@pytest.mark.parametrize("build", TOPOLOGIES)
@settings(max_examples=40, deadline=None)
@given(batches=batches, on_error=st.sampled_from(["fail", "skip", "dlq"]))
def test_a_task_gives_for_forms_what_it_gives_for_lists(build, batches, on_error):
    expected = results(build, batches, lambda columns: columns, on_error)
    assert results(build, batches, as_forms, on_error) == expected


def test_functions_see_bytes():
    seen = []
    builder = StreamsBuilder("app", key=bytes_(), value=bytes_())
    builder.stream("in").filter(lambda v: seen.append(type(v)) or True).to("out")
    task = TopologyTestDriver(builder)._tasks[0]
    task.enqueue("in", as_forms(Columns([b"k"] * 3, [b"v", None, b"w"], [1, 2, 3], range(3))))
    task.process(10, 0)
    assert seen == [bytes, type(None), bytes]


def test_what_a_filter_passes_on_stays_a_form():
    builder = StreamsBuilder("app", key=bytes_(), value=bytes_())
    builder.stream("in").filter(lambda v: v != b"b").to("out")
    task = TopologyTestDriver(builder)._tasks[0]
    for at in range(3):
        batch = Columns([b"k"] * 3, [b"a", b"b", b"c"], [1, 2, 3], range(3 * at, 3 * at + 3))
        task.enqueue("in", as_forms(batch))
    task.process(100, 0)
    (output,) = task.drain()
    columns = output.columns
    assert [type(column) for column in (columns.keys, columns.values)] == [Spans, Spans]
    assert type(columns.timestamps) is Int64s
    assert list(columns.values) == [b"a", b"c"] * 3


@given(st.lists(st.booleans(), max_size=12))
def test_markers_are_taken_out_of_forms(are_markers):
    marker = Marker(TaskId(0, 1), 7).encode()
    columns = Columns(
        [MARKER_KEY if marked else b"k" for marked in are_markers],
        [marker if marked else b"v" for marked in are_markers],
        list(range(len(are_markers))),
        range(len(are_markers)),
    )
    expected, placed = without_markers(columns)
    found, placed_in_forms = without_markers(as_forms(columns))
    assert placed_in_forms == placed
    assert list(found.values) == expected.values
    assert list(found.timestamps) == expected.timestamps
