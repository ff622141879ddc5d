"""Expressions over batches whose values are Arrow arrays as well.                           [P]

    filter, branch    a mask of bytes; the values stay as they are
    map               the fields or the array computed, with the loop over objects as another side
    select_key, …     likewise
    join              likewise, over the values of both sides

Native code (`VectorExpression`) is asked first, then Arrow, which knows more and costs more. What
both refuse, a value on which the expression fails among it, the loop over objects does instead, for
the whole batch: so errors are the same, and their records.

Owns   the choice between the three. Batches of few records go the way of objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.columns import FEW, has_nulls, take
from kafkalite.serde.arrow_form import ArraySource, ArrowForm, mask_of_arrow
from kafkalite.serde.avro_arrow import column_to_arrow, table_to_arrow
from kafkalite.serde.vectors import Table, Values, Vector
from kafkalite.streams.expressions.check import checked
from kafkalite.streams.expressions.objects import Compiled, compile_objects
from kafkalite.streams.expressions.tree import (
    KEY,
    LEFT,
    RIGHT,
    TIMESTAMP,
    VALUE,
    Call,
    Input,
    inputs_of,
    paths_of,
)
from kafkalite.streams.expressions.vectors import compile_vectors
from kafkalite.streams.functions import ExpressionFunction, Function
from kafkalite.streams.local.batch import Batch

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.streams.expressions.arrow import ArrowExpression

HAS_ARROW: Final = find_spec("pyarrow") is not None
ALIKE: Final = frozenset({str, int, float, bytes, bool})  # keys that Arrow holds without a change

PLAIN: Final = frozenset({"int64", "double", "bool", "string"})  # whose objects are the loop's


class OnArrow:
    """A function over batches of Arrow arrays. Each way gives None where objects must do it.

    `is_strict`: the function has no result for a null.
    """

    def __init__(self, function: ExpressionFunction, *, is_strict: bool) -> None:
        tree, shape = function.tree, function.shape
        self.tree, self.lowered = tree, checked(tree, shape)[0]
        self.loop = compile_objects(tree, shape)
        self.inputs = inputs_of(tree)
        self.is_strict = is_strict
        self._native = compile_vectors(self.lowered)
        self._fields = {side: fields_of(function, side) for side in (LEFT, RIGHT)}
        self._expression: ArrowExpression | None = None

    def mask(self, batch: Batch) -> bytes | None:
        """The verdicts of a predicate."""
        found = self._computed(batch)
        if isinstance(found, Values):
            return found.mask()
        verdicts = self.array(batch)
        if verdicts is None or str(verdicts.type) != "bool" or verdicts.null_count:
            return None
        return mask_of_arrow(verdicts)

    def column(self, batch: Batch) -> ArrowForm | None:
        """The results as a column."""
        columns = [_column(batch, each) for each in self.inputs]
        found = self._computed(batch)
        if found is not None:
            return ArrowForm(NativeResults(found, self.loop, columns))
        array = self.array(batch)
        return None if array is None else ArrowForm(Results(array, self.loop, columns))

    def _computed(self, batch: Batch) -> Table | Vector | Values | None:
        """The results that native code has without Arrow."""
        if self._native is None or len(batch) < FEW or not isinstance(batch.values, ArrowForm):
            return None
        table = batch.values.table()
        return None if table is None else self._native.result(table)

    def array(self, batch: Batch) -> pa.Array | None:
        """The results as an Arrow array."""
        if len(batch) < FEW:
            return None
        return self._array_of([_column(batch, each) for each in self.inputs])

    def joined(self, batch: Batch, left: Sequence[Any], right: Sequence[Any]) -> ArrowForm | None:
        """The results for pairs of values, as a column."""
        if len(batch) < FEW:
            return None
        sides = {LEFT: left, RIGHT: right}
        columns = [sides[each] if each in sides else _column(batch, each) for each in self.inputs]
        read = [self._read(*each) for each in zip(self.inputs, columns, strict=True)]
        if any(column is None for column in read):
            return None
        array = self._array_of([column for column in read if column is not None])
        return None if array is None else ArrowForm(Results(array, self.loop, columns))

    def _read(self, of: Input, column: Sequence[Any]) -> Sequence[Any] | None:
        """A column; of a side's rows that are objects those fields that are read, as an array."""
        fields = self._fields.get(of)
        if isinstance(column, ArrowForm) or fields is None:
            return column
        array = _struct(column, fields)
        return None if array is None else ArrowForm(ArraySource(array))

    def _array_of(self, columns: Sequence[Sequence[Any]]) -> pa.Array | None:
        if not any(isinstance(column, ArrowForm) for column in columns):
            return None
        if self.is_strict and any(map(has_nulls, columns)):
            return None
        arrays = list(map(_array, columns))
        if any(array is None for array in arrays):
            return None
        if self._expression is None:
            from kafkalite.streams.expressions.arrow import compile_arrow

            self._expression = compile_arrow(self.tree)
        return self._expression.tried(arrays, self.lowered)


