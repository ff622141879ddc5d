"""Fields side by side without pyarrow: columns of Avro, and columns computed from them.      [P]

    Vector    a column of a decoded batch, or some of its rows
    Values    booleans, integers or floats that native code computed
    Table     columns by their names: the records of a batch, none of which is null

Arrow computes more, at the price of its import (0.2 s of CPU) and of 20 to 40 us a call.

Owns   the choice, made once at import: without the native module no form has a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafkalite.core.protocol.record_codec import NATIVE as SPANS
from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.serde.avro_columns import NATIVE as AVRO
from kafkalite.serde.avro_columns import Batch
from kafkalite.serde.avro_plan import Kind

try:
    import kafkalite.serde._vectors as kernels
    from kafkalite.serde._vectors import Values, Vector

    NATIVE = SPANS and AVRO
except ImportError:
    NATIVE = False
    kernels = None  # type: ignore[assignment]

    class Vector:  # type: ignore[no-redef]
        """Never made."""

    class Values:  # type: ignore[no-redef]
        """Never made."""


__all__ = ["NATIVE", "Numbers", "Table", "Values", "Vector", "kernels", "narrowed", "table_of"]

UNKNOWN: Final = frozenset({Kind.NULL, Kind.CONSTANT})  # columns without values in memory

Numbers: TypeAlias = tuple[bool, object, object | None]  # floats, their bytes, bits of validity


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of `rows` records; None in place of a column that has no memory of its own."""

    rows: int
    fields: Mapping[str, Vector | Values | None]

    def narrowed(self, places: Int64s) -> Table:
        """The records at `places`."""
        known: dict[int, Int64s] = {}
        made = {
            name: None if column is None else narrowed(column, places, known)
            for name, column in self.fields.items()
        }
        return Table(len(places), made)


def narrowed(
    column: Vector | Values, places: Int64s, known: dict[int, Int64s] | None = None
) -> Vector | Values:
    """Some entries of a column. `known`: places among the rows of a batch, by those before."""
    if isinstance(column, Values):
        return column.taken(places)
    before = column.places
    if before is None:
        return Vector(column.batch, column.place, places)
    known = {} if known is None else known
    if id(before) not in known:
        known[id(before)] = before.take(places)
    return Vector(column.batch, column.place, known[id(before)])


def table_of(batch: Batch) -> Table | None:
    """The fields of a batch of records; None where a record is null, or no record."""
    if not NATIVE or batch.null_count(0):
        return None
    columns = batch.plan.columns
    if columns[0].kind is not Kind.RECORD:
        return None
    made = {
        columns[part].name: None if columns[part].kind in UNKNOWN else Vector(batch, part)
        for part in columns[0].parts
    }
    return Table(batch.rows, made)
