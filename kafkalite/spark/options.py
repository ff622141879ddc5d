"""The options of `format("kafkalite")`: the official connector's names, and a few of ours. [P]

    subscribe | subscribePattern | assign   topics, a regular expression, {"topic": [0, 1]}
    kafka.bootstrap.servers                 required; also bootstrap.servers
    kafka.NAME                              a setting of Kafka's consumer: `columnar.settings`
    kafka.group.id, groupIdPrefix           a stream's offsets are committed there, for lag tools
    startingOffsets                         earliest, latest, or {"topic": {"0": 23, "1": -2}}
    startingOffsetsByTimestamp              {"topic": {"0": 1700000000000}}, in epoch ms
    startingTimestamp                       one moment for all partitions; it comes first
    startingOffsetsByTimestampStrategy      error, latest: where no record is at or after it
    endingOffsets, endingOffsetsByTimestamp, endingTimestamp   the same, for batch queries
    maxOffsetsPerTrigger                    maximum number of records in a micro-batch
    minOffsetsPerTrigger, maxTriggerDelay   a micro-batch waits for so many, and so long (15m)
    minPartitions, maxRecordsPerPartition   how ranges are divided into Spark's partitions
    failOnDataLoss                          true: deleted offsets are an error, not a gap
    includeHeaders                          adds the column headers
    columns                                 only these columns are there: value,offset,timestamp
    key.format                              binary (default), string, windowed, windowed:SIZE
    value.format                            binary (default), string, avro, json
    value.schema                            the reader's schema; json: a Spark type as
                                            `schema.json()`; avro: an Avro schema
    value.schema.version, value.schema.id   the reader's schema from the registry: a version of
                                            TOPIC-value (latest, 3), or a schema's id
    inferSchema, inferSchema.records        json: the columns of a sample of so many records
    value.columns                           avro, json: only these fields are decoded: id,price
    pushFilters                             once: filters on partition, offset and timestamp read
                                            less, those on the value send fewer rows to the JVM;
                                            for a DataFrame that runs in one query
    mode                                    failfast, dropmalformed, permissive: what becomes of a
                                            record that cannot be decoded

Fails  with ConfigError, naming the option and its value.
Source Spark's Structured Streaming + Kafka integration guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from kafkalite.columnar.format_names import (
    KEY_FORMATS,
    VALUE_FORMATS,
    check_key_format,
    check_value_format,
)
from kafkalite.columnar.settings import ReadSettings, settings_of
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.columnar.decoding import OnError

COLUMNS: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
)  # fmt: skip
EARLIEST: Final = -2
LATEST: Final = -1
KAFKA: Final = "kafka."
NAMES: Final = (
    "subscribe", "subscribePattern", "assign", "bootstrap.servers", "groupIdPrefix",
    "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingOffsetsByTimestamp",
    "endingTimestamp", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "columns",
    "key.format", "value.format", "value.schema", "value.schema.version", "value.schema.id",
    "value.columns", "inferSchema", "inferSchema.records", "pushFilters", "mode", "path",
)  # fmt: skip
KNOWN: Final = {name.lower(): name for name in NAMES}
RETRIES: Final = "requests are sent again until kafka.request.timeout.ms has passed"
NOT_OURS: Final = {
    "fetchoffset.numretries": RETRIES,
    "fetchoffset.retryintervalms": RETRIES,
    "kafkaconsumer.polltimeoutms": RETRIES,
}
OF_BATCHES: Final = {
    "endingOffsets": "a stream has no end",
    "endingOffsetsByTimestamp": "a stream has no end",
    "endingTimestamp": "a stream has no end",
    "pushFilters": "Spark pushes no filters into streams",
}
OF_STREAMS: Final = ("minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix")
SCHEMA_SOURCES: Final = ("value.schema", "value.schema.version", "value.schema.id", "inferSchema")
INFER_RECORDS: Final = 10_000
CHOOSING: Final = ("subscribe", "subscribePattern", "assign")
MODES: Final[Mapping[str, OnError]] = {
    "failfast": "fail",
    "dropmalformed": "skip",
    "permissive": "null",  # as `from_avro` and `from_json` call it
}
STRATEGIES: Final = ("error", "latest")
DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
SECONDS: Final = {None: 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
TRIGGER_DELAY_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Times:
    """Moments in epoch ms: one for all partitions, or one for each."""

    everywhere: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)


Place = str | dict[TopicPartition, int] | Times  # the string is "earliest" or "latest"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. `partitions` is None where whole topics are read, `pattern` where topics
    are named.
    """

    settings: ReadSettings
    topics: tuple[str, ...]
    pattern: str | None
    partitions: tuple[TopicPartition, ...] | None
    starting: Place
    starting_name: str  # of the option that gave it
    ending: Place
    ending_name: str
    latest_if_no_match: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_seconds: float
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    key_format: str
    value_format: str
    value_schema: str | None
    schema_version: int | None  # of the registry; the latest where it is None
    schema_id: int | None
    infer_records: int | None  # None: the columns are not inferred
    value_columns: tuple[str, ...] | None
    push_filters: bool
    on_error: OnError
    group_id: str | None

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the cluster."""
        return self.settings.bootstrap_servers


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Checks and types what the user gave; names are case-insensitive as everywhere in Spark."""
    given = {name.lower(): value for name, value in options.items()}
    _check_names(given, streaming)
    topics, pattern, partitions = _topics(given)
    key_format = given.get("key.format", KEY_FORMATS[0])
    check_key_format(key_format)
    value_format = given.get("value.format", VALUE_FORMATS[0])
    check_value_format(value_format)
    if value_format == "avro" and len(topics) != 1:
        raise ConfigError(f"value.format avro reads one topic, not {len(topics)}: {topics}")
    infer_records = _infer_records(given, value_format)
    starting_name, starting = _place(given, "starting", "latest" if streaming else "earliest")
    ending_name, ending = _place(given, "ending", "latest")
    settings, group_id = _settings(given)
    prefix = given.get("groupidprefix")
    return SourceOptions(
        settings=settings,
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        starting=starting,
        starting_name=starting_name,
        ending=_checked_end(ending, ending_name),
        ending_name=ending_name,
        latest_if_no_match=_one_of(given, "startingOffsetsByTimestampStrategy", STRATEGIES)
        == "latest",
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_positive(given, "minOffsetsPerTrigger"),
        max_trigger_delay_seconds=_duration(given, "maxTriggerDelay", TRIGGER_DELAY_SECONDS),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        columns=_columns(given),
        key_format=key_format,
        value_format=value_format,
        value_schema=given.get("value.schema"),
        schema_version=_version(given),
        schema_id=_positive(given, "value.schema.id"),
        infer_records=infer_records,
        value_columns=_names(given, "value.columns"),
        push_filters=_push_filters(given),
        on_error=_mode(given),
        group_id=group_id or (prefix and f"{prefix}-{'-'.join(topics) or pattern}"),
    )


