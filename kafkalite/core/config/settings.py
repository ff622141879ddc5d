"""The settings in force, where each was set, and the defaults that a topic falls back to.  [P]

    retention.ms (topic) > log.retention.ms > log.retention.minutes > log.retention.hours > default

A broker's setting may be changed while it runs, for one broker or for all:

    dynamic (this broker) > dynamic (every broker) > static (server.properties) > default

Owns   `BrokerConfig`, `TopicConfig`, `LogConfig` (what a partition's log reads), all immutable.
Never  reads a file: `properties` takes the text of a `server.properties`.
Fails  with ConfigError in Kafka's words, which name the setting and its value. A broker setting of
       Kafka without effect here is accepted and listed in `BrokerConfig.ignored`; one unknown to
       Kafka is refused, save where Kafka takes it: as a dynamic one, which is kept and shown.
Source KIP-226; apache/kafka 3.9 `DynamicBrokerConfig`, `ConfigHelper`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from itertools import dropwhile
from typing import Any

from kafkalite.core.config import accepted
from kafkalite.core.config.keys import (
    BROKER_KEYS,
    LONG_MAX,
    SYNONYM_UNITS,
    TOPIC_KEYS,
    ConfigKey,
    ConfigType,
    Valid,
    Value,
    to_text,
)
from kafkalite.core.config.properties import parse_properties
from kafkalite.core.config.rates import RATES
from kafkalite.core.nearest import did_you_mean
from kafkalite.errors import ConfigError

__all__ = [
    "BROKER_KEYS",
    "TOPIC_KEYS",
    "BrokerConfig",
    "ConfigEntry",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "LogConfig",
    "TopicConfig",
    "Value",
    "parse_properties",
    "split_known",
    "to_text",
]


class ConfigSource(IntEnum):
    """Where a value in force was set; the numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One possible source of a value: a setting's name, its text and its source."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting, its value in force and the source.

    `synonyms` are what DescribeConfigs tells: those from the first on that bears the setting's own
    broker name. As in Kafka a retention.ms that log.retention.hours decides has none, and
    `told_source` calls it a default.
    """

    key: ConfigKey
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]
    is_read_only: bool

    @property
    def told_source(self) -> ConfigSource:
        """The source that DescribeConfigs reports."""
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT_CONFIG

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is, or may be, a secret and therefore not told."""
        return self.key.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)


