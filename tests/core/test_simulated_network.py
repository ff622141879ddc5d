"""The simulated network: order, flow control, cuts, resets, hosts that are paused, killed, gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kafkalite.core.sockets import reset
from kafkalite.testing.event_loop import NS
from kafkalite.testing.kernel import WINDOW_BYTES
from kafkalite.testing.network import CONNECT_SECONDS_MAX
from kafkalite.testing.simulation import World

PORT = 9092
BIG = Random(0).randbytes(3_000_000)


class Wire(asyncio.Protocol):
    """Keeps all that asyncio tells it. With `echoes` it answers what it gets."""

    transport: Any

    def __init__(self, echoes: bool = False) -> None:
        self.echoes = echoes
        self.got = bytearray()
        self.told: list[str] = []
        self.error: Exception | None = None
        self.is_open = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.got += data
        if self.echoes:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.told.append("eof")
        return False

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append("lost")
        self.error, self.is_open = error, False


class Buffered(asyncio.BufferedProtocol):
    """Gets bytes into a small buffer of its own."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.buffer = bytearray(1_000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]


class Net:
    """A server and a client, and the connections that the server has accepted."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(Random(seed))
        self.server, self.client = self.world.host("server"), self.world.host("client")
        self.accepted: list[Wire] = []
        self.echoes = True

    def __enter__(self) -> Net:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.world.__exit__(None, None, None)

    def make(self) -> Wire:
        self.accepted.append(Wire(self.echoes))
        return self.accepted[-1]

    def listen(self, port: int = PORT, backlog: int = 50, starts: bool = True) -> Any:
        listener = self.world.network.listen(self.server, self.make, "", port, backlog)
        if starts:
            listener.start()
        return listener

    def connecting(self, make: Callable[[], Any] = Wire, host: str = "server") -> asyncio.Task[Any]:
        async def connect() -> Any:
            made = make()
            await self.world.network.connect(self.client, lambda: made, host, PORT)
            return made

        return self.client.spawn(connect())

    def connect(self, make: Callable[[], Any] = Wire, host: str = "server") -> Any:
        task = self.connecting(make, host)
        self.world.run(task.done, 200)
        return task.result()

    def write(self, wire: Wire, data: bytes) -> None:
        self.in_turn(wire, lambda: wire.transport.write(data))

    def in_turn(self, wire: Wire, act: Callable[[], None]) -> None:
        wire.transport._loop.call_soon(act)

    def passes(self, seconds: float) -> None:
        self.world.pass_seconds(seconds)


@pytest.mark.parametrize("seed", range(10))
def test_bytes_keep_their_order_whatever_their_delays(seed: int) -> None:
    with Net(seed) as net:
        random, sent = Random(seed), bytearray()
        wire = net.connect()
        for _ in range(50):
            data = random.randbytes(random.choice([1, 100, 40_000]))
            sent += data
            net.write(wire, data)
            net.passes(random.random() * 0.001)
        net.passes(10)
        assert net.accepted[0].got == sent
        assert wire.got == sent, "the echo"


def test_a_protocol_with_buffers_gets_the_same_bytes() -> None:
    with Net() as net:
        wire = net.connect(Buffered)
        net.accepted[0].transport._loop.call_soon(net.accepted[0].transport.write, BIG[:50_000])
        net.passes(1)
        assert wire.got == BIG[:50_000]


def test_who_does_not_read_stops_who_writes() -> None:
    with Net() as net:
        net.echoes = False
        wire = net.connect()
        far = net.accepted[0]
        net.in_turn(far, far.transport.pause_reading)
        net.passes(1)
        net.write(wire, BIG)
        net.passes(60)
        assert wire.told == ["pause"]
        assert not far.got
        assert wire.transport.get_write_buffer_size() == len(BIG) - WINDOW_BYTES
        net.in_turn(far, far.transport.resume_reading)
        net.passes(60)
        assert wire.told == ["pause", "resume"]
        assert far.got == BIG


def test_a_limit_of_nothing_tells_of_every_byte_that_is_left() -> None:
    with Net() as net:
        wire = net.connect()
        wire.transport.set_write_buffer_limits(high=0)
        net.write(wire, bytes(WINDOW_BYTES))
        net.passes(0.00002)
        assert wire.told == []
        net.write(wire, b"x")
        net.passes(1)
        assert wire.told == ["pause", "resume"]


def test_closing_sends_what_was_written() -> None:
    with Net() as net:
        wire = net.connect()

        def write_and_close() -> None:
            wire.transport.write(BIG)
            wire.transport.close()

        net.in_turn(wire, write_and_close)
        net.passes(10)
        far = net.accepted[0]
        assert wire.told[-1] == far.told[-1] == "lost"
        assert wire.error is None
        net.echoes = False
        wire = net.connect()
        net.in_turn(wire, write_and_close)
        net.passes(10)
        assert net.accepted[1].got == BIG
        assert net.accepted[1].told == ["eof", "lost"]


def test_aborting_drops_what_was_not_sent() -> None:
    with Net() as net:
        net.echoes = False
        wire = net.connect()
        net.in_turn(wire, lambda: (wire.transport.write(BIG), wire.transport.abort())[0])
        net.passes(10)
        assert net.accepted[0].got == BIG[:WINDOW_BYTES]
        assert net.accepted[0].told == ["eof", "lost"]


def test_nobody_listens() -> None:
    with Net() as net:
        net.world.host("other")
        with pytest.raises(ConnectionRefusedError):
            net.connect(host="other")
        with pytest.raises(socket.gaierror):
            net.connect(host="unknown")


def test_an_address_has_one_listener() -> None:
    with Net() as net:
        with pytest.raises(OSError, match="in use"):
            net.listen()
        with pytest.raises(OSError, match="no address"):
            net.world.network.listen(net.server, net.make, "client", 1, 50)
        free = net.listen(0)
        assert free.address[1] not in (0, PORT)


def test_loopback_is_of_the_machine_alone() -> None:
    with Net() as net:
        network = net.world.network
        network.machine("server").listeners.clear()
        network.listen(net.server, net.make, "127.0.0.1", PORT, 50).start()
        with pytest.raises(ConnectionRefusedError):
            net.connect()
        net.client = net.server
        assert net.connect(host="localhost").is_open


def test_a_paused_host_accepts_and_nothing_answers() -> None:
    with Net() as net:
        net.server.pause()
        wire = net.connect()
        net.write(wire, b"hello")
        net.passes(3_600)
        assert not net.accepted
        assert wire.is_open
        assert not wire.told
        net.server.go_on()
        net.passes(0.1)
        assert wire.got == b"hello"


def test_before_the_start_peers_wait_and_beyond_the_backlog_they_knock_again() -> None:
    with Net() as net:
        net.world.network.machine("server").listeners.clear()
        listener = net.listen(backlog=2, starts=False)
        with pytest.raises(ConnectionRefusedError):
            net.connect()
        listener.open()
        tasks = [net.connecting() for _ in range(3)]
        net.passes(0.5)
        assert [task.done() for task in tasks].count(True) == 2
        assert not net.accepted
        net.server.loop.call_soon(listener.start)
        net.passes(2)
        assert all(task.done() for task in tasks)
        assert len(net.accepted) == 3


def test_a_killed_host_says_goodbye_and_then_refuses() -> None:
    with Net() as net:
        wire = net.connect()
        net.write(wire, b"hello")
        net.passes(1)
        net.server.kill()
        net.passes(1)
        assert wire.told == ["eof", "lost"]
        with pytest.raises(ConnectionRefusedError):
            net.connect()


def test_bytes_to_a_killed_host_are_answered_with_a_reset() -> None:
    with Net() as net:
        wire = net.connect()
        net.server.pause()
        net.write(wire, b"unread")
        net.passes(1)
        net.server.kill()
        net.passes(1)
        assert isinstance(wire.error, ConnectionResetError)


def test_of_a_machine_without_power_nobody_hears_until_it_has_booted() -> None:
    with Net() as net:
        wire, idle = net.connect(), net.connect()
        net.server.crash()
        net.write(wire, b"hello")
        net.passes(600)
        assert wire.is_open
        assert not wire.told
        connecting = net.connecting()
        net.passes(CONNECT_SECONDS_MAX + 1)
        assert isinstance(connecting.exception(), TimeoutError)
        net.server = net.world.host("server")
        net.listen()
        net.passes(130)
        assert isinstance(wire.error, ConnectionResetError)
        assert idle.is_open, "it has said nothing, so nobody has answered"
        assert net.connect().is_open


def test_in_a_cut_bytes_wait_and_nobody_sees_a_reset() -> None:
    with Net() as net:
        wire = net.connect()
        net.world.network.separate("client", "server")
        net.write(wire, b"hello")
        connecting = net.connecting()
        net.passes(30)
        assert not wire.told
        assert not net.accepted[0].got
        assert not connecting.done()
        net.world.network.heal()
        net.passes(30.1)  # TCP tries again at growing intervals
        assert wire.got == b"hello"
        assert connecting.done()


def test_what_waits_in_a_cut_arrives_after_a_close_and_not_after_a_reset() -> None:
    with Net() as net:
        closed, broken = net.connect(), net.connect()
        net.world.network.cut("client", "server")
        for wire in (closed, broken):
            net.write(wire, b"hello")
        net.passes(10)
        net.in_turn(closed, closed.transport.abort)
        net.in_turn(broken, lambda: reset(broken.transport))
        net.passes(10)
        net.world.network.heal()
        net.passes(60)
        assert [wire.got for wire in net.accepted] == [b"hello", b""]
        assert [wire.is_open for wire in net.accepted] == [False, True]
        net.write(net.accepted[1], b"who is there?")
        net.passes(1)
        assert isinstance(net.accepted[1].error, ConnectionResetError)


def test_a_reset_is_told_where_nothing_is_cut() -> None:
    with Net() as net:
        wire = net.connect()
        net.in_turn(wire, lambda: reset(wire.transport))
        net.passes(1)
        assert wire.told == ["lost"]
        assert isinstance(net.accepted[0].error, ConnectionResetError)


def test_one_way_may_be_cut_alone() -> None:
    with Net() as net:
        wire = net.connect()
        net.world.network.cut("server", "client")
        net.write(wire, b"hello")
        net.passes(1)
        assert net.accepted[0].got == b"hello"
        assert not wire.got
        net.write(wire, BIG)
        net.passes(60)
        got = len(net.accepted[0].got)
        assert got <= WINDOW_BYTES + 5, "nothing is acknowledged, so the window is full"
        net.world.network.heal()
        net.passes(120)
        assert wire.got == b"hello" + BIG


def test_a_cut_that_loses_ends_connections_unseen() -> None:
    with Net() as net:
        wire = net.connect()
        net.world.network.separate("client", "server", loses=True)
        net.write(wire, b"hello")
        net.passes(10)
        net.world.network.heal()
        net.passes(3_600)
        assert wire.is_open
        assert not wire.got
        assert not wire.told
        fresh = net.connect()
        net.write(fresh, b"hello")
        net.passes(1)
        assert fresh.got == b"hello"


def test_a_reset_breaks_both_ends_of_every_connection() -> None:
    with Net() as net:
        wires = [net.connect(), net.connect()]
        net.write(wires[0], BIG)
        net.passes(0.0005)
        net.world.network.reset("client", "server")
        net.passes(1)
        for wire in (*wires, *net.accepted):
            assert isinstance(wire.error, ConnectionResetError)
            assert not wire.is_open
        assert net.connect().is_open


def test_a_slow_link_takes_its_time() -> None:
    with Net() as net:
        net.echoes = False
        net.world.network.slow("client", "server", 100_000)
        wire = net.connect()
        net.write(wire, BIG[:1_000_000])
        net.passes(9.9)
        assert 900_000 < len(net.accepted[0].got) < 1_000_000
        net.passes(0.5)
        assert len(net.accepted[0].got) == 1_000_000


def test_streams_of_asyncio_work_on_it() -> None:
    with Net() as net:

        async def talk() -> bytes:
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            await net.world.network.connect(net.client, lambda: protocol, "server", PORT)
            transport: Any = protocol._transport  # type: ignore[attr-defined]
            writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
            writer.write(BIG)
            await writer.drain()
            got = await reader.readexactly(len(BIG))
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
            return got

        assert net.world.result(net.client, talk()) == BIG


def test_connections_that_are_over_are_forgotten() -> None:
    with Net() as net:
        for _ in range(20):
            wire = net.connect()
            net.in_turn(wire, wire.transport.close)
            net.passes(1)
        network = net.world.network
        assert not network.machine("client").sockets
        assert not network.machine("server").sockets
        assert sum(map(len, network._flows.values())) <= 4


def test_the_same_seed_is_the_same_history_and_another_is_another() -> None:
    def digest(seed: int) -> str:
        with Net(seed) as net:
            wires = [net.connect() for _ in range(3)]
            for wire in wires:
                net.write(wire, BIG[:300_000])
            net.passes(5)
            assert net.world.time.now_ns > 5 * NS
            return net.world.network.trace.digest

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)
