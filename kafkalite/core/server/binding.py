"""Listening at every address that a host stands for, all at one port.                      [IO]

    "" and "::"      every IPv4 address, and every IPv6 address where the system has IPv6
    "0.0.0.0"        every IPv4 address
    a name           each of its addresses that is this machine's

Owns   nothing: the servers are the caller's. None of them accepts yet.
Fails  with OSError, or gaierror for an unknown name; no server is left behind then.
Source java.net `ServerSocket`, whose wildcard address takes both families.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

ALL_IPV4: Final = "0.0.0.0"
ALL_IPV6: Final = "::"
NOT_OURS: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
FREE_PORT_TRIES: Final = 8

Open = Callable[[str, int], Awaitable[asyncio.Server]]  # at one address, as numbers


async def bind_all(host: str, port: int, open_at: Open) -> list[asyncio.Server]:
    """A server at each address; port 0 takes a port that is free on all of them."""
    addresses = await _addresses(host)
    tries = FREE_PORT_TRIES if port == 0 and len(addresses) > 1 else 1
    while True:
        tries -= 1
        try:
            return await _bind_all(addresses, port, open_at)
        except OSError as error:
            if not tries or error.errno != errno.EADDRINUSE:
                raise


async def _addresses(host: str) -> Sequence[str]:
    if host in ("", ALL_IPV6):
        return (ALL_IPV4, ALL_IPV6) if socket.has_ipv6 else (ALL_IPV4,)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


async def _bind_all(addresses: Sequence[str], port: int, open_at: Open) -> list[asyncio.Server]:
    """Addresses that this machine does not have are passed over, unless it has none of them."""
    opened: list[asyncio.Server] = []
    missing = OSError(errno.EAFNOSUPPORT, "the system has no such addresses")
    try:
        for address in addresses:
            try:
                server = await open_at(address, port)
            except OSError as error:
                if error.errno not in NOT_OURS:
                    raise
                missing = error
                continue
            if server.sockets:  # asyncio passes over a family that the system lacks
                opened.append(server)
                port = server.sockets[0].getsockname()[1]
        if not opened:
            raise missing
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened
