"""Expressions over Arrow: what Python objects give, by kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from expression_cases import CASES, Case, Fails, name, same, shape_of

from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.arrow import BY_VALUE, SPECIAL, compile_arrow
from kafkalite.streams.expressions.arrow_kernels import KERNELS
from kafkalite.streams.expressions.arrow_types import arrow_type, type_of_arrow
from kafkalite.streams.expressions.catalog import RULES
from kafkalite.streams.expressions.expression import Expression, col, key, lit, timestamp, when
from kafkalite.streams.expressions.objects import compile_objects
from kafkalite.streams.expressions.types import Mismatch

ForEach = Callable[..., None]
MAX = (1 << 63) - 1


def array_of(values: list[Any]) -> Any:
    return pa.array(values, arrow_type(shape_of(values).value))


def column(expression: Expression, *arrays: Any) -> list[Any]:
    made: list[Any] = compile_arrow(expression.tree).column(*arrays).to_pylist()
    return made


def test_an_expression_gives_what_the_table_says(for_each: ForEach) -> None:
    for_each(CASES, check, name)


def check(case: Case) -> None:
    expression, values, results = case
    failures = [each for each in results if isinstance(each, Fails)]
    compiled = compile_arrow(expression.tree)
    if not failures:
        made = compiled.column(array_of(values)).to_pylist()
        assert same(made, results), f"{expression} of {values}: {made}"
        return
    errors = (TypeError, ValueError, OverflowError, TopologyError, Mismatch)
    with pytest.raises(errors) as error:
        compiled.column(array_of(values))
    is_of_types = isinstance(error.value, TopologyError | Mismatch)  # told before any record is
    assert is_of_types or failures[0].words in str(error.value)


# Kernels refuse what only a branch that is not taken fails on, and the least integer by -1.
BY_ROWS = (
    'coalesce(col("a"), col("b") + 1)',
    'when(col("a") < 9223372036854775807)',
    '(col("a") > 0) & (col("b") + 1 > 0)',
    'col("a") % col("b")',
)


def test_kernels_give_it_where_no_record_fails(for_each: ForEach) -> None:
    def check_kernels(case: Case) -> None:
        expression, values, _ = case
        compiled = compile_arrow(expression.tree)
        compiled.column(array_of(values))
        assert not compiled.rows or str(expression).startswith(BY_ROWS)

    sound = [case for case in CASES if not any(isinstance(each, Fails) for each in case[2])]
    for_each(sound, check_kernels, name)


def test_every_function_has_a_kernel() -> None:
    said_otherwise = {"alias", "between", "fill_null", "is_not_null"}
    assert set(KERNELS) | set(SPECIAL) | BY_VALUE | said_otherwise == set(RULES)


def test_key_and_timestamp_are_arrays_of_their_own() -> None:
    expression = key() + timestamp().cast("string") + col("a")
    compiled = compile_arrow(expression.tree)
    assert [each.what for each in compiled.inputs] == ["value", "key", "timestamp"]
    made = compiled.column(pa.array([{"a": "x"}]), pa.array(["k"]), pa.array([5]))
    assert made.to_pylist() == ["k5x"]


def test_record_batches_tables_and_chunks_are_values_too() -> None:
    batch = pa.record_batch({"a": [1, 2, None]})
    table = pa.Table.from_batches([batch, batch])
    assert column(col("a") + 1, batch) == [2, 3, None]
    assert column(col("a") + 1, table) == [2, 3, None] * 2
    assert column(lit(1) + col("a"), pa.chunked_array([[{"a": 1}], [{"a": 2}]])) == [2, 3]
    assert column(lit("x"), pa.array([1, 2])) == ["x", "x"]


def test_slices_are_taken_for_what_they_show() -> None:
    values = array_of([{"l": [9, 9]}, {"l": [1, 2]}, {"l": None}, {"l": [3]}])
    for expression in (col("l").list.get(-1), col("l").list.get(0), col("l").list.len()):
        whole = column(expression, values)
        assert column(expression, values.slice(1)) == whole[1:]


def test_types_of_other_widths_are_the_same() -> None:
    batch = pa.record_batch(
        {
            "small": pa.array([1, 2], pa.int8()),
            "float": pa.array([0.5, None], pa.float32()),
            "text": pa.array(["a", "b"]).dictionary_encode(),
            "large": pa.array(["a", "b"], pa.large_string()),
            "list": pa.array([[1], []], pa.large_list(pa.int32())),
            "at": pa.array([1, 2], pa.timestamp("s", "Europe/Paris")),
            "date": pa.array([0, 86_400_000], pa.date64()),
        }
    )
    assert column(col("small") + 1 + col("float"), batch) == [2.5, None]
    assert column(col("text") + col("large"), batch) == ["aa", "bb"]
    assert column(col("list").list.get(0), batch) == [1, None]
    assert column(col("at").dt.second() + col("date").dt.day(), batch) == [2, 4]


def test_other_types_are_refused_as_objects_are() -> None:
    batch = pa.record_batch({"d": pa.array([Decimal("1.5"), None])})
    assert column(col("d").is_null(), batch) == [False, True]
    with pytest.raises(TypeError, match="expected a number, got Decimal"):
        column(col("d") + 1, batch)
    assert str(type_of_arrow(pa.decimal128(5, 2))) == "any"


def test_an_error_is_that_of_the_first_record_that_fails() -> None:
    values = array_of([{"a": 1}, {"a": MAX}, {"a": MAX - 1}])
    with pytest.raises(OverflowError, match=r'^col\("a"\) \+ 2: 9223372036854775809 does not fit'):
        column(col("a") + 2, values)


def test_a_branch_that_is_not_taken_does_not_fail() -> None:
    values = [{"a": 1}, {"a": MAX}]
    expression = when(col("a") < MAX).then(col("a") + 1).otherwise(0)
    assert column(expression, array_of(values)) == compile_objects(expression.tree).column(values)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TopologyError, match="did you mean 'amount'"):
        column(col("amonut") + 1, pa.record_batch({"amount": [1]}))


def test_constants_do_not_import_pandas() -> None:
    """pyarrow asks pandas whether a Python object is one of its; that takes 0.3 s of CPU."""
    code = """
import sys
import pyarrow as pa
from kafkalite.streams.expressions.arrow import compile_arrow
from kafkalite.streams.expressions.expression import col, lit, struct, when

numbers = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
rows = pa.StructArray.from_arrays([numbers, numbers.cast(pa.float64())], names=["i", "f"])
text = when(col("i") > 3).then("a").otherwise(lit("b"))
sums = {"n": col("i") % 7 + 1, "q": col("f") / 3 + col("f").round(2), "h": col("i").dt.hour()}
for each in (struct(**sums, t=text, b=col("i").is_in([1, 2]) & (col("f") >= 28.0)),):
    compiled = compile_arrow(each.tree)
    compiled.column(rows)
    assert not compiled.rows
print("pandas" in sys.modules, "pyarrow" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["False", "True"]
