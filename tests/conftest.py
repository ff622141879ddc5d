"""What tests that need a running broker share: the broker, topics of their own, processes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import hypothesis
import pytest
from hints import without_hint
from kafka_jars import jars_of_kafka
from warm import Popen

from kafkalite.embedded import READY, EmbeddedBroker
from kafkalite.embedded_zookeeper import ZooKeeper
from kafkalite.testing.turns import MeasuredLoop, Turns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An empty group waits three seconds for more members by default; no test has the time.
QUICK_GROUPS = {"group.initial.rebalance.delay.ms": "0"}
# Tests write records of years past; five minutes after its start a broker would look for such.
NOTHING_IS_OLD = {"log.retention.check.interval.ms": str(24 * 3_600_000)}
# Of DumpLogSegments, which returns 0 all the same.
COMPLAINTS = ("ismatch", "out of order", "corrupt", "Exception", "did not find", "isvalid: false")
EXIT_SECONDS_MAX = 60
PYSPARK_LOGGERS = {"DataFrameQueryContextLogger", "SQLQueryContextLogger"}
SETTLE_SECONDS = 1.0
TESTS = Path(__file__).parent
ELSEWHERE = os.environ.get("KAFKALITE_TEST_BOOTSTRAP")  # another broker to run the tests against
Settings = Mapping[str, str] | None

# The fast tier is what runs in the test's own process or asks one broker, commands included; these
# begin processes of their own for nearly every test, or wait for the clocks of clients.
SLOW_ROOMS = {"clients", "examples", "jvm", "other_clients"}
SHARING_ROOMS = {"jvm"}
SPARK_SECONDS_MAX = 400
# Spark's JVM for programs of seconds: without its second compiler it takes half the work. Spark's
# own scripts read these two, in processes that tests start as well.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ |= dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), QUICK_JVM)
if sys.platform == "linux":  # commands begin as forks
    subprocess.Popen = Popen  # type: ignore[misc]
SLOW_FILE = re.compile(rb"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)

EXAMPLES_SHARE = 10  # in the fast tier a property is tried on one in so many of its examples
EXAMPLES_MIN = 5  # though on so many at least, if it has them
SETTINGS = "_hypothesis_internal_use_settings"  # where Hypothesis keeps those of a test

# How long a machine takes says nothing of a property. Every run tries the same examples: a change
# that passed fails nobody later. `--hypothesis-profile explore` tries others.
hypothesis.settings.register_profile(
    "explore", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "same", parent=hypothesis.settings.get_profile("explore"), derandomize=True, database=None
)
hypothesis.settings.load_profile("same")


def is_slow_room(path: Path) -> bool:
    return bool(SLOW_ROOMS & set(path.relative_to(TESTS).parts))


def is_slow_file(path: Path) -> bool:
    """Whether all tests of a file are slow, by its text: not even its imports are wanted then."""
    return path.suffix == ".py" and SLOW_FILE.search(path.read_bytes()) is not None


def is_fast_tier(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast tier does not even import what it leaves out."""
    if not is_fast_tier(config) or TESTS not in collection_path.parents:
        return None
    return is_slow_room(collection_path) or is_slow_file(collection_path) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Thousands of tests and all modules are here for good: the garbage collector, which would look
    at them again and again, passes them over."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):  # one process has one Spark
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS_MAX))
        if is_slow_room(item.path):
            item.add_marker(pytest.mark.slow)
        if is_fast_tier(config):
            try_fewer_examples(item)
        elif item.get_closest_marker("slow") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
    if hasattr(config, "workerinput") and not is_fast_tier(config):
        # Several processes: what is long comes first, so that all end with what is short.
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def group_of(path: Path) -> str:
    """One process runs the slow tests of a group, so what they share is started once: the room
    where all share a cluster of Apache Kafka, elsewhere the file."""
    parts = path.relative_to(TESTS).parts
    return parts[0] if parts[0] in SHARING_ROOMS else "/".join(parts)


def try_fewer_examples(item: pytest.Item) -> None:
    """Of a property, what the fast tier has the time for; the whole suite tries them all."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)  # of a method, which takes no attributes
    machine = getattr(item, "cls", None)  # or that of a state machine, which has settings itself
    for owner, name in ((test, SETTINGS), (machine, "settings")):
        wanted = getattr(owner, name, None)
        if isinstance(wanted, hypothesis.settings):
            few = min(wanted.max_examples, max(EXAMPLES_MIN, wanted.max_examples // EXAMPLES_SHARE))
            setattr(owner, name, hypothesis.settings(wanted, max_examples=few))


@pytest.fixture(autouse=True)
def plain_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is logged in a test stays text. Each error of PySpark makes a logger that keeps its
    records from the root; pytest would add its handlers to such a logger, which has them write
    JSON from then on, whatever logger they get a record from.
    """
    yield
    if "pyspark" in sys.modules:
        for name in PYSPARK_LOGGERS & logging.root.manager.loggerDict.keys():
            logging.getLogger(name).propagate = True
        plugin = request.config.pluginmanager.get_plugin("logging-plugin")
        if plugin is not None:
            for handler in (plugin.caplog_handler, plugin.report_handler):
                handler.setFormatter(plugin.formatter)


