"""What goes to the transport, and in how many writes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from typing import Any

import pytest

from kafkalite.core.server.outbox import HELD_BYTES_MAX, Outbox


class Transport:
    """Takes all that it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return socket.socket()

    def abort(self) -> None:
        self.is_aborted = True


def outbox() -> tuple[Any, Transport]:
    transport: Any = Transport()
    return Outbox(asyncio.new_event_loop(), transport, lambda: None), transport


def test_what_is_held_goes_in_one_write_and_in_order() -> None:
    box, transport = outbox()
    box.send([b"a"])
    box.hold()
    box.send([b"b"])
    box.send([b"c", memoryview(b"d")])
    assert transport.writes == [b"a"]
    assert box.is_empty  # more may follow
    box.release()
    box.send([b"e"])
    assert transport.writes == [b"a", b"bcd", b"e"]


def test_no_more_is_held_than_is_good() -> None:
    box, transport = outbox()
    box.hold()
    piece = bytes(1_000)
    for _ in range(200):
        box.send([piece])
    held = 200_000 - sum(map(len, transport.writes))
    assert 0 <= held < HELD_BYTES_MAX
    box.release()
    assert sum(map(len, transport.writes)) == 200_000


def test_files_do_not_overtake_what_is_held() -> None:
    class File:
        size_bytes, position = 100_000, 0

    box, transport = outbox()
    box.pause_writing()  # so that nothing goes past the transport yet
    box.hold()
    box.send([b"first"])
    box.send([b"head", File()])
    assert transport.writes == [b"first"]
    assert not box.is_empty


def test_without_a_descriptor_left_the_connection_ends_and_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class File:
        size_bytes, position = 100_000, 0

    def none_left(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    box, transport = outbox()
    box.pause_writing()
    box.send([b"head", File()])
    monkeypatch.setattr(os, "dup", none_left)
    box.resume_writing()
    assert transport.is_aborted


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_file_that_is_shorter_than_was_promised_ends_the_connection(size: int) -> None:
    """Where it is copied, too: the next answer would be taken for the rest of this one."""

    class File:
        size_bytes, position = size, 0

        def fileno(self) -> None:
            return None

        def read(self) -> bytes:
            return bytes(size - 1)

    box, transport = outbox()
    sent, received = socket.socketpair()
    transport.get_extra_info = lambda _: sent  # type: ignore[method-assign]
    box.send([b"head", File()])
    assert transport.is_aborted
    assert transport.writes == []
    received.setblocking(False)
    with suppress(BlockingIOError):
        assert len(received.recv(1_000)) <= len(b"head")
    box.close()
    for each in (sent, received):
        each.close()
