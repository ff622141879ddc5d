"""The network as brokers and clients need it: connections to others, and from others.       [P]

    connect   a transport to HOST:PORT, for a protocol of asyncio
    listen    a listener at each address that a host stands for: peers are refused before `open`,
              and wait for `start`
    own_host  the address under which other machines reach this one

`core.sockets` and `core.server.network` are the machine's own; `testing.network` simulates one.

Fails  as asyncio does: OSError, gaierror for an unknown name; a deadline is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

MakeProtocol = Callable[[], "asyncio.BaseProtocol"]


class Connect(Protocol):
    """Opens a connection to HOST:PORT and gives it to the protocol that `make` returns."""

    async def __call__(self, make: MakeProtocol, host: str, port: int) -> Any:
        """Returns once `connection_made` of the protocol was called."""
        ...


class Listener(Protocol):
    """One listening address, which nobody else can take."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port."""
        ...

    def open(self) -> None:
        """Refuses peers no more: they wait."""
        ...

    def start(self) -> None:
        """Begins to accept, those that wait first."""
        ...

    def close(self) -> None:
        """Accepts no more peers; connections go on."""
        ...


class Network(Protocol):
    """The network of one machine."""

    async def connect(self, make: MakeProtocol, host: str, port: int) -> Any:
        """Opens a connection to another machine, or to this one."""
        ...

    async def listen(
        self, make: MakeProtocol, host: str, port: int, backlog: int
    ) -> Sequence[Listener]:
        """Takes the addresses of `host`, port 0 replaced by a free one."""
        ...

    def own_host(self) -> str:
        """This machine's address on the way to others; loopback if there is no way."""
        ...
