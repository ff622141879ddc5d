"""JSON texts as columns: what native code reads and writes is what msgspec and orjson do."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde import SerdeContext, json
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.column_values import ReadValues
from kafkalite.serde.json_form import NATIVE, columns_of, keys_of, texts_of

if not NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

from kafkalite.serde._json_read import read_columns

WELCOME = SerdeContext(forms=True, arrow=True)


def spans(texts: Sequence[bytes | None]) -> Spans:
    gathered = Spans.gathered(texts)
    assert gathered is not None
    return gathered


def read(texts: Sequence[bytes | None], *fields: str) -> list[Any] | None:
    """The objects of the column of texts; None where it is refused."""
    chosen = frozenset(fields) if fields else None
    given = spans(texts)
    columns = columns_of(given, None if chosen is None else keys_of(chosen))
    if columns is None:
        return None
    array = ReadValues(given, columns, lambda text: text).arrow()
    array.validate(full=True)
    return array.to_pylist()


def objects(texts: Sequence[bytes | None], *fields: str) -> list[Any]:
    codec: Any = json().open(SerdeContext(fields=frozenset(fields) if fields else None))
    found = codec.deserialize("t", texts)
    if not fields:
        return list(found)
    return [each and {name: each[name] for name in each if name in fields} for each in found]


def exact(value: Any, *, by_name: bool = False) -> Any:
    """What differs where values do: types, the order of keys, the sign of 0.0."""
    if isinstance(value, dict):
        items = [(name, exact(part)) for name, part in value.items()]
        return sorted(items) if by_name else items
    if isinstance(value, list):
        return "list", [exact(part) for part in value]
    if isinstance(value, float):
        return "float", struct.pack("d", value)
    return type(value).__name__, value


spaces = st.sampled_from(["", "", "", " ", "\n\t", "\r "])
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        ["-0", "-0.0", "1E5", "0e9999999999", "1e400", "1e-400", "9223372036854775808"]
    ),
    st.sampled_from(["9007199254740993.0", "2.2250738585072011e-308", "5e-324", "1.0e+22", "1e23"]),
)
pieces = st.one_of(
    st.text(st.characters(blacklist_characters='"\\', blacklist_categories=["Cs", "Cc"])),
    st.sampled_from(['\\"', "\\\\", "\\/", "\\b\\f\\n\\r\\t", "\\u00e9", "\\ud83d\\ude00"]),
    st.sampled_from(["\\u0000", "\\uFFFF", "\x7f", "plain text of more than eight bytes"]),
)
texts = st.lists(pieces, max_size=4).map(lambda parts: f'"{"".join(parts)}"')


def listed(items: list[str]) -> str:
    return f"[{','.join(items)}]"


MAKERS: dict[str, st.SearchStrategy[str]] = {
    "number": numbers,
    "int": st.integers(-(2**63), 2**63 - 1).map(str),
    "float": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "text": texts,
    "bool": st.sampled_from(["true", "false"]),
    "null": st.just("null"),
    "array": st.sampled_from(["[]", "[1, 2]", '[{"a":[null]}]', "[[[]]]", '["a","b" ]', "[0.5]"]),
    "list": st.lists(st.integers(-5, 5).map(str) | st.just("null"), max_size=4).map(listed),
    "texts": st.lists(texts, max_size=3).map(listed),
    "objects": st.lists(texts.map('{{"x":{0},"y":[{0}]}}'.format), max_size=3).map(listed),
}
names = st.sampled_from(["id", "a", "größe", "user", "long name of a field"])


@st.composite
def shapes(draw: st.DrawFn, depth: int = 2) -> Any:
    """A maker's name, or fields with the shapes of their values."""
    if not depth or draw(st.integers(0, 3)):
        return draw(st.sampled_from(list(MAKERS)))
    fields = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return [(name, draw(shapes(depth - 1))) for name in fields]


@st.composite
def written(draw: st.DrawFn, shape: Any) -> str:
    """A text of a shape, now and then null."""
    if not draw(st.integers(0, 7)):
        return "null"
    if isinstance(shape, str):
        return draw(MAKERS[shape])
    space = draw(spaces)
    parts = [f'{space}"{name}"{space}:{space}{draw(written(part))}' for name, part in shape]
    return "{" + f"{space},".join(parts) + space + "}"


