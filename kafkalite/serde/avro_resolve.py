"""Schema resolution: can all data of a writer's schema be read as a reader's schema?      [P]

`unreadable` walks both schemas side by side and collects each place where they do not match. None
means: whatever the writer's schema can hold, fastavro, which does the reading, gives as the
reader's. A pair of records is looked at once, so a record may contain itself.

`added_fields` finds the step that most schemas evolve by, new fields at the end of a record: what
was written before it can be read as it was written, and be completed.

Owns   the rules of resolution: promotions, names and aliases, defaults, unions, enums.
Never  fails: what does not match is data.
Source Avro 1.12 specification, "Schema Resolution"; where it is silent (which branch of a reader's
       union), fastavro: the first that matches by kind and name, promoted or not. Stricter
       than both: a timestamp-millis is no timestamp-micros, a decimal's scale must stay, and no two
       of the writer's fields may lead to one of the reader's, by its name and by an alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.serde.avro_schema import (
    PRIMITIVES,
    Node,
    Schema,
    at,
    default_value,
    inside,
    kind,
    logical,
    type_name,
)

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
NAMED: Final = frozenset({"record", "enum", "fixed"})


@dataclass(frozen=True, slots=True)
class Labels:
    """What messages call the two schemas."""

    writer: str = "the writer's schema"
    reader: str = "the reader's schema"


def unreadable(writer: Schema, reader: Schema, labels: Labels = Labels()) -> list[str]:
    """Why some data of `writer` cannot be read as `reader`; empty when all can.

    Each reason is a sentence that begins with the place in the reader's schema.
    """
    walk = _Walk(writer, reader, labels)
    walk.pair(writer.root, reader.root, "")
    return list(dict.fromkeys(walk.found))


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


class _Walk:
    """One walk over both schemas."""

    def __init__(self, writer: Schema, reader: Schema, labels: Labels) -> None:
        self.writer, self.reader, self.labels = writer, reader, labels
        self.seen: set[tuple[str, str]] = set()  # pairs of records
        self.found: list[str] = []

    def pair(self, writer: Node, reader: Node, path: str) -> None:
        """Looks at one type of the writer, read as one of the reader."""
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

    def _miss(self, path: str, reason: str) -> None:
        self.found.append(f"{at(path)}{reason}")

    def _into_union(self, writer: Node, reader: list[Node], path: str) -> None:
        for branch in reader:
            if self._matches(writer, self.reader.deref(branch)):
                self.pair(writer, branch, path)
                return
        branches = ", ".join(type_name(branch) for branch in reader)
        self._miss(
            path,
            f"{type_name(writer)} in {self.labels.writer} matches no branch of the union of "
            f"{branches} in {self.labels.reader}",
        )

    def _matches(self, writer: Node, reader: Node) -> bool:
        """Whether the types are one by kind and name, or the writer's is promoted."""
        ours, theirs = kind(writer), kind(reader)
        if ours in NAMED:
            return ours == theirs and _same_name(writer, reader)
        if ours in PRIMITIVES:
            return ours == theirs or theirs in PROMOTIONS.get(ours, ())
        return ours == theirs

    def _parts(self, writer: Node, reader: Node, path: str) -> None:
        match kind(writer):
            case "array":
                self.pair(writer["items"], reader["items"], f"{path}[]")
            case "map":
                self.pair(writer["values"], reader["values"], f"{path}{{}}")
            case "fixed":
                self._fixed(writer, reader, path)
            case "enum":
                self._enum(writer, reader, path)
            case "record":
                names = (writer["name"], reader["name"])
                if names not in self.seen:
                    self.seen.add(names)
                    self._record(writer, reader, path)

    def _fixed(self, writer: Node, reader: Node, path: str) -> None:
        if writer["size"] != reader["size"]:
            self._miss(
                path,
                f"{type_name(writer)} has {writer['size']} bytes in {self.labels.writer} and "
                f"{reader['size']} in {self.labels.reader}",
            )

    def _enum(self, writer: Node, reader: Node, path: str) -> None:
        missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if missing and "default" not in reader:
            self._miss(
                path,
                f"{type_name(writer)} has symbol {missing[0]!r} in {self.labels.writer}, "
                f"which is missing in {self.labels.reader} and there is no default",
            )

    def _record(self, writer: Node, reader: Node, path: str) -> None:
        sources_of = _sources(writer, reader)
        for field in reader["fields"]:
            place, sources = inside(path, field["name"]), sources_of[field["name"]]
            if len(sources) > 1:
                names = " and ".join(repr(source["name"]) for source in sources)
                self._miss(place, f"both {names} of {self.labels.writer} lead here")
            elif sources:
                self.pair(sources[0]["type"], field["type"], place)
            elif "default" not in field:
                self.found.append(
                    f"field {place!r} has no default and is missing in {self.labels.writer}"
                )


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


def _same_name(writer: Node, reader: Node) -> bool:
    """Whether the names agree without their namespaces, or the writer's is one of the aliases."""
    ours, theirs = writer["name"].rpartition(".")[2], reader["name"].rpartition(".")[2]
    return ours == theirs or writer["name"] in reader.get("aliases", ())


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
