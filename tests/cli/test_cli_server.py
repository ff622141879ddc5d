"""`kafkalite server start` as a user meets it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from hints import without_hint

Run = Callable[..., Any]
COMMAND = [sys.executable, "-m", "kafkalite.cli"]
ANY_PORT = "127.0.0.1:0"


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("kafkalite is ready at "), line or process.communicate()[1]
    return line.split()[4]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_it_says_when_it_is_ready_and_stops_when_told(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(
        "server", "start", "--data-dir", str(tmp_path / "d"), "--listen", ANY_PORT
    ) as process:
        host, _, port = ready(process).rpartition(":")
        socket.create_connection((host, int(port))).close()
        process.send_signal(number)
        rest, log = process.communicate(timeout=20)
        assert (process.returncode, rest) == (0, "")
        words = rf"\S+Z INFO kafkalite.cli.server: {number.name}, stopped in \d+\.\d\d s, clean\n"
        assert re.fullmatch(words, without_hint(log))
        assert (tmp_path / "d" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_stop_ends_the_wait_for_zookeeper(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        zookeeper = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("--zookeeper", zookeeper, "--broker-id", "1", "--listen", ANY_PORT)
        patience = "--override=zookeeper.connection.timeout.ms=600000"
        with started(
            "server", "start", "--data-dir", str(tmp_path / "d"), *arguments, patience
        ) as process:
            assert process.stderr is not None
            assert "Connecting to 127.0.0.1" in next(filter(without_hint, process.stderr))
            process.send_signal(number)
            out, log = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    words = rf"\S+Z INFO kafkalite.cli.server: {number.name} before the broker was ready, stopped"
    assert re.fullmatch(words + r" in \d+\.\d\d s", log.splitlines()[-1])


@pytest.mark.slow
def test_it_stops_at_the_end_of_stdin_if_asked_to(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--listen", ANY_PORT, "--exit-with-parent")
    with started("server", "start", *arguments) as process:
        ready(process)
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert "the end of stdin, stopped in" in process.communicate(timeout=20)[1]
        assert process.returncode == 0


@pytest.mark.slow
def test_two_in_one_directory_or_at_one_address(tmp_path: Path, refused: Run) -> None:
    with started(
        "server", "start", "--data-dir", str(tmp_path / "a"), "--listen", ANY_PORT
    ) as process:
        address = ready(process)
        log = refused("server", "start", "--data-dir", str(tmp_path / "a"), "--listen", ANY_PORT)
        assert f"{tmp_path / 'a'}: in use by process {process.pid}" in log
        log = refused("server", "start", "--data-dir", str(tmp_path / "b"), "--listen", address)
        why = "the address is in use, port 0 takes a free one"
        assert log == f"cannot listen on {address}: {why}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--override", "log.segment.bytes=x"], "Invalid value x for configuration log.segm"),
        (["--override", "nonsense=1"], "nonsense"),
        (["--listen", "127.0.0.1"], "'127.0.0.1': expected HOST:PORT"),
        (["--listen", "no.such.host.invalid:1"], "cannot listen on no.such.host.invalid:1"),
        (["--listen", "203.0.113.7:0"], "cannot listen on 203.0.113.7:0"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--data-dir", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, refused: Run, arguments: list[str], words: str
) -> None:
    where = ("--data-dir", str(tmp_path), "--listen", ANY_PORT)
    assert words in refused("server", "start", *where, *arguments)


@pytest.mark.parametrize(
    "arguments", [[], ["--nonsense"], ["--data-dir"], ["--data-dir", "x", "--override", "nonsense"]]
)
def test_flags_that_make_no_sense_end_with_2(kafkalite: Run, arguments: list[str]) -> None:
    assert kafkalite("server", "start", *arguments, code=2).out == b""


@pytest.mark.slow
def test_settings_come_from_a_file_and_flags_win(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "node.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\nnum.network.threads=3\nmy.plugin.level=3\n"
        "super.users=User:me\n"
    )
    arguments = ("--data-dir", str(tmp_path / "d"), "--config", str(config))
    with started("server", "start", *arguments, "--override", "node.id=9") as process:
        ready(process)
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert "num.network.threads is accepted and has no effect" in log
    assert f"{config}:4, 'my.plugin.level=3': not a setting of brokers, ignored\n" in log
    assert "'super.users=User:me': read only by an authorizer, and there is none: ignored" in log
    assert "node.id=9" in (tmp_path / "d" / "meta.properties").read_text()


def test_lines_of_the_file_that_are_wrong_are_named(
    tmp_path: Path, kafkalite: Run, refused: Run
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "# mine\nlog.retention.hour=3\nssl.keystore.pasword=hunter2\nlog.roll.hours=soon\n"
    )
    data = ("--data-dir", str(tmp_path / "d"))
    log = kafkalite("server", "start", *data, "--config", str(config), code=1).err
    unknown = "not a setting of brokers, ignored; did you mean"
    meant, hidden, wrong = log.splitlines()
    assert meant.endswith(f"{config}:2, 'log.retention.hour=3': {unknown} 'log.retention.hours'?")
    assert hidden.endswith(
        f"{config}:3, 'ssl.keystore.pasword=(hidden)': {unknown} 'ssl.keystore.password'?"
    )
    assert wrong == (
        f"kafkalite: {config}:4, 'log.roll.hours=soon': "
        "Invalid value soon for configuration log.roll.hours: Not a number of type INT"
    )
    assert refused("server", "start", *data, "--override", "num.partition=3") == (
        "num.partition: not a setting of a broker (value '3'); did you mean 'num.partitions'?"
    )


@pytest.mark.slow
def test_the_data_directory_may_be_the_file_s(tmp_path: Path, refused: Run) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'd'}\n")
    with started("server", "start", "--config", str(config), "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert (told["data_dir"], told["pid"]) == (str(tmp_path / "d"), process.pid)
        host, _, port = told["address"].rpartition(":")
        socket.create_connection((host, int(port))).close()
    config.write_text("log.dirs=/a,/b\n")
    log = refused("server", "start", "--config", str(config))
    assert log == "log.dirs names 2 directories; give one of them"


@pytest.mark.slow
@pytest.mark.parametrize("advertised", ["localhost:9092", "far.example:9092,CONTROLLER://x:9093"])
def test_a_port_given_wins_over_the_one_that_the_file_advertises(
    tmp_path: Path, advertised: str
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n"
        f"advertised.listeners=PLAINTEXT://{advertised}\n"
    )
    arguments = ("--data-dir", str(tmp_path / "d"), "--config", str(config))
    with started("server", "start", *arguments, "--listen", ANY_PORT, "--json") as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert address.startswith("127.0.0.1:")
        assert address != "127.0.0.1:9092"
    own = ("--override", "advertised.listeners=PLAINTEXT://far.example:7")
    with started("server", "start", *arguments, "--listen", ANY_PORT, "--json", *own) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["address"] == "far.example:7"


@pytest.mark.slow
def test_several_listeners_are_told_when_it_is_ready(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "listeners=INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0\n"
        "advertised.listeners=INTERNAL://127.0.0.1:0,EXTERNAL://far.example:29092\n"
        "listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT\n"
        "inter.broker.listener.name=INTERNAL\n"
    )
    arguments = ("--data-dir", str(tmp_path / "d"), "--config", str(config))
    with started("server", "start", *arguments, "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["listeners"] == {
            "INTERNAL": told["address"],
            "EXTERNAL": "far.example:29092",
        }
        assert told["address"].startswith("127.0.0.1:")
    with started("server", "start", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith(f" (EXTERNAL at far.example:29092, data in {tmp_path / 'd'})\n")
    with started("server", "start", *arguments, "--listen", ANY_PORT, "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["listeners"] == {"PLAINTEXT": told["address"]}
        process.terminate()
        log = process.communicate(timeout=20)[1]
        assert log.count("is of another listener than --listen 127.0.0.1:0, left out") == 2


@pytest.mark.parametrize(
    ("lines", "number", "words"),
    [
        ("authorizer.class.name=\\\n  a.b.C\n", 3, "authorizer.class.name=a.b.C: kafkalite has no"),
        ("\n\nlisteners=SASL_SSL://:9093\n", 5, "listeners 'SASL_SSL://:9093'"),
        ("listener.security.protocol.map=PLAINTEXT:SSL\n", 2, "has it speak SSL"),
        ("num.partitions=x\n", 3, "Invalid value x for configuration num.partitions"),
    ],
)
def test_a_protection_that_is_not_there_is_refused_with_the_file_s_line(
    tmp_path: Path, refused: Run, lines: str, number: int, words: str
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"# mine\nlisteners=PLAINTEXT://127.0.0.1:0\n{lines}")
    log = refused("server", "start", "--data-dir", str(tmp_path / "d"), "--config", str(config))
    assert log.startswith(f"{config}:{number}, '")
    assert words in log
    assert not (tmp_path / "d").exists()


def test_a_setting_of_a_flag_is_not_blamed_on_the_file(tmp_path: Path, refused: Run) -> None:
    config = tmp_path / "server.properties"
    config.write_text("listeners=PLAINTEXT://127.0.0.1:0\nauthorizer.class.name=\n")
    arguments = ("--data-dir", str(tmp_path / "d"), "--config", str(config))
    log = refused("server", "start", *arguments, "--override", "authorizer.class.name=a.b.C")
    assert log.startswith("authorizer.class.name=a.b.C: ")
    log = refused("server", "start", *arguments, "--listen", "SSL://127.0.0.1:0")
    assert log.startswith("listeners 'SSL://127.0.0.1:0': ")


@pytest.mark.slow
def test_metrics_and_health_say_where_they_are(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--listen", ANY_PORT, "--http", ANY_PORT)
    with started("server", "start", *arguments, "--json") as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["http"]
        with urlopen(f"{url}/health", timeout=20) as response:
            assert json.load(response)["status"] == "ready"
        with urlopen(f"{url}/metrics", timeout=20) as response:
            page = response.read().decode()
        assert "kafkalite_loop_lag_seconds_count" in page
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.7)
        process.send_signal(signal.SIGCONT)
        with urlopen(f"{url}/metrics", timeout=20) as response:
            page = response.read().decode()
        lag = dict(line.rsplit(" ", 1) for line in page.splitlines() if "loop_lag_seconds" in line)
        punctual = float(lag['kafkalite_loop_lag_seconds_bucket{le="0.5"}'])
        assert punctual < float(lag["kafkalite_loop_lag_seconds_count"])
        process.terminate()
        assert process.wait(20) == 0
    with started("server", "start", *arguments) as process:
        assert process.stdout is not None
        assert "(metrics at http://127.0.0.1:" in process.stdout.readline()


@pytest.mark.slow
def test_health_answers_while_the_logs_are_read_at_the_start(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--listen", ANY_PORT)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        http = f"127.0.0.1:{probe.getsockname()[1]}"
    held_up = (
        "import sys, time\n"
        "from kafkalite.core.replicas.manager import Partitions\n"
        "hold_all = Partitions.hold_all\n"
        "def slowly(self):\n"
        "    sys.stdin.readline()\n"  # holds the loop, as a long recovery does
        "    hold_all(self)\n"
        "Partitions.hold_all = slowly\n"
        "from kafkalite.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", held_up, "server", "start", *arguments, "--http", http]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        until = time.monotonic() + 30
        answer: HTTPError | None = None
        while answer is None:
            assert time.monotonic() < until
            try:
                urlopen(f"http://{http}/health", timeout=20)
            except HTTPError as error:
                answer = error
            except URLError:  # not bound yet
                time.sleep(0.05)
        assert (answer.code, json.load(answer)["status"]) == (503, "starting")
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        ready(process)
        with urlopen(f"http://{http}/health", timeout=20) as response:
            assert response.status == 200
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_listening_everywhere_tells_clients_a_numeric_address(tmp_path: Path) -> None:
    with started(
        "server", "start", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:0"
    ) as process:
        host = ready(process).rpartition(":")[0]
        assert host != "0.0.0.0"
        assert all(part.isdigit() for part in host.split("."))
        process.terminate()
        assert "advertised to clients as" in process.communicate(timeout=20)[1]


def test_a_registry_says_where_it_is(bootstrap: str) -> None:
    arguments = ("-b", bootstrap, "--listen", ANY_PORT, "--json")
    with started("registry", "start", *arguments) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["log"] == bootstrap
        assert told["url"].startswith("http://127.0.0.1:")
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0
