"""What becomes of a table's columns when the values of its topic get a new schema.           [P]

    a new field            a new column; older rows are null there
    a field that is gone   its column stays; newer rows are null there
    a new name             the column gets the name, if the schema has the old one as an alias
    a wider type           the column gets the type that holds both, as below; it never narrows

    int, long              long                         string, bytes       bytes
    int, float, double     double                       decimals            the longer, of one scale
    long, float, double    double, if it holds all values that the table has

Records, items of arrays and values of maps follow the same rules, each at its place: `place.city`,
`stops[].city`, `fares{}.price`.

Owns   nothing.
Fails  with ConfigError for two types that have no common one, for two names that differ in capitals
       alone, and for a rename of the field that names the folders.
Source Avro's resolution of schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafkalite.errors import ConfigError
from kafkalite.serde.avro_schema import Node, Schema, kind

# Older names of fields, by the place that a field has now.
Aliases: TypeAlias = Mapping[str, Sequence[str]]

NUMBERS: Final = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
BYTES: Final = frozenset({pa.string(), pa.binary()})


@dataclass(frozen=True, slots=True)
class Widened:
    """A place whose type changes."""

    old: pa.DataType
    new: pa.DataType


@dataclass(frozen=True, slots=True)
class Evolution:
    """A table's columns after a load, and how they differ from those before. Places have the names
    that they get; `renamed` has the older name of each.
    """

    columns: pa.Schema
    added: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    widened: Mapping[str, Widened] = field(default_factory=dict)

    @property
    def older_names(self) -> Aliases:
        """The names that columns had before, as `conformed` takes them."""
        return {place: (old,) for place, old in self.renamed.items()}

    @property
    def changes_files(self) -> bool:
        """Whether rows that lie in files have other names or types than the columns."""
        return bool(self.renamed or self.widened)

    def lines(self) -> Iterator[str]:
        """What changes, for people."""
        for place, old in self.renamed.items():
            yield f"column {old} is now {place}"
        for place, types in self.widened.items():
            yield f"column {place} is now {types.new}, and was {types.old}"
        for place in self.added:
            yield f"column {place} is new; older rows are null there"


def aliases_of(schema: Schema) -> dict[str, tuple[str, ...]]:
    """The aliases of a schema's fields, by their places."""
    return dict(_aliases(schema.root, schema, ""))


