"""What tests of the examples share: their modules, and their commands against the broker."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import Serde
from kafkalite.streams import Record
from kafkalite.testing.topics import TestTopic

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS_MAX = 100


def load_module(example: str, name: str) -> ModuleType:
    """`examples/<example>/<name>.py`, anew each time; it may import files beside it."""
    folder = EXAMPLES / example
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        for file in folder.glob("*.py"):  # other examples have files of the same names
            sys.modules.pop(file.stem, None)
    return module


@pytest.fixture(scope="session")
def example() -> Callable[[str, str], ModuleType]:
    """`example("wordcount", "app")`: a module of an example."""
    return load_module


@pytest.fixture(scope="session")
def command(broker: EmbeddedBroker) -> Callable[..., str]:
    """`command("-m", "kafkalite.cli", "topics", "list")`: what a command printed, run by Python as
    a user runs it."""

    def run(*arguments: str | Path, **variables: str) -> str:
        environ = {**os.environ, **variables}
        done = subprocess.run(
            [sys.executable, *map(str, arguments), "-b", broker.bootstrap_servers],
            capture_output=True, text=True, timeout=SECONDS_MAX, env=environ, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def load(command: Callable[..., str]) -> Callable[..., str]:
    """`load("fraud", "--cards", "400")`: runs the loader of an example."""
    return lambda example, *options: command(EXAMPLES / example / "load.py", *options)


@pytest.fixture(scope="session")
def run(command: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """`run("fraud")`: runs the topology of an example to the end of its input; its summary."""

    def to_the_end(example: str, **variables: str) -> dict[str, Any]:
        app = EXAMPLES / example / "app.py"
        options = ("run", app, "--until-caught-up", "--json")
        summary: dict[str, Any] = json.loads(
            command("-m", "kafkalite.cli.streams", *options, **variables)
        )
        return summary

    return to_the_end


@pytest.fixture
def records(broker: EmbeddedBroker) -> Iterator[Callable[..., list[Record]]]:
    """`records("alerts", key=string(), value=json())`: all committed records of a topic."""
    with ExitStack() as stack:

        def read(name: str, key: Serde | None = None, value: Serde | None = None) -> list[Record]:
            topic = TestTopic(broker.bootstrap_servers, name, key=key, value=value)
            return stack.enter_context(closing(topic)).read_all()

        yield read
