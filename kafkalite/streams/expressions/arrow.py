"""An expression over Arrow arrays, with the results that it has over Python objects.       [P]

A kernel (arrow_kernels.py) computes whole columns, with the branches that are not taken, and
refuses a column for one value. Then the loop of objects.py computes the column instead: it gives
the results where only a branch that is not taken failed, else it raises the error of the first
record that fails. Where no kernel gives the results of values.py, its functions are applied value
by value: `BY_VALUE` lists these.

Owns   the way from a tree to kernels.
Fails  with the errors of objects.py; with TopologyError where the types of the arrays do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.arrow_kernels import CAST_KERNELS, KERNELS, Refused, by_value
from kafkalite.streams.expressions.arrow_types import (
    Data,
    arrow_type,
    constant,
    is_known,
    normal,
    to_type,
    type_of_arrow,
)
from kafkalite.streams.expressions.catalog import CASTS
from kafkalite.streams.expressions.check import Shape, Types, checked
from kafkalite.streams.expressions.objects import compile_objects
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
    inputs_of,
)
from kafkalite.streams.expressions.types import ANY, NULL, SCALARS, Type, type_of, unify
from kafkalite.streams.expressions.values import FUNCTIONS, caster


@dataclass(slots=True, eq=False)
class ArrowExpression:
    """An expression over arrays. `inputs` are the arrays that it takes, in this order.

    `rows` counts the columns that no kernels computed, but the loop over Python objects.
    """

    tree: Node
    inputs: tuple[Input, ...]
    rows: int = 0
    _known: dict[tuple[Any, ...], _Typed | None] = field(default_factory=dict)

    def column(self, *columns: Any) -> Any:
        """The results for arrays, chunked arrays, or record batches and tables as values."""
        arrays = [_as_array(column) for column in columns]
        typed = self._typed(arrays)
        try:
            return self._computed(typed, arrays)
        except (pa.ArrowInvalid, Refused):
            self.rows += 1
            loop = compile_objects(self.tree, typed.shape)
            results = loop.column(*(array.to_pylist() for array in arrays))
            return pa.array(results, arrow_type(typed.type) if is_known(typed.type) else None)

    def tried(self, arrays: Sequence[Any], alike: Node) -> Any:
        """The results for arrays, as a loop gives them that knows less of the types.

        `alike` is the tree that it was made of. None where no kernel gives these results.
        """
        types = tuple(array.type for array in arrays)
        try:
            if types not in self._known:
                self._known[types] = self._typed_alike(arrays, alike)
            typed = self._known[types]
            if typed is not None:
                return self._computed(typed, arrays)
        except (pa.ArrowException, Refused):
            pass
        self.rows += 1
        return None

    def _typed_alike(self, arrays: Sequence[Any], alike: Node) -> _Typed | None:
        try:
            typed = self._typed(arrays)
        except TopologyError:  # a type or a field that the records do not have
            return None
        # Where types are known, a branch of integers beside one of floats is cast.
        return typed if typed.lowered == alike else None

    def _typed(self, arrays: Sequence[Any]) -> _Typed:
        types = {part: type_of_arrow(array.type) for part, array in self._pairs(arrays)}
        shape = Shape(*(types.get(part, ANY) for part in (VALUE, KEY, LEFT, RIGHT)))
        lowered, type_ = checked(self.tree, shape)
        return _Typed(shape, lowered, Types(shape), type_)

    def _computed(self, typed: _Typed, arrays: Sequence[Any]) -> Any:
        run = _Run(typed.types, dict(self._pairs(arrays)), len(arrays[0]))
        return run.array(typed.lowered)

    def _pairs(self, arrays: Sequence[Any]) -> Sequence[tuple[Input, Any]]:
        return list(zip(self.inputs, arrays, strict=True))


@dataclass(frozen=True, slots=True)
class _Typed:
    """The facts that follow from the arrays' types."""

    shape: Shape
    lowered: Node
    types: Types
    type: Type


def compile_arrow(tree: Node) -> ArrowExpression:
    """An expression over Arrow; its types are checked against the arrays that it is given."""
    return ArrowExpression(tree, inputs_of(tree) or (TIMESTAMP,))


def _as_array(column: Any) -> Any:
    if isinstance(column, pa.Table):
        column = column.combine_chunks().to_struct_array()
    if isinstance(column, pa.RecordBatch):
        return column.to_struct_array()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


