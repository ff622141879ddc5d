"""What each function gives for Python values: the definition that evaluators are held to.  [P]

These functions never see a null where any null argument makes the result null; the others (logic,
`when`, `coalesce`, fields made of several) are in the evaluators.

Facts  Integers have 64 bits: a result beyond them is an error. `/` is a division of floats. `//`
       and `%` round down, so `%` has the sign of the divisor. A division by zero is null. An
       integer that meets a float becomes a float. NaN equals nothing, is smaller and larger than
       nothing. Moments before 1970 round down too. Days lie in the years 1 to 9999.
Fails  with TypeError for a value of another type, OverflowError beyond 64 bits, ValueError for a
       value that a function does not take; messages show the value.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from kafkalite.core.protocol.partitioner import murmur2, to_positive
from kafkalite.streams.expressions.types import (
    BOOL,
    BYTES,
    DATE,
    FLOAT64,
    INT64,
    INT64_MAX,
    INT64_MIN,
    NUMBERS,
    OF_PYTHON,
    STRING,
    TIMESTAMP,
    Type,
    show,
)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY: Final = EPOCH.toordinal()
LAST_DAY: Final = date.max.toordinal()
MS: Final = timedelta(milliseconds=1)
US: Final = timedelta(microseconds=1)
DAY_MS: Final = 86_400_000
ASCII_SPACE: Final = " \t\n\r\x0b\x0c"
INTEGER: Final = re.compile(r"-?[0-9]+", re.ASCII)
NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
BOOLS: Final = {"true": True, "false": False}

# Types


def type_of_value(x: object) -> Type | None:
    """The type of a value; None for one that functions do not take."""
    found = OF_PYTHON.get(type(x))
    if found is None:  # a class of the user's
        found = next((to for of, to in OF_PYTHON.items() if isinstance(x, of)), None)
    if found is TIMESTAMP and x.tzinfo is None:  # type: ignore[attr-defined]
        raise TypeError(f"expected a moment with a time zone, got {show(x)}")
    return found


def _wrong(expected: str, x: object) -> TypeError:
    return TypeError(f"expected {expected}, got {show(x)}")


def text(x: Any) -> str:
    """`x`, a text."""
    if not isinstance(x, str):
        raise _wrong("string", x)
    return x


def boolean(x: object) -> None:
    """TypeError: `x` is none."""
    raise _wrong("bool", x)


def fit(x: int) -> int:
    """`x`, if it has 64 bits."""
    if not INT64_MIN <= x <= INT64_MAX:
        shown = x if abs(x) < 1 << 128 else "the result"
        raise OverflowError(f"{shown} does not fit 64 bits")
    return x


def _number(x: Any) -> Any:
    if type_of_value(x) not in NUMBERS:
        raise _wrong("a number", x)
    return x


def _numbers(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as integers, or both as floats."""
    if type(_number(a)) is not type(_number(b)):
        return float(a), float(b)
    return a, b


# Numbers


def _arithmetic(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        a, b = _numbers(a, b)
        result = operate(a, b)
        return fit(result) if isinstance(result, int) else result

    return run


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, str) and isinstance(b, str):
        return a + b
    return _sum(a, b)


_sum: Final = _arithmetic(operator.add)


def _truediv(a: Any, b: Any) -> float | None:
    a, b = _numbers(a, b)
    return float(a) / float(b) if b else None


def _float_floor(x: float) -> float:
    return math.copysign(math.floor(x), x) if math.isfinite(x) else x


def _float_ceil(x: float) -> float:
    return math.copysign(math.ceil(x), x) if math.isfinite(x) else x


