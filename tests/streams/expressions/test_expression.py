"""Expressions as users write them: what they refuse, how they print, when they are equal."""

from __future__ import annotations

import datetime as datetime_module
import inspect
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from expression_cases import CASES, Case, name

from kafkalite.errors import TopologyError
from kafkalite.streams.expressions import expression as words
from kafkalite.streams.expressions.catalog import RULES
from kafkalite.streams.expressions.check import Shape, checked
from kafkalite.streams.expressions.expression import (
    Expression,
    call,
    coalesce,
    col,
    key,
    lit,
    struct,
    timestamp,
    value,
    when,
)
from kafkalite.streams.expressions.objects import STRUCTS, WRITERS, compile_objects
from kafkalite.streams.expressions.tree import DEPTH_MAX, KEY, inputs_of, nodes_of, paths_of
from kafkalite.streams.expressions.types import (
    ANY,
    BOOL,
    FLOAT64,
    INT64,
    STRING,
    list_of,
    struct_of,
)
from kafkalite.streams.expressions.values import FUNCTIONS

A, B = col("a"), col("b")
PERSON = struct_of({"amount": INT64, "price": FLOAT64, "user": struct_of({"name": STRING}),
                    "tags": list_of(STRING), "json": ANY})  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        'col("a") + 1 > 2',
        '(col("a") > 1) & (col("b") <= 2.5) | ~col("c")',
        'col("a") & col("b") & (col("c") | col("d") | col("e"))',
        '(col("a") + 1) * 2 - 3 // col("b") % 4',
        'col("a") - (col("b") - 1)',
        '-(col("a") ** 2)',
        '(col("a") < col("b")) == True',
        'col("user")["name"].str.lower().str.slice(1, 3)',
        '(col("a") + col("b")).abs().round(2)',
        'col("a").is_in(["x", "y"])',
        'col("a").between(1, 5, closed="left")',
        'col("a").cast("int64", strict=False)',
        'col("a").dt.truncate("1h").dt.hour()',
        'coalesce(col("a"), lit("x"), 1)',
        'when(col("a") > 1).then("x").when(col("b")).then("y").otherwise("z")',
        "when(key().is_null()).then(timestamp())",
        'struct(a=col("a"), b=1)',
        'value()["x"].fill_null(0).alias("y")',
        'col("a").list.get(-1)',
    ],
)
def test_an_expression_prints_as_it_is_written(text: str) -> None:
    made = eval(text, vars(words))
    printed = str(made).replace('value()["x"]', 'col("x")')
    assert printed == text.replace('value()["x"]', 'col("x")')
    assert eval(printed, vars(words)).equals(made)


def test_what_is_printed_can_be_read_back(for_each: Callable[..., None]) -> None:
    known = {**vars(words), "datetime": datetime_module}

    def check(case: Case) -> None:
        read: Expression = eval(str(case[0]), known)
        assert str(read) == str(case[0])

    for_each(CASES, check, name)


def test_equal_expressions_say_the_same() -> None:
    assert (A + 1).equals(col("a") + 1)
    assert hash(A + 1) == hash(col("a") + 1)
    others: list[Expression] = [
        A + 1.0,
        A + True,
        A - 1,
        A + 2,
        B + 1,
        A.is_in([1]),
        A.is_in([1.0]),
    ]
    assert not any(one.equals(other) for one in others for other in others if one is not other)
    assert not A.equals("a")


def test_a_set_of_constants_has_one_order() -> None:
    made = [A.is_in(kind(["b", "a", "c"])) for kind in (set, frozenset, sorted)]
    assert {str(each) for each in made} == {'col("a").is_in(["a", "b", "c"])'}