HOSTILE = [b'"', b"\\", b"\x00", b"\xff", b"\xed\xa0\x80", b"{", b"}", b"]", b",", b":", b"0", b"."]
HOSTILE += [b"-", b"e", b" ", b"\\u", b"\\ud800", b"null", b"\xef\xbb\xbf", b'"id":1,', b"/*a*/"]


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    place = draw(st.integers(0, len(text)))
    cut = draw(st.integers(0, 3))
    return text[:place] + draw(st.sampled_from([b"", *HOSTILE])) + text[place + cut :]


@st.composite
def batches(draw: st.DrawFn) -> list[bytes | None]:
    """Texts of one shape; of which some may be damaged."""
    fields = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    shape = [(name, draw(shapes(1))) for name in fields]
    made = [draw(written(shape)).encode() for _ in range(draw(st.integers(1, 4)))]
    if draw(st.integers(0, 2)):
        made = [text for text in made if text != b"null"]
    if not draw(st.integers(0, 2)):
        made = [draw(damaged(text)) for text in made]
    return [*made, None] if draw(st.booleans()) else list(made)


@settings(max_examples=100, deadline=None)
@given(batches(), st.lists(names.filter(str.isascii), max_size=3, unique=True))
def test_columns_hold_what_the_objects_hold(column: list[bytes | None], fields: list[str]) -> None:
    found = read(column, *fields)
    if found is not None:
        expected = objects(column, *fields)
        by_name = bool(fields)
        assert [exact(each, by_name=by_name) for each in found] == [
            exact(each, by_name=by_name) for each in expected
        ]


@st.composite
def strange(draw: st.DrawFn) -> bytes:
    """What may stand for a value."""
    value = draw(written(draw(shapes()))).encode()
    return draw(st.binary(max_size=20) | damaged(value))


@settings(max_examples=100, deadline=None)
@given(st.lists(strange(), min_size=1, max_size=3), st.sampled_from(["a", "b"]))
def test_no_text_is_taken_that_the_objects_refuse(values: list[bytes], name: str) -> None:
    for column in (values, [b'{"a":' + value + b',"b":1}' for value in values]):
        if read(column) is not None:
            objects(column)
        if read(column, name) is not None:
            objects(column, name)


@settings(max_examples=100, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=5))
def test_numbers_are_those_of_msgspec(given_: list[str]) -> None:
    for number in given_:
        texts = [b'{"x":%s}' % number.encode()]
        found = read(texts)
        if found is not None:
            assert exact(found[0]) == exact(objects(texts)[0])


TAKEN: list[tuple[list[bytes | None], tuple[str, ...]]] = [
    ([b'{"a":1,"b":"x"}', b'{"a":2,"b":"y"}'], ()),
    ([b' {"a" : 1.5 }\n', b'{"a":-0.0}', b'{"a":1e-7}', b'{"a":123456789.123456789123456789}'], ()),
    ([b'{"a":null}', None, b'{"a":true}', b'{"a":false}'], ()),
    ([b'{"a":{"b":{"c":1}},"d":0}', b'{"a":null,"d":1}', b'{"a":{"b":null},"d":2}'], ()),
    ([b'{"a":"\\u00e9\\ud83d\\ude00\\"\\n"}', b'{"a":""}', b'{"a":null}', b'{"a":"z"}'], ()),
    ([b'{"a":9223372036854775807}', b'{"a":-9223372036854775808}', b'{"a":-0}'], ()),
    ([b'{"a":1,"x":[1,{"y":null}],"b":2}', b'{"b":3,"y":"\\u00e9","a":4}'], ("a", "b")),
    ([b'{"a":1}', b'{"a":2,"a1":1e999}'], ("a", "missing")),
    ([b'{"a":null}', b'{"a":null}'], ()),
    ([b'{"a":[1,2]}', b'{"a":[]}', b'{"a":null}', None, b'{"a":[null, 3]}'], ()),
    ([b'{"a":[]}', b'{"a":[[]]}', b'{"a":[["x"],null,["","y"]]}'], ()),
    ([b'{"a":[{"x":1,"y":["p"]},{"x":2,"y":[]}]}', b'{"a":[null,{"x":3,"y":null}]}'], ()),
    ([b'{"a":{"t":["%d"]},"b":[%s]}' % (n, b",".join([b"0.5"] * n)) for n in range(9)], ()),
]


