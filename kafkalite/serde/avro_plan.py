"""How Avro's bytes become columns: a writer's schema read as a reader's, worked out once.    [P]

`plan` resolves the two schemas and gives a `Plan`: columns in a tree, and a flat program of small
numbers that a native loop runs over each record. A node of the program reads one value of the
writer's schema into its column, or passes over it. The nodes of a value's parts follow it, up to
its `end`.

    {"name": "at", "type": ["null", "long"]}   (LONG, column 3, end 5, NULL_FIRST, null_ok 1, arg 0)

The values are those that `avro_binary` gives: fastavro is the twin. Its fields come first that the
writer wrote, in the writer's order, then the reader's other fields with their defaults. A logical
type is the writer's.

Owns   the numbers of operations and kinds, which the native modules share, and the limits.
Never  guesses. A schema that the program has no form for, or two whose resolution is not plain,
       give `Slow` with the reason in words: fastavro reads them.
Source Avro 1.12 specification, "Schema Resolution"; fastavro `_read_py`, `_logical_readers_py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_resolve import PROMOTIONS
from kafkalite.serde.avro_schema import (
    PRIMITIVES,
    Node,
    Schema,
    default_value,
    inside,
    kind,
    logical,
    type_name,
    work_for_defaults,
)

INTERFACE: Final = 9  # raised with AVRO_INTERFACE_BUILT in _avro_columns.pxd
NODES_MAX: Final = 4_096
DEPTH_MAX: Final = 64
FIXED_BYTES_MAX: Final = 1_024  # a null takes as many
DECIMAL_DIGITS_MAX: Final = 76  # of Arrow's widest
DECIMAL128_DIGITS: Final = 38


class Op(IntEnum):
    """The operation of a node of the program on the next value."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    INTEGER_AS_DOUBLE = 4
    FLOAT = 5
    FLOAT_AS_DOUBLE = 6
    DOUBLE = 7
    BYTES = 8
    STRING = 9
    FIXED = 10
    ENUM = 11
    RECORD = 12
    ARRAY = 13
    MAP = 14
    DATE = 15
    TIME_MILLIS = 16
    TIME_MICROS = 17
    TIMESTAMP_MILLIS = 18
    TIMESTAMP_MICROS = 19
    UUID = 20
    DECIMAL = 21
    FIXED_DECIMAL = 22
    SKIP_NUMBER = 23
    SKIP_FIXED = 24
    SKIP_BYTES = 25
    SKIP_UNION = 26  # of several types; a part for each branch


class Union(IntEnum):
    """The writer's union around a value, which has one branch beside null at most."""

    NONE = 0
    SOLE = 1
    NULL_FIRST = 2
    NULL_SECOND = 3


