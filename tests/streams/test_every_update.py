"""Every update when asked: `cached=False` and `cache=0` give what the test driver gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import (
    Streams,
    TopologyTestDriver,
    collect,
    count,
    fold,
    hopping,
    json,
    string,
    sum_,
    tumbling,
    windowed,
)
from kafkalite.streams.local.operators import folding
from kafkalite.streams.stream import Stream

Records = Sequence[tuple[str | None, int, int]]
Build = Callable[[Stream], Any]
COMMANDS = [("cart", "add"), ("cart", "add"), ("cart", "remove")]


def carts(**options: Any) -> Streams:
    app = Streams("carts", key=string(), value=json(), **options)
    step = fold(0, lambda items, command: items + (1 if command == "add" else -1))
    cached = {} if options else {"cached": False}
    app.stream("in").group_by_key().aggregate(step, **cached).to_stream().to("out")
    return app


@pytest.mark.parametrize("app", [carts(), carts(cache=0)], ids=["cached=False", "cache=0"])
def test_three_commands_for_one_key_give_three_results(app: Streams, batch_run: Any) -> None:
    driver = TopologyTestDriver(app, cached=True)
    for key, command in COMMANDS:
        driver.pipe("in", command, key=key)
    assert [record.value for record in driver.read("out")] == [1, 2, 1]

    run = batch_run(app, cached=True)
    run.feed("in", [(key, command, at) for at, (key, command) in enumerate(COMMANDS)])
    assert run.rows("out") == [("cart", 1, 0), ("cart", 2, 1), ("cart", 1, 2)]
    run.commit()
    assert len(run.rows("out")) == 3


def test_the_driver_shows_how_updates_merge_until_the_commit() -> None:
    app = Streams("merging", key=string(), value=json())
    app.stream("in").group_by_key().count().to_stream().to("out")
    driver = TopologyTestDriver(app, cached=True)
    for _ in range(3):
        driver.pipe("in", 1, key="k")
    assert driver.read("out") == []
    driver.commit()
    assert [record.value for record in driver.read("out")] == [3]
    driver.pipe("in", 1, key="k")
    driver.advance_wall_clock("1s")
    assert [record.value for record in driver.read("out")] == [4]


def rows(table: Any) -> None:
    table.to_stream().to("out")


SHAPES: list[Build] = [
    lambda s: rows(s.group_by_key().aggregate(sum_(int), cached=False)),
    lambda s: rows(s.group_by_key().window(tumbling(10, grace=5)).count(cached=False)),
    lambda s: rows(s.group_by_key().window(tumbling(30)).aggregate(sum_(int), cached=False)),
    lambda s: s.group_by_key().window(tumbling(20)).count(cached=False).final().to("out"),
    lambda s: rows(s.group_by_key().window(hopping(10, 4)).count(cached=False)),
    lambda s: rows(s.group_by_key().reduce(lambda a, v: a + v if v else None, cached=False)),
    lambda s: rows(
        s.to_table(name="t").group_by(lambda v: str(v % 2)).aggregate(sum_(int), cached=False)
    ),
    lambda s: s.group_by_key().count(cached=False).to_stream().merge(s.map(str)).to("out"),
    lambda s: rows(
        s.group_by_key().window(tumbling(10)).count(cached=False).filter(lambda n: n > 1)
    ),
]


@pytest.mark.parametrize("build", SHAPES)
@given(
    records=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 3), st.integers(0, 60)),
        max_size=25,
    ),
    cut=st.integers(0, 25),
)
def test_batches_of_any_split_give_what_records_one_by_one_give(
    build: Build, batch_run: Any, records: Records, cut: int
) -> None:
    app = Streams("app", key=string(), value=json())
    build(app.stream("in"))
    driver = TopologyTestDriver(app)
    for key, value, timestamp in records:
        driver.pipe("in", value, key=key, timestamp=timestamp)
    expected = [(r.key, r.value, r.timestamp) for r in driver.read("out")]

    run = batch_run(app, cached=True)
    for part in (records[:cut], records[cut:]):
        if part:
            run.feed("in", part)
    assert run.rows("out") == expected
    run.commit()
    assert run.rows("out") == expected


@pytest.mark.parametrize(
    ("aggregate", "sizes"),
    [
        pytest.param(count(), [200] if folding.NATIVE else [50] * 4, id="by columns"),
        pytest.param(collect(), [50] * 4, id="run by run: no key comes twice"),
    ],
)
def test_updates_of_a_batch_go_on_together(batch_run: Any, aggregate: Any, sizes: Any) -> None:
    app = Streams("app", key=string(), value=json())
    pushed: list[int] = []

    def note(columns: Columns) -> Columns:
        pushed.append(len(columns))
        return columns

    windows = app.stream("in").group_by_key().window(tumbling(1_000))
    updates = windows.aggregate(aggregate, cached=False).to_stream()
    updates.map_batch(note).to("out", key=windowed(string()))
    keys = [f"k{number % 50}" for number in range(200)]
    batch_run(app, cached=True).feed("in", [(key, 1, at) for at, key in enumerate(keys)])
    assert pushed == sizes


def test_a_failure_below_an_update_names_the_record(batch_run: Any) -> None:
    app = Streams("app", key=string(), value=json())
    counts = app.stream("in").group_by_key().window(tumbling(1_000)).count(cached=False)
    counts.to_stream().map(lambda n: 1 // (2 - n)).to("out", key=windowed(string()))
    run = batch_run(app, cached=True)
    with pytest.raises(ProcessingError, match="topic 'in', partition 0, offset 3: ZeroDivision"):
        run.feed("in", [(key, 1, at) for at, key in enumerate("abcb")])


def test_what_cached_and_cache_cannot_be() -> None:
    with pytest.raises(TopologyError, match="count of 'in-group_by_key': cached is True or False"):
        Streams("app").stream("in").group_by_key().count(cached=0)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="cache='10MB'|cache= is not supported yet"):
        Streams("app", cache="10MB")
