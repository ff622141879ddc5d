"""A repartition topic of MessagePack: columns go in and come out, as objects would."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_arrow_engine import seen
from test_json_engine import EVENTS, VALUES, rows, texts_of

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError
from kafkalite.serde import json, msgpack
from kafkalite.serde.column_values import ReadValues
from kafkalite.serde.msgpack import READER
from kafkalite.serde.msgpack_form import NATIVE
from kafkalite.streams import col, count, hopping, last, max_, sum_
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local import inputs
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task


def run(
    build: Callable[[StreamsBuilder], None],
    batches: Sequence[Sequence[Any]],
    *,
    by_arrow: bool,
    on_error: Any = "fail",
) -> list[Any]:
    """What stands in the repartition topic and what comes of it, and how either task ends."""
    app = StreamsBuilder("app", key=msgpack(), on_error=on_error, dead_letter_topic="dead")
    build(app)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "HAS_ARROW", by_arrow)
        for name in ("json", "msgpack"):
            patch.setattr(importlib.import_module(f"kafkalite.serde.{name}"), "FORM_RECORDS", FEW)
            patch.setattr(importlib.import_module(f"kafkalite.serde.{name}"), "PAUSE", 0)
        above, below = compile_topology(app.plan())
        made, first = outputs_of(Task(above, 0), "in", map(columns_of, map(texts_of, batches)))
        (topic,) = above.repartition_sinks
        between = [as_fetched(each.columns) for each in made if each.topic == topic]
        found, second = outputs_of(Task(below, 0), str(topic), between)
    return [*map(seen, made), first, *map(seen, found), second]


def columns_of(data: Any) -> Columns:
    return Columns([b"k"] * len(data), data, [n * 1000 for n in range(len(data))])


def as_fetched(columns: Columns) -> Columns:
    values: Any = list(columns.values)
    if len(values) >= FEW:
        values = Spans.gathered(values) or values
    return Columns(columns.keys, values, columns.timestamps, None, columns.headers)


def outputs_of(task: Task, topic: str, batches: Any) -> tuple[list[Output], str]:
    written: list[Output] = []
    offset = 0
    try:
        for batch in batches:
            offsets = range(offset, offset + len(batch))
            task.enqueue(
                topic, Columns(batch.keys, batch.values, batch.timestamps, offsets, batch.headers)
            )
            offset += len(batch)
            while task.process(10_000, 0):
                pass
            written += task.drain()
        commit = task.commit()
        written += [*commit.outputs, *commit.changelog]
    except ProcessingError as error:
        return written, str(error)
    return written, ""


def both(build: Any, batches: Any, on_error: Any = "fail") -> list[Any]:
    found = run(build, batches, by_arrow=True, on_error=on_error)
    assert found == run(build, batches, by_arrow=False, on_error=on_error)
    return found


def by_kind(app: StreamsBuilder) -> None:
    there = app.stream("in", value=json()).filter(col("amount").is_not_null())
    events = there.select("kind", gross=col("amount") * 1.19, id=col("id"))
    windows = events.group_by("kind").window(hopping("60s", "30s"))
    windows.aggregate(n=count(), total=sum_("gross"), most=max_("id")).to_stream().to(
        "out", value=json()
    )


@pytest.mark.skipif(not NATIVE, reason="the native module was not built")
def test_no_object_is_made_on_either_side_of_a_repartition_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    readers: list[Any] = []
    objects, arrow = ReadValues.objects, ReadValues.arrow

    def count_objects(self: ReadValues, indexes: Sequence[int]) -> list[Any]:
        made.extend(indexes)
        return objects(self, indexes)

    def note_reader(self: ReadValues) -> Any:
        readers.append(self.read)
        return arrow(self)

    monkeypatch.setattr(ReadValues, "objects", count_objects)
    monkeypatch.setattr(ReadValues, "arrow", note_reader)
    run(by_kind, [EVENTS, EVENTS], by_arrow=True)
    assert made == []
    assert readers.count(READER.decode) == 2  # batches of the repartition topic
    written = both(by_kind, [EVENTS, EVENTS])
    assert {each[0] for each in written if isinstance(each, tuple)} > {"out"}


@given(st.data())
@settings(
    max_examples=40,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_a_repartition_topic_carries_the_same_with_arrow_and_without(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5, unique=True))
    pool = data.draw(st.lists(rows(names), min_size=1, max_size=4))
    sizes = st.sampled_from([1, FEW - 1, FEW, FEW + 60])
    batches = [
        [pool[number % len(pool)] for number in range(size)]
        for size in data.draw(st.lists(sizes, min_size=1, max_size=3))
    ]
    by, argument = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    aggregate: Any = data.draw(st.sampled_from([last, max_, sum_, count]))

    def build(app: StreamsBuilder) -> None:
        stream = app.stream("in", value=json()).select(*names)
        windows = stream.group_by(by).window(hopping("60s", "30s"))
        windows.aggregate(n=count(), it=aggregate(argument)).to_stream().to("out")

    both(build, batches, data.draw(st.sampled_from(["fail", "skip", "dlq"])))
