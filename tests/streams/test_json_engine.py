"""Expressions over JSON: Arrow's way gives what the loop over Python objects gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_arrow_engine import outcome, steps

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import TopologyError
from kafkalite.serde import Serde, bytes_, json, string
from kafkalite.serde.column_values import ReadValues
from kafkalite.streams import col, count, lit, max_, min_, sum_, timestamp, tumbling, value
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local import inputs
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task

VALUES: dict[str, list[Any]] = {  # of one type, but the last
    "l": [0, 7, -3, 2**63 - 1, -(2**63)],
    "d": [0.0, -0.0, 1.5, -2.25, 1e308, 0.1],
    "b": [True, False],
    "s": ["", "a", "Ab", "é x", " pad ", 'q"\n'],
    "größe": [1, 2],
    "n": [None],
    "r": [{"x": 1, "z": "q"}, {"x": None, "z": ""}],
    "t": [[], ["x", "y"], ["", None]],
    "o": [[{"x": 1}], [], [None, {"x": 2}]],
    "mixed": [1, 1.5, "a", [1], {}, 2**70],
}


@st.composite
def rows(draw: st.DrawFn, names: Sequence[str]) -> Any:
    """An object; now and then null, or without a field."""
    if not draw(st.integers(0, 15)):
        return None
    fields = [name for name in names if draw(st.integers(0, 20))]
    return {name: draw(st.sampled_from([*VALUES[name], None])) for name in fields}


def run(
    build: Callable[[StreamsBuilder], None],
    batches: Sequence[Sequence[Any]],
    *,
    on_error: Any = "fail",
    by_arrow: bool,
) -> tuple[list[Any], str]:
    """What a task writes, and how it ends. A value that is bytes is a text as it is."""
    app = StreamsBuilder(
        "app", key=bytes_(), value=json(), on_error=on_error, dead_letter_topic="dead"
    )
    try:
        build(app)
    except TopologyError:  # an expression whose types fit no record
        return [], "refused"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "HAS_ARROW", by_arrow)
        patch.setattr(importlib.import_module("kafkalite.serde.json"), "FORM_RECORDS", FEW)
        patch.setattr(importlib.import_module("kafkalite.serde.json"), "PAUSE", 0)
        (sub,) = compile_topology(app.plan())
        return outcome(Task(sub, 0), map(texts_of, batches))


def texts_of(batch: Sequence[Any]) -> Any:
    texts = [text_of(each) for each in batch]
    return Spans.gathered(texts) or texts if len(texts) >= FEW else texts


def text_of(each: Any) -> bytes | None:
    if each is None or isinstance(each, bytes):
        return each
    return b"[1e400]" if 2**70 in each.values() else orjson.dumps(each)


def both(build: Any, batches: Any, on_error: Any = "fail") -> tuple[list[Any], str]:
    by_arrow = run(build, batches, on_error=on_error, by_arrow=True)
    assert by_arrow == run(build, batches, on_error=on_error, by_arrow=False)
    return by_arrow


SINKS: list[Serde] = [json(), json(), bytes_()]


@given(st.data())
@settings(
    max_examples=60,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_a_topology_writes_the_same_with_arrow_and_without(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5, unique=True))
    pool = data.draw(st.lists(rows(names), min_size=1, max_size=4))
    sizes = st.sampled_from([1, FEW - 1, FEW, FEW + 60])
    batches = [
        [pool[number % len(pool)] for number in range(size)]
        for size in data.draw(st.lists(sizes, min_size=1, max_size=3))
    ]
    made = data.draw(st.lists(steps(names), min_size=1, max_size=3))
    sink = data.draw(st.sampled_from(SINKS))

    def build(app: StreamsBuilder) -> None:
        stream: Any = app.stream("in")
        for step in made:
            stream = step(stream)
        stream.to("out", key=json(), value=sink)

    both(build, batches, data.draw(st.sampled_from(["fail", "skip", "dlq"])))


def event(number: int) -> dict[str, Any]:
    amount = None if number % 7 == 0 else number * 1.5
    user = {"name": f"ü{number}", "age": number % 90}
    return {"id": number, "kind": number % 40, "amount": amount, "user": user}


EVENTS = [*map(event, range(FEW * 2))]


def all_of_the_event(app: StreamsBuilder) -> None:
    kept = app.stream("in").filter(col("kind") < 32)
    kept.assign(kept=lit(True), at=timestamp()).drop("id").rename(kind="sort").to("out")


def some_of_the_event(app: StreamsBuilder) -> None:
    kept = app.stream("in").filter(col("user")["age"] < 60)
    kept.select("id", gross=col("amount") * 1.19, note=value().get("note")).to("out")


@pytest.mark.parametrize("build", [all_of_the_event, some_of_the_event])
def test_from_json_to_json_no_object_is_made(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[StreamsBuilder], None]
) -> None:
    made: list[int] = []
    objects = ReadValues.objects

    def count_objects(self: ReadValues, indexes: Sequence[int]) -> list[Any]:
        made.extend(indexes)
        return objects(self, indexes)

    monkeypatch.setattr(ReadValues, "objects", count_objects)
    written, _ = both(build, [EVENTS, EVENTS])
    assert made == []
    assert written[0][2][:1] != [None]


def test_where_a_function_wants_objects_no_columns_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    monkeypatch.setattr(ReadValues, "arrow", lambda self: made.append(len(self)))

    def build(app: StreamsBuilder) -> None:
        app.stream("in").filter(col("kind") < 2).map(lambda v: {"id": v["id"]}).to("out")

    run(build, [EVENTS], by_arrow=True)
    assert made == []


def test_a_filter_passes_on_the_bytes_that_it_read() -> None:
    def build(app: StreamsBuilder) -> None:
        app.stream("in").filter(col("id") > 3).to("out")

    spaced = [b' { "id" : %d } ' % number for number in range(FEW)]
    written, _ = both(build, [spaced])
    assert written[0][2] == spaced[4:]


BAD: list[tuple[Any, bool]] = [  # a value, and whether it is refused
    ({"kind": 1, "amount": 1.0, "user": {"name": "a", "age": 1}}, True),  # no id
    ({**EVENTS[0], "id": "x"}, True),
    ({**EVENTS[0], "id": 2**63 - 1}, True),
    (b'{"id":', True),
    (b'{"id":\xff}', True),
    (b"[]", True),
    ({**EVENTS[0], "id": 1.5}, False),
    ({**EVENTS[0], "more": 1}, False),
]


@pytest.mark.parametrize("on_error", ["fail", "skip", "dlq"])
@pytest.mark.parametrize(("bad", "fails"), BAD, ids=[str(bad)[:20] for bad, _ in BAD])
def test_one_odd_value_sends_the_batch_the_way_of_objects(
    bad: Any, on_error: Any, *, fails: bool
) -> None:
    def build(app: StreamsBuilder) -> None:
        app.stream("in").assign(id=col("id") + 1).filter(col("id") > 3).to("out")

    written, error = both(build, [EVENTS, [*EVENTS[:250], bad, *EVENTS[251:]], EVENTS], on_error)
    assert ("offset 650" in error) == (on_error == "fail" and fails)
    assert [topic for topic, *_ in written].count("dead") == (on_error == "dlq" and fails)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_arguments_of_aggregates_keys_and_timestamps_come_from_arrow(on_error: Any) -> None:
    def build(app: StreamsBuilder) -> None:
        by_time = app.stream("in", timestamp=col("id") * 1_000)
        windows = by_time.group_by_key().window(tumbling("60s"))
        windows.aggregate(
            n=count(), total=sum_(col("id") * 2), most=max_("kind"), least=min_("amount")
        ).to_stream().to("out", value=json())
        by_time.select_key(col("user")["name"].str.upper()).to("names", key=string())

    both(build, [EVENTS, [*EVENTS, None], EVENTS], on_error)
