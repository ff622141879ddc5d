"""`kafkalite-streams reset`: what it would do, that it does it, and when it does not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.clients import Admin, Producer
from kafkalite.clients.cluster import Client
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams
from kafkalite.streams.local.topology_log import TopologyLog
from kafkalite.streams.local.worker import Worker
from kafkalite.streams.reset import survey

pytestmark = pytest.mark.slow

FILE = """
from kafkalite.streams import Streams, string

app = Streams("again", key=string(), value=string())
words = app.stream("again-in", name="words")
words.group_by(str.upper, name="by-word").count(name="n").to_stream().to("again-out")
"""
INTERNAL = ["again-by-word-repartition", "again-n-changelog", "again-topology"]
IN = TopicPartition("again-in", 0)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker.bootstrap_servers


def application() -> Streams:
    names: dict[str, Streams] = {}
    exec(FILE, names)
    return names["app"]


async def send(address: str) -> None:
    async with Producer(address) as producer:
        await producer.send_columns("again-in", Columns([b"k"] * 3, [b"w"] * 3, [0] * 3))


async def run(address: str) -> int:
    worker = Worker(application().plan(), address, MemoryRegistry())
    return (await asyncio.wait_for(worker.run(until_caught_up=True), 60)).records


async def topics(address: str) -> list[str]:
    async with Admin(address) as admin:
        return [name for name in await admin.list_topics() if name.startswith("again-")]


def command(
    tmp_path: Path, address: str, *flags: str, text: str = FILE
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "app.py").write_text(text)
    words = ["-m", "kafkalite.cli.streams", "reset", str(tmp_path / "app.py"), "-b", address]
    return subprocess.run(
        [sys.executable, *words, *flags], capture_output=True, text=True, timeout=60
    )


def test_a_dry_run_says_what_there_is_and_execute_does_it(address: str, tmp_path: Path) -> None:
    asyncio.run(send(address))
    assert asyncio.run(run(address)) == 6
    state = tmp_path / "state" / "again" / "0_0"
    state.mkdir(parents=True)

    dry = command(tmp_path, address, "--state-dir", str(tmp_path / "state"))
    assert dry.returncode == 0, dry.stderr
    assert "again would be reset:\n" in dry.stdout
    assert "  offset  again-in-0: 3 -> none\n" in dry.stdout
    assert [line.split()[1] for line in dry.stdout.splitlines() if " topic " in line] == [
        f"{topic}:" for topic in INTERNAL
    ]
    assert dry.stdout.endswith("Nothing has been changed. --execute does it.\n")
    assert state.exists()
    assert asyncio.run(run(address)) == 0
    own = FILE.replace('"again", ', f'"again", state_dir={str(tmp_path / "state")!r}, ')
    assert f"  state   {state.parent}: deleted\n" in command(tmp_path, address, text=own).stdout

    done = command(tmp_path, address, "--state-dir", str(tmp_path / "state"), "--execute", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["executed"] is True
    assert document["topics"] == INTERNAL
    assert asyncio.run(topics(address)) == ["again-in", "again-out"]
    assert not state.parent.exists()
    assert state.parent.parent.exists()
    assert "there is nothing to reset" in command(tmp_path, address).stdout
    assert asyncio.run(run(address)) == 6


def test_inputs_begin_where_to_says(address: str) -> None:
    async def begins(to: str) -> int:
        async with Client(address) as client:
            found = await survey(client, application().plan(), to=to)  # type: ignore[arg-type]
            await found.execute(client)
        return await run(address)

    asyncio.run(send(address))
    asyncio.run(run(address))
    assert asyncio.run(begins("latest")) == 0
    assert asyncio.run(begins("earliest")) == 6


def test_an_interrupted_reset_lets_nobody_start_and_is_finished_by_another(address: str) -> None:
    async def scenario() -> None:
        await send(address)
        await run(address)
        plan = application().plan()
        async with Client(address) as client:
            async with Admin(client) as admin:
                await TopologyLog(client, admin, plan, ()).mark_reset()
                await admin.delete_topics(["again-n-changelog"])
            with pytest.raises(TopologyError, match="a reset was begun and not finished"):
                await run(address)
            await (await survey(client, plan)).execute(client)
        assert await run(address) == 6

    asyncio.run(scenario())


def test_no_reset_while_a_worker_runs(address: str) -> None:
    async def scenario() -> None:
        await send(address)
        worker = Worker(application().plan(), address, MemoryRegistry())
        running = asyncio.create_task(worker.run())
        while worker.progress.records < 6:
            await asyncio.sleep(0.05)
        try:
            async with Client(address) as client:
                with pytest.raises(TopologyError, match="again: 1 workers run .*stop them before"):
                    await survey(client, application().plan())
        finally:
            worker.stop()
            await running
        assert INTERNAL[0] in await topics(address)

    asyncio.run(scenario())
