"""Expressions over Avro: Arrow's way gives what the loop over Python objects gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.serde import (
    MemoryRegistry,
    Serde,
    SerdeContext,
    avro,
    avro_codec,
    avro_form,
    bytes_,
    int64,
    json,
    string,
)
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_form import AvroValues
from kafkalite.serde.vectors import NATIVE
from kafkalite.streams import (
    Expression,
    coalesce,
    col,
    count,
    lit,
    max_,
    mean,
    min_,
    sum_,
    timestamp,
    tumbling,
    when,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.functions import CallableFunction
from kafkalite.streams.local import arrows, inputs
from kafkalite.streams.local.arrows import on_arrow
from kafkalite.streams.local.batch import MADE, Batch, Output
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.operators.folding import argument
from kafkalite.streams.local.task import Task
from kafkalite.streams.stream import Stream

native = pytest.mark.skipif(not NATIVE, reason="the native module was not built")

WHEN = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
TYPES: dict[str, tuple[Any, list[Any]]] = {  # a schema, and values as they are read
    "l": ("long", [0, 7, -3, 2**63 - 1, -(2**63)]),
    "i": ("int", [0, 5, -5, 2**31 - 1]),
    "d": ("double", [0.0, -0.0, 1.5, -2.25, 1e308]),
    "f": ("float", [0.0, 1.5, -2.25, 0.10000000149011612]),
    "b": ("boolean", [True, False]),
    "s": ("string", ["", "a", "Ab", "é x", " pad "]),
    "y": ("bytes", [b"", b"a", b"\xff"]),
    "e": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["A", "B"]),
    "t": ({"type": "long", "logicalType": "timestamp-millis"}, [WHEN, WHEN.replace(year=1960)]),
    "u": ({"type": "long", "logicalType": "timestamp-micros"}, [WHEN.replace(microsecond=1)]),
    "c": ({"type": "int", "logicalType": "date"}, [date(2020, 2, 29), date(1, 1, 1)]),
    "n": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        [Decimal("1.50"), Decimal("-99.99")],
    ),
    "g": ({"type": "string", "logicalType": "uuid"}, []),
    "a": ({"type": "array", "items": "string"}, [[], ["x", "y"]]),
    "m": ({"type": "map", "values": "long"}, [{}, {"k": 1}]),
    "r": (
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "x", "type": ["null", "long"]}, {"name": "z", "type": "string"}],
        },
        [{"x": 1, "z": "q"}, {"x": None, "z": ""}],
    ),
}
NAMES = [name for name in TYPES if name != "g"]


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    fields = [
        {"name": name, "type": ["null", TYPES[name][0]] if draw(st.booleans()) else TYPES[name][0]}
        for name in names
    ]
    return {"type": "record", "name": "In", "fields": fields}


@st.composite
def values(draw: st.DrawFn, schema: dict[str, Any]) -> Any:
    if not draw(st.integers(0, 9)):
        return None
    row = {}
    for field in schema["fields"]:
        known = TYPES[field["name"]][1]
        nullable = isinstance(field["type"], list)
        row[field["name"]] = draw(st.sampled_from([*known, None] if nullable else known))
    return row


@st.composite
def expressions(draw: st.DrawFn, names: Sequence[str], depth: int = 2) -> Expression:
    """Some fit their fields, others are refused or fail on some records."""
    if not depth or not draw(st.integers(0, 3)):
        leaves = [*map(col, names), *map(col, names), lit(2), lit(1.5), lit("a"), timestamp()]
        return draw(st.sampled_from(leaves))
    part = expressions(names, depth - 1)
    x, y = draw(part), draw(part)
    return draw(
        st.sampled_from(
            [
                lambda: x + y,
                lambda: x * 1.19,
                lambda: x - 1,
                lambda: x / y,
                lambda: x // 2,
                lambda: x % 3,
                lambda: -x,
                lambda: x > y,
                lambda: x == y,
                lambda: x <= 2,
                lambda: (x > 1) & (y < 3),
                lambda: (x == y) | x.is_null(),
                lambda: x.is_null(),
                lambda: x.is_in([1, 7]),
                lambda: x.fill_null(0),
                lambda: coalesce(x, y),
                lambda: when(x > 1).then(y).otherwise(x),
                lambda: when(x.is_null()).then(1).otherwise(y),
                lambda: x.str.lower(),
                lambda: x.str.starts_with("a"),
                lambda: x.str.len_chars(),
                lambda: x.dt.hour(),
                lambda: x.dt.date(),
                lambda: x.dt.truncate("1h"),
                lambda: x.cast("string"),
                lambda: x.cast("int64", strict=False),
                lambda: x["x"],
                lambda: x.get("q"),
                lambda: x.list.len(),
                lambda: x.hash(),
                lambda: x.round(1),
            ]
        )
    )()


@st.composite
def steps(draw: st.DrawFn, names: Sequence[str]) -> Callable[[Stream], Stream]:
    """One or two operators, by expressions or by a function."""
    expression, other = draw(expressions(names)), draw(expressions(names))
    name = draw(st.sampled_from(names))
    return draw(
        st.sampled_from(
            [
                lambda s: s.filter(expression),
                lambda s: s.filter_not(expression),
                lambda s: s.select(name, made=expression),
                lambda s: s.assign(made=expression),
                lambda s: s.assign(**{name: expression}),
                lambda s: s.drop(name),
                lambda s: s.rename(**{name: "new"}),
                lambda s: s.map(expression),
                lambda s: s.select_key(expression),
                lambda s: s.map(lambda v: dict(v)),
                lambda s: s.filter(lambda v: len(v) != 1),
                lambda s: (lambda a, b: a.merge(b.assign(made=other)))(
                    *s.branch(expression, default=True)
                ),
                lambda s: s.filter(expression).select(name, made=other),
            ]
        )
    )


def run(
    build: Callable[[StreamsBuilder], None],
    schema: dict[str, Any],
    batches: Sequence[Sequence[Any]],
    *,
    on_error: Any = "fail",
    by_arrow: bool,
    by_native: bool = True,
) -> tuple[list[Any], str]:
    """What a task writes, and how it ends. `by_native`: native code is asked before Arrow."""
    registry = MemoryRegistry()
    codec = avro(schema=schema).open(SerdeContext(registry))
    app = StreamsBuilder(
        "app", key=bytes_(), value=avro(), on_error=on_error, dead_letter_topic="dead"
    )
    try:
        build(app)
    except TopologyError:  # an expression whose types fit no record
        return [], "refused"

    def data_of(batch: Sequence[Any]) -> Any:
        data = codec.serialize("in", batch)
        return Spans.gathered(data) or data if by_arrow and len(data) >= FEW else data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "HAS_ARROW", by_arrow)
        if not by_native:
            patch.setattr(arrows, "compile_vectors", lambda _: None)
            patch.setattr(avro_form, "table_of", lambda _: None)
        patch.setattr(avro_codec, "FORM_RECORDS", FEW)  # so that small examples do
        (sub,) = compile_topology(app.plan())
        return outcome(Task(sub, 0, registry=registry), map(data_of, batches))


def outcome(task: Task, batches: Iterable[Any]) -> tuple[list[Any], str]:
    """What a task writes of batches of values, and how it ends."""
    written: list[Any] = []
    offset = 0
    try:
        for data in batches:
            offsets = range(offset, offset + len(data))
            keys = [b"%d" % (number % 3) for number in offsets]
            task.enqueue("in", Columns(keys, data, [n * 1000 for n in offsets], offsets))
            offset += len(data)
            while task.process(10_000, 0):
                pass
            written += map(seen, task.drain())
        commit = task.commit()
        written += map(seen, [*commit.outputs, *commit.changelog])
    except ProcessingError as error:
        return written, str(error)
    return written, ""


def seen(output: Output) -> tuple[Any, ...]:
    given = output.columns
    found = (given.keys, given.values, given.timestamps, given.headers)
    return (output.topic, *(None if column is None else list(column) for column in found))


def both(build: Any, schema: Any, batches: Any, on_error: Any = "fail") -> tuple[list[Any], str]:
    by_objects = run(build, schema, batches, on_error=on_error, by_arrow=False)
    for by_native in (True, False):
        found = run(build, schema, batches, on_error=on_error, by_arrow=True, by_native=by_native)
        assert found == by_objects
    return by_objects


SINKS: list[Serde] = [avro(), avro(), json()]


@given(st.data())
@settings(
    max_examples=60,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_a_topology_writes_the_same_with_arrow_and_without(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    names = [field["name"] for field in schema["fields"]]
    pool = data.draw(st.lists(values(schema), min_size=1, max_size=6))
    sizes = st.sampled_from([1, FEW - 1, FEW, FEW + 1, FEW + 60])
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

    both(build, schema, batches, data.draw(st.sampled_from(["fail", "skip", "dlq"])))


EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": "int"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "user", "type": "string"},
    ],
}
GROSS = {
    "type": "record",
    "name": "Gross",
    "fields": [{"name": "id", "type": "long"}, {"name": "gross", "type": ["null", "double"]}],
}


def event(number: int) -> dict[str, Any]:
    amount = None if number % 7 == 0 else number * 1.5
    return {"id": number, "kind": number % 40, "amount": amount, "user": f"u{number}"}


EVENTS = [*map(event, range(FEW * 2))]


def gross(app: StreamsBuilder) -> None:
    kept = app.stream("in").filter(col("kind") < 32)
    kept.select("id", gross=col("amount") * 1.19).to("out", value=avro(schema=GROSS))


@native
def test_from_avro_to_avro_neither_an_object_is_made_nor_an_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    arrays: list[int] = []
    monkeypatch.setattr(ArrowForm, "arrow", lambda self: arrays.append(len(self)))
    objects = AvroValues.objects

    def count(self: AvroValues, indexes: Sequence[int]) -> list[Any]:
        made.extend(indexes)
        return objects(self, indexes)

    monkeypatch.setattr(AvroValues, "objects", count)
    written, _ = run(gross, EVENT, [EVENTS, EVENTS], by_arrow=True)
    assert not arrays
    assert made == [0]  # which is looked at to see whether there is a schema to be registered
    assert written == run(gross, EVENT, [EVENTS, EVENTS], by_arrow=False)[0]
    assert sum(len(values) for _, _, values, _, _ in written) == 2 * 320


@native
def test_a_function_in_python_sees_rows_of_the_records_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def build(app: StreamsBuilder) -> None:
        app.stream("in").filter(col("kind") < 2).map(
            lambda v: seen.append(v) or {"id": v["id"]}
        ).to("out", value=json())

    made: list[int] = []
    objects = AvroValues.objects
    monkeypatch.setattr(
        AvroValues, "objects", lambda self, at: made.extend(at) or objects(self, at)
    )
    run(build, EVENT, [EVENTS], by_arrow=True)
    kept = [number for number in range(FEW * 2) if number % 40 < 2]
    assert made == kept
    assert seen == [event(number) for number in kept]


@pytest.mark.parametrize("on_error", ["fail", "skip", "dlq"])
def test_one_bad_value_sends_the_batch_the_way_of_objects(on_error: Any) -> None:
    def build(app: StreamsBuilder) -> None:
        app.stream("in").select(id=col("id") + 1).filter(col("id") > 3).to("out")

    bad = [*EVENTS[:250], {**EVENTS[250], "id": 2**63 - 1}, *EVENTS[251:]]
    written, error = both(build, EVENT, [EVENTS, bad], on_error)
    assert ("offset 650" in error) == (on_error == "fail")
    assert [topic for topic, *_ in written].count("dead") == (on_error == "dlq")


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("nulls", [False, True])
def test_arguments_of_aggregates_and_timestamps_come_from_arrow(
    on_error: Any, *, nulls: bool
) -> None:
    def build(app: StreamsBuilder) -> None:
        by_time = app.stream("in", timestamp=col("id") * 1_000)
        windows = by_time.group_by_key().window(tumbling("60s"))
        windows.aggregate(
            n=count(), total=sum_(col("id") * 2), most=max_("kind"), least=min_("amount"),
            mean=mean(col("amount").fill_null(1.5)),
        ).to_stream().to("out", value=json())  # fmt: skip

    some = [None if nulls and number % 9 == 0 else event(number) for number in range(FEW * 2)]
    _, error = both(build, EVENT, [some, EVENTS], on_error)
    assert bool(error) == (nulls and on_error == "fail")


def test_a_key_that_arrow_computes_is_written_as_one_of_the_loop() -> None:
    def build(app: StreamsBuilder) -> None:
        stream = app.stream("in")
        stream.select_key(col("user").str.upper()).to("out", key=string())
        stream.select_key("id").to("out2", key=int64())

    both(build, EVENT, [EVENTS, [*EVENTS, None], EVENTS], "skip")


@native
def test_keys_and_arguments_of_aggregates_need_neither_objects_nor_an_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(app: StreamsBuilder) -> None:
        priced = app.stream("in").filter(col("kind") < 32).select("user", "id")
        keyed = priced.select_key("user")
        keyed.to("out", key=string())
        windows = app.stream("in").group_by_key().window(tumbling("60s"))
        windows.aggregate(total=sum_("id"), most=max_("kind")).to_stream().to("out2", value=json())

    schema = {**EVENT, "fields": [field for field in EVENT["fields"] if field["name"] != "amount"]}
    events = [{name: each[name] for name in ("id", "kind", "user")} for each in EVENTS]
    both(build, schema, [events])
    seen: list[Any] = []
    monkeypatch.setattr(ArrowForm, "arrow", lambda self: seen.append("an array"))
    monkeypatch.setattr(AvroValues, "objects", lambda self, at: seen.append("objects") or [])
    codec: Any = avro(schema=schema).open(SerdeContext(MemoryRegistry(), forms=True))
    monkeypatch.setattr(avro_codec, "FORM_RECORDS", FEW)
    form = codec.deserialize("in", codec.serialize("in", events))
    batch = Batch(range(len(events)), MADE, values=form)
    for name in ("user", "id"):
        function = on_arrow(CallableFunction(itemgetter(name), field=name))
        assert function is not None
        column = function.column(batch)
        if name == "user":
            keys = string().open(SerdeContext()).serialize("out", column)
            assert type(keys) is Spans
            assert list(keys) == [each["user"].encode() for each in events]
        else:
            is_floats, data, bits = argument(column)
            assert (is_floats, list(memoryview(data).cast("q")), bits) == (
                False,
                [each["id"] for each in events],
                None,
            )
    assert not seen


def test_integers_beside_floats_stay_integers() -> None:
    """Arrow's array would have floats alone: the loop does not know that the field holds floats."""

    def build(app: StreamsBuilder) -> None:
        filled = col("amount").fill_null(0).cast("string")
        app.stream("in").select("id", text=filled).to("out", value=avro())

    both(build, EVENT, [EVENTS, EVENTS])


