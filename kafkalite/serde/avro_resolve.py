"""Schema resolution: can all data of a writer's schema be read as a reader's schema?      [P]

`unreadable` walks both schemas side by side and collects each place where they do not match. None
means: whatever the writer's schema can hold, fastavro, which does the reading, gives as the
reader's. A pair of records is looked at once, so a record may contain itself.

A schema may come from anybody, so the walk takes steps in proportion to the schemas' lengths where
it can, counts them, and ends with its first COMPLAINTS_MAX complaints.

`added_fields` finds the step that most schemas evolve by, new fields at the end of a record: what
was written before it can be read as it was written, and be completed.

Owns   the rules of resolution: promotions, names and aliases, defaults, unions, enums.
Fails  with SchemaError when the schemas are nested too deeply, or the walk takes too many steps;
       what does not match is data.
Source Avro 1.12 specification, "Schema Resolution"; where it is silent (which branch of a reader's
       union), fastavro: the first that matches by kind and name, promoted or not. Stricter
       than both: a timestamp-millis is no timestamp-micros, a decimal's scale must stay, and no two
       of the writer's fields may lead to one of the reader's, by its name and by an alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import (
    PRIMITIVES,
    Node,
    Schema,
    at,
    default_value,
    kind,
    logical,
    type_name,
)
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.work import Work

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
NAMED: Final = frozenset({"record", "enum", "fixed"})
STEPS_MAX: Final = 4_000_000
COMPLAINTS_MAX: Final = 100
BRANCHES_SHOWN: Final = 10
PATH_CHARS_SHOWN: Final = 500

Path: TypeAlias = tuple[str, ...]  # names of fields, and ITEMS and VALUES between them
ITEMS: Final = "[]"
VALUES: Final = "{}"


@dataclass(frozen=True, slots=True)
class Labels:
    """The names of the two schemas in messages."""

    writer: str = "the writer's schema"
    reader: str = "the reader's schema"


def comparing(what: str, *, code: int | None = None) -> Work:
    """The work that a comparison, or several together, may be; `what` is compared."""
    return Work(STEPS_MAX, f"comparing {what}", code=code)


def unreadable(
    writer: Schema, reader: Schema, labels: Labels = Labels(), work: Work | None = None
) -> list[str]:
    """Why some data of `writer` cannot be read as `reader`; empty when all can.

    Each reason is a sentence that begins with the place in the reader's schema. There are no more
    than COMPLAINTS_MAX.
    """
    walk = _Walk(writer, reader, labels, work or comparing("the schemas"))
    try:
        walk.pair(writer.root, reader.root, ())
    except _EnoughFound:
        pass
    except RecursionError:
        raise SchemaError("the schemas are nested too deeply to be compared") from None
    return list(walk.found)


def added_fields(writer: Schema, reader: Schema) -> dict[str, Any] | None:
    """The defaults of the fields that the reader's record has after all of the writer's.

    None where the two differ in anything else that matters to reading, or a default can be changed
    by whoever is given it: then fastavro must resolve them.
    """
    ours, theirs = writer.root, reader.root
    if kind(ours) != "record" or kind(theirs) != "record" or ours["name"] != theirs["name"]:
        return None
    if writer.recursive or reader.recursive:
        return None
    count = len(ours["fields"])
    shared, added = theirs["fields"][:count], theirs["fields"][count:]
    if [(f["name"], f["type"]) for f in shared] != [(f["name"], f["type"]) for f in ours["fields"]]:
        return None
    if any("default" not in field for field in added) or not all(map(_is_plain, theirs["fields"])):
        return None
    defaults = {f["name"]: default_value(reader, f["type"], f["default"]) for f in added}
    return None if any(isinstance(d, list | dict) for d in defaults.values()) else defaults


def _is_plain(field: dict[str, Any]) -> bool:
    """Whether a field is read the same with and without resolution: it has no alias, and no union
    in which one branch can be promoted to another."""
    return not field.get("aliases") and _has_one_meaning(field["type"])


def _has_one_meaning(node: Node) -> bool:
    match node:
        case list():
            return len(node) <= 2 and "null" in node and all(map(_has_one_meaning, node))
        case {"items": inner} | {"values": inner}:
            return _has_one_meaning(inner)
        case {"fields": fields}:
            return all(map(_is_plain, fields))
    return True


class _EnoughFound(Exception):
    """There are as many complaints as are given."""


class _Walk:
    """One walk over both schemas."""

    def __init__(self, writer: Schema, reader: Schema, labels: Labels, work: Work) -> None:
        self.writer, self.reader, self.labels, self.work = writer, reader, labels, work
        self.found: dict[str, None] = {}  # complaints, each once
        self.seen: set[tuple[str, str]] = set()  # pairs of records
        self.missing_symbols: dict[tuple[str, str], str | None] = {}  # of pairs of enums
        self.unions: dict[int, _Branches] = {}  # the reader's, by their ids as objects
        self.aliases: dict[str, frozenset[str]] = {}  # the reader's, by the name of the type

    def pair(self, writer: Node, reader: Node, path: Path) -> None:
        """Looks at one type of the writer, read as one of the reader."""
        self.work.take()
        writer, reader = self.writer.deref(writer), self.reader.deref(reader)
        if isinstance(writer, list):
            for branch in writer:
                self.pair(branch, reader, path)
        elif isinstance(reader, list):
            self._into_union(writer, reader, path)
        elif not self._matches(writer, reader) or not _same_meaning(writer, reader):
            self._miss(
                path,
                f"{type_name(writer)} in {self.labels.writer} cannot be read as "
                f"{type_name(reader)} in {self.labels.reader}",
            )
        else:
            self._parts(writer, reader, path)

    def _miss(self, path: Path, reason: str) -> None:
        self._complain(f"{at(_shown(path))}{reason}")

    def _complain(self, complaint: str) -> None:
        self.found[complaint] = None
        if len(self.found) >= COMPLAINTS_MAX:
            raise _EnoughFound

    def _into_union(self, writer: Node, reader: list[Node], path: Path) -> None:
        branches = self.unions.get(id(reader))
        if branches is None:
            branches = self.unions[id(reader)] = _Branches(self.reader, reader, self.work)
        for branch in branches.candidates(writer):
            if self._matches(writer, self.reader.deref(branch)):
                self.pair(writer, branch, path)
                return
        shown = ", ".join(type_name(branch) for branch in reader[:BRANCHES_SHOWN])
        more = len(reader) - BRANCHES_SHOWN
        self._miss(
            path,
            f"{type_name(writer)} in {self.labels.writer} matches no branch of the union of "
            f"{shown}{f' and {more:,} more' if more > 0 else ''} in {self.labels.reader}",
        )

    def _matches(self, writer: Node, reader: Node) -> bool:
        """Whether the types are one by kind and name, or the writer's is promoted."""
        ours, theirs = kind(writer), kind(reader)
        if ours in NAMED:
            return ours == theirs and self._same_name(writer, reader)
        if ours in PRIMITIVES:
            return ours == theirs or theirs in PROMOTIONS.get(ours, ())
        return ours == theirs

    def _same_name(self, writer: Node, reader: Node) -> bool:
        """Whether the names agree without their namespaces, or the writer's is an alias."""
        ours, theirs = writer["name"], reader["name"]
        if _simple(ours) == _simple(theirs):
            return True
        if theirs not in self.aliases:
            self.aliases[theirs] = frozenset(reader.get("aliases", ()))
        return ours in self.aliases[theirs]

    def _parts(self, writer: Node, reader: Node, path: Path) -> None:
        match kind(writer):
            case "array":
                self.pair(writer["items"], reader["items"], (*path, ITEMS))
            case "map":
                self.pair(writer["values"], reader["values"], (*path, VALUES))
            case "fixed":
                self._fixed(writer, reader, path)
            case "enum":
                self._enum(writer, reader, path)
            case "record":
                names = (writer["name"], reader["name"])
                if names not in self.seen:
                    self.seen.add(names)
                    self._record(writer, reader, path)

    def _fixed(self, writer: Node, reader: Node, path: Path) -> None:
        if writer["size"] != reader["size"]:
            self._miss(
                path,
                f"{type_name(writer)} has {writer['size']} bytes in {self.labels.writer} and "
                f"{reader['size']} in {self.labels.reader}",
            )

    def _enum(self, writer: Node, reader: Node, path: Path) -> None:
        missing = None if "default" in reader else self._missing_symbol(writer, reader)
        if missing is not None:
            self._miss(
                path,
                f"{type_name(writer)} has symbol {glimpse(missing)} in {self.labels.writer}, "
                f"which is missing in {self.labels.reader} and there is no default",
            )

    def _missing_symbol(self, writer: Node, reader: Node) -> str | None:
        """The first symbol of the writer's enum that the reader's lacks."""
        names = (writer["name"], reader["name"])
        if names not in self.missing_symbols:
            self.work.take(len(writer["symbols"]))
            known = self.reader.symbols[reader["name"]]
            lacking = (symbol for symbol in writer["symbols"] if symbol not in known)
            self.missing_symbols[names] = next(lacking, None)
        return self.missing_symbols[names]

    def _record(self, writer: Node, reader: Node, path: Path) -> None:
        self.work.take(_size(writer) + _size(reader))
        sources_of = _sources(writer, reader)
        for field in reader["fields"]:
            place, sources = (*path, field["name"]), sources_of[field["name"]]
            if len(sources) > 1:
                names = " and ".join(glimpse(source["name"]) for source in sources)
                self._miss(place, f"both {names} of {self.labels.writer} lead here")
            elif sources:
                self.pair(sources[0]["type"], field["type"], place)
            elif "default" not in field:
                self._complain(
                    f"field {_shown(place)!r} has no default and is missing in {self.labels.writer}"
                )


