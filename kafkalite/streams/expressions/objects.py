"""An expression over Python objects: a loop, made once, that goes through whole columns.    [P]

    col("amount") * 1.19 > 28          for value in column:
                                           t1 = None if value is None else value["amount"]
                                           if type(t1) is float or type(t1) is int:
                                               t2 = t1 * 1.19
                                           …
                                           append(t3)

The loop treats the common types of Python itself and leaves all others, and errors, to values.py. A
part that stands twice is computed once. Only what is needed is computed: a branch of `when`, what
`coalesce` falls back on, the right of `&` and `|` where the left does not decide.

Owns   the source of the loop; `append` tells by the length of the results which record failed.
Fails  with TopologyError for branches nested too deeply. The loop fails with the errors of
       values.py, the part of the expression named first, and KeyError for a missing field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, Final

from kafkalite.core.types import Windowed
from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.catalog import CASTS, INFIX
from kafkalite.streams.expressions.check import UNKNOWN, Shape, Types, checked, may_be_null
from kafkalite.streams.expressions.tree import (
    KEY,
    TIMESTAMP,
    Call,
    Input,
    Literal,
    Node,
    inputs_of,
)
from kafkalite.streams.expressions.types import BOOL, INT64_MAX, INT64_MIN, SCALARS, Type
from kafkalite.streams.expressions.values import FUNCTIONS, boolean, caster, fit

COMPILED_MAX: Final = 1_000  # loops that are kept, as every task of a plan asks for them
NESTED_MAX: Final = 90  # of Python's parser, which takes 100 levels
EXACT_MAX: Final = 1 << 53  # integers up to it are floats without loss
NAMED: Final = (
    TypeError,
    AttributeError,
    OverflowError,
    ValueError,
)  # errors that get the expression's text
ALIKE: Final = frozenset({int, float, str, bytes, bool})  # compare with their own kind as in Python
FITS: Final = f"if not {INT64_MIN} <= {{0}} <= {INT64_MAX}:"
FAST: Final[Mapping[str, tuple[str, str]]] = {  # a type for which Python's own words do
    "str.lower": ("str", "{x}.lower()"),
    "str.upper": ("str", "{x}.upper()"),
    "str.starts_with": ("str", "{x}.startswith({0})"),
    "str.ends_with": ("str", "{x}.endswith({0})"),
    "str.contains": ("str", "{0} in {x}"),
    "str.replace": ("str", "{x}.replace({0}, {1}, 1)"),
    "str.replace_all": ("str", "{x}.replace({0}, {1})"),
    "str.len_chars": ("str", "len({x})"),
    "str.split": ("str", "{x}.split({0})"),
    "dt.hour": ("int", "{x} // 3600000 % 24"),
    "dt.minute": ("int", "{x} // 60000 % 60"),
    "dt.second": ("int", "{x} // 1000 % 60"),
    "dt.weekday": ("int", "({x} // 86400000 + 3) % 7 + 1"),
    "list.len": ("list", "len({x})"),
    "abs": ("float", "abs({x})"),
    "neg": ("float", "-{x}"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """An expression as a loop. `inputs` are the columns that it takes, in this order."""

    text: str
    inputs: tuple[Input, ...]
    type: Type
    source: str
    _run: Callable[..., None]
    _texts: Mapping[int, str]  # what each line of the source computes

    def extend(self, results: list[Any], *columns: Iterator[Any]) -> None:
        """Appends a result for each record that the columns have left.

        When it raises, the columns stand behind the record that failed.
        """
        try:
            self._run(results, *columns)
        except NAMED as error:
            kind = next(each for each in NAMED if isinstance(error, each))
            raise kind(f"{self._text_of(error)}: {error}") from error

    def column(self, *columns: Iterable[Any]) -> list[Any]:
        """The results for columns."""
        results: list[Any] = []
        self.extend(results, *map(iter, columns))
        return results

    def one(self, *row: Any) -> Any:
        """The result for one record."""
        (result,) = self.column(*((each,) for each in row))
        return result

    def _text_of(self, error: BaseException) -> str:
        """The part of the expression that failed: the loop's line tells."""
        code: CodeType = self._run.__code__
        step, line = error.__traceback__, 0
        while step is not None:
            if step.tb_frame.f_code is code:
                line = step.tb_lineno
            step = step.tb_next
        return self._texts[line]


