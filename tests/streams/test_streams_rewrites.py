"""From a user's plan to sub-topologies: repartition topics, serdes, stores."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.errors import UnsupportedOnBackend
from kafkalite.streams import (
    avro,
    bytes_,
    count,
    float64,
    int64,
    json,
    mean,
    msgpack,
    string,
    sum_,
    tumbling,
    windowed,
)
from kafkalite.streams import plan as p
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.changes import ChangeSerde
from kafkalite.streams.local import compile as compiling
from kafkalite.streams.rewrites import SubTopology, sub_topologies


def subs_of(app: StreamsBuilder) -> tuple[SubTopology, ...]:
    return sub_topologies(app.plan())


def sink_of(app: StreamsBuilder, topic: str = "out") -> p.Sink:
    (found,) = (s for sub in subs_of(app) for s in sub.sinks if s.topic == topic)
    return found


class TestRepartition:
    @pytest.mark.parametrize(
        ("change", "repartitions"),
        [
            (lambda s: s.map("x"), 0),
            (lambda s: s.filter("x").peek(print).flat_map("x"), 0),
            (lambda s: s.select_key("x"), 1),
            (lambda s: s.map_pairs(lambda k, v: (k, v)), 1),
            (lambda s: s.flat_map_pairs(lambda k, v: [(k, v)]), 1),
            (lambda s: s.map_batch(lambda c: c), 1),
            (lambda s: s.select_key("x").map("x"), 1),
            (lambda s: s.branch("x")[0].select_key("x"), 1),
            (lambda s: s.merge(s.select_key("x")), 1),
            (lambda s: s.select_key("x").repartition(), 1),  # its own, and no second one
        ],
    )
    def test_only_where_the_key_has_changed(self, change: Any, repartitions: int) -> None:
        app = StreamsBuilder("app")
        change(app.stream("in")).group_by_key().count()
        topics = [topic for sub in subs_of(app) for topic in sub.repartition_sources]
        assert len(topics) == repartitions

    def test_group_by_always_and_once_for_several_aggregates(self) -> None:
        app = StreamsBuilder("app")
        groups = app.stream("in").group_by("x", name="by-x")
        groups.count()
        groups.window(tumbling("1m")).count()
        first, second = subs_of(app)
        assert first.sink_topics == first.repartition_sinks == ("app-by-x-repartition",)
        assert [t.name for t in second.repartition_sources] == ["app-by-x-repartition"]
        assert first.feeds_repartition
        assert not second.feeds_repartition
        assert len(second.stores) == 2

    def test_to_table_behind_a_changed_key(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in").select_key("x").to_table(name="t")
        first, second = subs_of(app)
        assert first.repartition_sinks == ("app-t-repartition",)
        assert [store.changelog_topic for store in second.stores] == ["app-t-changelog"]

    def test_groups_of_a_table_carry_changes(self) -> None:
        app = StreamsBuilder("app", key=string())
        table = app.table("in", value=json())
        table.group_by("x", name="rows").count()
        table.group_by("x", lambda v: 1, name="parts").count()
        first, rows, parts = subs_of(app)
        assert [sink.value for sink in first.sinks] == [
            ChangeSerde(json()),
            ChangeSerde(msgpack()),
        ]
        assert rows.sources[0].value == ChangeSerde(json())
        assert parts.sources[0].value == ChangeSerde(msgpack())

    def test_unused_groups_make_no_topic(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in").group_by("x")
        assert [sub.internal_topics for sub in subs_of(app)] == [()]

    def test_explicit_partitions(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in").repartition(7, name="wide").group_by_key().count()
        (topic,) = subs_of(app)[1].repartition_sources
        assert (topic.name, topic.partitions) == ("app-wide-repartition", 7)
        assert topic.config["cleanup.policy"] == "delete"


class TestSubTopologies:
    def test_are_what_hangs_together_in_order_of_sources(self) -> None:
        app = StreamsBuilder("app")
        a, b, c = app.stream("a"), app.stream("b"), app.stream("c")
        b.to("x")
        a.merge(c).to("y")
        found = [sub.source_topics for sub in subs_of(app)]
        assert found == [("a", "c"), ("b",)]

    def test_changelogs_are_compacted(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in").group_by_key().count(name="n")
        (topic,) = subs_of(app)[0].changelogs
        assert topic.name == "app-n-changelog"
        assert topic.config["cleanup.policy"] == "compact"

    def test_what_an_engine_cannot_run_is_refused_before_it_runs(self) -> None:
        class Strange(p.Node):
            __slots__ = ()

        app = StreamsBuilder("app")
        app.stream("in")
        plan = app.plan()
        strange = p.Plan("app", (*plan.nodes, Strange(name="odd", parents=plan.nodes)))
        with pytest.raises(UnsupportedOnBackend, match="'odd': Strange cannot run here"):
            compiling.compile_topology(strange)


class TestSerdes:
    def test_the_one_given_there_wins(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").to("out", key=int64(), value=msgpack())
        assert (sink_of(app).key, sink_of(app).value) == (int64(), msgpack())

    def test_else_the_one_upstream_while_unchanged(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in", key=int64(), value=avro()).filter("x").select_key("x").to("a")
        app.stream("in", key=int64(), value=avro()).map("x").to("b")
        assert (sink_of(app, "a").key, sink_of(app, "a").value) == (string(), avro())
        assert (sink_of(app, "b").key, sink_of(app, "b").value) == (int64(), json())

    def test_else_the_applications_else_bytes(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in", key=int64(), value=json()).map_pairs(lambda k, v: (k, v)).to("out")
        assert (sink_of(app).key, sink_of(app).value) == (bytes_(), bytes_())

    def test_values_in_internal_topics_are_msgpack_when_nothing_says_otherwise(self) -> None:
        app = StreamsBuilder("app", key=string())
        app.stream("in", value=json()).map("x").group_by("y").aggregate(n=sum_("y"))
        first, second = subs_of(app)
        assert (first.sinks[0].key, first.sinks[0].value) == (string(), msgpack())
        assert (second.stores[0].key, second.stores[0].value) == (string(), msgpack())

    def test_count_is_int64_and_a_result_keeps_its_stores_serde(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        groups = app.stream("in").group_by_key()
        groups.count().to_stream().to("a")
        groups.aggregate(total=sum_("x"), value=float64()).to_stream().to("b")
        groups.count().map(str).to_stream().to("c")
        assert [sink_of(app, t).value for t in "abc"] == [int64(), float64(), json()]

    def test_an_aggregate_changes_the_value_but_a_reduce_keeps_it(self) -> None:
        app = StreamsBuilder("app")
        groups = app.stream("in", value=json()).group_by_key()
        groups.aggregate(sum_()).to_stream().to("a")
        groups.reduce(max).to_stream().to("b")
        assert [sink_of(app, t).value for t in "ab"] == [msgpack(), json()]

    def test_a_windowed_key_takes_the_serde_of_its_inner_key(self) -> None:
        app = StreamsBuilder("app", key=string())
        final = app.stream("in").group_by_key().window(tumbling("1m")).count().final()
        final.to("a")
        final.to("b", key=int64())
        final.to("c", key=windowed(bytes_(), "1m"))
        assert [sink_of(app, topic).key for topic in "abc"] == [
            windowed(string(), 60_000),
            windowed(int64(), 60_000),
            windowed(bytes_(), 60_000),
        ]

    def test_late_records_have_the_serdes_of_the_input(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        counts = app.stream("in").group_by_key().window(tumbling("1m")).count()
        counts.late().to("out")
        assert (sink_of(app).key, sink_of(app).value) == (string(), json())

    def test_merged_streams_must_agree(self) -> None:
        app = StreamsBuilder("app", key=string(), value=bytes_())
        app.stream("a", value=json()).merge(app.stream("b", value=json())).to("x")
        app.stream("c", value=json()).merge(app.stream("d", value=avro())).to("y")
        assert [sink_of(app, topic).value for topic in "xy"] == [json(), bytes_()]


class TestStores:
    @pytest.mark.parametrize(
        ("build", "stores"),
        [
            (lambda t: t.to_stream(), []),
            (lambda t: t.filter("x").to_stream(), []),
            (lambda t: t.filter("x", name="f").map("x", name="m"), ["f", "m"]),
            (lambda t: t.group_by("x").count(name="n"), ["in", "n"]),
            (lambda t: t.map("x").filter("x").group_by("x").count(name="n"), ["in", "n"]),
            (lambda t: t.map("x", name="m").group_by("x").count(name="n"), ["m", "n"]),
        ],
    )
    def test_only_when_named_or_needed(self, build: Any, stores: list[str]) -> None:
        app = StreamsBuilder("app")
        build(app.table("in"))
        assert sorted(s.name for sub in subs_of(app) for s in sub.stores) == stores

    def test_a_mean_is_kept_as_sum_and_count(self) -> None:
        app = StreamsBuilder("app", key=string(), value=json())
        app.stream("in").group_by_key().aggregate(mean("x"), value=float64(), name="m")
        assert subs_of(app)[0].stores[0].value == float64()  # of the rows, not of the changelog

    def test_count_in_a_dict_is_no_int64(self) -> None:
        app = StreamsBuilder("app")
        app.stream("in").group_by_key().aggregate(n=count())
        assert subs_of(app)[0].stores[0].value == msgpack()
