"""Every setting of topics and brokers, declared once as data: `TOPIC_KEYS`, `BROKER_KEYS`.   [P]

Owns   names, types, defaults, ranges, documentation; which broker settings a topic falls back to.
Never  knows which value is in force: `settings` does.
Fails  with ConfigError naming the setting and its value.
Source apache/kafka 3.9 `LogConfig`, `KafkaConfig`, `ServerTopicConfigSynonyms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from kafkalite.core.config.accepted import accepted
from kafkalite.errors import ConfigError

Value = bool | int | float | str | tuple[str, ...] | None
LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1


class ConfigType(IntEnum):
    """A setting's type; the numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Valid:
    """The values that a setting may hold, beyond its type.

    A closed range, and the one value `also` outside it; or one of `words`, each entry of a list one
    of them; or a text that matches `pattern`, which `form` describes.
    """

    lowest: float | None = None
    highest: float | None = None
    words: tuple[str, ...] = ()
    also: int | None = None
    pattern: str = ""
    form: str = ""

    @classmethod
    def parse(cls, text: str) -> Valid:
        """A range or words as Kafka writes them: `[1,...]`, `[0,...,0.5]`, `[1,...,9] or -1`."""
        if not text:
            return cls()
        inner, _, also = text.removeprefix("[").partition("]")
        parts = [part.strip() for part in inner.split(",")]
        if "..." not in parts:
            return cls(words=tuple(parts))
        low, high = parts[0], parts[2] if len(parts) > 2 else None
        return cls(
            lowest=_number(low),
            highest=None if high is None else _number(high),
            also=int(also.removeprefix(" or ")) if also else None,
        )

    def __str__(self) -> str:
        if self.words:
            return f"[{', '.join(self.words)}]"
        if self.lowest is None:
            return ""
        high = "" if self.highest is None else f",{self.highest}"
        return f"[{self.lowest},...{high}]" + ("" if self.also is None else f" or {self.also}")

    def complaint(self, value: Value) -> tuple[str, str] | None:
        """The wrong value or word, and the reason in Kafka's words; None for a valid value."""
        if isinstance(value, int | float):
            return self._out_of_range(value)
        if self.words and value is not None:
            for word in _words(value):
                if word not in self.words:
                    return word, f"String must be one of: {', '.join(self.words)}"
        text = to_text(value)
        if self.pattern and text is not None and not re.fullmatch(self.pattern, text):
            shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else text
            return shown, self.form
        return None

    def _out_of_range(self, value: float) -> tuple[str, str] | None:
        low, high = self.lowest, self.highest
        if value == self.also:
            return None
        if (low is None or value >= low) and (high is None or value <= high):
            return None
        if self.also is not None:
            return str(value), f"Value must be between {low} and {high} or equal to {self.also}"
        if low is not None and value < low:
            return str(value), f"Value must be at least {low}"
        return str(value), f"Value must be no more than {high}"


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _words(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (to_text(value) or "",)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting. `synonyms` are the broker's settings that a topic's falls back to, in order."""

    name: str
    type: ConfigType
    default: Value
    valid: Valid
    doc: str
    synonyms: tuple[str, ...] = ()
    dynamic: bool = False  # may be changed while the broker runs; every topic's setting may
    effective: bool = True  # False: Kafka's, accepted and described, without effect here

    def parse(self, text: str) -> Value:
        """The typed value of `text`; ConfigError when it has none or lies outside the range."""
        found = _PARSERS[self.type](text.strip())
        if found is None:
            raise _invalid(self.name, text, _EXPECTED[self.type])
        if complaint := self.valid.complaint(found):
            raise _invalid(self.name, *complaint)
        return found


def _invalid(name: str, value: str, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: {why}", setting=name)


# ---- text to values and back -------------------------------------------------------------------


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _integer(bits: int) -> Callable[[str], int | None]:
    bound = 1 << (bits - 1)

    def parse(text: str) -> int | None:
        found = re.fullmatch(r"[+-]?[0-9]{1,20}", text) and int(text)
        return found if isinstance(found, int) and -bound <= found < bound else None

    return parse


def _double(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and "_" not in text else None


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()


def _text(text: str) -> str:
    return text


_PARSERS: Final[Mapping[ConfigType, Callable[[str], Value]]] = {
    ConfigType.UNKNOWN: _text,
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: _text,
    ConfigType.INT: _integer(32),
    ConfigType.SHORT: _integer(16),
    ConfigType.LONG: _integer(64),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.CLASS: _text,
    ConfigType.PASSWORD: _text,
}
_EXPECTED: Final[Mapping[ConfigType, str]] = {
    ConfigType.BOOLEAN: "Expected value to be either true or false",
    ConfigType.INT: "Not a number of type INT",
    ConfigType.SHORT: "Not a number of type SHORT",
    ConfigType.LONG: "Not a number of type LONG",
    ConfigType.DOUBLE: "Not a number of type DOUBLE",
}


def to_text(value: Value) -> str | None:
    """A value as Kafka writes it: `true`, `604800000`, `compact,delete`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return str(value).replace("e+", "E")
    return None if value is None else str(value)


# ---- the settings ------------------------------------------------------------------------------

_T = ConfigType
_ANY = Valid()
_COUNT = Valid(lowest=0)
_ONE = Valid(lowest=1)
_CODECS = Valid(words=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
_IDLE_DOC = "A setting of Apache Kafka, accepted without effect."
_TIERED_DOC = "A setting of tiered storage, which does not exist here."
_THREADS_DOC = "A number of threads in Apache Kafka, without effect here."
_LEVEL_DOC = "Accepted; a batch that is compressed anew gets the codec's usual level."
_REPLICAS_DOC = "The replicas whose replication is throttled: PARTITION:BROKER, …, or * for all."
_REPLICAS_FORM = (
    "must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
_OVERRIDES = Valid(pattern=r"([^,]+:[0-9]+(,[^,]+:[0-9]+)*)?", form="expected HOST:NUMBER, …")
_SELECTOR = Valid(
    pattern=r"(org\.apache\.kafka\.common\.replica\.RackAwareReplicaSelector)?",
    form="expected org.apache.kafka.common.replica.RackAwareReplicaSelector",
)
_REPLICAS = Valid(pattern=r"\*|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?", form=_REPLICAS_FORM)


def _table(*keys: ConfigKey) -> dict[str, ConfigKey]:
    return {key.name: key for key in keys}


def _topic(
    name: str, kind: ConfigType, default: Value, valid: Valid, doc: str, *synonyms: str,
    effective: bool = True,
) -> ConfigKey:  # fmt: skip
    return ConfigKey(name, kind, default, valid, doc, synonyms, dynamic=True, effective=effective)


# fmt: off
TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = _table(
    _topic("cleanup.policy", _T.LIST, ("delete",), Valid(words=("compact", "delete")),
           "delete: old segments go by time and size; compact: the last value of a key stays.",
           "log.cleanup.policy"),
    _topic("compression.gzip.level", _T.INT, -1, Valid(1, 9, also=-1),
           _LEVEL_DOC, "compression.gzip.level", effective=False),
    _topic("compression.lz4.level", _T.INT, 9, Valid(1, 17),
           _LEVEL_DOC, "compression.lz4.level", effective=False),
    _topic("compression.type", _T.STRING, "producer", _CODECS,
           "The codec on disk; producer keeps what the producer chose.", "compression.type"),
    _topic("compression.zstd.level", _T.INT, 3, Valid(-131_072, 22),
           _LEVEL_DOC, "compression.zstd.level", effective=False),
    _topic("delete.retention.ms", _T.LONG, 86_400_000, _COUNT,
           "How long a tombstone stays in a compacted topic.", "log.cleaner.delete.retention.ms"),
    _topic("file.delete.delay.ms", _T.LONG, 60_000, _COUNT,
           "How long the files of a deleted segment stay on the disk.",
           "log.segment.delete.delay.ms"),
    _topic("flush.messages", _T.LONG, LONG_MAX, _ONE,
           "Records between two fsyncs.", "log.flush.interval.messages"),
    _topic("flush.ms", _T.LONG, LONG_MAX, _COUNT, "Time between two fsyncs.",
           "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    _topic("follower.replication.throttled.replicas", _T.LIST, (), _REPLICAS, _REPLICAS_DOC),
    _topic("index.interval.bytes", _T.INT, 4096, _COUNT,
           "Bytes of log for one entry of the offset index.", "log.index.interval.bytes"),
    _topic("leader.replication.throttled.replicas", _T.LIST, (), _REPLICAS, _REPLICAS_DOC),
    _topic("local.retention.bytes", _T.LONG, -2, Valid(lowest=-2),
           _TIERED_DOC, "log.local.retention.bytes", effective=False),
    _topic("local.retention.ms", _T.LONG, -2, Valid(lowest=-2),
           _TIERED_DOC, "log.local.retention.ms", effective=False),
    _topic("max.compaction.lag.ms", _T.LONG, LONG_MAX, _ONE,
           "A record is compacted at the latest after this time.",
           "log.cleaner.max.compaction.lag.ms"),
    _topic("max.message.bytes", _T.INT, 1_048_588, _COUNT,
           "The largest record batch, as compressed.", "message.max.bytes"),
    _topic("message.downconversion.enable", _T.BOOLEAN, True, _ANY,
           "Fetches are never converted to older formats.", "log.message.downconversion.enable",
           effective=False),
    _topic("message.format.version", _T.STRING, "3.0-IV1", _ANY,
           "Deprecated; the format is always version 2.", "log.message.format.version",
           effective=False),
    _topic("message.timestamp.after.max.ms", _T.LONG, 3_600_000, _COUNT,
           "How far a CreateTime may lie ahead of the broker's clock.",
           "log.message.timestamp.after.max.ms"),
    _topic("message.timestamp.before.max.ms", _T.LONG, LONG_MAX, _COUNT,
           "How far a CreateTime may lie behind the broker's clock.",
           "log.message.timestamp.before.max.ms"),
    _topic("message.timestamp.difference.max.ms", _T.LONG, LONG_MAX, _COUNT,
           "Deprecated: both bounds, where these are not set.",
           "log.message.timestamp.difference.max.ms"),
    _topic("message.timestamp.type", _T.STRING, "CreateTime",
           Valid(words=("CreateTime", "LogAppendTime")),
           "The time of a record: CreateTime, the producer's, or LogAppendTime, the broker's.",
           "log.message.timestamp.type"),
    _topic("min.cleanable.dirty.ratio", _T.DOUBLE, 0.5, Valid(0, 1),
           "Share of uncompacted bytes from which a log is compacted.",
           "log.cleaner.min.cleanable.ratio"),
    _topic("min.compaction.lag.ms", _T.LONG, 0, _COUNT,
           "A record stays uncompacted for this time.", "log.cleaner.min.compaction.lag.ms"),
    _topic("min.insync.replicas", _T.INT, 1, _ONE,
           "Replicas that must have a record before acks=all is acknowledged.",
           "min.insync.replicas"),
    _topic("preallocate", _T.BOOLEAN, False, _ANY,
           "Segments grow as they are written. Kafka makes a new one's file as long as it may "
           "become, which on Linux reserves nothing of the disk.",
           "log.preallocate", effective=False),
    _topic("remote.log.copy.disable", _T.BOOLEAN, False, Valid(), _TIERED_DOC,
           effective=False),
    _topic("remote.log.delete.on.disable", _T.BOOLEAN, False, Valid(), _TIERED_DOC,
           effective=False),
    _topic("remote.storage.enable", _T.BOOLEAN, False, _ANY,
           "Tiered storage does not exist here; only false is accepted."),
    _topic("retention.bytes", _T.LONG, -1, _ANY,
           "The size of a partition beyond which its oldest segments are deleted; -1: no limit.",
           "log.retention.bytes"),
    _topic("retention.ms", _T.LONG, 604_800_000, Valid(lowest=-1),
           "The age at which a segment is deleted; -1: never.",
           "log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    _topic("retention.records", _T.LONG, -1, _ANY,
           "The newest records to keep, counted by offset; -1: no limit. Not a setting of Kafka's.",
           "log.retention.records"),
    _topic("segment.bytes", _T.INT, 1_073_741_824, Valid(lowest=14),
           "The size of a segment file.", "log.segment.bytes"),
    _topic("segment.index.bytes", _T.INT, 10_485_760, Valid(lowest=4),
           "The size of an index file; a full one rolls the segment.", "log.index.size.max.bytes"),
    _topic("segment.jitter.ms", _T.LONG, 0, _COUNT,
           "The largest random time by which a segment is closed before segment.ms.",
           "log.roll.jitter.ms", "log.roll.jitter.hours"),
    _topic("segment.ms", _T.LONG, 604_800_000, _ONE,
           "The age at which a segment is closed.", "log.roll.ms", "log.roll.hours"),
    _topic("unclean.leader.election.enable", _T.BOOLEAN, False, _ANY,
           "Whether a replica that lags may become leader, which loses records.",
           "unclean.leader.election.enable"),
)
# fmt: on

# A synonym in a larger unit, and what multiplies it into the topic's.
SYNONYM_UNITS: Final[Mapping[str, int]] = {
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
    "log.roll.hours": 3_600_000,
    "log.roll.jitter.hours": 3_600_000,
}
# Synonyms whose default differs from the topic's: None lets the next synonym decide.
_SYNONYM_DEFAULTS: Final[Mapping[str, Value]] = {
    "log.retention.ms": None,
    "log.roll.ms": None,
    "log.roll.jitter.ms": None,
    "log.flush.interval.ms": None,
}
# Kafka does not let these be changed while a broker runs.
_STATIC_SYNONYMS: Final = frozenset({"log.message.format.version"})


def _synonym_keys() -> list[ConfigKey]:
    """The broker's twin of every topic setting: same type, range and words."""
    keys = []
    for key in TOPIC_KEYS.values():
        if not key.synonyms:
            continue
        name = key.synonyms[0]
        default = _SYNONYM_DEFAULTS.get(name, key.default)
        dynamic = name not in _STATIC_SYNONYMS
        keys.append(replace(key, name=name, default=default, synonyms=(), dynamic=dynamic))
    return keys


def _broker(
    name: str, kind: ConfigType, default: Value, valid: Valid, doc: str, *,
    dynamic: bool = False, effective: bool = True,
) -> ConfigKey:  # fmt: skip
    return ConfigKey(name, kind, default, valid, doc, (), dynamic, effective)


def _accepted_keys() -> list[ConfigKey]:
    """Kafka's settings without effect here."""
    keys = []
    for name, kind, limits, text, dynamic in accepted():
        valid = Valid.parse(limits)
        key = ConfigKey(name, ConfigType[kind], None, valid, _IDLE_DOC, (), dynamic, False)
        keys.append(key if text is None else replace(key, default=key.parse(text)))
    return keys


# fmt: off
BROKER_KEYS: Final[Mapping[str, ConfigKey]] = _table(
    *_accepted_keys(),
    *_synonym_keys(),
    _broker("advertised.listeners", _T.LIST, None, _ANY,
            "The addresses that clients get; by default those of the listeners."),
    _broker("auto.create.topics.enable", _T.BOOLEAN, True, _ANY,
            "Whether a request for an unknown topic creates it."),
    _broker("auto.leader.rebalance.enable", _T.BOOLEAN, True, _ANY,
            "Whether leadership returns to the preferred replica by itself."),
    _broker("background.threads", _T.INT, 10, _ONE, _THREADS_DOC, dynamic=True,
            effective=False),
    _broker("broker.id", _T.INT, -1, _ANY, "This broker's id; -1: that of node.id, or a free one."),
    _broker("broker.id.generation.enable", _T.BOOLEAN, True, _ANY,
            "Whether a broker of a cluster without an id takes a free one."),
    _broker("broker.rack", _T.STRING, None, _ANY, "The rack of this broker."),
    _broker("connections.max.idle.ms", _T.LONG, 600_000, _ANY,
            "A connection silent for this time is closed."),
    _broker("controlled.shutdown.enable", _T.BOOLEAN, True, _ANY,
            "Whether leadership moves away before a broker stops."),
    _broker("controlled.shutdown.max.retries", _T.INT, 3, _ANY,
            "How often a broker that stops asks for other leaders."),
    _broker("controlled.shutdown.retry.backoff.ms", _T.LONG, 5000, _ANY,
            "How long it waits before it asks again."),
    _broker("default.replication.factor", _T.INT, 1, _ANY,
            "Replicas of a topic that is created without a number."),
    _broker("controller.listener.names", _T.LIST, None, _ANY,
            "Listeners of Kafka's controllers: left out, a broker here is its own."),
    _broker("delete.topic.enable", _T.BOOLEAN, True, _ANY, "Whether topics can be deleted."),
    _broker("fetch.max.bytes", _T.INT, 57_671_680, Valid(lowest=1024),
            "The most bytes that a fetch returns; a first batch that is larger is returned whole."),
    _broker("group.initial.rebalance.delay.ms", _T.INT, 3000, _ANY,
            "How long an empty group waits for more members before its first generation."),
    _broker("group.max.session.timeout.ms", _T.INT, 1_800_000, _ANY,
            "The longest session a member may ask for."),
    _broker("group.max.size", _T.INT, INT_MAX, _ONE, "The most members of a group."),
    _broker("group.min.session.timeout.ms", _T.INT, 1000, _ANY,
            "The shortest session a member may ask for; Apache Kafka's default is 6000."),
    _broker("inter.broker.listener.name", _T.STRING, None, _ANY,
            "The listener that brokers use among themselves."),
    _broker("inter.broker.protocol.version", _T.STRING, "3.9-IV0", _ANY,
            "Brokers speak one version.", effective=False),
    _broker("leader.imbalance.check.interval.seconds", _T.LONG, 300, _ONE,
            "How often leadership is balanced."),
    _broker("leader.imbalance.per.broker.percentage", _T.INT, 10, _ANY,
            "The imbalance that is tolerated."),
    _broker("listener.security.protocol.map", _T.STRING,
            "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", _ANY,
            "Which security protocol each listener speaks."),
    _broker("listeners", _T.LIST, ("PLAINTEXT://:9092",), _ANY, "The addresses listened on."),
    _broker("log.cleaner.backoff.ms", _T.LONG, 15_000, _COUNT,
            "How long the cleaner rests when there is nothing to clean.", dynamic=True),
    _broker("log.cleaner.dedupe.buffer.size", _T.LONG, 134_217_728, _ANY,
            "Bytes for the cleaner's map from key to offset.", dynamic=True),
    _broker("log.cleaner.enable", _T.BOOLEAN, True, _ANY, "Whether compaction runs."),
    _broker("log.cleaner.io.buffer.load.factor", _T.DOUBLE, 0.9, _ANY,
            "How full the cleaner's map may be.", dynamic=True),
    _broker("log.cleaner.io.buffer.size", _T.INT, 524_288, _COUNT,
            "Bytes the cleaner reads at once.", dynamic=True),
    _broker("log.cleaner.io.max.bytes.per.second", _T.DOUBLE, 1.7976931348623157e308, _ANY,
            "The rate that the cleaner keeps to.", dynamic=True),
    _broker("log.cleaner.threads", _T.INT, 1, _COUNT, "How many logs are compacted at once.",
            dynamic=True),
    _broker("log.dir", _T.LIST, ("/tmp/kafka-logs",), _ANY, "The data directory."),
    _broker("log.dirs", _T.LIST, None, _ANY, "The data directories; log.dir if this is not set."),
    _broker("log.flush.offset.checkpoint.interval.ms", _T.INT, 60_000, _COUNT,
            "How often recovery points are written."),
    _broker("log.flush.scheduler.interval.ms", _T.LONG, LONG_MAX, _ANY,
            "How often the broker looks for logs to flush."),
    _broker("log.flush.start.offset.checkpoint.interval.ms", _T.INT, 60_000, _COUNT,
            "How often log start offsets are written."),
    _broker("log.retention.check.interval.ms", _T.LONG, 300_000, _ONE,
            "How often the broker looks for segments to delete."),
    _broker("log.retention.hours", _T.INT, 168, _ANY,
            "The age at which a segment is deleted, in hours."),
    _broker("log.retention.minutes", _T.INT, None, _ANY,
            "The age at which a segment is deleted, in minutes."),
    _broker("log.roll.hours", _T.INT, 168, _ONE, "The age at which a segment is closed, in hours."),
    _broker("log.roll.jitter.hours", _T.INT, 0, _COUNT, "segment.jitter.ms, in hours."),
    _broker("max.connections", _T.INT, INT_MAX, _COUNT, "The most connections.", dynamic=True),
    _broker("max.connections.per.ip", _T.INT, INT_MAX, _COUNT,
            "The most connections of one address.", dynamic=True),
    _broker("max.connections.per.ip.overrides", _T.STRING, "", _OVERRIDES,
            "ADDRESS:NUMBER, …: the most connections of these addresses.", dynamic=True),
    _broker("max.incremental.fetch.session.cache.slots", _T.INT, 1000, _COUNT,
            "The most incremental fetch sessions."),
    _broker("node.id", _T.INT, -1, _ANY, "This broker's id; -1: that of broker.id, or a free one."),
    _broker("num.io.threads", _T.INT, 8, _ONE, _THREADS_DOC, dynamic=True,
            effective=False),
    _broker("num.network.threads", _T.INT, 3, _ONE, _THREADS_DOC, dynamic=True,
            effective=False),
    _broker("num.partitions", _T.INT, 1, _ONE,
            "Partitions of a topic that is created without a number."),
    _broker("num.recovery.threads.per.data.dir", _T.INT, 2, _ONE,
            "Threads of Apache Kafka; here one thread recovers logs.", dynamic=True,
            effective=False),
    _broker("num.replica.fetchers", _T.INT, 1, _ONE, _THREADS_DOC, dynamic=True,
            effective=False),
    _broker("offset.metadata.max.bytes", _T.INT, 4096, _ANY,
            "The longest metadata of a committed offset."),
    _broker("offsets.commit.required.acks", _T.SHORT, -1, _ANY,
            "Commits wait for the high watermark, always.", effective=False),
    _broker("offsets.commit.timeout.ms", _T.INT, 5000, _ONE,
            "How long a request of a group waits for replicas, in a cluster."),
    _broker("offsets.retention.check.interval.ms", _T.LONG, 600_000, _ONE,
            "How often the broker looks for expired offsets."),
    _broker("offsets.retention.minutes", _T.INT, 10_080, _ONE,
            "How long the offsets of an empty group are kept."),
    _broker("offsets.topic.num.partitions", _T.INT, 50, _ONE, "Partitions of __consumer_offsets."),
    _broker("offsets.topic.replication.factor", _T.SHORT, 3, _ONE,
            "Replicas of __consumer_offsets; at most as many as there are brokers."),
    _broker("offsets.topic.segment.bytes", _T.INT, 104_857_600, _ONE,
            "segment.bytes of __consumer_offsets."),
    _broker("producer.id.expiration.check.interval.ms", _T.INT, 600_000, _ONE,
            "How often the broker looks for expired producer ids."),
    _broker("producer.id.expiration.ms", _T.INT, 86_400_000, _ONE,
            "The time without a batch after which a partition forgets a producer id.",
            dynamic=True),
    _broker("queued.max.request.bytes", _T.LONG, -1, _ANY,
            "Memory for large requests that are being received; -1: ten of the largest."),
    _broker("queued.max.requests", _T.INT, 500, _ONE,
            "The length of Apache Kafka's queue of requests; there is no such queue here.",
            effective=False),
    _broker("replica.fetch.backoff.ms", _T.INT, 1000, _COUNT,
            "How long a follower rests after an error.",
            effective=False),
    _broker("replica.fetch.max.bytes", _T.INT, 1_048_576, _COUNT,
            "The most a follower asks of one partition."),
    _broker("replica.fetch.min.bytes", _T.INT, 1, _ANY, "The least a follower waits for."),
    _broker("replica.fetch.response.max.bytes", _T.INT, 10_485_760, _COUNT,
            "The most a follower asks at once."),
    _broker("replica.fetch.wait.max.ms", _T.INT, 500, _ANY,
            "How long a follower's fetch waits, up to a second."),
    _broker("replica.high.watermark.checkpoint.interval.ms", _T.LONG, 5000, _ANY,
            "How often high watermarks are written."),
    _broker("replica.lag.time.max.ms", _T.LONG, 30_000, _ANY,
            "A follower behind for this time leaves the in-sync replicas."),
    _broker("replica.selector.class", _T.STRING, None, _SELECTOR,
            "RackAwareReplicaSelector: consumers read followers in their rack (client.rack)."),
    _broker("replica.socket.timeout.ms", _T.INT, 30_000, _ANY,
            "How long a follower waits for an answer."),
    _broker("replication.quota.window.num", _T.INT, 11, _ONE,
            "The number of windows over which a rate of replication is measured."),
    _broker("replication.quota.window.size.seconds", _T.INT, 1, _ONE,
            "The length of such a window."),
    _broker("request.timeout.ms", _T.INT, 30_000, _ANY, "How long brokers wait for one another.",
            effective=False),
    _broker("reserved.broker.max.id", _T.INT, 1000, _COUNT,
            "Broker ids that are not set are chosen above it."),
    _broker("socket.listen.backlog.size", _T.INT, 50, _ONE, "Connections not yet accepted."),
    _broker("socket.receive.buffer.bytes", _T.INT, 102_400, _ANY,
            "SO_RCVBUF; -1: the system's."),
    _broker("socket.request.max.bytes", _T.INT, 104_857_600, _ONE, "The longest request."),
    _broker("socket.send.buffer.bytes", _T.INT, 102_400, _ANY, "SO_SNDBUF; -1: the system's."),
    _broker("transaction.abort.timed.out.transaction.cleanup.interval.ms", _T.INT, 10_000, _ONE,
            "When an abort is tried again that could not be written at its time."),
    _broker("transaction.max.timeout.ms", _T.INT, 900_000, _ONE,
            "The longest timeout a transaction may ask for."),
    _broker("transaction.remove.expired.transaction.cleanup.interval.ms", _T.INT, 3_600_000, _ONE,
            "When an expiry is tried again that could not be written at its time."),
    _broker("transaction.state.log.min.isr", _T.INT, 2, _ONE,
            "min.insync.replicas of __transaction_state; at most as many as there are brokers."),
    _broker("transaction.state.log.num.partitions", _T.INT, 50, _ONE,
            "Partitions of __transaction_state."),
    _broker("transaction.state.log.replication.factor", _T.SHORT, 3, _ONE,
            "Replicas of __transaction_state; at most as many as there are brokers."),
    _broker("transaction.state.log.segment.bytes", _T.INT, 104_857_600, _ONE,
            "segment.bytes of __transaction_state."),
    _broker("transactional.id.expiration.ms", _T.INT, 604_800_000, _ONE,
            "The time without a transaction after which a transactional id is forgotten."),
    _broker("zookeeper.connect", _T.STRING, None, _ANY,
            "HOST:PORT,HOST:PORT/CHROOT of the ZooKeeper with the cluster's state; unset: this "
            "broker stands alone."),
    _broker("zookeeper.connection.timeout.ms", _T.INT, None, _ANY,
            "How long a request to ZooKeeper waits for a connection; unset: the session timeout."),
    _broker("zookeeper.session.timeout.ms", _T.INT, 6_000, _ONE,
            "The time without a heartbeat after which ZooKeeper ends a broker's session; Kafka's "
            "default is 18 s."),
)
# fmt: on

# Counts of threads: a change while the broker runs halves or doubles them at the most.
THREADS: Final = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
