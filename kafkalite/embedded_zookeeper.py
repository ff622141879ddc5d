"""ZooKeeper servers as child processes, from the jars in the wheel of PySpark.            [IO]

    with ZooKeeper("data/zookeeper") as server:
        server.address                          # 127.0.0.1:40223, the same after `restart`

    with Ensemble("data/zookeeper", 3) as ensemble:
        ensemble.address                        # host:port,host:port,host:port

A shell starts Java and waits for it. The shell's stdin is a pipe whose writing end is in this
process: when this process ends, however it ends, the pipe closes and the shell ends Java. So a
server never outlives the process that started it.

Owns   the child processes; their data and logs lie in the folder that was given.
Fails  with CoordinationUnavailable and the reason in the log if a server does not serve, with
       ConfigError if Java or the jars are missing.
Source ZooKeeper administrator's guide: configuration, four letter words.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from kafkalite.errors import ConfigError, CoordinationUnavailable
from kafkalite.java import find_java

HOST: Final = "127.0.0.1"
JAVA_VERSION_MIN: Final = 11
JARS: Final = (  # those that a server needs
    "zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "log4j-api-2*", "log4j-core-*",
    "log4j-slf4j2-impl-*", "metrics-core-*", "snappy-java-*", "netty-*",
)  # fmt: skip
JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dorg.apache.logging.log4j.level=WARN", "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
)  # fmt: skip
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0
LOOK_SECONDS: Final = 0.02
STOPPED_SECONDS: Final = 1.0  # until a paused process stands still, at the most
PORT_ATTEMPTS: Final = 5  # a free port may be taken before the server takes it

# stdout: the process id of Java. When stdin closes, Java gets SIGTERM, and SIGKILL if it stays.
SUPERVISOR: Final = """
exec 3<&0
"$@" 3<&- </dev/null >>"$LOG" 2>&1 &
java=$!
echo $java
{ read -r _ <&3; kill $java; sleep 3; kill -9 $java; } >/dev/null 2>&1 &
watchdog=$!
wait $java
code=$?
kill $watchdog 2>/dev/null
exit $code
"""
CONFIG: Final = """\
tickTime={tick_ms}
initLimit=20
syncLimit=10
minSessionTimeout={session_ms_min}
maxSessionTimeout=120000
dataDir={data}
clientPort={port}
clientPortAddress={host}
maxClientCnxns=0
preAllocSize=4096
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,conf
"""


class Member(NamedTuple):
    """A server of an ensemble: the ports on which members talk to each other."""

    peer_port: int
    election_port: int


class ZooKeeper:
    """A ZooKeeper server of our own, on a free port. It serves when the constructor returns."""

    def __init__(
        self,
        data_dir: str | Path,
        *,
        host: str = HOST,
        port: int = 0,
        tick_ms: int = 500,
        heap_mb: int = 128,
        number: int = 1,
        members: Sequence[Member] = (),
        is_waited_for: bool = True,
    ) -> None:
        """`members` are all servers of an ensemble; this one has `number`, counted from 1."""
        self._data_dir, self._host = Path(data_dir), host
        self._tick_ms, self._heap_mb = tick_ms, heap_mb
        self._number, self._members = number, tuple(members)
        self._process: subprocess.Popen[str] | None = None
        self._is_paused = False
        self.pid = 0  # of Java
        self.port = port
        for attempt in range(1 if port else PORT_ATTEMPTS):
            self.port = port or free_ports(1)[0]
            try:
                self.start(is_waited_for=is_waited_for)
            except CoordinationUnavailable:
                if port or attempt == PORT_ATTEMPTS - 1 or "BindException" not in self._log_text():
                    raise
            else:
                break

    @property
    def address(self) -> str:
        """For clients."""
        return f"{self._host}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, is_waited_for: bool = True) -> None:
        """Starts the process, on the same port as before."""
        assert not self.is_running, f"ZooKeeper at {self.address} is running"
        config = self._write_config()
        main = "quorum.QuorumPeerMain" if self._members else "ZooKeeperServerMain"
        java = str(find_java(JAVA_VERSION_MIN, "ZooKeeper"))
        command = [java, *JAVA_OPTIONS, f"-Xmx{self._heap_mb}m", "-cp", _class_path()]
        command += [f"org.apache.zookeeper.server.{main}", str(config)]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SUPERVISOR, "zookeeper", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the shell's words on a child that was killed
            text=True,
            start_new_session=True,
            env=os.environ | {"LOG": str(self._log)},
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        self._is_paused = False
        if is_waited_for:
            try:
                self.wait_until_serving()
            except BaseException:
                self.close()
                raise

    def wait_until_serving(self, seconds_max: float = READY_SECONDS_MAX) -> None:
        """Waits until clients are served: by an ensemble, once it has a majority."""
        deadline = time.monotonic() + seconds_max
        while not self._serves():
            if not self.is_running:
                code = self._process.wait() if self._process is not None else 0
                why = f"it ended with code {code}"
            elif time.monotonic() > deadline:
                why = f"it did not serve after {seconds_max:g} s"
            else:
                time.sleep(LOOK_SECONDS)
                continue
            raise CoordinationUnavailable(f"ZooKeeper at {self.address}: {why}{self._last_words()}")

    def _serves(self) -> bool:
        """Whether it is this server, and no other, that serves at the port."""
        return "Mode: " in self.ask("srvr") and f"dataDir={self._data}" in self.ask("conf")

    def ask(self, word: str) -> str:
        """The answer to a four letter word; empty if there is none."""
        try:
            with socket.create_connection((self._host, self.port), timeout=1) as connection:
                connection.sendall(word.encode())
                answer = b""
                while piece := connection.recv(65_536):
                    answer += piece
        except OSError:
            return ""
        return answer.decode(errors="replace")

    def pause(self) -> None:
        """Stops the process as SIGSTOP does: its connections stay, and nobody is answered."""
        self._signal(signal.SIGSTOP)
        self._is_paused = True
        self._wait_until_stopped()

    def _wait_until_stopped(self) -> None:
        """Returns once no thread runs, where the system tells: one that does may answer yet."""
        deadline = time.monotonic() + STOPPED_SECONDS
        tasks = Path(f"/proc/{self.pid}/task")
        while tasks.exists() and time.monotonic() < deadline:
            with suppress(OSError):  # a thread has just ended
                stats = [(task / "stat").read_text() for task in tasks.iterdir()]
                if all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats):
                    return
            time.sleep(0.001)

    def go_on(self) -> None:
        """Ends a pause."""
        self._signal(signal.SIGCONT)
        self._is_paused = False

    def kill(self) -> None:
        """Ends the process at once, as SIGKILL does."""
        self._signal(signal.SIGKILL)
        self._reap()

    def restart(self) -> None:
        """Kills the process and starts it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Stops the process, by force if that takes too long."""
        if self.is_running and self._is_paused:
            self.go_on()
        self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _data(self) -> Path:
        return self._data_dir.absolute() / "data"

    @property
    def _log(self) -> Path:
        return self._data_dir / "zookeeper.log"

    def _write_config(self) -> Path:
        self._data.mkdir(parents=True, exist_ok=True)
        text = CONFIG.format(
            tick_ms=self._tick_ms,
            session_ms_min=2 * self._tick_ms,
            data=self._data,
            port=self.port,
            host=self._host,
        )
        for number, member in enumerate(self._members, 1):
            text += f"server.{number}={HOST}:{member.peer_port}:{member.election_port}\n"
        (self._data / "myid").write_text(f"{self._number}\n")
        config = self._data_dir / "zoo.cfg"
        config.write_text(text)
        return config

    def _signal(self, number: int) -> None:
        assert self.is_running, f"ZooKeeper at {self.address} is not running"
        os.kill(self.pid, number)

    def _reap(self) -> None:
        """Waits for the end of the process, which the closed pipe brings about."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def _log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _last_words(self) -> str:
        lines = [line for line in self._log_text().splitlines() if line.strip()]
        reasons = [line for line in lines if "Exception: " in line] or lines
        return f": {reasons[-1].strip()}" if reasons else ""


