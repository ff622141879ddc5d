"""`kafkalite-spark load` as a process: rounds, signals, and what is left after kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest

from kafkalite.cli.spark_rounds import TRIES_MAX, Rounds, Signals, may_pass
from kafkalite.errors import ApiError, BrokerUnavailable, ConfigError, ErrorCode, SerdeError
from kafkalite.warehouse.engines import LocalEngine
from kafkalite.warehouse.workspace import TableHeld, Workspace

Run = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(bootstrap: str, topic: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a load of the topic, without Spark unless the arguments say otherwise."""
    running: list[subprocess.Popen[str]] = []

    def go(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kafkalite.cli.spark", "load", topic, "-b", bootstrap]
        command += ["--engine", "local", "--value", f"{topic}=string"]
        command += ["--warehouse", str(tmp_path / "warehouse"), *arguments]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return running[-1]

    yield go
    for process in running:
        process.kill()
        process.communicate()


def test_rounds_load_what_is_new_until_a_signal(
    start: Start, kafkalite: Run, topic: str, tmp_path: Path
) -> None:
    kafkalite("produce", topic, "--create", stdin=b"one\ntwo\n")
    process = start("--continuous", "100ms", "--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert (first["records"], first["lag"]) == (2, 0)
    kafkalite("produce", topic, stdin=b"three\n")
    while not (later := json.loads(process.stdout.readline()))["records"]:
        pass
    assert later["records"] == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0, "a signal is how such a command ends"
    table = tmp_path / "warehouse" / topic.replace("-", "_")
    rows = ds.dataset(table, format="parquet").to_table()["value"].to_pylist()
    assert sorted(rows) == ["one", "three", "two"]


def test_rounds_end_at_a_time(start: Start, kafkalite: Run, topic: str) -> None:
    kafkalite("produce", topic, "--create", stdin=b"one\n")
    until = int(time.time() * 1000) + 1_500
    process = start("--continuous", "200ms", "--json", "--until", str(until))
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert sum(json.loads(line)["records"] for line in out.splitlines()) == 1
    assert time.time() * 1000 >= until


def test_a_second_command_says_who_holds_the_table(
    start: Start, kafkalite: Run, topic: str, tmp_path: Path
) -> None:
    kafkalite("produce", topic, "--create", stdin=b"one\n")
    assert start().wait(100) == 0
    table = tmp_path / "warehouse" / topic.replace("-", "_")
    with Workspace(table).locked():
        process = start()
        _, error = process.communicate(timeout=100)
    assert process.returncode == 1
    assert error.startswith(f"kafkalite: table {table} is held by a load: process {os.getpid()} on")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--continuous", "1ms"], "--continuous 1ms: shorter than 100 ms"),
        (["--continuous", "1s", "--once"], "--once and --continuous: give one of them"),
        (["--continuous", "1s", "--query", __file__], "--query and --continuous: give one of them"),
    ],
)
def test_rounds_that_make_no_sense_are_named(
    refused: Run, kafkalite_spark: Run, arguments: list[str], complaint: str
) -> None:
    words = ("load", "x", "--engine", "local", *arguments)
    assert refused(*words, program=kafkalite_spark) == complaint


SLEEPING = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from kafkalite.warehouse.engines import LocalEngine
print("ready", flush=True)
list(LocalEngine(2).run(time.sleep, [100.0] * 3))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_command(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SLEEPING]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        own = psutil.Process(process.pid)
        while len(workers := own.children(recursive=True)) < 3:  # one counts semaphores
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(60)
        gone, alive = psutil.wait_procs(workers, 60)
        for worker in alive:
            worker.kill()
        assert not alive
        assert gone


class Interrupted(list[float]):
    """The user's Ctrl-C comes once the first worker has started."""

    def __iter__(self) -> Iterator[float]:
        yield self[0]
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_ctrl_c_while_workers_start_ends_those_that_have() -> None:
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(2).run(time.sleep, Interrupted([1_000.0, 1_000.0])))


class Failing:
    """A topic's loads, of which the first `failures` fail."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left, self.error, self.calls = failures, error, 0

    def __call__(self, topic: str) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        raise Ended


class Ended(Exception):
    """A load came so far."""


def rounds(make: Failing, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between the loads."""
    waits: list[float] = []
    monkeypatch.setattr("kafkalite.cli.spark_rounds.time.sleep", waits.append)
    Rounds(["x"], make, lambda _: None, Signals()).every(1.0, lambda _: None)
    return waits


def test_an_error_that_may_pass_is_named_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = Failing(3, BrokerUnavailable("no answer"))
    with pytest.raises(Ended):
        rounds(make, monkeypatch)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"kafkalite: no answer; load 2 of {TRIES_MAX} in 1 s"
    assert told[2] == f"kafkalite: no answer; load 4 of {TRIES_MAX} in 4 s"
    make = Failing(1_000, BrokerUnavailable("no answer"))
    with pytest.raises(BrokerUnavailable):
        rounds(make, monkeypatch)
    assert make.calls == TRIES_MAX
    make = Failing(1, SerdeError("spoilt"))
    with pytest.raises(SerdeError):
        rounds(make, monkeypatch)


def test_errors_that_may_pass() -> None:
    assert may_pass(TableHeld("held"))
    assert may_pass(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert not may_pass(ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert not may_pass(ConfigError("no"))


class Committing:
    """A load, as signals see it."""

    is_committing = True


def test_a_signal_waits_for_the_end_of_a_commit() -> None:
    load: Any = Committing()
    signals = Signals(load=load)
    before = signal.getsignal(signal.SIGINT)
    with signals.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        load.is_committing = False
        with pytest.raises(SystemExit, match="143"):
            signals.check()
    assert signal.getsignal(signal.SIGINT) is before
