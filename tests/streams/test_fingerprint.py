"""Which changes of a topology its state survives, and how the others are put into words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kafkalite.serde import SerdeContext
from kafkalite.streams import avro, count, json, max_, mean, string, sum_, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.fingerprint import Difference, Fingerprint, compare, fingerprint
from kafkalite.streams.rewrites import sub_topologies
from kafkalite.streams.stream import Stream

Build = Callable[[StreamsBuilder, Stream], object]


def taken(build: Build) -> Fingerprint:
    app = StreamsBuilder("app", key=string(), value=json())
    build(app, app.stream("orders"))
    plan = app.plan()
    return fingerprint(plan, sub_topologies(plan))


def difference(before: Build, now: Build) -> Difference:
    return compare(taken(before), taken(now))


def hourly(app: StreamsBuilder, s: Stream) -> None:
    groups = s.group_by("user", name="by-user").window(tumbling("1h", grace="10m"))
    groups.aggregate(n=count(), most=max_("amount"), name="sums").final().to("out")


SURVIVED: list[tuple[Build, Build]] = [
    (hourly, hourly),
    (hourly, lambda app, s: hourly(app, s.filter("paid").map(dict))),
    (hourly, lambda app, s: (hourly(app, s), s.filter("paid").to("paid"))),
    (
        hourly,
        lambda app, s: (
            s.group_by("user", name="by-user")
            .window(tumbling("1h", grace="3h"))
            .aggregate(n=count(), most=max_(lambda v: v["amount"]), name="sums")
            .to_stream()
            .to("elsewhere")
        ),
    ),
    (hourly, lambda app, s: (hourly(app, s), s.merge(app.stream("more")).for_each(print))),
    (hourly, lambda app, s: hourly(app, s.merge(app.stream("more")))),
    (
        lambda app, s: (s.filter("a").group_by("x").count(), s.filter("b").group_by("y").count()),
        lambda app, s: (
            s.filter("a").group_by("x").count(),
            s.filter("b").group_by("y").count(),
            s.filter("c").group_by("z").count(),
        ),
    ),
]


@pytest.mark.parametrize(("before", "now"), SURVIVED)
def test_what_the_state_survives(before: Build, now: Build) -> None:
    assert difference(before, now).refusals == ()


def kept(name: str, **options: object) -> Build:
    def build(app: StreamsBuilder, s: Stream) -> None:
        window = options.pop("window", tumbling("1h"))
        s.group_by_key().window(window).aggregate(mean("x"), name=name, **options)  # type: ignore[arg-type]

    return build


REFUSED: list[tuple[Build, Build, str]] = [
    (
        kept("n"),
        kept("n", window=tumbling("1d")),
        "store 'n': its window was tumbling(1h) and is tumbling(1d) now",
    ),
    (
        lambda app, s: s.group_by_key().window(tumbling("1h")).count(name="n"),
        lambda app, s: s.group_by_key().count(name="n"),
        "store 'n': its window was tumbling(1h) and is none now",
    ),
    (
        lambda app, s: s.group_by_key().aggregate(count(), name="n"),
        lambda app, s: s.group_by_key().aggregate(sum_("x"), name="n"),
        "store 'n': its rows were count() and are sum_('x') now",
    ),
    (
        lambda app, s: s.group_by_key().aggregate(a=sum_("x"), name="n"),
        lambda app, s: s.group_by_key().aggregate(a=sum_("y"), name="n"),
        "its rows were a=sum_('x') and are a=sum_('y') now",
    ),
    (
        lambda app, s: s.group_by_key().aggregate(a=count(), name="n"),
        lambda app, s: s.group_by_key().aggregate(a=count(), b=mean("x"), name="n"),
        "its rows were a=count() and are a=count(), b=mean('x') now",
    ),
    (
        lambda app, s: s.to_table(name="latest"),
        lambda app, s: s.to_table(name="latest", value=avro("Order")),
        "store 'latest': its value's serde was json() and is avro('Order') now",
    ),
    (
        lambda app, s: s.group_by_key().count(name="n"),
        lambda app, s: app.stream("other").group_by_key().count(name="n"),
        "'orders', whose records it holds, no longer leads to it",
    ),
    (
        lambda app, s: s.group_by_key().count(name="n"),
        lambda app, s: s.repartition(name="r").group_by_key().count(name="n"),
        "it was fed by 'orders' and is fed by 'app-r-repartition' now",
    ),
    (
        lambda app, s: s.group_by("user", name="g").count(name="n"),
        lambda app, s: s.group_by("shop", name="g").count(name="n"),
        "repartition topic of 'g': its key was 'user' and is 'shop' now",
    ),
    (
        lambda app, s: s.repartition(3, name="r").to("out"),
        lambda app, s: s.repartition(4, name="r").to("out"),
        "repartition topic of 'r': its number of partitions was 3 and is 4 now",
    ),
    (
        lambda app, s: s.group_by_key().count(name="n"),
        lambda app, s: s.group_by_key().count(name="m"),
        "store 'n' is gone and 'm' is alike, which would begin empty (name='n' keeps it)",
    ),
    (
        lambda app, s: s.group_by("user", name="g").count(name="n"),
        lambda app, s: s.group_by("user", name="h").count(name="n"),
        "repartition topic of 'g' is gone and 'h' is alike",
    ),
    (
        lambda app, s: (s.filter("a").group_by("x").count(), s.filter("b").group_by("x").count()),
        lambda app, s: s.filter("b").group_by("x").count(),
        "only their order tells operators of this name apart",
    ),
    (
        lambda app, s: s.filter("b").select_key("x").group_by_key().count(),
        lambda app, s: (
            s.filter("a").select_key("x").group_by_key().count(),
            s.filter("b").select_key("x").group_by_key().count(),
        ),
        "'orders-select_key-group_by_key-count' stood below filter('b') > select_key('x') > ",
    ),
]


@pytest.mark.parametrize(("before", "now", "words"), REFUSED)
def test_what_it_does_not_survive_is_put_into_words(before: Build, now: Build, words: str) -> None:
    assert words in "; ".join(difference(before, now).refusals)


def test_stores_that_come_or_go_are_noted() -> None:
    found = difference(
        lambda app, s: s.group_by_key().count(name="n"),
        lambda app, s: s.group_by_key().aggregate(sum_("x"), name="total"),
    )
    assert found.refusals == ()
    assert found.new_stores == ("total",)
    assert found.notes == (
        "store 'total' is new: it begins empty, where the inputs go on",
        "store 'n' is no longer kept",
    )


def test_a_fingerprint_comes_back_from_its_text() -> None:
    was = taken(hourly)
    assert Fingerprint.decode(was.encode()) == was
    assert was.reads == ("app-by-user-repartition", "orders")
    assert was.stores["sums"].sources == ("orders",)


def test_a_serde_of_a_users_own_has_no_address_in_it() -> None:
    class Own:
        def open(self, context: SerdeContext) -> object:
            return string().open(context)

    def build(app: StreamsBuilder, s: Stream) -> None:
        s.to_table(name="latest", value=Own())  # type: ignore[arg-type]

    assert not re.search("0x", taken(build).encode())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "stores": 3}'])
def test_text_that_is_no_fingerprint(text: str) -> None:
    with pytest.raises(ValueError, match="fingerprint|version|Expecting"):
        Fingerprint.decode(text)