def _floordiv(a: Any, b: Any) -> Any:
    """Of floats: the quotient, rounded down."""
    a, b = _numbers(a, b)
    if not b:
        return None
    return fit(a // b) if isinstance(a, int) else _float_floor(a / b)


def _mod(a: Any, b: Any) -> Any:
    """The remainder after `//`."""
    a, b = _numbers(a, b)
    if not b:
        return None
    return a % b if isinstance(a, int) else a - _float_floor(a / b) * b


def _pow(a: Any, b: Any) -> Any:
    a, b = _numbers(a, b)
    if isinstance(a, float):
        return _float_pow(a, b)
    if b < 0:
        raise ValueError(f"an integer to the negative power {b}; make one of them a float")
    if abs(a) > 1 and b > 63:
        raise OverflowError(f"{a} ** {b} does not fit 64 bits")
    return fit(a**b)


def _float_pow(a: float, b: float) -> float:
    """As IEEE 754 has it, where Python raises."""
    is_odd = math.isfinite(b) and b % 2 == 1
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and is_odd else math.inf
    except ValueError:
        if a != 0:
            return math.nan
        return math.copysign(math.inf, a) if is_odd else math.inf


def _neg(x: Any) -> Any:
    return -x if isinstance(_number(x), float) else fit(-x)


def _abs(x: Any) -> Any:
    return abs(x) if isinstance(_number(x), float) else fit(abs(x))


def _round(x: Any, decimals: int = 0) -> Any:
    """Halves to even, of the number times a power of ten."""
    if not isinstance(_number(x), float):
        return x
    scale = 10.0**decimals
    scaled = x * scale
    return math.copysign(round(scaled), x) / scale if math.isfinite(scaled) else x


def _floor(x: Any) -> Any:
    return _float_floor(x) if isinstance(_number(x), float) else x


def _ceil(x: Any) -> Any:
    return _float_ceil(x) if isinstance(_number(x), float) else x


def _is_nan(x: Any) -> bool:
    return bool(_number(x) != x)


# Comparison


def comparable(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as values of one type. TypeError where they have none in common."""
    one, other = type_of_value(a), type_of_value(b)
    if one is None:
        raise _wrong("a value that can be compared", a)
    if one is other:
        return a, b
    if one in NUMBERS and other in NUMBERS:
        return float(a), float(b)
    raise TypeError(f"{show(a)} cannot be compared with {show(b)}")


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: compare(*comparable(a, b))


def _is_in(x: Any, values: Sequence[Any]) -> bool:
    """Whether one of `values`, which have one type, is equal."""
    found = False
    for value in values:
        a, b = comparable(x, value)
        found = found or a == b
    return found


# Text


def _slice(x: Any, offset: int, length: int | None = None) -> str:
    rest = text(x)[offset:] if offset >= -len(x) else x
    return rest if length is None else rest[:length]


# Time


def to_ms(x: Any) -> int:
    """Epoch milliseconds of a moment or a day, rounded down."""
    if isinstance(x, datetime):
        type_of_value(x)
        return (x - EPOCH) // MS
    if isinstance(x, date):
        return (x.toordinal() - EPOCH_DAY) * DAY_MS
    return _integer_ms(x)


def _integer_ms(x: Any) -> int:
    if not isinstance(x, int) or isinstance(x, bool):
        raise _wrong("a moment: int64 of epoch milliseconds or timestamp", x)
    return x


def _moment_ms(x: Any) -> int:
    if isinstance(x, date) and not isinstance(x, datetime):
        raise _wrong("a moment: int64 of epoch milliseconds or timestamp", x)
    return to_ms(x)


def to_date(x: Any) -> date:
    """The day of a moment."""
    day = to_ms(x) // DAY_MS + EPOCH_DAY
    if not 1 <= day <= LAST_DAY:
        raise ValueError(f"{show(x)} is not in the years 1 to 9999")
    return date.fromordinal(day)


def _weekday(x: Any) -> int:
    return (to_ms(x) // DAY_MS + 3) % 7 + 1  # the first day of 1970 was a Thursday


def _truncate(x: Any, every_ms: int) -> Any:
    if isinstance(x, datetime):
        type_of_value(x)
        moment = (x - EPOCH) // US
        return _moment(moment - moment % (every_ms * 1_000), x)
    return fit(_moment_ms(x) - x % every_ms)


def _moment(us: int, x: Any) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise ValueError(f"{show(x)} is not in the years 1 to 9999") from None


def _of_day(unit_ms: int, count: int) -> Callable[[Any], int]:
    return lambda x: _moment_ms(x) // unit_ms % count


# Lists


def items(x: Any) -> Sequence[Any]:
    """`x`, a list."""
    if not isinstance(x, list | tuple):
        raise _wrong("a list", x)
    return x


def _get(x: Any, index: int) -> Any:
    return x[index] if -len(items(x)) <= index < len(x) else None


def _list_contains(x: Any, item: Any) -> bool | None:
    found = [None if each is None else bool(_equal(each, item)) for each in items(x)]
    return True if True in found else None if None in found else False


_equal: Final = _comparison(operator.eq)

# Casts


def _to_int(x: Any) -> int:
    if isinstance(x, str):
        if not INTEGER.fullmatch(x) or len(x) > 64:
            raise ValueError(f"{show(x)} is no integer")
        return fit(int(x))
    if isinstance(x, datetime):
        return to_ms(x)
    if isinstance(x, float):
        if not -(2.0**63) <= x < 2.0**63:  # NaN as well
            raise OverflowError(f"{x} does not fit 64 bits")
        return int(x)
    return int(x)


def _to_float(x: Any) -> float:
    if isinstance(x, str):
        if not NUMBER.fullmatch(x) or math.isinf(number := float(x)):
            raise ValueError(f"{show(x)} is no number")
        return number
    return float(x)


def _to_string(x: Any) -> str:
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, bytes):
        return x.decode()
    if isinstance(x, datetime):
        return x.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return x.isoformat() if isinstance(x, date) else str(x)


def _to_bool(x: Any) -> bool:
    if isinstance(x, str):
        if x not in BOOLS:
            raise ValueError(f"{show(x)} is neither 'true' nor 'false'")
        return BOOLS[x]
    return bool(x)


def _to_timestamp(x: Any) -> datetime:
    if isinstance(x, datetime):
        return x.astimezone(UTC)
    return _moment(to_ms(x) * 1_000, x)


def _to_bytes(x: Any) -> bytes:
    return x.encode() if isinstance(x, str) else bytes(x)


TO: Final[Mapping[Type, Callable[[Any], Any]]] = {
    BOOL: _to_bool,
    INT64: _to_int,
    FLOAT64: _to_float,
    STRING: _to_string,
    BYTES: _to_bytes,
    TIMESTAMP: _to_timestamp,
    DATE: to_date,
}


def caster(target: Type, sources: frozenset[Type], *, strict: bool) -> Callable[[Any], Any]:
    """The cast to `target` from values of the types `sources`."""
    to = TO[target]
    expected = " or ".join(sorted(map(str, sources)))

    def run(x: Any) -> Any:
        if type_of_value(x) not in sources:
            raise _wrong(expected, x)
        try:
            return to(x)
        except (ValueError, OverflowError):
            if strict:
                raise
            return None

    return run


# Hashing


def _hash(x: Any) -> int:
    return to_positive(murmur2(_canonical(x)))


def _canonical(x: Any) -> bytes:
    """The bytes that are hashed; of text and numbers those of Kafka's serializers."""
    if isinstance(x, str):
        return x.encode()
    if isinstance(x, bytes):
        return x
    if isinstance(x, bool):
        return b"\1" if x else b"\0"
    if isinstance(x, float):
        return struct.pack(">d", math.nan if x != x else x + 0.0)  # one NaN, one zero
    if isinstance(x, int):
        return struct.pack(">q", fit(x))
    if isinstance(x, date):
        return struct.pack(">q", to_ms(x))
    raise _wrong("a value that can be hashed", x)


# By name; each takes the arguments, then the options
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": _add,
    "sub": _arithmetic(operator.sub),
    "mul": _arithmetic(operator.mul),
    "truediv": _truediv,
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "neg": _neg,
    "abs": _abs,
    "round": _round,
    "floor": _floor,
    "ceil": _ceil,
    "is_nan": _is_nan,
    **{name: _comparison(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "is_in": _is_in,
    "hash": _hash,
    "str.lower": lambda x: text(x).lower(),
    "str.upper": lambda x: text(x).upper(),
    "str.strip": lambda x, characters=ASCII_SPACE: text(x).strip(characters),
    "str.lstrip": lambda x, characters=ASCII_SPACE: text(x).lstrip(characters),
    "str.rstrip": lambda x, characters=ASCII_SPACE: text(x).rstrip(characters),
    "str.starts_with": lambda x, prefix: text(x).startswith(prefix),
    "str.ends_with": lambda x, suffix: text(x).endswith(suffix),
    "str.contains": lambda x, part: part in text(x),
    "str.replace": lambda x, old, new: text(x).replace(old, new, 1),
    "str.replace_all": lambda x, old, new: text(x).replace(old, new),
    "str.slice": _slice,
    "str.len_chars": lambda x: len(text(x)),
    "str.len_bytes": lambda x: len(text(x).encode()),
    "str.split": lambda x, by: text(x).split(by),
    "dt.truncate": _truncate,
    "dt.year": lambda x: to_date(x).year,
    "dt.month": lambda x: to_date(x).month,
    "dt.day": lambda x: to_date(x).day,
    "dt.weekday": _weekday,
    "dt.date": to_date,
    "dt.hour": _of_day(3_600_000, 24),
    "dt.minute": _of_day(60_000, 60),
    "dt.second": _of_day(1_000, 60),
    "dt.millisecond": _of_day(1, 1_000),
    "list.len": lambda x: len(items(x)),
    "list.get": _get,
    "list.contains": _list_contains,
}
