"""Queries of global tables, and of copies of tasks that run elsewhere or not at all."""

from __future__ import annotations

import asyncio
import json as text
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.streams import Streams, string, tumbling
from kafkalite.streams.live import LiveStore
from kafkalite.streams.local.peers import Peer
from kafkalite.streams.local.queries import StoreUnavailable
from kafkalite.streams.web.application import WorkerApp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
WORDS = [f"w{number:02}" for number in range(20)]
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def http_of(said: str) -> str:
    return said.split("http://")[1].split()[0]


def page(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return text.loads(answer.read())


def test_a_global_table_is_a_store(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic("customers", 3), NewTopic("orders", 1)])
    app = Streams("globals", key=string(), value=string())
    customers = app.global_table("customers", name="customers")
    orders = app.stream("orders").join(customers, lambda order, name: name, key=lambda o: o)
    orders.group_by_key().count(name="counts")
    app.start(address, http="127.0.0.1:0")
    try:
        table: LiveStore[str, str] = app.store("customers")
        with Producer(address) as producer:
            for word in WORDS:
                sent = producer.send("customers", word.upper().encode(), key=word.encode())
                producer.flush()
                until(lambda: app._worker_here and app._worker_here.queries._globals.are_read)
                assert table.get(word, after=sent.result(10)) == word.upper()
            gone = producer.send("customers", None, key=b"w00")
            producer.flush()
            assert table.get("w00", after=gone.result(10)) is None
        pairs = [(word, word.upper()) for word in WORDS[1:]]
        assert table.all() == table.prefix("w") == pairs
        assert table.range("w03", "w04") == pairs[2:4]
        assert table.lag("w03") == 0
        with pytest.raises(TopologyError, match="has no windows"):
            table.fetch("w03", 0, 1)
        server = http_of(capsys.readouterr().err)
        assert page(server, "/stores/customers/w03") == {"key": "w03", "value": "W03"}
        assert page(server, "/stores/customers/w03?limit=1") == {"key": "w03", "value": "W03"}
        rows = page(server, "/stores/customers?limit=2&start=w05")["rows"]
        assert [row["key"] for row in rows] == ["w05", "w06"]
        documents = {each["name"]: each for each in page(server, "/stores")}
        assert documents["customers"]["global"]
        assert not documents["counts"]["global"]
        assert documents["customers"]["tasks"] == {}
    finally:
        app.stop()


