"""Ways to run a topology in a test: a record at a time, or in batches of any split."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from batch_runs import BatchRun, Input

from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.driver import TopologyTestDriver


@pytest.fixture(scope="session")
def batch_run() -> type[BatchRun]:
    return BatchRun


@pytest.fixture(scope="session")
def pipe_all() -> Callable[..., list[tuple[Any, Any, int]]]:
    """Pipes records of topic `in` one at a time; the (key, value, timestamp) of topic `out`."""

    def run(app: StreamsBuilder, records: Iterable[Input]) -> list[tuple[Any, Any, int]]:
        driver = TopologyTestDriver(app)
        for key, value, timestamp in records:
            driver.pipe("in", value, key=key, timestamp=timestamp)
        return [(r.key, r.value, r.timestamp) for r in driver.read("out")]

    return run
