"""What expressions give: (expression, values, results), the same for every evaluator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from kafkalite.streams.expressions.check import Shape
from kafkalite.streams.expressions.expression import (
    Expression,
    coalesce,
    col,
    lit,
    struct,
    value,
    when,
)
from kafkalite.streams.expressions.types import Type, list_of, struct_of, type_of, unify

MAX, MIN = (1 << 63) - 1, -(1 << 63)
NAN, INF = math.nan, math.inf
A, B, C = col("a"), col("b"), col("c")
HOUR = 3_600_000
T = datetime(2013, 1, 1, 5, 29, 59, 123_456, tzinfo=UTC)
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


@dataclass(frozen=True)
class Fails:
    """The record fails with a message that contains these words."""

    words: str


Case = tuple[Expression, list[Any], list[Any]]


def of(expression: Expression, *pairs: tuple[Any, Any]) -> Case:
    """A function of `a`: pairs of a value and its result."""
    return expression, [{"a": given} for given, _ in pairs], [made for _, made in pairs]


def of_two(expression: Expression, *triples: tuple[Any, Any, Any]) -> Case:
    """A function of `a` and `b`."""
    values = [{"a": a, "b": b} for a, b, _ in triples]
    return expression, values, [made for _, _, made in triples]


TRUTHS = (True, False, None)

# Without a schema nothing tells that the field is a float where it is null: the result is 0.
NEEDS_SCHEMA: Case = of(A.fill_null(0), (None, 0.0), (1.5, 1.5))

NUMBERS: list[Case] = [
    of_two(A + B, (1, 2, 3), (None, 2, None), (1, None, None), (MIN, MAX, -1)),
    of_two(A + B, (MAX, 1, Fails("9223372036854775808 does not fit 64 bits"))),
    of_two(A + B, (1.5, 2, 3.5), (0.1, 7, 7.1), (NAN, 1, NAN), (INF, 1, INF)),
    of_two(A + B, (1e308, 1e308, INF), (INF, -INF, NAN)),
    of_two(A + B, ("a", "b", "ab"), ("é", "", "é"), (None, "b", None)),
    of_two(A - B, (1, 2, -1), (1, None, None)),
    of_two(A - B, (MIN, 1, Fails("64 bits"))),
    of_two(A * B, (3, 4, 12), (-3, 4, -12), (0, None, None)),
    of_two(A * B, (1 << 62, 2, Fails("64 bits"))),
    of_two(A * B, ((1 << 53) + 1, 1.0, float(1 << 53))),
    of_two(A / B, (7, 2, 3.5), (-7, 2, -3.5), (1, 0, None), (0, 0, None), (None, 0, None)),
    of_two(A / B, (1.0, 0.0, None), (1.0, -0.0, None), (0.0, 0.0, None), (INF, INF, NAN)),
    of_two(A / B, (MAX, MAX - 1, 1.0)),
    of_two(A // B, (7, 2, 3), (-7, 2, -4), (7, -2, -4), (-7, -2, 3), (-6, 2, -3), (5, 0, None)),
    of_two(A // B, (7.5, 2.0, 3.0), (-7.5, 2.0, -4.0), (1.0, 0.1, 10.0), (1.0, 0.0, None)),
    of_two(A // B, (MIN, -1, Fails("64 bits"))),
    of_two(A % B, (7, 2, 1), (-7, 2, 1), (7, -2, -1), (-7, -2, -1), (5, 0, None), (MIN, -1, 0)),
    of_two(A % B, (7.5, 2.0, 1.5), (-7.5, 2.0, 0.5), (7.5, -2.0, -0.5), (1.0, 0.0, None)),
    of_two(A**B, (2, 10, 1024), (-2, 63, MIN), (1, 100, 1), (-1, 101, -1), (0, 0, 1)),
    of_two(A**B, (2, 63, Fails("64 bits"))),
    of_two(A**B, (10, 1_000_000_000, Fails("64 bits"))),
    of_two(A**B, (2, -1, Fails("negative power"))),
    of_two(A**B, (2.0, -1.0, 0.5), (0.0, -1.0, INF), (-0.0, -1.0, -INF), (-8.0, 0.5, NAN)),
    of_two(A**B, (10.0, 400.0, INF), (-10.0, 401.0, -INF), (4.0, 0.5, 2.0), (0.0, -2.0, INF)),
    of_two(A + B, (True, 1, Fails("expected"))),
    of_two(A - B, ("a", "b", Fails("expected"))),
    of(A + 1, (1, 2), (None, None), (MAX - 1, MAX)),
    of(A + 1, (MAX, Fails("64 bits"))),
    of(A * 1.5, (2.0, 3.0), (None, None)),
    of(A * 1.5, (2, 3.0), (None, None)),
    of(1 - A, (3, -2), (None, None)),
    of(A / 2, (7, 3.5), (-1, -0.5), (None, None)),
    of(A / 0, (7, None)),
    of(A // 2, (7, 3), (-7, -4), (None, None)),
    of(A % 3, (7, 1), (-7, 2), (None, None)),
    of(A % -3, (7, -2), (-7, -1)),
    of(A**2, (3, 9), (-3, 9), (None, None)),
    of(2**A, (3, 8), (0, 1)),
    of(-A, (3, -3), (MAX, -MAX), (None, None)),
    of(-A, (MIN, Fails("64 bits"))),
    of(-A, (1.5, -1.5), (NAN, NAN)),
    of(abs(A), (-3, 3), (3, 3), (None, None)),
    of(A.abs(), (-1.5, 1.5), (-INF, INF)),
    of(A.abs(), (MIN, Fails("64 bits"))),
    of(A.round(), (0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (-1.2, -1.0), (NAN, NAN)),
    of(A.round(), (3, 3), (None, None)),
    of(A.round(2), (2.675, 2.68), (1.005, 1.0), (1e300, 1e300), (1e308, 1e308), (None, None)),
    of(A.floor(), (1.5, 1.0), (-1.5, -2.0), (-INF, -INF), (None, None)),
    of(A.ceil(), (1.5, 2.0), (-1.5, -1.0), (NAN, NAN)),
    of(A.ceil(), (-3, -3)),
    of(A.is_nan(), (NAN, True), (1.0, False), (None, None)),
    of(A.is_nan(), (1, False)),
    (lit(2) * 3 + A, [{"a": 1}, {"a": None}], [7, None]),
]

COMPARISONS: list[Case] = [
    of(A > 28, (29, True), (28, False), (None, None)),
    of(A > 28, (28.5, True), (NAN, False), (None, None)),
    of(A >= 1.5, (2, True), (1, False), (None, None)),
    of(A == 1.0, (1, True), (2, False)),
    of(float(1 << 53) == A, ((1 << 53) + 1, True)),
    of(A == 1, (1.0, True), (0.5, False)),
    of_two(A == B, (1, 1, True), (1, 2, False), (None, 1, None), (None, None, None)),
    of_two(A != B, (1, 1, False), (1, 2, True), (None, 1, None)),
    of_two(A == B, (NAN, NAN, False), (0.0, -0.0, True)),
    of_two(A != B, (NAN, NAN, True)),
    of_two(A < B, ("a", "b", True), ("z", "é", True), ("é", "z", False), ("", None, None)),
    of_two(A <= B, (b"a", b"a", True), (b"\xff", b"a", False)),
    of_two(A < B, (False, True, True), (True, True, False)),
    of_two(A < B, (BEFORE, T, True), (T, T, False), (None, T, None)),
    of_two(A == B, (date(2013, 1, 1), date(2013, 1, 1), True)),
    of_two(A < B, (1, "a", Fails("cannot be compared"))),
    of_two(A == B, (1, True, Fails("cannot be compared"))),
    of_two(A == B, ([1], [1], Fails("compared"))),
    of(A == "x", ("x", True), ("y", False), (None, None)),
    of(A == "x", (1, Fails('col("a") == "x": int 1 cannot be compared with str'))),
    of(A > T, (BEFORE, False), (datetime.max.replace(tzinfo=UTC), True)),
    of(A.is_in(["a", "b"]), ("a", True), ("c", False), (None, None)),
    of(A.is_in([1, 2]), (1, True), (3, False), (None, None)),
    of(A.is_in([1, 2]), (1.0, True), (1.5, False), (NAN, False)),
    of(A.is_in([1, 2.5]), (1, True), (3, False)),
    of(A.is_in([1]), ("a", Fails("cannot be compared"))),
    of(A.is_in([]), ("a", False), (None, None)),
    of(A.is_in([T]), (T, True), (BEFORE, False)),
    of(A.between(1, 3), (1, True), (3, True), (4, False), (None, None)),
    of(A.between(1, 3, closed="none"), (1, False), (2, True), (3, False)),
    of(A.between(1, 3, closed="left"), (1, True), (3, False)),
    of(A.between(1, None), (0, False), (2, None)),
]

LOGIC: list[Case] = [
    of_two(
        A & B,
        *(
            (a, b, False if False in (a, b) else None if None in (a, b) else True)
            for a in TRUTHS
            for b in TRUTHS
        ),
    ),
    of_two(
        A | B,
        *(
            (a, b, True if True in (a, b) else None if None in (a, b) else False)
            for a in TRUTHS
            for b in TRUTHS
        ),
    ),
    of_two(
        A ^ B,
        *((a, b, None if None in (a, b) else a is not b) for a in TRUTHS for b in TRUTHS),
    ),
    of(~A, (True, False), (False, True), (None, None)),
    of(~A, (1, Fails("expected bool"))),
    of(A & True, (1, Fails("expected bool"))),
    of(A.is_null(), (None, True), (1, False)),
    of(A.is_null(), (NAN, False)),
    of(A.is_not_null(), (None, False), (1, True)),
    of(A.fill_null(0), (None, 0), (1, 1)),
    NEEDS_SCHEMA,
    of(A.fill_null("?"), (None, "?"), ("x", "x")),
    of_two(coalesce("a", "b", -1), (1, 2, 1), (None, 2, 2), (None, None, -1)),
    of_two(coalesce(A, 10 // B), (1, 0, 1), (None, 0, None), (None, 5, 2)),
    of_two(coalesce(A, B + 1), (1, MAX, 1)),
    of_two((A > 0) & (B + 1 > 0), (-1, MAX, False), (1, 1, True)),
    of(when(A > 1).then("big").otherwise("small"), (2, "big"), (1, "small"), (None, "small")),
    of(when(A > 1).then(1).otherwise(0.5), (2, 1.0), (1, 0.5)),
    of(when(A > 1).then("x"), (2, "x"), (1, None)),
    of(when(A > 9).then(A + 1).when(A > 5).then(-A).otherwise(None), (10, 11), (6, -6), (1, None)),
    of(when(A < MAX).then(A + 1).otherwise(A), (1, 2), (MAX, MAX)),
    of(when(A).then(1).otherwise(2), (1, Fails("expected bool"))),
    of(when(A.is_null()).then(True).otherwise(A > 2), (None, True), (3, True), (2, False)),
]

CASTS: list[Case] = [
    of(A.cast("int64"), (1.9, 1), (-1.9, -1), (None, None), (-float(1 << 63), MIN)),
    of(A.cast("int64"), (NAN, Fails("nan does not fit"))),
    of(A.cast("int64"), (float(1 << 63), Fails("does not fit"))),
    of(A.cast("int64"), ("12", 12), ("-07", -7), (None, None), (str(MIN), MIN)),
    *(of(A.cast("int64"), (text, Fails("integer"))) for text in ("", " 1", "+1", "0x10", "1_0")),
    of(A.cast("int64"), ("1.0", Fails("integer"))),
    of(A.cast("int64"), ("9223372036854775808", Fails("64 bits"))),
    of(A.cast("int64", strict=False), ("x", None), ("5", 5), ("9223372036854775808", None)),
    of(A.cast("int64", strict=False), (NAN, None), (2.5, 2)),
    of(A.cast("int64"), (True, 1), (False, 0)),
    of(A.cast("int64"), (T, 1_357_018_199_123), (BEFORE, -1)),
    of(A.cast("float64"), (1, 1.0), ((1 << 53) + 1, float(1 << 53)), (None, None)),
    of(A.cast("float64"), ("1.5", 1.5), ("-2e3", -2000.0), ("7", 7.0), ("0.1", 0.1)),
    *(of(A.cast("float64"), (text, Fails("number"))) for text in ("", "nan", " 1", "1e999", ".5")),
    of(A.cast("float64", strict=False), ("inf", None), ("1", 1.0)),
    of(A.cast("float64"), (True, 1.0)),
    of(A.cast("string"), (1, "1"), (-5, "-5"), (None, None)),
    of(A.cast("string"), (1.0, "1.0"), (0.1, "0.1"), (1e20, "1e+20"), (NAN, "nan"), (-0.0, "-0.0")),
    of(A.cast("string"), (True, "true"), (False, "false")),
    of(A.cast("string"), (b"caf\xc3\xa9", "café")),
    of(A.cast("string"), (b"\xff", Fails("utf-8"))),
    of(A.cast("string", strict=False), (b"\xff", None), (b"a", "a")),
    of(A.cast("string"), (T, "2013-01-01T05:29:59.123Z"), (BEFORE, "1969-12-31T23:59:59.999Z")),
    of(A.cast("string"), (date(2013, 1, 2), "2013-01-02")),
    of(A.cast("bool"), (2, True), (0, False), (None, None)),
    of(A.cast("bool"), ("true", True), ("false", False)),
    of(A.cast("bool"), ("yes", Fails("neither"))),
    of(A.cast("bool"), (1.5, Fails("expected"))),
    of(A.cast("bytes"), ("é", b"\xc3\xa9"), (None, None)),
    of(A.cast("timestamp"), (-1, BEFORE), (0, datetime(1970, 1, 1, tzinfo=UTC)), (None, None)),
    of(A.cast("timestamp"), (MAX, Fails("years 1 to 9999"))),
    of(A.cast("timestamp"), (date(1970, 1, 2), datetime(1970, 1, 2, tzinfo=UTC))),
    of(A.cast("date"), (T, date(2013, 1, 1)), (BEFORE, date(1969, 12, 31))),
    of(A.cast(int), (1.5, 1)),
]

TEXTS: list[Case] = [
    of(A.str.lower(), ("ÀB", "àb"), ("", ""), (None, None)),
    of(A.str.upper(), ("straße", "STRASSE"), ("é", "É"), ("abc", "ABC")),
    of(A.str.lower(), (1, Fails("expected string"))),
    of(A.str.strip(), (" \t a b\n", "a b"), ("\u00a0a", "\u00a0a"), (None, None)),
    of(A.str.strip("xy"), ("xyaxb", "axb"), ("xx", "")),
    of(A.str.lstrip(), (" a ", "a ")),
    of(A.str.rstrip(), (" a ", " a")),
    of(A.str.starts_with("é"), ("éa", True), ("ea", False), (None, None)),
    of(A.str.starts_with(""), ("", True), ("a", True)),
    of(A.str.ends_with("b"), ("ab", True), ("ba", False)),
    of(A.str.contains("a.c"), ("xa.cx", True), ("abc", False), (None, None)),
    of(A.str.replace("a", "é"), ("banana", "bénana"), ("x", "x"), (None, None)),
    of(A.str.replace_all("an", "."), ("banana", "b..a")),
    of(A.str.replace_all(".", "$1"), ("a.b", "a$1b")),
    of(A.str.slice(1), ("äbc", "bc"), ("", ""), (None, None)),
    of(A.str.slice(1, 1), ("äbc", "b"), ("ä", "")),
    of(A.str.slice(-2), ("äbc", "bc"), ("c", "c")),
    of(A.str.slice(-5, 2), ("äbc", "äb"), ("abcdefg", "cd")),
    of(A.str.slice(0, 0), ("abc", "")),
    of(A.str.len_chars(), ("äb😀", 3), ("", 0), (None, None)),
    of(A.str.len_bytes(), ("äb😀", 7), ("", 0)),
    of(A.str.split(","), ("a,b", ["a", "b"]), ("", [""]), (",", ["", ""]), (None, None)),
    of(A.str.split("ab"), ("xabyab", ["x", "y", ""])),
]

TIMES: list[Case] = [
    of(A.dt.truncate("1h"), (HOUR + 1, HOUR), (HOUR, HOUR), (-1, -HOUR), (-HOUR, -HOUR)),
    of(A.dt.truncate("1h"), (None, None)),
    of(A.dt.truncate("1h"), (MIN, Fails("64 bits"))),
    of(A.dt.truncate("1h"), (T, datetime(2013, 1, 1, 5, tzinfo=UTC))),
    of(A.dt.truncate("1d"), (BEFORE, datetime(1969, 12, 31, tzinfo=UTC)), (None, None)),
    of(A.dt.truncate("1h"), ("x", Fails("expected"))),
    *(
        of(getattr(A.dt, word)(), (1_357_018_199_123, made), (-1, before), (None, None))
        for word, made, before in (
            ("year", 2013, 1969), ("month", 1, 12), ("day", 1, 31), ("weekday", 2, 3),
            ("hour", 5, 23), ("minute", 29, 59), ("second", 59, 59), ("millisecond", 123, 999),
            ("date", date(2013, 1, 1), date(1969, 12, 31)),
        )
    ),
    *(
        of(getattr(A.dt, word)(), (T, made), (BEFORE, before), (None, None))
        for word, made, before in (
            ("year", 2013, 1969), ("month", 1, 12), ("day", 1, 31), ("weekday", 2, 3),
            ("hour", 5, 23), ("minute", 29, 59), ("second", 59, 59), ("millisecond", 123, 999),
            ("date", date(2013, 1, 1), date(1969, 12, 31)),
        )
    ),
    *(
        of(getattr(A.dt, word)(), (date(2016, 2, 29), made))
        for word, made in (("year", 2016), ("month", 2), ("day", 29), ("weekday", 1))
    ),
    of(A.dt.hour(), (MAX, 7), (MIN, 16)),
    of(A.dt.year(), (MAX, Fails("years 1 to 9999"))),
    of(A.dt.hour(), (date(2016, 2, 29), Fails("expected"))),
]  # fmt: skip

PARTS: list[Case] = [
    (A["name"], [{"a": {"name": "x"}}, {"a": None}, {"a": {"name": None}}], ["x", None, None]),
    (A["b"]["c"].str.upper(), [{"a": {"b": {"c": "x"}}}, {"a": {"b": None}}], ["X", None]),
    (col("a"), [{"a": 1}, None], [1, None]),
    (value().get("a"), [{"a": 1}, {"a": None}, None], [1, None, None]),
    (value().get("b").is_null(), [{"a": 1}, None], [True, True]),
    (A.get("c") + 1, [{"a": {"b": 1}}, {"a": None}], [None, None]),
    (value(), [1, None, 3], [1, None, 3]),
    (value() + 1, [1, None, 3], [2, None, 4]),
    of(A.list.len(), ([1, 2], 2), ([], 0), (None, None)),
    of(A.list.get(0), ([1, 2], 1), ([], None), (None, None)),
    of(A.list.get(-1), ([1, 2], 2), ([], None), ([None], None)),
    of(A.list.get(5), ([1, 2], None)),
    of(A.list.contains(2), ([1, 2], True), ([1], False), ([1, None], None), (None, None)),
    of(A.list.contains(2), ([2, None], True), ([], False)),
    of(A.list.contains("x"), ([1], Fails("cannot be compared"))),
    of(A.list.len(), ("x", Fails("expected a list"))),
    of(A.str.split("-").list.get(1), ("a-b", "b"), ("a", None)),
    (struct("a", twice=B * 2), [{"a": 1, "b": 2}, None],
     [{"a": 1, "twice": 4}, {"a": None, "twice": None}]),
    (struct(inner=struct("a")), [{"a": 1}], [{"inner": {"a": 1}}]),
    (struct(x=A).alias("y")["x"], [{"a": 1}], [1]),
    of(when(A > 1).then(struct(x=A)).otherwise(struct(x=0)), (2, {"x": 2}), (1, {"x": 0})),
]  # fmt: skip

# The last three are the vectors of Kafka's UtilsTest; numbers are hashed as Kafka writes them.
HASHES: list[Case] = [
    of(A.hash(), ("21", -973932308 & 0x7FFFFFFF), ("foobar", -790332482 & 0x7FFFFFFF),
       ("a-little-bit-long-string", -985981536 & 0x7FFFFFFF), (None, None)),
    of(A.hash(), (b"21", -973932308 & 0x7FFFFFFF)),
    of(A.hash() % 7, ("21", (-973932308 & 0x7FFFFFFF) % 7)),
]  # fmt: skip

CASES: list[Case] = [
    *NUMBERS, *COMPARISONS, *LOGIC, *CASTS, *TEXTS, *TIMES, *PARTS, *HASHES,
]  # fmt: skip


def name(case: Case) -> str:
    return f"{case[0]} of {case[1]}"[:120]


def same(one: Any, other: Any) -> bool:
    """Equal, of one type; NaN is NaN and -0.0 is not 0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or repr(one) == repr(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def shape_of(values: list[Any]) -> Shape:
    """What a schema would say of the values of a case."""
    return Shape(unify(map(_type_of, values)))


def _type_of(given: Any) -> Type:
    if isinstance(given, dict):
        return struct_of({name: _type_of(each) for name, each in given.items()})
    if isinstance(given, list):
        return list_of(unify(map(_type_of, given)))
    return type_of(given)
