"""What `pip install kafkalite` needs, and what is said where an extra is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ("starlette", "uvicorn", "h11", "anyio", "prometheus_client")
COMMANDS = ("typer", "click", "rich")
ROOMS = (
    "kafkalite", "kafkalite.embedded", "kafkalite.errors", "kafkalite.clients.admin.client",
    "kafkalite.clients.consumer.consumer", "kafkalite.clients.producer.producer",
    "kafkalite.serde", "kafkalite.serde.registry_log", "kafkalite.streams",
    "kafkalite.streams.local.worker", "kafkalite.streams.driver", "kafkalite.node",
)  # fmt: skip


def without(modules: tuple[str, ...], code: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs code in a process in which some modules are not installed."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); "
    return subprocess.run(
        [sys.executable, "-c", blocked + code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_no_client_needs_a_web_server_or_what_commands_need() -> None:
    done = without(WEB + COMMANDS, f"import {', '.join(ROOMS)}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_topologies_with_expressions_do_without_arrow() -> None:
    code = "from kafkalite.streams import col; print(col('a') > 1)"
    assert without(("pyarrow",), code).stdout == 'col("a") > 1\n'


def test_the_package_itself_imports_nothing_of_ours() -> None:
    code = "import json, sys, kafkalite; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(without((), code).stdout)
    assert [name for name in loaded if name.startswith("kafkalite")] == ["kafkalite"]
    code = "import kafkalite; from kafkalite import EmbeddedBroker as b; print(b.__module__)"
    assert without((), code).stdout == "kafkalite.embedded\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["server", "start", "--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0", "--data-dir"],
        ["registry", "start", "--listen"],
    ],
    ids=lambda command: command[0],
)
def test_a_registry_without_its_extra_is_refused_in_one_line(
    command: list[str], tmp_path: Path
) -> None:
    last = str(tmp_path / "data") if command[-1] == "--data-dir" else "127.0.0.1:0"
    done = without(WEB, "from kafkalite.cli import main; main()", *command, last)
    missing = (
        "kafkalite: the schema registry's server needs uvicorn: pip install 'kafkalite[registry]'"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{missing}\n")


@pytest.mark.slow
def test_metrics_without_the_extra_are_refused_in_one_line(tmp_path: Path) -> None:
    command = ["server", "start", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir"]
    done = without(WEB, "from kafkalite.cli import main; main()", *command, str(tmp_path))
    missing = "kafkalite: --http needs prometheus_client: pip install 'kafkalite[registry]'"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{missing}\n")


@pytest.mark.slow
def test_all_other_commands_do_without_it() -> None:
    done = without(WEB, "from kafkalite.cli import main; main()", "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_blocked_above_is_what_the_extra_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {name.partition(">")[0] for name in project["dependencies"]}
    extra = {name.partition(">")[0] for name in project["optional-dependencies"]["registry"]}
    assert extra == {"prometheus-client", "starlette", "uvicorn"}
    assert not base & extra


@pytest.mark.parametrize("target", [".demo", ".dev"])
def test_what_make_installs_has_every_extra_that_it_uses(target: str) -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith(f"$(VENV)/{target}:"))
    extras = set(lines[place + 1].partition("[")[2].partition("]")[0].split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = set(project["optional-dependencies"])
    assert extras == (every if target == ".dev" else {"spark", "examples"})
