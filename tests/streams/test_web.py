"""Workers over HTTP: stores wherever their tasks run, metrics, health, topology."""

from __future__ import annotations

import http.client
import json as text
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ConfigError
from kafkalite.streams import Streams, int64, string, tumbling

pytestmark = pytest.mark.slow
WORDS = [f"w{number:02}" for number in range(30)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def words(name: str) -> Streams:
    app = Streams(name, key=string(), value=string())
    by_word = app.stream(f"{name}-in").group_by(lambda word: word, name="words")
    by_word.count(name="counts")
    by_word.window(tumbling("1m")).count(name="by-minute")
    by_length = app.stream(f"{name}-sizes").group_by(len, key=int64(), name="sizes")
    by_length.count(name="by-length")
    return app


def make_topics(address: str, name: str) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(f"{name}-in", 4), NewTopic(f"{name}-sizes", 1)])


class Client:
    """Asks one worker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.headers: dict[str, str] = {}

    def get(self, path: str, status: int = 200, method: str = "GET") -> Any:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        assert answer.status == status, (path, answer.status, body)
        return text.loads(body) if "json" in self.headers.get("content-type", "") else body.decode()

    def until_ready(self) -> None:
        for _ in range(300):
            try:
                if self.get("/health")["tasks"]:
                    return
            except (AssertionError, ConnectionError):
                pass
            time.sleep(0.1)
        self.get("/health")


def started(app: Streams, address: str, capsys: pytest.CaptureFixture[str]) -> Client:
    app.start(address, http="127.0.0.1:0")
    said = capsys.readouterr().err
    return Client(said.split("http://")[1].split()[0])


def test_rows_pages_and_mistakes(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_topics(address, "web")
    app = words("web")
    client = started(app, address, capsys)
    try:
        client.until_ready()
        with Producer(address) as producer:
            for word in [*WORDS, "w07", "a/b c"]:
                sent = producer.send("web-in", word.encode(), timestamp_ms=61_000)
                producer.flush()
            place = sent.result(10)
            long = producer.send("web-sizes", b"abcde")
            producer.flush()
            sizes = long.result(10)
        after = f"after={place.topic}:{place.partition}:{place.offset}"
        found = client.get(f"/stores/counts/{quote('a/b c', safe='')}?{after}")
        assert found == {"key": "a/b c", "value": 1}
        assert client.headers["x-kafkalite-worker"] == client.address
        assert client.get("/stores/counts/w07")["value"] == 2
        size = f"after={sizes.topic}:{sizes.partition}:{sizes.offset}"
        assert client.get(f"/stores/by-length/5?{size}") == {"key": 5, "value": 1}
        row = {"key": {"key": "w07", "start": 60_000, "end": 120_000}, "value": 2}
        assert client.get("/stores/by-minute/w07") == {"rows": [row]}
        assert client.get("/stores/by-minute/w07?from=60001") == {"rows": []}

        pages, token = [], ""
        while token is not None:
            page = client.get(f"/stores/counts?limit=7&prefix=w{token and '&next=' + token}")
            pages.append([row["key"] for row in page["rows"]])
            token = page["next"]
        assert [word for page in pages for word in page] == WORDS
        assert [len(page) for page in pages] == [7, 7, 7, 7, 2]
        between = client.get("/stores/counts?start=w03&end=w05")
        assert [row["key"] for row in between["rows"]] == ["w03", "w04", "w05"]

        assert "'nope'" in client.get("/stores/nope/a", 404)["error"]
        assert "no row of 'nobody'" in client.get("/stores/counts/nobody", 404)["error"]
        assert "is no key of int64()" in client.get("/stores/by-length/five", 400)["error"]
        assert "limit: expected 1 to" in client.get("/stores/counts?limit=0", 400)["error"]
        assert "expected a number" in client.get("/stores/counts?limit=x", 400)["error"]
        assert "TOPIC:PARTITION:OFFSET" in client.get("/stores/counts/a?after=x", 400)["error"]
        late = f"/stores/counts/a?after=web-in:0:{1 << 40}&timeout=200ms"
        assert "has not seen offset" in client.get(late, 503)["error"]
        assert client.headers["retry-after"] == "1"
        client.get("/nothing", 404)
        client.get("/stores/counts/w07", 405, method="POST")

        (counts,) = [s for s in client.get("/stores") if s["name"] == "counts"]
        assert set(counts["tasks"].values()) == {client.address}
        assert len(counts["tasks"]) == 4
        page = client.get("/metrics")
        assert "kafkalite_streams_records_total" in page
        assert 'kafkalite_streams_tasks{state="running"}' in page
        assert 'kafkalite_streams_input_lag_records{partition="0",topic="web-in"} 0.0' in page
        topology = client.get("/topology")
        assert topology["application_id"] == "web"
        assert sum(task["records"] for task in topology["tasks"]) == topology["worker"]["records"]
        assert topology["worker"]["records"] >= len(WORDS) + 2
        passed = {each["operator"]: each for each in topology["passed"]}
        assert passed["web-in"]["records"] == len(WORDS) + 2
        assert passed["web-in"]["records_per_second"] >= 0
        assert topology["worker"]["records_per_second"] >= 0
        assert 'kafkalite_streams_node_records_total{operator="web-in"}' in page
        assert "kafkalite_streams_commit_seconds_total" in page
    finally:
        app.stop()
    with pytest.raises(ConnectionError):
        client.get("/health")


def test_any_worker_answers_for_all(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_topics(address, "both")
    apps = [words("both"), words("both")]
    clients = [started(app, address, capsys) for app in apps]
    try:
        with Producer(address) as producer:
            for word in WORDS:
                producer.send("both-in", word.encode())
            producer.flush()
        told: dict[str, Any] = {}
        for _ in range(200):  # until both have tasks, and have counted
            (told,) = [s for s in clients[0].get("/stores") if s["name"] == "counts"]
            owners = set(told["tasks"].values())
            if owners == {client.address for client in clients}:
                rows = clients[0].get("/stores/counts")["rows"]
                if len(rows) == len(WORDS):
                    break
            time.sleep(0.1)
        for client in clients:
            asked = set()
            for word in WORDS:
                assert client.get(f"/stores/counts/{word}") == {"key": word, "value": 1}
                asked.add(client.headers["x-kafkalite-worker"])
            assert asked == {each.address for each in clients}
            keys = [row["key"] for row in client.get("/stores/counts?limit=100")["rows"]]
            assert keys == WORDS
            assert "no row of" in client.get("/stores/counts/nobody", 404)["error"]
    finally:
        for app in apps:
            app.stop()


def test_an_address_in_use_is_named(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_topics(address, "twice")
    app = words("twice")
    client = started(app, address, capsys)
    try:
        with pytest.raises(ConfigError, match=f"--http: cannot listen on {client.address}: the ad"):
            words("other").start(address, http=client.address)
    finally:
        app.stop()


APP = """
from kafkalite.streams import Streams, string
app = Streams("served", key=string(), value=string())
app.stream("served-in").group_by(lambda word: word).count(name="counts")
"""


def _status(folder: Path, address: str, *options: str) -> str:
    command = [sys.executable, "-m", "kafkalite.cli.streams", "status", "app.py", "-b", address]
    done = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def _look_at_status(folder: Path, address: str, addresses: list[str]) -> None:
    # The lag is 0 for a moment while the second half of the topology has got nothing yet.
    for _ in range(50):
        told = text.loads(_status(folder, address, "--json"))
        lines = _status(folder, address).splitlines()
        if told["lag"] == 0 and lines[0].endswith(" lag 0"):
            break
    assert told["lag"] == 0
    assert {worker["worker"] for worker in told["workers"]} == set(addresses)
    assert {worker["state"] for worker in told["workers"]} == {"ready"}
    tasks = {task["task"]: task for task in told["tasks"]}
    assert sorted(tasks) == [f"{sub}_{number}" for sub in (0, 1) for number in range(4)]
    assert {task["worker"] for task in tasks.values()} == set(addresses)
    assert tasks["1_0"]["stores"] == ["counts"]
    assert all(isinstance(task["records"], int) for task in tasks.values())
    assert all(isinstance(task["records_per_second"], float) for task in tasks.values())
    assert lines[0] == "served: 2 workers, lag 0"
    assert sum(line.startswith(tuple(addresses)) for line in lines) == 2


def test_the_command_serves_each_of_its_workers(address: str, tmp_path: Path) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic("served-in", 4)])
    with Producer(address) as producer:
        for word in WORDS:
            producer.send("served-in", word.encode())
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "kafkalite.cli.streams", "run", "app.py", "-b", address]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--http", "127.0.0.1:0"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        addresses: list[str] = []
        while len(addresses) < 2 and (line := process.stderr.readline()):
            if " answers at http://" in line:
                addresses.append(line.split("http://")[1].strip())
        clients = [Client(each) for each in addresses]
        for client in clients:
            client.until_ready()
        for _ in range(100):
            if len(clients[1].get("/stores/counts")["rows"]) == len(WORDS):
                break
            time.sleep(0.1)
        assert [row["key"] for row in clients[0].get("/stores/counts")["rows"]] == WORDS
        _look_at_status(tmp_path, address, addresses)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert _status(tmp_path, address).startswith("served does not run; lag ")