def _check_names(given: Mapping[str, str], streaming: bool) -> None:
    for name, text in given.items():
        if name not in KNOWN and not name.startswith(KAFKA):
            raise ConfigError(f"{name}: {text!r}: {_unknown(name)}")
    others = OF_BATCHES if streaming else dict.fromkeys(OF_STREAMS, "it is for streams")
    for name, why in others.items():
        if name.lower() in given:
            raise ConfigError(f"{name}: {given[name.lower()]!r}: {why}")


def _unknown(name: str) -> str:
    if name in NOT_OURS:
        return NOT_OURS[name]
    alike = [KNOWN[each] for each in get_close_matches(name, KNOWN, n=1)]
    hint = f", perhaps {alike[0]}" if alike else ""
    return f"format('kafkalite') has no option of this name{hint}"


def _infer_records(given: Mapping[str, str], value_format: str) -> int | None:
    """The size of the sample, if there is one; ConfigError for options of the schema that do not
    fit.
    """
    infers = _boolean(given, "inferSchema", default=False)
    for name in ("value.schema", "value.schema.version", "value.schema.id", "value.columns"):
        if name in given and value_format not in ("avro", "json"):
            raise ConfigError(
                f"{name} is for value.format avro and json, value.format is {value_format!r}"
            )
    if infers and value_format != "json":
        raise ConfigError(f"inferSchema is for value.format json, value.format is {value_format!r}")
    named = [n for n in SCHEMA_SOURCES if (infers if n == "inferSchema" else n in given)]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} both name the schema: give one of them")
    records = _positive(given, "inferSchema.records") or INFER_RECORDS
    return records if infers else None


def _version(given: Mapping[str, str]) -> int | None:
    name = "value.schema.version"
    return None if given.get(name, "").lower() == "latest" else _positive(given, name)


def _settings(given: Mapping[str, str]) -> tuple[ReadSettings, str | None]:
    """The settings of the client, and the group."""
    ours = {n.removeprefix(KAFKA): value for n, value in given.items() if n.startswith(KAFKA)}
    ours.setdefault("bootstrap.servers", given.get("bootstrap.servers", ""))
    group_id = ours.pop("group.id", None)
    try:
        return settings_of(ours), group_id
    except ConfigError as error:
        raise ConfigError(f"option {KAFKA}{str(error).removeprefix('the setting ')}") from error


