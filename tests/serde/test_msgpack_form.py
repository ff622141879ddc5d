"""MessagePack as columns: what native code reads and writes is what msgspec and msgpack do."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgpack as packing
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import SerdeError
from kafkalite.serde import SerdeContext, json, msgpack
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.column_values import ReadValues
from kafkalite.serde.msgpack import FORM_RECORDS, PAUSE
from kafkalite.serde.msgpack_form import NATIVE, columns_of, values_of

if not NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

WELCOME = SerdeContext(forms=True, arrow=True)


def spans(values: Sequence[bytes | None]) -> Spans:
    gathered = Spans.gathered(values)
    assert gathered is not None
    return gathered


def read(values: Sequence[bytes | None], *fields: str) -> list[Any] | None:
    """The objects of the column of values; None where it is refused."""
    given_ = spans(values)
    columns = columns_of(given_, frozenset(fields) if fields else None)
    if columns is None:
        return None
    array = ReadValues(given_, columns, lambda value: value).arrow()
    array.validate(full=True)
    found: list[Any] = array.to_pylist()
    return found


def objects(values: Sequence[bytes | None], *fields: str) -> list[Any]:
    found = msgpack().open(SerdeContext()).deserialize("t", values)
    if not fields:
        return list(found)
    return [each and {name: each[name] for name in each if name in fields} for each in found]


def exact(value: Any, *, by_name: bool = False) -> Any:
    """What differs where values do: types, the order of keys, the bits of floats."""
    if isinstance(value, dict):
        items = [(name, exact(part)) for name, part in value.items()]
        return sorted(items) if by_name else items
    if isinstance(value, list):
        return "list", [exact(part) for part in value]
    if isinstance(value, float):
        return "float", struct.pack("d", value)
    return type(value).__name__, value


edges = [0, 1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
edges += [-1, -32, -33, -128, -129, -(2**15), -(2**15) - 1, -(2**31), -(2**31) - 1, -(2**63)]
ints = st.sampled_from(edges) | st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=5) | st.sampled_from(["x" * 31, "x" * 32, "é" * 128, "y" * 70_000])
MAKERS: dict[str, st.SearchStrategy[Any]] = {
    "int": ints,
    "float": st.floats(),
    "text": texts,
    "bool": st.booleans(),
    "null": st.none(),
    "list": st.lists(ints | st.none(), max_size=20),
    "texts": st.lists(texts, max_size=3),
    "objects": st.lists(texts.map(lambda text: {"x": text, "y": [text]}), max_size=3),
}
ODD = st.sampled_from([b"bytes", 2**64 - 1, (1, 2), {}, {1: 2}, [1, "a"], packing.Timestamp(1)])
names = st.sampled_from(["id", "a", "größe", "user", "a name of a field of more than 31 bytes"])


@st.composite
def shapes(draw: st.DrawFn, depth: int = 2) -> Any:
    """A maker's name, or fields with the shapes of their values."""
    if not depth or draw(st.integers(0, 3)):
        return draw(st.sampled_from(list(MAKERS)))
    fields = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return [(name, draw(shapes(depth - 1))) for name in fields]


def made(draw: st.DrawFn, shape: Any) -> Any:
    """A value of a shape; now and then null, or something else."""
    chance = draw(st.integers(0, 40))
    if chance < 4:
        return None
    if chance == 4:
        return draw(ODD)
    if isinstance(shape, str):
        return draw(MAKERS[shape])
    return {name: made(draw, part) for name, part in shape}


@st.composite
def batches(draw: st.DrawFn) -> list[bytes | None]:
    """Values of one shape as bytes; of which some may be damaged."""
    fields = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    shape = [(name, draw(shapes(1))) for name in fields]
    column: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 4))):
        value = {name: made(draw, part) for name, part in shape}
        data = packing.packb(value)
        if not draw(st.integers(0, 5)):
            place, cut = draw(st.integers(0, len(data))), draw(st.integers(0, 3))
            data = data[:place] + draw(st.binary(max_size=2)) + data[place + cut :]
        column.append(data)
    return [*column, None] if draw(st.booleans()) else column


@settings(max_examples=200, deadline=None)
@given(batches(), st.lists(names, max_size=3, unique=True))
def test_columns_hold_what_the_objects_hold(column: list[bytes | None], fields: list[str]) -> None:
    found = read(column, *fields)
    if found is not None:
        by_name = bool(fields)
        assert [exact(each, by_name=by_name) for each in found] == [
            exact(each, by_name=by_name) for each in objects(column, *fields)
        ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=3))
def test_no_bytes_are_taken_that_the_objects_refuse(values: list[bytes]) -> None:
    for column in (values, [b"\x82\xa1a" + value + b"\xa1b\x01" for value in values]):
        for fields in ((), ("b",)):
            if read(column, *fields) is not None:
                objects(column)


