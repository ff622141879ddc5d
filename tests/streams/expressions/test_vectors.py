"""Expressions over native columns: what the loop over Python objects gives, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from expression_cases import same
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import FEW
from kafkalite.serde import MemoryRegistry, SerdeContext, avro, avro_codec
from kafkalite.serde.avro_arrow import column_to_arrow, table_to_arrow
from kafkalite.serde.vectors import NATIVE, Table, Values, Vector
from kafkalite.streams.expressions.check import checked
from kafkalite.streams.expressions.expression import Expression, call, coalesce, col, lit, struct
from kafkalite.streams.expressions.objects import compile_objects
from kafkalite.streams.expressions.tree import VALUE, Call
from kafkalite.streams.expressions.vectors import compile_vectors

if not NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

ForEach = Callable[..., None]
MAX, MIN = (1 << 63) - 1, -(1 << 63)
INTEGERS = [0, 1, -1, 7, MAX, MIN, 1 << 53, (1 << 53) + 1]
FLOATS = [0.0, -0.0, 1.5, -2.25, 1e308, 5e-324, math.nan, math.inf, -math.inf, 9.3e18]
TEXTS = ["", "a", "ab", "\u00e9", "\0"]
FIELDS: dict[str, tuple[str, list[Any]]] = {
    "i": ("long", INTEGERS), "j": ("long", INTEGERS), "n": ("int", [0, 3, -3, (1 << 31) - 1]),
    "f": ("double", FLOATS), "g": ("double", FLOATS), "h": ("float", [0.0, 1.5, -0.25]),
    "s": ("string", TEXTS), "t": ("string", TEXTS),
    "b": ("boolean", [True, False]), "c": ("boolean", [True, False]),
}  # fmt: skip
NUMBERS = ["i", "j", "n", "f", "g", "h"]


def table_of(values: list[Any], *, nullable: bool) -> Any:
    """The form of records, read from Avro."""
    fields = [
        {"name": name, "type": ["null", kind] if nullable else kind}
        for name, (kind, _) in FIELDS.items()
    ]
    codec = avro(schema={"type": "record", "name": "R", "fields": fields}).open(
        SerdeContext(MemoryRegistry(), forms=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_codec, "FORM_RECORDS", 1)
        return codec.deserialize("t", codec.serialize("t", values))


@st.composite
def rows(draw: st.DrawFn, nullable: bool) -> dict[str, Any]:
    return {
        name: draw(st.sampled_from([*known, None] if nullable else known))
        for name, (_, known) in FIELDS.items()
    }


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> Expression:
    if not depth or draw(st.booleans()):
        constants = st.sampled_from([*INTEGERS, *FLOATS]).map(lit)
        return draw(st.sampled_from(NUMBERS).map(col) | constants)
    word = draw(st.sampled_from(["add", "sub", "mul", "truediv"]))
    made = call(word, draw(numbers(depth - 1)), draw(numbers(depth - 1)))
    return coalesce(made, draw(st.sampled_from([0, 1.5]))) if draw(st.booleans()) else made


@st.composite
def predicates(draw: st.DrawFn, depth: int = 2) -> Expression:
    kind = draw(st.integers(0, 6 if depth else 2))
    if kind == 0:
        return draw(st.sampled_from([col("b"), col("c"), lit(True)]))
    if kind == 1:
        word = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
        return call(word, draw(numbers(1)), draw(numbers(1)))
    if kind == 2:
        text = draw(st.sampled_from([*TEXTS, "\ud800"]))
        return draw(st.sampled_from([col("s") == text, col("t") != text, col("s").is_null()]))
    if kind == 3:
        return ~draw(predicates(depth - 1))
    if kind == 4:
        return draw(numbers(1)).is_null()
    word = draw(st.sampled_from(["and", "or"]))
    parts = [draw(predicates(depth - 1)) for _ in range(draw(st.integers(2, 3)))]
    made = call(word, *parts)
    return call("boolean", made, options=(draw(st.booleans()),)) if kind == 6 else made


expressions = st.one_of(
    numbers(),
    predicates(),
    st.builds(lambda a, b: struct("s", "h", a=a, b=b), numbers(), predicates()),
    st.sampled_from([col("s"), col("i"), col("b")]),
)


def listed(made: Table | Vector | Values) -> list[Any]:
    found = table_to_arrow(made) if isinstance(made, Table) else column_to_arrow(made)
    as_list: list[Any] = found.to_pylist()
    return as_list


@settings(max_examples=300, deadline=None)
@given(expressions, st.data())
def test_native_code_gives_what_the_loop_gives_or_refuses(
    expression: Expression, data: st.DataObject
) -> None:
    nullable = data.draw(st.booleans())
    values = data.draw(st.lists(rows(nullable), min_size=1, max_size=5))
    compiled = compile_vectors(checked(expression.tree)[0])
    mask = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(values), max_size=len(values))))
    form = table_of(values, nullable=nullable)
    for kept, left in (
        (form, values),
        (form.where(mask), [v for v, k in zip(values, mask, strict=True) if k]),
    ):
        found = compiled and compiled.result(kept.table())
        try:
            expected = compile_objects(expression.tree).column(left)
        except (OverflowError, TypeError, ValueError):
            assert found is None, expression
            continue
        if found is not None:
            assert same(listed(found), expected), f"{expression}: {listed(found)}, {expected}"
            if isinstance(found, Values):
                assert same(found.tolist(), expected)


def test_it_knows_what_is_most_used(for_each: ForEach) -> None:
    known = [
        col("f") >= 28.0,
        (col("i") > 3) & (col("f") < 1) | (col("s") == "a"),
        ~col("s").is_null(),
        col("f").is_not_null(),
        col("i").between(1, 5),
        col("n").fill_null(0) * 2 + 1,
        col("f") / 3,
        struct("i", "s", gross=col("f") * 1.19, is_kept=lit(True)),
        col("s"),
    ]
    values = [{name: found[0] for name, (_, found) in FIELDS.items()}] * FEW

    def check(expression: Expression) -> None:
        compiled = compile_vectors(checked(expression.tree)[0])
        assert compiled is not None
        found = compiled.result(table_of(values, nullable=False).table())
        assert found is not None
        assert same(listed(found), compile_objects(expression.tree).column(values))

    for_each(known, check, str)


def test_integers_beyond_64_bits_are_refused() -> None:
    values = [{name: found[0] for name, (_, found) in FIELDS.items()} | {"i": MAX}]
    table = table_of(values, nullable=False).table()
    for expression in (col("i") + 1, col("i") * 2, lit(-2) - col("i")):
        compiled = compile_vectors(checked(expression.tree)[0])
        assert compiled is not None
        assert compiled.result(table) is None


def test_a_field_that_is_a_default_alone_is_refused() -> None:
    values = [{name: found[0] for name, (_, found) in FIELDS.items()}]
    table = table_of(values, nullable=False).table()
    assert table is not None
    without = Table(table.rows, {**table.fields, "j": None})
    for expression in (col("j") + 1, struct("j")):
        compiled = compile_vectors(checked(expression.tree)[0])
        assert compiled is not None
        assert compiled.result(without) is None
    for function, options in (("drop_fields", ("i",)), ("rename_fields", (("i", "k"),))):
        for has, expected in ((table, True), (without, False)):
            compiled = compile_vectors(Call(function, (VALUE,), options))
            assert compiled is not None
            assert (compiled.result(has) is not None) is expected
