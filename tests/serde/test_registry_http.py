"""The registry's HTTP: bounds, content types, what goes wrong, and what is in the metrics."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hints import without_hint
from prometheus_client.parser import text_string_to_metric_families

from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ApiError, BrokerUnavailable, ConfigError, ErrorCode
from kafkalite.monitoring.monitor import Health, State, Unready
from kafkalite.serde import registry_http, registry_server
from kafkalite.serde.registry import Registry
from kafkalite.serde.registry_http import AT_WORK_MAX, BODY_BYTES_MAX, RegistryApp
from kafkalite.serde.registry_metrics import RegistryMetrics
from kafkalite.serde.registry_server import LogKeeper, RegistryServer

pytestmark = pytest.mark.xdist_group("registry_http")  # one worker starts their broker, once

V1 = "application/vnd.schemaregistry.v1+json"


# --- the application alone, over a log that does as it is told ---------------------------------


class Log:
    """A schema log of no topic. `fault` is what every use of it ends with."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.registry, self.fault, self.cluster_id, self.failure = Registry(), fault, "c", None

    async def catch_up(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def write(self, decide: Callable[[Registry], Any]) -> Any:
        await self.catch_up()
        answer, records = decide(self.registry)
        for record in records:
            self.registry.replay(*record)
        return answer


class Door:
    """Calls an application without a socket."""

    def __init__(
        self, log: Any, opened: Callable[[], Awaitable[Any]] | None = None, beside: Any = None
    ) -> None:
        async def at_once() -> Any:
            return log

        self.metrics = RegistryMetrics(dict)
        self.app = RegistryApp(opened or at_once, self.metrics, version="1", beside=beside)

    async def __call__(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterator[bytes] = b"",
        **headers: str,
    ) -> tuple[int, Any]:
        chunks = body if isinstance(body, AsyncIterator) else one(body)
        sent: list[Any] = []

        async def receive() -> Any:
            async for chunk in chunks:
                return {"type": "http.request", "body": chunk, "more_body": True}
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        if method in ("POST", "PUT"):
            headers = {"content_type": V1, **headers}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
            "server": ("127.0.0.1", 1),
            "scheme": "http",
        }
        await self.app(scope, receive, send)
        data = b"".join(part.get("body", b"") for part in sent[1:])
        return sent[0]["status"], json.loads(data) if data[:1] in (b"{", b"[") else data.decode()


async def one(body: bytes) -> AsyncIterator[bytes]:
    yield body


def ask(method: str, path: str, body: bytes = b"", log: Any = None, **headers: str) -> Any:
    return asyncio.run(Door(log or Log())(method, path, body, **headers))


