from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.errors import SerdeError
from kafkalite.serde import (
    MemoryRegistry,
    SerdeContext,
    avro,
    bytes_,
    float64,
    int64,
    json,
    msgpack,
    string,
)
from kafkalite.serde.serde import Serde

CONTEXT = SerdeContext()


def roundtrip(serde: Serde, column: list[Any]) -> list[Any]:
    codec = serde.open(CONTEXT)
    return list(codec.deserialize("t", codec.serialize("t", column)))


@given(st.lists(st.none() | st.text()))
def test_strings_come_back(column: list[str | None]) -> None:
    assert roundtrip(string(), column) == column


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integers_come_back(column: list[int | None]) -> None:
    assert roundtrip(int64(), column) == column


@given(st.lists(st.none() | st.floats(allow_nan=False)))
def test_floats_come_back(column: list[float | None]) -> None:
    assert roundtrip(float64(), column) == column


def numbers(column: list[int]) -> Sequence[int]:
    """As a form, where there is native code."""
    form = Int64s.gathered(column)
    return column if form is None else form


@pytest.mark.parametrize("serde", [int64(), float64(), json(), msgpack(), avro(schema="long")])
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_a_column_of_integers_is_written_as_a_list_of_them(serde: Serde, column: list[int]) -> None:
    codec = serde.open(SerdeContext(MemoryRegistry()))
    written = codec.serialize("t", numbers(column))
    assert list(written) == list(codec.serialize("t", column))


@pytest.mark.parametrize("serde", [string(), bytes_()])
def test_a_column_of_integers_is_refused_as_a_list_of_them(serde: Serde) -> None:
    codec = serde.open(CONTEXT)
    for column in ([3], numbers([3])):
        with pytest.raises(SerdeError, match="got int") as caught:
            codec.serialize("t", column)
        assert caught.value.index == 0


def test_bytes_pass_through_uncopied() -> None:
    column = [b"a", None, b""]
    codec = bytes_().open(CONTEXT)
    assert codec.serialize("t", column) is column
    assert codec.deserialize("t", column) is column


def test_the_bytes_are_those_of_kafkas_serializers() -> None:
    assert int64().open(CONTEXT).serialize("t", [1, -2]) == [
        b"\0\0\0\0\0\0\0\1",
        b"\xff\xff\xff\xff\xff\xff\xff\xfe",
    ]
    assert float64().open(CONTEXT).serialize("t", [1.5]) == [b"\x3f\xf8\0\0\0\0\0\0"]
    assert string().open(CONTEXT).serialize("t", ["é"]) == [b"\xc3\xa9"]


def test_a_column_of_one_type_and_one_with_none_give_the_same_bytes() -> None:
    for serde, value in ((int64(), 7), (float64(), 7.25), (string(), "x")):
        codec = serde.open(CONTEXT)
        assert [codec.serialize("t", [value])[0], None] == codec.serialize("t", [value, None])


def test_float64_takes_integers_and_keeps_what_is_no_number() -> None:
    assert roundtrip(float64(), [3]) == [3.0]
    assert math.isnan(roundtrip(float64(), [math.nan])[0])
    assert roundtrip(float64(), [math.inf, -0.0]) == [math.inf, 0.0]


@pytest.mark.parametrize(
    ("serde", "value", "reason"),
    [
        (string(), 7, r"str expected, got int: convert it with str\(\)"),
        (string(), "\ud800", "surrogates not allowed"),
        (bytes_(), "text", "bytes expected, got str"),
        (int64(), True, "int expected, got bool"),
        (int64(), 1.5, "int expected, got float"),
        (int64(), 2**63, r"more than 64 bits: json\(\) and string\(\) hold"),
        (float64(), "1", "float expected, got str"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused_with_its_place(
    serde: Serde, value: Any, reason: str
) -> None:
    with pytest.raises(SerdeError, match=reason) as caught:
        serde.open(CONTEXT).serialize("orders", [None, None, value])
    assert caught.value.index == 2
    assert repr(serde) in str(caught.value)
    assert "'orders'" in str(caught.value)


@pytest.mark.parametrize(
    ("serde", "data", "reason"),
    [
        (string(), b"\xff", "invalid start byte"),
        (int64(), b"1234567", r"7 bytes, expected 8: another serde wrote it, try string\(\)"),
        (float64(), b"", "0 bytes, expected 8"),
    ],
    ids=str,
)
def test_bytes_of_something_else_are_refused_with_their_place(
    serde: Serde, data: bytes, reason: str
) -> None:
    good = serde.open(CONTEXT).serialize("t", ["a" if serde == string() else 1])[0]
    with pytest.raises(SerdeError, match=reason) as caught:
        serde.open(CONTEXT).deserialize("t", [good, data])
    assert caught.value.index == 1


def test_serdes_are_data() -> None:
    assert string() == string()
    assert len({string(), string(), bytes_(), int64(), float64()}) == 4
    assert [repr(s) for s in (bytes_(), string(), int64(), float64())] == [
        "bytes_()",
        "string()",
        "int64()",
        "float64()",
    ]
