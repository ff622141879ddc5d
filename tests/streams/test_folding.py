"""Batches folded by columns in native code give what their twin, window by window, gives."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.columns import Form
from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError
from kafkalite.serde import SerdeContext, msgpack
from kafkalite.streams import (
    bytes_,
    collect,
    count,
    first,
    hopping,
    last,
    max_,
    mean,
    min_,
    sum_,
    tumbling,
)
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.operators import folding
from kafkalite.streams.local.operators.folding import argument, group, kinds_of, may_fold
from kafkalite.streams.local.operators.rows import Rows
from kafkalite.streams.local.task import Task, TaskCommit
from kafkalite.streams.windows import TimeWindow

AGGREGATES: dict[str, Any] = {
    "n": count(),
    "of_x": count("x"),
    "total": sum_("x"),
    "average": mean("x"),
    "least": min_("x"),
    "most": max_("x"),
    "first": first("x"),
    "last": last("x"),
}
LARGE = (1 << 53) + 1
plain = st.none() | st.integers(-3, 3) | st.sampled_from([0.1, 0.2, -0.0, 0.0, 1e300, -2.5])
odd = st.sampled_from(
    [LARGE, -LARGE, 2**63 - 1, -(2**63), float("nan"), float("inf"), True, "text"]
)
alike = [
    st.none() | of for of in (st.booleans(), st.sampled_from(["", "a", "ab", "ä", "\U0001f600"]),
                              st.sampled_from([b"", b"a", b"\xff"]))
]  # fmt: skip
values = plain | odd
WINDOWS = [None, tumbling(5), tumbling(5, grace=20), hopping(6, 2, grace=3), hopping(4, 4)]

Record = tuple[bytes | None, Any, int]


def batches_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Record]]]:
    keys = st.sampled_from([b"a", b"b", b"", b"a longer key", b"a longer key, too", None])
    records = st.lists(st.tuples(keys, values, st.integers(0, 40)), min_size=1, max_size=12)
    ascending = records.map(lambda batch: sorted(batch, key=lambda record: record[2]))
    return st.lists(records | ascending, min_size=1, max_size=4)


native = pytest.mark.skipif(not folding.NATIVE, reason="the native module was not built")


def builder(
    window: TimeWindow | None, names: list[str], on_error: str, *, cached: bool, to_table: bool
) -> StreamsBuilder:
    app = StreamsBuilder("app", key=bytes_(), value=msgpack(), on_error=on_error)
    grouped = app.stream("in").group_by_key()
    chosen: Any = grouped if window is None else grouped.window(window)
    if len(names) == 1:  # the row is the value itself, which may be None
        table = chosen.aggregate(AGGREGATES[names[0]], cached=cached)
    else:
        table = chosen.aggregate(**{name: AGGREGATES[name] for name in names}, cached=cached)
    table.to_stream().to("out")
    if to_table:  # asks for old rows
        table.filter(lambda row: row is not None).to_stream().to("filtered")
    if window is not None:
        table.final().to("final")
        if cached:
            table.late().to("late")
    return app


class Run:
    """A task that is restarted from its changelog now and then, by columns or by its twin."""

    def __init__(self, app: StreamsBuilder, *, by_columns: bool) -> None:
        (self.sub,) = compile_topology(app.plan())
        self.by_columns = by_columns
        self.changelog: list[Columns] = []
        self.drops = Drops()
        self.task = self.started()
        self.offset = 0

    def started(self) -> Task:
        task = Task(self.sub, 0, drops=self.drops)
        for operator in task._operators.values():
            rows = getattr(operator, "rows", None)
            if isinstance(rows, Rows) and not self.by_columns:
                rows.kinds = None
        for store in self.sub.stores:
            for columns in self.changelog:
                task.restore(store.name, columns)
        return task

    def feed(self, batch: list[Record], headers: bool) -> TaskCommit:
        keys, values, timestamps = map(list, zip(*batch, strict=True))
        data = msgpack().open(SerdeContext()).serialize("in", [{"x": value} for value in values])
        offsets = range(self.offset, self.offset + len(keys))
        self.offset += len(keys)
        marks = [(("at", b"%d" % i),) if i % 3 else () for i in offsets] if headers else None
        return self.take(Columns(keys, data, timestamps, offsets, marks))

    def take(self, columns: Columns) -> TaskCommit:
        self.task.enqueue("in", columns)
        while self.task.process(1_000, 0):
            pass
        commit = self.task.commit()
        self.changelog += [change.columns for change in commit.changelog]
        return commit

    def told(self, commit: TaskCommit) -> Any:
        """A commit by topics; the deletions of a closed window come in any order."""
        changes = [
            (list(c.keys), list(c.values), list(c.timestamps), c.headers)
            for c in (change.columns for change in commit.changelog)
        ]
        rows = [
            [record for record in zip(*map(list, change[:3]), strict=True) if record[1] is not None]
            for change in changes
        ]
        gone = [
            sorted((key, at) for key, value, at in zip(*change[:3], strict=True) if value is None)
            for change in changes
        ]
        outputs = [
            (o.topic, list(o.columns.keys), list(o.columns.values), list(o.columns.timestamps),
             o.columns.headers and list(o.columns.headers))
            for o in sorted(commit.outputs, key=lambda output: output.topic)
        ]  # fmt: skip
        metrics = sorted(self.task.metrics.items())
        drops = sorted(map(repr, self.drops.document()))
        return outputs, rows, gone, commit.offsets, metrics, drops


def outcome(run: Run, feed: Callable[[Run], TaskCommit]) -> Any:
    try:
        return repr(run.told(feed(run)))
    except ProcessingError as error:
        return str(error)


@native
class TestByColumns:
    @settings(max_examples=300)
    @given(
        st.one_of(*map(batches_of, (plain, values, *alike))),
        st.sampled_from(WINDOWS),
        st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=4, unique=True),
        st.tuples(st.booleans(), st.booleans(), st.booleans()),
        st.sampled_from(["fail", "skip"]),
        st.sets(st.integers(0, 3)),
    )
    def test_gives_what_segments_give(
        self,
        batches: list[list[Record]],
        window: TimeWindow | None,
        names: list[str],
        flags: tuple[bool, bool, bool],
        on_error: str,
        restarts: set[int],
    ) -> None:
        cached, to_table, headers = flags
        app = builder(window, names, on_error, cached=cached, to_table=to_table)
        runs = [Run(app, by_columns=flag) for flag in (True, False)]
        for at, batch in enumerate(batches):
            ours, theirs = [
                outcome(run, lambda run, batch=batch: run.feed(batch, headers)) for run in runs
            ]
            assert ours == theirs
            if "ProcessingError" in ours or not ours.startswith("("):
                return
            if at in restarts:
                for run in runs:
                    run.task = run.started()

    def test_batches_of_forms_give_what_lists_give(self) -> None:
        app = builder(tumbling(5), ["n", "total"], "fail", cached=True, to_table=False)
        ours, theirs = Run(app, by_columns=True), Run(app, by_columns=True)
        for offset in range(0, 1_200, 400):
            offsets = range(offset, offset + 400)
            keys: list[bytes | None] = [b"k%d" % (at % 7) for at in offsets]
            values = [{"x": at * 0.1} for at in offsets]
            data = msgpack().open(SerdeContext()).serialize("in", values)
            timestamps = [at // 100 for at in offsets]
            lists = Columns(keys, data, timestamps, offsets)
            spans = Spans.gathered(keys), Spans.gathered(data)
            assert spans[0] is not None
            assert spans[1] is not None
            forms = Columns(spans[0], spans[1], Int64s(timestamps), Int64s(list(offsets)))
            assert ours.told(ours.take(forms)) == theirs.told(theirs.take(lists))

    def test_names_the_record_on_which_it_fails(self) -> None:
        run = Run(
            builder(tumbling(5), ["total", "n"], "fail", cached=True, to_table=False),
            by_columns=True,
        )
        batch = [(b"a", 1, 0), (b"a", 2, 10), (b"b", "text", 20), (b"b", 5, 20)]
        with pytest.raises(ProcessingError, match="offset 2"):
            run.feed(batch, headers=False)


@native
class TestGroup:
    def test_windows_ascend_and_keys_stand_as_they_came(self) -> None:
        groups = group(tumbling(5, grace=5), [b"b", b"a", b"b", b"b"], [7, 1, 9, 3])
        assert groups is not None
        assert groups.starts == [0, 5]
        assert [list(stamps.items()) for stamps in groups.stamps] == [
            [(b"a", 1), (b"b", 3)],
            [(b"b", 9)],
        ]
        assert groups.last_records(1) == [2]

    def test_judges_by_the_times_that_it_is_given(self) -> None:
        timestamps = [1, 2, 8]
        by_records = group(tumbling(5), [b"a"] * 3, timestamps, before=6)
        assert by_records is not None
        assert (by_records.late, by_records.missed) == ([0, 1], 2)
        by_times = group(tumbling(5), [b"a"] * 3, timestamps, [0, 5, 8])
        assert by_times is not None
        assert (by_times.late, by_times.starts) == ([1], [0, 5])

    def test_thousands_of_keys_and_windows(self) -> None:
        keys = [b"k%d" % (i % 3_001) for i in range(20_000)]
        timestamps = [i * 7 % 1_009 for i in range(20_000)]
        groups = group(tumbling(100, grace=10_000), keys, timestamps)
        assert groups is not None
        expected: dict[int, dict[bytes, int]] = {}
        for key, timestamp in zip(keys, timestamps, strict=True):
            latest = expected.setdefault(timestamp // 100 * 100, {})
            latest[key] = max(latest.get(key, 0), timestamp)
        assert dict(zip(groups.starts, groups.stamps, strict=True)) == expected

    @given(
        st.lists(st.tuples(st.sampled_from([b"a", b"", b"bc"]), st.integers(0, 40)), min_size=1),
        st.sampled_from(WINDOWS),
        st.integers(0, 20),
    )
    def test_spans_and_columns_of_integers_are_as_lists(
        self, records: list[tuple[bytes, int]], window: TimeWindow | None, before: int
    ) -> None:
        keys, timestamps = map(list, zip(*records, strict=True))
        times = [timestamp + 3 for timestamp in timestamps]
        forms = (Spans.gathered(keys), Int64s(timestamps), Int64s(times))
        for given_times, form_times in ((None, None), (times, forms[2])):
            plain = group(window, keys, timestamps, given_times, before)
            formed = group(window, forms[0] or [], forms[1], form_times, before)
            assert plain is not None
            assert formed is not None
            names = ("starts", "stamps", "late", "missed", "newest", "is_ascending")
            assert [getattr(plain, n) for n in names] == [getattr(formed, n) for n in names]

    def test_leaves_spans_with_nulls_to_the_twin(self) -> None:
        spans = Spans(b"ab", Int64s([0, -1]), Int64s([1, -1]))
        assert group(None, spans, Int64s([1, 2])) is None

    @pytest.mark.parametrize("timestamp", [-1, 1 << 62, 1 << 70, "3", None, True])
    def test_leaves_other_timestamps_to_the_twin(self, timestamp: Any) -> None:
        assert group(None, [b"a", b"a"], [1, timestamp]) is None

    def test_leaves_other_keys_to_the_twin(self) -> None:
        assert group(None, [b"a", "a"], [1, 2]) is None

    def test_refuses_columns_of_different_lengths(self) -> None:
        with pytest.raises(ValueError, match="lengths"):
            group(None, [b"a"], [1, 2])


class Arrays(Form):
    """A column that is an Arrow array."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def arrow(self) -> pa.Array:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Any:
        return self.array[place].as_py()

    def where(self, mask: Any) -> Any:
        return Arrays(self.array.filter(pa.array(list(map(bool, mask)))))

    def take(self, indexes: Any) -> Any:
        return Arrays(self.array.take(pa.array(indexes)))

    def followed_by(self, others: Any) -> Any:
        return Arrays(pa.concat_arrays([self.array, *(other.array for other in others)]))


