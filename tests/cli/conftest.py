"""Commands, against the session's broker, or any other by its address.

In the whole suite a command that ends by itself is a process of its own, a fork (`warm.py`). In the
fast tier it runs within the process of the test (`inside.py`), at a fifth of the cost.

`KAFKALITE_TEST_BOOTSTRAP=127.0.0.1:9092 pytest tests/cli` runs the same tests against another
broker, Apache Kafka's for example; what looks into our broker's own files or process is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hints import without_hint
from inside import run_inside
from warm import script

Program = Callable[..., "Ran"]
Way = Callable[[tuple[str, ...], bytes, Mapping[str, str]], tuple[int, bytes, bytes]]
COMMAND = [sys.executable, "-m", "kafkalite.cli"]
SECONDS_MAX = 60


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it said."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """stdout as a JSON document a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def lines(self) -> list[str]:
        """stdout as lines."""
        return self.out.decode().splitlines()


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker to talk to."""
    elsewhere = os.environ.get("KAFKALITE_TEST_BOOTSTRAP")
    return elsewhere or str(request.getfixturevalue("broker").bootstrap_servers)


def environment(bootstrap: str) -> dict[str, str]:
    return {**os.environ, "KAFKALITE_BOOTSTRAP_SERVERS": bootstrap, "TZ": "UTC", "COLUMNS": "100"}


@pytest.fixture(scope="session")
def way(fast_tier: bool) -> Way:
    """How a command is run to its end."""
    return run_inside if fast_tier else run_forked


def run_forked(
    command: tuple[str, ...], stdin: bytes, environ: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    """Runs one command, a program and its arguments, to its end: its exit code, stdout and
    stderr."""
    ran = subprocess.run(
        [script(command[0]), *command[1:]],
        input=stdin, env=environ, capture_output=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture(scope="session")
def program(bootstrap: str, way: Way) -> Callable[[str], Program]:
    """What runs commands of the program of that name."""

    def named(name: str) -> Program:
        def run(*arguments: str, stdin: bytes = b"", code: int = 0, **variables: str) -> Ran:
            environ = environment(bootstrap) | variables
            ended, out, err = way((name, *arguments), stdin, environ)
            ran = Ran(ended, out, without_hint(err.decode()))
            assert ran.code == code, (name, *arguments, ran)
            return ran

        return run

    return named


@pytest.fixture(scope="session")
def kafkalite(program: Callable[[str], Program]) -> Program:
    """`kafkalite("topics", "list", stdin=b"", code=0, COLUMNS="80")`: runs a command to its end."""
    return program("kafkalite")


@pytest.fixture(scope="session")
def kafkalite_streams(program: Callable[[str], Program]) -> Program:
    """`kafkalite_streams("describe", "app.py", ...)`: the same of `kafkalite-streams`."""
    return program("kafkalite-streams")


@pytest.fixture(scope="session")
def kafkalite_spark(program: Callable[[str], Program]) -> Program:
    """`kafkalite_spark("load", "orders", ...)`: the same of `kafkalite-spark`."""
    return program("kafkalite-spark")


@pytest.fixture(scope="session")
def refused(kafkalite: Program) -> Callable[..., str]:
    """`refused("topics", "describe", "x", program=kafkalite)`: the one line on stderr of a command
    that fails."""

    def run(*arguments: str, stdin: bytes = b"", program: Program = kafkalite) -> str:
        ran = program(*arguments, stdin=stdin, code=1)
        assert ran.err.startswith("kafkalite: "), ran
        assert ran.err.count("\n") == 1, ran
        assert ran.out == b"", ran
        return ran.err.removeprefix("kafkalite: ").rstrip("\n")

    return run


@pytest.fixture(scope="session")
def start_command(bootstrap: str) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a command with pipes, to be talked to and sent signals."""

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment(bootstrap)
        )

    return start
