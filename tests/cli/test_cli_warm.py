"""A command that begins as a fork is a process as any other."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from warm import PROGRAMS, Popen, script

from kafkalite.embedded import READY

SERVER = ["server", "start", "--data-dir", "data", "--listen", "127.0.0.1:0"]


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def is_fork(pid: int) -> bool:
    return any(word.endswith("warm.py") for word in words_of(pid))


@pytest.mark.parametrize(
    "words",
    [
        ("kafkalite", "topics", "create"),
        ("kafkalite", "log", "verify", "no-such-folder"),
        ("kafkalite-streams", "describe", "no_such_app.py"),
        ("kafkalite-spark", "load", "--help"),
    ],
    ids=" ".join,
)
def test_a_fork_says_what_a_process_says(words: tuple[str, ...]) -> None:
    environ = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-m", PROGRAMS[words[0]], *words[1:]]
    fork = subprocess.run(command, capture_output=True, env=environ)
    real = subprocess.run(command, capture_output=True, env=environ, executable=sys.executable)
    assert (fork.returncode, fork.stdout, fork.stderr) == (
        real.returncode, real.stdout, real.stderr,
    )  # fmt: skip
    said = subprocess.run([script(words[0]), *words[1:]], capture_output=True, env=environ)
    assert said.stderr == real.stderr.replace(
        f"python -m {PROGRAMS[words[0]]}".encode(), words[0].encode()
    )


def test_a_fork_is_a_child_of_its_own_with_a_folder_and_a_session(tmp_path: Path) -> None:
    with Popen(
        [script("kafkalite"), *SERVER],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline().decode().startswith(READY)
        assert is_fork(server.pid)
        assert os.getsid(server.pid) == server.pid
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"PPid:\t{os.getpid()}\n" in status
        assert (tmp_path / "data").is_dir()
        server.send_signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL


def is_fork_of(tmp_path: Path, environ: dict[str, str]) -> bool:
    with Popen(
        [script("kafkalite"), *SERVER],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline().decode().startswith(READY)
        began_as_fork = is_fork(server.pid)
        server.terminate()
        assert server.wait() == 0
        return began_as_fork


def test_an_interpreter_with_other_variables_is_a_usual_process(tmp_path: Path) -> None:
    assert not is_fork_of(tmp_path, os.environ | {"PYTHONHASHSEED": "1"})


def test_a_process_has_the_limits_of_the_test_that_begins_it(tmp_path: Path) -> None:
    environ = dict(os.environ)
    assert is_fork_of(tmp_path, environ)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, hard))
        assert not is_fork_of(tmp_path, environ)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
