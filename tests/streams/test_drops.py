"""Nothing is dropped unseen: each reason is counted by operator, warned about, and shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, hopping, string, sum_, tumbling
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.drops import WARN_SECONDS, Drop, Drops, Reason
from kafkalite.streams.local.task import Task
from kafkalite.streams.stream import Stream

Input = tuple[str | None, str | None, int]


def dropped(build: Callable[[Stream], Any], *records: Input) -> dict[Drop, int]:
    app = Streams("app", key=string(), value=string(), dead_letter_topic="letters")
    build(app.stream("in"))
    drops = Drops()
    sub = compile_topology(app.plan())[0]
    task = Task(sub, 0, MemoryRegistry(), drops=drops)
    keys: Sequence[bytes | None] = [k and k.encode() for k, _, _ in records]
    values: Sequence[bytes | None] = [v and v.encode() for _, v, _ in records]
    times = [at for _, _, at in records]
    task.enqueue("in", Columns(keys, values, times, range(len(records))))
    task.process(1_000, now_ms=0)
    task.commit()
    return dict(drops.counts)


CASES: list[tuple[Callable[[Stream], Any], list[Input], Reason, str, int]] = [
    (lambda s: s.map(int, name="m", on_error="skip"), [("k", "x", 0)], Reason.SKIP, "m", 1),
    (lambda s: s.map(int, name="m", on_error="dlq"), [("k", "x", 0)] * 2, Reason.DLQ, "m", 2),
    (lambda s: s.group_by_key().count(name="n"), [(None, "x", 0)], Reason.NULL_KEY, "n", 1),
    (
        lambda s: s.group_by_key().aggregate(sum_(len), name="n"),
        [("k", None, 0)],
        Reason.NULL_VALUE,
        "n",
        1,
    ),
    (lambda s: s.to_table(name="t"), [(None, "x", 0)], Reason.NULL_KEY, "t", 1),
    (
        lambda s: s.group_by(lambda v: None, name="g").count(),
        [("k", "x", 0)] * 3,
        Reason.NULL_KEY,
        "g-sink",
        3,
    ),
    (
        lambda s: s.group_by_key().window(tumbling(10)).count(name="n"),
        [("k", "x", 100), ("k", "x", 5)],
        Reason.LATE,
        "n",
        1,
    ),
    (
        lambda s: s.group_by_key().window(hopping(20, 10)).count(name="n"),
        [("k", "x", 31), ("k", "x", 25)],
        Reason.EXPIRED,
        "n",
        1,
    ),
    (
        lambda s: s.group_by_key().window(hopping(20, 10)).count(name="n").late().to("late"),
        [("k", "x", 100), ("k", "x", 25)],
        Reason.LATE_KEPT,
        "n",
        1,
    ),
]


@pytest.mark.parametrize(("build", "records", "reason", "operator", "count"), CASES)
def test_each_reason_is_counted_with_its_operator(
    build: Callable[[Stream], Any], records: list[Input], reason: Reason, operator: str, count: int
) -> None:
    assert dropped(build, *records) == {Drop(reason, operator): count}


def test_a_warning_a_minute_with_what_is_new() -> None:
    drops = Drops()
    assert drops.warning(0.0) is None
    drops.add(Reason.LATE, "n", 0)
    assert drops.warning(0.0) is None
    drops.add(Reason.LATE, "n", 1_200)
    drops.add(Reason.SKIP, "m")
    assert drops.warning(5.0) == (
        "records left out: 1,200 too late for every window at 'n'; "
        "1 skipped by on_error=\"skip\" at 'm'"
    )
    drops.add(Reason.LATE, "n", 3)
    assert drops.warning(4.0 + WARN_SECONDS) is None
    assert drops.warning(5.0 + WARN_SECONDS) == (
        "records left out: 3 too late for every window at 'n'"
    )
    assert drops.warning(5.0 + 2 * WARN_SECONDS) is None


def test_the_totals_in_words_and_for_programs() -> None:
    drops = Drops()
    drops.add(Reason.NULL_KEY, "g")
    drops.add(Reason.LATE, "n", 1_200)
    assert drops.lines() == [
        "1,200 records too late for every window, at 'n'",
        "1 record without a key, at 'g'",
    ]
    assert drops.document()[0] == {"reason": "late", "operator": "n", "records": 1_200}


def test_a_warning_lists_ten_reasons_at_most() -> None:
    drops = Drops()
    for number in range(13):
        drops.add(Reason.SKIP, f"m{number}")
    words = drops.warning(0.0)
    assert words is not None
    assert words.endswith("; and 3 more reasons")


def test_a_look_at_the_counts_stands_beside_a_thread_that_counts() -> None:
    drops = Drops()
    done = threading.Event()

    def count() -> None:
        for number in range(20_000):
            drops.add(Reason.SKIP, f"m{number}")
        done.set()

    thread = threading.Thread(target=count)
    thread.start()
    now = 0.0
    while not done.is_set():
        now += WARN_SECONDS
        drops.warning(now)
        drops.document()
    thread.join()
    assert sum(drops.counts.values()) == 20_000


def test_what_workers_have_dropped_adds_up() -> None:
    one, other, total = Drops(), Drops(), Drops()
    one.add(Reason.LATE, "count", 2)
    other.add(Reason.LATE, "count", 3)
    other.add(Reason.NULL_KEY, "table")
    for worker in (one, other):
        total.add_document(worker.document())
    assert total.lines() == [
        "5 records too late for every window, at 'count'",
        "1 record without a key, at 'table'",
    ]