def code(answer: tuple[int, Any]) -> tuple[int, int]:
    return answer[0], answer[1]["error_code"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "expected"),
    [
        ("GET", "/nix", b"", {}, (404, 404)),
        ("GET", "/subjects/s/nix/1", b"", {}, (404, 404)),
        ("PUT", "/subjects", b"", {}, (405, 405)),
        ("POST", "/v1/metadata/id", b"", {}, (404, 404)),
        ("GET", "/" + "x" * 9000, b"", {}, (414, 414)),
        ("GET", "/subjects/%ff/versions", b"", {}, (400, 400)),
        ("GET", "/subjects", b"", {"accept": "text/html"}, (406, 406)),
        ("PUT", "/config", b"{}", {"content_type": "text/html"}, (415, 415)),
        ("PUT", "/config", b"{}", {"content_type": ""}, (415, 415)),
        (
            "PUT",
            "/config",
            b"{}",
            {"content_type": "application/x-www-form-urlencoded"},
            (415, 415),
        ),
        ("PUT", "/config", b"{}", {"content_type": "application/octet-stream"}, (415, 415)),
        ("PUT", "/config", b"{}", {"content_type": V1 + "; charset=nix"}, (415, 415)),
        (
            "PUT",
            "/config",
            b"{}",
            {"content_type": V1 + ";charset=utf-8;charset=cp037"},
            (415, 415),
        ),
        ("PUT", "/config", b'{"x": "\xff"}', {}, (400, 400)),
        ("PUT", "/config", b"{", {}, (400, 400)),
        ("PUT", "/config", b"", {}, (400, 400)),
        ("PUT", "/config", b"[" * 100_000, {}, (400, 400)),
        ("PUT", "/config", b"7", {}, (422, 422)),
        ("PUT", "/config", b" " * (BODY_BYTES_MAX + 1), {}, (413, 413)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_that_is_none_is_told_why(
    method: str, path: str, body: bytes, headers: dict[str, str], expected: tuple[int, int]
) -> None:
    assert code(ask(method, path, body, **headers)) == expected


@pytest.mark.parametrize(
    "accept",
    ["*/*", "*", "application/*", V1, "text/html, */*;q=0.1", f"{V1};q=x, application/json"],
)
def test_any_json_will_do(accept: str) -> None:
    assert ask("GET", "/subjects", accept=accept) == (200, [])


@pytest.mark.parametrize(
    "content_type",
    [V1, "application/json", "application/vnd.schemaregistry+json", "Application/JSON",
     V1 + "; charset=utf-8", V1 + ';v=1; Charset="UTF-8"'],
)  # fmt: skip
def test_a_body_is_json_in_utf_8(content_type: str) -> None:
    body = b'{"compatibility": "NONE"}'
    assert ask("PUT", "/config", body, content_type=content_type)[0] == 200


def test_no_other_charset_is_decoded() -> None:
    """Some of Python's take the square of a body's length."""
    body = json.dumps({"compatibility": "NONE"})
    for charset in ("utf-16", "punycode", "idna", "utf-7"):
        kind = f"{V1}; charset={charset}"
        assert code(ask("PUT", "/config", body.encode(charset), content_type=kind)) == (415, 415)


def test_a_deep_schema_is_refused() -> None:
    deep = json.dumps({"schema": '{"type":"array","items":' * 900 + '"int"' + "}" * 900})
    assert code(ask("POST", "/subjects/s/versions", deep.encode())) == (422, 42201)


@pytest.mark.parametrize(
    ("method", "origin", "is_taken"),
    [
        ("PUT", "http://registry:8081", True),
        ("PUT", "http://Registry:8081", True),
        ("PUT", "http://registry", False),
        ("PUT", "http://elsewhere", False),
        ("PUT", "null", False),
        ("POST", "http://elsewhere", False),
        ("DELETE", "http://elsewhere", False),
        ("DELETE", "http://registry:8081", True),
        ("GET", "http://elsewhere", True),
    ],
)
def test_a_page_of_another_origin_changes_nothing(method: str, origin: str, is_taken: bool) -> None:
    path = "/" if method == "POST" else "/config"
    body = b'{"compatibility": "NONE"}' if method == "PUT" else b"{}"
    answer = ask(method, path, body, host="registry:8081", origin=origin)
    if is_taken:
        assert answer[0] == 200
    else:
        assert code(answer) == (403, 403)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (BrokerUnavailable("nobody answers"), (500, 50001)),
        (ConfigError("topic _schemas has 2 partitions"), (500, 50001)),
        (ApiError(ErrorCode.MESSAGE_TOO_LARGE, "_schemas-0"), (422, 42209)),
        (RuntimeError("a fault of ours"), (500, 500)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_behind_the_door(fault: Exception, expected: tuple[int, int]) -> None:
    assert code(ask("GET", "/subjects", log=Log(fault))) == expected


def test_a_fault_of_ours_tells_the_client_nothing_of_itself() -> None:
    _, answer = ask("GET", "/subjects", log=Log(RuntimeError("secret")))
    assert "secret" not in answer["message"]


def test_a_log_or_a_client_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_http, "REQUEST_SECONDS_MAX", 0.01)
    monkeypatch.setattr(registry_http, "BODY_SECONDS_MAX", 0.01)

    async def run() -> None:
        async def never() -> Any:
            await asyncio.Event().wait()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        door = Door(None, never)
        assert code(await door("GET", "/subjects")) == (500, 50002)
        assert code(await door("GET", "/v1/metadata/id")) == (500, 50002)
        assert code(await door("PUT", "/config", slowly())) == (408, 408)

    asyncio.run(run())


def test_one_request_too_many_is_told_so_and_the_others_are_answered() -> None:
    async def run() -> None:
        gate = asyncio.Event()

        async def opened() -> Any:
            await gate.wait()
            return Log()

        door = Door(None, opened)
        waiting = [asyncio.create_task(door("GET", "/subjects")) for _ in range(AT_WORK_MAX)]
        await asyncio.sleep(0)
        assert code(await door("GET", "/subjects")) == (503, 503)
        gate.set()
        assert await asyncio.gather(*waiting) == [(200, [])] * AT_WORK_MAX
        assert await door("GET", "/subjects") == (200, [])

    asyncio.run(run())


def test_an_id_that_is_known_is_told_without_asking_the_log() -> None:
    log = Log()
    for record in log.registry.register("s", "int").records:
        log.registry.replay(*record)
    log.fault = BrokerUnavailable("nobody answers")
    assert ask("GET", "/schemas/ids/1", log=log)[1]["schema"] == '"int"'
    assert code(ask("GET", "/schemas/ids/2", log=log)) == (500, 50001)
    assert code(ask("GET", "/subjects/s/versions/1", log=log)) == (500, 50001)


# --- metrics -----------------------------------------------------------------------------------


def samples(page: bytes | str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = page if isinstance(page, str) else page.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_not_by_what_clients_write() -> None:
    async def run() -> Any:
        door = Door(Log())
        await door("GET", "/subjects/a/versions")
        await door("GET", "/subjects/b/versions")
        await door("GET", "/nix/nix")
        return samples((await door("GET", "/metrics"))[1])

    found = asyncio.run(run())
    name, path = "kafkalite_registry_requests_total", "/subjects/{subject}/versions"
    assert found[name, (("path", path), ("status", "404"))] == 2
    assert found[name, (("path", "-"), ("status", "404"))] == 1
    assert found["kafkalite_registry_request_seconds_count", (("path", path),)] == 2


def test_a_broker_beside_is_on_the_page_and_its_health_too() -> None:
    class Beside:
        text = b"kafkalite_partitions 9.0\n"

        async def metrics(self) -> bytes:
            if not self.text:
                raise Unready("the broker is stopping")
            return self.text

        async def health(self) -> Health:
            return Health(State.READY, (), 9)

    async def run() -> None:
        beside: Any = Beside()
        door = Door(Log(), beside=beside)
        found = samples((await door("GET", "/metrics"))[1])
        assert found["kafkalite_partitions", ()] == 9
        assert (
            "kafkalite_registry_requests_total",
            (("path", "-"), ("status", "404")),
        ) not in found
        status, health = await door("GET", "/health")
        assert (status, health["status"], health["partitions"]) == (200, "ready", 9)
        beside.text = b""
        page = (await door("GET", "/metrics"))[1]
        assert "kafkalite_registry_requests" in str(page)
        assert "kafkalite_partitions" not in str(page)
        assert code(await Door(Log())("GET", "/health")) == (404, 404)

    asyncio.run(run())


# --- the log, opened again ---------------------------------------------------------------------


def test_a_log_that_failed_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Failing(Log):
        def __init__(self, servers: str) -> None:
            super().__init__()
            self.is_open = False
            made.append(self)

        async def open(self) -> None:
            if len(made) == 1:
                raise BrokerUnavailable("not yet")
            self.is_open = True

        async def close(self) -> None:
            self.is_open = False

    monkeypatch.setattr(registry_server, "SchemaLog", Failing)

    async def run() -> None:
        keeper = LogKeeper("nowhere:1")
        assert keeper.gauges() == {"is_open": 0}
        with pytest.raises(BrokerUnavailable):
            await keeper.opened()
        await keeper.open_sooner_or_later()
        second = await keeper.opened()
        assert (second, len(made), keeper.gauges()["is_open"]) == (made[1], 2, 1)
        made[1].failure = ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, "_schemas-0")
        assert keeper.gauges()["is_open"] == 0
        third = await keeper.opened()
        assert (third, made[1].is_open, made[2].is_open) == (made[2], False, True)
        await keeper.close()
        assert not made[2].is_open

    asyncio.run(run())


# --- real sockets ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("data"), registry=True) as running:
        yield running


def connect(broker: EmbeddedBroker) -> http.client.HTTPConnection:
    assert broker.registry_url is not None
    host, _, port = broker.registry_url.removeprefix("http://").rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=30)


def test_one_connection_serves_many_requests_heads_and_encoded_slashes(
    broker: EmbeddedBroker,
) -> None:
    with closing(connect(broker)) as connection:
        for method, path, body, status in (
            ("POST", "/subjects/a%2Fb%20%C3%A4/versions", b'{"schema":"\\"int\\""}', 200),
            ("GET", "/subjects", None, 200),
            ("HEAD", "/subjects", None, 200),
            ("GET", "/subjects/a%2Fb%20%C3%A4/versions/", None, 200),
            ("GET", "/nix", None, 404),
            ("DELETE", "/subjects/a%2Fb%20%C3%A4", None, 200),
        ):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
            assert response.status == status, data
            assert response.headers["Content-Length"] is not None
            assert (data == b"") is (method == "HEAD")
            if path == "/subjects" and method == "GET":
                assert json.loads(data) == ["a/b ä"]


def test_a_body_that_is_too_large_costs_its_connection_alone(broker: EmbeddedBroker) -> None:
    with closing(connect(broker)) as connection:
        connection.request(
            "PUT", "/config", b"x" * (BODY_BYTES_MAX + 1), {"Content-Type": "application/json"}
        )
        assert connection.getresponse().status == 413
    with closing(connect(broker)) as connection:
        connection.request("GET", "/subjects")
        assert connection.getresponse().status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03" * 100,
        b"GET / FTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnix\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_bytes_that_are_no_http_harm_nobody(broker: EmbeddedBroker, data: bytes) -> None:
    assert broker.registry_url is not None
    host, _, port = broker.registry_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while chunk := peer.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
    assert answer == b"" or answer.split(b" ", 2)[1].startswith(b"4")
    with closing(connect(broker)) as connection:
        connection.request("GET", "/subjects")
        assert connection.getresponse().status == 200


def test_the_page_has_the_brokers_counters(broker: EmbeddedBroker) -> None:
    with closing(connect(broker)) as connection:
        connection.request("GET", "/subjects")
        connection.getresponse().read()
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        found = samples(response.read())
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert found["kafkalite_registry_is_open", ()] == 1
    assert found["kafkalite_partitions", ()] >= 1
    assert found["kafkalite_requests_total", (("api", "METADATA"),)] >= 1
    assert found["kafkalite_request_seconds_count", (("api", "LIST_OFFSETS"),)] >= 1
    assert found["kafkalite_loop_lag_seconds_count", ()] >= 1


def test_who_it_is(broker: EmbeddedBroker) -> None:
    with closing(connect(broker)) as connection:
        connection.request("GET", "/v1/metadata/id")
        told = json.loads(connection.getresponse().read())
        assert told["scope"]["clusters"]["kafka-cluster"]
        connection.request("GET", "/v1/metadata/version")
        assert json.loads(connection.getresponse().read())["version"]


@pytest.mark.slow
def test_an_address_in_use_is_said_in_one_line(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert broker.registry_url is not None
    address = broker.registry_url.removeprefix("http://")
    with pytest.raises(ConfigError, match="cannot listen on .*: the address is in use"):
        RegistryServer(address).bind()
    for command in (
        ["server", "start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0",
         "--registry", address],
        ["registry", "start", "--bootstrap-servers", broker.bootstrap_servers,
         "--listen", address],
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "kafkalite.cli", *command],
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = f"kafkalite: the schema registry cannot listen on {address}: the address is in use\n"
        assert (done.returncode, done.stdout, without_hint(done.stderr)) == (1, "", said)


@pytest.mark.slow
def test_a_broker_with_a_registry_stops_when_told_and_says_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kafkalite.cli", "server", "start", "--data-dir"]
    command += [str(tmp_path), "--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " (schema registry at http://127.0.0.1:" in line
        process.send_signal(signal.SIGTERM)
        rest, log = process.communicate(timeout=60)
        assert (rest, without_hint(log).count("\n")) == ("", 1)
        assert log.endswith("s, clean\n")
        assert process.returncode == 0


@pytest.mark.slow
def test_there_is_no_registry_unless_it_is_asked_for(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as plain:
        assert plain.registry_url is None


@pytest.mark.slow
def test_a_server_waits_for_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with closing(RegistryServer("127.0.0.1:0")) as server:
        server.start(address)
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        connection.request("GET", "/subjects")
        response = connection.getresponse()
        assert response.status == 500
        assert json.loads(response.read())["error_code"] in {50001, 50002}  # refused, or too long
        with EmbeddedBroker(tmp_path, listen=address):
            connection.request("GET", "/subjects")
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())) == (200, [])
        connection.close()