class _Branches:
    """The branches of a reader's union, found by kind and name.

    Types without a name are few: a union has one of each kind.
    """

    def __init__(self, schema: Schema, union: list[Node], work: Work) -> None:
        self._union = union
        self._unnamed: list[Node] = []
        self._of_name: dict[tuple[str, str], int] = {}  # kind and name -> the first branch's place
        self._of_alias: dict[tuple[str, str], int] = {}
        for place, branch in enumerate(union):
            node = schema.deref(branch)
            word = kind(node)
            if word not in NAMED:
                self._unnamed.append(branch)
                continue
            aliases = node.get("aliases", ())
            work.take(1 + len(aliases))
            self._of_name.setdefault((word, _simple(node["name"])), place)
            for alias in aliases:
                self._of_alias.setdefault((word, alias), place)

    def candidates(self, writer: Node) -> list[Node]:
        """In their order, branches among which is the first that matches, if there is one."""
        word = kind(writer)
        if word not in NAMED:
            return self._unnamed
        places = {
            self._of_name.get((word, _simple(writer["name"]))),
            self._of_alias.get((word, writer["name"])),
        }
        return [self._union[place] for place in sorted(p for p in places if p is not None)]


def _size(record: Node) -> int:
    """How many names of fields and aliases of fields a record has."""
    fields = record["fields"]
    return len(fields) + sum(len(field.get("aliases", ())) for field in fields)


