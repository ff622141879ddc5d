"""Sessions and sliding windows below a repartition topic with two workers, one of which goes and
comes back: the same as by definition, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from random import Random

import pytest
from test_workers_windows import PARTITIONS, prepare, read

from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, session, sliding, string
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

CONFIG = WorkerConfig(commit_interval_ms=100)
GAP, DIFFERENCE, GRACE = 40, 40, 60
KEYS = [chr(97 + i).encode() for i in range(12)]

Made = list[tuple[list[bytes], list[int]]]
Counts = Mapping[tuple[bytes, int, int], int]  # by key, start, end


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def app_of(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    groups = app.stream(f"{name}-in").group_by(lambda v: v, name="k")
    window = session(GAP, GRACE) if name.startswith("session") else sliding(DIFFERENCE, GRACE)
    table = groups.window(window).count(name="n")
    table.final().to(f"{name}-final")
    table.late().to(f"{name}-late")
    return app


def inputs(seed: int, count: int) -> Made:
    """The records of each partition: words, and times out of order within the grace. The times of
    partitions differ by far, and one has no records."""
    random = Random(seed)
    made = []
    for partition in range(PARTITIONS - 1):
        words = [random.choice(KEYS) for _ in range(count)]
        times = [3_000 * partition + i * 4 + random.randrange(50) for i in range(count)]
        made.append((words, times))
    return [*made, ([], [])]


def by_key(made: Made) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for words, times in made:
        for word, time in zip(words, times, strict=True):
            found.setdefault(word, []).append(time)
    return {word: sorted(times) for word, times in found.items()}


def sessions_of(made: Made) -> Counts:
    counts: dict[tuple[bytes, int, int], int] = {}
    for word, times in by_key(made).items():
        first = at = 0
        for at, time in enumerate(times):
            if at and time - times[at - 1] > GAP:
                counts[word, times[first], times[at - 1]] = at - first
                first = at
        counts[word, times[first], times[at]] = at + 1 - first
    return counts


def sliding_of(made: Made) -> Counts:
    counts: dict[tuple[bytes, int, int], int] = {}
    for word, times in by_key(made).items():
        starts = {max(0, time - DIFFERENCE) for time in times} | {time + 1 for time in times}
        for start in starts:
            end = start + DIFFERENCE
            if count := sum(start <= time <= end for time in times):
                counts[word, start, end] = count
    return counts


def windowed_key(key: bytes, *, is_session: bool) -> tuple[bytes, int, int]:
    last = int.from_bytes(key[-8:], "big")
    if not is_session:
        return key[:-8], last, last + DIFFERENCE
    return key[:-16], last, int.from_bytes(key[-16:-8], "big")


@pytest.mark.parametrize("how", ["session-one", "session-two", "sliding-one", "sliding-two"])
def test_windows_are_those_by_definition(address: str, how: str) -> None:
    async def scenario() -> None:
        made = inputs(seed=1, count=1_500)
        await prepare(address, how, made)

        def worker() -> Worker:
            return Worker(app_of(how).plan(), address, MemoryRegistry(), CONFIG)

        first = worker()
        runs = [asyncio.create_task(first.run(until_caught_up=True))]
        if how.endswith("two"):
            leaving = worker()
            left = asyncio.create_task(leaving.run())
            await asyncio.sleep(0.7)
            leaving.stop()
            await left
            runs.append(asyncio.create_task(worker().run(until_caught_up=True)))
        await asyncio.gather(*runs)
        await worker().run(until_caught_up=True)

        is_session = how.startswith("session")
        expected = (sessions_of if is_session else sliding_of)(made)
        rows = await read(address, f"{how}-final")
        found = {
            windowed_key(key, is_session=is_session): int.from_bytes(value, "big")
            for key, value in zip(rows.keys, rows.values, strict=True)
        }
        assert len(found) == len(rows), "a window came out twice"
        assert {window: expected.get(window) for window in found} == found
        newest = max(time for _, times in made for time in times)
        still_open = set(expected) - set(found)
        assert all(end + GAP + GRACE >= newest - 500 for _, _, end in still_open)
        assert len(found) > len(expected) * 0.8
        assert len(await read(address, f"{how}-late")) == 0

    asyncio.run(asyncio.wait_for(scenario(), 100))
