"""The options of a sink: the official connector's names, and a few of ours.                 [P]

    kafka.bootstrap.servers    required; also bootstrap.servers
    topic                      for all rows; without it the column `topic` has each row's
    key.format, value.format   binary (default: bytes or text as they are), json, avro
    key.schema, value.schema   for avro: the schema to write with; without one it is made of the
                               column's type
    deliveryGuarantee          at-least-once (default), exactly-once
    transactionalId            exactly once: the name over restarts; by default the query's id
    stagingLocation            exactly once: a folder that all of Spark's processes reach; by
                               default one in the query's checkpoint
    kafka.*                    settings of the producer, by Kafka's names: PRODUCER

Fails  with ConfigError, naming the option and its value.
Source Spark's Structured Streaming + Kafka integration guide, for topic and kafka.*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.errors import ConfigError

BINARY: Final = "binary"
AVRO: Final = "avro"
FORMATS: Final = (BINARY, "json", AVRO)
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
CHECKPOINT: Final = "checkpointlocation"
STAGING_FOLDER: Final = "kafkalite-staging"
QUERY_NAME: Final = "queryname"  # Spark hands `queryName("x")` on as an option
TRANSACTION_TIMEOUT_MS: Final = 900_000  # the longest that brokers allow by default
KNOWN: Final = frozenset(
    {
        "kafka.bootstrap.servers", "bootstrap.servers", "topic", "key.format", "value.format",
        "key.schema", "value.schema", "deliveryguarantee", "transactionalid", "staginglocation",
        CHECKPOINT, QUERY_NAME, "path",
    }
)  # fmt: skip


def _acks(text: str) -> str | int:
    return text if text == "all" else int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


# Kafka's name: the parameter of our producer, and how its text is read.
PRODUCER: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "acks": ("acks", _acks),
    "batch.size": ("batch_bytes", int),
    "buffer.memory": ("buffer_bytes_max", int),
    "client.id": ("client_id", str),
    "compression.type": ("compression", str),
    "delivery.timeout.ms": ("delivery_timeout_ms", int),
    "enable.idempotence": ("enable_idempotence", _flag),
    "linger.ms": ("linger_ms", float),
    "max.in.flight.requests.per.connection": ("max_in_flight", int),
    "max.request.size": ("max_request_bytes", int),
    "transaction.timeout.ms": ("transaction_timeout_ms", int),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options. `topic` is None where a column has it."""

    bootstrap_servers: str
    topic: str | None
    key_format: str
    value_format: str
    key_schema: str | None
    value_schema: str | None
    exactly_once: bool
    transactional_id: str | None
    staging: str | None  # a folder, maybe as a URI; None where no option names one
    transaction_timeout_ms: int
    producer: Mapping[str, Any]  # parameters of our producer


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Checks and types the user's options; their names are case-insensitive."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in KNOWN and not name.startswith("kafka."):
            raise ConfigError(f"option {name!r} is not one of a sink of format('kafkalite')")
    servers = given.get("kafka.bootstrap.servers") or given.get("bootstrap.servers")
    if not servers:
        raise ConfigError("option 'kafka.bootstrap.servers' is missing")
    exactly_once = _guarantee(given) == EXACTLY_ONCE
    producer = _producer_settings(given)
    timeout_ms = producer.pop("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
    if exactly_once and (fixed := producer.keys() & {"acks", "enable_idempotence"}):
        names = sorted(name for name, (ours, _) in PRODUCER.items() if ours in fixed)
        raise ConfigError(f"kafka.{names[0]}: deliveryGuarantee exactly-once leaves no choice")
    return SinkOptions(
        bootstrap_servers=servers,
        topic=given.get("topic"),
        key_format=_format(given, "key"),
        value_format=_format(given, "value"),
        key_schema=_schema(given, "key"),
        value_schema=_schema(given, "value"),
        exactly_once=exactly_once,
        transactional_id=_transactional_id(given, exactly_once=exactly_once),
        staging=_staging(given, exactly_once=exactly_once),
        transaction_timeout_ms=timeout_ms,
        producer=producer,
    )


def _guarantee(given: Mapping[str, str]) -> str:
    text = given.get("deliveryguarantee", AT_LEAST_ONCE)
    if text not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ConfigError(
            f"deliveryGuarantee: {text!r} is neither {AT_LEAST_ONCE} nor {EXACTLY_ONCE}"
        )
    return text


def _producer_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """The options `kafka.*`, but for the servers."""
    settings: dict[str, Any] = {}
    for option, text in given.items():
        name = option.removeprefix("kafka.")
        if name == option or name == "bootstrap.servers":
            continue
        if name == "security.protocol" and text == "PLAINTEXT":
            continue
        if name not in PRODUCER:
            raise ConfigError(f"{option} is no setting of the producer: {', '.join(PRODUCER)}")
        parameter, read = PRODUCER[name]
        try:
            settings[parameter] = read(text)
        except ValueError as error:
            raise ConfigError(f"{option}: {text!r} is no value of this setting") from error
    return settings


def _format(given: Mapping[str, str], part: str) -> str:
    text = given.get(f"{part}.format", BINARY)
    if text not in FORMATS:
        raise ConfigError(f"{part}.format: {text!r} is not one of {', '.join(FORMATS)}")
    return text


def _schema(given: Mapping[str, str], part: str) -> str | None:
    schema = given.get(f"{part}.schema")
    if schema is not None and given.get(f"{part}.format") != AVRO:
        raise ConfigError(f"{part}.schema is for {part}.format avro")
    return schema


def _transactional_id(given: Mapping[str, str], *, exactly_once: bool) -> str | None:
    name = given.get("transactionalid")
    if name is not None and (not exactly_once or not name):
        raise ConfigError(f"transactionalId: {name!r} is for deliveryGuarantee exactly-once")
    return name


def _staging(given: Mapping[str, str], *, exactly_once: bool) -> str | None:
    staging = given.get("staginglocation")
    if staging is not None and not exactly_once:
        raise ConfigError("stagingLocation is for deliveryGuarantee exactly-once")
    if staging is None and CHECKPOINT in given:
        return f"{given[CHECKPOINT].rstrip('/')}/{STAGING_FOLDER}"
    return staging
