"""Stores over a backend: rows in bytes, objects that come and go, checkpoints and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.errors import SerdeError
from kafkalite.streams import collect, count, json, mean, string, sum_, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.directory import StateDirectory
from kafkalite.streams.local.state.forms import (
    NOTE_KEY,
    START,
    WindowKeys,
    read_rows,
    write_rows,
)
from kafkalite.streams.local.state.kept import Kept
from kafkalite.streams.local.state.limit import MemoryLimit
from kafkalite.streams.local.state.memory import MemoryBackend
from kafkalite.streams.local.task import Task

Row = tuple[Any, Any, int]


class Disk(MemoryBackend):
    """A backend that outlives its task, as one on disk does."""

    is_durable = True

    def close(self) -> None:
        """The rows stay."""


class Disks:
    """Where a task finds its backends again."""

    def __init__(self) -> None:
        self.disks: dict[str, Disk] = {}

    def backend(self, store: str) -> Disk:
        return self.disks.setdefault(store, Disk())

    def note(self, now_ms: int) -> None:
        """Nobody looks at the place without opening it."""

    def close(self) -> None:
        """Nothing is held."""


class Durably:
    """Over BatchRun: state survives, and between commits no row stays in memory."""

    def __init__(self, app: StreamsBuilder, *, cached: bool) -> None:
        self.disks: dict[int, Disks] = {}
        super().__init__(app, cached=cached)  # type: ignore[call-arg]

    def make(self, sub: Any) -> Task:
        return Task(sub, 0, self.registry, cached=self.cached, place=self.place_of(sub.id))

    def place_of(self, sub: int) -> Place:
        return self.disks.setdefault(sub, Disks())

    def task_store(self, name: str) -> Any:
        return next(t for t in self.tasks if name in t.changelog_topics).store(name)

    def end(self, topic: str) -> int:
        return sum(len(columns) for columns in self.changelog.get(topic, []))

    def commit(self) -> None:
        super().commit()
        for task in self.tasks:
            task.checkpoint({topic: self.end(topic) for topic in task.changelog_topics.values()})
            task.shrink(0)

    def restart(self) -> None:
        """Makes the tasks again from what their disks have, and the tails of the changelogs."""
        for task in self.tasks:
            task.close()
        self.tasks = [self.make(sub) for sub in self.subs]
        for task in self.tasks:
            for store, topic in task.changelog_topics.items():
                place = 0
                for columns in self.changelog.get(topic, []):
                    first = max(0, (task.kept(store).offset or 0) - place)
                    task.restore(store, columns.slice(first, len(columns)))
                    place += len(columns)
                task.kept(store).loaded_to(place, 0, is_end=True)


@pytest.fixture(scope="session")
def durable_run(batch_run: Any) -> Any:
    return type("DurableRun", (Durably, batch_run), {})


def shop() -> StreamsBuilder:
    """Tables of all kinds, windows with late and final records, a repartition."""
    app = StreamsBuilder("app", key=string(), value=json())
    orders = app.stream("orders").filter(lambda v: v is not None)
    grouped = orders.group_by_key()
    grouped.aggregate(n=count(), total=sum_(), of=mean(), all=collect(), name="all").to_stream().to(
        "rows"
    )
    windows = grouped.window(tumbling(10, grace=5)).aggregate(n=count(), all=collect(), name="w")
    windows.to_stream().to("windows")
    windows.final().to("final")
    grouped.window(tumbling(7)).count(name="silent")  # nobody asks for its final rows
    table = app.table("prices", name="prices")
    table.to_stream().to("prices-out")
    table.group_by(lambda v: str(v % 3)).aggregate(n=count(), sum=sum_(), name="by").to_stream().to(
        "groups"
    )
    return app


keys = st.sampled_from("abcdef")
orders = st.tuples(st.just("orders"), keys, st.integers(0, 9), st.integers(0, 60))
prices = st.tuples(st.just("prices"), keys, st.none() | st.integers(0, 9), st.integers(0, 60))
steps = st.lists(
    st.lists(orders | prices, min_size=1, max_size=6) | st.sampled_from(["commit", "restart"]),
    max_size=12,
)


def play(run: Any, script: list[Any], *, restarts: bool) -> dict[str, list[Row]]:
    for step in [*script, "commit"]:
        if step == "commit":
            run.commit()
        elif step == "restart":
            run.commit()
            if restarts:
                run.restart()
        else:
            for topic in ("orders", "prices"):
                rows = [row[1:] for row in step if row[0] == topic]
                if rows:
                    run.feed(topic, rows)
    return {
        topic: run.rows(topic) for topic in ("rows", "windows", "final", "prices-out", "groups")
    }


def contents(run: Any) -> dict[str, list[Any]]:
    return {
        name: list(task.store(name).all()) for task in run.tasks for name in task.changelog_topics
    }


def live(run: Any) -> dict[str, dict[bytes, Any]]:
    """The rows that each changelog tells of."""
    found: dict[str, dict[bytes, Any]] = {}
    for topic, batches in run.changelog.items():
        rows = found.setdefault(topic, {})
        for columns in batches:
            rows.update(
                zip(columns.keys, zip(columns.values, columns.timestamps, strict=True), strict=True)
            )
        found[topic] = {
            key: value if key == NOTE_KEY else (value, stamp)
            for key, (value, stamp) in rows.items()
            if value is not None
        }
    return found


@settings(deadline=None)
@given(steps)
def test_rows_that_leave_memory_and_restarts_change_nothing(
    batch_run: Any, durable_run: Any, script: list[Any]
) -> None:
    plain, durable = batch_run(shop(), cached=True), durable_run(shop(), cached=True)
    assert play(durable, script, restarts=True) == play(plain, script, restarts=False)
    assert contents(durable) == contents(plain)
    assert live(durable) == live(plain)


@settings(deadline=None)
@given(steps)
def test_a_restart_from_the_changelog_alone_changes_nothing(
    batch_run: Any, script: list[Any]
) -> None:
    plain, again = batch_run(shop(), cached=True), batch_run(shop(), cached=True)
    assert play(again, script, restarts=True) == play(plain, script, restarts=False)
    assert contents(again) == contents(plain)
    assert live(again) == live(plain)


def prices(place: Place, *, named: bool = False) -> Task:
    app = StreamsBuilder("app", key=string(), value=json())
    table = app.table("prices", name="prices")
    table.to_stream().to("out")
    table.group_by(lambda v: str(v % 3)).aggregate(n=count(), name="by")
    return Task(compile_topology(app.plan())[0], 0, place=place)


def put(task: Task, *rows: tuple[bytes, bytes | None], headers: Any = None) -> None:
    offsets = range(put_count(task), put_count(task) + len(rows))
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    task.enqueue("prices", Columns(keys, values, [1] * len(rows), offsets, headers))
    task.process(100, 5)


def put_count(task: Task) -> int:
    return task.metrics.get("process-total", 0)


class TestCheckpoints:
    def test_a_row_that_is_not_committed_is_not_on_disk(self) -> None:
        disks = Disks()
        task = prices(disks)
        put(task, (b"a", b"1"))
        task.commit()
        assert list(disks.disks["prices"].range()) == []
        task.checkpoint({"app-prices-changelog": 1})
        assert [key for key, _ in disks.disks["prices"].range()] == [b"a"]
        assert prices(disks).kept("prices").offset == 1

    def test_a_row_deleted_in_a_commit_that_is_under_way_is_gone(self) -> None:
        disks = Disks()
        task = prices(disks)
        put(task, (b"a", b"1"))
        task.commit()
        task.checkpoint({"app-prices-changelog": 1})
        put(task, (b"a", None))
        task.commit()
        assert task.store("prices").get("a") is None
        assert list(task.store("prices").all()) == []
        task.checkpoint({"app-prices-changelog": 2})
        assert list(disks.disks["prices"].range()) == []

    def test_rows_that_changed_since_stay_in_memory(self) -> None:
        task = prices(Disks())
        put(task, (b"a", b"1"), (b"b", b"1"))
        task.commit()
        task.checkpoint({"app-prices-changelog": 2})
        put(task, (b"b", b"2"))
        task.shrink(0)
        bucket = task._runtime.stores["prices"].buckets[0]
        assert (set(bucket.stamps), bucket.is_cold) == ({b"b"}, True)
        assert dict(task.store("prices").all()) == {"a": 1, "b": 2}

    def test_without_an_offset_the_old_one_stays(self) -> None:
        disks = Disks()
        task = prices(disks)
        put(task, (b"a", b"1"))
        task.commit()
        task.checkpoint({"app-prices-changelog": 7})
        put(task, (b"a", b"2"))
        task.commit()
        task.checkpoint({})
        again = prices(disks)
        assert again.kept("prices").offset == 7
        assert again.store("prices").get("a") == 2

    def test_headers_and_stamps_come_back(self) -> None:
        disks = Disks()
        task = prices(disks)
        put(task, (b"a", b"1"), (b"b", b"2"), headers=[(("h", b"1"), ("n", None)), ()])
        task.commit()
        task.checkpoint({"app-prices-changelog": 2})
        again = prices(disks)
        bucket = again._runtime.stores["prices"].bucket(0, [b"a", b"b"])
        assert bucket.headers == {b"a": (("h", b"1"), ("n", None))}
        assert bucket.stamps == {b"a": 1, b"b": 1}


def test_the_note_of_a_window_is_on_disk_with_its_rows(durable_run: Any) -> None:
    run = durable_run(shop(), cached=True)
    run.feed("orders", [("a", 1, 12)])
    run.commit()
    store = next(task for task in run.tasks if "w" in task.changelog_topics)._runtime.stores["w"]
    assert store.note is not None
    run.restart()
    again = next(task for task in run.tasks if "w" in task.changelog_topics)._runtime.stores["w"]
    assert again.note == store.note
    run.feed("orders", [("a", 1, 3)])  # its windows ended at 10, with a grace of 5
    run.feed("orders", [("a", 1, 30), ("a", 1, 3)])
    assert [key.start for key, _ in run.task_store("w").all()] == [30]


class TestForms:
    @given(st.lists(st.tuples(st.binary(max_size=4), st.integers(0, 2**62)), max_size=20))
    def test_the_rows_of_a_window_stand_together_in_the_order_of_the_windows(
        self, rows: list[tuple[bytes, int]]
    ) -> None:
        form = WindowKeys()
        record_keys = [key + start.to_bytes(8, "big") for key, start in rows]
        form.check(record_keys)
        turned = form.to_backend(record_keys)
        assert [start for start, _ in sorted((s, k) for k, s in rows)] == [
            int.from_bytes(key[:8], "big") for key in sorted(turned)
        ]
        for (key, start), place in zip(rows, turned, strict=True):
            low, high = form.bucket(start)
            assert low <= place
            assert high is None or place < high
            assert form.in_bucket(start, [key]) == [place]
            assert form.without_start(place) == key

    @pytest.mark.parametrize("key", [None, b"short", b"a" + b"\xff" * 8])
    def test_a_key_without_a_start_is_refused(self, key: bytes | None) -> None:
        with pytest.raises(SerdeError) as caught:
            WindowKeys().check([b"a" + bytes(8), key])
        assert caught.value.index == 1

    @given(st.lists(st.tuples(st.binary(max_size=3), st.booleans()), max_size=9))
    def test_rows_come_back_with_stamps_and_headers(self, rows: list[tuple[bytes, bool]]) -> None:
        values = [value for value, _ in rows]
        stamps = [-1 - i if i % 2 else i for i in range(len(rows))]
        headers = [(("n", b"v"), ("m", None)) if has else () for _, has in rows]
        keys = [b"k"] * len(rows)
        for given_headers in (None, headers):
            written = write_rows(Columns(keys, values, stamps, None, given_headers))
            found = read_rows(keys, [row for row in written if row is not None])
            assert (list(found.values), list(found.stamps)) == (values, stamps)
            expected = given_headers or [()] * len(rows)
            assert list(found.headers or [()] * len(rows)) == expected


class TestMemory:
    def test_a_limit_lets_clean_rows_go_and_asks_for_a_commit(self) -> None:
        task = prices(Disks())
        put(task, *((b"%03d" % i, b"1") for i in range(100)))
        limit = MemoryLimit(task.object_bytes // 2)
        assert limit.is_exceeded([task])
        limit.enforce([task])
        assert limit.is_exceeded([task])  # nothing is committed
        task.commit()
        task.checkpoint({"app-prices-changelog": 100})
        limit.enforce([task])
        assert not limit.is_exceeded([task])
        assert task.object_bytes > 0
        assert len(task.store("prices")) == 100

    def test_without_a_limit_nothing_is_counted(self) -> None:
        limit = MemoryLimit()
        assert not limit.is_exceeded([prices(Disks())])
        limit.enforce([prices(Disks())])


def test_the_same_on_a_real_disk(durable_run: Any, batch_run: Any, tmp_path: Path) -> None:
    script: list[Any] = [
        [("orders", "a", 1, 1), ("orders", "b", 2, 3), ("prices", "a", 4, 1)],
        "restart",
        [("orders", "a", 5, 12), ("prices", "a", 6, 2), ("prices", "b", 1, 2)],
        "commit",
        [("orders", "c", 5, 30), ("prices", "a", None, 2)],
        "restart",
        [("orders", "a", 5, 60)],
    ]
    directory = StateDirectory(tmp_path, "app")

    class OnDisk(durable_run):  # type: ignore[misc]
        def place_of(self, sub: int) -> Place:
            return directory.task(f"{sub}_0")

    plain, durable = batch_run(shop(), cached=True), OnDisk(shop(), cached=True)
    assert play(durable, script, restarts=True) == play(plain, script, restarts=False)
    assert contents(durable) == contents(plain)
    assert sorted(path.name for path in (tmp_path / "app").iterdir()) == ["0_0", "1_0", "2_0"]
    for task in durable.tasks:
        task.close()


def test_a_window_that_closes_while_a_commit_is_under_way_leaves_the_disk_with_the_next() -> None:
    """Until then the changelog has its rows, and a restart must find them."""
    disk = Disk()
    kept = Kept(disk, has_windows=True)
    start = START.pack(10)
    for key, offset in ((b"a", 1), (b"b", 2)):
        kept.begin()
        kept.write(Columns([key + start], [b"row"], [11]), None)
        if offset == 2:
            kept.drop(10)
            assert kept.starts() == []
        kept.checkpoint(offset, 0)
    again = Kept(disk, has_windows=True)
    assert (again.starts(), sorted(again.keys(10)), again.offset) == ([10], [b"a", b"b"], 2)
    kept.begin()
    kept.checkpoint(3, 0)
    assert Kept(disk, has_windows=True).starts() == []
