"""Topologies of all kinds in one process: `many_apps.py ADDRESS STATE_DIR INSTANCE NAMES [once]`.

Each is an application of its own, with its own group, transactions and internal topics. All read
`left`, `right` and `facts`; each writes a topic of its name. What they must have made of their
input stands beside them in plain Python.

Runs until SIGTERM, or with a fourth argument until every application has caught up.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kafkalite.core.types import Windowed
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import (
    Record,
    Streams,
    count,
    hopping,
    int64,
    json,
    session,
    sliding,
    store,
    string,
    sum_,
    tumbling,
)
from kafkalite.streams import windowed as windowed_by
from kafkalite.streams.local.worker import Worker, WorkerConfig

FACTS = {f"k{number}": 100 + number for number in range(12)}
END_MS = 1_000_000_000  # of the records that close every window
WITHIN_MS = 40
SLIDE_MS = 250
SEEN = store("seen", key=string(), value=int64())
Row = tuple[str, int, int]  # key, value, timestamp


class Sent(NamedTuple):
    """The records of both streams, in the order in which they were sent."""

    left: list[Row]
    right: list[Row]


class Topology(NamedTuple):
    """`build` makes it; `rows` says which records it must have written, or with `is_table` which
    rows are left. With `waits` nothing comes before the last records."""

    build: Callable[[Streams], Any]
    rows: Callable[[Sent], Iterable[Any]]
    is_table: bool = False
    waits: bool = False


def is_record(value: int) -> bool:
    """Whether it is none of those that close windows."""
    return value >= 0


# What each makes


def copy(app: Streams) -> Any:
    return (
        app.stream("left", value=int64())
        .filter(lambda v: v >= 0 and v % 3 > 0)
        .map(lambda v: v * 2)
    )


def copied(sent: Sent) -> Iterable[Any]:
    return [(key, value * 2) for key, value, _ in sent.left if value % 3]


def windows(app: Streams) -> Any:
    return app.stream("left", value=int64()).group_by_key().window(tumbling(200)).count().final()


def windowed(sent: Sent) -> Iterable[Any]:
    found = Counter((key, time - time % 200) for key, _, time in sent.left)
    return [([key, start, start + 200], n) for (key, start), n in found.items()]


def sessions(app: Streams) -> Any:
    kept = app.stream("left", value=int64()).filter(lambda v: v % 5 != 2)
    return kept.group_by_key().window(session(150)).aggregate(n=count(), sum=sum_()).final()


def in_sessions(sent: Sent) -> Iterable[Any]:
    by_key = defaultdict(list)
    for key, value, time in sent.left:
        if value % 5 != 2:
            by_key[key].append((time, value))
    for key, rows in by_key.items():
        open_: list[tuple[int, int]] = []
        for row in [*rows, (END_MS, 0)]:
            if open_ and row[0] - open_[-1][0] > 150:
                bounds = [key, open_[0][0], open_[-1][0]]
                yield bounds, {"n": len(open_), "sum": sum(value for _, value in open_)}
                open_ = []
            open_.append(row)


def hops(app: Streams) -> Any:
    groups = app.stream("left", value=int64()).filter(is_record).group_by(lambda v: f"g{v % 5}")
    window = hopping(300, 100, grace="1d")
    return groups.window(window).aggregate(n=count(), sum=sum_()).to_stream()


def in_hops(sent: Sent) -> Iterable[Any]:
    found = defaultdict(list)
    for _, value, time in sent.left:
        for start in range(max(0, time // 100 - 2) * 100, time + 1, 100):
            found[f"g{value % 5}", start].append(value)
    for (key, start), values in found.items():
        yield [key, start, start + 300], {"n": len(values), "sum": sum(values)}


def pairs(app: Streams) -> Any:
    left, right = (
        app.stream(topic, value=int64()).filter(is_record) for topic in ("left", "right")
    )
    return left.join(right, lambda a, b: [a, b], within=WITHIN_MS, grace="1d")


def paired(sent: Sent) -> Iterable[Any]:
    by_key = defaultdict(list)
    for key, value, time in sent.right:
        by_key[key].append((value, time))
    for key, value, time in sent.left:
        yield from (
            (key, [value, other]) for other, at in by_key[key] if abs(time - at) <= WITHIN_MS
        )


def priced(app: Streams) -> Any:
    stream = app.stream("left", value=int64()).filter(is_record)
    return stream.join(app.table("facts", value=int64()), lambda value, fact: value * fact)


def prices(sent: Sent) -> Iterable[Any]:
    return [(key, value * FACTS[key]) for key, value, _ in sent.left]


def both(app: Streams) -> Any:
    left, right = (
        app.table("left", value=int64()).filter(is_record),
        app.table("right", value=int64()).filter(is_record),
    )
    return left.join(right, lambda a, b: [a, b], how="outer").to_stream()


def rows_of_both(sent: Sent) -> Iterable[Any]:
    left, right = latest(sent.left), latest(sent.right)
    return [(key, [left.get(key), right.get(key)]) for key in left.keys() | right.keys()]


def foreign(app: Streams) -> Any:
    left = app.table("left", value=int64()).filter(is_record)
    key = lambda v: f"k{v % 5}"  # noqa: E731
    return left.join(
        app.table("facts", value=int64()), lambda a, b: [a, b], foreign_key=key
    ).to_stream()


def referred(sent: Sent) -> Iterable[Any]:
    return [(key, [v, FACTS[f"k{v % 5}"]]) for key, v in latest(sent.left).items()]


def groups(app: Streams) -> Any:
    grouped = app.table("left", value=int64()).filter(is_record).group_by(lambda v: f"g{v % 4}")
    return grouped.aggregate(n=count(), sum=sum_()).to_stream()


def grouped(sent: Sent) -> Iterable[Any]:
    values = latest(sent.left).values()
    for group in range(4):
        own = [value for value in values if value % 4 == group]
        if any(value % 4 == group for _, value, _ in sent.left):
            yield f"g{group}", {"n": len(own), "sum": sum(own)}


class Once:
    """Lets a third of a key's values through: the first of each thirty-six."""

    def init(self, context: Any) -> None:
        self.context, self.seen = context, context.store("seen")

    def process(self, record: Record) -> None:
        number = record.value // 36
        if record.value >= 0 and self.seen.get(record.key) != number:
            self.seen.put(record.key, number)
            self.context.forward(record)


