"""The log of `kafkalite server start`, and how it takes signals."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from hints import without_hint

from kafkalite.cli.server_log import JsonLines, parse_levels

COMMAND = [sys.executable, "-m", "kafkalite.cli", "server", "start", "--listen", "127.0.0.1:0"]


@contextmanager
def started(data_dir: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A broker that is ready."""
    pipe = subprocess.PIPE
    command = [*COMMAND, "--data-dir", str(data_dir), *arguments]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate()


def stopped(process: subprocess.Popen[str]) -> list[str]:
    """The lines of the log of a broker that was told to stop."""
    process.terminate()
    return without_hint(process.communicate(timeout=20)[1]).splitlines()


def lines_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The same, each a JSON object."""
    return [json.loads(line) for line in stopped(process)]


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the log ended without {words!r}")


@pytest.mark.slow
def test_a_broker_outlives_its_terminal(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            assert "INFO" in read_until(process, "SIGHUP is ignored")
        assert "SIGTERM, stopped in" in stopped(process)[-1]
        assert process.returncode == 0


@pytest.mark.slow
def test_only_the_first_signal_counts(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)  # so that both are there at once
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        (line,) = without_hint(process.communicate(timeout=20)[1]).splitlines()
        assert ", stopped in " in line
        assert line.endswith(", clean")
        assert process.returncode == 0


@pytest.mark.slow
def test_a_stop_that_the_disk_refuses_is_not_clean(tmp_path: Path) -> None:
    with started(tmp_path / "d", "--log-format", "json") as process:
        (tmp_path / "d").rename(tmp_path / "gone")
        *_, stop, end = lines_of(process)
    assert (stop["level"], end["level"]) == ("ERROR", "CRITICAL")
    assert stop["message"].startswith("SIGTERM, stopped in ")
    assert ", not clean: " in stop["message"]
    assert end["message"] in stop["message"]
    assert process.returncode == 1


@pytest.mark.slow
def test_levels_decide_what_is_logged(tmp_path: Path) -> None:
    with started(tmp_path, "--log-level", "error") as process:
        process.send_signal(signal.SIGHUP)
        assert stopped(process) == []
    levels = (
        "--log-level",
        "warn",
        "--log-level",
        "kafkalite.cli=INFO",
        "--log-level",
        "asyncio=DEBUG",
    )
    overrides = ("--override", "num.io.threads=3")
    with started(tmp_path, *levels, *overrides) as process:
        log = stopped(process)
    assert not [line for line in log if "num.io.threads" in line]
    assert [line for line in log if " INFO kafkalite.cli.server: SIGTERM, stopped" in line]


@pytest.mark.slow
def test_in_json_every_line_is_an_object(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("my.plugin=1\nnum.io.threads=3\n")
    with started(tmp_path / "d", "--config", str(config), "--log-format", "json") as process:
        lines = lines_of(process)
    assert {"ts", "level", "logger", "message"} == set().union(*lines)
    messages = [line["message"] for line in lines]
    assert f"{config}:1, 'my.plugin=1': not a setting of brokers, ignored" in messages
    assert "num.io.threads is accepted and has no effect" in messages
    assert lines[-1]["logger"] == "kafkalite.cli.server"
    assert lines[-1]["ts"].endswith("Z")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--override", "num.partitions=x"], "Invalid value x for configuration num.partitions"),
        (["--data-dir", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_in_json_the_end_is_an_object_too(
    kafkalite: Callable[..., Any], tmp_path: Path, arguments: list[str], words: str
) -> None:
    where = ("--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    ran = kafkalite("server", "start", *where, "--log-format", "json", *arguments, code=1)
    lines = [json.loads(line) for line in ran.err.splitlines()]
    # A broker of other tests may log to the same stream meanwhile, if the machine is busy.
    assert [line["level"] for line in lines if line["level"] != "WARNING"] == ["CRITICAL"]
    assert words in lines[-1]["message"]
    assert "error" not in lines[-1]


def test_in_json_faults_of_threads_and_of_the_program_are_objects() -> None:
    program = (
        "import threading, warnings\n"
        "from kafkalite.cli.server_log import LogFormat, last_words, log_to_stderr\n"
        "log_to_stderr(LogFormat.JSON)\n"
        "class Bad:\n"
        "    def __del__(self):\n"
        "        raise ValueError('in a finalizer')\n"
        "def fail():\n"
        "    raise ValueError('in a\\nthread')\n"
        "thread = threading.Thread(target=fail)\n"
        "thread.start()\n"
        "thread.join()\n"
        "Bad()\n"
        "warnings.warn('beware')\n"
        "import typer\n"
        "try:\n"
        "    with last_words(LogFormat.JSON):\n"
        "        1 / 0\n"
        "except typer.Exit as end:\n"
        "    raise SystemExit(end.exit_code)\n"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    thread, finalizer, warning, end = map(json.loads, done.stderr.splitlines())
    assert done.returncode == 1
    assert "ValueError: in a\nthread" in thread["error"]
    assert "ValueError: in a finalizer" in finalizer["error"]
    assert "beware" in warning["message"]
    assert "ZeroDivisionError" in end["error"]
    assert end["level"] == "CRITICAL"


def test_a_message_stays_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "a\nb\u2028\udcff%s", ("\r",), None)
    line = JsonLines().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == "a\nb\u2028\udcff\r"


def test_levels_read() -> None:
    given = ["debug", "kafkalite.core.log=Warn", "root=ERROR", "x=trace", "x=fatal"]
    assert parse_levels(given) == {
        "": logging.ERROR,
        "kafkalite.core.log": logging.WARNING,
        "x": logging.CRITICAL,
    }
    for wrong in ("", "loud", "x=", "=INFO", "x=loud", "10"):
        with pytest.raises(typer.BadParameter, match="a level is DEBUG, INFO"):
            parse_levels([wrong])