@lru_cache(COMPILED_MAX)
def compile_objects(tree: Node, shape: Shape = UNKNOWN) -> Compiled:
    """The loop of an expression. TopologyError where its types do not fit."""
    lowered, type_ = checked(tree, shape)
    inputs = inputs_of(lowered) or (TIMESTAMP,)  # of a constant: a column that is always there
    writer = _Writer(Types(shape))
    names = [each.what for each in inputs]
    columns = [f"{name}_column" for name in names]
    rows = columns[0] if len(columns) == 1 else f"zip({', '.join(columns)})"
    writer.line(f"def run(results, {', '.join(columns)}):", tree)
    with writer.indented():
        writer.line("append = results.append", tree)
        with writer.block(f"for {', '.join(names)} in {rows}:", tree):
            writer.line(f"append({writer.name(lowered)})", tree)
    source = "\n".join(writer.lines)
    exec(compile(source, f"<{tree}>", "exec"), writer.constants)
    texts = {number: str(node) for number, node in enumerate(writer.nodes, 1)}
    return Compiled(str(tree), inputs, type_, source, writer.constants["run"], texts)


def _field_of_key(key: Any, name: str) -> Any:
    """A field of a key, which may be a window's."""
    if isinstance(key, Windowed) and name in key._fields:
        return getattr(key, name)
    return key[name]


def _got_of_key(key: Any, name: str) -> Any:
    """The same, None where the field is missing."""
    return getattr(key, name, None) if isinstance(key, Windowed) else key.get(name)