def _sources(writer: Node, reader: Node) -> dict[str, list[dict[str, Any]]]:
    """Which of the writer's fields lead to each of the reader's, by its name, else by an alias."""
    fields = reader["fields"]
    targets = {alias: field["name"] for field in fields for alias in field.get("aliases", ())}
    targets |= {field["name"]: field["name"] for field in fields}
    sources: dict[str, list[dict[str, Any]]] = {field["name"]: [] for field in fields}
    for field in writer["fields"]:
        if field["name"] in targets:
            sources[targets[field["name"]]].append(field)
    return sources


def _simple(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def _shown(path: Path) -> str:
    """A place as messages name it, its end if it is long: `stops[].at`."""
    text = ""
    for part in path:
        text += part if part in (ITEMS, VALUES) or not text else f".{part}"
    return text if len(text) <= PATH_CHARS_SHOWN else f"…{text[-PATH_CHARS_SHOWN:]}"


def _same_meaning(writer: Node, reader: Node) -> bool:
    """Whether bytes that mean the one can be taken for the other; a plain number for either."""
    ours, theirs = logical(writer), logical(reader)
    if ours is None or theirs is None:
        return True
    if ours != theirs:
        return False
    if ours != "decimal":
        return True
    same_scale: bool = writer.get("scale", 0) == reader.get("scale", 0)
    return same_scale and writer["precision"] <= reader["precision"]
