"""Connections over the sockets of this machine.                                             [IO]

Owns   the options of a socket that all of our connections have, and how a connection is broken.
Fails  with OSError, or gaierror for an unknown name.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from kafkalite.core.network import MakeProtocol

NO_LINGER: Final = struct.pack("ii", 1, 0)  # what is unsent at the close is dropped


async def connect(make: MakeProtocol, host: str, port: int) -> None:
    """Opens a connection to HOST:PORT, and gives it to the protocol that `make` returns. Of a name
    with several addresses the first that answers counts; ConnectionRefusedError where none does and
    one refuses, whatever the others do."""
    loop = asyncio.get_running_loop()
    failures: list[OSError] = []
    for address in await _addresses(loop, host, port):
        try:
            transport, _ = await loop.create_connection(make, address, port)
        except OSError as failure:
            failures.append(failure)
        else:
            set_options(transport)
            return
    refusals = [each for each in failures if isinstance(each, ConnectionRefusedError)]
    raise (*refusals, *failures)[0]


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    """The addresses of a host: an address is its own, names are looked up in a thread."""
    try:
        ip_address(host)
    except ValueError:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
    return [host]


def set_options(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Small packets leave at once, and a peer that vanished is noticed in the end. The socket, if
    the transport has one."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return found


def reset(transport: asyncio.WriteTransport) -> None:
    """Breaks a connection: what the peer's machine does not have yet, it never gets. After a mere
    close the system goes on to send it, for minutes where the network is cut."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):  # it is closed already
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    transport.abort()
