"""What an expression says, as data: a tree that evaluators compile.                         [P]

A tree has three kinds of node: an `Input` (the record's value, key or timestamp, or a value of a
join), a `Literal`, and a `Call` of a function of catalog.py. Equal trees say the same; 1, 1.0
and True are three literals.

Owns   the nodes, their text as a user would write it, the fields that they read.
Fails  with TopologyError for a tree that evaluators could not go down.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalite.errors import TopologyError
from kafkalite.streams.durations import spell
from kafkalite.streams.expressions.catalog import (
    CALLED,
    FIELDED,
    INFIX,
    KEYWORDS,
    PRECEDENCE,
    PREFIX,
)

Path = tuple[str, ...]
DEPTH_MAX: Final = 100  # evaluators go down a tree by recursion, some frames a node
FIELDS: Final = frozenset({"field", "get"})  # a missing field is an error, or null
SIZE_MAX: Final = 5_000  # nodes, shared ones counted each time


@dataclass(frozen=True, slots=True, repr=False)
class Input:
    """The record's `value`, `key` or `timestamp`; the `left` and the `right` value of a join."""

    what: str

    def __str__(self) -> str:
        return f"{self.what}()"


@dataclass(frozen=True, slots=True, repr=False)
class Literal:
    """A constant: None, a bool, number, text, bytes, moment, or a tuple of them."""

    value: Any = field(compare=False)
    text: str = field(init=False)  # by which it is compared

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", repr(self.value))

    def __str__(self) -> str:
        return f"lit({spell_constant(self.value)})"


@dataclass(frozen=True, slots=True, repr=False)
class Call:
    """A function of other trees; `options` are constants."""

    function: str
    arguments: tuple[Node, ...]
    options: tuple[Any, ...] = field(default=(), compare=False)
    text: str = field(init=False)  # of the options, by which they are compared
    depth: int = field(init=False, compare=False)
    size: int = field(init=False, compare=False)
    written: str = field(init=False, compare=False)  # as a user would write it

    def __post_init__(self) -> None:
        depth = 1 + max((depth_of(part) for part in self.arguments), default=0)
        size = 1 + sum(size_of(part) for part in self.arguments)
        if depth > DEPTH_MAX or size > SIZE_MAX:
            raise TopologyError(
                f"an expression is too large: {size} parts, {depth} deep; the limits are "
                f"{SIZE_MAX} and {DEPTH_MAX}. A function in Python has no limits"
            )
        for name, known in (("text", repr(self.options)), ("depth", depth), ("size", size)):
            object.__setattr__(self, name, known)
        object.__setattr__(self, "written", _written(self))

    def __str__(self) -> str:
        return self.written


Node = Input | Literal | Call
VALUE: Final = Input("value")
KEY: Final = Input("key")
TIMESTAMP: Final = Input("timestamp")
INPUTS: Final = (VALUE, KEY, TIMESTAMP)
LEFT: Final = Input("left")
RIGHT: Final = Input("right")
SIDES: Final = (LEFT, RIGHT, KEY)  # the inputs of a join
ALL_INPUTS: Final = (*INPUTS, LEFT, RIGHT)


def depth_of(node: Node) -> int:
    """The longest way down."""
    return node.depth if isinstance(node, Call) else 1


def size_of(node: Node) -> int:
    """The number of nodes."""
    return node.size if isinstance(node, Call) else 1