@pytest.fixture(scope="session")
def fast_tier(request: pytest.FixtureRequest) -> bool:
    """Whether only the fast tier runs."""
    return is_fast_tier(request.config)


@pytest.fixture(scope="session")
def few(fast_tier: bool) -> Callable[[int], int]:
    """`few(60)`: of so many drawn examples the share that this tier tries, two at least."""
    return (lambda count: max(2, count // EXAMPLES_SHARE)) if fast_tier else (lambda count: count)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `broker` keeps its log."""
    return tmp_path_factory.mktemp("broker") / "data"


@pytest.fixture(scope="session")
def broker(data_dir: Path) -> Iterator[EmbeddedBroker]:
    """One broker for all tests that do it no harm."""
    with EmbeddedBroker(data_dir, overrides=QUICK_GROUPS | NOTHING_IS_OLD) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker under test, HOST:PORT: ours, or another to compare it with."""
    if ELSEWHERE:
        return ELSEWHERE
    broker: EmbeddedBroker = request.getfixturevalue("broker")
    return broker.bootstrap_servers


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a process: its tests share a JVM and the processes of its tasks.

    A test that needs other settings, or kills its Spark, starts a process of its own.
    """
    from kafkalite.spark.sessions import session

    running = session("kafkalite-tests", master="local[2]")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of the shared session ends its queries: they would work beside the next test."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    yield
    running = session.streams.active
    for query in running:
        query.stop()
    assert not running, f"{len(running)} queries were left running"


@pytest.fixture(scope="session")
def served(bootstrap: str) -> frozenset[str]:
    """The names of the APIs that the broker under test serves."""

    async def ask() -> frozenset[str]:
        from kafkalite.clients.admin.client import Admin
        from kafkalite.core.protocol.apis import API, ApiKey

        async with Admin(bootstrap) as admin:
            keys = await admin.api_versions()
        return frozenset(API[ApiKey(key)].name for key in keys if key in API)

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def skipped_where_not_served(request: pytest.FixtureRequest) -> None:
    """The mark `needs("DeleteRecords", ...)`: another broker may lack an API, ours must not."""
    for mark in request.node.iter_markers("needs"):
        missing = sorted(set(mark.args) - request.getfixturevalue("served"))
        if missing:
            end = pytest.skip if ELSEWHERE else pytest.fail
            end(f"the broker does not serve {', '.join(missing)}")


@pytest.fixture(scope="session")
def for_each() -> Callable[..., None]:
    """`for_each(table, check, name)` calls `check(case)` for each case of a table, and fails with
    the names and errors of all cases that failed.

    For tables of hundreds of cases that take microseconds: a test of its own takes milliseconds.
    """

    def run(table: Iterable[Any], check: Callable[[Any], None], name: Callable[[Any], str]) -> None:
        failed, count = [], 0
        for case in table:
            count += 1
            try:
                check(case)
            except (Exception, pytest.fail.Exception) as error:
                failed.append(f"{name(case)}: {type(error).__name__}: {error}")
        assert count, "the table is empty"
        assert not failed, f"{len(failed)} of {count} cases failed:\n" + "\n".join(failed)

    return run


@pytest.fixture
def run_measured() -> Callable[..., None]:
    """`run_measured(main)` runs `main(turns)` on a loop that measures its turns; there
    `with turns.watch() as watch:` finds the longest of a block, `watch.longest_s`.

    Other processes may take the processor from a turn: with `time.thread_time` as the clock, what
    the loop's own thread works is counted, and not what it waits for.
    """

    def run(
        main: Callable[[Turns], Coroutine[Any, Any, None]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        async def measured() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, MeasuredLoop)
            await main(loop.turns)

        with asyncio.Runner(loop_factory=lambda: MeasuredLoop(clock)) as runner:
            runner.run(measured())

    return run


@pytest.fixture
def yardstick_s() -> Callable[[], float]:
    """`yardstick_s()` is how long this thread works for 20,000 entries of a dictionary, here and
    now: some 3 ms. A turn that is as long as a few of these is short on any machine."""

    def measured() -> float:
        began_s = time.thread_time()
        assert len({number: (number, str(number)) for number in range(20_000)}) == 20_000
        return time.thread_time() - began_s

    return lambda: statistics.median(measured() for _ in range(5))


@pytest.fixture
def spoil() -> Callable[[Path], Callable[[], None]]:
    """`mend = spoil(path)` puts a directory where a file may be: nobody reads it until `mend()`."""

    def put(path: Path) -> Callable[[], None]:
        good = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.mkdir()

        def mend() -> None:
            path.rmdir()
            if good is not None:
                path.write_bytes(good)

        return mend

    return put


@pytest.fixture
def settle() -> Callable[[], None]:
    """Lets another broker hear of what its controller has done; ours tells of it at once."""
    return (lambda: time.sleep(SETTLE_SECONDS)) if ELSEWHERE else (lambda: None)


@pytest.fixture
def topic() -> str:
    """A name that no topic has; producing to it makes it."""
    return f"topic-{uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """A group id that nobody has used."""
    return f"group-{uuid4().hex[:12]}"


@pytest.fixture
def make_topic(bootstrap: str, topic: str) -> Callable[..., str]:
    """`make_topic(partitions)` makes the topic `topic` and returns its name."""

    def make(partitions: int, configs: Settings = None) -> str:
        from kafkalite.clients.admin.client import Admin, NewTopic

        new = NewTopic(topic, partitions, configs=dict(configs or {}))

        async def ask() -> None:
            async with Admin(bootstrap) as admin:
                await admin.create_topics([new])

        asyncio.run(ask())
        return topic

    return make


@pytest.fixture
def files(bootstrap: str, data_dir: Path) -> Path:
    """Where the broker under test keeps its log."""
    if ELSEWHERE:
        pytest.skip(f"the files of the broker at {bootstrap} are out of reach")
    return data_dir


@pytest.fixture
def codecs_on_disk(files: Path) -> Callable[[str], set[str]]:
    """`codecs_on_disk(topic)`: how the batches of the topic's partition 0 are compressed."""

    def read(topic: str) -> set[str]:
        from kafkalite.core.protocol.records import batches

        log = files / f"{topic}-0" / f"{0:020}.log"
        return {header.compression.name.lower() for _, header in batches(log.read_bytes())}

    return read


class ServerProcess:
    """`kafkalite server start` as a process of its own, to be killed, stopped and started again."""

    def __init__(self, data_dir: Path, listen: str, overrides: Settings, stderr: Path) -> None:
        self.data_dir = data_dir
        self._stderr = stderr
        command = [sys.executable, "-m", "kafkalite.cli", "server", "start"]
        command += ["--data-dir", str(data_dir), "--listen", listen]
        for name, value in {**QUICK_GROUPS, **(overrides or {})}.items():
            command += ["--override", f"{name}={value}"]
        with stderr.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY):
            self.kill()
            pytest.fail(f"the server did not start: {line}{self.stderr}")
        self.address = line.removeprefix(READY).split(" ", 1)[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr(self) -> str:
        """All that it has logged so far, but for a hint that there is no native code."""
        return without_hint(self._stderr.read_text())

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Asks it to stop; its exit code."""
        os.kill(self.pid, signal_number)
        return self._process.wait(EXIT_SECONDS_MAX)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """`serve(data_dir, listen="127.0.0.1:0", overrides=None)`: a ServerProcess that is ready."""
    logs = tmp_path_factory.mktemp("stderr")
    started: list[ServerProcess] = []

    def start(
        data_dir: Path, listen: str = "127.0.0.1:0", overrides: Settings = None
    ) -> ServerProcess:
        server = ServerProcess(data_dir, listen, overrides, logs / f"{len(started)}.log")
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="session")
def dump_log() -> Callable[..., str]:
    """What Apache Kafka's own DumpLogSegments prints of a log's files; it must not complain."""
    jars = jars_of_kafka()

    def dump(files: Iterable[Path], *flags: str) -> str:
        command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{jars}/*"]
        command += ["org.apache.kafka.tools.DumpLogSegments", *flags]
        command += ["--files", ",".join(map(str, files))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        for complaint in COMPLAINTS:
            assert complaint not in done.stdout, done.stdout
        return done.stdout

    return dump


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A ZooKeeper server for all tests of a worker, which leave it running."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_ms=100) as server:
        yield server


@pytest.fixture
def zookeeper_address(zookeeper: ZooKeeper) -> str:
    """The server's address with an empty part of its tree."""
    return f"{zookeeper.address}/{uuid4().hex}"
