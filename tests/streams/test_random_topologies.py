"""Random topologies over all operators against plain Python: with the driver record by record, in
tasks with batches cut anywhere, restarts, with and without caches, in memory and on disk.

    KAFKALITE_TOPOLOGIES=5000 pytest tests/streams/test_random_topologies.py      others, and more
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from reference.drawing import Topology, draw_log, draw_topology
from reference.machine import Row, as_table
from reference.sameness import sameness
from reference.values import batches_of
from topology_runs import LETTERS, DurableTopologyRun, TopologyRun, without_calls

from kafkalite.streams import TopologyTestDriver, json, string
from kafkalite.streams.api import StreamsBuilder

pytestmark = pytest.mark.slow

MORE = os.environ.get("KAFKALITE_TOPOLOGIES")
LENGTH = 40  # of a log
ROUNDS = 6  # of commits, until nothing goes on between tasks


class Case(NamedTuple):
    """A topology, and its log as lives of batches."""

    topology: Topology
    lives: list[list[list[tuple[str, Row]]]]


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    """What is drawn follows from a Random, which hypothesis shrinks where others are asked for.

    A Random that it can shrink draws small numbers again and again, and so finds less.
    """
    return case_of(draw(st.randoms(use_true_random=MORE is None)))


def case_of(random: Random) -> Case:
    topology = draw_topology(random)
    log = draw_log(random, topology.topics, random.randint(1, LENGTH))
    lives = []
    for life in batches_of(log, (random.randrange(LENGTH) for _ in range(random.randint(0, 3)))):
        cuts = [random.randrange(LENGTH) for _ in range(random.randint(0, 3))]
        lives.append(batches_of(life, cuts))
    return Case(topology, lives)


def examples(count: int) -> Any:
    """So many of the same kind each time, or as many others as are asked for."""
    return settings(
        max_examples=int(MORE or count),
        deadline=None,
        derandomize=MORE is None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if MORE else [Phase.generate],
    )


def by_topic(rows: list[tuple[str, Row]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for topic, row in rows:
        found.setdefault(topic, []).append(row)
    return found


@given(cases())
@examples(250)
def test_record_by_record_with_the_driver(case: Case) -> None:
    app: StreamsBuilder[str, Any] = StreamsBuilder(
        "app", key=string(), value=json(), dead_letter_topic=LETTERS
    )
    machine = case.topology.machine()
    with TopologyTestDriver(case.topology.build(app)) as driver:
        for topic, row in (each for life in case.lives for batch in life for each in batch):
            before = {name: len(output.rows) for name, output in machine.outputs.items()}
            driver.pipe(topic, row[1], key=row[0], timestamp=row[2])
            machine.pipe(topic, row)
            for name, known in before.items():
                found = [(r.key, r.value, r.timestamp) for r in driver.read(name)]
                assert found == machine.rows(name)[known:], f"{name} of\n{case.topology}"
        assert driver.metrics()["dropped-records-total"] == machine.dropped, case.topology


@pytest.mark.parametrize("kind", [TopologyRun, DurableTopologyRun])
@given(cases())
@examples(120)
def test_in_batches_with_restarts_every_update_is_the_same(
    kind: type[TopologyRun], case: Case
) -> None:
    topology = without_calls(case.topology)
    run, machine = kind(topology, cached=False), topology.machine()
    for life in case.lives:
        for batch in life:
            run.fetch(by_topic(batch))
            machine.feed(by_topic(batch))
        run.commit()
        run.restart()
        for name, output in machine.outputs.items():
            assert run.rows(name) == output.rows, f"{name} of\n{topology}"
    assert run.all_dropped() == machine.dropped, topology


@pytest.mark.parametrize("kind", [TopologyRun, DurableTopologyRun])
@given(cases())
@examples(120)
def test_with_caches_the_results_are_the_same(kind: type[TopologyRun], case: Case) -> None:
    topology = without_calls(case.topology)
    run, machine = kind(topology, cached=True), topology.machine()
    for life in case.lives:
        for batch in life:
            run.fetch(by_topic(batch))
            machine.feed(by_topic(batch))
        for _ in range(ROUNDS):
            run.commit()
        run.restart()
    for topic, alike in topology.outputs(
        [each.updates for each in sameness(topology.steps)]
    ).items():
        problem = difference(alike, run.rows(topic), machine.rows(topic))
        assert problem is None, f"{topic}: {problem} in\n{topology}"


def difference(alike: str, found: list[Row], wanted: list[Row]) -> str | None:
    """How rows are not as alike as they should be."""
    if alike == "exact":
        return None if found == wanted else f"{found} instead of {wanted}"
    if alike == "thinned" and not is_thinned(found, wanted):
        return f"{found} is not a part of {wanted}"
    tables = [as_table(rows) for rows in (found, wanted)]
    if alike == "groups":
        tables = [{k: v for k, v in table.items() if v["n"] != 0} for table in tables]
    return None if alike == "loose" or tables[0] == tables[1] else f"{tables[0]}, not {tables[1]}"


def is_thinned(found: list[Row], wanted: list[Row]) -> bool:
    """Whether the updates of each key are some of those that there were, in their order."""
    left: dict[Any, Iterator[Row]] = {}
    for row in found:
        if row[0] not in left:
            left[row[0]] = iter([each for each in wanted if each[0] == row[0]])
        if row not in left[row[0]]:
            return False
    return True
