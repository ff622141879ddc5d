"""Building: names, mistakes that are named where they stand, a plan that does not change."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kafkalite.errors import TopologyError
from kafkalite.streams import (
    bytes_,
    collect_set,
    count,
    fold,
    hopping,
    json,
    max_,
    reduce_,
    string,
    sum_,
    top_k,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.durations import milliseconds, spell
from kafkalite.streams.groups import Grouped
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.stream import Stream
from kafkalite.streams.table import Table


@pytest.fixture
def app() -> StreamsBuilder:
    return StreamsBuilder("app", key=string(), value=json())


@pytest.fixture
def stream(app: StreamsBuilder) -> Stream:
    return app.stream("in")


def names(app: StreamsBuilder) -> list[str]:
    return [node.name for node in app.plan().nodes]


async def is_async(value: Any) -> bool:
    return False


async def add_async(aggregate: Any, value: Any) -> Any:
    return value


class Async:
    async def __call__(self, value: Any) -> None: ...


class TestNames:
    def test_a_derived_name_is_the_path(self, app: StreamsBuilder, stream: Stream) -> None:
        stream.map("x").filter("y").to("out")
        assert names(app) == ["in", "in-map", "in-map-filter", "in-map-filter-to"]

    @pytest.mark.parametrize(
        "add",
        [
            lambda stream: stream,
            lambda stream: stream.filter("x").map("y").peek(print),
            lambda stream: stream.branch("x", default=True)[1],
            lambda stream: stream.merge(stream.map("x")),
        ],
    )
    def test_operators_without_state_move_no_store_and_no_internal_topic(
        self, add: Callable[[Stream], Stream], app: StreamsBuilder, stream: Stream
    ) -> None:
        changed = add(stream).select_key("x")
        add(add(changed).group_by_key().window(tumbling("1m")).count().to_stream()).to("out")
        add(stream).group_by("x").count()
        add(changed).to_table(name="latest").group_by("y").count()
        internal = {t.name for sub in compile_topology(app.plan()) for t in sub.internal_topics}
        assert internal == {
            "app-in-select_key-group_by_key-repartition",
            "app-in-select_key-group_by_key-count-changelog",
            "app-in-group_by-repartition",
            "app-in-group_by-count-changelog",
            "app-latest-repartition",
            "app-latest-changelog",
            "app-latest-group_by-repartition",
            "app-latest-group_by-count-changelog",
        }

    def test_what_hangs_on_a_named_branch_hangs_on_its_arm(self, stream: Stream) -> None:
        arms = stream.branch("x", name="split", default=True)
        assert [a.map("y").group_by("z")._node.name for a in arms] == [
            "split.0-group_by",
            "split.1-group_by",
        ]

    def test_a_plan_lists_names_that_differ_in_their_number_only(
        self, app: StreamsBuilder, stream: Stream
    ) -> None:
        stream.filter("x").group_by("y")
        assert app.plan().numbered_names == ()
        stream.filter_not("x").group_by("z")
        assert app.plan().numbered_names == (("in-group_by", "in-group_by-2"),)

    def test_equal_operators_in_one_place_are_numbered(
        self, app: StreamsBuilder, stream: Stream
    ) -> None:
        stream.map("x")
        stream.map("y").map("z")
        assert names(app) == ["in", "in-map", "in-map-2", "in-map-2-map"]

    def test_a_name_does_not_depend_on_what_is_built_elsewhere(self) -> None:
        def build(*, more: bool) -> str:
            app = StreamsBuilder("app")
            if more:
                app.stream("other").map("x").to("there")
            table = app.stream("in").filter("x").group_by_key().count()
            return table._node.name

        assert build(more=False) == build(more=True) == "in-group_by_key-count"

    def test_a_given_name_starts_a_new_path(self, app: StreamsBuilder, stream: Stream) -> None:
        stream.map("x", name="tidy").filter("y")
        assert names(app) == ["in", "tidy", "tidy-filter"]

    def test_long_paths_are_cut_to_a_hash(self, stream: Stream) -> None:
        for _ in range(40):
            stream = stream.map("x")
        assert len(stream._node.name) <= 80
        assert re.fullmatch(r"map-[0-9a-f]{8}(-map)*", stream._node.name)

    def test_branches_are_numbered_from_0(self, stream: Stream) -> None:
        arms = stream.branch("x", "y", default=True)
        assert [arm._node.name for arm in arms] == ["in-branch.0", "in-branch.1", "in-branch.2"]

    def test_a_name_is_given_once(self, stream: Stream) -> None:
        stream.map("x", name="tidy")
        with pytest.raises(TopologyError, match="another operator is called 'tidy' already"):
            stream.filter("x", name="tidy")

    def test_a_name_must_fit_a_topic(self, stream: Stream) -> None:
        with pytest.raises(TopologyError, match=r"letters, digits.*got 'a b'"):
            stream.map("x", name="a b")

    def test_stores_of_one_name_are_refused(self, stream: Stream, app: StreamsBuilder) -> None:
        stream.group_by_key().count()
        stream.group_by_key(name="in-group_by_key").count(name="in-group_by_key-count")
        with pytest.raises(TopologyError, match="own the changelog topic 'app-in-group_by_key-c"):
            app.describe()


class TestMistakes:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (
                lambda s: s.filter(3),
                "filter of 'in': expected a function, a field name or an",
            ),
            (lambda s: s.map(None, name="m"), "map 'm': expected a function, a field name or"),
            (lambda s: s.filter(is_async), "filter of 'in': is_async is async; functions are"),
            (lambda s: s.for_each(Async()), "for_each of 'in': .* is async"),
            (lambda s: s.group_by_key().reduce(add_async), "reduce_: add_async is async"),
            (lambda s: s.map(lambda k, v: v), "cannot be called with the value; with_key=True"),
            (lambda s: s.map(lambda v: v, with_key=True), "cannot be called with key and value"),
            (lambda s: s.map("x", with_key=True), "field 'x' is taken out of the value alone"),
            (lambda s: s.map(str, with_key=True, with_record=True), "exclude each other"),
            (lambda s: s.map_pairs(lambda v: v), "cannot be called with key and value"),
            (lambda s: s.branch(), "branch of 'in': expected at least one predicate"),
            (lambda s: s.merge(s), "cannot be merged with itself"),
            (lambda s: s.merge("in"), "merge of 'in': expected streams, got str"),
            (lambda s: s.merge(StreamsBuilder("b").stream("x")), "'x' is of another application"),
            (lambda s: s.to("no spaces"), "to of 'in': topic: expected at most 249 letters"),
            (lambda s: s.to("out", value=json), "expected a serde.*did you mean json()"),
            (lambda s: s.to("out", key="string"), "key= expected a serde, got 'string'"),
            (lambda s: s.repartition(0), "partitions: expected 1 or more, got 0"),
            (lambda s: s.repartition(partitioner=len), "with key, value and number of partitions"),
            (lambda s: s.filter("x", on_error="ignore"), "on_error is one of"),
            (lambda s: s.filter("x", on_error="dlq"), "needs a dead_letter_topic= of the applic"),
            (lambda s: s.map_batch(3), "map_batch of 'in': expected a function, got int"),
            (lambda s: s.join("in", max), "join of 'in': expected a stream or a table"),
            (lambda s: s.join(s.to_table(), max, how="outer"), "how is one of .'inner', 'left'"),
            (lambda s: s.join(s.to_table(), len), "called with the left and the right value"),
            (lambda s: s.to_table().join(s, max), "expected a table to join with, got Stream"),
            (lambda s: s.to_table().join(s.to_table(), max, how="full"), "how is one of"),
            (lambda s: s.to_table().join(s.to_table(), max, cached=3), "cached is True or False"),
            (lambda s: s.to_table().join(s.to_table(), "x"), "expected a function of the left"),
            (
                lambda s: s.to_table().join(StreamsBuilder("b").table("x"), max),
                "join of 'in-to_table': 'x' is of another application",
            ),
            (lambda s: s.join(s, max), "join of 'in': a join of streams needs within="),
            (lambda s: s.join(s, max, within=("1s",)), "expected one duration or two, got"),
            (lambda s: s.join(s, max, within=(0, -1)), r"within=\(0, -1\) is an empty window"),
            (lambda s: s.join(s, max, within=1, grace=-1), "grace: expected 0 or more, got -1"),
            (lambda s: s.join(s, max, within=1, how="full"), "how is one of .*, got 'full'"),
            (lambda s: s.join(s, len, within=1), "called with the left and the right value"),
            (
                lambda s: s.join(StreamsBuilder("b").stream("x"), max, within=1),
                "'x' is of another application",
            ),
            (lambda s: s.group_by_key().count().final(), "only a table aggregated over windows"),
            (lambda s: s.to_table().late(), "only a table aggregated over windows"),
            (lambda s: s.group_by_key().window("1h"), "window of .*: expected a window, got str"),
            (
                lambda s: s.group_by_key().window(tumbling(1)).window(tumbling(1)),
                "there is one already, tumbling",
            ),
            (lambda s: s.group_by_key().aggregate(), "one unnamed aggregate or several named"),
            (lambda s: s.group_by_key().aggregate(count(), n=count()), "one unnamed aggregate or"),
            (
                lambda s: s.group_by_key().aggregate(n="count"),
                "aggregate of 'in-group_by_key': n: expected an aggregate such as count",
            ),
            (
                lambda s: s.to_table().group_by("x").aggregate(most=max_()),
                "most: max_ cannot take out the old row of a table",
            ),
            (
                lambda s: s.to_table().group_by("x").reduce(max),
                "reduce_ cannot take out the old row",
            ),
            (lambda s: s.to_table().group_by("x").window(tumbling(1)), "groups of a table have no"),
            (
                lambda s: max_(3),
                "max_: expected a function, a field name or an",
            ),
            (lambda s: fold(0, lambda a: a), "fold: add: .*cannot be called with aggregate and v"),
            (lambda s: fold(lambda x: x, max), "fold: init: .*cannot be called with nothing"),
            (lambda s: fold(0, max, lambda a: a), "fold: merge"),
            (lambda s: fold(0, max, None, lambda a: a), "fold: subtract"),
            (lambda s: reduce_(3), "reduce_: expected a function, got int"),
            (lambda s: reduce_(max, 3), "reduce_: subtract: expected a function, got int"),
            (lambda s: top_k(0), "top_k: expected a number of at least 1, got 0"),
            (lambda s: tumbling("0s"), "tumbling: size: expected at least 1 ms"),
            (lambda s: tumbling("1h", grace=-1), "tumbling: grace: expected 0 or more"),
            (lambda s: hopping("1m", "2m"), "advance '2m' is longer than size '1m'"),
            (lambda s: hopping("1m", 0), "hopping: advance: expected at least 1 ms"),
        ],
    )
    def test_is_named_where_it_stands(self, stream: Stream, build: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            build(stream)

    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: StreamsBuilder("no spaces"), "application id: expected"),
            (lambda: StreamsBuilder("app", key=string), "app: key= expected a serde.*string()"),
            (lambda: StreamsBuilder("app", on_error="dlq"), "dead_letter_topic"),
            (lambda: StreamsBuilder("app", dead_letter_topic=""), "app: dead_letter_topic"),
            (lambda: StreamsBuilder("app").stream([]), "expected a topic, several topics or"),
            (lambda: StreamsBuilder("app").stream(["a", "a"]), "a topic is named twice"),
            (lambda: StreamsBuilder("app").stream(3), "expected a topic, several topics or"),
            (lambda: StreamsBuilder("app").stream(re.compile(b"a")), "pattern of text, got one of"),
            (lambda: StreamsBuilder("app").stream("a", offset_reset="end"), "offset_reset is"),
            (
                lambda: StreamsBuilder("app").stream("a", timestamp=3),
                "expected a function, a field",
            ),
            (lambda: StreamsBuilder("app").table("a", history="x"), "history"),
            (lambda: StreamsBuilder("app").describe("png"), "describe: expected one of text, m"),
        ],
    )
    def test_of_the_application_are_named(self, build: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            build()

    @pytest.mark.parametrize(
        "build",
        [
            lambda s: s.filter("x", nme="y"),
            lambda s: s.branch("x", nme="y"),
            lambda s: s.group_by("x", nme="y"),
            lambda s: s.to_table().filter("x", nme="y"),
            lambda s: s.to_table().group_by("x", nme="y"),
        ],
    )
    def test_unknown_options_are_refused(self, stream: Stream, build: Any) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'nme'"):
            build(stream)

    def test_what_does_not_exist_is_an_attribute_error(self, stream: Stream) -> None:
        assert not hasattr(stream, "fliter")


class TestReading:
    def test_a_topic_read_twice_alike_is_read_once(self, app: StreamsBuilder) -> None:
        first, second = app.stream("a", timestamp="ts"), app.stream("a", timestamp="ts")
        assert first._node is second._node

    def test_a_topic_has_one_reader(self, app: StreamsBuilder) -> None:
        app.stream("a")
        with pytest.raises(TopologyError, match="'a' is read by 'a' already, in another way"):
            app.stream("a", value=bytes_())
        with pytest.raises(TopologyError, match="'a' is read by 'a' already"):
            app.table("a")
        with pytest.raises(TopologyError, match="'a' is read by 'a' already"):
            app.stream(["b", "a"])


class TestThePlan:
    def test_is_immutable(self, app: StreamsBuilder, stream: Stream) -> None:
        plan = app.plan()
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan.nodes = ()  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan.nodes[0].name = "x"  # type: ignore[misc]

    def test_does_not_change_with_what_is_built_later(
        self, app: StreamsBuilder, stream: Stream
    ) -> None:
        plan = app.plan()
        stream.map("x")
        assert len(plan.nodes) == 1
        assert len(app.plan().nodes) == 2

    def test_building_calls_no_function(self, stream: Stream) -> None:
        def explode(value: Any) -> Any:
            raise AssertionError("called")

        stream.filter(explode).map(explode).group_by(explode).aggregate(n=sum_(explode))


class TestDurations:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("250ms", 250),
            ("10s", 10_000),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
            ("-5m", -300_000),
            (17, 17),
            (timedelta(seconds=2), 2_000),
        ],
    )
    def test_are_written_in_many_ways(self, given: Any, expected: int) -> None:
        assert milliseconds(given) == expected

    @pytest.mark.parametrize("given", ["10", "10 parsecs", "", 1.5, True, None])
    def test_others_are_refused(self, given: Any) -> None:
        with pytest.raises(TopologyError, match="grace: expected a timedelta"):
            milliseconds(given, "grace")

    @pytest.mark.parametrize("given", [1 << 63, -(1 << 63), "106751991168d"])
    def test_are_no_longer_than_timestamps_are(self, given: Any) -> None:
        assert milliseconds((1 << 63) - 1) == (1 << 63) - 1
        with pytest.raises(TopologyError, match="within: expected at most 9223372036854775807 ms"):
            milliseconds(given, "within")

    @pytest.mark.parametrize("text", ["0ms", "250ms", "10s", "90s", "5m", "1h", "2d"])
    def test_are_spelled_as_they_are_written(self, text: str) -> None:
        assert spell(milliseconds(text)) == text

    def test_windows_are_spelled_as_they_are_written(self) -> None:
        assert str(tumbling("1h", grace="10m")) == "tumbling(1h, grace=10m)"
        assert str(hopping("1m", "30s")) == "hopping(1m, 30s)"
        assert str(collect_set("x")) == "collect_set('x')"
        assert str(count()) == "count()"
        assert str(sum_(len)) == "sum_(f)"


# Words of other libraries


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda s: s.mapValues(str), "use .map(f)"),
        (lambda s: s.map_values(str), "use .map(f)"),
        (lambda s: s.left_join(s, max), r'use .join(other, f, how="left")'),
        (lambda s: s.filterNot(str), "use .filter_not"),
        (lambda s: s.groupBy("x"), "use .group_by"),
        (lambda s: s.groupby("x"), "use .group_by(f)"),
        (lambda s: s.sum("x"), r'then .aggregate(total=sum_("field"))'),
        (lambda s: s.windowed_by(5), r'then .window(w), w being tumbling("1h")'),
        (lambda s: s.tumbling_window("1h"), "then .window(w)"),
        (lambda s: s.group_by_key().sum("x"), r'use .aggregate(total=sum_("field"))'),
        (lambda s: s.group_by_key().windowedBy(5), "use .window(w)"),
        (lambda s: s.to_table().to("x"), "use .to_stream().to(topic)"),
        (lambda s: s.group_by_key().count().toStream(), "use .to_stream"),
        (lambda s: s.fliter(str), "did you mean .filter?"),
        (lambda s: s.xyzzy, "'Stream' has no 'xyzzy'"),
        (lambda s: StreamsBuilder("b").topic("x"), "use .stream(topic)"),
        (lambda s: StreamsBuilder("b").KStream("x"), "use .stream"),
    ],
)
def test_a_word_of_another_library_gets_a_hint(use: Any, hint: str) -> None:
    with pytest.raises(AttributeError) as raised:
        use(StreamsBuilder("app").stream("in"))
    assert hint in str(raised.value)


def test_no_hint_names_a_method_that_is_there() -> None:
    for kind in (Stream, Grouped, Table, StreamsBuilder):
        assert not set(kind.hints) & set(dir(kind)), kind


def test_what_python_asks_for_is_no_typo() -> None:
    stream = StreamsBuilder("app").stream("in")
    assert not hasattr(stream, "_repr_html_")
    assert not hasattr(stream, "keys")
