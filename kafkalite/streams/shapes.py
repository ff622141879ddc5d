"""What is known of the records between operators, before any is there.                    [P]

A source's serdes say what its records are, as far as they know: Avro with a schema all fields,
JSON nothing. An expression says what it makes of them, a user's function does not.

Owns   the rule for each node of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafkalite.serde.avro_schema import Schema, kind, logical, parse_schema
from kafkalite.serde.primitives import BytesSerde, Float64Serde, Int64Serde, StringSerde
from kafkalite.serde.serde import Serde
from kafkalite.serde.windowed import WindowedSerde
from kafkalite.streams import aggregates as a
from kafkalite.streams import plan as p
from kafkalite.streams.expressions.check import UNKNOWN, Shape
from kafkalite.streams.expressions.types import (
    ANY,
    BOOL,
    BYTES,
    DATE,
    FLOAT64,
    INT64,
    NUMBERS,
    STRING,
    TIMESTAMP,
    ListType,
    Mismatch,
    StructType,
    Type,
    list_of,
    struct_of,
    unify,
)
from kafkalite.streams.functions import ExpressionFunction, Function
from kafkalite.streams.sketches import ApproxDistinct, Quantiles

OF_SERDE: Final[Mapping[type, Type]] = {
    BytesSerde: BYTES,
    StringSerde: STRING,
    Int64Serde: INT64,
    Float64Serde: FLOAT64,
}
OF_AVRO: Final[Mapping[str, Type]] = {
    "boolean": BOOL,
    "int": INT64,
    "long": INT64,
    "float": FLOAT64,
    "double": FLOAT64,
    "bytes": BYTES,
    "fixed": BYTES,
    "string": STRING,
    "enum": STRING,
}
OF_LOGICAL: Final[Mapping[str, Type]] = {
    "date": DATE,
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
}


def shape_of(node: p.Node, above: Sequence[Shape]) -> Shape:
    """The shape of a node's output, given those of its inputs."""
    match node:
        case p.Source():
            return Shape(type_of_serde(node.value), type_of_serde(node.key))
        case p.Map() | p.TableMap():
            return Shape(_made_by(node.function, above[0]), above[0].key)
        case p.MapAsync():
            return Shape(ANY, above[0].key)
        case p.SelectKey():
            return Shape(above[0].value, _made_by(node.function, above[0]))
        case p.GroupBy() if node.function is not None:
            return Shape(above[0].value, _made_by(node.function, above[0]))
        case p.TableGroupBy():
            value = above[0].value if node.select is None else _made_by(node.select, above[0])
            return Shape(value, _made_by(node.function, above[0]))
        case p.FlatMap():
            made = _made_by(node.function, above[0])
            return Shape(made.of if isinstance(made, ListType) else ANY, above[0].key)
        case p.Pattern():
            value = above[0].value
            values = {s.name: list_of(value) if s.repeats else value for s in node.steps}
            return Shape(struct_of(values), above[0].key)
        case p.Unfinished():
            return Shape(ANY, above[0].key)
        case p.ProcessValues():
            return Shape(ANY, above[0].key)
        case p.MapPairs() | p.MapBatch() | p.Process():
            return UNKNOWN
        case p.JoinOfStreams():
            return Shape(_made_by(node.function, UNKNOWN), _common([each.key for each in above]))
        case p.StreamTableJoin() | p.TableJoin() | p.ForeignJoin() | p.GlobalJoin():
            return Shape(_made_by(node.function, UNKNOWN), above[0].key)
        case p.Cogroup():
            return Shape(ANY, _common([each.key for each in above]))
        case p.Aggregate():
            return _of_aggregate(node, above[0])
    return Shape(_common([each.value for each in above]), _common([each.key for each in above]))


def type_of_serde(serde: Serde) -> Type:
    """The type of the values that a serde reads."""
    if isinstance(serde, WindowedSerde):
        return _window_of(type_of_serde(serde.inner))
    # The module of avro() reads files, so this one knows its serde by what it has.
    if isinstance(text := getattr(serde, "schema", None), str):
        schema = parse_schema(text)
        return _of_avro(schema, schema.root, frozenset())
    return OF_SERDE.get(type(serde), ANY)


def _made_by(function: Function, above: Shape) -> Type:
    if isinstance(function, ExpressionFunction):
        return function.type
    if function.field is not None and isinstance(above.value, StructType):
        return above.value.field(function.field)
    return ANY


def _common(types: Sequence[Type]) -> Type:
    try:
        return unify(types) if types else ANY
    except Mismatch:
        return ANY


def _window_of(key: Type) -> Type:
    return struct_of({"key": key, "start": INT64, "end": INT64})


def _of_aggregate(node: p.Aggregate, above: Shape) -> Shape:
    types = [_of_part(part, above) for part in node.aggregates]
    names = node.fields
    value = types[0] if names is None else struct_of(dict(zip(names, types, strict=True)))
    return Shape(value, above.key if node.window is None else _window_of(above.key))


def _of_part(part: a.Aggregate, above: Shape) -> Type:
    argument = above.value if part.argument is None else _made_by(part.argument, above)
    match part:
        case a.Count() | ApproxDistinct():
            return INT64
        case a.Mean():
            return FLOAT64 if argument in NUMBERS else ANY
        case a.Sum():
            return argument if argument in NUMBERS else ANY
        case a.Min() | a.Max() | a.First() | a.Last():
            return argument
        case a.Collect() | a.CollectSet() | a.TopK():
            return list_of(argument)
        case Quantiles():
            return list_of(FLOAT64)
    return ANY


def _of_avro(schema: Schema, node: Any, inside: frozenset[str]) -> Type:
    """The type of an Avro type; nothing is known of one within itself, or of unions of several."""
    if isinstance(node, list):
        branches = [branch for branch in node if kind(branch) != "null"]
        return _of_avro(schema, branches[0], inside) if len(branches) == 1 else ANY
    node = schema.deref(node)
    name = node.get("name", "") if isinstance(node, dict) else ""
    if name and name in inside:
        return ANY
    if (meaning := logical(node)) is not None:
        return OF_LOGICAL.get(meaning, ANY)
    word = kind(node)
    if word == "record":
        below = inside | {name}
        return struct_of({f["name"]: _of_avro(schema, f["type"], below) for f in node["fields"]})
    if word == "array":
        return list_of(_of_avro(schema, node["items"], inside))
    return OF_AVRO.get(word, ANY)
