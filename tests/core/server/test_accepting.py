"""Accepting connections, also while the process is out of descriptors."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from kafkalite.core.server import accepting
from kafkalite.core.server.accepting import Acceptor

pytestmark = pytest.mark.usefixtures("each_loop")


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")
        transport.close()


async def bound() -> Acceptor:
    server = await asyncio.get_running_loop().create_server(
        Greeting, "127.0.0.1", 0, start_serving=False
    )
    return Acceptor(server, 50, Greeting)


async def listening() -> Acceptor:
    acceptor = await bound()
    acceptor.start()
    return acceptor


async def greeted(acceptor: Acceptor) -> bytes:
    reader, writer = await asyncio.open_connection(*acceptor.address)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_all_who_connect_are_taken_up_until_the_end() -> None:
    async def story() -> None:
        acceptor = await listening()
        assert await asyncio.gather(*(greeted(acceptor) for _ in range(99))) == [b"hello"] * 99
        acceptor.close()
        acceptor.close()
        with pytest.raises((ConnectionError, OSError)):
            await greeted(acceptor)

    asyncio.run(story())


def test_peers_are_refused_then_wait_and_then_are_taken_up() -> None:
    async def story() -> None:
        acceptor = await bound()
        with pytest.raises(ConnectionRefusedError):
            await greeted(acceptor)
        acceptor.open()
        reader, writer = await asyncio.open_connection(*acceptor.address)
        acceptor.start()
        assert await reader.read() == b"hello"
        writer.close()
        acceptor.close()

    asyncio.run(story())


def test_peers_are_turned_away_where_the_start_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "WAIT_SECONDS", 0.01)

    async def story() -> None:
        acceptor = await bound()
        acceptor.open()
        for _ in range(3):
            assert await asyncio.wait_for(greeted(acceptor), 10) == b""
        acceptor.start()
        assert await asyncio.gather(*(greeted(acceptor) for _ in range(9))) == [b"hello"] * 9
        acceptor.close()

    asyncio.run(story())


def test_out_of_descriptors_peers_wait_and_the_operator_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 0.01)
    accept, tries, is_exhausted = socket.socket.accept, [], True

    def exhausted(self: socket.socket) -> Any:
        tries.append(self)
        if is_exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    async def story() -> None:
        nonlocal is_exhausted
        acceptor = await listening()
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        peers = [asyncio.create_task(greeted(acceptor)) for _ in range(9)]
        while len(tries) < 20:
            await asyncio.sleep(0.001)
        assert not any(peer.done() for peer in peers)
        is_exhausted = False
        assert await asyncio.gather(*peers) == [b"hello"] * 9
        host, port = acceptor.address
        acceptor.close()
        told = f"{host}:{port}: peers wait and cannot be accepted: Too many open files"
        assert [record.getMessage() for record in caplog.records] == [told]

    asyncio.run(story())


def test_peers_that_cannot_be_turned_away_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of descriptors before the start: no turn of the loop is spent on them meanwhile."""
    monkeypatch.setattr(accepting, "WAIT_SECONDS", 0.01)
    tries = []

    def exhausted(self: socket.socket) -> Any:
        tries.append(self)
        raise OSError(errno.EMFILE, "Too many open files")

    async def story() -> None:
        acceptor = await bound()
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        acceptor.open()
        _, writer = await asyncio.open_connection(*acceptor.address)
        while not tries:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        writer.close()
        acceptor.close()
        assert len(tries) == 1
        assert len(caplog.records) == 1

    asyncio.run(story())


def test_a_pause_ends_with_the_acceptor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        acceptor = await listening()
        acceptor._wait(OSError(errno.ENFILE, "Too many open files in system"))
        acceptor.close()
        assert acceptor._pause is not None
        assert acceptor._pause.cancelled()

    asyncio.run(story())
