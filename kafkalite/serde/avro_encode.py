"""Arrow's arrays as Avro's bytes: the other way of `avro_arrow`.                            [P]

    made = plan(schema)
    records = arrow_to_avro(made, array, HEADER.pack(MAGIC, schema_id))

The columns of a struct find the schema's fields by name. Another Arrow type of the same family is
converted where nothing is lost: small integers, large strings, timestamps of another unit, strings
for an enum. A number may become a float with fewer digits, as fastavro makes it.

Owns   nothing; the bytes are made in native code (`_avro_write`).
Fails  with SerdeError: of a row with its index (null where the schema takes none, a symbol that the
       enum lacks), of a whole column without. Both name the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import SerdeError
from kafkalite.serde.avro_arrow import arrow_type
from kafkalite.serde.avro_columns import encoder
from kafkalite.serde.avro_plan import Column, Kind, Plan
from kafkalite.serde.avro_schema import at, inside

if TYPE_CHECKING:
    import pyarrow as pa

# Length, offset, addresses of validity, data and bytes, the number of those bytes; the address of
# the places of the rows, 0 for all of them.
Source: TypeAlias = tuple[int, int, int, int, int, int, int]

ABSENT: Source = (0, 0, 0, 0, 0, 0, 0)


def arrow_to_avro(plan: Plan, rows: pa.Array, header: bytes = b"") -> list[bytes | None]:
    """A record of each row, behind the header; None for a null row.

    `rows` is an array (a struct where the schema is a record's), a chunked array, or a record
    batch. The plan is of the writer's schema alone, with all of its fields.
    """
    columns, count = _described(plan, rows)
    return encoder(plan).encode(columns.sources, count, header)


def arrow_to_spans(plan: Plan, rows: pa.Array, header: bytes = b"") -> Spans:
    """The same records in one buffer."""
    columns, count = _described(plan, rows)
    offsets, data, validity = encoder(plan).encode_spans(columns.sources, count, header)
    return Spans.of_offsets(memoryview(offsets).cast("q"), data, validity)


def _described(plan: Plan, rows: pa.Array) -> tuple[_Columns, int]:
    """The columns of the rows, and how many rows there are."""
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        rows = rows.to_struct_array()
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    try:
        rows.validate()
    except pa.ArrowInvalid as error:
        raise SerdeError(f"no valid Arrow array: {error}") from None
    columns = _Columns(plan)
    columns.add(0, rows, "")
    return columns, len(rows)


class _Columns:
    """The buffers of all columns of a plan. They live as long as this does."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.sources = [ABSENT] * len(plan.columns)
        self._held: list[Any] = []  # the arrays whose buffers are lent

    def add(self, place: int, array: pa.Array, path: str) -> None:
        """Adds a column and all of its parts."""
        import pyarrow as pa

        column = self._plan.columns[place]
        if pa.types.is_null(array.type):
            array = pa.nulls(len(array), arrow_type(self._plan, place))
        match column.kind:
            case Kind.RECORD:
                self._record(place, column, array, path)
            case Kind.ARRAY:
                array = self._list(array, path)
                self.add(column.parts[0], array.values, f"{path}[]")
            case Kind.MAP:
                self._check(array, "map", path)
                self.add(column.parts[0], array.keys, f"{path}{{}}")
                self.add(column.parts[1], array.items, f"{path}{{}}")
            case Kind.ENUM:
                array = _numbers_of_symbols(column, array, path)
            case _:
                array = _converted(array, arrow_type(self._plan, place), path)
        self._held.append(array)
        self.sources[place] = _source(array)

    def _record(self, place: int, column: Column, array: pa.Array, path: str) -> None:
        self._check(array, "struct", path)
        given = {field.name: number for number, field in enumerate(array.type)}
        names = {self._plan.columns[part].name: part for part in column.parts}
        for name in given.keys() - names.keys():
            raise SerdeError(f"{at(inside(path, name))}the schema has no such field")
        if len(given) < len(array.type):
            raise SerdeError(f"{at(path)}a struct with two fields of one name")
        for name, part in names.items():
            if name not in given:
                raise SerdeError(f"{at(inside(path, name))}the struct has no such field")
            self.add(part, array.field(given[name]), inside(path, name))

    def _list(self, array: pa.Array, path: str) -> pa.Array:
        import pyarrow as pa

        if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
            return array.cast(pa.list_(array.type.value_type))
        self._check(array, "list", path)
        return array

    def _check(self, array: pa.Array, kind: str, path: str) -> None:
        import pyarrow as pa

        if not getattr(pa.types, f"is_{kind}")(array.type):
            raise SerdeError(f"{at(path)}{array.type}, expected a {kind}")


def _source(array: pa.Array) -> Source:
    """The addresses of an array's own buffers, without those of its parts."""
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return len(array), 0, 0, 0, 0, 0, 0
    valid, *buffers = array.buffers()
    own = [] if pa.types.is_struct(array.type) else buffers[:2]
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        own = own[:1]  # what follows is a part's
    addresses = [0 if buffer is None else buffer.address for buffer in (valid, *own)]
    addresses += [0] * (3 - len(addresses))
    size = own[1].size if len(own) == 2 and own[1] is not None else 0
    return len(array), array.offset, addresses[0], addresses[1], addresses[2], size, 0


def _numbers_of_symbols(column: Column, array: pa.Array, path: str) -> pa.Array:
    """The places of an enum's symbols; -1 for text that is none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    array = _converted(array, pa.string(), path)
    found = pc.index_in(array, pa.array(column.symbols, pa.string())).fill_null(-1)
    return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.int32()))


def _converted(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    """The array in the type that the schema's values have."""
    import pyarrow as pa

    if array.type == wanted:
        return array
    if not _is_family(array.type, wanted):
        raise SerdeError(f"{at(path)}{array.type}, expected {wanted}")
    try:
        return array.cast(wanted, safe=not pa.types.is_floating(wanted))
    except MemoryError:  # Arrow's own is one, too
        raise
    except pa.ArrowException as error:
        raise SerdeError(f"{at(path)}{array.type} does not fit {wanted}: {error}") from None


def _is_family(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of the Arrow type `given` may stand for those of `wanted`."""
    from pyarrow import types as t

    if t.is_timestamp(given) and t.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    families = (
        (t.is_integer, t.is_integer),
        (lambda kind: t.is_integer(kind) or t.is_floating(kind), t.is_floating),
        (lambda kind: t.is_large_string(kind) or t.is_string_view(kind), t.is_string),
        (_is_bytes, t.is_binary),
        (_is_bytes, t.is_fixed_size_binary),
        (t.is_decimal, t.is_decimal),
        (t.is_date, t.is_date),
        (t.is_time, t.is_time),
    )
    return any(ours(given) and theirs(wanted) for ours, theirs in families)


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    return any(is_it(kind) for is_it in (t.is_binary, t.is_large_binary, t.is_fixed_size_binary))
