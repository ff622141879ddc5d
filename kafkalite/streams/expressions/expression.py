"""Expressions as users write them: operators and methods that build trees.                 [P]

    (col("amount") * 1.19 > 28) & col("user")["name"].str.starts_with("A")

An expression holds a tree (tree.py); its operators and methods make new ones, run nothing and
change nothing. The names are polars', the nulls SQL's. `==` builds an expression, so two of them
are compared with `equals`; they hash by what they say.

Owns   the words of the language.
Fails  with TopologyError for an option that makes no sense, TypeError where Python would take the
       truth value of an expression (`and`, `or`, `not`, `if`, `1 < x < 3`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn
from typing import Literal as OneOf

from kafkalite.errors import TopologyError
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.expressions.tree import KEY, TIMESTAMP, VALUE, Call, Literal, Node, name_of
from kafkalite.streams.expressions.types import SCALARS, Mismatch, show, type_of, unify
from kafkalite.streams.hints import no_such

OF_PYTHON: Final[Mapping[Any, str]] = {
    int: "int64",
    float: "float64",
    str: "string",
    bool: "bool",
    bytes: "bytes",
}
Text = str  # within Expression, `str` is a namespace
POLARS: Final = {
    "isnull": ".is_null()",
    "isna": ".is_null()",
    "notnull": ".is_not_null()",
    "isin": ".is_in([…])",
    "astype": '.cast("int64")',
    "name": '.alias("name")',
    "len": ".list.len() or .str.len_chars()",
    **{
        name: f".str.{name}(…)"
        for name in ("lower", "upper", "strip", "startswith", "endswith", "split", "replace")
    },
    **{name: f".dt.{name}()" for name in ("hour", "minute", "year", "month", "day", "weekday")},
    "truncate": '.dt.truncate("1h")',
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expression:
    """A value for each record: see the module."""

    tree: Node

    def equals(self, other: object) -> bool:
        """Whether `other` is the same expression."""
        return isinstance(other, Expression) and self.tree == other.tree

    def __hash__(self) -> int:
        return hash(self.tree)

    def __str__(self) -> Text:
        return str(self.tree)

    __repr__ = __str__

    # Python's protocols, where they would go wrong without a word

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self} has a value for each record and no truth value of its own: write & | ~ for "
            "and, or, not, with parentheses around comparisons, and x.between(a, b) for a <= x <= b"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self} cannot be iterated over")

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError(f"{self}: write x.is_in([…]), or .list.contains(…), for `in`")

    def __getattr__(self, name: Text) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"an expression has no attribute {name!r}")
        raise AttributeError(no_such("Expression", name, POLARS, dir(Expression)))

    # Arithmetic

    def __add__(self, other: object) -> Expression:
        return call("add", self, other)

    def __radd__(self, other: object) -> Expression:
        return call("add", other, self)

    def __sub__(self, other: object) -> Expression:
        return call("sub", self, other)

    def __rsub__(self, other: object) -> Expression:
        return call("sub", other, self)

    def __mul__(self, other: object) -> Expression:
        return call("mul", self, other)

    def __rmul__(self, other: object) -> Expression:
        return call("mul", other, self)

    def __truediv__(self, other: object) -> Expression:
        return call("truediv", self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return call("truediv", other, self)

    def __floordiv__(self, other: object) -> Expression:
        return call("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Expression:
        return call("floordiv", other, self)

    def __mod__(self, other: object) -> Expression:
        return call("mod", self, other)

    def __rmod__(self, other: object) -> Expression:
        return call("mod", other, self)

    def __pow__(self, other: object) -> Expression:
        return call("pow", self, other)

    def __rpow__(self, other: object) -> Expression:
        return call("pow", other, self)

    def __neg__(self) -> Expression:
        return call("neg", self)

    def __abs__(self) -> Expression:
        return call("abs", self)

    def abs(self) -> Expression:
        """The number without its sign."""
        return call("abs", self)

    def round(self, decimals: int = 0) -> Expression:
        """Rounded to so many decimals, halves to the even digit."""
        if type(decimals) is not int or not 0 <= decimals <= 15:
            raise TopologyError(f"{self}.round: expected 0 to 15 decimals, got {decimals!r}")
        return call("round", self, options=(decimals,) if decimals else ())

    def floor(self) -> Expression:
        """The largest whole number that is not larger; of the same type."""
        return call("floor", self)

    def ceil(self) -> Expression:
        """The smallest whole number that is not smaller; of the same type."""
        return call("ceil", self)

    def is_nan(self) -> Expression:
        """Whether a float is not a number."""
        return call("is_nan", self)

    # Comparison

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _equality("eq", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _equality("ne", self, other)

    def __lt__(self, other: object) -> Expression:
        return call("lt", self, other)

    def __le__(self, other: object) -> Expression:
        return call("le", self, other)

    def __gt__(self, other: object) -> Expression:
        return call("gt", self, other)

    def __ge__(self, other: object) -> Expression:
        return call("ge", self, other)

    def between(
        self, low: object, high: object, closed: OneOf["both", "left", "right", "none"] = "both"
    ) -> Expression:
        """Whether it lies between two others; `closed` says which of them count."""
        if closed not in ("both", "left", "right", "none"):
            raise TopologyError(f"{self}.between: closed is both, left, right or none: {closed!r}")
        return call("between", self, low, high, options=() if closed == "both" else (closed,))

    def is_in(self, values: Iterable[object]) -> Expression:
        """Whether it is one of some constants."""
        where = f"{self}.is_in"
        if isinstance(values, str | bytes | Expression) or not isinstance(values, Iterable):
            raise TopologyError(f"{where}: expected a list of constants, got {values!r}")
        if isinstance(values, Set):  # in an order that is the same in every process
            values = sorted(values, key=repr)
        listed = tuple(_constant(value, where) for value in values)
        if None in listed:
            raise TopologyError(f"{where}: null equals nothing; add | x.is_null()")
        if any(value != value for value in listed):  # true for NaN alone
            raise TopologyError(f"{where}: NaN equals nothing; add | x.is_nan()")
        try:
            unify(map(type_of, listed))
        except Mismatch as error:
            raise TopologyError(f"{where}: {error}") from None
        return call("is_in", self, options=(listed,))

    # Logic and nulls

    def __and__(self, other: object) -> Expression:
        return _chained("and", self, other)

    def __rand__(self, other: object) -> Expression:
        return call("and", other, self)

    def __or__(self, other: object) -> Expression:
        return _chained("or", self, other)

    def __ror__(self, other: object) -> Expression:
        return call("or", other, self)

    def __xor__(self, other: object) -> Expression:
        return call("xor", self, other)

    def __rxor__(self, other: object) -> Expression:
        return call("xor", other, self)

    def __invert__(self) -> Expression:
        return call("not", self)

    def is_null(self) -> Expression:
        """Whether it is null; never null itself."""
        return call("is_null", self)

    def is_not_null(self) -> Expression:
        """Whether it is not null; never null itself."""
        return call("is_not_null", self)

    def fill_null(self, other: object) -> Expression:
        """`other` where it is null."""
        return call("fill_null", self, other)

    # The rest

    def cast(self, to: Text | type, strict: bool = True) -> Expression:
        """As another type. A value that does not fit fails; if not strict, it becomes null."""
        name = OF_PYTHON.get(to, to) if isinstance(to, type | str) else ""
        if name not in SCALARS:
            raise TopologyError(f"{self}.cast: the types are {', '.join(SCALARS)}; got {to!r}")
        return call("cast", self, options=(name,) if strict else (name, False))

    def alias(self, name: Text) -> Expression:
        """The same under another name, which `select` gives the field."""
        return call("alias", self, options=(_name(name, f"{self}.alias"),))

    def hash(self) -> Expression:
        """A number of 31 bits that is the same everywhere: murmur2, as Kafka's producers hash keys.

        Text is hashed as UTF-8, numbers as eight bytes, as Kafka's serializers write them.
        """
        return call("hash", self)

    def __getitem__(self, name: Text) -> Expression:
        """A field of a struct. A missing field is an error."""
        return call("field", self, options=(_name(name, f"{self}[…]"),))

    def get(self, name: Text) -> Expression:
        """A field of a struct, null where it is missing."""
        return call("get", self, options=(_name(name, f"{self}.get"),))

    @property
    def str(self) -> Strings:
        """Functions of text."""
        return Strings(self)

    @property
    def dt(self) -> Times:
        """Functions of time, in UTC: of epoch milliseconds and of datetimes."""
        return Times(self)

    @property
    def list(self) -> Lists:
        """Functions of lists."""
        return Lists(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Then(Expression):
    """`when(c).then(a)` so far: null where no condition holds."""

    def when(self, condition: object) -> When:
        """Another condition, for records for which none above holds."""
        return When(self._above(), of(condition).tree)

    def otherwise(self, result: object) -> Expression:
        """The value if no condition holds."""
        return Expression(Call("when", (*self._above(), of(result).tree)))

    def _above(self) -> tuple[Node, ...]:
        assert isinstance(self.tree, Call)
        return self.tree.arguments[:-1]


@dataclass(frozen=True, slots=True)
class When:
    """`when(c)`, which waits for its `then`."""

    above: tuple[Node, ...]
    condition: Node

    def then(self, result: object) -> Then:
        """The value if the condition holds."""
        return Then(Call("when", (*self.above, self.condition, of(result).tree, Literal(None))))


@dataclass(frozen=True, slots=True)
class Strings:
    """Functions of text. Positions count characters; patterns are plain text."""

    of: Expression

    def lower(self) -> Expression:
        """In small letters."""
        return call("str.lower", self.of)

    def upper(self) -> Expression:
        """In capitals."""
        return call("str.upper", self.of)

    def strip(self, characters: str | None = None) -> Expression:
        """Without these characters, or ASCII white space, at both ends."""
        return self._strip("strip", characters)

    def lstrip(self, characters: str | None = None) -> Expression:
        """As `strip`, at the start."""
        return self._strip("lstrip", characters)

    def rstrip(self, characters: str | None = None) -> Expression:
        """As `strip`, at the end."""
        return self._strip("rstrip", characters)

    def starts_with(self, prefix: str) -> Expression:
        """Whether it begins with a text."""
        return self._with("starts_with", prefix)

    def ends_with(self, suffix: str) -> Expression:
        """Whether it ends with a text."""
        return self._with("ends_with", suffix)

    def contains(self, text: str) -> Expression:
        """Whether it contains a text, taken literally."""
        return self._with("contains", text)

    def replace(self, old: str, new: str) -> Expression:
        """With the first `old` replaced by `new`, both taken literally."""
        return self._with("replace", _not_empty(old, f"{self.of}.str.replace"), new)

    def replace_all(self, old: str, new: str) -> Expression:
        """With every `old` replaced by `new`, both taken literally."""
        return self._with("replace_all", _not_empty(old, f"{self.of}.str.replace_all"), new)

    def slice(self, offset: int, length: int | None = None) -> Expression:
        """`length` characters from `offset`; a negative one counts from the end."""
        where = f"{self.of}.str.slice"
        if type(offset) is not int or abs(offset) > 1 << 30:
            raise TopologyError(f"{where}: expected an offset, got {offset!r}")
        if length is not None and (type(length) is not int or not 0 <= length <= 1 << 30):
            raise TopologyError(f"{where}: expected a length of 0 or more, got {length!r}")
        return call("str.slice", self.of, options=(offset,) if length is None else (offset, length))

    def len_chars(self) -> Expression:
        """The number of characters."""
        return call("str.len_chars", self.of)

    def len_bytes(self) -> Expression:
        """The number of bytes in UTF-8."""
        return call("str.len_bytes", self.of)

    def split(self, by: str) -> Expression:
        """The list of parts between the texts `by`."""
        return self._with("split", _not_empty(by, f"{self.of}.str.split"))

    def _strip(self, word: str, characters: str | None) -> Expression:
        return self._with(word) if characters is None else self._with(word, characters)

    def _with(self, word: str, *texts: str) -> Expression:
        for text in texts:
            if not isinstance(text, str):
                raise TopologyError(f"{self.of}.str.{word}: expected a text, got {show(text)}")
        return call(f"str.{word}", self.of, options=texts)


@dataclass(frozen=True, slots=True)
class Times:
    """Functions of time, in UTC."""

    of: Expression

    def truncate(self, every: Duration) -> Expression:
        """The start of the span of this length, counted from 1970, that the moment lies in."""
        every_ms = positive(every, f"{self.of}.dt.truncate")
        return call("dt.truncate", self.of, options=(every_ms,))

    def year(self) -> Expression:
        """The year, such as 2013."""
        return call("dt.year", self.of)

    def month(self) -> Expression:
        """The month, 1 to 12."""
        return call("dt.month", self.of)

    def day(self) -> Expression:
        """The day of the month, 1 to 31."""
        return call("dt.day", self.of)

    def weekday(self) -> Expression:
        """The day of the week: Monday is 1, Sunday 7."""
        return call("dt.weekday", self.of)

    def date(self) -> Expression:
        """The day, as a date."""
        return call("dt.date", self.of)

    def hour(self) -> Expression:
        """The hour, 0 to 23."""
        return call("dt.hour", self.of)

    def minute(self) -> Expression:
        """The minute, 0 to 59."""
        return call("dt.minute", self.of)

    def second(self) -> Expression:
        """The second, 0 to 59."""
        return call("dt.second", self.of)

    def millisecond(self) -> Expression:
        """The millisecond, 0 to 999."""
        return call("dt.millisecond", self.of)


@dataclass(frozen=True, slots=True)
class Lists:
    """Functions of lists."""

    of: Expression

    def len(self) -> Expression:
        """The number of elements."""
        return call("list.len", self.of)

    def get(self, index: int) -> Expression:
        """The element at `index`, a negative one counts from the end; null where there is none."""
        if type(index) is not int:
            raise TopologyError(f"{self.of}.list.get: expected an index, got {index!r}")
        return call("list.get", self.of, options=(index,))

    def contains(self, item: object) -> Expression:
        """Whether a constant is among the elements; null if not, and one of them is null."""
        where = f"{self.of}.list.contains"
        constant = _constant(item, where)
        if constant is None or isinstance(constant, tuple):
            raise TopologyError(f"{where}: expected a constant, got {item!r}")
        return call("list.contains", self.of, options=(constant,))


# Making them


def call(function: str, *arguments: object, options: tuple[Any, ...] = ()) -> Expression:
    """A call; arguments that are no expressions are constants."""
    return Expression(Call(function, tuple(of(each).tree for each in arguments), options))


def _equality(function: str, left: Expression, right: object) -> Expression:
    if right is None:
        word = "is_null" if function == "eq" else "is_not_null"
        raise TopologyError(f"{left}: null equals nothing, not even null; write .{word}()")
    return call(function, left, right)


def _chained(function: str, left: Expression, right: object) -> Expression:
    """`a & b & c` as one call of three: many conditions are a long tree, not a deep one."""
    tree, last = left.tree, of(right).tree
    if isinstance(tree, Call) and tree.function == function:
        return Expression(Call(function, (*tree.arguments, last)))
    return Expression(Call(function, (tree, last)))


def of(given: object) -> Expression:
    """`given`, or the constant that it is."""
    return given if isinstance(given, Expression) else lit(given)


def lit(value: object) -> Expression:
    """A constant."""
    return Expression(Literal(_constant(value, "lit")))


def value() -> Expression:
    """The record's value as a whole."""
    return Expression(VALUE)