def test_the_truth_of_an_expression_is_refused_with_advice() -> None:
    for wrong in (lambda: A > 1 and A < 3, lambda: 1 < A < 3, lambda: not A, lambda: A in [B]):
        with pytest.raises(TypeError, match=r"write & \| ~ for and, or, not"):
            wrong()
    with pytest.raises(TypeError, match="is_in"):
        1 in A  # noqa: B015
    with pytest.raises(TypeError, match="cannot be iterated"):
        list(A)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: lit(object()), "lit: expected None, a bool, number"),
        (lambda: lit(1 << 63), "does not fit 64 bits"),
        (lambda: datetime(2013, 1, 1) < A, "has no time zone"),
        (lambda: A == None, r"write \.is_null\(\)"),  # noqa: E711
        (lambda: A != None, r"write \.is_not_null\(\)"),  # noqa: E711
        (lambda: A.is_in("abc"), "expected a list of constants"),
        (lambda: A.is_in([1, None]), "null equals nothing"),
        (lambda: A.is_in([float("nan")]), "NaN equals nothing"),
        (lambda: A.is_in([1, "a"]), "int64 and string have no type in common"),
        (lambda: A.cast("integer"), "the types are bool, int64"),
        (lambda: A[0], r"\.list\.get\(i\) takes an element"),
        (lambda: A.round(-1), "expected 0 to 15 decimals"),
        (lambda: A.str.replace("", "x"), "the text to look for is empty"),
        (lambda: A.str.contains(1), "expected a text, got int 1"),  # type: ignore[arg-type]
        (lambda: A.dt.truncate("0s"), "expected at least 1 ms"),
        (lambda: A.between(1, 2, closed="up"), "closed is both"),  # type: ignore[arg-type]
        (lambda: struct(A + 1), "has no name; write name="),
        (lambda: struct("a", a=1), "two fields 'a'"),
        (lambda: coalesce(), "at least one"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        wrong()


def test_a_name_that_is_not_there_comes_with_a_hint() -> None:
    with pytest.raises(AttributeError, match=r"use \.is_null\(\)"):
        A.isnull()
    with pytest.raises(AttributeError, match=r"did you mean \.between"):
        A.betwen(1, 2)


def test_an_expression_knows_what_it_reads() -> None:
    tree = (col("user")["name"].str.lower() + key()["id"] + col("a") + timestamp()).tree
    assert paths_of(tree) == {("user", "name"), ("a",)}
    assert paths_of(tree, KEY) == {("id",)}
    assert [each.what for each in inputs_of(tree)] == ["value", "key", "timestamp"]
    assert paths_of(value().tree) == {()}
    assert paths_of((timestamp() + 1).tree) == set()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (col("amonut") > 1, "col(\"amonut\"): there is no field 'amonut'; did you mean 'amount'?"),
        (col("zzz") > 1, "there is no field 'zzz'; it has amount, price, user, tags, json"),
        (col("user")["nam"], "did you mean 'name'?"),
        (col("amount").str.lower(), 'col("amount").str.lower(): expected string, got int64'),
        (col("amount") > "x", "int64 cannot be compared with string"),
        (
            col("amount") + col("user"),
            "or string, got struct{name: string}",
        ),
        (when(col("amount")).then(1), "expected bool, got int64"),
        (when(col("price") > 1).then(1).otherwise("x"), "int64 and string have no type in common"),
        (col("tags") == ["x"], "expected"),
        (col("tags").list.contains(1), "string cannot be compared with int64"),
        (col("amount")["x"], "expected a value with fields, got int64"),
        (key() + 1, "expected string, got"),
    ],
    ids=str,
)
def test_a_schema_tells_what_cannot_be(expression: Expression, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        checked(expression.tree, Shape(PERSON, struct_of({})))
    assert message.removeprefix("expected string, got") in str(error.value)


@pytest.mark.parametrize(
    ("expression", "type_"),
    [
        (col("amount") + 1, INT64),
        (col("amount") * 1.5, FLOAT64),
        (col("amount") > col("price"), BOOL),
        (col("user")["name"] + "x", STRING),
        (col("json"), ANY),
        (col("json") > 1, BOOL),
        (coalesce("amount", 1.5), FLOAT64),
        (col("tags").list.get(0), STRING),
        (struct("amount", n=lit(1)), struct_of({"amount": INT64, "n": INT64})),
    ],
    ids=str,
)
def test_types_are_found(expression: Expression, type_: Any) -> None:
    assert checked(expression.tree, Shape(PERSON))[1] == type_


def test_every_function_has_its_values_or_its_writer() -> None:
    said_otherwise = {"alias", "between", "fill_null", "is_not_null"}
    assert set(FUNCTIONS) | set(WRITERS) | set(STRUCTS) | said_otherwise == set(RULES)


def test_every_function_stands_in_the_table_of_cases() -> None:
    used = {node.function for case in CASES for node in nodes_of(case[0].tree)
            if hasattr(node, "function")}  # fmt: skip
    of_streams = {"boolean", "select", "with_fields", "drop_fields", "rename_fields"}
    assert set(RULES) - used == of_streams


def test_a_deep_expression_leaves_room_on_the_stack() -> None:
    deep = A
    while (made := call("neg", deep)).tree.depth < DEPTH_MAX:  # type: ignore[union-attr]
        deep = made
    room = sys.getrecursionlimit() - len(inspect.stack()) - 5 * DEPTH_MAX

    def below(frames: int) -> int:
        if frames:
            return below(frames - 1)
        return int(compile_objects(deep.tree).one({"a": 1}))

    assert abs(below(room)) == 1


def test_too_large_an_expression_is_refused() -> None:
    large = A
    with pytest.raises(TopologyError, match="too large"):
        for _ in range(20):
            large += large
    deep = A
    with pytest.raises(TopologyError, match="too large"):
        for _ in range(300):
            deep = -deep