@pytest.mark.parametrize(("column", "fields"), TAKEN, ids=repr)
def test_texts_that_are_alike_are_columns(column: Any, fields: tuple[str, ...]) -> None:
    found = read(column, *fields)
    assert found is not None
    expected = objects(column, *fields)
    assert [exact(each, by_name=True) for each in found] == [
        exact(each, by_name=True) for each in expected
    ]


REFUSED: list[tuple[str, list[bytes], tuple[str, ...]]] = [
    ("a field that is missing", [b'{"a":1,"b":2}', b'{"a":1}'], ()),
    ("a field more", [b'{"a":1}', b'{"a":1,"b":2}'], ()),
    ("another order", [b'{"a":1,"b":2}', b'{"b":2,"a":1}'], ()),
    ("a chosen field that is missing", [b'{"a":1}', b'{"b":1}'], ("a", "b")),
    ("no chosen field", [b'{"a":1}', b'{"a":1}'], ("b",)),
    ("an int and a float", [b'{"a":1}', b'{"a":1.0}'], ()),
    ("a text and a number", [b'{"a":1}', b'{"a":"1"}'], ()),
    ("a key twice", [b'{"a":1,"a":2}'], ()),
    ("a chosen key twice", [b'{"a":1,"a":2}'], ("a",)),
    ("a key with an escape", [b'{"\\u0061":1}'], ()),
    ("an unwanted key with an escape", [b'{"\\u0061":1,"b":1}'], ("b",)),
    ("an int of more than 64 bits", [b'{"a":9223372036854775808}'], ()),
    ("an int of more than 64 bits below 0", [b'{"a":-9223372036854775809}'], ()),
    ("an int of twenty digits", [b'{"a":18446744073709551617}'], ()),
    ("an infinite float", [b'{"a":1e400}'], ()),
    ("a list of an int and a float", [b'{"a":[1,1.5]}'], ()),
    ("lists of two types", [b'{"a":[1]}', b'{"a":["1"]}'], ()),
    ("a list and a number", [b'{"a":[1]}', b'{"a":1}'], ()),
    ("a list that does not end", [b'{"a":[1'], ()),
    ("a list with a comma too many", [b'{"a":[1,]}'], ()),
    ("a list of objects that differ", [b'{"a":[{"x":1},{"y":1}]}'], ()),
    ("lists too deep", [b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"], ()),
    ("an empty object", [b'{"a":{}}'], ()),
    ("no object", [b"1"], ()),
    ("null", [b'{"a":1}', b"null"], ()),
    ("nothing", [b""], ()),
    ("something behind", [b'{"a":1} 2'], ()),
    ("half a pair", [b'{"a":"\\ud800"}'], ()),
    ("the other half of a pair", [b'{"a":"\\udc00"}'], ()),
    ("no UTF-8", [b'{"a":"\xff"}'], ()),
    ("no UTF-8 where nobody looks", [b'{"a":"\xff","b":1}'], ("b",)),
    ("half a pair where nobody looks", [b'{"a":"\\ud800t","b":1}'], ("b",)),
    ("a control character", [b'{"a":"\n"}'], ()),
    ("NaN", [b'{"a":NaN}'], ()),
    ("a comma too many", [b'{"a":1,}'], ()),
    ("a zero too many", [b'{"a":01}'], ()),
    ("too deep", [b'{"a":' + b"[" * 100 + b"]" * 100 + b',"b":1}'], ("b",)),
    ("too many fields", [b"{" + b",".join(b'"%d":1' % n for n in range(300)) + b"}"], ()),
]


@pytest.mark.parametrize(("why", "column", "fields"), REFUSED)
def test_other_texts_are_refused(why: str, column: list[bytes], fields: tuple[str, ...]) -> None:
    assert read(column, *fields) is None, why


def test_fields_that_no_text_has_as_they_are_have_no_keys() -> None:
    assert keys_of(frozenset({"b", "a"})) == (b"a", b"b")
    for name in ('a"b', "a\\", "a\n"):
        assert keys_of(frozenset({name})) is None


def test_spans_that_leave_their_buffer_are_an_error() -> None:
    for starts, ends in (([0], [9]), ([5], [2]), ([-2], [0])):
        with pytest.raises(ValueError, match="text 0"):
            read_columns(b"{}", pa.array(starts).buffers()[1], pa.array(ends).buffers()[1], None)


# Writing


def struct_of(parts: list[pa.DataType]) -> pa.DataType:
    names = [f"f{n}\n" if n % 2 else f'é"{n}' for n in range(len(parts))]
    return pa.struct(list(zip(names, parts, strict=True)))


arrow_types = st.recursive(
    st.sampled_from([pa.int64(), pa.int32(), pa.float64(), pa.bool_(), pa.string(), pa.null()]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).map(struct_of) | inner.map(lambda of: pa.list_(of))
    ),
    max_leaves=6,
)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats() | st.integers(-100, 100).map(lambda n: n / 100),
    pa.bool_(): st.booleans(),
    pa.string(): st.text() | st.text(st.characters(max_codepoint=0x7F)),
    pa.null(): st.none(),
}


