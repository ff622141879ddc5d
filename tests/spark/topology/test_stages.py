"""Where Spark runs the parts of a topology, and what it refuses."""

from __future__ import annotations

import json as plain_json
from typing import Any

from kafkalite.spark.topology.stages import Stages, describe_stages, stages_of
from kafkalite.streams import json, string, tumbling
from kafkalite.streams.api import StreamsBuilder

App = StreamsBuilder[str, Any]


def app() -> App:
    return StreamsBuilder("app", key=string(), value=json())


def levels(stages: Stages) -> list[int]:
    return [stages.levels[sub.id] for sub in stages.subs]


def user(value: Any) -> str:
    return str(value["user"])


def test_a_part_without_state_runs_in_the_reader() -> None:
    streams = app()
    streams.stream("in").filter(bool).to("out")
    stages = stages_of(streams.plan())
    assert levels(stages) == [0]
    assert stages.depth == 0
    assert not stages.shuffled


def test_state_by_the_key_of_a_topic_is_one_level() -> None:
    streams = app()
    streams.stream("in").group_by_key().window(tumbling("1m")).count().to_stream().to("out")
    assert levels(stages_of(streams.plan())) == [1]


def test_each_repartition_is_a_level() -> None:
    streams = app()
    counts = streams.stream("in").group_by(user).count()
    again = counts.to_stream().group_by(str)
    again.count().to_stream().to("out")
    stages = stages_of(streams.plan())
    assert levels(stages) == [0, 1, 2]
    assert sorted(stages.shuffled.values()) == [1, 2]
    assert not stages.by_log


def test_a_join_by_a_foreign_key_asks_and_answers_by_the_log() -> None:
    streams = app()
    orders, users = streams.table("orders"), streams.table("users")
    orders.join(users, lambda order, of: of, foreign_key=user).to_stream().to("out")
    stages = stages_of(streams.plan())
    assert stages.depth >= 1
    assert len(stages.by_log) >= 1
    assert not stages.by_log & stages.shuffled.keys()


def test_a_join_with_a_global_table_needs_no_level() -> None:
    streams = app()
    countries = streams.global_table("countries", name="all-countries")
    streams.stream("in").join(countries, lambda value, _: value, key="country").to("out")
    stages = stages_of(streams.plan())
    assert levels(stages) == [0]
    text = describe_stages(stages)
    assert "Global table: all-countries (topic countries), a copy in each Python process" in text
    (table,) = plain_json.loads(describe_stages(stages, "json"))["global_tables"]
    assert (table["name"], table["topic"]) == ("all-countries", "countries")


def test_the_description_says_where_each_part_runs() -> None:
    streams = app()
    streams.stream("in").group_by(user).count().to_stream().to("out")
    stages = stages_of(streams.plan())
    text = describe_stages(stages)
    assert "Sub-topology: 0, in the reader of the source" in text
    assert "Sub-topology: 1, level 1" in text
    assert text.count("a shuffle: this topic holds no records") == 2
    document = plain_json.loads(describe_stages(stages, "json"))
    assert [sub["level"] for sub in document["sub_topologies"]] == [0, 1]
