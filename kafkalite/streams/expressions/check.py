"""Types found before anything runs, and trees made ready for evaluators.                   [P]

`Shape` says what is known of a record. `checked` refuses what cannot work and gives the tree that
evaluators compile, in fewer words: `between`, `fill_null`, `is_not_null` and `alias` are said with
others, and a branch of integers among branches of floats is cast.

Owns   the types of trees.
Fails  with TopologyError, which names the smallest part of the expression that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.catalog import NEVER_NULL, RULES
from kafkalite.streams.expressions.tree import (
    KEY,
    LEFT,
    RIGHT,
    TIMESTAMP,
    VALUE,
    Call,
    Input,
    Literal,
    Node,
)
from kafkalite.streams.expressions.types import (
    ANY,
    FLOAT64,
    INT64,
    Mismatch,
    Type,
    type_of,
    unify,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The types of a record's value and key, or of a join's values, as far as they are known."""

    value: Type = ANY
    key: Type = ANY
    left: Type = ANY
    right: Type = ANY

    def of(self, part: Input) -> Type:
        """The type of an input."""
        sides = {LEFT: self.left, RIGHT: self.right}
        return {VALUE: self.value, KEY: self.key, TIMESTAMP: INT64, **sides}[part]


UNKNOWN: Final = Shape()


@dataclass(frozen=True, slots=True)
class Types:
    """The types of the nodes of trees over one shape."""

    shape: Shape = UNKNOWN
    _known: dict[Node, Type] = field(default_factory=dict)

    def of(self, node: Node) -> Type:
        """The type of a node. TopologyError where a function does not take its arguments."""
        if (known := self._known.get(node)) is not None:
            return known
        found = self._known[node] = self._find(node)
        return found

    def _find(self, node: Node) -> Type:
        if isinstance(node, Input):
            return self.shape.of(node)
        if isinstance(node, Literal):
            return type_of(node.value)
        types = [self.of(part) for part in node.arguments]
        try:
            return RULES[node.function](types, node.options)
        except Mismatch as error:
            raise TopologyError(f"{node}: {error}") from None


def checked(node: Node, shape: Shape = UNKNOWN) -> tuple[Node, Type]:
    """The tree that evaluators compile, and its type."""
    types = Types(shape)
    found = types.of(node)
    return _lowered(node, types), found


def _lowered(node: Node, types: Types) -> Node:
    if not isinstance(node, Call):
        return node
    parts = tuple(_lowered(part, types) for part in node.arguments)
    match node.function:
        case "alias":
            return parts[0]
        case "is_not_null":
            return Call("not", (Call("is_null", parts),))
        case "between":
            closed = node.options[0] if node.options else "both"
            left = "ge" if closed in ("both", "left") else "gt"
            right = "le" if closed in ("both", "right") else "lt"
            x, low, high = parts
            return Call("and", (Call(left, (x, low)), Call(right, (x, high))))
        case "coalesce" | "fill_null":
            return Call("coalesce", _alike(parts, types))
        case "when":
            results = _alike((*parts[1:-1:2], parts[-1]), types)
            pairs = zip(parts[:-1:2], results[:-1], strict=True)
            return Call("when", (*(part for pair in pairs for part in pair), results[-1]))
    return replace(node, arguments=parts)


def _alike(parts: Sequence[Node], types: Types) -> tuple[Node, ...]:
    """Integers as floats where floats are beside them."""
    found = [types.of(part) for part in parts]
    if unify(found) != FLOAT64:
        return tuple(parts)
    return tuple(
        Call("cast", (part,), ("float64",)) if type_ == INT64 else part
        for part, type_ in zip(parts, found, strict=True)
    )


def may_be_null(node: Node) -> bool:
    """Whether the value of a node, as far as the tree tells, may be null."""
    if isinstance(node, Call):
        return node.function not in NEVER_NULL
    return node.value is None if isinstance(node, Literal) else node != TIMESTAMP
