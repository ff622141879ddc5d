"""The registry's sockets: clients that send half a request, read nothing, or hide a second one."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from kafkalite.serde import registry_connection
from kafkalite.serde.registry_server import RegistryServer


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A server without a log behind it; /v1/metadata/version needs none."""
    with closing(RegistryServer("127.0.0.1:0")) as running:
        with socket.create_server(("127.0.0.1", 0)) as free:
            nobody = f"127.0.0.1:{free.getsockname()[1]}"
        running.start(nobody)
        yield running


HALF_A_HEAD = b"GET /v1/metadata/version HTTP/1.1\r\nHost: x\r\n"
HEAD = HALF_A_HEAD + b"\r\n"


def dial(server: RegistryServer, data: bytes = b"") -> socket.socket:
    peer = socket.create_connection(tuple(server.address), timeout=30)
    peer.sendall(data)
    return peer


def all_of(peer: socket.socket) -> bytes:
    """All that a peer gets until the server ends the connection."""
    data = b""
    with suppress(ConnectionError):
        while chunk := peer.recv(65536):
            data += chunk
    return data


def answered(peer: socket.socket) -> bytes:
    """One answer, the connection stays."""
    data = b""
    while b"commitId" not in data:
        chunk = peer.recv(65536)
        assert chunk, data
        data += chunk
    return data


def test_half_heads_keep_nobody_out(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_connection, "CONNECTIONS_MAX", 8)
    with ExitStack() as stack:
        used = stack.enter_context(dial(server, HEAD))
        assert answered(used).startswith(b"HTTP/1.1 200 ")
        halves = [stack.enter_context(dial(server, HALF_A_HEAD)) for _ in range(30)]
        last = stack.enter_context(dial(server, HEAD))
        assert answered(last).startswith(b"HTTP/1.1 200 ")
        assert [all_of(peer) for peer in (used, *halves[:22])] == [b""] * 23
        halves[-1].sendall(b"\r\n")
        assert answered(halves[-1]).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("first", [b"", HEAD], ids=["new", "used"])
def test_half_a_head_is_not_waited_for(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(registry_connection, "HEAD_SECONDS", 0.3)
    with dial(server, first) as peer:
        if first:
            assert answered(peer).startswith(b"HTTP/1.1 200 ")
        with suppress(ConnectionError):  # one byte after another, as slowly as it goes
            for byte in HALF_A_HEAD * 200:
                peer.sendall(bytes([byte]))
                if select.select([peer], [], [], 0.005)[0]:
                    break
            else:
                pytest.fail("it was waited for")
        assert all_of(peer) == b""


def test_a_connection_without_a_byte_ends(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_connection, "HEAD_SECONDS", 0.1)
    with dial(server) as peer:
        assert all_of(peer) == b""


@pytest.mark.slow
def test_an_answer_that_is_not_read_is_not_kept(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_connection, "WORK_SECONDS", 0.3)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # what the system holds is full
        peer.connect(tuple(server.address))
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 4_000)
        watched = select.poll()
        watched.register(peer, select.POLLERR | select.POLLHUP)
        assert watched.poll(30_000)


@pytest.mark.parametrize(
    ("version", "framing"),
    [
        (b"1.1", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
        (b"1.0", b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n"),
    ],
)
def test_what_follows_a_body_of_two_lengths_is_not_served(
    server: RegistryServer, version: bytes, framing: bytes
) -> None:
    head = b"POST / HTTP/%b\r\nHost: x\r\nContent-Type: application/json\r\n" % version
    with dial(server, head + framing + b"\r\n2\r\n{}\r\n0\r\n\r\n" + HEAD) as peer:
        answer = all_of(peer)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
