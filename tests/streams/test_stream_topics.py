"""Which topics a topology reads, and how wide its internal ones are made."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.clients.admin.client import NewTopic
from kafkalite.errors import TopologyError
from kafkalite.streams import Streams, string
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.topics import resolve_topics
from kafkalite.streams.stream import Stream

AT = "host:9092"


class Admin:
    """A cluster of topics, internal ones by their underscores."""

    def __init__(self, **topics: int) -> None:
        self.topics = topics
        self.made: dict[str, int] = {}
        self.made_by_others: dict[str, int] = {}  # while this application creates its own

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[Any]:
        return [
            SimpleNamespace(name=name, partition_count=count, is_internal=name.startswith("__"))
            for name, count in self.topics.items()
            if names is None or name in names
        ]

    async def create_missing_topics(self, topics: Iterable[NewTopic]) -> None:
        self.topics |= self.made_by_others
        self.made |= {topic.name: topic.partitions for topic in topics}
        self.topics = self.made | self.topics


def resolve(app: Streams, admin: Admin) -> list[tuple[str, ...]]:
    sources, _ = asyncio.run(resolve_topics(admin, compile_topology(app.plan()), AT))  # type: ignore[arg-type]
    return list(sources.values())


def test_a_repartition_topic_is_as_wide_as_what_its_writer_reads_whoever_comes_first() -> None:
    app = Streams("app")
    narrow, wide = app.stream("narrow"), app.stream("wide")
    narrow.merge(wide.select_key(len).repartition(name="r")).to("out")
    admin = Admin(narrow=2, wide=8)
    assert resolve(app, admin) == [("narrow", "app-r-repartition"), ("wide",)]
    assert admin.made == {"app-r-repartition": 8}


def test_a_width_that_was_asked_for_is_kept_beside_a_wider_topic() -> None:
    app = Streams("app")
    few = app.stream("in").repartition(3, name="r")
    wide = app.stream("wide")
    wide.merge(few).to("out")
    wide.group_by_key().count(name="n")
    admin = Admin(**{"in": 1, "wide": 8})
    resolve(app, admin)
    assert admin.made == {"app-r-repartition": 3, "app-n-changelog": 8}


def test_another_worker_creates_an_internal_topic_with_another_number_of_partitions() -> None:
    app = Streams("app")
    app.stream("in").group_by_key().count(name="n")
    admin = Admin(**{"in": 2})
    admin.made_by_others = {"app-n-changelog": 3}
    with pytest.raises(TopologyError, match="'app-n-changelog' has 3 partitions, .* needs 2"):
        resolve(app, admin)


def test_sub_topologies_that_feed_one_another() -> None:
    app = Streams("app")
    a, b = app.stream("a"), app.stream("b")
    to_b = a.select_key(len).repartition(name="to-b")
    to_a = b.select_key(len).repartition(name="to-a")
    a.merge(to_a).to("out-a")
    b.merge(to_b).to("out-b")
    admin = Admin(a=2, b=5)
    resolve(app, admin)
    assert admin.made == {"app-to-b-repartition": 5, "app-to-a-repartition": 5}


def test_topics_of_different_widths_are_not_grouped_together() -> None:
    def merged(app: Streams) -> Stream:
        return app.stream(["a", "a2"]).filter(len).merge(app.stream("b"))

    app = Streams("app")
    merged(app).group_by_key().count(name="n")
    with pytest.raises(TopologyError, match=r"'n' brings .* \('a' has 2, 'a2' has 2, 'b' has 4\)"):
        resolve(app, Admin(a=2, a2=2, b=4))
    assert resolve(app, Admin(a=4, a2=4, b=4))
    for build in (
        lambda stream: stream.group_by(len).count(),
        lambda stream: stream.repartition().group_by_key().count(),
        lambda stream: stream.to("out"),
    ):
        app = Streams("app")
        build(merged(app))
        assert resolve(app, Admin(a=2, a2=2, b=4))


def test_a_repartition_topic_is_as_wide_as_the_topic_it_is_joined_with() -> None:
    app = Streams("app")
    moved = app.stream("wide").select_key(len)
    moved.join(app.table("t"), max, name="j").to("out")
    admin = Admin(wide=8, t=3)
    resolve(app, admin)
    assert admin.made == {"app-j-repartition": 3, "app-t-changelog": 3}

    app = Streams("app")
    table = app.stream("narrow").group_by(len, name="g").count(name="n")
    app.stream("wide").select_key(len).join(table, max, name="j").to("out")
    admin = Admin(wide=8, narrow=2)
    resolve(app, admin)
    assert admin.made == {f"app-{name}": 8 for name in
                          ("g-repartition", "n-changelog", "j-repartition")}  # fmt: skip


def test_joined_topics_of_different_widths_are_named() -> None:
    app = Streams("app")
    app.stream("s").join(app.table("t"), max, name="j").to("out")
    with pytest.raises(TopologyError, match=r"'j' joins .* \('s' has 4, 't' has 3\): put a repart"):
        resolve(app, Admin(s=4, t=3))
    app = Streams("app")
    app.table("t").join(app.table("u"), max, name="j").to_stream().to("out")
    with pytest.raises(TopologyError, match=r"'j' joins .* \('t' has 4, 'u' has 3\)"):
        resolve(app, Admin(t=4, u=3))
    app = Streams("app")
    app.stream("s").process(lambda: object(), stores=[app.table("t", name="j")], name="p").to("out")
    with pytest.raises(TopologyError, match=r"'p' joins .* \('s' has 4, 't' has 3\): put a repart"):
        resolve(app, Admin(s=4, t=3))
    app = Streams("app")
    app.stream("s").repartition(5, name="r").join(app.table("t"), max, name="j").to("out")
    with pytest.raises(TopologyError, match=r"\('t' has 3, 'app-r-repartition' has 5\)"):
        resolve(app, Admin(s=4, t=3))
    app = Streams("app")
    app.stream("s").repartition(name="r").join(app.table("t"), max, name="j").to("out")
    assert resolve(app, Admin(s=4, t=3))


def test_a_pattern_matches_neither_the_brokers_topics_nor_our_own() -> None:
    app = Streams("app")
    app.stream(re.compile(".*")).group_by_key().count(name="n")
    admin = Admin(**{"a": 2, "b": 2, "__consumer_offsets": 50, "app-n-changelog": 2})
    assert resolve(app, admin) == [("a", "b")]


def test_a_topic_that_two_sources_mean_is_named() -> None:
    app = Streams("app")
    app.stream(re.compile("o.*")).to("x")
    app.stream("orders").to("y")
    with pytest.raises(
        TopologyError, match="'orders' is meant by the pattern 'o.*' and by 'orders'"
    ):
        resolve(app, Admin(orders=1))


def test_one_pattern_read_twice_is_one_source() -> None:
    app = Streams("app")
    app.stream(re.compile("o.*")).to("x")
    app.stream(re.compile("o.*")).to("y")
    assert resolve(app, Admin(orders=1)) == [("orders",)]


def test_a_pattern_that_nothing_matches_is_named() -> None:
    app = Streams("app")
    app.stream(re.compile("o.*")).to("x")
    with pytest.raises(TopologyError, match="topics that match the pattern 'o.*' do not exist at"):
        resolve(app, Admin(invoices=1))


@pytest.mark.parametrize(
    ("missing", "topics", "them"),
    [("a", "topic 'a' does", "it"), ("ab", "topics 'a', 'b' do", "them")],
)
def test_topics_that_do_not_exist_are_named_with_the_command_that_creates_them(
    missing: str, topics: str, them: str
) -> None:
    app = Streams("app")
    app.stream(["a", "b", "c"]).to("out")
    there = {name: 1 for name in "abc" if name not in missing}
    with pytest.raises(TopologyError) as caught:
        resolve(app, Admin(**there))
    assert str(caught.value) == (
        f"{topics} not exist at host:9092; the topology reads {them}. "
        f"To create {them}: kafkalite topics create {' '.join(missing)} -b host:9092"
    )


def test_a_topic_that_is_named_is_read_by_who_names_it() -> None:
    app = Streams("app")
    some = app.stream(re.compile(".*"), value=string())
    some.merge(some.select_key(len).repartition(name="r")).to("out")
    (sub,) = compile_topology(app.plan())
    named, matched = sub.source_of("app-r-repartition"), sub.source_of("anything")
    assert named is not None
    assert matched is not None
    assert (named.topics, matched.pattern) == (("app-r-repartition",), re.compile(".*"))
