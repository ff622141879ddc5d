"""Avro schemas: JSON checked once and brought to one normal form.                         [P]

`parse_schema` gives a `Schema`: the normal form, the named types, and the canonical text. In the
normal form names are full, attributes have one order and nothing is lost that changes how data is
read or checked (defaults and aliases stay, unlike in Avro's "parsing canonical form", which is what
fastavro offers): two schemas with one canonical text are the same schema.

A type in normal form is a str (a primitive, or the full name of a type that is defined elsewhere),
a list (a union) or a dict. `Schema.deref` follows names, `kind` says what a type is. A named type
stands where it is first defined, so it may contain itself.

fastavro reads and writes with these schemas, but takes much that is no schema (illegal names,
fields and branches that come twice), and says of the rest no place. So the check is ours.

Owns   what a legal schema is.
Fails  with SchemaError naming the path: `field 'stops[].at': type 'datetime' is not known`.
Source Avro 1.12 specification, "Schema Declaration", "Names", "Logical Types".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson
from fastavro.read import LOGICAL_READERS

from kafkalite.errors import SchemaError
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.text_cache import cached_by_text
from kafkalite.serde.work import Work

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
FOR_NAMED: Final = frozenset({"name", "namespace", "aliases", "doc", "fields", "symbols", "size"})
INT_RANGE: Final = range(-(2**31), 2**31)
RANGES: Final = {"int": INT_RANGE, "long": range(-(2**63), 2**63)}
DEFAULT_STEPS_MAX: Final = 300_000
DECIMAL_DEFAULT_BYTES_MAX: Final = 1_024  # Python takes the square of the length for a Decimal
TOO_DEEP: Final = "the schema is nested too deeply"

Node: TypeAlias = Any  # a type in normal form


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A checked schema: its normal form, its named types by full name, its canonical text.

    `symbols` are those of its enums, by the enum's name. `recursive`: a type contains itself, so
    values may nest without end. `boundless`: an array's items take no bytes, so a few bytes may
    stand for any number of them.
    """

    root: Node
    names: Mapping[str, Node]
    text: str
    symbols: Mapping[str, frozenset[str]]
    recursive: bool
    boundless: bool

    def deref(self, node: Node) -> Node:
        """The type itself, or the named type that it refers to."""
        return self.names.get(node, node) if isinstance(node, str) else node

    @property
    def name(self) -> str | None:
        """The full name of the record, enum or fixed that this is a schema of."""
        return self.root.get("name") if isinstance(self.root, dict) else None

    def fields_with_defaults(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All records' fields that have a default, each with its record's name."""
        for name, node in self.names.items():
            yield from ((name, field) for field in node.get("fields", ()) if "default" in field)

    @property
    def json(self) -> Any:
        """The canonical schema as JSON values, a new copy each time."""
        return orjson.loads(self.text)


def kind(node: Node) -> str:
    """`union`, or the type's own word: `long`, `record`, `array`. An error is a record."""
    if isinstance(node, list):
        return "union"
    word = node if isinstance(node, str) else str(node["type"])
    return "record" if word == "error" else word


def logical(node: Node) -> str | None:
    """The logical type, where it has a meaning: elsewhere it is ignored, as Avro asks."""
    name = node.get("logicalType") if isinstance(node, dict) else None
    return name if f"{kind(node)}-{name}" in LOGICAL_READERS else None


def type_name(node: Node) -> str:
    """How messages call a type: `long`, `timestamp-millis`, `record 'Flight'`, `array`."""
    if isinstance(node, dict) and "name" in node:
        return f"{kind(node)} {glimpse(node['name'])}"
    return logical(node) or kind(node)


def takes_no_bytes(node: Node, names: Set[str] = frozenset()) -> bool:
    """Whether values of a type take no bytes in Avro; `names` are known such types."""
    match node:
        case {"type": "record" | "error", "fields": fields}:
            return all(takes_no_bytes(field["type"], names) for field in fields)
        case {"type": "fixed", "size": 0} | "null" | {"type": "null"}:
            return True
    return isinstance(node, str) and node in names


def at(path: str) -> str:
    """How a message begins that is about the place `path`."""
    return f"field {path!r}: " if path else ""


def inside(path: str, name: str) -> str:
    """The path of a record's field."""
    return f"{path}.{name}" if path else name


def parse_schema(schema: object, references: tuple[str, ...] = ()) -> Schema:
    """The schema in JSON text or JSON values. SchemaError when it is not one.

    The types that `references` define, schemas in an order in which each needs only those before
    it, may be mentioned by name: they are among the schema's names, and not part of its text.
    """
    if isinstance(schema, str):
        return _parse_text(schema, *references)
    return _parse_json(schema, _referenced(references))


@cached_by_text
def canonical_text(text: str) -> str:
    """The canonical text of a schema, whatever the names stand for that it does not define.

    So two spellings can be told to be one schema where its references are not at hand.
    """
    return _parse_json(_json(text), _Checker(is_lenient=True)).text


@cached_by_text
def _parse_text(text: str, *references: str) -> Schema:
    return _parse_json(_json(text), _referenced(references))


def _json(text: str) -> object:
    if text in PRIMITIVES:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SchemaError(f"schema {glimpse(text)} is not JSON: {error}") from None


def _referenced(references: tuple[str, ...]) -> _Checker:
    """A checker that knows the types which some schemas define."""
    checker = _Checker()
    for text in references:
        try:
            checker.normal(_json(text), namespace="", path="")
        except RecursionError:
            raise SchemaError("a referenced schema is nested too deeply") from None
    return checker


def _parse_json(json: object, checker: _Checker) -> Schema:
    try:
        root = checker.normal(json, namespace="", path="")
        text = orjson.dumps(root).decode()
    except (RecursionError, orjson.JSONEncodeError):  # of what is left, depth alone can stop it
        raise SchemaError(TOO_DEEP) from None
    schema = Schema(
        root, checker.names, text, checker.symbols, checker.recursive, checker.boundless
    )
    if not checker.is_lenient:
        _check_defaults(schema)
    return schema


def _check_defaults(schema: Schema) -> None:
    work = work_for_defaults()
    for name, field in schema.fields_with_defaults():
        try:
            default_value(schema, field["type"], field["default"], work)
        except ValueError as error:
            raise SchemaError(f"{name}: field {field['name']!r}: default {error}") from None
        except RecursionError:
            raise SchemaError(TOO_DEEP) from None


def work_for_defaults() -> Work:
    """The work that looking at the defaults of one schema may be."""
    return Work(DEFAULT_STEPS_MAX, "checking the defaults of the schema")


class _Checker:
    """Brings a schema's JSON to its normal form and refuses JSON that is no schema."""

    def __init__(self, *, is_lenient: bool = False) -> None:
        self.is_lenient = is_lenient  # unknown names are taken for types
        self.names: dict[str, Node] = {}  # a type is here, empty, while it is being looked at
        self.byteless: set[str] = set()
        self.symbols: dict[str, frozenset[str]] = {}
        self.recursive = self.boundless = False

    def normal(self, schema: Any, namespace: str, path: str) -> Node:
        """The normal form of a type; `namespace` is that of the type around it."""
        match schema:
            case str():
                return self._mention(schema, namespace, path)
            case list():
                return self._union(schema, namespace, path)
            case {"type": dict() | list() as inner}:
                return self.normal(inner, namespace, path)
            case {"type": "record" | "error" | "enum" | "fixed"}:
                return self._named(schema, namespace, path)
            case {"type": "array"}:
                schema = _without_reserved(schema)
                items = self._part(schema, "items", namespace, f"{path}[]")
                self.boundless |= takes_no_bytes(items, self.byteless)
                return ordered({**schema, "items": items})
            case {"type": "map"}:
                schema = _without_reserved(schema)
                values = self._part(schema, "values", namespace, f"{path}{{}}")
                return ordered({**schema, "values": values})
            case {"type": str(name)}:
                _check_decimal(schema, path)
                schema = _without_reserved(schema)
                mention = self._mention(name, namespace, path)
                plain = schema.keys() == {"type"} or mention not in PRIMITIVES
                return mention if plain else ordered({**schema, "type": mention})
            case dict():
                raise SchemaError(f"{at(path)}{glimpse(schema)} has no 'type'")
        raise SchemaError(f"{at(path)}{glimpse(schema)} is no type")

    def _part(self, schema: dict[str, Any], part: str, namespace: str, path: str) -> Node:
        if part not in schema:
            raise SchemaError(f"{at(path)}{schema['type']} without {part!r}")
        return self.normal(schema[part], namespace, path)

    def _mention(self, name: str, namespace: str, path: str) -> str:
        if name in PRIMITIVES:
            return name
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self.names:
                self.recursive |= not self.names[candidate]
                return candidate
        if self.is_lenient and FULL_NAME.fullmatch(full):
            return full
        raise SchemaError(f"{at(path)}type {name!r} is not known")

    def _union(self, branches: list[Any], namespace: str, path: str) -> list[Node]:
        normals = [self.normal(branch, namespace, path) for branch in branches]
        kinds = [n.get("name", kind(n)) if isinstance(n, dict) else kind(n) for n in normals]
        if "union" in kinds:
            raise SchemaError(f"{at(path)}a union directly in a union")
        twice = _twice(kinds)
        if twice:
            raise SchemaError(f"{at(path)}a union with {twice!r} twice")
        return normals

    def _named(self, schema: dict[str, Any], namespace: str, path: str) -> Node:
        """A type that is defined here. Its own namespace goes before that around it."""
        name, word = schema.get("name"), schema["type"]
        if not isinstance(name, str):
            raise SchemaError(f"{at(path)}{word} without a name")
        own = schema.get("namespace", namespace) or ""
        full = name if "." in name or not own else f"{own}.{name}"
        if not FULL_NAME.fullmatch(full) or full in PRIMITIVES:
            raise SchemaError(f"{at(path)}{full!r} is no legal name")
        if full in self.names:
            raise SchemaError(f"{at(path)}type {full!r} is defined twice")
        self.names[full] = {}
        normal = {k: v for k, v in schema.items() if k not in ("namespace", "name", "aliases")}
        normal["name"], own = full, full.rpartition(".")[0]
        if namespace and not own:
            normal["namespace"] = ""  # else a reader would give it that of the type around it
        if aliases := _texts(schema.get("aliases", []), "aliases", path):
            normal["aliases"] = [a if "." in a or not own else f"{own}.{a}" for a in aliases]
        if word == "fixed":
            size = schema.get("size")
            if type(size) is not int or size < 0:
                raise SchemaError(f"{at(path)}fixed {full!r}: size {size!r}, expected 0 or more")
            _check_decimal(schema, path)
        elif word == "enum":
            self.symbols[full] = _checked_symbols(schema, full, path)
        else:
            normal["fields"] = self._fields(schema, full, path)
        node = self.names[full] = ordered(normal)
        if takes_no_bytes(node, self.byteless):
            self.byteless.add(full)
        return node

    def _fields(self, schema: dict[str, Any], record: str, path: str) -> list[dict[str, Any]]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"{at(path)}record {record!r} has no list of fields")
        normals = [self._field(field, record, path) for field in fields]
        twice = _twice([normal["name"] for normal in normals])
        if twice:
            raise SchemaError(f"{at(path)}record {record!r} has field {twice!r} twice")
        return normals

    def _field(self, field: object, record: str, path: str) -> dict[str, Any]:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(field, dict) or not isinstance(name, str) or not NAME.fullmatch(name):
            raise SchemaError(f"{at(path)}record {record!r}: {glimpse(field)} is no field")
        place = inside(path, name)
        if "type" not in field:
            raise SchemaError(f"{at(place)}no 'type'")
        _texts(field.get("aliases", []), "aliases", place)
        namespace = record.rpartition(".")[0]
        return ordered({**field, "type": self.normal(field["type"], namespace, place)})


