"""The watchdog of a broker, and what systemd hears of it: real processes, which are stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafkalite.cli import watchdog
from kafkalite.cli.service_manager import told_to_service_manager
from kafkalite.cli.watchdog import CHILD, check_supported
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ConfigError

SECONDS_MAX = 60
SILENCE_S = 2.0
QUICK = {"zookeeper.session.timeout.ms": str(int(SILENCE_S * 1000))}
# Its parent hears of each second tick. A beat of the heart is all that this program does.
WATCHED = """
import asyncio, sys
from kafkalite.cli.watchdog import watched
async def run():
    with watched(float(sys.argv[1])):
        while True:
            print(flush=True)
            await asyncio.sleep(0.1)
asyncio.run(run())
"""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the child is to watch."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def watch(process: subprocess.Popen[bytes], tick_s: float) -> tuple[subprocess.Popen[str], int]:
    """The watchdog's child over a process, and the end of the pipe for signs of life."""
    reading, writing = os.pipe()
    pidfd = os.pidfd_open(process.pid)
    arguments = [str(pidfd), str(reading), str(tick_s), "5", f"{'1970-01-01T00:00:00.000Z'} gone\n"]
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(CHILD), *arguments],
        pass_fds=(pidfd, reading), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(reading)
    os.close(pidfd)
    return child, writing


@pytest.mark.slow
def test_a_silent_process_is_killed_and_that_is_said(bystander: subprocess.Popen[bytes]) -> None:
    child, writing = watch(bystander, 0.02)
    assert bystander.wait(SECONDS_MAX) == -signal.SIGKILL
    _, said = child.communicate(timeout=SECONDS_MAX)
    assert said.endswith("Z gone\n")
    assert not said.startswith("1970")
    os.close(writing)


@pytest.mark.slow
def test_the_end_of_the_pipe_ends_the_watch_and_kills_nobody(
    bystander: subprocess.Popen[bytes],
) -> None:
    child, writing = watch(bystander, 60)
    os.close(writing)
    assert child.communicate(timeout=SECONDS_MAX) == (None, "")
    assert (child.returncode, bystander.poll()) == (0, None)


@pytest.mark.slow
def test_signals_to_the_group_leave_the_child_alone(bystander: subprocess.Popen[bytes]) -> None:
    child, writing = watch(bystander, 60)
    caught = f"/proc/{child.pid}/status"
    ignored = sum(1 << n - 1 for n in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))

    def ignores() -> bool:
        mask = Path(caught).read_text().split("SigIgn:")[1].split()[0]
        return int(mask, 16) & ignored == ignored

    until(ignores)
    os.close(writing)
    child.communicate(timeout=SECONDS_MAX)


@pytest.mark.slow
def test_ctrl_z_stops_both_and_kills_nobody() -> None:
    """The child's clock stands still together with the process."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(SILENCE_S)],
        stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(1.5 * SILENCE_S)
        os.killpg(process.pid, signal.SIGCONT)
        for _ in range(5 + int(SILENCE_S / 0.1)):  # some lines may have been written before
            assert process.stdout.readline() == b"\n"
        assert process.poll() is None
        (child,) = children_of(process.pid)
        process.kill()
        until(lambda: not is_alive(child))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_paused_broker_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    with EmbeddedBroker(tmp_path, watchdog=True, overrides=QUICK, on_log=said.append) as broker:
        (child,) = children_of(broker.pid)
        assert private_mb(child) < 8
        broker.pause()
        until(lambda: broker.exit_code is not None)
        assert broker.exit_code == -signal.SIGKILL
    (line,) = (line for line in said if "CRITICAL" in line)
    assert line.endswith("killed: its event loop was silent for 2 s (--watchdog)")


@pytest.mark.slow
def test_a_broker_outlives_its_watchdog_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    with EmbeddedBroker(tmp_path, watchdog=True, overrides=QUICK, on_log=said.append) as broker:
        (child,) = children_of(broker.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: any(f"process {child} ended" in line for line in said))
        assert broker.exit_code is None
    assert broker.exit_code == 0


@pytest.mark.slow
def test_a_stopped_watchdog_delays_no_stop(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, watchdog=True, overrides=QUICK) as broker:
        (child,) = children_of(broker.pid)
        os.kill(child, signal.SIGSTOP)
    assert broker.exit_code == 0
    assert not is_alive(child)


@pytest.mark.slow
def test_without_the_option_a_broker_has_no_child(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, overrides=QUICK) as broker:
        assert children_of(broker.pid) == []


def test_where_it_cannot_work_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_supported(2)
    with pytest.raises(ConfigError, match=r"--watchdog: .* first process .* --init"):
        check_supported(1)

    def refuse(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(watchdog.os, "pidfd_open", refuse)
    with pytest.raises(ConfigError, match=r"--watchdog needs pidfds, .* Linux .* 5\.3"):
        check_supported()
    monkeypatch.delattr(watchdog.os, "pidfd_open")
    with pytest.raises(ConfigError, match="--watchdog needs pidfds"):
        check_supported()


# ---- systemd -------------------------------------------------------------------------------------


class Manager:
    """A service manager's end."""

    def __init__(self, stack: ExitStack, at: str) -> None:
        self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.settimeout(SECONDS_MAX)
        self._socket.bind(at)

    def hears(self) -> str:
        return self._socket.recv(4096).decode()


@pytest.mark.slow
def test_a_service_manager_hears_that_a_broker_serves_lives_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        manager = Manager(stack, str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        broker = stack.enter_context(EmbeddedBroker(tmp_path / "data"))
        assert [manager.hears() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        broker.close()
        assert set(iter(manager.hears, "STOPPING=1")) <= {"WATCHDOG=1"}


def test_an_abstract_socket_and_the_watchdog_of_another_process() -> None:
    name = f"kafkalite-test-{os.getpid()}"
    with ExitStack() as stack:
        manager = Manager(stack, f"\0{name}")
        told = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
        with told_to_service_manager(told):
            pass
        assert [manager.hears(), manager.hears()] == ["READY=1", "STOPPING=1"]


def test_what_cannot_be_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with told_to_service_manager({}):
        pass
    with (
        pytest.raises(ConfigError, match="NOTIFY_SOCKET=vsock:2:1: neither a path"),
        told_to_service_manager({"NOTIFY_SOCKET": "vsock:2:1"}),
    ):
        pass
    gone = str(tmp_path / "gone")
    with (
        pytest.raises(ConfigError, match="WATCHDOG_USEC=soon: not a number"),
        told_to_service_manager({"NOTIFY_SOCKET": gone, "WATCHDOG_USEC": "soon"}),
    ):
        pass
    assert caplog.records == []
    with told_to_service_manager({"NOTIFY_SOCKET": gone}):
        pass
    assert f"READY=1 to NOTIFY_SOCKET={gone}: No such file or directory" in caplog.text
