"""Native columns as Avro's bytes, without pyarrow: `avro_encode` does the same for Arrow.     [P]

The fields of a table find the schema's by name. A column goes as it lies where it was read as the
type that the schema writes, texts among them: the encoder copies from the batch that was read.

Owns   nothing; the bytes are made in native code (`_avro_write`).
Fails  with SerdeError, as `avro_encode` does. None where a column has to be converted first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_columns import encoder
from kafkalite.serde.avro_encode import ABSENT, Source
from kafkalite.serde.avro_plan import Column, Kind, Plan
from kafkalite.serde.vectors import Values, Vector, kernels

NESTED: Final = frozenset({Kind.ARRAY, Kind.MAP, Kind.NULL, Kind.CONSTANT})  # left to Arrow
WIDER: Final = {Kind.INT: Kind.LONG, Kind.FLOAT: Kind.DOUBLE}  # that loses nothing


def form_to_spans(plan: Plan, form: ArrowForm, header: bytes) -> Spans | None:
    """A record of each value, behind the header; None where a column has to be converted."""
    table = form.table()
    if table is None or plan.columns[0].kind is not Kind.RECORD:
        return None
    columns = _Columns(plan)
    if not columns.add_fields(plan.columns[0], table.fields):
        return None
    offsets, data, validity = encoder(plan).encode_spans(columns.sources, table.rows, header)
    return Spans.of_offsets(memoryview(offsets).cast("q"), data, validity)


class _Columns:
    """The memory of all columns of a plan, which lives as long as this does."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.sources: list[Source] = [ABSENT] * len(plan.columns)
        self._held: list[Vector | Values] = []

    def add_fields(self, of: Column, fields: Mapping[str, Vector | Values | None]) -> bool:
        """Adds the parts of a record; whether all of them are there and fit."""
        names = {self._plan.columns[part].name: part for part in of.parts}
        if names.keys() != fields.keys():
            return False
        return all(self._add(part, fields[name]) for name, part in names.items())

    def _add(self, place: int, given: Vector | Values | None) -> bool:
        wanted = self._plan.columns[place]
        if isinstance(given, Vector):
            has = given.batch.plan.columns[given.place]
            if WIDER.get(has.kind) is wanted.kind:
                given = kernels.dense(given)
            elif not (_is_same(has, wanted) and self._add_parts(wanted, given, has)):
                return False
        elif given is not None and _kind_of(given) is not wanted.kind:
            return False
        if given is None:
            return False
        self._held.append(given)
        self.sources[place] = given.source()
        return True

    def _add_parts(self, wanted: Column, given: Vector, has: Column) -> bool:
        if has.kind is not Kind.RECORD:
            return True
        columns = given.batch.plan.columns
        parts = {columns[part].name: Vector(given.batch, part, given.places) for part in has.parts}
        return self.add_fields(wanted, parts)


def _kind_of(values: Values) -> Kind:
    if values.is_bools:
        return Kind.BOOLEAN
    return Kind.DOUBLE if values.is_floats else Kind.LONG


def _is_same(has: Column, wanted: Column) -> bool:
    """Whether a column's memory is the other's, with the same meaning."""
    if has.kind is not wanted.kind or has.kind in NESTED:
        return False
    return (has.size, has.precision, has.scale, has.symbols) == (
        wanted.size,
        wanted.precision,
        wanted.scale,
        wanted.symbols,
    )
