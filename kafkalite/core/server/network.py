"""The network of this machine: its sockets.                                                 [IO]

Owns   nothing: listeners and connections are the caller's.
Fails  with OSError, or gaierror for an unknown name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Final

from kafkalite.core import sockets
from kafkalite.core.network import Listener, MakeProtocol
from kafkalite.core.server.accepting import Acceptor
from kafkalite.core.server.binding import bind_all

FAR_ADDRESSES: Final = (  # of nets for documentation; nothing is sent to them
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
LOOPBACK: Final = "127.0.0.1"


class SocketNetwork:
    """The `Network` of the machine on which this process runs."""

    async def connect(self, make: MakeProtocol, host: str, port: int) -> None:
        """Opens a connection."""
        await sockets.connect(make, host, port)

    async def listen(
        self, make: MakeProtocol, host: str, port: int, backlog: int
    ) -> Sequence[Listener]:
        """Takes the addresses of `host`."""
        loop = asyncio.get_running_loop()

        def open_at(address: str, port: int) -> Awaitable[asyncio.Server]:
            return loop.create_server(make, address, port, start_serving=False)

        bound = await bind_all(host, port, open_at)
        return [Acceptor(each, backlog, make) for each in bound]

    def own_host(self) -> str:
        """A numeric address, as a name may resolve to one that is not served."""
        for family, far in FAR_ADDRESSES:
            with suppress(OSError), _datagrams(family) as probe:
                probe.connect((far, 9))  # sends nothing
                return str(probe.getsockname()[0])
        return LOOPBACK


def _datagrams(family: socket.AddressFamily) -> socket.socket:
    return socket.socket(family, socket.SOCK_DGRAM)
