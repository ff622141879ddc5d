"""Every query of Nexmark answers what plain Python says of the same events."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import nexmark_reference as reference
import pytest

from bench.nexmark.generator import AUCTIONS, BIDS, PERSONS, Event, Generator, Parameters
from bench.nexmark.queries import QUERIES, SIDE, SIDE_ROWS, make
from kafkalite.streams import TopologyTestDriver, Windowed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deep,
]  # whole queries, a second each; operators have fast tests in streams

ROOT = Path(__file__).parents[2]
EVENTS = 2_000
RATE = 40  # a second, so that they last 50 s
START = Parameters().start_ms + 7_003
TARGET = "answers"
DAYS_LATER = 3 * 86_400_000  # what comes then ends all windows


@lru_cache
def events() -> list[Event]:
    made = list(Generator(Parameters(START, RATE)).events(EVENTS))
    last = {event.topic: event for event in made}
    at = START + DAYS_LATER
    return made + [
        event._replace(value={**event.value, "dateTime": at}, timestamp=at)
        for event in last.values()
    ]


def plain(key: Any) -> Any:
    return (key.key, key.start) if isinstance(key, Windowed) else key


def answers(name: str) -> list[tuple[Any, Any]]:
    """What the topology writes: keys and values."""
    with TopologyTestDriver(make(f"nexmark-{name}", name, "", TARGET)) as driver:
        if name == "q13":
            for number in range(SIDE_ROWS):
                driver.pipe(SIDE, reference.side_value(number), key=str(number), timestamp=0)
        for event in events():
            if event.topic in QUERIES[name].topics:
                driver.pipe(event.topic, event.value, key=event.key, timestamp=event.timestamp)
        return [(record.key, record.value) for record in driver.read(TARGET)]


def as_set(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted(dict(row).items())) for row in rows)


@pytest.mark.parametrize("name", ["q0", "q1", "q2", "q13", "q14", "q20", "q22"])
def test_what_a_query_makes_of_each_bid(name: str) -> None:
    expected = getattr(reference, name)(events())
    assert expected
    assert as_set([value for _, value in answers(name)]) == as_set(expected)


@pytest.mark.parametrize(
    "name", ["q3", "q4", "q5", "q7", "q8", "q9", "q15", "q16", "q17", "q18", "q19"]
)
def test_the_last_answer_of_each_key(name: str) -> None:
    expected = getattr(reference, name)(events())
    assert expected
    found = {plain(key): value for key, value in answers(name)}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert is_alike(found[key], value), key


def is_alike(found: Any, expected: Any) -> bool:
    """Whether answers are equal. Means need not be, to the last digit; of equal bids any order."""
    if isinstance(expected, float):
        return math.isclose(found, expected)
    if isinstance(expected, list) and isinstance(expected[0], dict):
        return as_set(found) == as_set(expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_alike(found[name], expected[name]) for name in expected
        )
    return bool(found == expected)


def test_sessions_are_final_when_they_are_over() -> None:
    expected = reference.q11(events())
    found = [(key.key, key.start, key.end, value) for key, value in answers("q11")]
    assert len({bidder for bidder, *_ in expected}) < len(expected)  # some come back
    assert sorted(found) == sorted(expected)


def test_windows_of_the_clock_together_have_every_bid() -> None:
    last = {(key.key, key.start): value for key, value in answers("q12")}
    found: Counter[str] = Counter()
    for (bidder, _), count in last.items():
        found[bidder] += count
    assert found == reference.q12(events())


def test_events_come_in_their_proportions_and_refer_to_older_ones() -> None:
    made = list(Generator(Parameters()).events(5_000))
    assert Counter(event.topic for event in made) == {PERSONS: 100, AUCTIONS: 300, BIDS: 4_600}
    seen: dict[str, dict[int, int]] = {PERSONS: {}, AUCTIONS: {}}
    refers = {AUCTIONS: [("seller", PERSONS)], BIDS: [("bidder", PERSONS), ("auction", AUCTIONS)]}
    for event in made:
        for field, topic in refers.get(event.topic, []):
            assert seen[topic][event.value[field]] < event.timestamp
        if event.topic in seen:
            seen[event.topic][event.value["id"]] = event.timestamp
    again = Generator(Parameters()).events(5_000)
    assert all(one == other for one, other in zip(made, again, strict=True))


def test_a_worker_runs_queries_on_a_broker() -> None:
    names = ["q0", "q3", "q13", "q20"]
    command = [sys.executable, "-m", "bench.nexmark", "--only", ",".join(names)]
    command += ["--records", "3000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["query"] for line in lines] == names
    out = {line["query"]: line["records_out"] for line in lines}
    assert out["q0"] == out["q13"] == 3_000 * 46 // 50
    made = list(Generator(Parameters()).events(3_000))
    assert out["q20"] == len(reference.q20(made))
