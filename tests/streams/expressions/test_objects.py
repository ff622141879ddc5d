"""Expressions over Python objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expression_cases import CASES, NEEDS_SCHEMA, Case, Fails, name, same, shape_of

from kafkalite.core.types import Windowed
from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.expression import col, key, lit, timestamp, value
from kafkalite.streams.expressions.objects import Compiled, compile_objects
from kafkalite.streams.expressions.types import Mismatch

ForEach = Callable[..., None]


def check(compiled: Compiled, case: Case) -> None:
    for given, expected in zip(*case[1:], strict=True):
        if isinstance(expected, Fails):
            with pytest.raises((TypeError, ValueError, OverflowError)) as error:
                compiled.one(given)
            assert expected.words in str(error.value)
        else:
            made = compiled.one(given)
            assert same(made, expected), f"{case[0]} of {given}: {made!r}\n{compiled.source}"


def check_with_schema(case: Case) -> None:
    expression, values, results = case
    try:
        compiled = compile_objects(expression.tree, shape_of(values))
    except (TopologyError, Mismatch):  # a schema tells before a record does
        assert any(isinstance(each, Fails) for each in results)
    else:
        check(compiled, case)


def test_an_expression_gives_what_the_table_says(for_each: ForEach) -> None:
    for_each(CASES, check_with_schema, name)


def test_and_does_so_without_a_schema(for_each: ForEach) -> None:
    cases = [case for case in CASES if case is not NEEDS_SCHEMA]
    for_each(cases, lambda case: check(compile_objects(case[0].tree), case), name)


def test_key_and_timestamp_are_columns_of_their_own() -> None:
    compiled = compile_objects((key() + "-" + timestamp().cast("string")).tree)
    assert [each.what for each in compiled.inputs] == ["key", "timestamp"]
    assert compiled.column(["a", None], [1, 2]) == ["a-1", None]


def test_a_constant_has_as_many_results_as_there_are_records() -> None:
    assert compile_objects(lit("x").tree).column([1, 2]) == ["x", "x"]


def test_a_column_goes_on_behind_the_record_that_failed() -> None:
    compiled = compile_objects((col("a") + 1).tree)
    column = iter([{"a": 1}, {"a": "x"}, {"a": 3}])
    results: list[Any] = []
    with pytest.raises(TypeError, match=r'col\("a"\) \+ 1: expected a number, got str \'x\''):
        compiled.extend(results, column)
    assert results == [2]
    compiled.extend(results, column)
    assert results == [2, 4]


def test_the_part_that_failed_is_named() -> None:
    compiled = compile_objects(((col("a") + 1 > 3) & (col("b").str.lower() == "x")).tree)
    with pytest.raises(TypeError, match=r'^col\("b"\)\.str\.lower\(\): expected string, got int 7'):
        compiled.one({"a": 9, "b": 7})


def test_a_missing_field_is_a_key_error_with_its_name() -> None:
    with pytest.raises(KeyError) as error:
        compile_objects((col("amonut") > 3).tree).one({"amount": 4})
    assert error.value.args == ("amonut",)


def test_get_takes_a_missing_field_for_null() -> None:
    compiled = compile_objects(value().get("note").tree)
    assert compiled.column([{"note": "x"}, {}, None]) == ["x", None, None]
    of_windows = compile_objects((key().get("start") + key().get("other").fill_null(1)).tree)
    assert of_windows.one(Windowed("k", 5, 9)) == 6
    with pytest.raises(AttributeError, match=r'value\(\)\.get\("note"\): .int. object has no'):
        compiled.one(7)


def test_a_part_that_stands_twice_is_computed_once() -> None:
    x = col("a").str.lower()
    compiled = compile_objects(((x == "a") | (x == "b")).tree)
    assert compiled.source.count(".lower()") == 1


def test_a_part_of_a_branch_is_not_taken_for_computed_elsewhere() -> None:
    x = col("a") + 1
    expression = (col("b") & (x > 1)) | (x > 2)
    assert compile_objects(expression.tree).column(
        [{"a": 5, "b": False}, {"a": 1, "b": True}, {"a": 1, "b": False}]
    ) == [True, True, False]


def test_many_conditions_in_a_row_are_no_nesting() -> None:
    either, neither = value() == 0, value() != 0
    for number in range(1, 600):
        either |= value() == number
        neither &= value() != number
    assert compile_objects(either.tree).column([599, 600, None]) == [True, False, None]
    assert compile_objects(neither.tree).column([599, 600, None]) == [False, True, None]