def counting(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    words = app.stream(f"{name}-in").group_by_key()
    words.count(name="counts")
    words.window(tumbling("1m")).count(name="by-minute")
    return app


class Pair:
    """Two workers, each with a standby of the other's only task, or both of both."""

    def __init__(self, address: str, name: str) -> None:
        self.apps = [counting(name), counting(name)]
        with Admin(address) as admin:
            admin.create_topics([NewTopic(f"{name}-in", 2)])
        with Producer(address) as producer:
            for word in WORDS:
                producer.send(f"{name}-in", b"x", key=word.encode(), timestamp_ms=61_000)
            producer.flush()
        for app in self.apps:
            app.start(address, http="127.0.0.1:0", num_standby_replicas=1)

    def lacks(self, app: Streams, word: str) -> int | None:
        """How many records the rows of an app lack; None: it has none of this word."""
        try:
            return app.store("counts").lag(word)
        except StoreUnavailable:
            return None

    def are_settled(self) -> bool:
        """Whether one has each task, the other a copy that lacks nothing."""
        for word in WORDS:
            if [self.lacks(app, word) for app in self.apps] != [0, 0]:
                return False
        return (
            all(self.owner(word) is not None for word in WORDS)
            and len({self.owner(word) for word in WORDS}) == 2
        )

    def owner(self, word: str) -> int | None:
        """Which of the two runs the task of a word, and has counted it."""
        for number, app in enumerate(self.apps):
            try:
                if app.store("counts").get(word) == 1:
                    return number
            except StoreUnavailable:
                continue
        return None


@pytest.fixture
def pair(address: str) -> Iterator[Pair]:
    pair = Pair(address, f"copies-{time.monotonic_ns()}")
    try:
        until(pair.are_settled)
        yield pair
    finally:
        for app in pair.apps:
            app.stop()


def has_copied(app: Streams, word: str) -> bool:
    try:
        return app.store("counts").get(word, max_lag=0) == 1
    except StoreUnavailable:  # it has only begun to follow
        return False


def test_a_standby_answers_where_it_may(pair: Pair) -> None:
    for word in WORDS:
        owner = pair.owner(word)
        assert owner is not None
        other = pair.apps[1 - owner]
        with pytest.raises(StoreUnavailable, match="does not run in this worker"):
            other.store("counts").get(word)
        until(lambda app=other, word=word: has_copied(app, word))  # type: ignore[misc]
        assert asyncio.run(other.async_store("counts").get(word, max_lag=0)) == 1
    assert pair.apps[0].store("counts").get("nobody", max_lag=1_000) is None


def test_a_range_has_the_rows_of_copies_where_it_may(pair: Pair) -> None:
    pairs = [(word, 1) for word in WORDS]
    for number, app in enumerate(pair.apps):
        for word in WORDS:
            until(lambda app=app, word=word: has_copied(app, word))  # type: ignore[misc]
        store: LiveStore[str, int] = app.store("counts")
        own = [(word, 1) for word in WORDS if pair.owner(word) == number]
        assert store.all() == own
        assert store.all(max_lag=0) == store.prefix("w", max_lag=0) == pairs
        assert store.range("w03", "w11", max_lag=0) == pairs[3:12]
        assert store.range("w03", "w11", limit=2, max_lag=0) == pairs[3:5]
        windows = app.store("by-minute").fetch(WORDS[0], 0, 120_000, max_lag=1_000)
        assert [(key.key, key.start, count) for key, count in windows] == [(WORDS[0], 60_000, 1)]


async def asked(app: WorkerApp, path: str) -> tuple[int, dict[str, str], Any]:
    """As uvicorn would ask."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [],
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, text.loads(sent[1]["body"])


def seen_by(pair: Pair, number: int, word: str) -> WorkerApp:
    """The pages of one worker, which is told that the tasks of the other are with nobody."""
    app = pair.apps[number]
    worker = app._worker_here
    assert worker is not None

    async def peers() -> list[Peer]:
        there = await worker.queries.peers.all()
        return [
            peer if peer.address == worker.config.address
            else Peer(peer.member_id, peer.host, NOBODY, peer.tasks)
            for peer in there
        ]  # fmt: skip

    address = str(worker.config.address)
    return WorkerApp(app.plan(), app._asking, worker.overview, peers, address)


def test_over_http_a_copy_stands_in_for_a_worker_that_is_gone(pair: Pair) -> None:
    word = WORDS[3]
    owner = pair.owner(word)
    assert owner is not None
    until(lambda: has_copied(pair.apps[1 - owner], word))
    left = seen_by(pair, 1 - owner, word)

    async def scenario() -> None:
        status, _, body = await asked(left, f"/stores/counts/{word}")
        assert status == 503
        assert "does not answer" in body["error"]
        status, headers, body = await asked(left, f"/stores/counts/{word}?max_lag=0")
        assert (status, body) == (200, {"key": word, "value": 1})
        assert headers["x-kafkalite-lag"] == "0"
        assert headers["x-kafkalite-worker"] == pair.apps[1 - owner]._worker_here.config.address  # type: ignore[union-attr]
        status, _, body = await asked(left, f"/stores/by-minute/{word}?max_lag=0")
        assert [row["value"] for row in body["rows"]] == [1]
        status, _, body = await asked(left, f"/stores/counts/{word}?max_lag=-1")
        assert (status, "expected a number" in body["error"]) == (400, True)

    asyncio.run(scenario())


def test_over_http_the_task_that_runs_is_asked_first(pair: Pair) -> None:
    """Whichever worker is asked; its answer names no lag, and one that there is not is 404."""
    servers = [app._worker_here.config.address for app in pair.apps if app._worker_here]
    for word in WORDS[:4]:
        for server in servers:
            with urllib.request.urlopen(
                f"http://{server}/stores/counts/{word}?max_lag=1000", timeout=30
            ) as answer:
                assert text.loads(answer.read()) == {"key": word, "value": 1}
                assert answer.headers["x-kafkalite-lag"] is None
                owner = pair.owner(word)
                assert owner is not None
                assert answer.headers["x-kafkalite-worker"] == servers[owner]


def test_a_copy_that_lacks_more_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    word = WORDS[5]
    owner = pair.owner(word)
    assert owner is not None
    worker = pair.apps[1 - owner]._worker_here
    assert worker is not None
    there = worker.queries._copies
    monkeypatch.setattr(
        worker.queries, "_copies", lambda: {t: (task, 7) for t, (task, _) in there().items()}
    )
    store = pair.apps[1 - owner].store("counts")
    assert store.lag(word) == 7
    assert store.get(word, max_lag=7) == 1
    with pytest.raises(StoreUnavailable, match="lacks 7 records, more than max_lag=6"):
        store.get(word, max_lag=6)
    assert len(store.all(max_lag=7)) == len(WORDS)
    with pytest.raises(StoreUnavailable, match="lacks 7 records, more than max_lag=6"):
        store.all(max_lag=6)
