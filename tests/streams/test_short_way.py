"""The short way of questions, turn by turn: the test is the task thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from kafkalite.serde import string
from kafkalite.streams.local.queries import Home
from kafkalite.streams.local.reads import Reads
from kafkalite.streams.plan import Source
from kafkalite.streams.stores import Store
from kafkalite.streams.web.at_once import Sockets
from kafkalite.streams.web.short_way import PIPELINED_MAX, Connection, Rows, connection_with

pytestmark = pytest.mark.timeout(60)


class Queries:
    """Every key has a row. `seen` are the keys that were looked at."""

    def __init__(self) -> None:
        self.reads = Reads(lambda: 0.0, lambda: None)
        self.seen: list[str] = []
        node = Source(name="in", parents=(), key=string(), value=string())
        store = Store("counts", "changes", node, string(), string())
        self._home = Home(store, None, 0, is_hashed=True)

    def home(self, name: str) -> Home:
        return self._home

    def partition_of(self, home: Home, key: str) -> int:
        if key == "odd":
            raise TypeError("no error that anybody has thought of")
        return 0

    def runs(self, home: Home, partition: int) -> bool:
        return True

    def look(self, home: Home, key: str, partition: int) -> str:
        self.seen.append(key)
        return "row"


class Asking:
    def __init__(self) -> None:
        self.queries = Queries()


class Writes(Sockets):
    """Notes how many keys had been looked at when an answer was sent."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen
        self.at: list[int] = []

    def write(self, number: int, data: bytes) -> bytes:
        self.at.append(len(self._seen))
        return super().write(number, data)


async def usual(scope: Any, receive: Any, send: Any) -> None:
    """The application of the usual way."""
    headers = [(b"content-length", b"7")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'"usual"'})


class Served:
    """Rows, and connections to them."""

    def __init__(self) -> None:
        asking = Asking()
        self.queries = asking.queries
        self.rows = Rows(asking, "here:1")  # type: ignore[arg-type]
        self.sockets = self.rows._sockets = Writes(self.queries.seen)
        self._class = connection_with(self.rows)
        self._config = uvicorn.Config(usual, lifespan="off", log_config=None, access_log=False)
        self._config.load()
        self._state = ServerState()

    @asynccontextmanager
    async def line(self) -> AsyncIterator[tuple[Connection, socket.socket]]:
        """A connection that has asked before, and is lent."""
        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        made = self._class(config=self._config, server_state=self._state, app_state={})
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: made, here)
        there.send(question("first"))
        assert keys_of(await answers(there, 1)) == ["first"]
        self.queries.seen.clear()
        try:
            yield made, there
        finally:
            there.close()
            transport.abort()
            await asyncio.sleep(0)


def question(key: str) -> bytes:
    return f"GET /stores/counts/{key} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


async def answers(line: socket.socket, count: int) -> list[bytes]:
    """The bodies of answers; the loop turns until they are there."""
    came = b""
    while (bodies := came.split(b"HTTP/1.1 200 OK\r\n")[1:]) is not None:
        if len(bodies) == count and bodies[-1].endswith((b"}", b'"')):
            return [body.partition(b"\r\n\r\n")[2] for body in bodies]
        came += await asyncio.get_running_loop().sock_recv(line, 65_536)
    raise AssertionError


def keys_of(bodies: list[bytes]) -> list[str]:
    return [body.split(b'"')[3].decode() for body in bodies]


def run(scenario: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def served() -> None:
        await scenario(Served())

    asyncio.run(served())


def test_a_connection_that_asks_for_very_much_at_once_has_no_more_than_its_share() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (_, line):
            keys = [f"k{number}" for number in range(5 * PIPELINED_MAX)]
            line.send(b"".join(map(question, keys)))
            assert served.rows.serve()
            assert served.queries.seen == keys[:PIPELINED_MAX]
            assert keys_of(await answers(line, len(keys))) == keys

    run(scenario)


def test_answers_are_sent_when_every_connection_has_its_own() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (_, one), served.line() as (_, other):
            one.send(question("a"))
            other.send(question("b"))
            assert served.rows.serve()
            assert served.sockets.at == [2, 2]
            assert keys_of(await answers(one, 1) + await answers(other, 1)) == ["a", "b"]

    run(scenario)


def test_the_loop_does_not_wait_for_a_thread_that_is_stuck_with_a_connection_in_hand() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (connection, line):
            line.send(question("a"))
            assert connection.hear(served.sockets)
            connection.take_back()  # by the loop
            connection.answer()
            assert connection.send(served.sockets)
            assert keys_of(await answers(line, 1)) == ["a"]

    run(scenario)


def test_a_question_that_fails_in_a_strange_way_takes_the_usual_one() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (_, line):
            for _ in range(2):  # lent, and not
                line.send(question("odd"))
                served.rows.serve()
                assert await answers(line, 1) == [b'"usual"']

    run(scenario)


def test_a_client_that_leaves_is_forgotten() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (connection, line):
            line.close()
            assert not served.rows.serve()
            assert not served.rows.is_open
            while not connection.transport.is_closing():
                await asyncio.sleep(0)

    run(scenario)


def test_half_a_question_is_waited_for_no_longer_than_an_idle_client() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (connection, line):
            line.send(question("a")[:20])
            assert not served.rows.serve()  # gives it back
            await asyncio.sleep(0)
            assert not served.rows.is_open
            connection._give_up()
            assert not connection.transport.is_closing()  # it has asked a moment ago
            connection._short_until = 0.0
            connection._give_up()
            assert connection.transport.is_closing()

    run(scenario)


def test_a_head_without_end_is_refused() -> None:
    async def scenario(served: Served) -> None:
        async with served.line() as (connection, line):
            loop = asyncio.get_running_loop()
            line.send(question("a")[:-2] + b"x: ")
            assert not served.rows.serve()
            sending = asyncio.create_task(loop.sock_sendall(line, b"y" * (1 << 20)))
            while not connection.transport.is_closing():
                await asyncio.sleep(0)
            assert (await loop.sock_recv(line, 65_536)).startswith(b"HTTP/1.1 400 ")
            sending.cancel()
            await asyncio.wait([sending])
            assert served.queries.seen == []

    run(scenario)


def test_a_client_that_reads_nothing_is_heard_no_more() -> None:
    """Questions are answered as long as there is room for answers, and no longer."""

    async def scenario(served: Served) -> None:
        async with served.line() as (_, line):
            for number in range(20_000):
                try:
                    line.send(question(f"k{number:05}"))
                except BlockingIOError:
                    break
                served.rows.serve()
                if number % 100 == 0:
                    await asyncio.sleep(0)
            else:
                raise AssertionError("it was heard for ever")
            before = len(served.queries.seen)
            for _ in range(100):
                served.rows.serve()
                await asyncio.sleep(0)
            assert len(served.queries.seen) - before <= PIPELINED_MAX

    run(scenario)