@native
class TestArguments:
    """Whole batches that native code folds or leaves alone, by the partials before them."""

    def folded(self, aggregate: Any, arguments: list[Any], before: Any = None) -> Any:
        kinds = kinds_of([aggregate])
        assert kinds is not None
        partials: dict[bytes, Any] = {} if before is None else {b"k": before}
        groups = group(None, [b"k"] * len(arguments), [1] * len(arguments))
        assert groups is not None
        if not groups.fold(kinds, [arguments], [(partials,)], False):
            return "refused"
        groups.write(0, (partials,), {})
        return partials.get(b"k")

    @pytest.mark.parametrize("aggregate", [sum_("x"), mean("x"), min_("x"), max_("x")])
    @pytest.mark.parametrize("bad", ["text", 1 << 64, b"", [], object()])
    def test_refuses_what_is_no_number_of_64_bits(self, aggregate: Any, bad: Any) -> None:
        assert self.folded(aggregate, [1, bad]) == "refused"
        before = (bad, 3) if aggregate.word == "mean" else bad
        assert self.folded(aggregate, [1], before) == "refused"

    def test_refuses_sums_beyond_64_bits(self) -> None:
        assert self.folded(sum_("x"), [2**63 - 1]) == 2**63 - 1
        assert self.folded(sum_("x"), [1], 2**63 - 1) == "refused"
        assert self.folded(sum_("x"), [-1], -(2**63)) == "refused"

    def test_refuses_to_compare_what_no_float_holds(self) -> None:
        assert self.folded(max_("x"), [LARGE, LARGE - 1]) == LARGE
        assert self.folded(max_("x"), [LARGE, 1.0]) == "refused"
        assert self.folded(max_("x"), [1, 1.0]) == 1
        assert type(self.folded(max_("x"), [1, 1.0])) is int

    def test_reads_arrays_of_numbers(self) -> None:
        numbers, reals = array("q", [5, 7, 9]), array("d", [0.5, 0.25, 4.0])
        there = bytes([0b101])
        assert self.folded_array(sum_("x"), (False, numbers, None)) == 21
        assert self.folded_array(sum_("x"), (False, numbers, there)) == 14
        assert self.folded_array(mean("x"), (True, reals, None)) == (4.75, 3)
        assert self.folded_array(min_("x"), (True, reals, there)) == 0.5
        assert self.folded_array(last("x"), (False, numbers, there)) == 9
        assert self.folded_array(count("x"), (False, numbers, there)) == 2

    def folded_array(self, aggregate: Any, column: tuple[bool, Any, Any]) -> Any:
        kinds = kinds_of([aggregate])
        partials: dict[bytes, Any] = {}
        groups = group(None, [b"k"] * 3, [1, 2, 3])
        assert groups is not None
        assert kinds is not None
        assert groups.fold(kinds, [column], [(partials,)], False)
        groups.write(0, (partials,), {})
        return partials[b"k"]

    @given(
        st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=30),
        st.sampled_from(["int8", "int32", "int64", "float", "double"]),
        st.integers(0, 12),
    )
    def test_arrow_arrays_are_as_lists(
        self, numbers: list[int | None], kind: str, offset: int
    ) -> None:
        given_array = pa.array([None] * offset + numbers, kind).slice(offset)
        chosen = [AGGREGATES[name] for name in sorted(AGGREGATES)]
        rows = []
        for column in (argument(Arrays(given_array)), given_array.to_pylist()):
            partials: tuple[dict[bytes, Any], ...] = tuple({} for _ in chosen)
            groups = group(None, [b"k"] * len(numbers), [1] * len(numbers))
            kinds = kinds_of(chosen)
            assert groups is not None
            assert kinds is not None
            assert groups.fold(kinds, [column] * len(chosen), [partials], False)
            groups.write(0, partials, {})
            rows.append(repr(partials))
        assert rows[0] == rows[1]

    def test_arrays_of_others_are_read_as_objects(self) -> None:
        assert argument(Arrays(pa.array(["a", None]))) == ["a", None]
        assert argument(Arrays(pa.array([True, None]))) == [True, None]

    def test_refuses_arrays_that_are_too_short(self) -> None:
        groups = group(None, [b"k"] * 3, [1, 2, 3])
        assert groups is not None
        with pytest.raises(ValueError, match="16 bytes"):
            groups.fold(b"\x02", [(False, bytes(16), None)], [({},)], False)

    @pytest.mark.parametrize("aggregate", [sum_("x"), mean("x")])
    def test_bools_are_added_as_ints(self, aggregate: Any) -> None:
        assert self.folded(aggregate, [True, True, False]) in (2, (2, 3))
        assert self.folded(aggregate, ["text"]) == "refused"

    @pytest.mark.parametrize(
        "ordered", [["a", "b", "\U0001f600"], [b"", b"a", b"\xff"], [False, True]]
    )
    def test_the_least_and_the_greatest_of_one_kind(self, ordered: list[Any]) -> None:
        assert self.folded(min_("x"), ordered[::-1]) is ordered[0]
        assert self.folded(max_("x"), [None, *ordered]) is ordered[-1]
        assert self.folded(max_("x"), ordered[:1], before=ordered[-1]) is ordered[-1]
        for other in (1, 1.5, None.__class__, bytearray(b"a")):
            assert self.folded(min_("x"), [ordered[0], other]) == "refused"

    def test_of_equal_texts_the_first_stays(self) -> None:
        one, other = "".join(["long", "text"]), "".join(["long", "text"])
        assert self.folded(min_("x"), [one, other]) is one
        assert self.folded(max_("x"), [other], before=one) is one

    def test_arguments_of_odd_types_are_not_even_grouped(self) -> None:
        kinds = kinds_of([count(), max_("x"), last("x")])
        assert may_fold(kinds, [None, [1, "b"], ["a", "b"]])
        assert may_fold(kinds, [None, [None, 1], ["a", "b"]])
        assert may_fold(kinds, [None, ["a", "b"], ["a", "b"]])
        assert not may_fold(kinds, [None, [["a"], "b"], ["a", "b"]])
        assert not may_fold(kinds_of([sum_("x")]), [["a", "b"]])
        assert not may_fold(None, [])

    def test_takes_only_aggregates_that_it_knows(self) -> None:
        assert kinds_of([count(), sum_("x")]) == bytes([0, 2])
        assert kinds_of([count(), collect("x")]) is None


@pytest.mark.slow
def test_without_the_native_module_everything_imports_and_segments_are_the_way() -> None:
    script = (
        "import sys\n"
        "sys.modules['kafkalite.streams.local.operators._folding'] = None\n"
        "import kafkalite.streams\n"
        "from kafkalite.streams.local.operators import folding\n"
        "print(folding.NATIVE, folding.kinds_of(()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False None\n", done.stderr