def key() -> Expression:
    """The record's key."""
    return Expression(KEY)


def timestamp() -> Expression:
    """The record's timestamp, in epoch milliseconds."""
    return Expression(TIMESTAMP)


def col(name: str) -> Expression:
    """A field of the record's value. A missing field is an error; of a null value it is null."""
    return value()[name]


def when(condition: object) -> When:
    """`when(c).then(a).otherwise(b)`, or several: the first condition that holds counts."""
    return When((), of(condition).tree)


def coalesce(*expressions: object) -> Expression:
    """The first of them that is not null."""
    if not expressions:
        raise TopologyError("coalesce: expected at least one expression")
    return call("coalesce", *map(_column, expressions))


def struct(*named: str | Expression, **expressions: object) -> Expression:
    """A value with fields: named expressions, or fields by their names."""
    fields = fields_of("struct", named, expressions)
    return call("struct", *fields.values(), options=tuple(fields))


def fields_of(
    operator: str, named: Iterable[object], expressions: dict[str, Any]
) -> dict[str, Expression]:
    """Expressions by the names of the fields that are made of them."""
    fields: dict[str, Expression] = {}
    for given in named:
        expression = _column(given) if isinstance(given, str | Expression) else None
        name = None if expression is None else name_of(expression.tree)
        if expression is None or name is None:
            raise TopologyError(f"{operator}: {given} has no name; write name={given}")
        if name in fields:
            raise TopologyError(f"{operator}: there are two fields {name!r}")
        fields[name] = expression
    for name, given in expressions.items():
        if name in fields:
            raise TopologyError(f"{operator}: there are two fields {name!r}")
        fields[name] = of(given)
    if not fields:
        raise TopologyError(f"{operator}: expected at least one field")
    return fields


def _column(given: object) -> Expression:
    return col(given) if isinstance(given, str) else of(given)


def _name(name: object, where: str) -> str:
    if isinstance(name, str):
        return name
    hint = "; .list.get(i) takes an element of a list" if isinstance(name, int) else ""
    raise TopologyError(f"{where}: expected the name of a field, got {name!r}{hint}")


def _not_empty(text: str, where: str) -> str:
    if text == "":
        raise TopologyError(f"{where}: the text to look for is empty")
    return text


def _constant(value: object, where: str) -> Any:
    """A value as trees hold it: a list as a tuple, a moment in UTC."""
    try:
        type_of(value)
    except Mismatch as error:
        raise TopologyError(f"{where}: {error}") from None
    if isinstance(value, list | tuple):
        return tuple(_constant(each, where) for each in value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value
