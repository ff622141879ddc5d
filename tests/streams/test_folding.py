"""Many small windows folded record by record give what segments give, however they are cut."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError
from kafkalite.serde import SerdeContext, json
from kafkalite.streams import bytes_, collect, count, max_, mean, min_, sum_, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.operators import folding, windowed
from kafkalite.streams.local.task import Task, TaskCommit

AGGREGATES: dict[str, Any] = {
    "n": count(),
    "of_x": count("x"),
    "total": sum_("x"),
    "average": mean("x"),
    "least": min_("x"),
    "most": max_("x"),
}
ALWAYS, NEVER = 1 << 40, 0
records = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.none() | st.integers(-3, 3) | st.floats(-2, 2),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=20,
)


def task_of(**aggregates: Any) -> Task:
    app = StreamsBuilder("app", key=bytes_(), value=json())
    table = app.stream("in").group_by_key().window(tumbling(5, grace=1_000)).aggregate(**aggregates)
    table.to_stream().to("out")
    table.final().to("final")
    (sub,) = compile_topology(app.plan())
    return Task(sub, 0)


def feed(task: Task, batches: list[list[tuple[bytes, Any, int]]]) -> list[TaskCommit]:
    commits = []
    write = json().open(SerdeContext()).serialize
    first = 0
    for batch in batches:
        keys, values, timestamps = map(list, zip(*batch, strict=True))
        data = write("in", [{"x": value} for value in values])
        offsets = range(first, first + len(keys))
        task.enqueue("in", Columns(keys, data, timestamps, offsets))
        first += len(keys)
        while task.process(1_000, 0):
            pass
        commits.append(task.commit())
    return commits


def told(commit: TaskCommit) -> tuple[Any, ...]:
    """A commit, whose changelog may have the windows in any order."""
    rows = [
        dict(zip(change.columns.keys, change.columns.values, strict=True))
        for change in commit.changelog
    ]
    return commit.outputs, rows, commit.offsets


class TestSingly:
    @given(st.lists(records, min_size=1, max_size=4), st.sets(st.sampled_from(sorted(AGGREGATES))))
    def test_gives_what_segments_give(
        self, batches: list[list[tuple[bytes, Any, int]]], names: set[str]
    ) -> None:
        chosen = {name: AGGREGATES[name] for name in sorted(names)} or {"n": count()}
        found = []
        for few in (ALWAYS, NEVER):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(windowed, "FEW_RECORDS", few)
                task = task_of(**chosen)
                found.append((feed(task, batches), task.store("in-group_by_key-aggregate").all()))
        (ours, our_rows), (theirs, their_rows) = found
        assert list(map(told, ours)) == list(map(told, theirs))
        assert list(our_rows) == list(their_rows)

    def test_names_the_record_on_which_it_fails(self) -> None:
        batch = [(b"a", 1, 0), (b"a", 2, 10), (b"b", "text", 20), (b"b", 5, 20)]
        with pytest.raises(ProcessingError, match="offset 2"):
            feed(task_of(total=sum_("x")), [batch])

    def test_takes_only_aggregates_that_it_knows(self) -> None:
        known = bytes([0, 2]) if folding.NATIVE else None
        assert folding.kinds_of([count(), sum_("x")]) == known
        assert folding.kinds_of([count(), collect("x")]) is None


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
