"""Records of Avro as a column with three sides: rows as objects, native fields, Arrow.       [P]

All are made on demand from the native columns of one batch, without a copy of these.

Owns   the rows of the batch that code outside may hold, until `release` copies them out.
Fails  not with what the decoder let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafkalite.serde.avro_arrow import to_arrow
from kafkalite.serde.avro_columns import Rows
from kafkalite.serde.avro_plan import Kind, Plan
from kafkalite.serde.vectors import Table, Values, Vector, table_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.serde.avro_columns import Batch

# Their Arrow type stands for other objects than those that rows have.
OTHERWISE: Final = frozenset({Kind.UUID, Kind.TIMESTAMP_NANOS, Kind.LOCAL_NANOS, Kind.MAP})


class AvroValues:
    """The values of one batch. `opened` is called with them when they begin to give rows."""

    def __init__(
        self, batch: Batch, opened: Callable[[AvroValues], None], *, as_dicts: bool
    ) -> None:
        self._batch, self._as_dicts, self._opened = batch, as_dicts, opened
        self._rows: Rows | None = None
        self._table: Table | None = None

    def __len__(self) -> int:
        return self._batch.rows

    @property
    def null_count(self) -> int:
        """How many of the values are null."""
        return self._batch.null_count(0)

    def arrow(self) -> pa.Array:
        """The array of all values."""
        return to_arrow(self._batch)

    def table(self) -> Table | None:
        """The fields of all values; None where one is null or they have no fields."""
        if self._table is None:
            self._table = table_of(self._batch)
        return self._table

    def column(self) -> Vector | Values | None:
        """None: values without fields go by way of Arrow."""
        return None

    def objects(self, indexes: Sequence[int]) -> list[Any]:
        """Some values: rows that look like dicts, or dicts."""
        if self._rows is None:
            self._rows = Rows(self._batch, 0, self._as_dicts)
            if not self._as_dicts:
                self._opened(self)
        return self._rows.at(indexes)

    def release(self) -> None:
        """Copies out the rows that code outside still holds."""
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.release()


def is_exact(plan: Plan) -> bool:
    """Whether the array of a plan has all information of its rows."""
    return not any(column.kind in OTHERWISE for column in plan.columns)
