"""asyncio's transport over a simulated socket.                                              [IO]

It behaves as the transports of asyncio's own loops do: bytes that the socket does not take are kept
and pause the protocol beyond a limit; `close` sends them first, `abort` drops them.

Owns   the bytes that the socket has not taken.
Fails  by `connection_lost` with the socket's error.
Source asyncio.selector_events `_SelectorSocketTransport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

from kafkalite.testing.event_loop import Handle
from kafkalite.testing.kernel import Socket

READ_BYTES_MAX: Final = 262_144  # in one call of a protocol


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, as a program has it."""

    def __init__(
        self, socket: Socket, protocol: asyncio.BaseProtocol, *, has_options: bool
    ) -> None:
        """`has_options`: programs find the socket, to set its options."""
        extra: dict[str, object] = {"peername": socket.peer.address, "sockname": socket.address}
        super().__init__(extra | ({"socket": socket} if has_options else {}))
        self._socket = socket
        self._loop = socket.loop
        self._protocol = protocol
        self._unsent = bytearray()
        self._high, self._low = 65_536, 16_384
        self._is_paused = False  # the protocol, for want of room
        self._reads = True
        self._is_closing = False
        self._is_ending = False  # `write_eof` was called
        self._is_lost = False
        self._is_woken = False
        self._ready = Handle(self._on_ready, (), None)

    @classmethod
    def open(
        cls, socket: Socket, protocol: asyncio.BaseProtocol, *, has_options: bool = False
    ) -> SimulatedTransport:
        """Gives a connection to its protocol."""
        transport = cls(socket, protocol, has_options=has_options)
        socket.waiter = transport.wake
        protocol.connection_made(transport)
        transport.wake()
        return transport

    # ---- the socket ----------------------------------------------------------------------------

    def wake(self) -> None:
        """The socket has something to read, or room: the program sees to it in its next turn."""
        if not (self._is_woken or self._is_lost):
            self._is_woken = True
            self._loop.make(self._ready)

    def _on_ready(self) -> None:
        self._is_woken = False
        if self._unsent and not self._is_lost:
            self._send_on()
        if self._reads and not self._is_closing and self._socket.is_readable:
            self._read()

    def _read(self) -> None:
        socket = self._socket
        if socket.received:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                buffer = memoryview(cast("bytearray", self._protocol.get_buffer(-1)))
                self._protocol.buffer_updated(socket.read_into(buffer))
            else:
                data = bytearray(min(len(socket.received), READ_BYTES_MAX))
                socket.read_into(memoryview(data))
                cast("asyncio.Protocol", self._protocol).data_received(bytes(data))
            if socket.is_readable:
                self.wake()
        elif socket.error is not None:
            self._end(socket.error)
        elif not cast("asyncio.Protocol", self._protocol).eof_received():
            self.close()
        else:
            self._reads = False

    def _send_on(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except OSError as error:
            self._end(error)
            return
        if self._is_paused and len(self._unsent) <= self._low:
            self._is_paused = False
            self._protocol_as_any.resume_writing()
        if not self._unsent and not self._is_lost:
            if self._is_closing:
                self._end(None)
            elif self._is_ending:
                self._socket.shut_down()

    def _end(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._unsent.clear()
            self._is_closing = self._is_lost = True
            self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()

    @property
    def _protocol_as_any(self) -> Any:
        return self._protocol

    # ---- asyncio.Transport ---------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes, or keeps what the socket does not take."""
        if self._is_ending:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_lost or not data:
            return
        if not self._unsent:
            try:
                data = memoryview(data)[self._socket.send(data) :]
            except OSError as error:
                self._end(error)
                return
        self._unsent += data
        self._pause_if_full()

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """Sends parts."""
        self.write(b"".join(parts))

    def _pause_if_full(self) -> None:
        if len(self._unsent) > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol_as_any.pause_writing()

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def write_eof(self) -> None:
        """Ends what this end sends, after what it has written."""
        if not (self._is_ending or self._is_closing):
            self._is_ending = True
            if not self._unsent:
                self._socket.shut_down()

    def close(self) -> None:
        """Closes the connection once all is sent."""
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._end(None)

    def abort(self) -> None:
        """Closes the connection now."""
        self._end(None)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Bytes stay in the socket."""
        self._reads = False

    def resume_reading(self) -> None:
        """Bytes come again."""
        if not self._is_closing and not self._reads:
            self._reads = True
            self.wake()

    def is_reading(self) -> bool:
        """Whether bytes come."""
        return self._reads and not self._is_closing

    def get_write_buffer_size(self) -> int:
        """How many bytes the socket has not taken."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """When the protocol goes on, and when it is paused."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Beyond `high` bytes the protocol is paused, down at `low` it goes on."""
        if high is None:
            high = 65_536 if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._pause_if_full()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another protocol takes over."""
        self._protocol = protocol
