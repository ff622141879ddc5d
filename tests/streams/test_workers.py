"""Workers as processes of one command: they share the work, are started again, and end as one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.streams import Streams
from kafkalite.streams.workers import own_command

pytestmark = pytest.mark.slow

APP = """
from kafkalite.streams import Streams, string

app = Streams("{name}", key=string(), value=string())
app.stream("{name}-in").map(lambda word: word.upper() if word != "bad" else 1 / 0).to("{name}-out")
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def kafkalite(address: str, *command: str, words: str = "") -> None:
    whole = [sys.executable, "-m", "kafkalite.cli", *command, "-b", address]
    subprocess.run(whole, input=words, text=True, check=True, capture_output=True, timeout=60)


def made(address: str, folder: Path, name: str, *words: str) -> list[str]:
    """The command that runs an application over these words."""
    (folder / "app.py").write_text(APP.format(name=name))
    kafkalite(address, "topics", "create", f"{name}-in", f"{name}-out", "--partitions", "4")
    if words:
        kafkalite(address, "produce", f"{name}-in", words="".join(f"{word}\n" for word in words))
    streams = [sys.executable, "-m", "kafkalite.cli.streams", "run", str(folder / "app.py")]
    return [*streams, "-b", address, "--workers", "2"]


def test_they_catch_up_together_and_the_command_says_what_all_did(
    address: str, tmp_path: Path
) -> None:
    command = made(address, tmp_path, "together", *"abcdefg")
    done = subprocess.run(
        [*command, "--until-caught-up"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "together: caught up: 7 records" in done.stdout
    assert done.stdout.count("\n") == 1, "the workers' lines go to stderr"
    told = re.findall(r"together: worker (\d): (\d) records, (\d) written", done.stderr)
    assert sorted(number for number, _, _ in told) == ["1", "2"]
    assert sum(int(records) for _, records, _ in told) == 7


def test_what_all_have_left_out_is_in_the_summary(address: str, tmp_path: Path) -> None:
    command = made(address, tmp_path, "leaving", *"abc", *["bad"] * 5)
    (tmp_path / "app.py").write_text(
        APP.format(name="leaving").replace("value=string()", 'value=string(), on_error="skip"')
    )
    done = subprocess.run(
        [*command, "--until-caught-up", "--json"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    (dropped,) = json.loads(done.stdout)["dropped"]
    assert (dropped["reason"], dropped["records"]) == ("skip", 5)


def test_one_that_is_killed_is_started_again_and_a_signal_ends_all(
    address: str, tmp_path: Path
) -> None:
    command = made(address, tmp_path, "killed")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        try:
            pids = [pid_in(lines), pid_in(lines)]
            os.kill(pids[1], signal.SIGKILL)
            told = next(line for line in lines if "signal 9" in line)
            assert "it restarts in 0.5 s" in told
            assert pid_in(lines) not in pids
        finally:
            process.terminate()
        rest = "".join(lines)
        assert process.wait(60) == 0, rest
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def pid_in(lines: Iterator[str]) -> int:
    """The process id of the next worker that is said to run."""
    return next(int(found[1]) for line in lines if (found := re.search(r"is process (\d+)", line)))


def test_one_that_fails_ends_all_with_its_error(address: str, tmp_path: Path) -> None:
    command = made(address, tmp_path, "failing", "good", "bad")
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert re.search(r"failing: worker \d has ended with exit code 1", done.stderr)


def test_workers_end_when_their_supervisor_is_killed(address: str, tmp_path: Path) -> None:
    command = made(address, tmp_path, "orphans")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        for _ in range(2):
            pid_in(lines)
        process.kill()
        rest = "".join(lines)  # to its end: the workers have closed it, too
        assert rest.count("orphans: worker") == 2, rest


def test_what_cannot_be_started_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Streams("app", workers=2)
    app.stream("in").to("out")
    with pytest.raises(TopologyError, match="beside other work there is one worker"):
        app.running("127.0.0.1:1")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(TopologyError, match="put the topology into a file"):
        own_command("app")
