"""Dead letters: counted, shown, and replayed once each; a guard against records that never pass."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.clients import Admin, Producer
from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams
from kafkalite.streams.dead_letters import REPLAYS, REPLAYS_MAX, Progress, letters, replay, topic_of
from kafkalite.streams.local.worker import Worker

FILE = """
from kafkalite.streams import Streams, string

app = Streams("dl", key=string(), value=string(), on_error="dlq", dead_letter_topic="dl-dead")
app.stream("dl-in").map(lambda v: str(10 // int(v))).to("dl-out")
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker.bootstrap_servers


def application(text: str = FILE) -> Streams:
    names: dict[str, Streams] = {}
    exec(text, names)
    return names["app"]


async def run(address: str, text: str = FILE) -> None:
    worker = Worker(application(text).plan(), address, MemoryRegistry())
    await asyncio.wait_for(worker.run(until_caught_up=True), 60)


async def send(address: str, *values: str) -> None:
    async with Admin(address) as admin:
        wanted = [NewTopic(f"dl-{end}", 2) for end in ("in", "out", "dead")]
        await admin.create_topics(wanted)
    headers = [(("trace", b"t"),)] * len(values)
    encoded = [value.encode() for value in values]
    times = [1_700_000_000_000 + at for at in range(len(values))]
    async with Producer(address) as producer:
        columns = Columns([b"k"] * len(values), encoded, times, None, headers)
        await producer.send_columns("dl-in", columns, partition=1)


async def read(address: str, topic: str, partition: int = 1) -> list[tuple[bytes, int, Any]]:
    tp = TopicPartition(topic, partition)
    found: list[tuple[bytes, int, Any]] = []
    async with Consumer(address, isolation_level="read_committed") as consumer:
        ends = await consumer.end_offsets([tp])
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        while (consumer.position(tp) or 0) < ends[tp]:
            for columns in (await consumer.poll(timeout_ms=200)).values():
                headers = columns.headers or [()] * len(columns)
                values = [bytes(value or b"") for value in columns.values]
                found += zip(values, columns.timestamps, headers, strict=True)
    return found


@pytest.mark.slow
class TestReplay:
    def test_each_letter_is_replayed_once_as_it_was(self, address: str) -> None:
        async def scenario() -> None:
            await send(address, "1", "0", "x", "0")
            await run(address)
            async with Client(address) as client:
                plan = application().plan()
                found = [letter async for letter in letters(client, "dl-dead")]
                assert [(each.offset, each.error) for each in found] == [
                    (1, "ZeroDivisionError"), (2, "ValueError"), (3, "ZeroDivisionError"),
                ]  # fmt: skip
                assert {(each.topic, each.partition) for each in found} == {("dl-in", 1)}
                would = await replay(client, plan)
                assert dict(would.sent) == {"dl-in": 3}
                assert len(await read(address, "dl-in")) == 4, "a dry run sends nothing"
                done = await replay(client, plan, error="ZeroDivisionError", execute=True)
                assert dict(done.sent) == {"dl-in": 2}
                rest = await replay(client, plan, execute=True)
                assert (dict(rest.sent), rest.done_before) == ({"dl-in": 1}, 2)
                last = await replay(client, plan, execute=True)
                assert (dict(last.sent), last.done_before) == ({}, 3)
            again = (await read(address, "dl-in"))[4:]
            assert again == [
                (value, 1_700_000_000_000 + at, (("trace", b"t"), (REPLAYS, b"1")))
                for value, at in ((b"0", 1), (b"0", 3), (b"x", 2))
            ]
            await run(address, FILE.replace("10 // int(v)", "v"))
            outs = [len(await read(address, "dl-out", partition)) for partition in (0, 1)]
            assert sum(outs) == 4

        asyncio.run(scenario())

    def test_a_record_that_fails_again_and_again_is_left_alone(self, address: str) -> None:
        async def scenario() -> None:
            await send(address, "0")
            plan = application().plan()
            async with Client(address) as client:
                for _ in range(REPLAYS_MAX):
                    await run(address)
                    done = await replay(client, plan, execute=True)
                    assert dict(done.sent) == {"dl-in": 1}
                await run(address)
                tired = await replay(client, plan, execute=True)
                assert (dict(tired.sent), tired.failed_again) == ({}, 1)
                forced = await replay(client, plan, execute=True, force=True)
                assert dict(forced.sent) == {"dl-in": 1}

        asyncio.run(scenario())

    def test_letters_without_their_record_stay(self, address: str) -> None:
        async def scenario() -> None:
            await send(address)
            async with Producer(address) as producer:
                strange = (("__streams.errors.offset", b"?"),)
                columns = Columns([b"k", None], [b"v", None], [1, 2], None, [strange, ()])
                await producer.send_columns("dl-dead", columns, partition=0)
            async with Client(address) as client:
                found = [letter async for letter in letters(client, "dl-dead")]
                assert [(each.offset, each.topic) for each in found] == [(-1, ""), (-1, "")]
                done = await replay(client, application().plan(), execute=True)
            assert (dict(done.sent), done.cut) == ({}, 2)

        asyncio.run(scenario())

    def test_the_commands(self, address: str, tmp_path: Path) -> None:
        def dlq(*words: str) -> subprocess.CompletedProcess[str]:
            (tmp_path / "app.py").write_text(FILE)
            command = [sys.executable, "-m", "kafkalite.cli.streams", "dlq", *words, "-b", address]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)

        async def prepare() -> None:
            await send(address, "0", "x")
            await run(address)

        asyncio.run(prepare())
        app = str(tmp_path / "app.py")
        rows = json.loads(dlq("list", app, "--json").stdout)
        assert sorted((row["topic"], row["error"], row["letters"]) for row in rows) == [
            ("dl-in", "ValueError", 1), ("dl-in", "ZeroDivisionError", 1),
        ]  # fmt: skip
        assert "ZeroDivisionError" in dlq("list", app).stdout
        where = next(row["last"] for row in rows if row["error"] == "ValueError")
        shown = json.loads(dlq("show", app, where, "--json").stdout)
        assert (shown["key"], shown["value"], shown["offset"]) == ("'k'", "'x'", 1)
        assert "invalid literal" in shown["stacktrace"]
        assert "there is no letter at 0:999" in dlq("show", app, "0:999").stderr
        assert "expected PARTITION:OFFSET" in dlq("show", app, "here").stderr
        dry = dlq("replay", app)
        assert "2 letters would be replayed" in dry.stdout
        assert "Nothing has been sent. --execute does it." in dry.stdout
        assert "2 letters replayed" in dlq("replay", app, "--execute").stdout
        assert json.loads(dlq("replay", app, "--json").stdout)["replayed_before"] == 2


def test_an_application_without_dead_letters_says_so() -> None:
    with pytest.raises(TopologyError, match="has no dead letters"):
        topic_of(Streams("app").plan())


@given(st.lists(st.integers(0, 40), unique=True))
def test_progress_survives_its_note(done: list[int]) -> None:
    progress = Progress()
    for offset in done:
        progress.add(offset, offset)
    again = Progress.load(progress.dump())
    assert again == progress
    assert [again.has(offset) for offset in range(42)] == [offset in done for offset in range(42)]
    assert not again.has(again.offset)


def test_offsets_without_letters_leave_no_gaps_behind() -> None:
    """Markers of transactions stand between letters."""
    progress = Progress()
    for offset in range(10, 2_000, 2):
        progress.add(0 if offset == 10 else offset - 1, offset)
    assert progress.dump().metadata == ""
    assert progress.offset == 1_999


def test_too_many_gaps_are_refused() -> None:
    progress = Progress()
    for offset in range(1, 3_000, 2):
        progress.add(offset, offset)
    with pytest.raises(TopologyError, match="without a filter"):
        progress.dump()
