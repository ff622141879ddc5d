"""Records that are folded before a repartition: the same tables, and less in the topic."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_watermarks import GRACE, SIZE, TOPIC, Cluster

from kafkalite.core.protocol.partitioner import partition_column
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns, concat
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.serde import SerdeContext
from kafkalite.streams import count, max_, mean, min_, string, sum_, tumbling
from kafkalite.streams.aggregates import Aggregate
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.combining import COMBINABLE
from kafkalite.streams.fingerprint import Fingerprint, compare, fingerprint
from kafkalite.streams.local import partials
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.operators import folding, partial
from kafkalite.streams.local.partials import ROW, RowFormat, is_row, runs
from kafkalite.streams.local.watermarks import MARKER_KEY, NEVER
from kafkalite.streams.plan import Plan
from kafkalite.streams.rewrites import sub_topologies

pytestmark = pytest.mark.skipif(not folding.NATIVE, reason="folded in native code alone")

VALUES = msgpack().open(SerdeContext(None, is_key=False))
Record = tuple[int, int]  # value, timestamp


def build(*, late: bool = False, cached: bool = True, name: str = "n", **more: Any) -> Plan:
    """Numbers by their remainder, in windows."""
    app = StreamsBuilder("app", key=string(), value=msgpack(), **more)
    groups = app.stream("in").group_by(lambda v: "abc"[v % 3], name="k")
    table = groups.window(tumbling(SIZE, grace=GRACE)).aggregate(
        n=count(),
        some=count(lambda v: v or None),
        total=sum_(lambda v: 1.0 / v if v > 1_000 else v),
        low=min_(lambda v: v),
        top=max_(lambda v: math.nan if v == 33 else v),
        mean=mean(lambda v: 100 // (v - 77)),
        name=name,
        cached=cached,
    )
    table.final().to("final", value=msgpack())
    if late:
        table.late().to("late")
    return app.plan()


def build_for_ever() -> Plan:
    """Numbers by their remainder, without windows."""
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by(lambda v: "abc"[(v or 0) % 3], name="k")
    table = groups.aggregate(n=count(), total=sum_(lambda v: v), name="n")
    table.to_stream().to("final", value=msgpack())
    return app.plan()


def row_of(values: Sequence[int]) -> dict[str, Any]:
    means = [100 // (v - 77) for v in values]
    return {
        "n": len(values),
        "some": sum(1 for v in values if v) or 0,
        "total": sum(values),
        "low": min(values),
        "top": max(values),
        "mean": sum(means) / len(means),
    }


@contextmanager
def folding_from(records: int) -> Iterator[None]:
    with patch.object(partial, "FEWEST", records):
        yield


def rows_in(cluster: Cluster) -> int:
    """How many rows of partials were sent."""
    return sum(
        is_row(value)
        for (topic, _), log in cluster.logs.items()
        if topic == TOPIC
        for batch in log
        for value in batch.values
    )


def given_batch(
    cluster: Cluster, partition: int, records: Sequence[tuple[int | None, int]]
) -> None:
    values = VALUES.serialize("", [value for value, _ in records])
    batch = Columns([None] * len(records), values, [timestamp for _, timestamp in records])
    cluster.logs["in", partition].append(batch)


def finals(cluster: Cluster) -> dict[Any, Any]:
    rows = concat(cluster.logs["final", 0])
    keys = [(key[:-8].decode(), int.from_bytes(key[-8:], "big")) for key in rows.keys if key]
    assert len(set(keys)) == len(keys), "a window came out twice"
    return dict(zip(keys, VALUES.deserialize("", rows.values), strict=True))


def expected(inputs: list[list[Record]], partitions: int) -> tuple[dict[Any, Any], int]:
    """The rows of closed windows, and how many records are late by the order of their input."""
    windows: dict[Any, list[int]] = defaultdict(list)
    last: dict[int, int] = defaultdict(lambda: NEVER)
    place = dict(zip("abc", partition_column([b"a", b"b", b"c"], partitions), strict=True))
    late = 0
    for records in inputs:
        newest = NEVER
        for value, timestamp in records:
            key, start = "abc"[value % 3], timestamp // SIZE * SIZE
            newest = max(newest, timestamp)
            last[place[key]] = max(last[place[key]], timestamp)
            if start + SIZE + GRACE <= newest:
                late += 1
            else:
                windows[key, start].append(value)
    closed = {
        (key, start): row_of(values)
        for (key, start), values in windows.items()
        if start + SIZE + GRACE <= last[place[key]]
    }
    return closed, late


# Records that fold well: several of a key in a window, some of them late.
alike = st.lists(
    st.tuples(st.integers(0, 29), st.integers(0, 70), st.integers(1, 6)), max_size=12
).map(lambda runs: [((v + 3 * i) % 30, t) for v, t, count in runs for i in range(count)])


class TestTasks:
    @given(
        st.lists(alike, min_size=2, max_size=4),
        st.integers(1, 3),
        st.integers(0, 1 << 30),
        st.booleans(),
        st.booleans(),
    )
    def test_tables_are_the_same_in_whatever_turn_tasks_run(
        self, inputs: list[list[Record]], partitions: int, seed: int, is_sorted: bool, is_odd: bool
    ) -> None:
        if is_sorted:
            inputs = [sorted(records, key=lambda record: record[1]) for records in inputs]
        cluster, random = Cluster(build(), len(inputs), partitions), Random(seed)
        for partition, records in enumerate(inputs):
            for first in range(0, len(records), 12):
                given_batch(cluster, partition, records[first : first + 12])
        with folding_from(2 if is_odd else 8):
            for _ in range(random.randrange(30)):
                task_id = random.choice(cluster.ids)
                move = random.random()
                if move < 0.7:
                    cluster.turn(task_id, random.randrange(1, 20))
                elif move < 0.9:
                    cluster.commit(task_id)
                else:
                    cluster.restart(task_id)
            cluster.finish()
        windows, late = expected(inputs, partitions)
        assert finals(cluster) == windows
        assert cluster.dropped == late

    @given(
        st.lists(
            st.lists(st.tuples(st.none() | st.integers(0, 29), st.integers(0, 9)), max_size=40),
            min_size=2,
            max_size=3,
        ),
        st.integers(1, 3),
        st.integers(0, 1 << 30),
    )
    def test_tables_without_windows_are_the_same(
        self, inputs: list[list[tuple[int | None, int]]], partitions: int, seed: int
    ) -> None:
        cluster, random = Cluster(build_for_ever(), len(inputs), partitions), Random(seed)
        for partition, records in enumerate(inputs):
            for first in range(0, len(records), 20):
                given_batch(cluster, partition, records[first : first + 20])
        with folding_from(2):
            for _ in range(random.randrange(20)):
                task_id = random.choice(cluster.ids)
                cluster.turn(task_id, random.randrange(1, 20))
                if random.random() < 0.3:
                    cluster.restart(task_id)
            cluster.finish()
        there = [v for records in inputs for v, _ in records if v is not None]
        by_key = {key: [v for v in there if v % 3 == at] for at, key in enumerate("abc")}
        rows = concat(cluster.logs["final", 0])
        last = dict(zip(rows.keys, VALUES.deserialize("", rows.values), strict=True))
        newest: dict[bytes, int] = {}
        for key, timestamp in zip(rows.keys, rows.timestamps, strict=True):
            newest[key or b""] = timestamp
        assert last == {
            key.encode(): {"n": len(values), "total": sum(values)}
            for key, values in by_key.items()
            if values
        }
        for at, key in enumerate("abc"):
            times = [t for records in inputs for v, t in records if v is not None and v % 3 == at]
            assert newest.get(key.encode()) == max(times, default=None)

    def test_a_table_without_windows_drops_what_has_no_value(self) -> None:
        cluster = Cluster(build_for_ever(), 2, 1)
        given_batch(cluster, 0, [(3, 1)] * 20)
        given_batch(cluster, 0, [(3, 2)] * 20 + [(None, 3)])
        given_batch(cluster, 1, [])
        cluster.finish()
        assert rows_in(cluster) == 1
        drops = [dict(task._runtime.drops.counts) for task in cluster.tasks.values()]
        assert {(Reason.NULL_VALUE, "n"): 1} in drops
        final = VALUES.deserialize("", concat(cluster.logs["final", 0]).values)
        assert final[-1] == {"n": 40, "total": 120}

    def run(self, batches: Sequence[Sequence[Record]], plan: Plan | None = None) -> Cluster:
        cluster = Cluster(plan or build(), 2, 1)
        for records in batches:
            given_batch(cluster, 0, records)
        given_batch(cluster, 1, [(0, 60)])
        cluster.finish()
        return cluster

    def test_a_batch_goes_as_a_row_for_each_key_and_window(self) -> None:
        records = [(v, v // 15) for v in range(150)]
        cluster = self.run([[r for r in records if r[0] not in (33, 77)]])
        assert rows_in(cluster) == 3
        assert finals(cluster)["a", 0]["n"] == 49

    def test_late_records_follow_as_records_and_count_as_ever(self) -> None:
        cluster = self.run([[(3, 50)] * 20 + [(3, 2)] * 4 + [(6, 51)] * 2])
        assert rows_in(cluster) == 1
        assert cluster.dropped == 4
        tasks = cluster.tasks.values()
        counts = [task._runtime.drops.counts for task in tasks if task._runtime.drops.counts]
        assert [dict(found) for found in counts] == [{(Reason.LATE, "n"): 4}]

    @pytest.mark.parametrize(
        "records",
        [
            [(v, 1) for v in (0, 1, 2) * 2],  # too few
            [(v, v * 10 % 70) for v in range(16)],  # folded they are as many
            [(33, 1)] * 9 + [(36, 1)],  # a NaN came first: the greatest cannot be told
            [(1 << 63, 1)] * 9,  # more than native code adds up
        ],
    )
    def test_other_batches_go_as_records(self, records: list[Record]) -> None:
        assert rows_in(self.run([records])) == 0

    def test_a_function_that_fails_does_so_at_the_table(self) -> None:
        cluster = self.run([[(3, 1)] * 20 + [(77, 1)]], build(on_error="skip"))
        assert rows_in(cluster) == 0
        assert finals(cluster)["a", 0]["n"] == 20
        with pytest.raises(ProcessingError, match=r"'n': topic 'app-k-repartition'.* division"):
            self.run([[(3, 1)] * 20 + [(77, 1)]])

    @pytest.mark.parametrize("more", [{"late": True}, {"cached": False}])
    def test_nothing_is_folded_for_those_who_want_each_record(self, more: dict[str, bool]) -> None:
        assert rows_in(self.run([[(3, 1)] * 20], build(**more))) == 0

    def test_one_writer_alone_folds_nothing(self) -> None:
        cluster = Cluster(build(), 1, 1)
        given_batch(cluster, 0, [(3, 1)] * 20)
        cluster.finish()
        assert rows_in(cluster) == 0

    def test_rows_of_another_table_end_the_task(self) -> None:
        cluster = Cluster(build(), 2, 1)
        (other,) = (s.folds for s in compile_topology(build(name="m"))[0].sinks)
        assert other is not None
        values = RowFormat(other).encode([(0, 9, 9, 9, 9, 9, 9, (9, 9))])
        cluster.logs[TOPIC, 0].append(Columns([b"a"], values, [1]))
        with pytest.raises(ProcessingError, match="partials of another table than 'n'"):
            cluster.finish()


class TestRows:
    def test_no_record_may_begin_like_a_row(self) -> None:
        app = StreamsBuilder("app", key=string(), value=string(), on_error="skip")
        groups = app.stream("in").group_by(lambda v: v[-1:], name="k")
        groups.window(tumbling(SIZE)).count(name="n").final().to("final", value=msgpack())
        cluster = Cluster(app.plan(), 2, 1)
        cluster.logs["in", 0].append(Columns([None], [ROW + b"a"], [1]))
        cluster.finish()
        task = cluster.tasks[cluster.ids[0]]
        assert task.metrics["dropped-records-total"] == 1

    @given(st.lists(st.sampled_from([MARKER_KEY, ROW, b"raw", None]), max_size=9), st.booleans())
    def test_runs_hold_rows_or_records_and_the_markers_before(
        self, entries: list[bytes | None], as_spans: bool
    ) -> None:
        keys = [entry if entry == MARKER_KEY else b"k" for entry in entries]
        columns: Columns = Columns(keys, entries, range(len(keys)), range(len(keys)))
        if as_spans and entries:
            values = Spans.gathered(entries)
            assert values is not None
            columns = Columns(keys, values, columns.timestamps, columns.offsets)
        parts = runs(columns)
        assert [list(c.offsets or ()) for c in parts if len(c)] == _expected_runs(entries)

    def test_what_is_no_row_of_the_table_is_refused(self) -> None:
        (node,) = (s.folds for s in compile_topology(build())[0].sinks)
        assert node is not None
        rows = RowFormat(node)
        whole = (10, 3, 3, 2, 1.5, None, 7, (9, 3))
        assert list(rows.decode(rows.encode([whole]))) == [whole]
        for wrong in (None, b"", ROW, rows.head, rows.head + b"\xc1", *rows.encode([whole[1:]])):
            with pytest.raises(SerdeError, match="partials") as caught:
                rows.decode([*rows.encode([whole]), wrong])
            assert caught.value.index == 1
        with pytest.raises(SerdeError, match="another table"):
            with patch.object(partials, "ROW_VERSION", 2):
                newer = RowFormat(node).encode([whole])
            rows.decode(newer)


def _expected_runs(entries: list[bytes | None]) -> list[list[int]]:
    """Indexes, cut before a marker or entry whose kind is another than that before."""
    kinds: list[bool] = []
    for at in range(len(entries)):
        rest = [entry for entry in entries[at:] if entry != MARKER_KEY]
        kinds.append(bool(rest) and rest[0] == ROW)
    found: list[list[int]] = []
    for at, kind in enumerate(kinds):
        if at and kind == kinds[at - 1]:
            found[-1].append(at)
        else:
            found.append([at])
    return found


@pytest.mark.parametrize("kind", sorted(COMBINABLE, key=str))
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.none() | st.integers(-(1 << 70), 1 << 70)),
            max_size=8,
        ),
        max_size=5,
    )
)
def test_partials_that_were_folded_apart_come_to_the_same(
    kind: type[Aggregate], parts: list[list[tuple[str, int | None]]]
) -> None:
    aggregate, together = kind.over(lambda v: v), kind().partials()
    whole = kind().partials()
    for part in parts:
        keys, arguments = [key for key, _ in part], [x for _, x in part]
        aggregate.add(whole, keys, iter(arguments))
        found = kind().partials()
        aggregate.add(found, keys, iter(arguments))
        for key, part in found.items():
            together[key] = kind().merge(together[key], part) if key in together else part
    assert together == whole


class TestPlan:
    def test_the_description_says_what_is_folded(self) -> None:
        from kafkalite.streams.describe import describe

        assert "; folds ahead: n=count(), some=count(f), " in describe(build())
        assert "folds ahead" not in describe(build(late=True))

    @pytest.mark.parametrize("more", [{"late": True}, {"cached": False}])
    def test_who_no_longer_folds_reads_rows_that_are_there(self, more: dict[str, bool]) -> None:
        difference = compare(_print(build()), _print(build(**more)))
        assert not difference.refusals
        assert not difference.refolded

    def test_rows_that_wait_need_the_table_that_they_are_for(self) -> None:
        before, now = _print(build()), _print(build(name="m"))
        difference = compare(before, now)
        assert difference.refolded == difference.unreadable == ("k",)
        assert Fingerprint.decode(before.encode()) == before
        document = json.loads(before.encode())
        del document["repartitions"]["k"]["folds"]  # as kept before rows were known
        without = Fingerprint.decode(json.dumps(document))
        difference = compare(without, now)
        assert (difference.refolded, difference.unreadable) == (("k",), ())


def _print(plan: Plan) -> Fingerprint:
    return fingerprint(plan, sub_topologies(plan))
