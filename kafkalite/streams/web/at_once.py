"""System calls of sockets that do not block, and so keep the GIL.                         [IO]

Python lets the GIL go around every system call. A thread that is in the middle of its work then
waits for it until another thread, which has taken it, is asked to give it back: up to 5 ms, for a
call of 3 µs that never waits.

Owns   nothing: descriptors are the callers'.
Never  waits: sockets must be non-blocking.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

NOSIGNAL: Final = 0x4000  # MSG_NOSIGNAL: an error, and no signal, where nobody reads any more
BYTES_MAX: Final = 65_536
EVENTS_MAX: Final = 64
DESCRIPTOR: Final = 0xFFFF_FFFF

_libc: Final = ctypes.PyDLL(None)


class Event(ctypes.Structure):
    """struct epoll_event, which x86-64 alone packs. Python fills half of `data`."""

    if platform.machine() in ("x86_64", "AMD64"):
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class Sockets:
    """What one thread at a time needs for its calls."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(BYTES_MAX)
        self._events = (Event * EVENTS_MAX)()

    def ready(self, epoll: int) -> list[int]:
        """The descriptors that an epoll has something of."""
        count = _libc.epoll_wait(epoll, self._events, EVENTS_MAX, 0)
        return [self._events[index].data & DESCRIPTOR for index in range(count)]

    def read(self, number: int) -> bytes | None:
        """What there is; None where there is nothing, or an error; empty at the end."""
        count = _libc.recv(number, self._bytes, BYTES_MAX, 0)
        return None if count < 0 else ctypes.string_at(self._bytes, count)

    def write(self, number: int, data: bytes) -> bytes:
        """Writes as much as there is room for; the rest, all of it after an error."""
        count = _libc.send(number, data, len(data), NOSIGNAL)
        return data[max(0, count) :]
