"""What each function gives for Arrow arrays, by kernels of pyarrow.compute.               [P]

    i + 1          pc.add_checked(i, 1)
    i / j          pc.divide of both as doubles, null where j is 0
    s.str.lower()  pc.ascii_lower where all is ASCII; else values.py, text by text

Arguments have the types of arrow_types.py and no null type; one of them at least is an array.

Owns   the kernels that give what values.py gives, bit for bit.
Never  passes on a number beyond 64 bits: checked kernels refuse it.
Fails  with ArrowInvalid or Refused for a column with a value on which values.py fails, or which a
       kernel would treat in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.streams.expressions.arrow_types import (
    UTC_US,
    Data,
    arrow_type,
    constant,
    constants,
)
from kafkalite.streams.expressions.types import (
    BOOL,
    BYTES,
    DATE,
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    Type,
    type_of,
    unify,
)
from kafkalite.streams.expressions.values import (
    ASCII_SPACE,
    DAY_MS,
    EPOCH_DAY,
    FUNCTIONS,
    INTEGER,
    LAST_DAY,
    NUMBER,
)

FIRST_DAY: Final = 1 - EPOCH_DAY  # of the year 1, counted from 1970
FINAL_DAY: Final = LAST_DAY - EPOCH_DAY
UNITS: Final = {"hour": (3_600_000, 24), "minute": (60_000, 60), "second": (1_000, 60),
                "millisecond": (1, 1_000)}  # fmt: skip
ZERO: Final = constant(0)
ZERO_FLOAT: Final = constant(0.0)
NO_TEXT: Final = constant("")
MS_MAX: Final = 1 << 52  # epoch milliseconds that are microseconds of 64 bits as well


class Refused(Exception):
    """A value that a kernel would treat otherwise than values.py."""


def by_value(function: Callable[[Any], Any], given: Any, of: Any) -> Any:
    """A function of values.py, value by value."""
    values = given.to_pylist()
    try:
        return pa.array([None if x is None else function(x) for x in values], of)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(str(error)) from error


# Numbers


def _doubles(*given: Data) -> list[Data]:
    return [pc.cast(each, pa.float64(), safe=False) for each in given]


def _alike(a: Data, b: Data) -> Sequence[Data]:
    """Both integers, or both floats; other types as they are."""
    floats = [pa.types.is_floating(each.type) for each in (a, b)]
    return _doubles(a, b) if any(floats) and not all(floats) else (a, b)


def _null_for_zero(b: Data) -> Data:
    zero = constant(0.0 if pa.types.is_floating(b.type) else 0)
    return pc.if_else(pc.equal(b, zero), constant(None, b.type), b)


def _checked(name: str, for_floats: str | None = None) -> Callable[..., Data]:
    """A kernel that refuses integers beyond 64 bits."""
    integers, floats = getattr(pc, f"{name}_checked"), getattr(pc, for_floats or name)

    def run(*given: Data) -> Data:
        given = tuple(_alike(*given)) if len(given) == 2 else given
        return floats(*given) if pa.types.is_floating(given[0].type) else integers(*given)

    return run


_plus: Final = _checked("add")


def _add(a: Data, b: Data) -> Data:
    if pa.types.is_string(a.type):
        return pc.binary_join_element_wise(a, b, NO_TEXT, null_handling="emit_null")
    return _plus(a, b)


def _truediv(a: Data, b: Data) -> Data:
    a, b = _doubles(a, b)
    return pc.divide(a, _null_for_zero(b))


def _quotient(a: Data, b: Data) -> tuple[Data, Data]:
    """`//` and `%`."""
    a, b = _alike(a, b)
    b = _null_for_zero(b)
    if pa.types.is_floating(b.type):
        quotient = pc.floor(pc.divide(a, b))
        return quotient, pc.subtract(a, pc.multiply(quotient, b))
    quotient = pc.divide_checked(a, b)  # towards zero
    rest = pc.subtract(a, pc.multiply(quotient, b))
    is_above = pc.and_(
        pc.not_equal(rest, ZERO), pc.not_equal(pc.less(rest, ZERO), pc.less(b, ZERO))
    )
    quotient = pc.subtract(quotient, pc.cast(is_above, pa.int64()))
    return quotient, pc.if_else(is_above, pc.add(rest, b), rest)


def _round(x: Data, decimals: int = 0) -> Data:
    if not pa.types.is_floating(x.type):
        return x
    scale = constant(10.0**decimals)
    scaled = pc.multiply(x, scale)
    rounded = pc.divide(pc.round(scaled, ndigits=0, round_mode="half_to_even"), scale)
    return pc.if_else(pc.is_finite(scaled), rounded, x)


def _whole(kernel: Callable[..., Data]) -> Callable[..., Data]:
    return lambda x: kernel(x) if pa.types.is_floating(x.type) else x


def _comparison(kernel: Callable[..., Data]) -> Callable[..., Data]:
    return lambda a, b: kernel(*_alike(a, b))


def _is_in(x: Any, values: Sequence[Any]) -> Any:
    of = arrow_type(unify(map(type_of, values))) if values else x.type
    x, among = _alike(x, constants(values, of) if values else pa.nulls(0, of))
    if pa.types.is_floating(x.type):  # by hashes, of which -0.0 and 0.0 have two
        x, among = pc.add(x, ZERO_FLOAT), pc.add(among, ZERO_FLOAT)
    return pc.if_else(pc.is_valid(x), pc.is_in(x, value_set=among), constant(None, pa.bool_()))


# Text


def _cased(word: str) -> Callable[[Any], Any]:
    kernel, function = getattr(pc, f"ascii_{word}"), FUNCTIONS[f"str.{word}"]

    def run(x: Any) -> Any:
        if pc.all(pc.string_is_ascii(x)).as_py() in (True, None):
            return kernel(x)
        return by_value(function, x, pa.string())

    return run


def _slice(x: Any, offset: int, length: int | None = None) -> Any:
    rest = pc.utf8_slice_codeunits(x, start=offset)
    return rest if length is None else pc.utf8_slice_codeunits(rest, start=0, stop=length)


def _long(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: pc.cast(kernel(x), pa.int64())


# Time


def _floored(x: Any, by: int) -> Any:
    return _quotient(x, constant(by))[0]


def _rest(x: Any, by: int) -> Any:
    return _quotient(x, constant(by))[1]


def _ms(x: Any) -> Any:
    """Epoch milliseconds of moments or days, rounded down."""
    if pa.types.is_timestamp(x.type):
        return _floored(pc.cast(x, pa.int64()), 1_000)
    if pa.types.is_date(x.type):
        return pc.multiply(_days(x), constant(DAY_MS))
    return x


def _days(x: Any) -> Any:
    """Days from 1970."""
    if pa.types.is_date(x.type):
        return pc.cast(pc.cast(x, pa.int32()), pa.int64())
    return _floored(_ms(x), DAY_MS)


def _require_between(x: Any, low: int, high: int) -> Any:
    """`x`, where all is within bounds."""
    bounds = pc.min_max(x)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if least is not None and (least < low or most > high):
        raise Refused(f"{least} to {most} is not within {low} to {high}")
    return x


def _date(x: Any) -> Any:
    days = _require_between(_days(x), FIRST_DAY, FINAL_DAY)
    return pc.cast(pc.cast(days, pa.int32()), pa.date32())


def _moment(us: Any) -> Any:
    days = DAY_MS * 1_000
    return pc.cast(_require_between(us, FIRST_DAY * days, (FINAL_DAY + 1) * days - 1), UTC_US)


def _truncate(x: Any, every_ms: int) -> Any:
    if pa.types.is_timestamp(x.type):
        us = pc.cast(x, pa.int64())
        return _moment(pc.subtract_checked(us, _rest(us, every_ms * 1_000)))
    return pc.subtract_checked(x, _rest(x, every_ms))


def _of_day(unit_ms: int, count: int) -> Callable[[Any], Any]:
    return lambda x: _rest(_floored(_ms(x), unit_ms), count)


# Lists


def _get(x: Any, index: int) -> Any:
    """By the places of the elements among those of all lists."""
    starts, lengths = x.offsets, _long(pc.list_value_length)(x)
    first = pc.cast(starts.slice(0, len(x)), pa.int64())
    at, least = constant(index), constant(index + 1 if index >= 0 else -index)
    place = pc.add(first, at if index >= 0 else pc.add(lengths, at))
    is_there = pc.less_equal(least, lengths)
    return x.values.take(pc.if_else(is_there, place, constant(None, pa.int64())))


# Casts


def _float_to_int(x: Any) -> Any:
    return pc.cast(pc.trunc(x), pa.int64())


def _text_to(pattern: str, of: Any) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        if pc.all(pc.match_substring_regex(x, f"^({pattern})$")).as_py() is False:
            raise Refused("text that is no number")
        made = pc.cast(x, of)
        if pa.types.is_floating(of) and pc.any(pc.is_inf(made)).as_py():
            raise Refused("a number beyond the range of floats")
        return made

    return run


def _ms_to_moment(x: Any) -> Any:
    return _moment(pc.multiply(_require_between(x, -MS_MAX, MS_MAX), constant(1_000)))


CAST_KERNELS: Final[Mapping[tuple[Type, Type], Callable[[Any], Any]]] = {
    (BOOL, INT64): lambda x: pc.cast(x, pa.int64()),
    (FLOAT64, INT64): _float_to_int,
    (STRING, INT64): _text_to(INTEGER.pattern, pa.int64()),
    (TIMESTAMP, INT64): _ms,
    (BOOL, FLOAT64): lambda x: _doubles(pc.cast(x, pa.int64()))[0],
    (INT64, FLOAT64): lambda x: _doubles(x)[0],
    (STRING, FLOAT64): _text_to(NUMBER.pattern, pa.float64()),
    (INT64, STRING): lambda x: pc.cast(x, pa.string()),
    (BYTES, STRING): lambda x: pc.cast(x, pa.string()),
    (BOOL, STRING): lambda x: pc.if_else(x, constant("true"), constant("false")),
    (INT64, BOOL): lambda x: pc.not_equal(x, ZERO),
    (STRING, BYTES): lambda x: pc.cast(x, pa.binary()),
    (INT64, TIMESTAMP): _ms_to_moment,
    (DATE, TIMESTAMP): lambda x: _ms_to_moment(_ms(x)),
    (TIMESTAMP, DATE): _date,
}
COMPARISONS: Final = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                      "gt": "greater", "ge": "greater_equal"}  # fmt: skip
KERNELS: Final[Mapping[str, Callable[..., Data]]] = {
    "add": _add,
    "sub": _checked("subtract"),
    "mul": _checked("multiply"),
    "pow": _checked("power"),
    "neg": _checked("negate"),
    "abs": _checked("abs"),
    "truediv": _truediv,
    "floordiv": lambda a, b: _quotient(a, b)[0],
    "mod": lambda a, b: _quotient(a, b)[1],
    "round": _round,
    "floor": _whole(pc.floor),
    "ceil": _whole(pc.ceil),
    "is_nan": lambda x: pc.not_equal(x, x),
    **{name: _comparison(getattr(pc, kernel)) for name, kernel in COMPARISONS.items()},
    "is_in": _is_in,
    "str.lower": _cased("lower"),
    "str.upper": _cased("upper"),
    "str.strip": lambda x, characters=ASCII_SPACE: pc.utf8_trim(x, characters=characters),
    "str.lstrip": lambda x, characters=ASCII_SPACE: pc.utf8_ltrim(x, characters=characters),
    "str.rstrip": lambda x, characters=ASCII_SPACE: pc.utf8_rtrim(x, characters=characters),
    "str.starts_with": lambda x, prefix: pc.starts_with(x, pattern=prefix),
    "str.ends_with": lambda x, suffix: pc.ends_with(x, pattern=suffix),
    "str.contains": lambda x, part: pc.match_substring(x, pattern=part),
    "str.replace": lambda x, old, new: pc.replace_substring(x, old, new, max_replacements=1),
    "str.replace_all": lambda x, old, new: pc.replace_substring(x, old, new),
    "str.slice": _slice,
    "str.len_chars": _long(pc.utf8_length),
    "str.len_bytes": _long(pc.binary_length),
    "str.split": lambda x, by: pc.split_pattern(x, pattern=by),
    "dt.truncate": _truncate,
    "dt.year": lambda x: pc.year(_date(x)),
    "dt.month": lambda x: pc.month(_date(x)),
    "dt.day": lambda x: pc.day(_date(x)),
    "dt.date": _date,
    "dt.weekday": lambda x: pc.add(_rest(pc.add(_days(x), constant(3)), 7), constant(1)),
    **{f"dt.{word}": _of_day(*unit) for word, unit in UNITS.items()},
    "list.len": _long(pc.list_value_length),
    "list.get": _get,
}