class Ensemble:
    """ZooKeeper servers that agree by majority. They serve when the constructor returns."""

    def __init__(self, data_dir: str | Path, size: int, *, tick_ms: int = 500) -> None:
        ports = free_ports(3 * size)
        members = [Member(*ports[2 * n : 2 * n + 2]) for n in range(size)]
        self.servers: list[ZooKeeper] = []
        try:
            for number, port in enumerate(ports[2 * size :], 1):
                server = ZooKeeper(
                    Path(data_dir, str(number)),
                    port=port,
                    tick_ms=tick_ms,
                    number=number,
                    members=members,
                    is_waited_for=False,
                )
                self.servers.append(server)
            for server in self.servers:
                server.wait_until_serving()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """For clients: all servers."""
        return ",".join(server.address for server in self.servers)

    def leader(self) -> ZooKeeper:
        """The server that orders the writes."""
        return next(s for s in self.servers if s.is_running and "leader" in s.ask("srvr"))

    def close(self) -> None:
        """Stops all servers."""
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    held = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _class_path() -> str:
    """The jars of a server, as a class path."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("a ZooKeeper of our own needs the jars of PySpark: pip install pyspark")
    folder = Path(spec.origin).parent / "jars"
    found = [path for pattern in JARS for path in sorted(folder.glob(f"{pattern}.jar"))]
    if not any(path.name.startswith("zookeeper-jute-") for path in found):
        raise ConfigError(f"there is no ZooKeeper in {folder}")
    return os.pathsep.join(map(str, found))