@dataclass(slots=True, eq=False)
class _Run:
    """One evaluation: a part that stands twice is computed once."""

    types: Types
    columns: Mapping[Input, Any]
    count: int
    _done: dict[Node, Data] = field(default_factory=dict)

    def array(self, node: Node) -> Any:
        """The value of a node for each record."""
        return self.spread(self.data(node))

    def spread(self, data: Data) -> Any:
        """A constant as often as there are records."""
        return pa.repeat(data, self.count) if isinstance(data, pa.Scalar) else data

    def data(self, node: Node) -> Data:
        """The value of a node: an array, or the scalar of a constant."""
        if isinstance(node, Input):
            return normal(self.columns[node])
        if isinstance(node, Literal):
            of = arrow_type(type_of(node.value))
            given = list(node.value) if isinstance(node.value, tuple) else node.value
            return constant(given, of)
        if node not in self._done:
            self._done[node] = self._computed(node)
        return self._done[node]

    def _computed(self, node: Call) -> Data:
        if (special := SPECIAL.get(node.function)) is not None:
            return special(self, node)
        given = [self.data(part) for part in node.arguments]
        types = [self.types.of(part) for part in node.arguments]
        if NULL in types:  # no kernel takes the null type
            return pa.nulls(self.count, arrow_type(self.types.of(node)))
        if not all(map(is_known, types)):
            raise Refused(f"{node}: {', '.join(str(each.type) for each in given)}")
        if all(isinstance(each, pa.Scalar) for each in given):
            given[0] = self.spread(given[0])
        if node.function in BY_VALUE:
            function, options = FUNCTIONS[node.function], node.options
            of = arrow_type(self.types.of(node))
            return by_value(lambda x: function(x, *options), given[0], of)
        return KERNELS[node.function](*given, *node.options)

    # What nulls do not pass through

    def logic(self, node: Call) -> Data:
        """`& | ^ ~`, by Kleene's rules."""
        given = [to_type(self.data(part), pa.bool_()) for part in node.arguments]
        given[0] = self.spread(given[0])
        kernel = LOGIC[node.function]
        return kernel(given[0]) if len(given) == 1 else reduce(kernel, given)

    def is_null(self, node: Call) -> Data:
        """Never null."""
        return pc.is_null(self.array(node.arguments[0]))

    def boolean(self, node: Call) -> Data:
        """A predicate's verdict."""
        verdict = to_type(self.array(node.arguments[0]), pa.bool_())
        return pc.fill_null(verdict, constant(node.options[0])) if node.options else verdict

    def coalesce(self, node: Call) -> Data:
        """The first that is not null."""
        of = self._common(node.arguments)
        given = [to_type(self.array(part), of) for part in node.arguments]
        return pc.coalesce(*given)

    def when(self, node: Call) -> Data:
        """The last condition first: what it gives applies where none above it holds."""
        parts = node.arguments
        of = self._common([*parts[1:-1:2], parts[-1]])
        result = to_type(self.array(parts[-1]), of)
        for condition, then in reversed(list(zip(parts[:-1:2], parts[1:-1:2], strict=True))):
            holds = pc.fill_null(to_type(self.array(condition), pa.bool_()), constant(False))
            result = pc.if_else(holds, to_type(self.array(then), of), result)
        return result

    def _common(self, parts: Sequence[Node]) -> Any:
        type_ = unify(self.types.of(part) for part in parts)
        if not is_known(type_):
            raise Refused(f"{type_} in branches")
        return arrow_type(type_)

    # Values with fields

    def field_of(self, node: Call) -> Data:
        """A field; null where the struct is."""
        whole = self.array(node.arguments[0])
        if pa.types.is_null(whole.type):
            return pa.nulls(self.count)
        if not pa.types.is_struct(whole.type):
            raise Refused(f"{node}: {whole.type}")
        if node.function == "get" and whole.type.get_field_index(node.options[0]) < 0:
            return pa.nulls(self.count)
        return normal(pc.struct_field(whole, node.options[0]))

    def struct(self, node: Call) -> Data:
        """Named columns side by side."""
        return _struct(dict(zip(node.options, map(self.array, node.arguments), strict=True)))

    def select(self, node: Call) -> Data:
        """As `struct`, null where the value is."""
        columns = map(self.array, node.arguments[1:])
        whole = self.array(node.arguments[0])
        return _struct(dict(zip(node.options, columns, strict=True)), pc.is_null(whole))

    def with_fields(self, node: Call) -> Data:
        """Some columns changed."""
        whole, fields = self._fields(node)
        fields |= zip(node.options, map(self.array, node.arguments[1:]), strict=True)
        return _struct(fields, pc.is_null(whole))

    def drop_fields(self, node: Call) -> Data:
        """Some columns gone."""
        whole, fields = self._fields(node)
        kept = {name: column for name, column in fields.items() if name not in node.options}
        if not kept:
            raise Refused("a struct without fields")
        return _struct(kept, pc.is_null(whole))

    def rename_fields(self, node: Call) -> Data:
        """Some columns under other names."""
        whole, fields = self._fields(node)
        names = dict(node.options)
        renamed = {names.get(name, name): column for name, column in fields.items()}
        return _struct(renamed, pc.is_null(whole))

    def _fields(self, node: Call) -> tuple[Any, dict[str, Any]]:
        whole = self.array(node.arguments[0])
        if not pa.types.is_struct(whole.type):
            raise Refused(f"{node}: {whole.type}")
        names = [whole.type[index].name for index in range(whole.type.num_fields)]
        return whole, dict(zip(names, whole.flatten(), strict=True))

    def cast(self, node: Call) -> Data:
        """To another type, by the kernel for the two, or value by value."""
        of, to = self.types.of(node.arguments[0]), SCALARS[node.options[0]]
        given = self.array(node.arguments[0])
        strict = len(node.options) == 1
        if of == NULL:
            return pa.nulls(self.count, arrow_type(to))
        if of == to:
            return given
        if (kernel := CAST_KERNELS.get((of, to))) is not None and strict:
            return kernel(given)
        if not is_known(of):
            raise Refused(f"{node}: {given.type}")
        return by_value(caster(to, CASTS[to], strict=strict), given, arrow_type(to))


def _struct(fields: Mapping[str, Any], mask: Any = None) -> Any:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=mask)


BY_VALUE: Final = frozenset({"hash", "list.contains"})  # and casts without a kernel
LOGIC: Final[Mapping[str, Callable[..., Any]]] = {
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "xor": pc.xor,
    "not": pc.invert,
}
SPECIAL: Final[Mapping[str, Callable[[_Run, Call], Data]]] = {
    **dict.fromkeys(LOGIC, _Run.logic),
    "is_null": _Run.is_null,
    "boolean": _Run.boolean,
    "coalesce": _Run.coalesce,
    "when": _Run.when,
    "cast": _Run.cast,
    "field": _Run.field_of,
    "get": _Run.field_of,
    "struct": _Run.struct,
    "select": _Run.select,
    "with_fields": _Run.with_fields,
    "drop_fields": _Run.drop_fields,
    "rename_fields": _Run.rename_fields,
}