def once(app: Streams) -> Any:
    return app.stream("left", value=int64()).process_values(Once, stores=[SEEN])


def let_through(sent: Sent) -> Iterable[Any]:
    seen: dict[str, int] = {}
    for key, value, _ in sent.left:
        if seen.get(key) != value // 36:
            seen[key] = value // 36
            yield key, value


async def looked_up(value: int) -> int:
    """A call that takes a moment."""
    await asyncio.sleep(0.001)
    return value + 1


def called(app: Streams) -> Any:
    return app.stream("left", value=int64()).filter(is_record).map_async(looked_up, concurrency=100)


def answers(sent: Sent) -> Iterable[Any]:
    return [(key, value + 1) for key, value, _ in sent.left]


def matches(app: Streams) -> Any:
    stream = app.stream("left", value=int64()).filter(is_record)
    return stream.match(
        a=lambda v: v % 7 == 1,
        b=lambda v: v % 7 == 3,
        not_between=lambda v: v % 35 == 5,
        within="1s",
    )


def matched(sent: Sent) -> Iterable[Any]:
    begun: dict[str, list[Row]] = defaultdict(list)
    for key, value, time in sent.left:
        begun[key] = [row for row in begun[key] if time - row[2] <= 1_000]
        if value % 7 == 3 and begun[key]:
            yield key, {"a": begun[key][0][1], "b": value}
            begun[key] = []
        elif value % 35 == 5:
            begun[key] = []
        elif value % 7 == 1:
            begun[key].append((key, value, time))


def latest(rows: Iterable[Row]) -> Mapping[str, int]:
    """The last value of each key."""
    return {key: value for key, value, _ in rows}


def slides(app: Streams) -> Any:
    stream = app.stream("left", value=int64()).filter(is_record)
    return stream.group_by_key().window(sliding(SLIDE_MS, grace="1d")).count().to_stream()


def in_slides(sent: Sent) -> Iterable[Any]:
    times = defaultdict(list)
    for key, _, time in sent.left:
        times[key].append(time)
    for key, own in times.items():
        starts = {max(0, time - SLIDE_MS) for time in own}
        starts |= {t + 1 for t in own if any(t < other <= t + 1 + SLIDE_MS for other in own)}
        for start in starts:
            n = sum(start <= time <= start + SLIDE_MS for time in own)
            yield [key, start, start + SLIDE_MS], n


def either(app: Streams) -> Any:
    left, right = (app.stream(topic, value=int64()) for topic in ("left", "right"))
    return left.join(right, lambda a, b: [a, b], within=WITHIN_MS, grace="1d", how="outer")


def all_paired(sent: Sent) -> Iterable[Any]:
    found = [(key, pair) for key, pair in paired(sent)]
    yield from found
    lefts, rights = ({pair[side] for _, pair in found} for side in (0, 1))
    yield from ((key, [value, None]) for key, value, _ in sent.left if value not in lefts)
    yield from ((key, [None, value]) for key, value, _ in sent.right if value not in rights)


def before(app: Streams) -> Any:
    left, right = (app.stream(topic, value=int64()) for topic in ("left", "right"))
    return left.join_as_of(right, lambda a, b: [a, b], tolerance="1s", grace="1d", how="left")


def versions(app: Streams) -> Any:
    table = app.table("right", value=int64(), history="20d")
    left = app.stream("left", value=int64())
    return left.join(table, lambda a, b: [a, b], how="left", grace="1d")


