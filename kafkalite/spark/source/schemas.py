"""The schema of a query's values, and the columns and the decoder that it makes.           [IO]

    avro    the text of an Avro schema: `value.schema`, or from the registry
    json    a Spark type as `schema.json()`: `value.schema`, a sample, or from the registry

A query looks its schema up once, when it is defined. Its readers get the text.

Owns   nothing. The registry is that of the process.
Fails  with ConfigError for JSON without a schema, with SchemaError for a schema of another kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kafkalite.errors import ConfigError, SchemaError
from kafkalite.spark.options import SourceOptions

if TYPE_CHECKING:
    from kafkalite.columnar.formats import Format
    from kafkalite.serde.registry import RegisteredSchema
    from kafkalite.serde.registry_log import LogRegistry

NAMES: Final = {"avro": "AVRO", "json": "JSON"}  # as the registry calls them


def given_schema(options: SourceOptions) -> str | None:
    """The schema that the options give or the registry has; None for formats without a schema."""
    if options.value_format not in NAMES:
        return None
    if options.value_schema is not None:
        return options.value_schema
    if options.value_format == "avro":
        return _registered(options)
    from kafkalite.columnar.json_schema import columns_of_schema

    return as_text(columns_of_schema(_registered(options)))


def as_text(columns: pa.StructType) -> str:
    """Columns of JSON values as the JSON of a Spark type."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(list(columns))).json()


def value_type(options: SourceOptions, schema: str | None) -> pa.DataType:
    """The type of the column `value`."""
    from kafkalite.columnar.column_types import PLAIN, column_type
    from kafkalite.columnar.formats import JsonValues
    from kafkalite.serde.avro_schema import parse_schema
    from kafkalite.spark.json_loads import json_struct

    if schema is None:
        return PLAIN[options.value_format].arrow
    if options.value_format == "avro":
        return column_type(parse_schema(schema), options.value_columns).arrow
    return JsonValues(json_struct(schema), options.value_columns).type


def value_format(options: SourceOptions, schema: str | None) -> Format:
    """How the bytes of values become the column."""
    from kafkalite.columnar.formats import AvroValues, JsonValues, plain
    from kafkalite.serde.registry_log import registry_at
    from kafkalite.spark.json_loads import json_struct

    if schema is None:
        return plain(options.value_format)
    if options.value_format == "avro":
        return AvroValues(schema, registry_at(options.bootstrap_servers), options.value_columns)
    return JsonValues(json_struct(schema), options.value_columns)


def _registered(options: SourceOptions) -> str:
    """The text of the schema that the registry has for the topic's values."""
    from kafkalite.serde.registry_log import registry_at

    registry = registry_at(options.bootstrap_servers)
    found = _version(registry, options)
    if found.schema_type != NAMES[options.value_format]:
        raise SchemaError(
            f"value.format {options.value_format}: version {found.version} of {found.subject} is "
            f"{found.schema_type}"
        )
    # Of Avro the text that needs no references.
    return registry.schema(found.id) if options.value_format == "avro" else found.text


def _version(registry: LogRegistry, options: SourceOptions) -> RegisteredSchema:
    if options.schema_id is not None:
        return registry.stored_id(options.schema_id)
    if len(options.topics) != 1:
        raise ConfigError(
            f"value.format {options.value_format} of {len(options.topics)} topics: the registry "
            "has a schema for each, so give value.schema or inferSchema=true"
        )
    try:
        return registry.stored(f"{options.topics[0]}-value", options.schema_version)
    except SchemaError as error:
        if options.value_format == "avro" or options.schema_version is not None:
            raise
        raise ConfigError(
            "value.format json needs columns: the option value.schema, as schema.json(), or "
            f"inferSchema=true, or a JSON Schema in the registry ({error})"
        ) from error