def _without(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    kept = dict(value)
    for name in names:
        del kept[name]
    return kept


def _renamed(value: Mapping[str, Any], *pairs: tuple[str, str]) -> dict[str, Any]:
    names = dict(pairs)
    for name in names:
        value[name]
    made = {names.get(name, name): each for name, each in value.items()}
    if len(made) != len(value):
        raise ValueError(f"two fields of the same name in {list(value)}")
    return made


STRUCTS: Final[Mapping[str, Callable[..., Any]]] = {
    "drop_fields": _without,
    "rename_fields": _renamed,
}


@dataclass(slots=True)
class _Writer:
    """Writes the loop's body. A node's value stands in a name of its own, or is a constant."""

    types: Types
    lines: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)  # what each line is there for
    constants: dict[str, Any] = field(default_factory=dict)
    scopes: list[dict[Node, str]] = field(default_factory=lambda: [{}])
    level: int = 0
    count: int = 0

    # Lines

    def line(self, text: str, node: Node) -> None:
        """A line of the source, which computes a part of `node`."""
        self.lines.append(" " * self.level + text)
        self.nodes.append(node)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Lines written in this block may not run: names set in them are unknown afterwards."""
        self.level += 1
        if self.level > NESTED_MAX:
            raise TopologyError(
                f"an expression has branches in branches, more than {NESTED_MAX} deep; "
                "a function in Python has no limits"
            )
        self.scopes.append({})
        yield
        self.scopes.pop()
        self.level -= 1

    @contextmanager
    def block(self, head: str, node: Node) -> Iterator[None]:
        """A head, with the lines written in this block below it."""
        self.line(head, node)
        with self.indented():
            yield

    def fresh(self) -> str:
        """A new name."""
        self.count += 1
        return f"t{self.count}"

    def constant(self, value: Any) -> str:
        """A constant: as it is written, or under a name."""
        is_plain = value is None or type(value) in (int, str, bool, bytes)
        if is_plain or (type(value) is float and math.isfinite(value)):
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    # Nodes

    def name(self, node: Node) -> str:
        """Where the value of a node stands."""
        if isinstance(node, Input):
            return node.what
        if isinstance(node, Literal):
            return self.constant(_listed(node.value))
        for scope in self.scopes:
            if node in scope:
                return scope[node]
        write = WRITERS.get(node.function, _Writer.strict)
        name = self.scopes[-1][node] = write(self, node)
        return name

    def into(self, target: str, node: Node) -> None:
        """A line that puts a node's value under another name."""
        self.line(f"{target} = {self.name(node)}", node)

    def strict(self, node: Call) -> str:
        """A function that is null where an argument is."""
        names = [self.name(part) for part in node.arguments]
        result = self.fresh()
        options = [self.constant(option) for option in node.options]
        if node.function in FAST:
            kind, text = FAST[node.function]
            fast = f"{result} = {text.format(*options, x=names[0])}"
            self.line(f"if type({names[0]}) is {kind}: {fast}", node)
            self.rest(node, names, result, options)
        else:
            self.line(f"{result} = {self.guarded(node, names, options)}", node)
        return result

    def rest(self, node: Call, names: Sequence[str], result: str, options: Sequence[str]) -> None:
        """What fast ways leave: nulls, other types, errors."""
        self.line(f"else: {result} = {self.guarded(node, names, options)}", node)

    def guarded(self, node: Call, names: Sequence[str], options: Sequence[str]) -> str:
        """The call of a function where no argument is null."""
        function = self.constant(_function(node))
        called = f"{function}({', '.join([*names, *options])})"
        nulls = [
            f"{name} is None"
            for name, part in zip(names, node.arguments, strict=True)
            if may_be_null(part)
        ]
        return f"None if {' or '.join(nulls)} else {called}" if nulls else called

    def cast(self, node: Call) -> str:
        """A cast has its options built in."""
        (name,) = map(self.name, node.arguments)
        result = self.fresh()
        self.line(f"{result} = {self.guarded(node, [name], [])}", node)
        return result

    def field(self, node: Call) -> str:
        """A field of the value, of a key, of a struct."""
        (of,), (name,) = node.arguments, node.options
        above, result, spelled = self.name(of), self.fresh(), self.constant(name)
        taken = f"{above}[{spelled}]" if node.function == "field" else f"{above}.get({spelled})"
        if of == KEY:
            function = self.constant(_field_of_key if node.function == "field" else _got_of_key)
            taken = f"{function}({above}, {spelled})"
        self.line(f"{result} = None if {above} is None else {taken}", node)
        return result

    def arithmetic(self, node: Call) -> str:
        """`+ - *`: floats and integers at once, the others by values.py."""
        sign = INFIX[node.function]
        if any(
            part.value is not None and type(part.value) not in (int, float)
            for part in node.arguments
            if isinstance(part, Literal)
        ):
            return self.strict(node)
        names = [self.name(part) for part in node.arguments]
        result = self.fresh()
        computed = f"{result} = {names[0]} {sign} {names[1]}"
        literals = [_literal(part) for part in node.arguments]
        variables = [n for n, each in zip(names, literals, strict=True) if each is None]
        floats = " and ".join(f"type({name}) is float" for name in variables) or "False"
        if float in literals:
            floats = f"{floats} or {floats.replace('float', 'int')}"
        self.line(f"if {floats}: {computed}", node)
        if float not in literals:
            integers = " and ".join(f"type({name}) is int" for name in variables) or "False"
            self.line(f"elif {integers}:", node)
            with self.indented():
                self.line(computed, node)
                self.line(f"{FITS.format(result)} {self.constant(fit)}({result})", node)
        self.rest(node, names, result, [])
        return result

    def division(self, node: Call) -> str:
        """`/ // %` by a constant number; the others by values.py."""
        left, right = node.arguments
        divisor: Any = right.value if isinstance(right, Literal) else None
        is_float = node.function == "truediv"
        kinds_of_divisor = (int, float) if is_float else (int,)
        if type(divisor) not in kinds_of_divisor or not divisor > 0:
            return self.strict(node)
        names, result = [self.name(left), self.name(right)], self.fresh()
        by = self.constant(float(divisor)) if is_float else names[1]
        kinds = f"type({names[0]}) is int" + f" or type({names[0]}) is float" * is_float
        self.line(f"if {kinds}: {result} = {names[0]} {INFIX[node.function]} {by}", node)
        self.rest(node, names, result, [])
        return result

    def comparison(self, node: Call) -> str:
        """Values of one type at once, the others by values.py."""
        names = [self.name(part) for part in node.arguments]
        result = self.fresh()
        literals = [_literal(part) for part in node.arguments]
        constants = [part.value for part in node.arguments if isinstance(part, Literal)]
        variables = [n for n, each in zip(names, literals, strict=True) if each is None]
        kind = next((each for each in literals if each is not None), None)
        if len(variables) == 2:
            a, b = names
            kinds = f"type({a}) is type({b}) and type({a}) in {self.constant(ALIKE)}"
        elif kind is int and variables and abs(constants[0]) <= EXACT_MAX:
            kinds = f"type({variables[0]}) is int or type({variables[0]}) is float"
        elif variables and kind in ALIKE:
            kinds = f"type({variables[0]}) is {kind.__name__}"
        else:
            return self.strict(node)
        sign = f" {INFIX[node.function]} "
        self.line(f"if {kinds}: {result} = {sign.join(names)}", node)
        if kind is float:
            (variable,) = variables
            floats = [f"({name} + 0.0)" if name == variable else name for name in names]
            self.line(f"elif type({variable}) is int: {result} = {sign.join(floats)}", node)
        self.rest(node, names, result, [])
        return result

    def is_in(self, node: Call) -> str:
        """By a set, for values of the constants' own type."""
        (name,), (values,) = map(self.name, node.arguments), node.options
        kinds = {type(value) for value in values}
        result, options = self.fresh(), [self.constant(values)]
        if kinds in ({int}, {str}, {bytes}):
            (kind,) = kinds
            found = f"{result} = {name} in {self.constant(frozenset(values))}"
            self.line(f"if type({name}) is {kind.__name__}: {found}", node)
            self.rest(node, [name], result, options)
        else:
            self.line(f"{result} = {self.guarded(node, [name], options)}", node)
        return result

    # Logic and nulls

    def bool_name(self, part: Node, node: Call) -> str:
        """The name of a part that is a bool, or null."""
        name = self.name(part)
        if self.types.of(part) != BOOL:
            checked = f"{name} is not None and type({name}) is not bool"
            self.line(f"if {checked}: {self.constant(boolean)}({name})", node)
        return name

    def logic(self, node: Call) -> str:
        """`& |`: each where those before it do not decide, then by Kleene's rules."""
        decides, other = ("False", "True") if node.function == "and" else ("True", "False")
        result = self.fresh()
        self.line(f"{result} = {self.bool_name(node.arguments[0], node)}", node)
        for part in node.arguments[1:]:
            with self.block(f"if {result} is not {decides}:", node):
                right = self.bool_name(part, node)
                null = f"{decides} if {right} is {decides} else None"
                self.line(f"{result} = {right} if {result} is {other} else {null}", node)
        return result

    def xor(self, node: Call) -> str:
        """Null where one of them is."""
        left, right = (self.bool_name(part, node) for part in node.arguments)
        result = self.fresh()
        null = f"None if {left} is None or {right} is None"
        self.line(f"{result} = {null} else {left} is not {right}", node)
        return result

    def negation(self, node: Call) -> str:
        """Null stays null."""
        name, result = self.bool_name(node.arguments[0], node), self.fresh()
        self.line(f"{result} = None if {name} is None else not {name}", node)
        return result

    def boolean(self, node: Call) -> str:
        """A predicate's verdict; `options` may say what null counts as."""
        name = self.bool_name(node.arguments[0], node)
        if not node.options:
            return name
        result = self.fresh()
        self.line(f"{result} = {node.options[0]!r} if {name} is None else {name}", node)
        return result

    def is_null(self, node: Call) -> str:
        """Never null."""
        if not may_be_null(node.arguments[0]):
            return "False"
        name, result = self.name(node.arguments[0]), self.fresh()
        self.line(f"{result} = {name} is None", node)
        return result

    def coalesce(self, node: Call) -> str:
        """Each is computed where those before it are null."""
        result = self.fresh()
        self.into(result, node.arguments[0])
        for part in node.arguments[1:]:
            with self.block(f"if {result} is None:", node):
                self.into(result, part)
        return result

    def when(self, node: Call) -> str:
        """The first branch whose condition holds, and no other, is computed."""
        result = self.fresh()
        self._branch(node, node.arguments, result)
        return result

    def _branch(self, node: Call, parts: Sequence[Node], result: str) -> None:
        if len(parts) == 1:
            self.into(result, parts[0])
            return
        condition = self.bool_name(parts[0], node)
        with self.block(f"if {condition}:", node):
            self.into(result, parts[1])
        with self.block("else:", node):
            self._branch(node, parts[2:], result)

    # Values with fields

    def struct(self, node: Call) -> str:
        """A new dict."""
        result = self.fresh()
        self.line(f"{result} = {{{self._entries(node, node.arguments)}}}", node)
        return result

    def select(self, node: Call) -> str:
        """A new dict, but null where the value is null."""
        whole, parts = self.name(node.arguments[0]), node.arguments[1:]
        entries, result = self._entries(node, parts), self.fresh()
        self.line(f"{result} = None if {whole} is None else {{{entries}}}", node)
        return result

    def with_fields(self, node: Call) -> str:
        """The dict with some entries changed; null where the value is null."""
        whole, parts = self.name(node.arguments[0]), node.arguments[1:]
        entries, result = self._entries(node, parts), self.fresh()
        self.line(f"{result} = None if {whole} is None else {{**{whole}, {entries}}}", node)
        return result

    def _entries(self, node: Call, parts: Sequence[Node]) -> str:
        pairs = zip(node.options, map(self.name, parts), strict=True)
        return ", ".join(f"{self.constant(name)}: {value}" for name, value in pairs)


