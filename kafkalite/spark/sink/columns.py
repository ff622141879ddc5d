"""Which columns of Spark's rows make records, and their types.                              [P]

    key, value    binary or string; with a format also structs, lists, numbers
    topic         string, unless an option names the topic
    partition     int; null: by the key, as Kafka's producer does it
    timestamp     the record's own; null or no column: the time of writing
    headers       array of (key, value)

Other columns are ignored, as by the official connector. The driver checks the columns of each
batch in a process that does nothing else, so this module imports little.

Owns   nothing.
Fails  with ConfigError for columns that make no records.
Source the official connector's `KafkaWriter`, for columns and types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from kafkalite.errors import ConfigError

MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What a staged file has, and what is sent.
RECORDS: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", MILLISECONDS),
        ("headers", HEADERS),
    ]
)


def check_columns(schema: pa.Schema, topic: str | None, formats: Mapping[str, str]) -> None:
    """ConfigError unless such rows are records; `formats` are those of key and value."""
    names = set(schema.names)
    if "value" not in names:
        raise ConfigError("the column 'value' is missing")
    if topic is None and "topic" not in names:
        raise ConfigError("give the option 'topic' or a column 'topic'")
    for name, form in formats.items():
        if name in names and form == "binary" and not _is_bytes(schema.field(name).type):
            raise ConfigError(
                f"column {name!r} is {schema.field(name).type}: give {name}.format json or avro"
            )
    wanted = {
        "topic": pa.types.is_string,
        "partition": pa.types.is_integer,
        "timestamp": pa.types.is_timestamp,
        "headers": _is_headers,
    }
    for name, fits in wanted.items():
        if name in names and not fits(schema.field(name).type):
            kind = (
                "an array of (key, value)" if name == "headers" else str(RECORDS.field(name).type)
            )
            raise ConfigError(f"column {name!r} is {schema.field(name).type}, not {kind}")


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        fits(kind)
        for fits in (types.is_string, types.is_binary, types.is_large_string,
                     types.is_large_binary, types.is_null)
    )  # fmt: skip


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return [field.name for field in kind.value_type] == ["key", "value"]