def on_arrow(function: Function | None) -> OnArrow | None:
    """A function of the value as Arrow computes it; None where it is Python's."""
    if not HAS_ARROW or function is None:
        return None
    if isinstance(function, ExpressionFunction):
        reads = {VALUE, KEY} & set(function.inputs)
        return OnArrow(function, is_strict=False) if reads else None
    if function.field is None:
        return None
    field = Call("field", (VALUE,), (function.field,))
    return OnArrow(ExpressionFunction(field), is_strict=True)


def on_sides(function: Function) -> OnArrow | None:
    """The function of a join as Arrow computes it; None where it is Python's."""
    if not HAS_ARROW or not isinstance(function, ExpressionFunction):
        return None
    return OnArrow(function, is_strict=False) if {LEFT, RIGHT} & set(function.inputs) else None


def fields_of(function: Function, side: Input) -> frozenset[str] | None:
    """The fields that the function of a join reads of one side; None: the value as a whole."""
    if not isinstance(function, ExpressionFunction):
        return None
    paths = paths_of(function.tree, side)
    return None if () in paths else frozenset(path[0] for path in paths)


@dataclass(frozen=True, slots=True)
class Results(ArraySource):
    """The results of an expression for a batch: Arrow's array, and the loop for objects.

    Arrow has seen every record, so the loop fails on none.
    """

    loop: Compiled
    columns: Sequence[Sequence[Any]]

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """Some results as the loop gives them."""
        if str(self.array.type) in PLAIN:
            results = self.array.to_pylist()
            return results if len(indexes) == len(results) else list(take(results, indexes))
        return self.loop.column(*(take(column, indexes) for column in self.columns))


@dataclass(slots=True)
class NativeResults:
    """The results of native code for a batch; also as Arrow's array and as objects."""

    made: Table | Vector | Values
    loop: Compiled
    columns: Sequence[Sequence[Any]]

    def __len__(self) -> int:
        return self.made.rows if isinstance(self.made, Table) else len(self.made)

    @property
    def null_count(self) -> int:
        """How many results are null."""
        return 0 if isinstance(self.made, Table) else self.made.null_count

    def table(self) -> Table | None:
        """The fields of results that have some."""
        return self.made if isinstance(self.made, Table) else None

    def column(self) -> Vector | Values | None:
        """Results that have no fields."""
        return None if isinstance(self.made, Table) else self.made

    def arrow(self) -> pa.Array:
        """The array."""
        made = self.made
        return table_to_arrow(made) if isinstance(made, Table) else column_to_arrow(made)

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """Some results as the loop gives them."""
        if isinstance(self.made, Values):
            results = self.made.tolist()
            return results if len(indexes) == len(results) else list(take(results, indexes))
        return self.loop.column(*(take(column, indexes) for column in self.columns))


def _column(batch: Batch, of: Input) -> Sequence[Any]:
    columns = {VALUE: batch.values, KEY: batch.keys, TIMESTAMP: batch.timestamps}
    column = columns[of]
    assert column is not None, f"{of}: a column is not there"
    return column


def _struct(rows: Sequence[Any], fields: frozenset[str]) -> pa.Array | None:
    """Some fields of rows as an Arrow array; None where Arrow would change a value."""
    import pyarrow as pa

    names = sorted(fields)
    nulls = [row is None for row in rows]
    has_nulls = any(nulls)
    try:
        if has_nulls:
            columns = [[None if row is None else row[name] for row in rows] for name in names]
        else:
            columns = [[row[name] for row in rows] for name in names]
    except (LookupError, TypeError):  # a row is of another shape
        return None
    arrays = list(map(_array, columns))
    if not names or any(array is None for array in arrays):
        return None
    mask = pa.array(nulls) if has_nulls else None
    return pa.StructArray.from_arrays(arrays, names, mask=mask)


def _array(column: Sequence[Any]) -> pa.Array | None:
    """A column as an Arrow array; None where Arrow would change a value."""
    import pyarrow as pa

    if isinstance(column, ArrowForm):
        return column.arrow()
    kinds = set(map(type, column)) - {type(None)}
    if len(kinds) != 1 or not kinds <= ALIKE:
        return None
    try:
        return pa.array(column)
    except (pa.ArrowException, OverflowError):  # an int of more than 64 bits, a lone surrogate
        return None