# ---- the broker's settings ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A broker's settings: `config["log.segment.bytes"]` is the typed value in force."""

    static: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    dynamic_default: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # set, known to Kafka, without effect here
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # What a topic without settings of its own has: there may be thousands of topics.
    topic_values: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    topic_entries: tuple[ConfigEntry, ...] = field(init=False, repr=False, compare=False)
    topic_log: LogConfig = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {name: _fallback(key, self) for name, key in TOPIC_KEYS.items()}
        entries = (_entry(key, values[name], self) for name, key in sorted(TOPIC_KEYS.items()))
        for name, value in (("topic_values", values), ("topic_entries", tuple(entries))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "topic_log", LogConfig.of(values, self))

    @classmethod
    def parse(
        cls,
        static: Mapping[str, str] | None = None,
        *,
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """The settings in force; ConfigError names the first that is unknown or invalid."""
        layers = (dict(static or {}), dict(dynamic or {}), dict(dynamic_default or {}))
        ignored = {name for layer in layers for name in layer if _is_ignored(name)}
        check_dynamic(layers[1] | layers[2])
        for name, text in layers[0].items():
            if not is_known(name):
                hint = did_you_mean(name, BROKER_KEYS)
                words = f"{name}: not a setting of a broker (value '{text}'){hint}"
                raise ConfigError(words, setting=name)
        values = {key.name: key.default for key in BROKER_KEYS.values()}
        for layer in (layers[0], layers[2], layers[1]):
            for name, text in layer.items():
                if name in BROKER_KEYS:
                    values[name] = BROKER_KEYS[name].parse(text)
        _check_broker(values)
        return cls(*layers, tuple(sorted(ignored)), values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def node_id(self) -> int:
        """This broker's number, -1 where none was set: `node.id`, else `broker.id`."""
        node_id: int = self["node.id"]
        return node_id if node_id >= 0 else int(self["broker.id"])

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data directories: `log.dirs`, else `log.dir`."""
        directories: tuple[str, ...] = self["log.dirs"] or self["log.dir"]
        return tuple(directory for directory in directories if directory)

    def with_dynamic(
        self,
        dynamic: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """The same broker under other dynamic settings; a layer that is None stays as it is."""
        own = self.dynamic if dynamic is None else dynamic
        of_all = self.dynamic_default if dynamic_default is None else dynamic_default
        if (own, of_all) == (self.dynamic, self.dynamic_default):
            return self
        return BrokerConfig.parse(self.static, dynamic=own, dynamic_default=of_all)

    def topic(self, overrides: Mapping[str, str] | None = None) -> TopicConfig:
        """A topic's settings on this broker."""
        return TopicConfig.parse(overrides or {}, self)

    def synonyms(self, names: tuple[str, ...]) -> tuple[ConfigSynonym, ...]:
        """All values set under `names` and their defaults; the first is in force."""
        were_set = [
            ConfigSynonym(name, layer[name], source)
            for source, layer in (
                (ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic),
                (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default),
                (ConfigSource.STATIC_BROKER_CONFIG, self.static),
            )
            for name in names
            if name in layer
        ]
        return (*were_set, *_defaults(names))

    def describe(self) -> list[ConfigEntry]:
        """Every setting of the broker with its value, source and synonyms, by name."""
        entries = []
        for name, key in sorted(BROKER_KEYS.items()):
            synonyms = _from_name_on(name, self.synonyms(_GROUPS.get(name, (name,))))
            source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
            text = to_text(self.values[name])
            entries.append(ConfigEntry(key, text, source, synonyms, not key.dynamic))
        return entries + [
            _unknown(name, self.synonyms((name,))) for name in _unknown_names(self.dynamic)
        ]

    def describe_default(self) -> list[ConfigEntry]:
        """The settings that were made for all brokers at once, by name."""
        return [
            ConfigEntry(
                BROKER_KEYS[name], text, source, (ConfigSynonym(name, text, source),), False
            )
            if name in BROKER_KEYS
            else _unknown(name, (ConfigSynonym(name, text, source),))
            for name, text in sorted(self.dynamic_default.items())
            for source in (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,)
        ]


@lru_cache(maxsize=1_024)
def _defaults(names: tuple[str, ...]) -> tuple[ConfigSynonym, ...]:
    """The defaults under `names`, which are constants of the tables of keys."""
    texts = [(name, to_text(BROKER_KEYS[name].default)) for name in names if name in BROKER_KEYS]
    default = ConfigSource.DEFAULT_CONFIG
    return tuple(ConfigSynonym(name, text, default) for name, text in texts if text is not None)


def is_known(name: str) -> bool:
    """Whether a broker of Kafka has a setting of that name."""
    return name in BROKER_KEYS or _is_ignored(name)


def split_known(settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """A file's settings that Kafka knows, and the names of the others: a file may hold anything."""
    known = {name: text for name, text in settings.items() if is_known(name)}
    return known, [name for name in settings if name not in known]


def check_dynamic(names: Iterable[str]) -> None:
    """ConfigError for settings that cannot be changed while the broker runs."""
    static = [name for name in names if name in BROKER_KEYS and not BROKER_KEYS[name].dynamic]
    if static:
        raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(static)}]")


def _is_ignored(name: str) -> bool:
    if name in BROKER_KEYS:
        return not BROKER_KEYS[name].effective
    return name in accepted.UNDOCUMENTED or name.startswith(accepted.PREFIXES)


def _unknown_names(layer: Iterable[str]) -> list[str]:
    return sorted(name for name in layer if name not in BROKER_KEYS)


def _unknown(name: str, synonyms: tuple[ConfigSynonym, ...]) -> ConfigEntry:
    """A rate, or a setting that Kafka does not know and keeps: its value may be a secret."""
    kind = ConfigType.LONG if name in RATES else ConfigType.UNKNOWN
    key = ConfigKey(name, kind, None, Valid(), "", effective=False)
    return ConfigEntry(key, synonyms[0].value, synonyms[0].source, synonyms, is_read_only=True)


def _from_name_on(name: str, synonyms: Sequence[ConfigSynonym]) -> tuple[ConfigSynonym, ...]:
    """The synonyms from the first on that bears the name."""
    return tuple(dropwhile(lambda synonym: synonym.name != name, synonyms))


def _groups() -> dict[str, tuple[str, ...]]:
    """A setting and those of the broker that say the same in another unit, in Kafka's order."""
    of_topics = (key.synonyms for key in TOPIC_KEYS.values())
    return {names[i]: names[i:] for names in of_topics for i in range(len(names))}


_GROUPS = _groups()


def _check_broker(values: Mapping[str, Any]) -> None:
    """Checks settings that depend on each other."""
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if values[name] == 0:
            raise ConfigError(f"{name}: 0 keeps nothing; -1 keeps everything")
    if values["node.id"] >= 0 and values["broker.id"] not in (-1, values["node.id"]):
        raise ConfigError(
            f"node.id: {values['node.id']} contradicts broker.id {values['broker.id']}"
        )
    shortest, longest = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    if values[shortest] > values[longest]:
        raise ConfigError(f"{shortest}: {values[shortest]} is above {longest} {values[longest]}")
    if values["max.connections.per.ip"] == 0 and not values["max.connections.per.ip.overrides"]:
        raise ConfigError(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
            "property is set."
        )
    _check_lags(values, "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
    threads, buffer = values["log.cleaner.threads"], values["log.cleaner.dedupe.buffer.size"]
    if threads < 1:
        raise ConfigError(f"log.cleaner.threads: {threads}, should be at least 1")
    if buffer // threads <= 1 << 20:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread: {buffer} "
            f"bytes for {threads}"
        )


def _check_lags(values: Mapping[str, Any], shortest: str, longest: str) -> None:
    if values[shortest] > values[longest]:
        raise ConfigError(
            f"conflict topic config setting {shortest} ({values[shortest]}) > "
            f"{longest} ({values[longest]})"
        )


# ---- a topic's settings ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings: `config["retention.ms"]` is the typed value in force."""

    overrides: Mapping[str, str]
    broker: BrokerConfig = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
        """The settings in force; ConfigError names the first that is unknown or invalid."""
        for name in overrides:
            if name not in TOPIC_KEYS:
                raise ConfigError(f"Unknown topic config name: {name}")
        own = {name: TOPIC_KEYS[name].parse(text) for name, text in overrides.items()}
        values = {**broker.topic_values, **own}
        _check_lags(values, "min.compaction.lag.ms", "max.compaction.lag.ms")
        if values["remote.storage.enable"]:
            raise ConfigError(
                "Tiered Storage functionality is disabled in the broker. Topic cannot be "
                "configured with remote log storage."
            )
        return cls(dict(overrides), broker, values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def log(self) -> LogConfig:
        """The settings for the log of each of the topic's partitions."""
        if not self.overrides:
            return self.broker.topic_log
        return LogConfig.of(self.values, self.broker)

    def describe(self) -> list[ConfigEntry]:
        """Every setting of the topic with its value, source and synonyms, by name."""
        return [
            self._own(entry) if entry.key.name in self.overrides else entry
            for entry in self.broker.topic_entries
        ]

    def _own(self, entry: ConfigEntry) -> ConfigEntry:
        name, source = entry.key.name, ConfigSource.DYNAMIC_TOPIC_CONFIG
        own = ConfigSynonym(name, self.overrides[name], source)
        text = to_text(self.values[name])
        return replace(entry, value=text, source=source, synonyms=(own, *entry.synonyms))


def _entry(key: ConfigKey, value: Value, broker: BrokerConfig) -> ConfigEntry:
    """The description of a setting that a topic leaves to its broker."""
    synonyms = broker.synonyms(key.synonyms)
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    told = _from_name_on(key.synonyms[0], synonyms) if synonyms else ()
    return ConfigEntry(key, to_text(value), source, told, is_read_only=False)


def _fallback(key: ConfigKey, broker: BrokerConfig) -> Value:
    """The broker's value for a topic's setting, in the topic's unit."""
    for synonym in broker.synonyms(key.synonyms)[:1]:
        value: Value = broker.values[synonym.name]
        unit = SYNONYM_UNITS.get(synonym.name, 1)
        if unit != 1 and isinstance(value, int):
            return -1 if value < 0 else value * unit
        return value
    return key.default


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one partition's log, by Kafka's names with underscores. -1: no bound."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    retention_records: int = -1
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False
    producer_id_expiration_ms: int = 86_400_000  # the broker's, as is the next
    producer_id_expiration_check_interval_ms: int = 600_000
    # Every append asks for these, so they are worked out once.
    is_compacted: bool = field(init=False, repr=False, compare=False)
    roll_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """`is_compacted`: the last value of a key outlives the others, so that every record needs a
        key. `roll_ms`: the age at which a segment is closed, in time for max.compaction.lag.ms, as
        the active segment is never compacted."""
        is_compacted = "compact" in self.cleanup_policy
        bound = self.max_compaction_lag_ms if is_compacted else LONG_MAX
        object.__setattr__(self, "is_compacted", is_compacted)
        object.__setattr__(self, "roll_ms", min(self.segment_ms, bound))

    @classmethod
    def of(cls, topic: Mapping[str, Any], broker: BrokerConfig) -> LogConfig:
        """The log's view of a topic's values."""
        named = {name.replace(".", "_"): value for name, value in topic.items()}
        read = {name: named[name] for name in cls.__slots__ if name in named}
        difference = topic["message.timestamp.difference.max.ms"]
        if difference != LONG_MAX:  # the deprecated setting decides where the new ones are unset
            for bound in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
                if topic[bound] == TOPIC_KEYS[bound].default:
                    read[bound.replace(".", "_")] = difference
        for name in ("producer.id.expiration.ms", "producer.id.expiration.check.interval.ms"):
            read[name.replace(".", "_")] = broker[name]
        return cls(**read)

    @property
    def is_deleted(self) -> bool:
        """Whether old segments go by age, size and count."""
        return "delete" in self.cleanup_policy
