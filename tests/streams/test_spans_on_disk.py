"""Sessions and sliding windows whose rows are on disk: let go after each commit, found again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.windows import Row, Sessions, Sliding
from test_state_stores import Durably
from window_runs import AGGREGATES, EVERY, Run, as_table, cuts, inputs, split

from kafkalite.streams import msgpack, session, sliding, string
from kafkalite.streams.api import StreamsBuilder

WINDOWS = st.sampled_from([(5, 0), (5, 7), (20, 3), (3, 100)])


@pytest.fixture(scope="session")
def durable_run(batch_run: Run) -> Any:
    return type("DurableRun", (Durably, batch_run), {})


@given(st.booleans(), WINDOWS, inputs, cuts, cuts, cuts, st.booleans())
@settings(max_examples=250, deadline=None)
def test_rows_are_read_when_they_are_wanted(
    durable_run: Any,
    of_sessions: bool,
    window: tuple[int, int],
    items: list[Row],
    batches: list[int],
    commits: list[int],
    restarts: list[int],
    cached: bool,
) -> None:
    app = StreamsBuilder("app", key=string(), value=msgpack())
    groups = app.stream("in").group_by_key()
    table = groups.window((session if of_sessions else sliding)(*window)).aggregate(
        **AGGREGATES, name="rows"
    )
    table.to_stream().to("updates")
    table.final().to("final")
    run = durable_run(app, cached=cached)
    plain: Any = (Sessions if of_sessions else Sliding)(*window, EVERY)
    for life in split(items, restarts):
        for until_commit in split(life, commits):
            for batch in split(until_commit, batches):
                run.feed("in", batch)
            run.commit()
        run.restart()
    for item in items:
        plain.add(*item)
    assert run.rows("final") == plain.final
    assert as_table(run.rows("updates")) == as_table(plain.updates)
    if of_sessions:
        assert dict(run.task_store("rows").all()) == plain.table()
