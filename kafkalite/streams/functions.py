"""Functions as a plan holds them: callables of the user's, and expressions.               [P]

A callable takes the value; `with_key=True` gives it key and value, `with_record=True` the whole
record. A field name stands for a function that takes that field out of the value. An expression
(expressions/) names what it reads.

Owns   what stands wherever a function of the value stands.
Fails  with TopologyError where the plan is built: no function, an async one, one that takes
       another number of arguments than it will be called with; an expression whose types or fields
       do not fit what is known of the records.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any, Final, TypeAlias

from kafkalite.core.generics import K, R, T, V
from kafkalite.core.nearest import did_you_mean
from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.check import UNKNOWN, Shape, checked
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.expressions.objects import Compiled, compile_objects
from kafkalite.streams.expressions.tree import (
    INPUTS,
    KEY,
    SIDES,
    TIMESTAMP,
    VALUE,
    Call,
    Input,
    Node,
    Path,
    inputs_of,
    nodes_of,
    paths_of,
)
from kafkalite.streams.expressions.types import ANY, INT64, STRING, StructType, Type, is_unknown
from kafkalite.streams.naming import check_name
from kafkalite.streams.record import Record


class Passes(Enum):
    """The arguments of a callable."""

    VALUE = "the value"
    KEY_AND_VALUE = "key and value"
    RECORD = "the record"
    SIDES = "the left and the right value"
    KEY_AND_SIDES = "the key, the left and the right value"
    VALUE_AND_MATCHED = "the value and what matched so far"


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A callable of the user's; `field` when a field name stood in its place."""

    call: Callable[..., Any]
    passes: Passes = Passes.VALUE
    field: str | None = None

    @property
    def takes_key(self) -> bool:
        """Whether the key has to be decoded for it."""
        return self.passes in (Passes.KEY_AND_VALUE, Passes.RECORD, Passes.KEY_AND_SIDES)

    @property
    def takes_value(self) -> bool:
        """Whether the value has to be decoded for it."""
        return True

    @property
    def paths(self) -> frozenset[Path]:
        """The fields of the value that it reads; the empty path is the whole."""
        return frozenset({() if self.field is None else (self.field,)})

    @property
    def fields(self) -> frozenset[str]:
        """The names of fields by which it takes values apart."""
        return frozenset() if self.field is None else frozenset({self.field})

    @property
    def known(self) -> str | None:
        """What it does, where data tells."""
        return self.field

    def __str__(self) -> str:
        if self.field is not None:
            return repr(self.field)
        return getattr(self.call, "__name__", type(self.call).__name__)


