"""Every function of expressions: how it is written, and the type of its result.            [P]

A call names its function by an entry here, and each evaluator has a table with the same entries;
tests hold the tables to one another. Arguments are expressions, options are constants.
`and` and `or` take any number of arguments.

    written            arguments            options
    a + b              add: a, b
    a.str.slice(1, 2)  str.slice: a         1, 2
    when(c).then(a)    when: c, a, else

Owns   the names of functions and the types that they take and give.
Fails  with Mismatch when a function does not take what is known of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafkalite.streams.expressions.types import (
    ANY,
    BOOL,
    BYTES,
    DATE,
    FLOAT64,
    INT64,
    NULL,
    NUMBERS,
    SCALARS,
    STRING,
    TIMESTAMP,
    ListType,
    Mismatch,
    StructType,
    Type,
    is_unknown,
    list_of,
    struct_of,
    type_of,
    unify,
)

Rule = Callable[[Sequence[Type], Sequence[Any]], Type]

INFIX: Final[Mapping[str, str]] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
PREFIX: Final[Mapping[str, str]] = {"neg": "-", "not": "~"}
PRECEDENCE: Final[Mapping[str, int]] = {  # of Python's operators: the higher binds first
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), 0),
    "or": 1,
    "xor": 2,
    "and": 3,
    **dict.fromkeys(("add", "sub"), 4),
    **dict.fromkeys(("mul", "truediv", "floordiv", "mod"), 5),
    **dict.fromkeys(("neg", "not"), 6),
    "pow": 7,
}
CALLED: Final = frozenset({"coalesce"})  # written name(a, b), not a.name(b)
FIELDED: Final[Mapping[str, str]] = {  # written word(name=a)
    "struct": "struct",
    "select": "select",
    "with_fields": "assign",
}
KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {  # options that are written name=value
    "cast": ("", "strict"),
    "between": ("closed",),
}
TEXTS: Final = frozenset({STRING})
INTEGERS: Final = frozenset({INT64})
MOMENTS: Final = frozenset({INT64, TIMESTAMP})
DAYS: Final = MOMENTS | {DATE}
SCALAR_TYPES: Final = frozenset(SCALARS.values())
CASTS: Final[Mapping[Type, frozenset[Type]]] = {  # the target, and what becomes it
    BOOL: frozenset({BOOL, INT64, STRING}),
    INT64: frozenset({BOOL, INT64, FLOAT64, STRING, TIMESTAMP}),
    FLOAT64: frozenset({BOOL, INT64, FLOAT64, STRING}),
    STRING: SCALAR_TYPES,
    BYTES: frozenset({STRING, BYTES}),
    TIMESTAMP: frozenset({INT64, TIMESTAMP, DATE}),
    DATE: frozenset({TIMESTAMP, DATE}),
}


def one_of(allowed: frozenset[Type]) -> str:
    """Types as a message lists them."""
    return " or ".join(sorted(map(str, allowed)))


def require(type_: Type, allowed: frozenset[Type]) -> None:
    """Mismatch unless a value of `type_` may be one of `allowed`."""
    if not is_unknown(type_) and type_ not in allowed:
        raise Mismatch(f"expected {one_of(allowed)}, got {type_}")


def takes(allowed: frozenset[Type], gives: Type | None = None) -> Rule:
    """All arguments are of `allowed` types; the result is of `gives`, or of their common type."""

    def rule(types: Sequence[Type], options: Sequence[Any]) -> Type:
        for type_ in types:
            require(type_, allowed)
        return unify(types) if gives is None else gives

    return rule


def _arithmetic(types: Sequence[Type], options: Sequence[Any]) -> Type:
    for type_ in types:
        require(type_, NUMBERS)
    if FLOAT64 in types:
        return FLOAT64
    return unify(types)


def _addition(types: Sequence[Type], options: Sequence[Any]) -> Type:
    if STRING in types:
        for type_ in types:
            require(type_, TEXTS)
        return STRING
    for type_ in types:
        require(type_, NUMBERS | TEXTS)
    return FLOAT64 if FLOAT64 in types else unify(types)


def _comparison(types: Sequence[Type], options: Sequence[Any]) -> Type:
    for type_ in types:
        require(type_, SCALAR_TYPES)
    try:
        unify(types)
    except Mismatch:
        raise Mismatch(f"{types[0]} cannot be compared with {types[1]}") from None
    return BOOL


def _between(types: Sequence[Type], options: Sequence[Any]) -> Type:
    _comparison((types[0], types[1]), ())
    return _comparison((types[0], types[2]), ())


def _is_in(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return _comparison((types[0], unify(map(type_of, options[0]))), ())


def _common(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return unify(types)


def _when(types: Sequence[Type], options: Sequence[Any]) -> Type:
    """Conditions and results take turns; what applies otherwise comes last."""
    for condition in types[:-1:2]:
        require(condition, frozenset({BOOL}))
    return unify([*types[1:-1:2], types[-1]])


def _cast(types: Sequence[Type], options: Sequence[Any]) -> Type:
    target = SCALARS[options[0]]
    require(types[0], CASTS[target])
    return target


def _same(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return types[0]


def _moment(types: Sequence[Type], options: Sequence[Any]) -> Type:
    require(types[0], MOMENTS)
    return types[0]


def _element(types: Sequence[Type], options: Sequence[Any]) -> Type:
    (type_,) = types
    if is_unknown(type_):
        return ANY
    if not isinstance(type_, ListType):
        raise Mismatch(f"expected a list, got {type_}")
    return type_.of


def _list_length(types: Sequence[Type], options: Sequence[Any]) -> Type:
    _element(types, options)
    return INT64


def _list_contains(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return _comparison((_element(types, ()), type_of(options[0])), ())


def _struct_type(type_: Type) -> StructType | None:
    """The struct's type; None where nothing is known."""
    if is_unknown(type_):
        return None
    if not isinstance(type_, StructType):
        raise Mismatch(f"expected a value with fields, got {type_}")
    return type_


