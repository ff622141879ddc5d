"""The options of `format("kafkalite")`: the official connector's names, and a few of ours. [P]

    subscribe | assign                  topics, or {"topic": [0, 1]}
    kafka.bootstrap.servers             required; also bootstrap.servers
    startingOffsets                     earliest, latest, or {"topic": {"0": 23, "1": -2}}
    endingOffsets                       the same except earliest and -2; for batch queries only
    maxOffsetsPerTrigger                maximum number of records in a micro-batch
    failOnDataLoss                      true: deleted offsets are an error, not a gap
    includeHeaders                      adds the column headers
    key.format                          binary (default), string, windowed, windowed:SIZE
    value.format                        binary (default), string, avro, json
    value.schema                        required for json: a Spark type, as from `schema.json()`

Fails  with ConfigError, naming the option and its value.
Source Spark's Structured Streaming + Kafka integration guide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.serde.primitives import string
from kafkalite.serde.windowed import named_windowed

EARLIEST: Final = -2
LATEST: Final = -1
KNOWN: Final = frozenset(
    {
        "subscribe", "assign", "kafka.bootstrap.servers", "bootstrap.servers", "startingoffsets",
        "endingoffsets", "maxoffsetspertrigger", "failondataloss", "includeheaders", "key.format",
        "value.format", "value.schema", "path",
    }
)  # fmt: skip
VALUE_FORMATS: Final = ("binary", "string", "avro", "json")
KEY_FORMATS: Final = ("binary", "string", "windowed", "windowed:SIZE")

Offsets = str | dict[TopicPartition, int]  # "earliest", "latest", or one per partition


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options; `partitions` is None where whole topics are read."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...] | None
    starting_offsets: Offsets
    ending_offsets: Offsets
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    key_format: str
    value_format: str
    value_schema: str | None


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Checks and types what the user gave; names are case-insensitive as everywhere in Spark."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = [n for n in given if n not in KNOWN]
    if unknown:
        raise ConfigError(f"option {unknown[0]!r} is not one of format('kafkalite')")
    topics, partitions = _topics(given)
    if streaming and "endingoffsets" in given:
        raise ConfigError("endingOffsets: a stream has no end")
    value_format = _one_of(given, "value.format", VALUE_FORMATS)
    if value_format == "avro" and len(topics) != 1:
        raise ConfigError(f"value.format avro reads one topic, not {len(topics)}: {topics}")
    value_schema = given.get("value.schema")
    if (value_format == "json") != (value_schema is not None):
        raise ConfigError("value.schema is for value.format json, which needs one: schema.json()")
    starting = "latest" if streaming else "earliest"
    return SourceOptions(
        bootstrap_servers=_bootstrap(given),
        topics=topics,
        partitions=partitions,
        starting_offsets=_offsets(given, "startingOffsets", starting),
        ending_offsets=_ending(_offsets(given, "endingOffsets", "latest")),
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        include_headers=_boolean(given, "includeHeaders", default=False),
        key_format=_key_format(given),
        value_format=value_format,
        value_schema=value_schema,
    )


def check_formats(key_format: str, value_format: str) -> None:
    """ConfigError unless these are a `key.format` and a `value.format`."""
    given = {"key.format": key_format, "value.format": value_format}
    _key_format(given)
    _one_of(given, "value.format", VALUE_FORMATS)


def _bootstrap(given: Mapping[str, str]) -> str:
    found = given.get("kafka.bootstrap.servers") or given.get("bootstrap.servers")
    if not found:
        raise ConfigError("option 'kafka.bootstrap.servers' is missing")
    return found


def _topics(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[TopicPartition, ...] | None]:
    if ("subscribe" in given) == ("assign" in given):
        raise ConfigError("give one of the options 'subscribe' and 'assign'")
    if "subscribe" in given:
        topics = tuple(t.strip() for t in given["subscribe"].split(",") if t.strip())
        if not topics:
            raise ConfigError("option 'subscribe' names no topic")
        return topics, None
    try:
        assigned = {
            str(topic): [int(p) for p in partitions]
            for topic, partitions in json.loads(given["assign"]).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"assign: {given['assign']!r} is not {{topic: [partitions]}}") from error
    pairs = tuple(TopicPartition(t, p) for t, numbers in assigned.items() for p in numbers)
    return tuple(assigned), pairs


def _offsets(given: Mapping[str, str], name: str, default: str) -> Offsets:
    text = given.get(name.lower(), default)
    if (word := text.strip().lower()) in ("earliest", "latest"):
        return word
    try:
        return parse_offsets(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _ending(offsets: Offsets) -> Offsets:
    """Nothing ends where the log begins."""
    if offsets == "earliest" or (isinstance(offsets, dict) and EARLIEST in offsets.values()):
        raise ConfigError("endingOffsets: earliest (-2) cannot be an end")
    return offsets


def check_partitions(
    name: str, offsets: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]
) -> None:
    """ConfigError unless the option's offsets are of the partitions that are read, of all."""
    if wrong := sorted(offsets.keys() - set(partitions)):
        raise ConfigError(f"{name} names {wrong[0]}, which the query does not read")
    if missing := sorted(set(partitions) - offsets.keys()):
        raise ConfigError(f"{name} does not name {missing[0]}: -2 is earliest, -1 latest")


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 23}}` as a dict; offsets below 0 are EARLIEST (-2) and LATEST (-1)."""
    try:
        found = {
            TopicPartition(str(topic), int(partition)): int(offset)
            for topic, offsets in json.loads(text).items()
            for partition, offset in offsets.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{text!r} is not {{topic: {{partition: offset}}}}") from error
    if any(offset < EARLIEST for offset in found.values()):
        raise ConfigError(f"{text!r} has an offset below -2")
    return found


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The inverse of `parse_offsets`, with sorted keys."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name}: {text!r} is not a positive number")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def _key_format(given: Mapping[str, str]) -> str:
    text = given.get("key.format", KEY_FORMATS[0])
    try:
        is_windowed = named_windowed(text, string()) is not None
    except ConfigError as error:
        raise ConfigError(f"key.format: {text!r}: {error}") from error
    return text if is_windowed else _one_of(given, "key.format", KEY_FORMATS)


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    text = given.get(name, allowed[0])
    if text not in allowed:
        raise ConfigError(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    return text