@dataclass(frozen=True, slots=True)
class ExpressionFunction:
    """An expression. `shape` describes the records as far as they are known."""

    tree: Node
    shape: Shape = UNKNOWN

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The columns that it is given; a constant is given the timestamps, which are there."""
        return inputs_of(self.tree) or (TIMESTAMP,)

    @property
    def takes_key(self) -> bool:
        """Whether the key has to be decoded for it."""
        return KEY in self.inputs

    @property
    def takes_value(self) -> bool:
        """Whether the value has to be decoded for it."""
        return VALUE in self.inputs

    @property
    def paths(self) -> frozenset[Path]:
        """The fields of the value that it reads; the empty path is the whole."""
        return paths_of(self.tree)

    @property
    def field(self) -> str | None:
        """The field, where the expression is nothing but one."""
        (path,) = self.paths if len(self.paths) == 1 else ((),)
        is_plain = isinstance(self.tree, Call) and self.tree.arguments == (VALUE,)
        return path[0] if is_plain and len(path) == 1 else None

    @property
    def fields(self) -> frozenset[str]:
        """The names of fields by which it takes values apart."""
        calls = [node for node in nodes_of(self.tree) if isinstance(node, Call)]
        names = [name for node in calls if node.function in TAKE_APART for name in node.options]
        return frozenset(name[0] if isinstance(name, tuple) else name for name in names)

    @property
    def known(self) -> str | None:
        """What it does."""
        return self.field or str(self.tree)

    @property
    def type(self) -> Type:
        """The type of its results."""
        return checked(self.tree, self.shape)[1]

    def __str__(self) -> str:
        return str(self.tree) if self.field is None else repr(self.field)


Function = CallableFunction | ExpressionFunction
UserFunction = Callable[..., Any] | str | Expression  # what a user may give for one
# The same for a type checker: functions of a value, or with_key=True, or with_record=True.
OfValue: TypeAlias = Callable[[V], R] | str | Expression
OfPair: TypeAlias = Callable[[K, V], R]
OfRecord: TypeAlias = Callable[[Record[K, V]], R]
OfSides: TypeAlias = Callable[[V, T], R] | Expression  # of a join: left and right value
OfKeyAndSides: TypeAlias = Callable[[K, V, T], R]
TAKE_APART: Final = frozenset({"field", "drop_fields", "rename_fields"})
NO_EXPRESSION: Final[Mapping[str, str]] = {
    **dict.fromkeys(("peek", "for_each"), "it has no effect, which is what this operator is for"),
    **dict.fromkeys(
        ("map_pairs", "flat_map_pairs"), "it gives one value, no pair; use .select_key and .map"
    ),
}


def function_of(
    given: object,
    operator: str,
    *,
    with_key: bool = False,
    with_record: bool = False,
    shape: Shape = UNKNOWN,
    reads: tuple[Input, ...] = INPUTS,
    gives: Type = ANY,
) -> Function:
    """`given` as plan data. `operator` is named in errors.

    An expression may read nothing but `reads`, and gives values of the type `gives`.
    """
    if with_key and with_record:
        raise TopologyError(f"{operator}: with_key and with_record exclude each other")
    if isinstance(given, Expression):
        if with_key or with_record:
            raise TopologyError(f"{operator}: an expression names key() and timestamp() itself")
        return expression_function(given, operator, shape, reads, gives)
    if isinstance(given, str):
        if with_key or with_record:
            raise TopologyError(f"{operator}: field {given!r} is taken out of the value alone")
        _check_field(given, operator, shape)
        return CallableFunction(itemgetter(given), field=given)
    if not callable(given):
        kind = type(given).__name__
        raise TopologyError(
            f"{operator}: expected a function, a field name or an expression, got {kind}"
        )
    passes = Passes.KEY_AND_VALUE if with_key else Passes.RECORD if with_record else Passes.VALUE
    hint = "" if with_key or with_record else "; with_key=True passes key and value"
    check_arguments(given, 2 if with_key else 1, operator, f"{passes.value}{hint}")
    return CallableFunction(given, passes)


def join_function(
    given: object, operator: str, *, with_key: bool = False, shape: Shape
) -> Function:
    """The function of a join as plan data: of the left and the right value.

    It may be an expression, of `left()`, `right()` and `key()`.
    """
    if isinstance(given, Expression):
        if with_key:
            raise TopologyError(f"{operator}: an expression names key() itself")
        return expression_function(given, operator, shape, SIDES)
    if isinstance(given, str):
        raise TopologyError(
            f"{operator}: expected a function of the left and the right value, or an expression: "
            f"left({given!r}) is a field of the left one"
        )
    passes = Passes.KEY_AND_SIDES if with_key else Passes.SIDES
    hint = "" if with_key else "; with_key=True passes the key as well"
    check_arguments(given, 3 if with_key else 2, operator, f"{passes.value}{hint}")
    assert callable(given)
    return CallableFunction(given, passes)


def expression_function(
    given: Expression,
    operator: str,
    shape: Shape = UNKNOWN,
    reads: tuple[Input, ...] = INPUTS,
    gives: Type = ANY,
) -> ExpressionFunction:
    """An expression as plan data, once its types and inputs are known to fit."""
    for each in inputs_of(given.tree):
        if each not in reads:
            there = " and ".join(map(str, reads))
            raise TopologyError(f"{operator}: {given}: there is no {each} here, but {there}")
    try:
        type_ = compile_objects(given.tree, shape).type
    except TopologyError as error:
        raise TopologyError(f"{operator}: {error}") from None
    if gives != ANY and not is_unknown(type_) and type_ != gives:
        raise TopologyError(f"{operator}: {given}: expected {gives}, got {type_}")
    return ExpressionFunction(given.tree, shape)


def fitted(
    function: Function,
    operator: str,
    shape: Shape,
    reads: tuple[Input, ...] = INPUTS,
) -> Function:
    """A function that was made before anything was known of the records."""
    if isinstance(function, ExpressionFunction):
        return expression_function(Expression(function.tree), operator, shape, reads)
    if function.field is not None:
        _check_field(function.field, operator, shape)
    return function


def predicate_of(function: Function, operator: str, *, null_is: bool) -> Function:
    """An expression as a predicate: a bool for each record, `null_is` where it is null."""
    if isinstance(function, CallableFunction):
        return function
    tree = Call("boolean", (function.tree,), (null_is,))
    return expression_function(Expression(tree), operator, function.shape)


def refuse_expression(given: object, word: str, operator: str) -> None:
    """TopologyError for an expression in an operator that can do nothing with one."""
    if isinstance(given, Expression) and word in NO_EXPRESSION:
        raise TopologyError(f"{operator}: {given} is an expression: {NO_EXPRESSION[word]}")


def _check_field(name: str, operator: str, shape: Shape) -> None:
    if isinstance(shape.value, StructType):
        known = dict(shape.value.fields)
        if name not in known:
            hint = did_you_mean(name, known) or f"; it has {', '.join(known) or 'no fields'}"
            raise TopologyError(f"{operator}: the value has no field {name!r}{hint}")


@dataclass(frozen=True, slots=True)
class TopicOf:
    """An expression as a function of a record that names its topic."""

    compiled: Compiled

    def __call__(self, record: Record) -> Any:
        """The topic of a record."""
        return self.compiled.one(*(getattr(record, each.what) for each in self.compiled.inputs))

    def __str__(self) -> str:
        return self.compiled.text


@dataclass(frozen=True, slots=True)
class PartitionOf:
    """An expression as a partitioner: its number modulo the number of partitions."""

    compiled: Compiled

    def __call__(self, key: Any, value: Any, partitions: int) -> int:
        """The partition of a record."""
        row = {KEY: key, VALUE: value, TIMESTAMP: None}  # constants are given timestamps
        number = self.compiled.one(*(row[each] for each in self.compiled.inputs))
        if type(number) is not int:
            raise TypeError(f"{self}: expected an int64, got {number!r}")
        return number % partitions

    def __str__(self) -> str:
        return self.compiled.text


def topic_of(given: object, operator: str, shape: Shape) -> str | Callable[[Any], str]:
    """The target of records: a topic, or a function of the record that names it."""
    if isinstance(given, Expression):
        function = expression_function(given, operator, shape, gives=STRING)
        return TopicOf(compile_objects(function.tree, function.shape))
    if callable(given):
        check_arguments(given, 1, operator, "the record")
        return given
    return check_name(given, f"{operator}: topic")


def partitioner_of(
    given: Callable[[Any, Any, int], int] | Expression | None, operator: str, shape: Shape
) -> Callable[[Any, Any, int], int] | None:
    """A partitioner: a function of key, value and number of partitions."""
    if isinstance(given, Expression):
        function = expression_function(given, operator, shape, (VALUE, KEY), INT64)
        return PartitionOf(compile_objects(function.tree, function.shape))
    if given is not None:
        check_arguments(given, 3, operator, "key, value and number of partitions")
    return given


def _is_async(given: object) -> bool:
    """Whether what `given` returns has to be awaited, or gone through with `async for`."""
    return any(
        inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        for function in (given, getattr(given, "__call__", None))  # noqa: B004 - an object's own
    )


def check_async(given: object, operator: str) -> Callable[..., Any]:
    """TopologyError unless `given` is an async function, or a lambda: that may call one."""
    if isinstance(given, Expression | str) or not callable(given):
        kind = "an expression" if isinstance(given, Expression) else type(given).__name__
        raise TopologyError(f"{operator}: expected an async function, got {kind}")
    name = getattr(given, "__name__", repr(given))
    if inspect.isasyncgenfunction(given):
        raise TopologyError(f"{operator}: {name} yields several values; return one, a list perhaps")
    if not _is_async(given) and name != "<lambda>":
        raise TopologyError(
            f"{operator}: {name} is not async; .map calls plain functions, and an async def can "
            "await asyncio.to_thread(…) for one that blocks"
        )
    return given


def check_arguments(
    given: object, count: int, operator: str, what: str, *, is_awaited: bool = False
) -> None:
    """TopologyError unless `given` can be called with `count` positional arguments.

    An async function cannot, unless it `is_awaited`: what it returns would count as true.
    """
    if not callable(given):
        raise TopologyError(f"{operator}: expected a function, got {type(given).__name__}")
    if not is_awaited and _is_async(given):
        name = getattr(given, "__name__", repr(given))
        raise TopologyError(
            f"{operator}: {name} is async; functions are called, not awaited; .map_async awaits"
        )
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # some builtins do not tell
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        name = getattr(given, "__name__", repr(given))
        raise TopologyError(
            f"{operator}: {name}{signature} cannot be called with {what}: {error}"
        ) from None
