"""Settings: parsed, refused, fallen back to, described."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkalite
from kafkalite.core.config import accepted
from kafkalite.core.config.keys import SYNONYM_UNITS, Valid
from kafkalite.core.config.properties import properties
from kafkalite.core.config.settings import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerConfig,
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigType,
    LogConfig,
    parse_properties,
    split_known,
    to_text,
)
from kafkalite.errors import ConfigError

KEYS: list[ConfigKey] = [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (found,) = [e for e in entries if e.key.name == name]
    return found


# ---- the declarations --------------------------------------------------------------------------


def test_every_setting_is_documented() -> None:
    assert [key.name for key in KEYS if not key.doc.endswith(".")] == []


def test_every_default_is_valid_and_survives_its_text() -> None:
    given = [key for key in KEYS if key.default is not None]
    invalid = [key.name for key in given if key.valid.complaint(key.default) is not None]
    changed = [key.name for key in given if key.parse(to_text(key.default)) != key.default]
    assert (invalid, changed) == ([], [])


def test_a_range_reads_as_it_is_written() -> None:
    ranges = [key for key in KEYS if not key.valid.pattern]
    assert [key.name for key in ranges if Valid.parse(str(key.valid)) != key.valid] == []


def test_synonyms_are_settings_of_the_broker() -> None:
    for key in TOPIC_KEYS.values():
        for name in key.synonyms:
            assert name in BROKER_KEYS, f"{key.name} falls back to {name}"
            units = SYNONYM_UNITS.get(name, 1) > 1 or name.endswith(".interval.ms")
            assert units or BROKER_KEYS[name].type is key.type


def test_what_is_only_accepted_is_declared_once() -> None:
    names = [setting.name for setting in accepted.accepted()]
    assert len(names) == len(set(names))
    assert not accepted.UNDOCUMENTED & set(BROKER_KEYS)
    assert not [name for name in names if BROKER_KEYS[name].effective]


# ---- what a broker of Apache Kafka 4.3.1 answers to DescribeConfigs ------------------------------

GOLDEN = Path(__file__).parent.parent / "golden" / "configs_of_kafka_4.3.1.tsv"
THEIRS = {
    (kind, name): (type_name, when, "" if limits == "-" else limits, default)
    for kind, name, type_name, when, limits, default in (
        row.split("\t") for row in GOLDEN.read_text().splitlines()
    )
}
OURS = {
    (kind, key.name): (
        key.type.name,
        "dynamic" if key.dynamic else "static",
        "replicas" if "[partitionId]" in key.valid.form else str(key.valid),
        "null" if key.default is None else f"={to_text(key.default)}",
    )
    for kind, keys in (("topic", TOPIC_KEYS), ("broker", BROKER_KEYS))
    for key in keys.values()
}
PROTOCOLS = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
DIFFERENT = {
    # An address is bound once, when the broker starts.
    ("broker", "listeners"): ("LIST", "static", "", "=PLAINTEXT://:9092"),
    ("broker", "listener.security.protocol.map"): ("STRING", "static", "", f"={PROTOCOLS}"),
    # Optional here: the data directory's, or 1.
    ("broker", "node.id"): ("INT", "static", "", "=-1"),
    # A worker of a topology that dies is noticed within three seconds.
    ("broker", "group.min.session.timeout.ms"): ("INT", "static", "", "=1000"),
    # As small as in Kafka 3.9.
    ("broker", "log.segment.bytes"): ("INT", "dynamic", "[14,...]", "=1073741824"),
    ("topic", "segment.bytes"): ("INT", "dynamic", "[14,...]", "=1073741824"),
    # Checked here as the topic's setting is that they stand for.
    ("broker", "log.flush.interval.ms"): ("LONG", "dynamic", "[0,...]", "null"),
    ("broker", "log.retention.ms"): ("LONG", "dynamic", "[-1,...]", "null"),
    ("broker", "log.roll.jitter.ms"): ("LONG", "dynamic", "[0,...]", "null"),
    ("broker", "log.roll.ms"): ("LONG", "dynamic", "[1,...]", "null"),
}
ONLY_3_9 = {"message.downconversion.enable", "message.format.version"}
ONLY_3_9 |= {"message.timestamp.difference.max.ms"}
OURS_ALONE = {"retention.records"}


def test_every_setting_has_kafkas_type_range_and_default() -> None:
    assert {setting: OURS[setting] for setting in THEIRS} == THEIRS | DIFFERENT


def test_a_setting_that_kafka_4_lacks_is_known_to_be_older_or_ours() -> None:
    topics = {name for kind, name in OURS.keys() - THEIRS.keys() if kind == "topic"}
    assert topics == ONLY_3_9 | OURS_ALONE


# ---- parsing -----------------------------------------------------------------------------------

REFUSED = [
    ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of"),
    (
        "retention.ms",
        "",
        "Invalid value  for configuration retention.ms: Not a number of type LONG",
    ),
    ("retention.ms", "9223372036854775808", "Invalid value 9223372036854775808 for configuration"),
    ("retention.ms", "1_000", "Invalid value 1_000 for configuration retention.ms: Not a number"),
    ("compression.lz4.level", "18", "compression.lz4.level: Value must be no more than 17"),
    ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at lea"),
    ("segment.bytes", "2147483648", "configuration segment.bytes: Not a number of type INT"),
    ("segment.bytes", "13", "for configuration segment.bytes: Value must be at least 14"),
    ("min.cleanable.dirty.ratio", "1.5", "Invalid value 1.5 for configuration min.cleanable.dirt"),
    ("min.cleanable.dirty.ratio", "1.5", "min.cleanable.dirty.ratio: Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
    ("min.cleanable.dirty.ratio", "0_1", "Not a number of type DOUBLE"),
    ("compression.gzip.level", "0", "Invalid value 0 for configuration compression.gzip.level: "),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
    ("preallocate", "yes", "configuration preallocate: Expected value to be either true or false"),
    ("cleanup.policy", "compact,shred", "Invalid value shred for configuration cleanup.policy: "),
    ("cleanup.policy", "shred", "cleanup.policy: String must be one of: compact, delete"),
    ("compression.type", "brotli", "compression.type: String must be one of: uncompressed, zstd, "),
    ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ("remote.storage.enable", "true", "Tiered Storage functionality is disabled in the broker."),
    ("retention.minutes", "1", "Unknown topic config name: retention.minutes"),
    ("follower.replication.throttled.replicas", "0:1,x", "Invalid value [0:1, x] for configurati"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_a_bad_setting_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        BrokerConfig.parse().topic({name: text})


def test_values_have_their_types() -> None:
    topic = BrokerConfig.parse().topic(
        {
            "cleanup.policy": "compact, delete",
            "retention.ms": " -1 ",
            "min.cleanable.dirty.ratio": "0.25",
            "unclean.leader.election.enable": "TRUE",
        }
    )
    assert topic["cleanup.policy"] == ("compact", "delete")
    assert topic["retention.ms"] == -1
    assert topic["min.cleanable.dirty.ratio"] == 0.25
    assert topic["unclean.leader.election.enable"] is True
    assert topic["segment.bytes"] == 1 << 30


def test_settings_that_contradict_each_other_are_refused() -> None:
    broker = BrokerConfig.parse()
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms \(10\) > max\.compac"):
        broker.topic({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
    for bad, message in (
        ({"node.id": "1", "broker.id": "2"}, "node.id: 1 contradicts broker.id 2"),
        ({"log.retention.ms": "0"}, "log.retention.ms: 0 keeps nothing"),
        ({"group.min.session.timeout.ms": "1800001"}, "1800001 is above group.max.session"),
        ({"log.cleaner.threads": "0"}, "log.cleaner.threads: 0, should be at least 1"),
        (
            {"log.cleaner.threads": "128"},
            "at least 1MB per cleaner thread: 134217728 bytes for 128",
        ),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "1048576 bytes for 1$"),
    ):
        with pytest.raises(ConfigError, match=message):
            BrokerConfig.parse(bad)


def test_what_kafka_knows_is_accepted_and_what_it_does_not_is_refused() -> None:
    broker = BrokerConfig.parse(
        {
            "process.roles": "broker,controller",
            "num.io.threads": "8",
            "listener.name.internal.ssl.keystore.location": "/x",
            "group.share.max.groups": "3",
            "num.partitions": "4",
        }
    )
    assert broker.ignored == (
        "group.share.max.groups",
        "listener.name.internal.ssl.keystore.location",
        "num.io.threads",
        "process.roles",
    )
    assert broker["num.partitions"] == 4
    with pytest.raises(ConfigError, match=r"num\.partition: not a setting of a broker"):
        BrokerConfig.parse({"num.partition": "4"})


def test_a_dynamic_setting_that_kafka_does_not_know_is_kept_and_hidden() -> None:
    broker = BrokerConfig.parse(
        dynamic={"my.secret": "x"}, dynamic_default={"your.secret": "y", "log.roll.ms": "7"}
    )
    mine = entry(broker.describe(), "my.secret")
    assert (mine.value, mine.source.name) == ("x", "DYNAMIC_BROKER_CONFIG")
    assert mine.is_sensitive
    assert mine.is_read_only
    roll, yours = broker.describe_default()
    assert (roll.key.name, roll.value, roll.is_read_only) == ("log.roll.ms", "7", False)
    assert (yours.key.name, yours.is_sensitive, yours.is_read_only) == ("your.secret", True, True)


def test_a_rate_of_replication_is_no_secret() -> None:
    broker = BrokerConfig.parse(dynamic_default={"leader.replication.throttled.rate": "1000"})
    (rate,) = broker.describe_default()
    assert (rate.value, rate.is_sensitive, rate.key.type.name) == ("1000", False, "LONG")


def test_a_setting_without_effect_has_kafkas_range_all_the_same() -> None:
    name = "group.streams.max.standby.replicas"
    with pytest.raises(ConfigError, match=f"Invalid value -1 for configuration {name}: Value must"):
        BrokerConfig.parse({name: "-1"})
    with pytest.raises(ConfigError, match="String must be one of: required, requested, none"):
        BrokerConfig.parse({"ssl.client.auth": "x"})


def test_id_and_directories_have_two_names() -> None:
    assert BrokerConfig.parse().node_id == -1
    assert BrokerConfig.parse({"broker.id": "3"}).node_id == 3
    assert BrokerConfig.parse({"node.id": "4", "broker.id": "4"}).node_id == 4
    assert BrokerConfig.parse().log_dirs == ("/tmp/kafka-logs",)
    assert BrokerConfig.parse({"log.dir": "/a"}).log_dirs == ("/a",)
    assert BrokerConfig.parse({"log.dir": "/a", "log.dirs": "/b, /c"}).log_dirs == ("/b", "/c")


# ---- fallback and description ------------------------------------------------------------------

HOUR = 3_600_000
FALLBACKS: list[tuple[Mapping[str, str], int]] = [
    ({}, 168 * HOUR),
    ({"log.retention.hours": "2"}, 2 * HOUR),
    ({"log.retention.hours": "2", "log.retention.minutes": "5"}, 300_000),
    ({"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "7"}, 7),
    ({"log.retention.hours": "-1"}, -1),
]


@pytest.mark.parametrize(("static", "retention_ms"), FALLBACKS)
def test_a_topic_falls_back_to_the_brokers_first_synonym(
    static: Mapping[str, str], retention_ms: int
) -> None:
    assert BrokerConfig.parse(static).topic()["retention.ms"] == retention_ms
    assert BrokerConfig.parse(static).topic({"retention.ms": "9"})["retention.ms"] == 9


def test_dynamic_settings_win_over_static_ones() -> None:
    broker = BrokerConfig.parse(
        {"log.segment.bytes": "100"},
        dynamic={"log.segment.bytes": "300"},
        dynamic_default={"log.segment.bytes": "200", "message.max.bytes": "50"},
    )
    assert broker["log.segment.bytes"] == 300
    assert broker.topic()["segment.bytes"] == 300
    assert broker.topic()["max.message.bytes"] == 50
    assert broker.with_dynamic({}).topic()["segment.bytes"] == 200
    assert broker.with_dynamic({}, {}).topic()["segment.bytes"] == 100
    with pytest.raises(ConfigError, match=r"configs dynamically: \[num\.partitions\]"):
        broker.with_dynamic({"num.partitions": "3"})


def test_a_topics_description_says_where_each_value_comes_from() -> None:
    broker = BrokerConfig.parse(
        {"log.retention.minutes": "5"}, dynamic={"log.segment.bytes": "300"}
    )
    entries = broker.topic({"max.message.bytes": "77"}).describe()
    assert [e.key.name for e in entries] == sorted(TOPIC_KEYS)

    own = entry(entries, "max.message.bytes")
    assert (own.value, own.source) == ("77", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(s.name, s.value, s.source.name) for s in own.synonyms] == [
        ("max.message.bytes", "77", "DYNAMIC_TOPIC_CONFIG"),
        ("message.max.bytes", "1048588", "DEFAULT_CONFIG"),
    ]
    retention = entry(entries, "retention.ms")
    assert (retention.value, retention.source) == ("300000", ConfigSource.STATIC_BROKER_CONFIG)
    assert (retention.synonyms, retention.told_source) == ((), ConfigSource.DEFAULT_CONFIG)
    segment = entry(entries, "segment.bytes")
    assert (segment.value, segment.source) == ("300", ConfigSource.DYNAMIC_BROKER_CONFIG)
    plain = entry(entries, "cleanup.policy")
    assert (plain.value, plain.source) == ("delete", ConfigSource.DEFAULT_CONFIG)
    assert plain.key.type is ConfigType.LIST
    assert not plain.is_read_only


def test_synonyms_are_told_from_the_settings_own_name_on() -> None:
    static = {"log.retention.hours": "2", "log.retention.minutes": "5"}
    broker = BrokerConfig.parse(static, dynamic_default={"log.retention.ms": "9"})
    topic = broker.topic({"retention.ms": "7"})

    def told(entries: list[ConfigEntry], name: str) -> list[tuple[str, str | None, int]]:
        return [(s.name, s.value, int(s.source)) for s in entry(entries, name).synonyms]

    of_broker = [
        ("log.retention.ms", "9", 3),
        ("log.retention.minutes", "5", 4),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert told(topic.describe(), "retention.ms") == [("retention.ms", "7", 1), *of_broker]
    assert told(broker.describe(), "log.retention.ms") == of_broker
    assert told(broker.describe(), "log.retention.minutes") == of_broker[1:]
    assert told(BrokerConfig.parse(static).describe(), "log.retention.ms") == []


def test_a_brokers_description_lists_everything() -> None:
    entries = BrokerConfig.parse({"num.partitions": "3"}).describe()
    assert [e.key.name for e in entries] == sorted(BROKER_KEYS)
    partitions = entry(entries, "num.partitions")
    assert (partitions.value, partitions.source) == ("3", ConfigSource.STATIC_BROKER_CONFIG)
    assert partitions.is_read_only
    assert not entry(entries, "log.retention.ms").is_read_only
    assert entry(entries, "log.retention.ms").value is None
    assert entry(entries, "advertised.listeners").value is None


PRODUCER_CHECK = "producer.id.expiration.check.interval.ms"


def test_the_log_reads_the_topics_values() -> None:
    assert BrokerConfig.parse().topic().log == LogConfig()
    log = (
        BrokerConfig.parse(
            {"producer.id.expiration.ms": "5", "log.roll.hours": "1", PRODUCER_CHECK: "7"}
        )
        .topic({"cleanup.policy": "compact"})
        .log
    )
    assert (log.producer_id_expiration_ms, log.segment_ms) == (5, HOUR)
    assert log.producer_id_expiration_check_interval_ms == 7
    assert (log.is_compacted, log.is_deleted) == (True, False)


def test_the_deprecated_timestamp_bound_counts_where_the_new_ones_are_unset() -> None:
    broker = BrokerConfig.parse()
    log = broker.topic(
        {"message.timestamp.difference.max.ms": "7", "message.timestamp.before.max.ms": "9"}
    ).log
    assert (log.message_timestamp_before_max_ms, log.message_timestamp_after_max_ms) == (9, 7)


UNREAD = {  # read under names that are put together, or by whoever compacts
    name
    for name in BROKER_KEYS
    if name.startswith(("log.cleaner.", "offsets.topic.", "transaction."))
}


def test_what_is_declared_to_have_an_effect_is_read() -> None:
    package = Path(kafkalite.__file__).parent
    tables = {
        package / "core" / "config" / f"{name}.py" for name in ("accepted", "keys", "security")
    }
    source = "".join(p.read_text() for p in package.rglob("*.py") if p not in tables)
    of_topics = {name for key in TOPIC_KEYS.values() for name in key.synonyms}
    for name, key in BROKER_KEYS.items():
        if name not in of_topics | UNREAD:
            assert (f'"{name}"' in source) == key.effective, name


# ---- server.properties -------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["3.9", "4"])
def test_a_server_properties_is_taken_as_it_is(release: str) -> None:
    text = (GOLDEN.parent / f"server_{release}.properties").read_text()
    settings, unknown = split_known(parse_properties(text))
    config = BrokerConfig.parse(settings)
    assert unknown == (["my.own.setting"] if release == "3.9" else [])
    assert (config["num.partitions"], config.topic()["retention.ms"]) == (3, 48 * HOUR)
    assert config.node_id == (0 if release == "3.9" else 4)
    assert {"num.io.threads", "num.network.threads"} < set(config.ignored)
    assert (config["zookeeper.connect"] == "localhost:2181") == (release == "3.9")


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# a comment\r\n"
        "! another\n"
        "\n"
        "num.partitions=3\n"
        "  log.dirs : /a, \\\n"
        "      /b\n"
        "broker.rack eu west \n"
        "path=c\\:\\\\logs\\tx\n"
        "k\\=y=v\n"
        "empty=\n"
        "bare\n"
        "unicode=\\u00e9\n"
        "num.partitions=4\n"
        "odd=a\\\\\\\nb\n"
    )
    assert parse_properties(text) == {
        "num.partitions": "4",
        "log.dirs": "/a, /b",
        "broker.rack": "eu west",
        "path": "c:\\logs\tx",
        "k=y": "v",
        "empty": "",
        "bare": "",
        "unicode": "é",
        "odd": "a\\b",
    }


def test_a_pair_knows_its_line_and_what_stands_there() -> None:
    text = "# one\n\na=1\nb = 2, \\\n  3  \n\n c 4\n"
    assert list(properties(text)) == [
        ("a", "1", 3, "a=1"),
        ("b", "2, 3", 4, "b = 2, 3"),
        ("c", "4", 7, "c 4"),
    ]


@given(st.text())
def test_any_text_is_read_without_failing(text: str) -> None:
    for name, value in parse_properties(text).items():
        assert isinstance(name, str)
        assert value == value.strip()


WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1)


@given(st.dictionaries(WORDS, WORDS))
def test_plain_pairs_survive(pairs: dict[str, str]) -> None:
    assert parse_properties("".join(f"{k} = {v}\n" for k, v in pairs.items())) == pairs