def _aliases(node: Node, schema: Schema, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    node = schema.deref(node)
    match kind(node):
        case "union":
            for branch in node:
                yield from _aliases(branch, schema, path)
        case "array":
            yield from _aliases(node["items"], schema, f"{path}[]")
        case "map":
            yield from _aliases(node["values"], schema, f"{path}{{}}")
        case "record":
            for each in node["fields"]:
                place = _below(path, each["name"])
                if each.get("aliases"):
                    yield place, tuple(each["aliases"])
                yield from _aliases(each["type"], schema, place)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def evolved(
    there: pa.Schema | None, wanted: pa.Schema, aliases: Aliases, folders: str | None = None
) -> Evolution:
    """What columns `there` become when rows have the columns `wanted`; `folders` is the field that
    the table's folders are named by.
    """
    if there is None:
        return Evolution(wanted)
    found = _Evolving(aliases)
    columns = pa.schema(list(found.struct(pa.struct(list(there)), pa.struct(list(wanted)), "")))
    wider = found.widened.get(folders or "")
    if folders in found.renamed.values() or (wider and wider.new != pa.int64()):
        raise ConfigError(
            f"column {folders} names the table's folders and cannot change: load into a new "
            "warehouse"
        )
    return Evolution(columns, tuple(found.added), found.renamed, found.widened)


class _Evolving:
    """One comparison of columns."""

    def __init__(self, aliases: Aliases) -> None:
        self.aliases = aliases
        self.added: list[str] = []
        self.renamed: dict[str, str] = {}
        self.widened: dict[str, Widened] = {}

    def struct(self, there: pa.StructType, wanted: pa.StructType, path: str) -> pa.StructType:
        """The fields that are wanted, in their order, then those that are only there."""
        left = {each.name: each.type for each in there}
        fields: list[pa.Field] = []
        for each in wanted:
            place = _below(path, each.name)
            old = self._old_name(each.name, place, left, wanted)
            if old is None:
                self.added.append(place)
                fields.append(pa.field(each.name, each.type))
                continue
            if old != each.name:
                self.renamed[place] = old
            fields.append(pa.field(each.name, self.type(left.pop(old), each.type, place)))
        fields += [pa.field(name, type_) for name, type_ in left.items()]
        _check_names([each.name for each in fields], path)
        return pa.struct(fields)

    def _old_name(
        self, name: str, place: str, left: Mapping[str, pa.DataType], wanted: pa.StructType
    ) -> str | None:
        if name in left:
            return name
        aliases = self.aliases.get(place, ())
        return next((a for a in aliases if a in left and wanted.get_field_index(a) < 0), None)

    def type(self, there: pa.DataType, wanted: pa.DataType, path: str) -> pa.DataType:
        """The type that holds the values of both."""
        if pa.types.is_struct(there) and pa.types.is_struct(wanted):
            return self.struct(there, wanted, path)
        if pa.types.is_list(there) and pa.types.is_list(wanted):
            return pa.list_(self.type(there.value_type, wanted.value_type, f"{path}[]"))
        if pa.types.is_map(there) and pa.types.is_map(wanted):
            of = self.type(there.item_type, wanted.item_type, f"{path}{{}}")
            return pa.map_(wanted.key_type, of)
        common = _common(there, wanted)
        if common is None:
            raise ConfigError(
                f"column {path} is {there} and cannot become {wanted}: load into a new warehouse, "
                "or give the field another name"
            )
        if common != there:
            self.widened[path] = Widened(there, common)
        return common


def _common(there: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of two; None if there is none."""
    if there == wanted:
        return there
    if there in NUMBERS and wanted in NUMBERS:
        return pa.int64() if {there, wanted} == {pa.int32(), pa.int64()} else pa.float64()
    if {there, wanted} == BYTES:
        return pa.binary()
    if pa.types.is_decimal(there) and pa.types.is_decimal(wanted) and there.scale == wanted.scale:
        return pa.decimal128(max(there.precision, wanted.precision), there.scale)
    return None


def _check_names(names: Sequence[str], path: str) -> None:
    """SQL does not tell capitals from small letters."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"columns {_below(path, other)} and {_below(path, name)} have one name in SQL: "
                f"give the field {other} the alias {name}"
            )


# ---- rows --------------------------------------------------------------------------------------


def conformed(
    rows: pa.RecordBatch, columns: pa.Schema, older_names: Aliases | None = None
) -> pa.RecordBatch:
    """Rows with these columns. A column that they lack is null; one that the columns lack goes.
    ConfigError, naming the column, for a value that the column's type does not hold.
    """
    there = dict(zip(rows.schema.names, rows.columns, strict=True))
    made = _fields(there, list(columns), rows.num_rows, "", older_names or {})
    return pa.RecordBatch.from_arrays(made, schema=columns)


def _fields(
    there: Mapping[str, Any], fields: Sequence[pa.Field], length: int, path: str, older: Aliases
) -> list[pa.Array]:
    """The arrays of fields, each under its name or else under an older one. A name that is older
    for one field is not that of another.
    """
    names: dict[str, str] = {}
    for each in fields:
        aliases = () if each.name in there else older.get(_below(path, each.name), ())
        for alias in aliases:
            if alias in there:
                names[each.name] = alias
    taken = set(names.values())
    names |= {f.name: f.name for f in fields if f.name in there and f.name not in taken}
    return [
        _fitted(there[names[each.name]], each.type, _below(path, each.name), older)
        if each.name in names
        else pa.nulls(length, each.type)
        for each in fields
    ]


def _fitted(array: Any, type_: pa.DataType, path: str, older: Aliases) -> Any:
    if array.type == type_:
        return array
    if pa.types.is_struct(type_) and pa.types.is_struct(array.type):
        there = dict(zip(array.type.names, array.flatten(), strict=True))
        parts = _fields(there, list(type_), len(array), path, older)
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=array.is_null())
    if pa.types.is_list(type_) and pa.types.is_list(array.type):
        items = _fitted(array.values, type_.value_type, f"{path}[]", older)
        offsets = pa.array(array.offsets.to_numpy())  # of its own: a mask does not go with a slice
        return pa.ListArray.from_arrays(offsets, items, type_, mask=array.is_null())
    if pa.types.is_map(type_) and pa.types.is_map(array.type):
        items = _fitted(array.items, type_.item_type, f"{path}{{}}", older)
        offsets = pa.array(array.offsets.to_numpy())
        return pa.MapArray.from_arrays(offsets, array.keys, items, type_, mask=array.is_null())
    try:
        return array.cast(type_)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"column {path} becomes {type_}, which does not hold all values of it ({error}): load "
            "into a new warehouse, or give the field another name"
        ) from error
