"""Stores of a running application: from a thread, from its own loop, and after one's own writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from kafkalite.clients import NewTopic, RecordMetadata
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.streams import Streams, Windowed, json, string, tumbling
from kafkalite.streams.local.queries import StoreUnavailable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def words(name: str) -> Streams:
    """Counts by key as it comes, by first letter behind a repartition topic, and by minute."""
    app = Streams(name, key=string(), value=string())
    stream = app.stream(f"{name}-in")
    stream.group_by_key().count(name="by-key")
    by_letter = stream.group_by(lambda word: word[0], name="letters")
    by_letter.count(name="by-letter")
    by_letter.window(tumbling("1m")).count(name="by-minute")
    return app


def make_topic(address: str, name: str, partitions: int = 3) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(name, partitions)])


def write(producer: Producer, topic: str, key: str, word: str, stamp: int = 0) -> RecordMetadata:
    sent = producer.send(topic, word.encode(), key=key.encode(), timestamp_ms=stamp)
    producer.flush()
    return sent.result(10)


def test_a_row_is_there_once_the_store_has_seen_the_record(address: str) -> None:
    """Each write is looked for at once: in the task that reads it, and behind a repartition."""
    make_topic(address, "own-in")
    app = words("own")
    app.start(address)
    try:
        with Producer(address) as producer:
            for number in range(1, 6):
                place = write(producer, "own-in", f"k{number % 2}", f"apple{number}", number)
                assert app.store("by-letter").get("a", after=place) == number
                assert app.store("by-key").get(f"k{number % 2}", after=place) == (number + 1) // 2
            window = Windowed("a", 0, 60_000)
            assert app.store("by-minute").get(window, after=place) == 5
            assert app.store("by-key").get("nobody", after=place) is None
    finally:
        app.stop()


def test_ranges_go_over_all_tasks_in_the_order_of_keys(address: str) -> None:
    make_topic(address, "ranges-in")
    app = words("ranges")
    app.start(address)
    try:
        with Producer(address) as producer:
            keys = [f"k{number:02}" for number in range(20)]
            places = [write(producer, "ranges-in", key, f"{key[2]}x", 70_000) for key in keys]
        store = app.store("by-key")
        for place in places:
            store.get("k00", after=place)
        assert store.all() == [(key, 1) for key in keys]
        assert store.all(limit=3) == [("k00", 1), ("k01", 1), ("k02", 1)]
        assert [key for key, _ in store.range("k05", "k07")] == ["k05", "k06", "k07"]
        assert [key for key, _ in store.prefix("k1")] == keys[10:]
        letters = app.store("by-letter")
        letters.get("0", after=places[0])
        for place in places:
            letters.get("0", after=place)
        assert letters.get("0") == 2
        minutes = app.store("by-minute")
        for place in places:
            minutes.get(Windowed("0", 60_000, 120_000), after=place)
        assert minutes.fetch("0", 0, 60_000) == [(Windowed("0", 60_000, 120_000), 2)]
        assert minutes.fetch("0", 0, 59_999) == []
        assert len(minutes.all()) == 10
    finally:
        app.stop()


def test_from_the_loop_in_which_it_runs(address: str) -> None:
    make_topic(address, "looped-in", 1)
    app = words("looped")

    async def service() -> None:
        async with app.running(address):
            with Producer(address) as producer:
                place = await asyncio.to_thread(write, producer, "looped-in", "k", "word")
            assert await app.async_store("by-letter").get("w", after=place) == 1
            assert await app.async_store("by-key").all() == [("k", 1)]
            with pytest.raises(TopologyError, match=r"wait for its own loop: await .*async_store"):
                app.store("by-key").get("k")
            assert await asyncio.to_thread(app.store("by-key").get, "k") == 1

    asyncio.run(service())


def test_stores_can_be_asked_once_it_is_ready(address: str) -> None:
    make_topic(address, "ready-in", 2)
    with Producer(address) as producer:
        write(producer, "ready-in", "k", "word")
    app = words("ready")

    async def service() -> None:
        async with app.running(address) as running:
            with pytest.raises(StoreUnavailable):
                await app.async_store("by-key").all()
            await running.ready()
            assert await app.async_store("by-key").all() in ([], [("k", 1)])

    asyncio.run(service())


def test_ready_raises_what_ended_it(address: str) -> None:
    async def service() -> None:
        async with words("unready").running(address) as running:
            await running.ready()

    with pytest.raises(TopologyError, match="topic 'unready-in'"):
        asyncio.run(service())


def test_what_is_not_here_says_so(address: str) -> None:
    make_topic(address, "lacking-in", 2)
    app = words("lacking")
    with pytest.raises(StoreUnavailable, match="lacking does not run in this process"):
        app.store("by-key").get("a")
    app.start(address)
    try:
        with pytest.raises(TopologyError, match=r"no store is called 'nope'; stores are \['by-"):
            app.store("nope").get("a")
        with pytest.raises(TopologyError, match="topic 'other' does not lead to it"):
            nowhere = SimpleNamespace(topic="other", partition=0, offset=0)
            app.store("by-key").get("a", after=nowhere)
        ahead = SimpleNamespace(topic="lacking-in", partition=1, offset=1_000)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="has not seen offset 1000 of lacking-in-1"):
            app.store("by-letter").get("a", after=ahead, timeout="300ms")
        assert time.monotonic() - began >= 0.3
        with pytest.raises(TopologyError, match="a record's place"):
            app.store("by-key").get("a", after=SimpleNamespace(topic="x", partition=0, offset=-1))
    finally:
        app.stop()
    with pytest.raises(StoreUnavailable, match="does not run"):
        app.store("by-key").get("a")


def test_a_key_of_a_task_in_another_worker_is_not_here(address: str) -> None:
    make_topic(address, "shared-in", 4)
    apps = [words("shared"), words("shared")]
    for app in apps:
        app.start(address)
    try:
        with Producer(address) as producer:
            for number in range(16):
                write(producer, "shared-in", f"k{number}", f"{'abcd'[number % 4]}x")
        answers: list[dict[str, int]] = []
        for _ in range(100):  # until both have tasks and have seen all
            answers = [{}, {}]
            for letter in "abcd":
                for app, found in zip(apps, answers, strict=True):
                    with suppress(StoreUnavailable):
                        found[letter] = app.store("by-letter").get(letter)
            total = [row for found in answers for row in found.values()]
            if all(answers) and total == [4, 4, 4, 4]:
                break
            time.sleep(0.1)
        assert all(answers)
        assert sum(map(len, answers)) == 4, "each key is in one of them"
        elsewhere = next(letter for letter in "abcd" if letter not in answers[0])
        with pytest.raises(StoreUnavailable, match=r"'by-letter': the key .* belongs to task 1_\d"):
            apps[0].store("by-letter").get(elsewhere)
    finally:
        for app in apps:
            app.stop()


def test_a_topic_that_others_partition_in_their_own_way_is_looked_through(address: str) -> None:
    make_topic(address, "theirs-in", 3)
    app = Streams("theirs", key=string(), value=json())
    app.table("theirs-in", name="rows")
    app.start(address)
    try:
        with Producer(address) as producer:
            for number in range(3):
                sent = producer.send("theirs-in", b"%d" % number, key=b"%d" % number, partition=2)
            producer.flush()
            rows = [app.store("rows").get(str(n), after=sent.result(10)) for n in range(3)]
        assert rows == [0, 1, 2]
    finally:
        app.stop()
