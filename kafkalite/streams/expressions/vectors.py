"""An expression over columns in native code, without pyarrow: what it knows, or nothing.     [P]

Numbers are compared and reckoned with, texts are compared with constants, fields go on as they lie.
The results are those of the loop (objects.py). An expression with a function that is not in
`FUNCTIONS`, and columns of other types, are refused as a whole; Arrow or the loop then compute
them. A refusal costs little: most come before any record is looked at.

Owns   the way from a tree to the kernels of `kafkalite.serde.vectors`.
Fails  never: None is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from kafkalite.serde.vectors import NATIVE, Table, Values, Vector, kernels
from kafkalite.streams.expressions.tree import FIELDS, VALUE, Call, Literal, Node, inputs_of

Column = Vector | Values | bool | int | float | str  # a constant stands for a column of itself


class Refused(Exception):
    """What native code does not know."""


@dataclass(frozen=True, slots=True)
class VectorExpression:
    """An expression that may be computed so: `tree` is lowered (check.py)."""

    tree: Node

    def result(self, table: Table) -> Table | Vector | Values | None:
        """The results for the records of a table."""
        run = _Run(table)
        try:
            if isinstance(self.tree, Call) and self.tree.function in TABLES:
                return TABLES[self.tree.function](run, self.tree)
            return run.column(self.tree)
        except Refused:
            return None


def compile_vectors(tree: Node) -> VectorExpression | None:
    """A lowered tree for native code; None where it is of no use."""
    if not NATIVE or inputs_of(tree) != (VALUE,) or not isinstance(tree, Call):
        return None
    parts = tree.arguments if tree.function in TABLES else (tree,)
    if tree.function in OF_VALUE:
        if parts[0] != VALUE:
            return None
        parts = parts[1:]
    return VectorExpression(tree) if all(map(_is_known, parts)) else None


def _is_known(node: Node) -> bool:
    """Whether all parts of a column's tree may be computed."""
    if isinstance(node, Literal):
        return type(node.value) in (bool, int, float, str)
    if not isinstance(node, Call):
        return False
    if node.function in FIELDS:
        return node.arguments[0] == VALUE
    return node.function in FUNCTIONS and all(map(_is_known, node.arguments))


@dataclass(slots=True, eq=False)
class _Run:
    """One evaluation: a part that stands twice is computed once."""

    table: Table
    _done: dict[Node, Column] = field(default_factory=dict)

    def column(self, node: Node) -> Vector | Values:
        """The values of a node, a constant as often as there are records."""
        found = self.value(node)
        if isinstance(found, Vector | Values):
            return found
        repeated: Values = _known(kernels.repeated(found, self.table.rows))
        return repeated

    def value(self, node: Node) -> Column:
        """The values of a node, or its constant."""
        if isinstance(node, Literal):
            constant: Column = node.value
            return constant
        assert isinstance(node, Call), f"{node}: not a column"
        if node in self._done:
            return self._done[node]
        if node.function in FIELDS:
            found: Column = _known(self.table.fields.get(node.options[0]))
        else:
            given = [self.value(part) for part in node.arguments]
            found = _known(FUNCTIONS[node.function](*given, *node.options))
        self._done[node] = found
        return found

    # Values with fields

    def struct(self, node: Call) -> Table:
        """Named columns side by side."""
        parts = node.arguments[node.function == "select" :]
        columns = map(self.column, parts)
        return Table(self.table.rows, dict(zip(node.options, columns, strict=True)))

    def with_fields(self, node: Call) -> Table:
        """Some columns changed."""
        columns = map(self.column, node.arguments[1:])
        changed = dict(zip(node.options, columns, strict=True))
        return self._table({**self.table.fields, **changed})

    def drop_fields(self, node: Call) -> Table:
        """Some columns gone."""
        fields = self.table.fields
        kept = {name: column for name, column in fields.items() if name not in node.options}
        if not kept or not fields.keys() >= set(node.options):
            raise Refused
        return self._table(kept)

    def rename_fields(self, node: Call) -> Table:
        """Some columns under other names."""
        names, fields = dict(node.options), self.table.fields
        renamed = {names.get(name, name): column for name, column in fields.items()}
        if not fields.keys() >= names.keys() or len(renamed) < len(fields):
            raise Refused
        return self._table(renamed)

    def _table(self, fields: Mapping[str, Vector | Values | None]) -> Table:
        if None in fields.values():
            raise Refused
        return Table(self.table.rows, fields)


def _known(found: Any) -> Any:
    if found is None:
        raise Refused
    return found


def _boolean(given: Column, null_is: bool | None = None) -> Values | None:
    """A predicate's verdict."""
    verdicts = kernels.dense(given)
    if verdicts is None or not verdicts.is_bools or not isinstance(given, Vector | Values):
        return None
    return verdicts if null_is is None else kernels.filled(verdicts, null_is)


def _coalesce(given: Column, *others: Column) -> Values | None:
    """A constant where a null is."""
    return kernels.filled(given, others[0]) if len(others) == 1 else None


def _joined(given: Sequence[Any], *, is_and: bool) -> Any:
    """`&` or `|` of any number."""

    def two(a: Any, b: Any) -> Values | None:
        return None if a is None else kernels.joined(a, b, is_and)

    return None if len(given) == 1 else reduce(two, given)


def _compared(how: int) -> Callable[[Any, Any], Values | None]:
    return lambda a, b: kernels.compare(how, a, b)


def _reckoned(how: int) -> Callable[[Any, Any], Values | None]:
    return lambda a, b: kernels.arithmetic(how, a, b)


COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")  # as the native module counts them
ARITHMETIC: Final = ("add", "sub", "mul", "truediv")
FUNCTIONS: Final[Mapping[str, Callable[..., Values | None]]] = {
    **{name: _compared(how) for how, name in enumerate(COMPARISONS)},
    **{name: _reckoned(how) for how, name in enumerate(ARITHMETIC)},
    "and": lambda *given: _joined(given, is_and=True),
    "or": lambda *given: _joined(given, is_and=False),
    "not": lambda a: kernels.inverted(a),
    "is_null": lambda a: kernels.is_null(a),
    "boolean": _boolean,
    "coalesce": _coalesce,
}
OF_VALUE: Final = frozenset({"select", "with_fields", "drop_fields", "rename_fields"})
TABLES: Final[Mapping[str, Callable[[_Run, Call], Table]]] = {
    "struct": _Run.struct,
    "select": _Run.struct,
    "with_fields": _Run.with_fields,
    "drop_fields": _Run.drop_fields,
    "rename_fields": _Run.rename_fields,
}