def _topics(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...] | None]:
    if sum(name.lower() in given for name in CHOOSING) != 1:
        raise ConfigError(f"give one of the options {', '.join(map(repr, CHOOSING))}")
    if (pattern := given.get("subscribepattern")) is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"subscribePattern: {pattern!r}: {error}") from error
        return (), pattern, None
    if "subscribe" in given:
        topics = tuple(t.strip() for t in given["subscribe"].split(",") if t.strip())
        if not topics:
            raise ConfigError("option 'subscribe' names no topic")
        return topics, None, None
    try:
        assigned = {
            str(topic): [int(p) for p in partitions]
            for topic, partitions in json.loads(given["assign"]).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"assign: {given['assign']!r} is not {{topic: [partitions]}}") from error
    pairs = tuple(TopicPartition(t, p) for t, numbers in assigned.items() for p in numbers)
    return tuple(assigned), None, pairs


def _place(given: Mapping[str, str], which: str, default: str) -> tuple[str, Place]:
    """The option that says where to start or end, and the place. A moment for all comes first."""
    name = f"{which}Timestamp"
    if (text := given.get(name.lower())) is not None:
        if not text.isdigit():
            raise ConfigError(f"{name}: {text!r} is not a moment in epoch ms")
        return name, Times(int(text))
    name = f"{which}OffsetsByTimestamp"
    if (text := given.get(name.lower())) is not None:
        times = _by_partition(name, text)
        if any(time < 0 for time in times.values()):
            raise ConfigError(f"{name}: {text!r} has a moment before 1970")
        return name, Times(each=times)
    name = f"{which}Offsets"
    text = given.get(name.lower(), default)
    if (word := text.strip().lower()) in ("earliest", "latest"):
        return name, word
    return name, _by_partition(name, text)


def _by_partition(name: str, text: str) -> dict[TopicPartition, int]:
    try:
        return parse_offsets(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _checked_end(place: Place, name: str) -> Place:
    """Nothing ends where the log begins."""
    if place == "earliest" or (isinstance(place, dict) and EARLIEST in place.values()):
        raise ConfigError(f"{name}: earliest (-2) cannot be an end")
    return place


def check_partitions(
    name: str, offsets: Mapping[TopicPartition, int], partitions: Sequence[TopicPartition]
) -> None:
    """ConfigError unless the option's offsets are of the partitions that are read, of all."""
    if wrong := sorted(offsets.keys() - set(partitions)):
        raise ConfigError(f"{name} names {wrong[0]}, which the query does not read")
    if missing := sorted(set(partitions) - offsets.keys()):
        hint = "" if name.endswith("Timestamp") else ": -2 is earliest, -1 latest"
        raise ConfigError(f"{name} does not name {missing[0]}{hint}")


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


def _mode(given: Mapping[str, str]) -> OnError:
    lower = {"mode": given["mode"].lower()} if "mode" in given else {}
    return MODES[_one_of(lower, "mode", tuple(MODES))]


def _push_filters(given: Mapping[str, str]) -> bool:
    """Whether filters are pushed down. Spark 4.3 keeps the read of a DataFrame's last filters for
    all its queries, those without filters included, so a user must know.
    """
    if given.get("pushfilters") == "true":
        raise ConfigError(
            "pushFilters: 'true': Spark would give the filters of one query to all others of the "
            "DataFrame; pushFilters=once is for a DataFrame that runs in one query"
        )
    return _one_of(given, "pushFilters", ("false", "once")) == "once"


def _names(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    text = given.get(option)
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        what = "column" if option == "columns" else "field"
        raise ConfigError(f"{option} names no {what}")
    return names


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the source, in its order."""
    has_headers = _boolean(given, "includeHeaders", default=False)
    there = COLUMNS if has_headers else COLUMNS[:-1]
    wanted = _names(given, "columns")
    if wanted is None:
        return there
    known = {name.lower(): name for name in there}
    if unknown := [name for name in wanted if name.lower() not in known]:
        hint = ": it needs includeHeaders=true" if unknown[0].lower() == COLUMNS[-1] else ""
        raise ConfigError(f"columns: {unknown[0]!r} is not one of {', '.join(there)}{hint}")
    chosen = {known[name.lower()] for name in wanted}
    return tuple(name for name in there if name in chosen)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name}: {text!r} is not a positive number")
    return int(text)


def _duration(given: Mapping[str, str], name: str, default: float) -> float:
    """Seconds of a duration as Spark writes them: 15m, 30s, 500ms; a bare number is ms."""
    text = given.get(name.lower())
    if text is None:
        return default
    found = DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{name}: {text!r} is not a duration as 15m or 30s")
    return int(found[1]) * SECONDS[found[2]]


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    text = given.get(name.lower(), allowed[0])
    if text not in allowed:
        raise ConfigError(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    return text
