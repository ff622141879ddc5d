"""System calls that keep the GIL: what they read, write and find ready."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from kafkalite.streams.web.at_once import BYTES_MAX, EVENTS_MAX, Sockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    one.setblocking(False)
    yield one, other
    one.close()
    other.close()


def test_bytes_are_read_once_and_nothing_is_none(pair: Pair) -> None:
    one, other = pair
    sockets = Sockets()
    assert sockets.read(one.fileno()) is None
    other.send(b"a\0b")
    assert sockets.read(one.fileno()) == b"a\0b"
    assert sockets.read(one.fileno()) is None


def test_the_end_is_empty_and_an_error_is_none(pair: Pair) -> None:
    one, other = pair
    number = one.fileno()
    other.close()
    assert Sockets().read(number) == b""
    one.close()
    assert Sockets().read(number) is None


def test_what_there_is_no_room_for_is_left(pair: Pair) -> None:
    one, other = pair
    data = b"x" * 4_000_000
    rest = Sockets().write(one.fileno(), data)
    assert 0 < len(rest) < len(data)
    taken = 0
    while taken < len(data) - len(rest):
        taken += len(other.recv(BYTES_MAX))
    assert Sockets().write(one.fileno(), b"y") == b""


def test_an_answer_to_nobody_is_left_whole_without_a_signal(pair: Pair) -> None:
    one, other = pair
    other.close()
    assert Sockets().write(one.fileno(), b"late") == b"late"


def test_descriptors_with_something_are_found(pair: Pair) -> None:
    one, other = pair
    poll, sockets = select.epoll(), Sockets()
    poll.register(one.fileno(), select.EPOLLIN)
    assert sockets.ready(poll.fileno()) == []
    other.send(b"x")
    assert sockets.ready(poll.fileno()) == [one.fileno()]
    poll.close()


def test_of_very_many_the_first_are_found() -> None:
    poll, sockets = select.epoll(), Sockets()
    pairs = [socket.socketpair() for _ in range(EVENTS_MAX + 10)]
    for one, other in pairs:
        poll.register(one.fileno(), select.EPOLLIN)
        other.send(b"x")
    found = sockets.ready(poll.fileno())
    assert len(found) == EVENTS_MAX
    assert set(found) <= {one.fileno() for one, _ in pairs}
    for each in pairs:
        each[0].close()
        each[1].close()
    poll.close()
