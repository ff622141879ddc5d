"""Connections over the sockets of this machine.                                             [IO]

Owns   the options of a socket that all of our connections have.
Fails  with OSError, or gaierror for an unknown name.
"""

from __future__ import annotations

import asyncio
import socket

from kafkalite.core.network import MakeProtocol


async def connect(make: MakeProtocol, host: str, port: int) -> None:
    """Opens a connection to HOST:PORT, and gives it to the protocol that `make` returns."""
    transport, _ = await asyncio.get_running_loop().create_connection(make, host, port)
    set_options(transport)


def set_options(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Small packets leave at once, and a peer that vanished is noticed in the end. The socket, if
    the transport has one."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return found