def _field(types: Sequence[Type], options: Sequence[Any]) -> Type:
    struct = _struct_type(types[0])
    return ANY if struct is None else struct.field(options[0])


def _get(types: Sequence[Type], options: Sequence[Any]) -> Type:
    struct = _struct_type(types[0])
    return ANY if struct is None else dict(struct.fields).get(options[0], NULL)


def _struct(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return struct_of(dict(zip(options, types, strict=True)))


def _select(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return _struct(types[1:], options)


def _with_fields(types: Sequence[Type], options: Sequence[Any]) -> Type:
    struct = _struct_type(types[0])
    if struct is None:
        return ANY
    return struct_of(dict(struct.fields) | dict(zip(options, types[1:], strict=True)))


def _drop_fields(types: Sequence[Type], options: Sequence[Any]) -> Type:
    struct = _struct_type(types[0])
    if struct is None:
        return ANY
    for name in options:
        struct.field(name)
    return struct_of({name: of for name, of in struct.fields if name not in options})


def _rename_fields(types: Sequence[Type], options: Sequence[Any]) -> Type:
    struct = _struct_type(types[0])
    if struct is None:
        return ANY
    names = dict(options)
    for name in names:
        struct.field(name)
    kept = [name for name, _ in struct.fields if name not in names]
    for new in names.values():
        if new in kept:
            raise Mismatch(f"there is a field {new!r} already")
    return struct_of({names.get(name, name): of for name, of in struct.fields})


def _hash(types: Sequence[Type], options: Sequence[Any]) -> Type:
    require(types[0], SCALAR_TYPES)
    return INT64


def _anything(types: Sequence[Type], options: Sequence[Any]) -> Type:
    return BOOL


_booleans = takes(frozenset({BOOL}), BOOL)
_number = takes(NUMBERS)
_text = takes(TEXTS, STRING)

RULES: Final[Mapping[str, Rule]] = {
    "add": _addition,
    "sub": _arithmetic,
    "mul": _arithmetic,
    "truediv": takes(NUMBERS, FLOAT64),
    "floordiv": _arithmetic,
    "mod": _arithmetic,
    "pow": _arithmetic,
    "neg": _number,
    "abs": _number,
    "round": _number,
    "floor": _number,
    "ceil": _number,
    "is_nan": takes(NUMBERS, BOOL),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _comparison),
    **dict.fromkeys(("and", "or", "xor", "not"), _booleans),
    "boolean": _booleans,
    "is_null": _anything,
    "is_not_null": _anything,
    "is_in": _is_in,
    "between": _between,
    "fill_null": _common,
    "coalesce": _common,
    "when": _when,
    "cast": _cast,
    "alias": _same,
    "hash": _hash,
    "str.lower": _text,
    "str.upper": _text,
    "str.strip": _text,
    "str.lstrip": _text,
    "str.rstrip": _text,
    "str.starts_with": takes(TEXTS, BOOL),
    "str.ends_with": takes(TEXTS, BOOL),
    "str.contains": takes(TEXTS, BOOL),
    "str.replace": _text,
    "str.replace_all": _text,
    "str.slice": _text,
    "str.len_chars": takes(TEXTS, INT64),
    "str.len_bytes": takes(TEXTS, INT64),
    "str.split": takes(TEXTS, list_of(STRING)),
    "dt.truncate": _moment,
    "dt.year": takes(DAYS, INT64),
    "dt.month": takes(DAYS, INT64),
    "dt.day": takes(DAYS, INT64),
    "dt.weekday": takes(DAYS, INT64),
    "dt.date": takes(DAYS, DATE),
    "dt.hour": takes(MOMENTS, INT64),
    "dt.minute": takes(MOMENTS, INT64),
    "dt.second": takes(MOMENTS, INT64),
    "dt.millisecond": takes(MOMENTS, INT64),
    "list.len": _list_length,
    "list.get": _element,
    "list.contains": _list_contains,
    "field": _field,
    "get": _get,
    "struct": _struct,
    "select": _select,
    "with_fields": _with_fields,
    "drop_fields": _drop_fields,
    "rename_fields": _rename_fields,
}
NEVER_NULL: Final = frozenset({"is_null", "is_not_null", "struct"})