def _function(node: Call) -> Callable[..., Any]:
    if node.function == "cast":
        target = SCALARS[node.options[0]]
        return caster(target, CASTS[target], strict=len(node.options) == 1)
    return STRUCTS.get(node.function) or FUNCTIONS[node.function]


def _literal(node: Node) -> type | None:
    """The type of a constant; None for what is none, and for null."""
    return type(node.value) if isinstance(node, Literal) and node.value is not None else None


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, tuple) else value


WRITERS: Final[Mapping[str, Callable[[_Writer, Call], str]]] = {
    **dict.fromkeys(("add", "sub", "mul"), _Writer.arithmetic),
    **dict.fromkeys(("truediv", "floordiv", "mod"), _Writer.division),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _Writer.comparison),
    **dict.fromkeys(("and", "or"), _Writer.logic),
    "is_in": _Writer.is_in,
    "xor": _Writer.xor,
    "not": _Writer.negation,
    "boolean": _Writer.boolean,
    "is_null": _Writer.is_null,
    "coalesce": _Writer.coalesce,
    "when": _Writer.when,
    "cast": _Writer.cast,
    "field": _Writer.field,
    "get": _Writer.field,
    "struct": _Writer.struct,
    "select": _Writer.select,
    "with_fields": _Writer.with_fields,
}
