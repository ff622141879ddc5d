"""`kafkalite topics`, `configs` and `server status` on a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from kafkalite.cli import topics
from kafkalite.core.types import TopicPartition

Run = Callable[..., Any]


def test_a_topic_comes_is_shown_and_goes(kafkalite: Run, topic: str) -> None:
    made = kafkalite("topics", "create", topic, "--partitions", "3", "--config", "retention.ms=9")
    assert made.lines == [f"{topic}: created"]
    listed = {t["name"]: t for t in kafkalite("topics", "list", "--json").json}
    assert (listed[topic]["partitions"], listed[topic]["replication_factor"]) == (3, 1)
    assert topic in kafkalite("topics", "list").out.decode()
    kafkalite("produce", topic, "--partition", "1", "-q", stdin=b"a\nb\n")
    (told,) = kafkalite("topics", "describe", topic, "--json").json
    assert [(p["partition"], p["begin"], p["end"]) for p in told["partitions"]] == [
        (0, 0, 0), (1, 0, 2), (2, 0, 0),
    ]  # fmt: skip
    assert told["partitions"][0]["isr"] == [told["partitions"][0]["leader"]]
    assert told["configs"] == {"retention.ms": {"value": "9", "source": "TOPIC"}}
    text = kafkalite("topics", "describe", topic).lines
    assert text[0].startswith(f"{topic}: 3 partitions, 2 offsets")
    assert "retention.ms=9" in text[1]
    assert kafkalite("topics", "delete", topic, "--yes", "--json").json == [
        {"name": topic, "deleted": True}
    ]
    assert topic not in {t["name"] for t in kafkalite("topics", "list", "--json").json}


def test_all_configs_of_a_topic(kafkalite: Run, make_topic: Run) -> None:
    (told,) = kafkalite("topics", "describe", make_topic(1), "--all-configs", "--json").json
    assert told["configs"]["cleanup.policy"] == {"value": "delete", "source": "DEFAULT"}


def test_creating_twice(kafkalite: Run, refused: Run, topic: str) -> None:
    kafkalite("topics", "create", topic)
    assert refused("topics", "create", topic).endswith("(TOPIC_ALREADY_EXISTS)")
    again = kafkalite("topics", "create", topic, "--if-not-exists", "--json").json
    assert again == [{"name": topic, "created": False, "exists": True}]


def test_a_dry_run_creates_nothing(kafkalite: Run, refused: Run, topic: str) -> None:
    told = kafkalite("topics", "create", topic, "--dry-run").lines
    assert told == [f"{topic}: would be created"]
    assert "does not exist" in refused("topics", "describe", topic)


def test_deleting_asks_first(kafkalite: Run, refused: Run, make_topic: Run, topic: str) -> None:
    make_topic(1)
    assert "pass --yes" in refused("topics", "delete", topic)
    kafkalite("topics", "describe", topic)
    assert refused("topics", "delete", f"{topic}-x", "--yes").startswith(f"topic '{topic}-x'")
    told = kafkalite("topics", "delete", f"{topic}-x", "--yes", "--if-exists").lines
    assert told == [f"{topic}-x: does not exist"]


@pytest.mark.needs("CreatePartitions", "IncrementalAlterConfigs")
def test_topics_grow_and_change(kafkalite: Run, refused: Run, make_topic: Run) -> None:
    topic = make_topic(1, {"retention.ms": "9"})
    kafkalite("topics", "alter", topic, "--partitions", "3", "--dry-run")
    kafkalite("topics", "alter", topic, "--partitions", "2", "--set", "segment.bytes=2000000",
              "--unset", "retention.ms")  # fmt: skip
    (told,) = kafkalite("topics", "describe", topic, "--json").json
    assert len(told["partitions"]) == 2
    assert {name: c["value"] for name, c in told["configs"].items()} == {"segment.bytes": "2000000"}
    assert "INVALID_PARTITIONS" in refused("topics", "alter", topic, "--partitions", "1")
    assert "INVALID_CONFIG" in refused("topics", "alter", topic, "--set", "segment.bytes=x")


@pytest.mark.needs("DeleteRecords")
def test_trimming(kafkalite: Run, refused: Run, make_topic: Run) -> None:
    topic = make_topic(2)
    kafkalite("produce", topic, "-p", "0", "-q", stdin=b"a\nb\nc\nd\n")
    assert "pass --yes" in refused("topics", "trim", topic, "--before", "2", "-p", "0")
    assert "outside the log" in refused(
        "topics", "trim", topic, "--before", "9", "--yes", "-p", "0"
    )
    trimmed = kafkalite("topics", "trim", topic, "--before", "-1", "--yes", "--json").json
    assert trimmed == [{"topic": topic, "partition": 0, "begin": 3}]
    assert kafkalite("consume", topic, "--until-end").lines == ["d"]
    none = kafkalite("topics", "trim", topic, "--before", "beginning", "--yes")
    assert "no records lie before that place" in none.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics"],
        ["topics", "creat"],
        ["topics", "create"],
        ["topics", "create", "a", "--partitions", "0"],
        ["topics", "create", "a", "--config", "x"],
        ["topics", "alter", "a"],
        ["topics", "trim", "a", "--before", "yesterday"],
        ["topics", "trim", "a", "--before", "end", "--partition", "5-1"],
        ["configs", "describe", "broker", "x"],
        ["configs", "describe", "broker"],
        ["configs", "describe", "topic"],
        ["configs", "describe", "default"],
        ["configs", "describe", "1"],
        ["configs", "describe", "a", "b"],
        ["configs", "alter", "topic", "a"],
        ["nonsense"],
    ],
)
def test_flags_that_make_no_sense_end_with_2(kafkalite: Run, arguments: list[str]) -> None:
    kafkalite(*arguments, code=2)


def test_settings_are_shown(kafkalite: Run, refused: Run, make_topic: Run) -> None:
    topic = make_topic(1, {"retention.ms": "9"})
    everything = {
        c["name"]: c for c in kafkalite("configs", "describe", "topic", topic, "--json").json
    }
    assert (everything["retention.ms"]["value"], everything["retention.ms"]["source"]) == (
        "9", "TOPIC",
    )  # fmt: skip
    only = kafkalite("configs", "describe", "topic", topic, "--changed", "--json").json
    assert "retention.ms" in {c["name"] for c in only}
    assert "DEFAULT" not in {c["source"] for c in only}
    assert any(line.split()[:2] == ["retention.ms", "9"] for line in
               kafkalite("configs", "describe", "topic", topic).lines)  # fmt: skip
    long = kafkalite("configs", "describe", "topic", topic, "--key", "retention.ms", "--synonyms")
    assert long.lines[0] == "retention.ms=9"
    kafkalite("configs", "describe", "topic", topic, "--key", "nonsense", code=2)
    assert kafkalite("configs", "describe", topic, "--changed", "--json").json == only
    typo = kafkalite("configs", "describe", topic, "--key", "retention.m", code=2).err
    assert "has no setting 'retention.m'; did you mean 'retention.ms'?" in typo
    assert "does not exist" in refused("configs", "describe", "topic", f"{topic}-x")
    brokers = kafkalite("server", "status", "--json").json["brokers"]
    broker = kafkalite("configs", "describe", "broker", str(brokers[0]["id"]), "--json").json
    assert "log.retention.ms" in {c["name"] for c in broker}


@pytest.mark.needs("IncrementalAlterConfigs")
def test_settings_are_changed(kafkalite: Run, refused: Run, make_topic: Run) -> None:
    topic = make_topic(1, {"retention.ms": "9"})

    def value(name: str) -> str:
        told = kafkalite("configs", "describe", "topic", topic, "--key", name, "--json").json
        return str(told[0]["value"])

    assert kafkalite(
        "configs", "alter", "topic", topic, "--set", "retention.ms=8", "--append",
        "cleanup.policy=compact", "--json",
    ).json == {"type": "topic", "name": topic, "altered": True}  # fmt: skip
    assert (value("retention.ms"), value("cleanup.policy")) == ("8", "delete,compact")
    kafkalite("configs", "alter", "topic", topic, "--subtract", "cleanup.policy=delete")
    kafkalite("configs", "alter", "topic", topic, "--set", "retention.ms=7", "--dry-run")
    assert (value("retention.ms"), value("cleanup.policy")) == ("8", "compact")
    assert "INVALID_CONFIG" in refused("configs", "alter", "topic", topic, "--set", "x.y=1")
    for command in (["configs", "alter", topic, "--set"], ["topics", "create", "x", "--config"]):
        told = refused(*command, "cleanup.polcy=compact")
        assert told.endswith("cleanup.polcy; did you mean 'cleanup.policy'?"), told


@pytest.mark.needs("IncrementalAlterConfigs")
def test_a_setting_of_brokers_that_is_unknown_is_reported(kafkalite: Run) -> None:
    alter = ["configs", "alter", "broker", "default"]
    ran = kafkalite(*alter, "--set", "log.retention.m=3", "--dry-run", "--json")
    assert ran.json == {"type": "broker", "name": "default", "altered": False}
    assert ran.err == (
        "kafkalite: broker default: 'log.retention.m' is not a setting of Kafka's; the broker "
        "keeps it without effect; did you mean 'log.retention.ms'?\n"
    )
    assert kafkalite(*alter, "--unset", "log.retention.m", "--dry-run").err == ""


def test_the_cluster_s_state(kafkalite: Run, bootstrap: str, make_topic: Run) -> None:
    make_topic(2)
    told = kafkalite("server", "status", "--json").json
    assert told["cluster_id"]
    (node,) = told["brokers"]
    assert f"{node['host']}:{node['port']}" == bootstrap
    assert told["controller"] == node["id"]
    assert told["topics"] >= 1
    assert told["partitions"] >= 2
    assert (told["offline_partitions"], told["under_replicated_partitions"]) == ([], [])
    assert {"key": 18, "name": "ApiVersions"}.items() <= next(
        a for a in told["apis"] if a["key"] == 18
    ).items()
    text = kafkalite("server", "status", "--apis").out.decode()
    assert told["cluster_id"] in text
    assert "ApiVersions" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["server", "status"],
        ["topics", "list"],
        ["groups", "list"],
        ["produce", "x"],
        ["consume", "x"],
        ["transactions", "list"],
    ],
)
def test_a_broker_that_is_not_there_is_named(refused: Run, arguments: list[str]) -> None:
    told = refused(*arguments, "--bootstrap-servers", "127.0.0.1:1")
    assert told.startswith("no broker answers at 127.0.0.1:1")
    assert told.endswith("; -b HOST:PORT names another broker, 'kafkalite server start' starts one")


def test_an_address_that_is_none(refused: Run) -> None:
    assert refused("topics", "list", "-b", "nonsense") == (
        "bootstrap server 'nonsense' is not host:port, such as 127.0.0.1:9092"
    )


def test_ends_that_a_new_leader_learns_soon_are_shown_and_others_left_out() -> None:
    learned, unknown = TopicPartition("t", 0), TopicPartition("t", 1)
    answers: list[dict[TopicPartition, int]] = [
        {},
        {learned: 7},
        {learned: 7},
        {learned: 7},
        {learned: 7},
    ]

    class FakeAdmin:
        async def end_offsets(self, _: object, *, known_only: bool) -> dict[TopicPartition, int]:
            assert known_only
            return answers.pop(0)

        async def beginning_offsets(self, partitions: list[TopicPartition]) -> Any:
            return dict.fromkeys(partitions, 3)

    bounds = asyncio.run(topics._known_bounds(cast("Any", FakeAdmin()), [learned, unknown]))
    assert (bounds.beginnings, bounds.ends) == ({learned: 3, unknown: 3}, {learned: 7})
    assert not answers