class Kind(IntEnum):
    """The Python type of a column's values."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    FIXED = 8
    ENUM = 9
    RECORD = 10
    ARRAY = 11
    MAP = 12
    DATE = 13
    TIME_MILLIS = 14
    TIME_MICROS = 15
    TIMESTAMP_MILLIS = 16
    TIMESTAMP_MICROS = 17
    LOCAL_MILLIS = 18
    LOCAL_MICROS = 19
    TIMESTAMP_NANOS = 20  # fastavro knows none and gives an int
    LOCAL_NANOS = 21
    UUID = 22
    DECIMAL = 23
    CONSTANT = 24  # a default, for each record; its only part is the type


# Indices of what a program may find wrong; the native loop gives one, the node and a number.
FAULTS: Final = (
    "the data ends early",
    "a number of more than 64 bits",
    "{number} is out of the range of int",
    "a union has no branch {number}",
    "null, which the reader's schema does not take here",
    "an enum has no symbol {number}",
    "symbol {number} of the writer's enum is unknown to the reader's",
    "a length of {number}",
    "a length of {number} runs past the end of the data",
    "text that is not UTF-8",
    "{number} is no boolean",
    "{number} is out of the range of a date",
    "{number} is out of the range of a time of day",
    "{number} is out of the range of a timestamp",
    "text that is no UUID of 36 characters",
    "a decimal of more digits than its precision",
    "{number} bytes are left over",
    "the columns take more than the {number:,} bytes that they may",
    "there is no memory for them",
)

# The same of writing.
WRITE_FAULTS: Final = (
    "null, where the schema takes none",
    "a symbol that the enum lacks",
    "a decimal of more digits than its precision",
    "a decimal that does not fit {number} bytes",
    "offset {number} lies outside of what it points into",
    "there is no memory left",
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the tree; `parts` are the indexes of those it is made of.

    `size` is a fixed's, `symbols` are an enum's as they are read, `default` is a constant's.
    """

    kind: Kind
    name: str
    nullable: bool
    parts: tuple[int, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    default: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The program: `nodes` of NODE_INTS numbers each, and `tables` for enums. Column 0 is the root.

    `paths` says of each node which field it reads. `is_own`: values are read as they were written,
    all of them, so the program can be run the other way round; `defaults` are then those of fields,
    by their columns.
    """

    nodes: array[int]
    tables: array[int]
    columns: tuple[Column, ...]
    paths: tuple[str, ...]
    is_own: bool
    defaults: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Slow:
    """There is no program, and why."""

    reason: str


NODE_INTS: Final = 6  # operation, column or -1, end, union, whether null may be read, argument

SKIPPED: Final = {
    "boolean": (Op.SKIP_FIXED, 1), "int": (Op.SKIP_NUMBER, 0), "long": (Op.SKIP_NUMBER, 0),
    "float": (Op.SKIP_FIXED, 4), "double": (Op.SKIP_FIXED, 8), "bytes": (Op.SKIP_BYTES, 0),
    "string": (Op.SKIP_BYTES, 0), "enum": (Op.SKIP_NUMBER, 0), "null": (Op.NULL, 0),
}  # fmt: skip
PLAIN: Final = {
    ("null", "null"): (Op.NULL, Kind.NULL),
    ("boolean", "boolean"): (Op.BOOLEAN, Kind.BOOLEAN),
    ("int", "int"): (Op.INT, Kind.INT),
    ("int", "long"): (Op.LONG, Kind.LONG),
    ("int", "float"): (Op.INTEGER_AS_DOUBLE, Kind.DOUBLE),  # fastavro rounds to no float
    ("int", "double"): (Op.INTEGER_AS_DOUBLE, Kind.DOUBLE),
    ("long", "long"): (Op.LONG, Kind.LONG),
    ("long", "float"): (Op.INTEGER_AS_DOUBLE, Kind.DOUBLE),
    ("long", "double"): (Op.INTEGER_AS_DOUBLE, Kind.DOUBLE),
    ("float", "float"): (Op.FLOAT, Kind.FLOAT),
    ("float", "double"): (Op.FLOAT_AS_DOUBLE, Kind.DOUBLE),
    ("double", "double"): (Op.DOUBLE, Kind.DOUBLE),
    ("bytes", "bytes"): (Op.BYTES, Kind.BYTES),
    ("bytes", "string"): (Op.STRING, Kind.STRING),
    ("string", "string"): (Op.STRING, Kind.STRING),
    ("string", "bytes"): (Op.STRING, Kind.BYTES),
}
LOGICAL: Final = {
    "date": (Op.DATE, Kind.DATE),
    "time-millis": (Op.TIME_MILLIS, Kind.TIME_MILLIS),
    "time-micros": (Op.TIME_MICROS, Kind.TIME_MICROS),
    "timestamp-millis": (Op.TIMESTAMP_MILLIS, Kind.TIMESTAMP_MILLIS),
    "timestamp-micros": (Op.TIMESTAMP_MICROS, Kind.TIMESTAMP_MICROS),
    "local-timestamp-millis": (Op.TIMESTAMP_MILLIS, Kind.LOCAL_MILLIS),
    "local-timestamp-micros": (Op.TIMESTAMP_MICROS, Kind.LOCAL_MICROS),
    "uuid": (Op.UUID, Kind.UUID),
}
NANOS: Final = {
    "timestamp-nanos": Kind.TIMESTAMP_NANOS,
    "local-timestamp-nanos": Kind.LOCAL_NANOS,
}
NAMED: Final = frozenset({"enum", "fixed", "record"})


def plan(
    writer: Schema, reader: Schema | None = None, wanted: Set[str] | None = None
) -> Plan | Slow:
    """The program that reads records of `writer` as `reader`, or why there is none.

    `wanted` are the fields of the reader's record that become columns; None: all of them. The
    others are passed over. A wanted field that the record lacks is left out.
    """
    for schema in (writer, reader or writer):
        if schema.recursive:
            return Slow("a type contains itself")
        if schema.boundless:
            return Slow("the items of an array take no bytes")
    builder = _Builder(writer, reader, wanted)
    try:
        builder.value(writer.root, None if reader is None else reader.root, "", "")
    except (_NoProgram, SchemaError) as error:
        return Slow(str(error))
    return Plan(
        builder.nodes,
        builder.tables,
        tuple(builder.columns),
        tuple(builder.paths),
        reader is None and wanted is None,
        builder.defaults,
    )


class _NoProgram(Exception):
    """Why a schema has no program."""


class _Builder:
    """Walks the writer's schema, and the reader's beside it where there is one."""

    def __init__(self, writer: Schema, reader: Schema | None, wanted: Set[str] | None) -> None:
        self._writer, self._reader, self._wanted = writer, reader, wanted
        self.nodes, self.tables = array("i"), array("i")
        self.columns: list[Column] = []
        self.paths: list[str] = []
        self.defaults: dict[int, Any] = {}
        self._work = work_for_defaults()
        self._depth = 0
        self._silent = False  # while the type of a default is described, nothing is read

    # --- nodes and columns -------------------------------------------------------------

    def _emit(self, path: str, op: Op, column: int, union: tuple[Union, bool], arg: int = 0) -> int:
        """Adds a node; its `end` is set when its parts are known."""
        if len(self.paths) >= NODES_MAX:
            raise _NoProgram(f"it has more than {NODES_MAX:,} parts")
        if self._silent:
            return -1
        node = len(self.paths)
        self.paths.append(path)
        self.nodes.extend((op, column, node + 1, union[0], union[1], arg))
        return node

    def _finish(self, node: int) -> None:
        if node >= 0:
            self.nodes[node * NODE_INTS + 2] = len(self.paths)

    def _add(self, column: Column) -> int:
        if len(self.columns) >= NODES_MAX:
            raise _NoProgram(f"it has more than {NODES_MAX:,} parts")
        self.columns.append(column)
        return len(self.columns) - 1

    def _set_parts(self, place: int, parts: list[int]) -> None:
        column = self.columns[place]
        self.columns[place] = Column(column.kind, column.name, column.nullable, tuple(parts))

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _NoProgram(f"it is nested more than {DEPTH_MAX} deep")
        yield
        self._depth -= 1

    # --- values ------------------------------------------------------------------------

    def value(self, writer: Node, reader: Node | None, name: str, path: str) -> int:
        """Adds what reads a value of the writer's type as the reader's; the column's index."""
        node, union, has_null = self._outside_union(self._writer, writer, path)
        target = self._target(node, reader, path)
        null_ok = has_null and (reader is None or _takes_null(self._reader, reader))
        nullable = null_ok or not self.columns  # the root: a record's value may be null
        with self._deeper():
            match kind(node):
                case "record":
                    return self._record(node, target, name, path, (union, null_ok))
                case "array" | "map":
                    return self._repeated(node, target, name, path, (union, null_ok))
        column, op, arg = self._leaf(node, target, Column(Kind.NULL, name, nullable), path)
        place = self._add(column)
        self._emit(path, op, place, (union, null_ok), arg)
        return place

    def _outside_union(self, schema: Schema, node: Node, path: str) -> tuple[Node, Union, bool]:
        """The type that is not null, the union around it, and whether null is its other branch."""
        node = schema.deref(node)
        if not isinstance(node, list):
            return node, Union.NONE, False
        branches, others = list(map(schema.deref, node)), self._others(schema, node)
        if len(others) > 1 or not branches:
            raise _NoProgram(f"{_field(path)} is a union of {len(others)} types")
        if len(branches) == 1:
            return branches[0], Union.SOLE, False
        is_first = kind(branches[0]) == "null"
        return others[0], Union.NULL_FIRST if is_first else Union.NULL_SECOND, True

    def _others(self, schema: Schema, union: list[Node]) -> list[Node]:
        """The types of a union beside null."""
        return [branch for branch in map(schema.deref, union) if kind(branch) != "null"]

    def _target(self, node: Node, reader: Node | None, path: str) -> Node:
        """The reader's type for a writer's type: of a union, the first that matches."""
        if reader is None or self._reader is None:
            return node
        reader = self._reader.deref(reader)
        for branch in reader if isinstance(reader, list) else [reader]:
            target = self._reader.deref(branch)
            if _matches(node, target):
                return target
        raise _NoProgram(f"{_field(path)}: {type_name(node)} matches no type of the reader's")

    def _leaf(self, node: Node, target: Node, base: Column, path: str) -> tuple[Column, Op, int]:
        """The column, the operation and its argument of a type without parts."""
        name, nullable = base.name, base.nullable
        match kind(node), logical(node):
            case ("bytes" | "fixed") as word, "decimal":
                return self._decimal(node, word, base, path)
            case _, str(word):
                op, found = LOGICAL[word]
                return Column(found, name, nullable), op, 0
            case "fixed", _:
                size = _fixed_size(node, target, path)
                return Column(Kind.FIXED, name, nullable, size=size), Op.FIXED, size
            case "enum", _:
                first = self._symbols(node, target)
                symbols = tuple(target["symbols"])
                return Column(Kind.ENUM, name, nullable, symbols=symbols), Op.ENUM, first
        op, found = PLAIN[kind(node), kind(target)]
        if found is Kind.LONG and isinstance(node, dict) and kind(node) == "long":
            found = NANOS.get(node.get("logicalType", ""), found)
        return Column(found, name, nullable), op, 0

    def _decimal(self, node: Node, word: str, base: Column, path: str) -> tuple[Column, Op, int]:
        precision, scale = node["precision"], node.get("scale", 0)
        if precision > DECIMAL_DIGITS_MAX:
            raise _NoProgram(f"{_field(path)} is a decimal of {precision} digits")
        size = 16 if precision <= DECIMAL128_DIGITS else 32
        column = Column(
            Kind.DECIMAL, base.name, base.nullable, size=size, precision=precision, scale=scale
        )
        if word == "bytes":
            return column, Op.DECIMAL, 0
        return column, Op.FIXED_DECIMAL, _fixed_size(node, node, path)

    def _symbols(self, node: Node, target: Node) -> int:
        """Where the table begins of what each of the writer's symbols is to the reader: its
        number of symbols, then theirs, -1 for one that the reader does not know."""
        places = {symbol: place for place, symbol in enumerate(target["symbols"])}
        default = places.get(target.get("default"), -1)
        first = len(self.tables)
        self.tables.append(len(node["symbols"]))
        self.tables.extend(places.get(symbol, default) for symbol in node["symbols"])
        return first

    # --- values with parts ---------------------------------------------------------------

    def _repeated(
        self, node: Node, target: Node, name: str, path: str, union: tuple[Union, bool]
    ) -> int:
        is_map = kind(node) == "map"
        part, mark = ("values", "{}") if is_map else ("items", "[]")
        nullable = union[1] or not self.columns
        place = self._add(Column(Kind.MAP if is_map else Kind.ARRAY, name, nullable))
        made = self._emit(path, Op.MAP if is_map else Op.ARRAY, place, union)
        parts = [self._add(Column(Kind.STRING, "key", False))] if is_map else []
        inner = None if self._reader is None else target[part]
        parts.append(self.value(node[part], inner, "value" if is_map else "item", path + mark))
        self._finish(made)
        self._set_parts(place, parts)
        return place

    def _record(
        self, node: Node, target: Node, name: str, path: str, union: tuple[Union, bool]
    ) -> int:
        place = self._add(Column(Kind.RECORD, name, union[1] or not self.columns))
        made = self._emit(path, Op.RECORD, place, union)
        wanted = self._wanted if place == 0 else None
        missing = {field["name"]: field for field in target["fields"]}
        aliases = {alias: f["name"] for f in target["fields"] for alias in f.get("aliases", ())}
        known = set(missing)
        parts = []
        for field in node["fields"]:
            own = field["name"]
            given = own if own in known else aliases.get(own)
            if given is not None and given not in missing:
                raise _NoProgram(f"two fields lead to {_field(inside(path, given))}")
            if given is None or (wanted is not None and given not in wanted):
                self._skip(field["type"], inside(path, own))
                if given is not None:
                    del missing[given]
                continue
            inner = None if self._reader is None else missing[given]["type"]
            parts.append(self.value(field["type"], inner, given, inside(path, given)))
            if self._reader is None and "default" in field:
                self.defaults[parts[-1]] = self._default(self._writer, field)
            del missing[given]
        for given, field in missing.items():
            if wanted is None or given in wanted:
                parts.append(self._constant(field, inside(path, given)))
        self._finish(made)
        self._set_parts(place, parts)
        return place

    def _constant(self, field: dict[str, Any], path: str) -> int:
        """The column of a field that the writer lacks."""
        if self._reader is None or "default" not in field:
            raise _NoProgram(f"{_field(path)} has no default and is missing in the writer's schema")
        default = self._default(self._reader, field)
        place = self._add(Column(Kind.CONSTANT, field["name"], False))
        writer, reader, silent = self._writer, self._reader, self._silent
        self._writer, self._reader, self._silent = self._reader, None, True
        inner = self.value(field["type"], None, "", path)
        self._writer, self._reader, self._silent = writer, reader, silent
        self.columns[place] = Column(
            Kind.CONSTANT, field["name"], False, parts=(inner,), default=default
        )
        return place

    def _default(self, schema: Schema, field: dict[str, Any]) -> Any:
        return default_value(schema, field["type"], field["default"], self._work)

    def _skip(self, node: Node, path: str) -> None:
        """Adds what passes over a value of the writer's."""
        node = self._writer.deref(node)
        if isinstance(node, list) and len(self._others(self._writer, node)) > 1:
            made = self._emit(path, Op.SKIP_UNION, -1, (Union.NONE, False), len(node))
            for branch in node:
                self._skip(branch, path)
            self._finish(made)
            return
        node, union, has_null = self._outside_union(self._writer, node, path)
        around = (union, has_null)
        with self._deeper():
            match kind(node):
                case "record":
                    made = self._emit(path, Op.RECORD, -1, around)
                    for field in node["fields"]:
                        self._skip(field["type"], inside(path, field["name"]))
                    self._finish(made)
                case "array":
                    made = self._emit(path, Op.ARRAY, -1, around)
                    self._skip(node["items"], f"{path}[]")
                    self._finish(made)
                case "map":
                    made = self._emit(path, Op.MAP, -1, around)
                    self._skip(node["values"], f"{path}{{}}")
                    self._finish(made)
                case "fixed":
                    self._emit(path, Op.SKIP_FIXED, -1, around, _fixed_size(node, node, path))
                case word:
                    op, size = SKIPPED[word]
                    self._emit(path, op, -1, around, size)


def _takes_null(schema: Schema | None, node: Node) -> bool:
    assert schema is not None
    node = schema.deref(node)
    return any(
        kind(schema.deref(b)) == "null" for b in (node if isinstance(node, list) else [node])
    )


def _matches(writer: Node, reader: Node) -> bool:
    """Whether the types are one by kind and name, or the writer's is promoted: as in
    `avro_resolve`, and as fastavro sees it."""
    ours, theirs = kind(writer), kind(reader)
    if ours in NAMED:
        return ours == theirs and _same_name(writer, reader)
    if ours in PRIMITIVES:
        return ours == theirs or theirs in PROMOTIONS.get(ours, ())
    return ours == theirs


def _same_name(writer: Node, reader: Node) -> bool:
    ours, theirs = writer["name"], reader["name"]
    is_same: bool = ours.rpartition(".")[2] == theirs.rpartition(".")[2]
    return is_same or ours in reader.get("aliases", ())


def _fixed_size(node: Node, target: Node, path: str) -> int:
    size: int = node["size"]
    if size != target["size"]:
        raise _NoProgram(f"{_field(path)} has {size} bytes, and {target['size']} in the reader's")
    if size > FIXED_BYTES_MAX:
        raise _NoProgram(f"{_field(path)} is a fixed of {size:,} bytes")
    return size


def _field(path: str) -> str:
    return f"field {path!r}" if path else "the schema"