def as_of(sent: Sent, tolerance_ms: int) -> Iterable[Any]:
    by_key = defaultdict(list)
    for key, value, time in sent.right:
        by_key[key].append((time, value))
    for key, value, time in sent.left:
        there = [(at, other) for at, other in by_key[key] if time - tolerance_ms <= at <= time]
        yield key, [value, max(there)[1] if there else None]


def sums(app: Streams) -> Any:
    left, right = (
        app.stream(topic, value=int64()).filter(is_record).group_by_key()
        for topic in ("left", "right")
    )
    add = lambda total, value: total + value  # noqa: E731
    return left.cogroup(add).cogroup(right, add).aggregate(0).to_stream()


def summed(sent: Sent) -> Iterable[Any]:
    keys = {key for key, _, _ in [*sent.left, *sent.right]}
    for key in keys:
        yield key, sum(value for own, value, _ in [*sent.left, *sent.right] if own == key)


def late_rows(app: Streams) -> Any:
    return app.table("left", value=int64()).suppress("1s").to_stream()


def kept(app: Streams) -> Any:
    return app.table("left", value=int64(), retention="2s").to_stream()


TOPOLOGIES = {
    "copy": Topology(copy, copied),
    "windows": Topology(windows, windowed),
    "sessions": Topology(sessions, in_sessions),
    "hops": Topology(hops, in_hops, is_table=True),
    "pairs": Topology(pairs, paired),
    "priced": Topology(priced, prices),
    "both": Topology(both, rows_of_both, is_table=True),
    "foreign": Topology(foreign, referred, is_table=True),
    "groups": Topology(groups, grouped, is_table=True),
    "once": Topology(once, let_through),
    "called": Topology(called, answers),
    "matches": Topology(matches, matched),
    "slides": Topology(slides, in_slides, is_table=True),
    "either": Topology(either, all_paired),
    "before": Topology(before, lambda sent: as_of(sent, 1_000), waits=True),
    "versions": Topology(versions, lambda sent: as_of(sent, END_MS), waits=True),
    "sums": Topology(sums, summed, is_table=True),
    "kept": Topology(kept, lambda sent: [], is_table=True),  # all have left at the end
    "late_rows": Topology(late_rows, lambda sent: latest(sent.left).items(), is_table=True),
}


# Beside Kafka Streams, which reads what they write and writes what they read: Mixed.java


def doubled(app: Streams) -> Any:
    groups = app.stream("doubled", value=int64()).filter(is_record).group_by(lambda v: f"g{v % 14}")
    return groups.aggregate(n=count(), sum=sum_()).to_stream()


def in_groups_of_doubled(sent: Sent) -> Iterable[Any]:
    for group in range(0, 14, 2):
        own = [value * 2 for _, value, _ in sent.left if value * 2 % 14 == group]
        yield f"g{group}", {"n": len(own), "sum": sum(own)}


def there_and_back(app: Streams) -> Any:
    counts = app.stream("left", value=int64()).group_by_key().window(tumbling(200)).count()
    counts.final().to("windows-of-ours")
    return app.stream("windows-by-java", value=int64())


def sessions_of_java(app: Streams) -> Any:
    return app.stream("sessions-of-java", key=windowed_by(string()), value=int64())


BESIDE_JAVA = {
    "doubles": Topology(doubled, in_groups_of_doubled, is_table=True),
    "there_and_back": Topology(
        there_and_back,
        lambda sent: [(f"{key}@{start}", n) for (key, start, _), n in windowed(sent)],
    ),
    "java_sessions": Topology(
        sessions_of_java,
        lambda sent: [(key, value["n"]) for key, value in in_sessions(sent)],
        is_table=True,
    ),
}
JAVA_TOPICS = ("doubled", "sessions-of-java", "windows-of-ours", "windows-by-java")


def built(name: str) -> Streams:
    """The application of one topology; keys of windows are written as [key, start, end]."""
    app = Streams(name, key=string())
    made = {**TOPOLOGIES, **BESIDE_JAVA}[name].build(app)
    stream = made if hasattr(made, "select_key") else made.to_stream()
    spelled = stream.map_pairs(lambda key, value: (plain(key), value))
    spelled.to(name, key=json(), value=json())
    return app


def plain(key: Any) -> Any:
    """A key as JSON has it."""
    return list(key) if isinstance(key, Windowed) else key


async def main() -> None:
    """Runs all of them."""
    address, folder, instance, names, *until = sys.argv[1:]
    workers = []
    for name in names.split(","):
        config = WorkerConfig(
            processing_guarantee="exactly_once",
            # A killed worker's tasks are to be taken over soon; nobody waits for those of the last.
            session_timeout_ms=30_000 if until else 3_000,
            commit_interval_ms=100,
            idle_ms=600_000,
            state_dir=Path(folder) / instance / name,
        )
        workers.append(Worker(built(name).plan(), address, MemoryRegistry(), config))

    def stop() -> None:
        for worker in workers:
            worker.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run(until_caught_up=bool(until)))


if __name__ == "__main__":
    asyncio.run(main())