def values_of(of: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(of):
        return st.none() | st.fixed_dictionaries({each.name: values_of(each.type) for each in of})
    if pa.types.is_list(of):
        return st.none() | st.lists(values_of(of.value_type), max_size=3)
    return st.none() | VALUES[of]


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """An array, or a part of one."""
    of = draw(arrow_types)
    array = pa.array(draw(st.lists(values_of(of), max_size=20)), of)
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


@settings(max_examples=100, deadline=None)
@given(arrays())
def test_arrays_are_written_as_their_objects(array: pa.Array) -> None:
    found = texts_of(array)
    assert found is not None
    expected = [None if v is None else orjson.dumps(v) for v in array.to_pylist()]
    assert found.tolist() == expected


@settings(max_examples=100, deadline=None)
@given(batches())
def test_texts_that_were_read_are_written_as_orjson_does(column: list[bytes | None]) -> None:
    given_ = spans(column)
    columns = columns_of(given_, None)
    if columns is not None:
        array = ReadValues(given_, columns, lambda text: text).arrow()
        written_ = texts_of(array)
        codec: Any = json().open(SerdeContext())
        assert written_ is not None
        assert written_.tolist() == codec.serialize("t", objects(column))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([{"a": [b"x"]}]),
        pa.array([[1]], pa.large_list(pa.int64())),
        pa.array([1.5], pa.float32()),
        pa.array([0], pa.timestamp("ms", "UTC")),
        pa.array([{}]),
        pa.array(["a"]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_types_without_a_form_in_json_are_refused(array: pa.Array) -> None:
    assert texts_of(array) is None


# The codec


def many(text: bytes) -> Spans:
    return spans([text] * json_module().FORM_RECORDS)


@cache
def json_module() -> Any:
    return importlib.import_module("kafkalite.serde.json")


def test_a_form_is_made_of_many_texts_where_nobody_wants_objects() -> None:
    column = many(b'{"a":1}')
    codec: Any = json().open(WELCOME)
    form = codec.deserialize("t", column)
    assert type(form) is ArrowForm
    assert form[3] == {"a": 1}
    assert list(form) == [{"a": 1}] * len(column)
    assert not form.has_nulls
    assert type(codec.deserialize("t", column[1:])) is list
    assert type(codec.deserialize("t", column.tolist())) is list
    assert type(json().open(SerdeContext(forms=True)).deserialize("t", column)) is list


def test_after_texts_that_are_not_alike_the_next_columns_are_objects() -> None:
    codec: Any = json().open(WELCOME)
    alike, other = many(b'{"a":1}'), many(b"[1]")
    assert type(codec.deserialize("t", other)) is list
    tried = [type(codec.deserialize("t", alike)) for _ in range(20)]
    pause = json_module().PAUSE
    assert tried == [list] * pause + [ArrowForm] * (20 - pause)


def test_a_large_form_is_written_without_its_objects() -> None:
    class Untouched(ReadValues):
        def objects(self, indexes: Sequence[int]) -> list[Any]:
            raise AssertionError("objects were made")

    column = spans([b'{"a":%d}' % number for number in range(FEW)])
    columns = columns_of(column, None)
    assert columns is not None
    form = ArrowForm(Untouched(column, columns, orjson.loads))
    codec: Any = json().open(SerdeContext())
    assert codec.serialize("t", form).tolist() == column.tolist()
    few = ArrowForm(ReadValues(column, columns, orjson.loads))[:3]
    assert codec.serialize("t", few) == column.tolist()[:3]
