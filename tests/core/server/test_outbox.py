"""What goes to the transport, and in how many writes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.log import cold
from kafkalite.core.server import outbox as outboxes
from kafkalite.core.server.outbox import HELD_BYTES_MAX, SENDFILE_BYTES_MAX, Outbox

pytestmark = pytest.mark.usefixtures("each_loop")


class Transport:
    """Takes all that it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_extra_info(self, name: str) -> socket.socket | None:
        return socket.socket() if name == "socket" else None

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
    transport.get_extra_info = {"socket": sent}.get  # type: ignore[method-assign,assignment]
    box.send([b"head", File()])
    assert transport.is_aborted
    assert transport.writes == []
    received.setblocking(False)
    with suppress(BlockingIOError):
        assert len(received.recv(1_000)) <= len(b"head")
    box.close()
    for each in (sent, received):
        each.close()


class OnDisk:
    """A stretch of a file."""

    def __init__(self, path: Path, position: int, size: int) -> None:
        self.file = path.open("rb")
        self.position, self.size_bytes = position, size

    def fileno(self) -> int:
        return self.file.fileno()


@pytest.mark.parametrize("size", [2_000, 3_000_000])
def test_what_is_not_cached_is_read_in_a_thread_and_then_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data = os.urandom(size + 5_000)
    (tmp_path / "log").write_bytes(data)
    gate, warmed = threading.Event(), []
    monkeypatch.setattr(outboxes, "is_cold", lambda *_: True)
    monkeypatch.setattr(outboxes, "read_now", lambda *_: None)

    def warm(fileno: int, position: int, count: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        warmed.append((position, count))
        assert gate.wait(60)

    monkeypatch.setattr(outboxes, "warm", warm)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        sent, received = socket.socketpair()
        for each in (sent, received):
            each.setblocking(False)
        transport: Any = Transport()
        transport.get_extra_info = {"socket": sent}.get
        done = asyncio.Event()
        box = Outbox(loop, transport, done.set)
        box.send([b"head", OnDisk(tmp_path / "log", 1_000, size)])
        assert await loop.sock_recv(received, 10) == b"head"
        assert not box.is_empty, "the disk is waited for, elsewhere"
        assert warmed in ([], [(1_000, min(size, SENDFILE_BYTES_MAX))])
        box.pause_writing()
        box.resume_writing()  # nothing more is sent for that
        gate.set()
        got = b""
        while len(got) < size:
            got += await loop.sock_recv(received, 1 << 20)
        assert got == data[1_000 : 1_000 + size]
        await done.wait()
        assert sum(count for _, count in warmed) == size, "each stretch is looked at once"
        assert not transport.is_aborted
        box.close()
        for each in (sent, received):
            each.close()

    asyncio.run(story())


def test_a_connection_that_ends_while_the_disk_is_waited_for_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(bytes(100_000))
    gate = threading.Event()
    monkeypatch.setattr(outboxes, "is_cold", lambda *_: True)
    monkeypatch.setattr(outboxes, "warm", lambda *_: gate.wait(60))

    async def story() -> None:
        transport: Any = Transport()
        sent, received = socket.socketpair()
        transport.get_extra_info = {"socket": sent}.get
        empty: list[bool] = []
        box = Outbox(asyncio.get_running_loop(), transport, lambda: empty.append(True))
        box.send([b"head", OnDisk(tmp_path / "log", 0, 100_000)])
        warming = box._warming
        assert warming is not None
        box.close()
        gate.set()
        await warming
        await asyncio.sleep(0)
        assert not empty
        for each in (sent, received):
            each.close()

    asyncio.run(story())


def test_what_the_system_has_dropped_is_cold(tmp_path: Path) -> None:
    """Where the file system can tell; on others everything counts as cached."""
    path, size = tmp_path / "log", 400_000
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        fd = file.fileno()
        os.fsync(fd)
        assert cold.read_now(fd, 5, size - 5) == path.read_bytes()[5:]
        assert not cold.is_cold(fd, 5, size - 5)
        assert cold.read_now(fd, 5, size) is None, "it is shorter"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if cold.is_cold(fd, 0, size):  # to ask may begin to bring it
            assert cold.read_now(fd, 0, size) in (None, path.read_bytes())
        cold.warm(fd, 0, size)
        assert not cold.is_cold(fd, 0, size)
        assert cold.read_now(fd, 0, size) == path.read_bytes()


def test_very_many_parts_go_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [0]

    def send(box: Outbox, _: socket.socket) -> bool:
        sent[0] += 1
        box._parts.popleft()
        return True

    monkeypatch.setattr(Outbox, "_send_some", send)

    async def story() -> None:
        ours, theirs = socket.socketpair()
        transport: Any = Transport()
        transport.get_extra_info = {"socket": ours}.get
        done = asyncio.Event()
        box = Outbox(asyncio.get_running_loop(), transport, done.set)
        count = outboxes.PARTS_PER_TURN + 1
        box.send([bytes(outboxes.INLINE_BYTES_MAX), *[b"part"] * count])
        assert sent[0] == outboxes.PARTS_PER_TURN
        await done.wait()
        assert sent[0] == 1 + count
        box.close()
        for each in (ours, theirs):
            each.close()

    asyncio.run(story())


class Encrypting(Transport):
    """A transport whose socket carries other bytes than those written to it; it is full after
    `room` bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.box: Any = None

    def get_extra_info(self, name: str) -> Any:
        return {"sslcontext": object(), "socket": socket.socket()}[name]

    def write(self, data: bytes) -> None:
        super().write(bytes(data))
        self.room -= len(data)
        if self.room <= 0:
            self.box.pause_writing()


@pytest.mark.parametrize("has_fileno", [True, False])
def test_an_encrypting_transport_is_never_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_fileno: bool
) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "log").write_bytes(data)
    part = OnDisk(tmp_path / "log", 1_000, 2_500_000)
    if not has_fileno:
        monkeypatch.setattr(OnDisk, "fileno", lambda _: None)
        monkeypatch.setattr(OnDisk, "read", lambda _: data[1_000:2_501_000], raising=False)

    async def story() -> None:
        transport: Any = Encrypting(room=700_000)
        done = asyncio.Event()
        box = transport.box = Outbox(asyncio.get_running_loop(), transport, done.set)
        box.send([b"head", part, b"tail"])
        assert box._socket is None
        assert not box.is_empty
        sent = sum(map(len, transport.writes))
        assert sent < 2_500_000, "the rest waits until the transport has room"
        await asyncio.sleep(0)
        assert sum(map(len, transport.writes)) == sent
        transport.room = 10**9
        box.resume_writing()
        await done.wait()
        assert max(map(len, transport.writes)) <= SENDFILE_BYTES_MAX
        assert b"".join(transport.writes) == b"head" + data[1_000:2_501_000] + b"tail"
        assert box._socket is None
        with pytest.raises(AssertionError, match="plain text"):
            box._past_transport()
        box.close()

    asyncio.run(story())


def test_a_file_that_ends_early_ends_an_encrypted_connection(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(90_000))

    async def story() -> None:
        transport: Any = Encrypting(room=10**9)
        box = transport.box = Outbox(asyncio.get_running_loop(), transport, lambda: None)
        box.send([b"head", OnDisk(tmp_path / "log", 0, 100_000)])
        assert transport.is_aborted

    asyncio.run(story())