def _without_reserved(schema: dict[str, Any]) -> dict[str, Any]:
    """A type without a name, and without what only a type with one may have."""
    return {k: v for k, v in schema.items() if k not in FOR_NAMED}


def _twice(names: list[str]) -> str | None:
    """The first name that occurs more than once, or None."""
    return min((name for name, count in Counter(names).items() if count > 1), default=None)


def _texts(value: object, what: str, path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise SchemaError(f"{at(path)}{what} must be a list of names")
    return value


def _checked_symbols(schema: dict[str, Any], full: str, path: str) -> frozenset[str]:
    symbols = _texts(schema.get("symbols"), "symbols", path)
    if not symbols or _twice(symbols):
        raise SchemaError(f"{at(path)}enum {full!r} needs symbols, each once")
    for symbol in symbols:
        if not NAME.fullmatch(symbol):
            raise SchemaError(f"{at(path)}enum {full!r}: {symbol!r} is no legal symbol")
    if "default" in schema and schema["default"] not in symbols:
        raise SchemaError(f"{at(path)}enum {full!r}: the default is not one of its symbols")
    return frozenset(symbols)


def _check_decimal(schema: dict[str, Any], path: str) -> None:
    """Only a decimal's attributes can be wrong in a way that spoils data."""
    if schema.get("logicalType") != "decimal":
        return
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision > 0:
        raise SchemaError(f"{at(path)}decimal of precision {precision!r} and scale {scale!r}")


# fmt: off
ATTRIBUTES: Final = (
    "type", "name", "aliases", "doc", "fields", "symbols", "items", "values", "size", "default",
    "logicalType", "precision", "scale", "order",
)
# fmt: on
ORDER: Final = {name: place for place, name in enumerate(ATTRIBUTES)}


def ordered(schema: dict[str, Any]) -> dict[str, Any]:
    """The same attributes of a type in the canonical order: Avro's own first, others by name."""
    return dict(sorted(schema.items(), key=lambda item: (ORDER.get(item[0], len(ORDER)), item[0])))


class _Misfit(ValueError):
    """A default that is not of its type. The message is made when it is read: a union tries one
    branch after another, and a default may be long."""

    def __init__(self, default: object, why: str) -> None:
        super().__init__(why)
        self._default, self._why = default, why

    def __str__(self) -> str:
        return f"{glimpse(self._default)} {self._why}"


def default_value(schema: Schema, node: Node, default: Any, work: Work | None = None) -> Any:
    """The Python value of a default that stands in a schema as JSON, as readers give it.

    ValueError when the default is not of the type, SchemaError when there is no `work` left. A
    union's default may be of any of its branches.
    """
    return _Defaults(schema, work or work_for_defaults()).value(node, default)


class _Defaults:
    """The defaults of a schema, for as long as there is work left."""

    __slots__ = ("_schema", "_work")

    def __init__(self, schema: Schema, work: Work) -> None:
        self._schema, self._work = schema, work

    def value(self, node: Node, default: Any) -> Any:
        """A default as a value of a type."""
        self._work.take()
        node = self._schema.deref(node)
        match kind(node), default:
            case "array", list():
                return [self.value(node["items"], item) for item in default]
            case "map", dict():
                return {key: self.value(node["values"], part) for key, part in default.items()}
            case "record", dict():
                return {f["name"]: self._field(f, default) for f in node["fields"]}
            case "union", _:
                return self._of_union(node, default)
        plain = self._plain(node, default)
        # fastavro's converters look for a decimal's scale in the schema.
        convert: Callable[..., Any] | None = LOGICAL_READERS.get(f"{kind(node)}-{logical(node)}")
        try:
            return convert(plain, node, node) if convert else plain
        except ArithmeticError:
            raise _Misfit(default, f"is no {logical(node)}") from None

    def _of_union(self, branches: list[Node], default: Any) -> Any:
        for branch in branches:
            try:
                return self.value(branch, default)
            except ValueError:
                continue
        raise _Misfit(default, "is no union")

    def _field(self, field: dict[str, Any], default: dict[str, Any]) -> Any:
        if field["name"] not in default and "default" not in field:
            raise _Misfit(default, f"lacks field {field['name']!r}")
        return self.value(field["type"], default.get(field["name"], field.get("default")))

    def _plain(self, node: Node, default: Any) -> Any:
        """A default without parts. Bytes stand in a schema as text of code points 0-255."""
        match kind(node), default:
            case ("null", None) | ("boolean", bool()) | ("string", str()):
                return default
            case (("int" | "long" | "float" | "double"), bool()):
                pass
            case ("int" | "long") as word, int() if default in RANGES[word]:
                return default
            case (("float" | "double"), (int() | float())):
                return float(default)
            case "enum", str() if default in self._schema.symbols[node["name"]]:
                return default
            case (("bytes" | "fixed"), str()):
                return self._bytes(node, default)
        raise _Misfit(default, f"is no {kind(node)}")

    def _bytes(self, node: Node, default: str) -> bytes:
        self._work.take(len(default))
        if logical(node) == "decimal" and len(default) > DECIMAL_DEFAULT_BYTES_MAX:
            why = f"has {len(default)} bytes, a decimal's may have {DECIMAL_DEFAULT_BYTES_MAX}"
            raise _Misfit(default, why)
        try:
            data = default.encode("latin-1")
        except UnicodeEncodeError:
            raise _Misfit(default, f"is no {kind(node)}") from None
        if kind(node) == "fixed" and len(data) != node["size"]:
            raise _Misfit(default, "is no fixed")
        return data
