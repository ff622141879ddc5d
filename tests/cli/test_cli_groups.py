"""`kafkalite groups` on a running broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.sync import Consumer

Run = Callable[..., Any]


@pytest.fixture
def read_group(kafkalite: Run, make_topic: Run, group: str) -> Callable[[], str]:
    """A topic of two partitions, of whose five records the group has read three."""

    def make() -> str:
        topic = make_topic(2)
        kafkalite("produce", topic, "-p", "0", "-q", stdin=b"a\nb\nc\nd\ne\n")
        read = kafkalite("consume", topic, "--group", group, "--max-records", "3").lines
        assert read == ["a", "b", "c"]
        return str(topic)

    return make


def test_a_group_is_listed_and_described(kafkalite: Run, read_group: Run, group: str) -> None:
    topic = read_group()
    listed = {g["group"]: g for g in kafkalite("groups", "list", "--json").json}
    assert listed[group] == {"group": group, "state": "Empty", "protocol": "consumer"}
    assert group not in kafkalite("groups", "list", "--state", "Stable").out.decode()
    (told,) = kafkalite("groups", "describe", group, "--json").json
    assert (told["state"], told["lag"], told["members"]) == ("Empty", 2, [])
    first = told["partitions"][0]
    assert (first["topic"], first["committed"], first["end"], first["lag"]) == (topic, 3, 5, 2)
    text = kafkalite("groups", "describe", group).lines
    assert text[0] == f"{group}: Empty, 0 members, lag 2"


def test_members_and_what_they_read(kafkalite: Run, refused: Run, make_topic: Run, group: str,
                                    bootstrap: str) -> None:  # fmt: skip
    topic = make_topic(2)
    with Consumer(bootstrap, group_id=group, client_id="reader") as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment:
            consumer.poll(10)
        (told,) = kafkalite("groups", "describe", group, "--json").json
        assert (told["state"], told["assignor"]) == ("Stable", "range")
        (member,) = told["members"]
        assert (member["client"], member["partitions"]) == (
            "reader", [f"{topic}-0", f"{topic}-1"],
        )  # fmt: skip
        reset = ["groups", "reset-offsets", group, "--topic", topic, "--to", "latest"]
        assert "stop them first" in refused(*reset)
        delete = refused("groups", "delete", group, "--yes")
        assert delete == f"group {group}: it has members, stop them first (NON_EMPTY_GROUP)"


def test_offsets_are_moved_in_a_dry_run(kafkalite: Run, read_group: Run, group: str) -> None:
    topic = read_group()
    for flags, new in (
        (["--to", "earliest"], 0),
        (["--to", "latest"], 5),
        (["--to", "2"], 2),
        (["--to", "99"], 5),
        (["--to", "-1"], 4),
        (["--to", "-1h"], 0),
        (["--to", "2100-01-01"], 5),
        (["--shift-by", "-1"], 2),
        (["--shift-by", "99"], 5),
    ):
        reset = ["groups", "reset-offsets", group, "--topic", f"{topic}:0", *flags, "--json"]
        told = kafkalite(*reset).json
        assert told["executed"] is False, flags
        assert told["partitions"] == [
            {"topic": topic, "partition": 0, "committed": 3, "new": new, "begin": 0, "end": 5}
        ], flags
    (group_now,) = kafkalite("groups", "describe", group, "--json").json
    assert group_now["partitions"][0]["committed"] == 3


def test_offsets_are_moved_for_good(kafkalite: Run, read_group: Run, group: str) -> None:
    topic = read_group()
    reset = ["groups", "reset-offsets", group, "--all-topics", "--to", "1"]
    assert "pass --execute" in kafkalite(*reset).err
    kafkalite(*reset, "--execute")
    again = kafkalite("consume", topic, "--group", group, "--until-end").lines
    assert again == ["b", "c", "d", "e"]


def test_what_cannot_be_moved(kafkalite: Run, refused: Run, make_topic: Run, group: str) -> None:
    topic = make_topic(1)
    reset = ["groups", "reset-offsets", group]
    assert "has no offsets" in refused(*reset, "--all-topics", "--to", "latest")
    shift = [*reset, "--topic", topic, "--shift-by", "1"]
    assert refused(*shift) == f"{topic}-0: the group has no committed offset to shift"
    missing = refused(*reset, "--topic", f"{topic}-x", "--to", "latest")
    assert missing.endswith(f"; did you mean '{topic}'?")
    for flags in (
        ["--topic", topic],
        ["--to", "latest"],
        ["--topic", topic, "--to", "latest", "--shift-by", "1"],
        ["--topic", topic, "--to", "someday"],
        ["--topic", f"{topic}:1", "--to", "latest"],
    ):
        kafkalite(*reset, *flags, code=2)


def test_groups_go(kafkalite: Run, refused: Run, read_group: Run, group: str) -> None:
    read_group()
    assert "pass --yes" in refused("groups", "delete", group)
    assert kafkalite("groups", "delete", group, "--yes").lines == [f"{group}: deleted"]
    for command in (["delete", group, "--yes"], ["describe", group]):
        assert refused("groups", *command).startswith(f"group '{group}' does not exist at ")


@pytest.mark.needs("OffsetDelete")
def test_offsets_go(kafkalite: Run, refused: Run, read_group: Run, group: str) -> None:
    topic = read_group()
    forget = ["groups", "delete-offsets", group, "--topic", f"{topic}:0", "--yes", "--json"]
    assert kafkalite(*forget).json == [{"topic": topic, "partition": 0, "deleted": True}]
    assert "has no offsets of" in refused(*forget)