TAKEN: list[tuple[list[Any], tuple[str, ...]]] = [
    ([{"a": 1, "b": "x"}, {"a": -(2**63), "b": ""}], ()),
    ([{"a": None}, None, {"a": True}, {"a": False}], ()),
    ([{"a": {"b": {"c": 1.5}}, "d": 0}, {"a": None, "d": 1}, {"a": {"b": None}, "d": 2}], ()),
    ([{"a": 1, "x": [1, {"y": b"z"}], "b": 2}, {"b": 3, "y": "é", "a": 4}], ("a", "b")),
    ([{"a": 1}, {"a": 2, "a1": 2.5}], ("a", "missing")),
    ([{"a": []}, {"a": [[]]}, {"a": [["x"], None, ["", "y"]]}], ()),
    ([{f"f{n}": n for n in range(20)}] * 2, ()),
]
REFUSED: list[tuple[str, list[Any], tuple[str, ...]]] = [
    ("a field that is missing", [{"a": 1, "b": 2}, {"a": 1}], ()),
    ("a field more", [{"a": 1}, {"a": 1, "b": 2}], ()),
    ("another order", [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ()),
    ("a chosen field that is missing", [{"a": 1}, {"b": 1}], ("a", "b")),
    ("an int and a float", [{"a": 1}, {"a": 1.0}], ()),
    ("bytes", [{"a": b"x"}], ()),
    ("a tuple", [{"a": packing.ExtType(1, b"\x90")}], ()),
    ("a key that is no text", [{"a": {1: 2}}], ()),
    ("an empty dict", [{"a": {}}], ()),
    ("a value that is no dict", [[1]], ()),
    ("an integer beyond int64", [{"a": 2**63}], ()),
]


@pytest.mark.parametrize(("column", "fields"), TAKEN, ids=repr)
def test_values_that_are_alike_are_columns(column: list[Any], fields: tuple[str, ...]) -> None:
    values = [None if each is None else packing.packb(each) for each in column]
    found = read(values, *fields)
    assert found is not None
    expected = objects(values, *fields)
    assert [exact(each, by_name=True) for each in found] == [
        exact(each, by_name=True) for each in expected
    ]


@pytest.mark.parametrize(("why", "column", "fields"), REFUSED, ids=[each[0] for each in REFUSED])
def test_other_values_are_refused(why: str, column: list[Any], fields: tuple[str, ...]) -> None:
    assert read([packing.packb(each) for each in column], *fields) is None, why


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """Structs of fields that may be written; at times a slice."""
    fields = draw(st.lists(names, min_size=1, max_size=20, unique=True))
    kinds = [pa.int64(), pa.int32(), pa.float64(), pa.bool_(), pa.string(), pa.null()]
    of_kind: dict[Any, st.SearchStrategy[Any]] = {
        kinds[0]: ints, kinds[1]: st.integers(-(2**31), 2**31 - 1), kinds[2]: st.floats(),
        kinds[3]: st.booleans(), kinds[4]: texts, kinds[5]: st.none(),
    }  # fmt: skip
    types, values = {}, {}
    for name in fields:
        kind = draw(st.sampled_from(kinds))
        types[name], values[name] = kind, of_kind[kind] | st.none()
        if draw(st.integers(0, 3)) == 0:
            types[name], values[name] = pa.list_(kind), st.lists(values[name], max_size=18)
        elif draw(st.integers(0, 3)) == 0:
            types[name] = pa.struct([("in", kind)])
            values[name] = st.fixed_dictionaries({"in": values[name]}) | st.none()
    rows = st.lists(st.fixed_dictionaries(values) | st.none(), min_size=1, max_size=20)
    array = pa.array(draw(rows), pa.struct(list(types.items())))
    return array.slice(draw(st.integers(0, len(array) - 1)))


@settings(max_examples=200, deadline=None)
@given(arrays())
def test_arrays_are_written_as_their_objects_are(array: pa.Array) -> None:
    found = values_of(array)
    assert found is not None
    assert list(found) == msgpack().open(SerdeContext()).serialize("t", array.to_pylist())


def test_other_arrays_are_refused() -> None:
    for of in (pa.binary(), pa.timestamp("ms"), pa.float32(), pa.uint64(), pa.large_string()):
        assert values_of(pa.array([{"a": None}], pa.struct([("a", of)]))) is None
    assert values_of(pa.array([{}], pa.struct([]))) is None


def test_a_codec_reads_and_writes_columns_without_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    column = [{"id": n, "name": f"n{n}", "x": n / 7} for n in range(FORM_RECORDS)]
    values = spans([packing.packb(each) for each in column])
    monkeypatch.setattr(ReadValues, "objects", None)
    codec = msgpack().open(WELCOME)
    form = codec.deserialize("t", values)
    assert isinstance(form, ArrowForm)
    assert form.arrow().to_pylist() == column
    assert list(codec.serialize("t", form.where([n % 2 for n in range(len(form))]))) == list(
        values[1::2]
    )
    assert next(iter(json().open(WELCOME).serialize("t", form))) == b'{"id":0,"name":"n0","x":0.0}'
    monkeypatch.undo()
    assert form[3] == column[3]


def test_few_values_and_those_that_somebody_looks_at_are_objects() -> None:
    column = spans([packing.packb({"a": n}) for n in range(FORM_RECORDS)])
    for context in (SerdeContext(), SerdeContext(forms=True)):
        assert type(msgpack().open(context).deserialize("t", column)) is list
    assert type(msgpack().open(WELCOME).deserialize("t", column[1:])) is list
    few = msgpack().open(WELCOME).deserialize("t", column)[: FEW - 1]
    assert msgpack().open(WELCOME).serialize("t", few) == list(column[: FEW - 1])


def test_after_values_that_differ_some_batches_are_read_as_objects() -> None:
    alike = spans([packing.packb({"a": 1})] * FORM_RECORDS)
    mixed = spans([packing.packb({"a": 1}), packing.packb({"b": 1})] * FORM_RECORDS)
    codec = msgpack().open(WELCOME)
    kinds = [type(codec.deserialize("t", each)) for each in [mixed, *[alike] * (PAUSE + 1)]]
    assert kinds == [list] * (PAUSE + 1) + [ArrowForm]


def test_a_value_that_is_damaged_is_named_as_ever() -> None:
    column = [packing.packb({"a": 1})] * FORM_RECORDS
    column[7] = b"\x81\xa1a"
    with pytest.raises(SerdeError) as failure:
        msgpack().open(WELCOME).deserialize("t", spans(column))
    assert failure.value.index == 7
