"""Apache Kafka's own jars, to run its Java clients and tools against our broker."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from kafka_jars import (
    KAFKA,
    MIRROR_MAKER,
    OLD_KAFKA,
    OLD_TOOLS,
    TEST_DRIVER,
    cache_dir,
    jars_of,
    jars_of_kafka,
    require_java,
)

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SECONDS_MAX = 100
# Java programs of a second or two: no time to optimise, little memory.
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-Xshare:auto"]
JAVAC_QUICK = [f"-J{option}" for option in QUICK]
MEMORY = Path("/dev/shm")  # of Linux: where stores that are opened for each case wait for no disk
SOURCES = Path(__file__).parent
BROKER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.min.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
"""
LOGGING = """status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = err
appender.out.type = Console
appender.out.name = err
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %m (%c)%n
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """A folder with Apache Kafka's jars."""
    return jars_of_kafka()


class Jvm:
    """Java programs with Apache Kafka's jars on their class path."""

    def __init__(
        self, jars: Path, folder: Path, sources: Iterable[Path] = (), options: Iterable[str] = ()
    ) -> None:
        """Compiles `sources` into `folder`."""
        if files := sorted(map(str, sources)):
            javac = ["javac", *JAVAC_QUICK, "-nowarn", "-cp", f"{jars}/*", "-d", str(folder)]
            subprocess.run([*javac, *files], check=True)
        (folder / "log4j2.properties").write_text(LOGGING)
        logs = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        self._command = ["java", *QUICK, *options, logs, "-cp", f"{jars}/*:{folder}"]
        self._programs: subprocess.Popen[str] | None = None

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command that runs a class."""
        return [*self._command, program, *arguments]

    def run(self, program: str, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """What it prints; it must end with `code`. One JVM runs all programs, one by one."""
        ended, out, err = self._ask(program, stdin, *arguments)
        assert ended == code, f"{program} ended with {ended}:\n{out[-3000:]}{err[-3000:]}"
        return out

    def run_alone(self, program: str, *arguments: str, code: int = 0) -> str:
        """As `run`, in a JVM of its own, for programs that go on in hooks of their JVM's end."""
        done = subprocess.run(
            self.command(program, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        tail = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        assert done.returncode == code, f"{program} ended with {done.returncode}:\n{tail}"
        return done.stdout

    def _ask(self, *words: str) -> tuple[int, str, str]:
        if self._programs is None:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            command = self.command("Programs")
            self._programs = subprocess.Popen(command, encoding="utf-8", **pipes)
        process = self._programs
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(SECONDS_MAX, process.kill)
        late.start()
        with suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps(words), file=process.stdin, flush=True)
        line = process.stdout.readline()
        late.cancel()
        if not line:
            self.end()
        assert line, f"{words[0]} took {SECONDS_MAX} seconds, or its JVM with it"
        code, out, err = json.loads(line)
        return code, out, err

    def end(self) -> None:
        """Ends the JVM of the programs that `run` ran."""
        if self._programs is not None:
            self._programs.communicate(timeout=SECONDS_MAX)
            self._programs = None

    @contextmanager
    def running(self, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The process, with pipes; it is asked to end at the end."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(self.command(program, *arguments), text=True, **pipes)
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS_MAX)


@pytest.fixture(scope="session")
def archive(kafka_jars: Path, bootstrap: str) -> Path:
    """The classes of a client of Apache Kafka, read and verified once: the next JVMs start with
    half the work. A JVM for which it was not made passes it over.
    """
    place = cache_dir() / f"{kafka_jars.name}.jsa"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(f".{os.getpid()}")
        command = ["java", *QUICK, f"-XX:ArchiveClassesAtExit={unfinished}"]
        command += ["-cp", f"{kafka_jars}/*", CONSUMER, "--bootstrap-server", bootstrap]
        command += ["--topic", f"archive-{uuid.uuid4().hex}", "--timeout-ms", "500"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        assert unfinished.exists(), f"{done.stdout[-1000:]}{done.stderr[-1000:]}"
        unfinished.rename(place)
    return place


@pytest.fixture(scope="session")
def jvm(kafka_jars: Path, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    options = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    running = Jvm(kafka_jars, tmp_path_factory.mktemp("jvm"), SOURCES.glob("*.java"), options)
    yield running
    running.end()


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """Kafka Streams' own test driver."""
    require_java()
    given = Path(os.environ.get("KAFKALITE_KAFKA_JARS", "."))
    is_given = any(given.glob("kafka-streams-test-utils-*.jar"))
    jars = given if is_given else jars_of(f"streams-test-utils-{KAFKA}", TEST_DRIVER)
    sources = [SOURCES / "Programs.java", *(SOURCES / "streams").glob("*.java")]
    with TemporaryDirectory(dir=MEMORY if has_room(MEMORY) else None) as stores:
        options = [f"-Djava.io.tmpdir={stores}"]
        running = Jvm(jars, tmp_path_factory.mktemp("oracle"), sources, options)
        yield running
        running.end()


def has_room(place: Path) -> bool:
    """Whether it is there and holds the stores of any topology."""
    return place.is_dir() and shutil.disk_usage(place).free > 1 << 30


@pytest.fixture(scope="session")
def old_jvm(tmp_path_factory: pytest.TempPathFactory) -> Jvm:
    """Tools that Apache Kafka 4 has no more."""
    require_java()
    jars = jars_of(f"kafka-tools-{OLD_KAFKA}", OLD_TOOLS)
    return Jvm(jars, tmp_path_factory.mktemp("old-jvm"))


@pytest.fixture(scope="session")
def mirror_maker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs MirrorMaker 2 with a file of settings."""
    require_java()
    jars = jars_of(f"connect-mirror-{KAFKA}", MIRROR_MAKER)
    logging = tmp_path_factory.mktemp("mirror") / "log4j2.properties"
    logging.write_text(LOGGING)
    command = ["java", *QUICK, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{jars}/*"]
    return [*command, "org.apache.kafka.connect.mirror.MirrorMaker"]


@pytest.fixture(scope="session")
def kafka(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka broker of one node, which all tests of the room share."""
    folder = tmp_path_factory.mktemp("kafka")
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(BROKER.format(port=port, controller=controller, folder=folder))
    cluster = uuid.uuid4().hex[:22]
    jvm.run("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings))
    with (folder / "log").open("w") as log:
        command = jvm.command("kafka.Kafka", str(settings))
        broker = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + SECONDS_MAX
            while not answers(port) and broker.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert answers(port), (folder / "log").read_text()[-3000:]
            yield f"127.0.0.1:{port}"
        finally:
            broker.kill()
            broker.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
