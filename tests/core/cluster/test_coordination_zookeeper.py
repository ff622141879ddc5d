"""A real ZooKeeper that is stopped, killed, restarted, or loses a server; and its address."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinations import SECONDS_MAX, Heard, opened, until

from kafkalite.core.cluster.coordination import Create, Entry, Session, Set
from kafkalite.core.cluster.local import JOURNAL
from kafkalite.core.cluster.zookeeper import ZooKeeperCoordination
from kafkalite.core.cluster.zookeeper_address import parse_address
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.embedded_zookeeper import Ensemble, ZooKeeper, free_ports
from kafkalite.errors import (
    ConfigError,
    CoordinationUnavailable,
    OutcomeUnknown,
)
from kafkalite.node import start_node
from kafkalite.ports import with_zookeeper

SESSION_TIMEOUT_MS = 1_000
START = [sys.executable, "-m", "kafkalite.cli", "server", "start", "--listen", "127.0.0.1:0"]
slow = pytest.mark.slow
here = pytest.mark.xdist_group("zookeeper")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server that tests stop and kill."""
    with ZooKeeper(tmp_path_factory.mktemp("server"), tick_ms=100) as running:
        yield running


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("a:1", ([("a", 1)], "")),
        ("a:1,b,c:3/", ([("a", 1), ("b", 2181), ("c", 3)], "")),
        ("a:1, b:2/kafka/one/", ([("a", 1), ("b", 2)], "/kafka/one")),
        ("[::1]:1,[fe80::2]", ([("::1", 1), ("fe80::2", 2181)], "")),
    ],
)
def test_an_address_has_servers_and_a_chroot(address: str, parsed: object) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize(
    "address",
    ["", "a:b", "a:0", "a:70000", ":1", "a:1,,b:2", "::1:2", "a:1//b", "a:1/../b", "[]:1"],
)
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    with pytest.raises(ConfigError, match="zookeeper.connect=") as caught:
        parse_address(address)
    assert caught.value.setting == "zookeeper.connect"


def test_without_kazoo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kafkalite.core.cluster.zookeeper")
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(ConfigError, match=r"needs kazoo: pip install 'kafkalite\[cluster\]'"):
        with_zookeeper("a:1", 6_000)