def nodes_of(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    if isinstance(node, Call):
        for part in node.arguments:
            yield from nodes_of(part)


def inputs_of(node: Node) -> tuple[Input, ...]:
    """The inputs that are read, in the order of `ALL_INPUTS`."""
    read = {part for part in nodes_of(node) if isinstance(part, Input)}
    return tuple(each for each in ALL_INPUTS if each in read)


def paths_of(node: Node, of: Input = VALUE) -> frozenset[Path]:
    """The fields that are read of an input; the empty path is the whole."""
    return frozenset(_paths(node, of))


def name_of(node: Node) -> str | None:
    """The name that a field made of it has: its alias, or the field that it takes."""
    if isinstance(node, Call) and node.function in ("alias", *FIELDS):
        name: str = node.options[0]
        return name
    return None


def _paths(node: Node, of: Input) -> Iterator[Path]:
    path: list[str] = []
    below = node
    while isinstance(below, Call) and below.function in FIELDS:
        path.append(below.options[0])
        (below,) = below.arguments
    if below == of:
        yield tuple(reversed(path))
    elif isinstance(below, Call):
        # `select` looks whether the value is null, at nothing else of it.
        for part in below.arguments[below.function == "select" :]:
            yield from _paths(part, of)


# As users write it


def _written(node: Call) -> str:
    """As a user would write it."""
    function, parts = node.function, node.arguments
    if function in INFIX:
        level = PRECEDENCE[function]
        # Python would read a < b == c as two comparisons of b.
        first = _operand(parts[0], level or 1)
        if all(isinstance(part, Literal) for part in parts):
            first = str(parts[0])
        rest = (_operand(part, level + 1) for part in parts[1:])
        return f" {INFIX[function]} ".join((first, *rest))
    if function in PREFIX:
        return f"{PREFIX[function]}{_target(parts[0])}"
    if function == "boolean":
        return str(parts[0])
    if function == "field":
        (name,) = node.options
        if parts[0] == VALUE:
            return f"col({spell_constant(name)})"
        if parts[0] == LEFT or parts[0] == RIGHT:
            return f"{str(parts[0])[:-1]}{spell_constant(name)})"
        return f"{_target(parts[0])}[{spell_constant(name)}]"
    if function == "when":
        return _written_when(parts)
    if function in FIELDED:
        named = zip(node.options, parts[len(parts) - len(node.options) :], strict=True)
        return (
            f"{FIELDED[function]}({', '.join(f'{name}={_argument(part)}' for name, part in named)})"
        )
    if function == "drop_fields":
        return f"drop({', '.join(map(spell_constant, node.options))})"
    if function == "rename_fields":
        return f"rename({', '.join(f'{old}={spell_constant(new)}' for old, new in node.options)})"
    if function in CALLED:
        return f"{function}({', '.join(map(_first_or_argument, parts))})"
    given = [_argument(part) for part in parts[1:]] + _written_options(node)
    return f"{_target(parts[0])}.{function}({', '.join(given)})"


def _written_options(node: Call) -> list[str]:
    if node.function == "dt.truncate":
        return [spell_constant(spell(node.options[0]))]
    words = KEYWORDS.get(node.function, ())
    pairs = zip(node.options, (*words, *[""] * len(node.options)), strict=False)
    return [f"{word}={spell_constant(each)}".removeprefix("=") for each, word in pairs]


def _written_when(parts: tuple[Node, ...]) -> str:
    conditions, results, rest = parts[:-1:2], parts[1:-1:2], parts[-1]
    pairs = zip(conditions, results, strict=True)
    text = ".".join(f"when({_argument(c)}).then({_argument(a)})" for c, a in pairs)
    if isinstance(rest, Literal) and rest.value is None:
        return text
    return f"{text}.otherwise({_argument(rest)})"


def _argument(node: Node) -> str:
    """Constants are written as they are."""
    return spell_constant(node.value) if isinstance(node, Literal) else str(node)


def _first_or_argument(node: Node) -> str:
    """Text would be the name of a field."""
    is_text = isinstance(node, Literal) and isinstance(node.value, str)
    return str(node) if is_text else _argument(node)


def _operand(node: Node, level: int) -> str:
    """In parentheses where Python would bind its operator less than `level`."""
    inner = _bare(node)
    binds = PRECEDENCE.get(inner.function, level) if isinstance(inner, Call) else level
    return f"({node})" if binds < level else _argument(node)


def _target(node: Node) -> str:
    """As the left of a dot, or the right of a sign."""
    return str(node) if isinstance(node, Literal) else _operand(node, len(INFIX))


def _bare(node: Node) -> Node:
    while isinstance(node, Call) and node.function == "boolean":
        (node,) = node.arguments
    return node


def spell_constant(value: Any) -> str:
    """A constant as Python writes it, text in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(spell_constant, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
