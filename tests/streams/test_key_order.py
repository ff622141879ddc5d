"""Pages of stores: keys in their order, and no work for rows that nobody takes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.streams import json, string, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.key_order import KeyOrder
from kafkalite.streams.local.state.memory import InMemory, MemoryBackend
from kafkalite.streams.local.task import Task

ROWS = 2_000
PAGE = 10
KEYS_OF_A_PAGE = 3 * PAGE  # a look may fetch some more than are taken
LOOKS_OF_A_PAGE = 2 * KEYS_OF_A_PAGE  # windows of four bring keys of their own


class Disk(MemoryBackend):
    """Rows that outlive their objects."""

    is_durable = True


class Disks:
    def __init__(self) -> None:
        self.disk = Disk()

    def backend(self, store: str) -> Disk:
        return self.disk

    def note(self, now_ms: int) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is held."""


keys = st.integers(0, 30).map(lambda number: b"%02d" % number)
steps = st.lists(st.tuples(st.sampled_from(["put", "put", "forget", "look"]), keys), max_size=200)


@given(st.sets(keys), steps)
def test_the_order_is_that_of_the_keys_that_are_there(first: set[bytes], script: Any) -> None:
    there = dict.fromkeys(first, 0)
    order = KeyOrder(there)
    for step, key in script:
        if step == "put":
            there[key] = 1
        elif step == "forget":
            there.pop(key, None)
            order.forget([key])
        else:
            assert list(order.irange(key)) == sorted(k for k in there if k >= key)
    assert list(order.irange(b"")) == sorted(there)


def test_keys_that_left_unseen_are_not_kept() -> None:
    there = dict.fromkeys((b"%04d" % number for number in range(100)), 0)
    order = KeyOrder(there)
    assert len(list(order.irange(b""))) == 100
    for number in range(10_000):
        order.forget([b"x%d" % number])
    assert len(order._gone) < 100


def table(place: Place) -> Task:
    app = StreamsBuilder("app", key=string(), value=json())
    app.table("prices", name="prices")
    return Task(compile_topology(app.plan())[0], 0, place=place)


def fill(task: Task, topic: str) -> None:
    numbers = range(ROWS)
    columns = Columns(
        [b"%05d" % (number * 7 % ROWS) for number in numbers],
        [b"%d" % (number * 7 % ROWS) for number in numbers],
        list(numbers),
        numbers,
    )
    task.enqueue(topic, columns)
    while task.process(ROWS, 5):
        pass


class Looks:
    """Counts the rows that a store looks at."""

    def __init__(self, store: Any) -> None:
        self.rows, self._real = 0, store.has
        store.has = self

    def __call__(self, bucket: Any, key: Any) -> Any:
        self.rows += 1
        return self._real(bucket, key)


def test_a_page_costs_its_rows_alone() -> None:
    task = table(InMemory())
    fill(task, "prices")
    looks = Looks(task._runtime.stores["prices"])
    view = task.store("prices")
    page = list(islice(view.range("01000"), PAGE))
    assert page == [(f"{number:05}", number) for number in range(1_000, 1_000 + PAGE)]
    assert looks.rows <= LOOKS_OF_A_PAGE
    assert dict(view.all()) == {f"{number:05}": number for number in range(ROWS)}


def test_a_page_of_rows_on_disk_brings_these_alone_into_memory() -> None:
    task = table(Disks())
    fill(task, "prices")
    task.commit()
    task.checkpoint({})
    task.shrink(0)
    bucket = task._runtime.stores["prices"].buckets[0]  # type: ignore[attr-defined]
    assert not bucket.stamps
    view = task.store("prices")
    assert [value for _, value in islice(view.range("00500"), PAGE)] == [*range(500, 500 + PAGE)]
    assert len(bucket.stamps) <= KEYS_OF_A_PAGE
    changed = Columns([b"00501", b"00502", b"00502x"], [b"-1", None, b"3"], [1] * 3, range(3))
    task.enqueue("prices", changed)
    task.process(10, 5)
    around = [("00500", 500), ("00501", -1), ("00502x", 3), ("00503", 503)]
    assert list(view.range("00500", "00503")) == around
    task.commit()  # under way: what it wrote is neither on the disk nor unlogged
    assert list(view.range("00500", "00503")) == around
    task.checkpoint({})
    task.shrink(0)
    assert list(view.range("00500", "00503")) == around
    assert len(list(view.all())) == ROWS


@pytest.mark.parametrize("place", [InMemory, Disks])
def test_rows_of_windows_stand_by_key_then_by_window(place: Any) -> None:
    app = StreamsBuilder("app", key=string(), value=json())
    app.stream("in").group_by_key().window(tumbling(500, grace=10_000)).count(name="n")
    task = Task(compile_topology(app.plan())[0], 0, place=place())
    for _ in range(2):
        fill(task, "in")
        task.commit()
        task.checkpoint({})
    looks = Looks(task._runtime.stores["n"])
    found = list(islice(task.store("n").range("01000"), PAGE))
    assert looks.rows <= LOOKS_OF_A_PAGE
    keys = [(key.key, key.start) for key, _ in found]
    assert keys == sorted(keys)
    assert [key for key, _ in keys] == [f"{number:05}" for number in range(1_000, 1_000 + PAGE)]