def test_without_a_server_requests_fail_in_time() -> None:
    async def story() -> None:
        (port,) = free_ports(1)
        client = opened(f"127.0.0.1:{port}/kafka", 300)
        heard = Heard(client)
        begin = time.monotonic()
        words = f"127.0.0.1:{port}/kafka: no connection for 0.3 s"
        for request in (client.get("/a"), client.transact([Create("/a", b"")])):
            with pytest.raises(CoordinationUnavailable, match=words):
                await request
        waiting = asyncio.create_task(client.get("/a"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(CoordinationUnavailable, match="closed"):
            await waiting
        assert time.monotonic() - begin < 5
        assert heard == []

    asyncio.run(story())


@slow
@here
@pytest.mark.parametrize("pause_seconds", [0.5, 2.5])
def test_a_server_that_pauses_answers_later_or_ends_the_session(
    server: ZooKeeper, pause_seconds: float
) -> None:
    async def story() -> None:
        client = opened(f"{server.address}/pause-{pause_seconds}", SESSION_TIMEOUT_MS)
        heard = Heard(client)
        await client.transact([Create("/a", b"0"), Create("/e", b"", is_ephemeral=True)])
        changed: list[str] = []
        client.watch("/a", changed.append)
        server.pause()
        begin = time.monotonic()
        outcomes = await asyncio.gather(
            client.transact([Set("/a", b"1", 0)]), client.get("/a"), return_exceptions=True
        )
        assert time.monotonic() - begin < 10 * SESSION_TIMEOUT_MS / 1000
        assert isinstance(outcomes[0], OutcomeUnknown)
        assert isinstance(outcomes[1], CoordinationUnavailable)
        assert heard[-1] is Session.SUSPENDED
        with pytest.raises(CoordinationUnavailable):
            await client.transact([Set("/a", b"2")])
        await asyncio.sleep(max(0, pause_seconds - (time.monotonic() - begin)))
        server.go_on()
        await until(lambda: heard[-1] is Session.CONNECTED)
        entry = await client.get("/a")
        assert entry in (Entry(b"0", 0), Entry(b"1", 1)), "it happened, or never will"
        await asyncio.sleep(0.3)
        assert await client.get("/a") == entry
        assert changed, "there may have been a change"
        is_new = Session.EXPIRED in heard
        assert (await client.get_many(["/e"]) == [None]) == is_new
        await client.transact([Set("/a", b"2", entry.version)])
        await client.close()

    asyncio.run(story())


@slow
@here
def test_a_session_outlives_the_restart_of_the_server(server: ZooKeeper) -> None:
    async def story() -> None:
        client = opened(f"{server.address}/restart", 10_000)
        heard = Heard(client)
        await client.transact([Create("/a", b"0"), Create("/e", b"", is_ephemeral=True)])
        changed: list[str] = []
        client.watch("/a", changed.append)
        writes = 0
        for _ in range(2):
            changed.clear()
            killing = asyncio.create_task(asyncio.to_thread(server.kill))
            while not killing.done() or client.session is Session.CONNECTED:
                try:
                    async with asyncio.timeout(1):  # a connection that is gone is waited for
                        await client.transact([Set("/a", b"%d" % writes)])
                    writes += 1
                except (OutcomeUnknown, TimeoutError):
                    break
            await killing
            reading = asyncio.create_task(client.get("/a"))
            await asyncio.to_thread(server.start)
            assert (await reading).version in (writes, writes + 1)
            writes = (await reading).version
            await until(lambda: changed)
            changed.clear()
            await client.transact([Set("/a", b"x")])
            writes += 1
            await until(lambda: changed)
        assert (await client.get("/e")).is_ephemeral, "the session is the same"
        assert Session.EXPIRED not in heard
        await client.close()

    asyncio.run(story())


@here
def test_a_server_that_accepts_and_does_not_answer_is_left_for_one_that_does(
    zookeeper_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a ZooKeeper that is asked while it starts. One that is slow gets more time."""
    (server,), chroot = parse_address(zookeeper_address)
    first_waits = 0.1
    monkeypatch.setattr("kafkalite.core.cluster.zookeeper.CONNECT_SECONDS_MAX", first_waits)
    accepted = 0

    async def relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(65_536):
            target.write(piece)
        target.close()

    async def accept(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        if accepted == 1:
            await source.read()
            return target.close()
        their_source, their_target = await asyncio.open_connection(*server)
        await asyncio.sleep(3 * first_waits)
        await asyncio.gather(relay(source, their_target), relay(their_source, target))
        return None

    async def story() -> None:
        async with await asyncio.start_server(accept, "127.0.0.1", 0) as between:
            port = between.sockets[0].getsockname()[1]
            client = opened(f"127.0.0.1:{port}{chroot}", 60_000)
            begin = time.monotonic()
            await client.transact([Create("/a", b"0")])
            assert time.monotonic() - begin < 15  # a quarter of a session
            assert accepted > 2
            await client.close()

    asyncio.run(story())


@slow
@here
def test_closing_is_bounded_while_the_server_is_paused(server: ZooKeeper) -> None:
    async def story() -> None:
        client = opened(f"{server.address}/closing", 30_000)
        await client.transact([Create("/a", b"")])
        server.pause()
        try:
            lost = asyncio.create_task(client.transact([Set("/a", b"1")]))
            read = asyncio.create_task(client.get("/a"))
            await asyncio.sleep(0.05)
            begin = time.monotonic()
            await client.close()
            assert time.monotonic() - begin < 15  # half a session
            outcomes = await asyncio.gather(lost, read, return_exceptions=True)
            assert [type(each) for each in outcomes] == [OutcomeUnknown, CoordinationUnavailable]
        finally:
            server.go_on()
        assert not [each for each in threading.enumerate() if "zk_loop" in each.name]

    asyncio.run(story())


@slow
@here
def test_closing_loses_no_answer(server: ZooKeeper) -> None:
    async def story() -> None:
        for number in range(20):
            client = opened(f"{server.address}/closing-{number}", SESSION_TIMEOUT_MS)
            await client.transact([Create("/a", b"")])
            reads = [asyncio.create_task(client.get("/a")) for _ in range(number * 20)]
            await asyncio.sleep(0)
            await client.close()
            async with asyncio.timeout(SECONDS_MAX):
                outcomes = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(o, Entry | CoordinationUnavailable) for o in outcomes)

    asyncio.run(story())


@slow
@here
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_thread_fails_starts_again(server: ZooKeeper) -> None:
    async def story() -> None:
        client = opened(f"{server.address}/thread", SESSION_TIMEOUT_MS)
        await client.transact([Create("/a", b"1")])
        heard = Heard(client)
        select, client._handler.select = client._handler.select, lambda *_: 1 // 0
        await until(lambda: Session.EXPIRED in heard)
        client._handler.select = select
        await until(lambda: heard[-1] is Session.CONNECTED)
        assert await client.get("/a") == Entry(b"1")
        await client.close()

    asyncio.run(story())


@slow
@here
def test_a_loop_that_ends_without_closing_leaves_no_noise(
    server: ZooKeeper, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story() -> ZooKeeperCoordination:
        client = opened(f"{server.address}/loop", SESSION_TIMEOUT_MS)
        await client.transact([Create("/a", b"1")])
        client.watch("/a", lambda _: None)
        return client

    client = asyncio.run(story())
    client._client.stop()
    assert "Traceback" not in capfd.readouterr().err


@slow
@here
def test_an_ensemble_loses_a_server_and_no_write(tmp_path: Path) -> None:
    async def story(ensemble: Ensemble) -> None:
        client = opened(f"{ensemble.address}/kafka", 6_000)
        other = opened(f"{ensemble.address}/kafka", 6_000)
        heard = Heard(client)
        await client.transact([Create("/a", b""), Create("/e", b"", is_ephemeral=True)])
        acknowledged, unknown, written = 0, 0, 0
        leader = await asyncio.to_thread(ensemble.leader)
        killing = None
        for number in range(200):
            if number == 50:
                killing = asyncio.create_task(asyncio.to_thread(leader.kill))
            try:
                await client.transact([Set("/a", b"%d" % number, written)])
                acknowledged, written = acknowledged + 1, written + 1
            except OutcomeUnknown:
                unknown += 1
                async with asyncio.timeout(20):
                    found = None
                    while found is None:
                        try:
                            found = await client.get("/a")
                        except CoordinationUnavailable:
                            continue
                assert found.version in (written, written + 1)
                written = found.version
            except CoordinationUnavailable:
                continue
            await asyncio.sleep(0.005)
        assert killing is not None
        await killing
        assert acknowledged > 100
        assert (await client.get("/a")).version == written
        assert acknowledged <= written <= acknowledged + unknown
        assert (await client.get("/e")).is_ephemeral
        assert Session.EXPIRED not in heard
        await client.close()
        await other.close()

    with Ensemble(tmp_path, 3, tick_ms=200) as ensemble:
        asyncio.run(story(ensemble))


@slow
@here
def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from kafkalite.embedded_zookeeper import ZooKeeper;"
        f"server = ZooKeeper({str(tmp_path)!r}); print(server.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@slow
@here
def test_a_server_that_cannot_start_says_why(server: ZooKeeper, tmp_path: Path) -> None:
    words = f"{server.port}: it ended with code 1: .*Address already in use"
    with pytest.raises(CoordinationUnavailable, match=words):
        ZooKeeper(tmp_path, port=server.port)


@slow
@here
def test_a_broker_keeps_its_cluster_in_zookeeper(zookeeper_address: str, tmp_path: Path) -> None:
    async def story() -> None:
        ports = with_zookeeper(zookeeper_address, SESSION_TIMEOUT_MS)
        node = await start_node(tmp_path / "one", "127.0.0.1:0", ports=ports)
        cluster_id = node.broker.image.cluster_id
        created = CreateTopicsRequest((CreatableTopic("t", 3, 1, (), ()),))
        answered = asyncio.get_running_loop().create_future()
        node.broker.control(created).when_done(answered.set_result)
        assert [topic.error_code for topic in (await answered).topics] == [0]
        await node.close()
        assert not (tmp_path / "one" / JOURNAL).exists()
        client = opened(zookeeper_address)
        assert await client.children("/brokers") == [], "closing ends the session at once"
        assert await client.children("/topics") == ["t"]
        await client.close()
        again = await start_node(tmp_path / "one", "127.0.0.1:0", ports=ports)
        assert again.broker.image.cluster_id == cluster_id
        assert len(again.broker.image.topics["t"].partitions) == 3
        await again.close()

    asyncio.run(story())


@slow
@here
def test_flags_name_zookeeper_the_broker_and_its_rack(
    zookeeper_address: str, tmp_path: Path
) -> None:
    async def registered() -> list[tuple[str, bytes]]:
        client = opened(zookeeper_address)
        try:
            names = await client.children("/brokers")
            return [(name, (await client.get(f"/brokers/{name}")).value) for name in names]
        finally:
            await client.close()

    flags = ["--zookeeper", zookeeper_address, "--broker-id", "7", "--rack", "north"]
    with subprocess.Popen(
        [*START, "--data-dir", str(tmp_path), *flags], stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        assert "kafkalite is ready at" in broker.stdout.readline()
        ((name, value),) = asyncio.run(registered())
        assert (name, b'"rack":"north"' in value) == ("7", True)
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(20) == 0
    assert asyncio.run(registered()) == []


@slow
def test_a_broker_without_its_zookeeper_ends_with_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flags = ["--zookeeper", f"127.0.0.1:{port}", "--override", "zookeeper.session.timeout.ms=300"]
    done = subprocess.run(
        [*START, "--data-dir", str(tmp_path), *flags], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}: no connection for 0.3 s" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
