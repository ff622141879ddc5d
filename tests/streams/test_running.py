"""An application beside other work: in a given loop or in a thread; signals are left alone."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.clients.sync import Consumer, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import BrokerUnavailable, ProcessingError, TopologyError
from kafkalite.streams import Streams, string

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def upper(name: str) -> Streams:
    app = Streams(name, value=string())
    app.stream(f"{name}-in").map(str.upper).to(f"{name}-out")
    return app


def send(address: str, name: str, *words: str) -> None:
    with Producer(address) as producer:
        for word in words:
            producer.send(f"{name}-in", value=word.encode())


def read(address: str, name: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(address, group_id=f"{name}-reader", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([f"{name}-out"])
        for _ in range(60):
            for columns in consumer.poll(1_000).values():
                values += columns.values
            if len(values) >= count:
                return values
    raise AssertionError(f"{values} and no more")


def test_in_a_loop_that_is_there_it_runs_to_the_end(address: str) -> None:
    send(address, "looped", "a", "b")

    async def service() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        progress = await upper("looped").run_async(address, until_caught_up=True)
        ticking.cancel()
        assert ticks > 2, "the loop is free for others"
        return progress.records

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert asyncio.run(service()) == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert sorted(filter(None, read(address, "looped", 2))) == [b"A", b"B"]


def test_beside_a_block_until_its_end(address: str) -> None:
    send(address, "block", "a")

    async def service() -> int:
        async with upper("block").running(address) as running:
            while not running.progress.records:
                await asyncio.sleep(0.05)
        return (await running.wait()).commits

    assert asyncio.run(service()) >= 1


def test_a_cancelled_run_commits_before_it_ends(address: str) -> None:
    send(address, "cancelled", "a")

    async def service() -> None:
        app = upper("cancelled")
        running = app.running(address, commit_interval="1h")
        async with running:
            waiting = asyncio.create_task(running.wait())
            while not running.progress.records:
                await asyncio.sleep(0.05)
            assert running.progress.commits == 0
            waiting.cancel()
        assert running.progress.commits == 1

    asyncio.run(service())


def test_an_error_of_the_worker_comes_from_the_end_of_the_block(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(address, "failing", "a")
    app = Streams("failing", value=string())
    app.stream("failing-in").map(int, name="number").to("failing-out")

    async def service(*, waits: bool) -> None:
        async with app.running(address) as running:
            if waits:
                with pytest.raises(ProcessingError):
                    await running.wait()
            else:
                while "has ended" not in caplog.text:
                    await asyncio.sleep(0.05)

    with caplog.at_level(logging.ERROR), pytest.raises(ProcessingError, match="'number'"):
        asyncio.run(service(waits=False))
    asyncio.run(service(waits=True))  # told once


def test_in_a_thread_from_start_to_stop(address: str) -> None:
    app = upper("threaded")
    send(address, "threaded", "a")
    before = threading.active_count()
    progress = app.start(address)
    with pytest.raises(TopologyError, match="threaded: it is started already"):
        app.start(address)
    assert read(address, "threaded", 1) == [b"A"]
    assert app.stop() is progress
    assert progress.records == 1
    assert "kafkalite-threaded" not in {thread.name for thread in threading.enumerate()}
    assert threading.active_count() <= before + 1  # that of the blocking clients
    with pytest.raises(TopologyError, match="threaded: it is not started"):
        app.stop()
    app.start(address)
    app.stop()


def test_run_works_in_a_thread_and_says_what_to_use_in_a_loop(address: str) -> None:
    send(address, "elsewhere", "a")
    done: list[int] = []
    run = lambda: done.append(upper("elsewhere").run(address, until_caught_up=True).records)  # noqa: E731
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert done == [1]

    async def notebook() -> None:
        upper("elsewhere").run(address)

    with pytest.raises(TopologyError, match="an event loop runs here.*run_async"):
        asyncio.run(notebook())


def test_what_cannot_start_says_so_at_once(tmp_path: Path) -> None:
    app = upper("nowhere")
    with pytest.raises(BrokerUnavailable):
        app.start("127.0.0.1:1")
        app.stop()
    with pytest.raises(TopologyError, match="workers: expected 1 or more"):
        app.start(workers=0, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_broker_of_its_own_ends_with_the_block(tmp_path: Path) -> None:
    async def service() -> None:
        app = upper("own")
        with pytest.raises(TopologyError, match="does not wait"):
            await app.run_async(data_dir=tmp_path / "data", until_caught_up=True)

    asyncio.run(service())
    assert (tmp_path / "data").exists()
