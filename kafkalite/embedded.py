"""A broker as a child process, for as long as it is needed.                               [IO]

    with EmbeddedBroker("kafkalite-data") as broker:
        Producer(broker.bootstrap_servers)

The child holds the reading end of a pipe whose writing end is in this process. When this process
ends, however it ends, the pipe closes and the child stops.

Owns   the child process.
Fails  with BrokerUnavailable and the child's last line of stderr when it does not come up.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from kafkalite.errors import BrokerUnavailable

SIGNATURE: Final = "kafkalite: "  # before the error with which a command ends
READY: Final = "kafkalite is ready at "
READY_SECONDS_MAX: Final = 60.0  # after a crash the child first reads what is not known to be whole
REGISTRY: Final = re.compile(r"\S+ \(schema registry at (\S+), ")
STOP_SECONDS_MAX: Final = 30.0
STDERR_LINES_KEPT: Final = 50

# Nobody has to wait for more members than the process that started the broker.
EMBEDDED: Final = {"group.initial.rebalance.delay.ms": "0"}


class EmbeddedBroker:
    """A broker of our own on a free port. It is up when the constructor returns.

        from kafkalite import EmbeddedBroker

        with EmbeddedBroker("kafkalite-data", overrides={"num.partitions": "4"}) as broker:
            print(broker.bootstrap_servers)     # for any Kafka client: 127.0.0.1:40223

    The log is in the folder, and is there again next time. `overrides` are Kafka's settings.
    `registry_url` is where its schema registry is, if `registry` was asked for, which needs
    `pip install 'kafkalite[registry]'`. With `watchdog` the broker is killed once it was silent for
    `zookeeper.session.timeout.ms`. `on_log` gets each line that the broker logs.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        listen: str = "127.0.0.1:0",
        overrides: Mapping[str, str] | None = None,
        registry: bool = False,
        watchdog: bool = False,
        ready_seconds_max: float = READY_SECONDS_MAX,
        is_waited_for: bool = True,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "kafkalite.cli", "server", "start", "--exit-with-parent"]
        command += ["--data-dir", str(data_dir), "--listen", listen]
        if registry:
            command += ["--registry", "127.0.0.1:0"]
        if watchdog:
            command += ["--watchdog"]
        for name, value in (EMBEDDED | dict(overrides or {})).items():
            command += ["--override", f"{name}={value}"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self._on_log = on_log
        self._stderr_reader = _reading(self._process.stderr, self._logged)
        self._stdout_lines: list[str] = []
        self._stdout_reader = _reading(
            self._process.stdout, self._stdout_lines.append, first_only=True
        )
        self.bootstrap_servers = ""
        self.registry_url: str | None = None
        if is_waited_for:
            self.wait_until_ready(ready_seconds_max)

    def wait_until_ready(self, seconds_max: float = READY_SECONDS_MAX) -> None:
        """Returns once clients can connect; BrokerUnavailable if the child does not come up."""
        self._stdout_reader.join(seconds_max)
        lines = self._stdout_lines
        if lines and lines[0].startswith(READY):
            ready = lines[0].removeprefix(READY)
            self.bootstrap_servers = ready.split(" ", 1)[0]
            found = REGISTRY.match(ready)
            self.registry_url = found.group(1) if found else None
            return
        if self._stdout_reader.is_alive():
            self._process.kill()
            why = f"it was not ready after {seconds_max:g} s"
        else:
            why = f"it ended with code {self._process.wait()}"
        self.close()
        said = f": {self._stderr[-1].removeprefix(SIGNATURE)}" if self._stderr else ""
        raise BrokerUnavailable(f"the embedded broker did not start, {why}{said}")

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The code with which the child ended; None while it lives."""
        return self._process.poll()

    def pause(self) -> None:
        """Stops the child as SIGSTOP does: its connections stay, and nobody is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends a pause."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the child at once, as SIGKILL does."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Stops the child gracefully, and by force if that takes too long."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        self.go_on()  # a paused process would not see the end of the pipe
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._stderr_reader.join()
        self._stdout_reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _logged(self, line: str) -> None:
        self._stderr.append(line)
        if self._on_log is not None:
            self._on_log(line)


def _reading(
    stream: IO[str] | None, take: Callable[[str], None], *, first_only: bool = False
) -> threading.Thread:
    """A thread that hands the lines of `stream` to `take`: a full pipe would stop the child."""
    assert stream is not None

    def read() -> None:
        for line in stream:
            take(line.rstrip("\n"))
            if first_only:
                return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread
