"""A timestamp is a moment: a datetime without a time zone is none.                       [P]

fastavro takes such a datetime for the machine's local time, so one program would write other bytes
on another machine. `zone_check` gives a function that refuses it wherever a schema has a
`timestamp-millis` or `timestamp-micros`; a `local-timestamp-…` is what has no zone.

A union has one branch at most that takes a datetime, as both kinds are longs. Its records are
looked at in every branch: of two that call a moment and a local time alike, the stricter counts.

Owns   where in a value moments are. A schema without any costs nothing.
Fails  with ValueError naming the field, from the function.
Source Avro 1.12 specification, "Timestamps"; fastavro `_logical_writers_py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from kafkalite.serde.avro_schema import Node, Schema, at, inside, kind, logical

Check: TypeAlias = Callable[[Any, str], None]

MOMENTS: Final = frozenset({"timestamp-millis", "timestamp-micros"})


def zone_check(schema: Schema) -> Check | None:
    """A check against datetimes without a zone; None if the schema has no timestamps."""
    return _Checks(schema).of(schema.root)


class _Checks:
    """The checks of a schema's types, each made once."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._with_moments = _names_with_moments(schema)
        self._named: dict[str, Check | None] = {}

    def of(self, node: Node) -> Check | None:
        """The check of values of a type."""
        node = self._schema.deref(node)
        match kind(node):
            case "record":
                return self._of_record(node)
            case "union":
                return self._of_union(node)
            case "array":
                return _each(self.of(node["items"]), list | tuple, "[]", lambda value: value)
            case "map":
                return _each(self.of(node["values"]), dict, "{}", dict.values)
        return _refuse if logical(node) in MOMENTS else None

    def _of_record(self, node: Node) -> Check | None:
        name = node["name"]
        if name not in self._with_moments:
            return None
        if name not in self._named:
            fields: list[tuple[str, Check]] = []

            def check(value: Any, path: str) -> None:
                if isinstance(value, Mapping):
                    for field, inner in fields:
                        if field in value:
                            inner(value[field], inside(path, field))

            self._named[name] = check  # before its fields, which may be of this very type
            found = ((field["name"], self.of(field["type"])) for field in node["fields"])
            fields += [(field, inner) for field, inner in found if inner is not None]
        return self._named[name]

    def _of_union(self, branches: list[Node]) -> Check | None:
        found = (self.of(branch) for branch in branches)
        checks = [check for check in found if check is not None]
        if len(checks) < 2:
            return checks[0] if checks else None

        def check_all(value: Any, path: str) -> None:
            for check in checks:
                check(value, path)

        return check_all


def _names_with_moments(schema: Schema) -> frozenset[str]:
    """The records in which there may be moments, however deep."""
    names = set(schema.names)
    mentioned = {name: _mentions(schema.names[name]) for name in names}
    found = {name for name in names if mentioned[name] & MOMENTS}
    while True:
        more = {name for name in names - found if mentioned[name] & found}
        if not more:
            return frozenset(found)
        found |= more


def _mentions(node: Node) -> set[str]:
    """The names of types, and the logical types, that a type is made of."""
    match node:
        case str():
            return {node}
        case list():
            return {word for branch in node for word in _mentions(branch)}
    own = {logical(node) or "", str(node.get("name", ""))}
    parts = [field["type"] for field in node.get("fields", ())]
    parts += [node[part] for part in ("items", "values") if part in node]
    return own | {word for part in parts for word in _mentions(part)}


def _each(check: Check | None, kinds: Any, mark: str, parts: Callable[[Any], Any]) -> Check | None:
    """The check of all parts of a value, if it is of the kinds."""
    if check is None:
        return None

    def check_parts(value: Any, path: str) -> None:
        if isinstance(value, kinds):
            for part in parts(value):
                check(part, f"{path}{mark}")

    return check_parts


def _refuse(value: Any, path: str) -> None:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{at(path)}datetime {value} is no moment: give it a time zone")
