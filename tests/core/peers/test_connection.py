"""The end of a connection whose request is given up."""

from __future__ import annotations

import asyncio

import pytest

from kafkalite.core import sockets
from kafkalite.core.peers.connection import BrokerConnection, open_connection
from kafkalite.errors import BrokerUnavailable


class Silent(asyncio.Protocol):
    """A broker that answers nothing."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


def test_a_connection_whose_broker_is_silent_is_reset() -> None:
    """After a mere close the system would go on to send what was asked."""

    async def story() -> None:
        silent = Silent()
        server = await asyncio.get_running_loop().create_server(lambda: silent, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(BrokerUnavailable, match="did not answer ApiVersions in 0.05 s"):
                await open_connection(
                    "127.0.0.1", port, client_id="c", request_timeout_ms=50, connect_timeout_ms=500
                )
            assert isinstance(await silent.lost, ConnectionResetError)

    asyncio.run(story())


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_is_given_up_twice_is_given_up_once(is_closed: bool) -> None:
    async def story() -> None:
        silent = Silent()
        server = await asyncio.get_running_loop().create_server(lambda: silent, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            connection = BrokerConnection("b", "c", 1_000)
            connection.give_up("before it is made")
            connection = BrokerConnection("b", "c", 1_000)
            await sockets.connect(lambda: connection, "127.0.0.1", port)
            if is_closed:
                connection.close()
            connection.give_up("first")
            connection.give_up("second")
            await connection.closed()
            assert isinstance(await silent.lost, ConnectionResetError) is not is_closed

    asyncio.run(story())
