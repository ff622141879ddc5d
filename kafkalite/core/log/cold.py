"""Whether bytes of a file are in the system's cache, without a wait for the disk.            [IO]

    read_now      the bytes from the cache, or None: a read that does not wait (RWF_NOWAIT)
    read_cached   the same, but it raises `ColdRead`: see `uncached`
    is_cold       the same question about a stretch too long to read, asked of a byte in each
                  READ_AHEAD_BYTES and of the last: the system brings and drops neighbours together
    warm          reads a stretch, for the cache to have it; waits for the disk

Owns   nothing.
Fails  as a read does. If a system or file system cannot answer, everything counts as cached.
Source preadv2(2).
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from kafkalite.core.log.uncached import ColdRead

NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
READ_AHEAD_BYTES: Final = 131_072  # Linux' own: /sys/block/…/queue/read_ahead_kb


class Held(Protocol):
    """An open file."""

    def fileno(self) -> int | None:
        """Its descriptor, valid as long as this object is held."""


def read_cached(file: Held, fileno: int, position: int, size: int) -> bytearray | None:
    """The bytes; ColdRead where some are not cached. None where the file ends before, or where the
    system cannot tell."""
    if NOWAIT is None:
        return None
    data = bytearray(size)
    try:
        count = os.preadv(fileno, [data], position, NOWAIT)
    except BlockingIOError:
        raise ColdRead(partial(_warm, file, position, size)) from None
    except OSError:
        return None
    if 0 < count < size and os.fstat(fileno).st_size >= position + size:
        raise ColdRead(partial(_warm, file, position, size))
    return data if count == size else None


def _warm(file: Held, position: int, size: int) -> None:
    """Brings some more than was asked for. An error is met again by the next read."""
    fileno = file.fileno()
    assert fileno is not None, file
    with suppress(OSError):
        warm(fileno, position, max(size, READ_AHEAD_BYTES))


def read_now(fileno: int, position: int, size: int) -> bytes | bytearray | None:
    """The bytes, None where some of them are cold, or the file is shorter."""
    if NOWAIT is None:
        return _read(fileno, position, size)
    data = bytearray(size)
    try:
        count = os.preadv(fileno, [data], position, NOWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return _read(fileno, position, size)
    return data if count == size else None


def is_cold(fileno: int, position: int, size: int) -> bool:
    """Whether reading a stretch would wait for the disk."""
    if NOWAIT is None or not size:
        return False
    byte, end = bytearray(1), position + size
    try:
        for at in (*range(position, end, READ_AHEAD_BYTES), end - 1):
            os.preadv(fileno, [byte], at, NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def warm(fileno: int, position: int, size: int) -> None:
    """Brings a stretch into the cache."""
    _read(fileno, position, size)


def _read(fileno: int, position: int, size: int) -> bytes | None:
    data = os.pread(fileno, size, position)
    return data if len(data) == size else None
