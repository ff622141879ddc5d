"""A broker in a process of its own: crashes, hostile peers, the parent's death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkalite.core.protocol.api_versions import ApiVersionsRequest
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.groups import FindCoordinatorRequest, JoinGroupRequest
from kafkalite.core.protocol.metadata import MetadataRequest
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import BrokerUnavailable, ErrorCode

Connect = Any
SETTINGS = {"offsets.topic.num.partitions": "2"}


def commit(offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, offset)
    return OffsetCommitRequest("g", topics=(OffsetCommitRequestTopic("t", (partition,)),))


async def committed(peer: Any) -> int:
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=None),))
    while (group := (await peer.ask(request)).groups[0]).error_code:
        assert group.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    offset: int = group.topics[0].partitions[0].committed_offset
    return offset


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kill_9_loses_nothing_that_was_acknowledged(
    tmp_path: Path, connect: Connect, seed: int
) -> None:
    random = Random(seed)
    acknowledged: list[bytes] = []
    last_commit = -1

    async def load(address: str) -> None:
        nonlocal last_commit
        peer, committing = await connect(address), await connect(address)
        await committing.ask(FindCoordinatorRequest(coordinator_keys=("g",)))
        while True:
            values = [random.randbytes(random.randrange(1, 3_000)) for _ in range(5)]
            answer = await peer.produce("t", *values)
            assert not answer.error_code
            acknowledged.extend(values)
            offset = len(acknowledged)
            assert not (await committing.ask(commit(offset))).topics[0].partitions[0].error_code
            last_commit = offset

    async def until(condition: Callable[[], bool]) -> None:
        for _ in range(1_000_000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("too few were acknowledged")

    async def crash_after(broker: EmbeddedBroker, records: int) -> None:
        loading = asyncio.create_task(load(broker.bootstrap_servers))
        target = len(acknowledged) + records
        await until(lambda: len(acknowledged) >= target)
        os.kill(broker.pid, signal.SIGKILL)
        with pytest.raises((EOFError, ConnectionError)):
            await loading

    async def check(address: str) -> None:
        peer = await connect(address)
        found: list[bytes] = []
        while more := await peer.values("t", len(found)):
            found += more
        unacknowledged = found[len(acknowledged) :]
        assert found[: len(acknowledged)] == acknowledged
        assert len(unacknowledged) in (0, 5)  # the batch that was under way, whole or not at all
        acknowledged.extend(unacknowledged)
        assert await committed(peer) >= last_commit

    overrides = {**SETTINGS, "log.segment.bytes": "200000"}
    for round_ in range(3):
        with EmbeddedBroker(tmp_path, overrides=overrides) as broker:
            if round_:
                asyncio.run(check(broker.bootstrap_servers))
            else:
                asyncio.run(created(connect, broker.bootstrap_servers))
            asyncio.run(crash_after(broker, random.randrange(20, 200)))
    with EmbeddedBroker(tmp_path, overrides=overrides) as broker:
        asyncio.run(check(broker.bootstrap_servers))


async def created(connect: Connect, address: str) -> None:
    await (await connect(address)).create("t")


@pytest.mark.slow
def test_kill_9_between_topics_leaves_each_whole_or_not_there(
    tmp_path: Path, connect: Connect
) -> None:
    names: list[str] = []

    async def create(broker: EmbeddedBroker) -> None:
        peer = await connect(broker.bootstrap_servers)
        for number in range(1_000):
            if number == 20:
                killing = asyncio.get_running_loop().call_later
                killing(0.005, os.kill, broker.pid, signal.SIGKILL)
            topic = CreatableTopic(f"t{number}", 2, 1, (), ())
            try:
                (made,) = (await peer.ask(CreateTopicsRequest((topic,)))).topics
            except (EOFError, ConnectionError):
                return
            assert not made.error_code
            names.append(made.name)
        raise AssertionError("it was never killed")

    async def check(address: str) -> None:
        peer = await connect(address)
        topics = {t.name: t for t in (await peer.ask(MetadataRequest(None), 12)).topics}
        assert set(names) <= set(topics)
        assert len(topics) <= len(names) + 1
        for name in topics:
            assert not (await peer.produce(name, b"v")).error_code

    with EmbeddedBroker(tmp_path) as broker:
        asyncio.run(create(broker))
    with EmbeddedBroker(tmp_path) as broker:
        asyncio.run(check(broker.bootstrap_servers))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_do_not_harm_the_broker(tmp_path: Path, connect: Connect, seed: int) -> None:
    """True requests with some bytes turned, cut or repeated, of every family."""
    random = Random(seed)
    partition = FetchPartition(0, partition_max_bytes=1_000)
    requests = [
        (ApiVersionsRequest("name", "1"), 3),
        (MetadataRequest(None), 12),
        (FetchRequest(topics=(FetchTopic("t", partitions=(partition,)),), max_wait_ms=5), 12),
        (JoinGroupRequest("g", 6_000, 6_000, "", None, "consumer"), 5),
        (commit(5), 8),
        (OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g"),)), 8),
        (CreateTopicsRequest((CreatableTopic("u", 1, 1, (), ()),), validate_only=True), 7),
    ]

    async def story(broker: EmbeddedBroker) -> None:
        good = await connect(broker.bootstrap_servers)
        await good.create("t")
        await good.ask(FindCoordinatorRequest(coordinator_keys=("g",)))
        for number in range(60):
            request, version = random.choice(requests)
            data = bytearray(
                b"".join(bytes(p) for p in ClientConnection("x").send(request, version)[1])
            )  # type: ignore[arg-type]
            for _ in range(random.randrange(1, 5)):
                data[random.randrange(8, len(data))] = random.choice((0, 1, 127, 128, 255))
            bad = await connect(broker.bootstrap_servers)
            bad.writer.write(data[: random.randrange(4, len(data) + 1)])
            await bad.writer.drain()
            if random.random() < 0.5:
                bad.writer.write_eof()
                await bad.reader.read(100_000)
            bad.writer.close()
            assert not (await good.produce("t", b"%d" % number)).error_code
        assert len(await good.values("t")) == 60

    with EmbeddedBroker(tmp_path, overrides=SETTINGS) as broker:
        asyncio.run(story(broker))
        log = "\n".join(broker._stderr)
    assert "Traceback" not in log


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_the_broker_dies_with_its_parent_however_that_dies(tmp_path: Path) -> None:
    parent = (
        "import sys, time\n"
        "from kafkalite.embedded import EmbeddedBroker\n"
        "print(EmbeddedBroker(sys.argv[1]).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    while is_alive(pid):
        time.sleep(0.01)
    with EmbeddedBroker(tmp_path):  # the lock is free, the shutdown was clean
        pass


@pytest.mark.slow
def test_an_embedded_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    in_use = r"code 1: .*in use by process"
    with EmbeddedBroker(tmp_path), pytest.raises(BrokerUnavailable, match=in_use):
        EmbeddedBroker(tmp_path)
    with pytest.raises(BrokerUnavailable, match=r"no\.such\.setting"):
        EmbeddedBroker(tmp_path, overrides={"no.such.setting": "1"})