def test_a_form_narrows_its_array_and_its_objects_alike() -> None:
    class Numbers:
        def __len__(self) -> int:
            return 10

        null_count = 0

        def arrow(self) -> Any:
            import pyarrow as pa

            return pa.array(range(10))

        def objects(self, indexes: Sequence[int]) -> list[Any]:
            return list(indexes)

    form = ArrowForm(Numbers())
    for narrow in (
        lambda c: c.where(b"\0\1" * 5),
        lambda c: c.where([number > 3 for number in range(10)])[1:3],
        lambda c: c.take([3, 3, 0]),
        lambda c: c[2:8].where(b"\1\1\0\0\1\1").take(range(1, 3)),
        lambda c: c[::3],
        lambda c: c[5:5],
    ):
        narrowed: Any = narrow(form)
        expected = narrowed.arrow().to_pylist()
        assert list(narrowed) == expected
        assert [narrowed[place] for place in range(len(narrowed))] == expected
    assert list(form) == list(range(10))
    assert list(form.where(b"\1" * 5 + b"\0" * 5)) == [0, 1, 2, 3, 4]  # with its objects made
    assert form.followed_by([form[:1]]) == [*range(10), 0]


@native
def test_few_records_are_rows() -> None:
    registry = MemoryRegistry()
    codec: Any = avro(schema=EVENT).open(SerdeContext(registry, forms=True))
    many = codec.serialize("in", [event(0)] * avro_codec.FORM_RECORDS)
    assert type(codec.deserialize("in", many)) is ArrowForm
    assert type(codec.deserialize("in", many[1:])) is list
