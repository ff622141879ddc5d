"""An Avro schema as text for others: as Avro's Java library writes it, and with all types in.  [P]

`rendered` is the form in which schemas are stored and shown: names relative to the namespace around
them, attributes in Java's order. `self_contained` puts the definition of each type that the schema
only mentions in the place where it is first mentioned, so that the text needs no references.

Owns   the two forms; `avro_schema` owns a schema's meaning.
Never  changes the meaning: where Java's form would be read as another schema, the canonical text
       is given, in which all names are full.
Source Avro 1.12, `Schema.toString`.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import PRIMITIVES, Node, Schema, ordered, parse_schema

NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
TYPE_FIRST: Final = ("type", "name", "namespace", "doc")
OWN: Final = ("fields", "symbols", "default", "items", "values", "size")
FIELD_FIRST: Final = ("name", "type", "doc", "default", "order", "aliases")


def rendered(schema: Schema, references: tuple[str, ...] = ()) -> str:
    """The schema's text in Java's form; `references` are those that it was parsed with."""
    text = orjson.dumps(_type(schema.root, "")).decode()
    spaces = {name.rpartition(".")[0] for name in schema.names}
    if "" not in spaces or len(spaces) == 1:
        return text  # a short name is always one of the namespace around it
    try:
        again = parse_schema(text, references)
    except SchemaError:
        return schema.text
    return text if again.text == schema.text else schema.text


def self_contained(schema: Schema) -> str:
    """The schema's canonical text with the definitions of all types that it mentions."""
    return orjson.dumps(_whole(schema, schema.root, "", set())).decode()


def _type(node: Node, space: str) -> Any:
    """A type in Java's form; `space` is the namespace around it."""
    if isinstance(node, str):
        return node if node in PRIMITIVES else _relative(node, space)
    if isinstance(node, list):
        return [_type(branch, space) for branch in node]
    form = {name: part for name, part in node.items() if name != "namespace"}
    if node["type"] in NAMED:
        own, _, form["name"] = node["name"].rpartition(".")
        if own != space:
            form["namespace"] = own
        if "aliases" in node:
            form["aliases"] = [_relative(alias, own) for alias in node["aliases"]]
        space = own
    if "fields" in node:
        form["fields"] = [_field(field, space) for field in node["fields"]]
    for part in ("items", "values"):
        if part in node:
            form[part] = _type(node[part], space)
    last = ("aliases",) if "aliases" in form else ()
    first = [name for name in (*TYPE_FIRST, *OWN) if name in form]
    others = [name for name in form if name not in (*first, *last)]
    return {name: form[name] for name in (*first, *others, *last)}


def _field(field: dict[str, Any], space: str) -> dict[str, Any]:
    form = {**field, "type": _type(field["type"], space)}
    first = [name for name in FIELD_FIRST if name in form]
    return {name: form[name] for name in (*first, *(n for n in form if n not in first))}


def _relative(name: str, space: str) -> str:
    """A full name as it is written within a namespace."""
    own, _, simple = name.rpartition(".")
    return simple if own in ("", space) and simple not in PRIMITIVES else name


def _whole(schema: Schema, node: Node, space: str, defined: set[str]) -> Any:
    """A type in normal form; a type whose name is not in `defined` is written out.

    `space` is the namespace around it.
    """
    if isinstance(node, list):
        return [_whole(schema, branch, space, defined) for branch in node]
    if isinstance(node, str):
        if node in PRIMITIVES or node in defined:
            return node
        node = schema.deref(node)
    form = {name: part for name, part in node.items() if name != "namespace"}
    if "name" in node:
        defined.add(node["name"])
        own = node["name"].rpartition(".")[0]
        if space and not own:
            form["namespace"] = ""
        space = own
    if "fields" in node:
        form["fields"] = [
            {**field, "type": _whole(schema, field["type"], space, defined)}
            for field in node["fields"]
        ]
    for part in ("items", "values"):
        if part in node:
            form[part] = _whole(schema, node[part], space, defined)
    return ordered(form)
