"""Many questions for single rows over one connection: in their order, whichever way each takes."""

from __future__ import annotations

import json as text
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.streams import Streams, string, tumbling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
WORDS = [f"w{number:02}" for number in range(40)]


class Line:
    """A connection that stays open."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._came = b""

    def ask(self, *paths: str, fields: str = "") -> None:
        heads = (f"GET {path} HTTP/1.1\r\nhost: x\r\n{fields}\r\n" for path in paths)
        self.send("".join(heads).encode())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], Any]:
        while b"\r\n\r\n" not in self._came:
            self._more()
        head, _, self._came = self._came.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        fields = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines)}
        length = int(fields["content-length"])
        while len(self._came) < length:
            self._more()
        body, self._came = self._came[:length], self._came[length:]
        return int(first.split()[1]), fields, text.loads(body)

    def is_at_end(self) -> bool:
        return not self._came and not self._socket.recv(1)

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> None:
        data = self._socket.recv(65_536)
        assert data, self._came
        self._came += data


GATE = threading.Event()
STANDS = threading.Event()


def word_of(word: str) -> str:
    if word == "stop":
        STANDS.set()
        assert GATE.wait(60)
    return word


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@contextmanager
def served(broker: str, name: str, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """A worker that has counted all words; its HTTP address."""
    with Admin(broker) as admin:
        admin.create_topics([NewTopic(name, 2)])
    app = Streams(f"{name}-app", key=string(), value=string())
    words = app.stream(name).map(word_of)
    words.group_by_key().count(name="counts")
    words.group_by_key().window(tumbling("1m")).count(name="by-minute")
    app.start(broker, http="127.0.0.1:0")
    try:
        with Producer(broker) as producer:
            sent = [
                producer.send(name, b"x", key=word.encode(), timestamp_ms=61_000) for word in WORDS
            ]
            producer.flush()
        counts = app.store("counts")
        for word, each in zip(WORDS, sent, strict=True):
            assert counts.get(word, after=each.result(10)) == 1
        yield capsys.readouterr().err.split("http://")[1].split()[0]
    finally:
        GATE.set()
        app.stop()


@pytest.fixture
def line(broker: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Line]:
    with served(broker, f"short-{time.monotonic_ns()}", capsys) as address:
        line = Line(address)
        yield line
        line.close()


def test_the_short_way_says_what_the_usual_one_says(line: Line) -> None:
    for path in ("counts/w07", "by-minute/w07", "counts/nobody", "counts/a%2Fb%20c"):
        line.ask(f"/stores/{path}", f"/stores/{path}", f"/stores/{path}?limit=100")
        short, again, usual = line.answer(), line.answer(), line.answer()
        for fields in (short[1], again[1], usual[1]):
            for name in ("date", "x-kafkalite-worker"):  # a usual 404 names no worker
                fields.pop(name, None)
        assert short == again == usual
    line.ask("/stores/counts/w07")
    assert line.answer()[2] == {"key": "w07", "value": 1}


def test_answers_come_in_the_order_of_the_questions(line: Line) -> None:
    """More than may wait at a time, with others between that take the usual way."""
    paths = [
        f"/stores/counts/{word}" + ("?limit=1" if number % 7 == 3 else "")
        for number, word in enumerate(WORDS)
    ]
    for _ in range(5):
        line.ask(*paths)
        assert [line.answer()[2]["key"] for _ in paths] == WORDS
    line.ask("/stores/nope/a", "/stores/counts/w01", "/health", "/stores/counts/w02")
    statuses = [line.answer() for _ in range(4)]
    assert [status for status, _, _ in statuses] == [404, 200, 200, 200]
    assert statuses[3][2]["key"] == "w02"


def test_a_head_may_come_in_pieces(line: Line) -> None:
    for _ in range(3):
        for byte in b"GET /stores/counts/w01 HTTP/1.1\r\nhost: x\r\n\r\n":
            line.send(bytes([byte]))
        assert line.answer()[2]["key"] == "w01"
        line.ask("/stores/counts/w02", "/stores/counts/w03")
        line.send(b"GET /stores/counts/w04 HTT")
        assert [line.answer()[2]["key"] for _ in range(2)] == ["w02", "w03"]
        line.send(b"P/1.1\r\nhost: x\r\n\r\n")
        assert line.answer()[2]["key"] == "w04"


def test_unusual_heads_take_the_usual_way(line: Line) -> None:
    line.ask("/stores/counts/w01")
    line.answer()
    line.send(b"GET /stores/counts/w02 HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    line.ask("/stores/counts/w03", fields="Connection: keep-alive\r\n")
    line.ask("/stores/counts/w04", fields="Connection: close\r\n")
    assert [line.answer()[2]["key"] for _ in range(3)] == ["w02", "w03", "w04"]
    assert line.is_at_end()


def test_no_head_is_half_read(line: Line) -> None:
    line.ask("/stores/counts/w01")
    line.answer()
    line.send(b"GET /stores/counts/w02 HTTP/1.1\r\nhost x\r\n\r\n")
    assert line._socket.recv(65_536).startswith(b"HTTP/1.1 400 ")


def test_health_is_told_while_a_function_hangs(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also over a connection that the task thread has in hand; what it was asked is answered."""
    GATE.clear()
    STANDS.clear()
    with served(broker, "hangs", capsys) as address:
        line, other = Line(address), Line(address)
        for each in (line, other):
            each.ask("/stores/counts/w01", "/stores/counts/w02")
            assert [each.answer()[0] for _ in range(2)] == [200, 200]
        with Producer(broker) as producer:
            producer.send("hangs", b"stop", key=b"stop")
            producer.flush()
        assert STANDS.wait(30)
        line.ask("/health", "/stores/counts/w03")
        assert line.answer()[2]["status"] == "ready"
        other.ask("/stores/counts/w04")
        GATE.set()
        assert line.answer()[2]["key"] == "w03"
        assert other.answer()[2]["key"] == "w04"
        line.close()
        other.close()


def test_many_connections_ask_while_records_come(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer is lost or mixed up while the thread works and rests in turns."""
    with served(broker, "busy", capsys) as address, Producer(broker) as producer:
        lines = [Line(address) for _ in range(10)]
        for turn in range(60):
            for word in WORDS:
                producer.send("busy", b"x", key=word.encode())
            for number, line in enumerate(lines):
                line.ask(*(f"/stores/counts/{WORDS[(turn + number + n) % 40]}" for n in range(3)))
            for number, line in enumerate(lines):
                got = [line.answer()[2]["key"] for _ in range(3)]
                assert got == [WORDS[(turn + number + n) % 40] for n in range(3)]
        for line in lines:
            line.close()
