"""`kafkalite server start`: a broker in the foreground.                                    [IO]

stdout gets one line as soon as clients can connect; stderr gets the log, one line an event. SIGTERM
and SIGINT stop the broker gracefully. With --exit-with-parent the end of stdin does so too, which
happens however the parent process dies. Only the first of these counts, and one line reports the
stop. It ends the start of a cluster's broker, too, which may wait for ZooKeeper. SIGHUP is ignored:
a broker outlives the terminal that started it.

Fails  with one line: an unknown setting, an address in use, a data directory in use.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalite.cli import say_which_codec
from kafkalite.cli.event_loop import measured_lag, new_event_loop
from kafkalite.cli.options import examples, parse_pairs, program
from kafkalite.cli.output import to_json
from kafkalite.cli.server_log import (
    LogForm,
    LogFormat,
    LogLevels,
    last_words,
    log_to_stderr,
    parse_levels,
)
from kafkalite.cli.service_manager import told_to_service_manager
from kafkalite.cli.status import EPILOG, status
from kafkalite.cli.watchdog import check_supported, watched
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.node import Node

log: Final = logging.getLogger(__name__)

# Each time that the broker comes back from the system, the registry's thread may keep the
# interpreter for so long, and so may that of /metrics. Python's own 5 ms are ten times what a
# request takes.
SWITCH_SECONDS: Final = 0.0005

cli = program("Run a broker; ask how a cluster is.")


@cli.command(
    epilog=examples(
        "kafkalite server start --data-dir ./data",
        "kafkalite server start --data-dir ./data --listen 127.0.0.1:0 "
        "--override auto.create.topics.enable=false",
        "kafkalite server start --config server.properties",
        "kafkalite server start --data-dir ./one --zookeeper zk1:2181,zk2:2181 --broker-id 1",
    )
)
def start(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where the log is kept; made if not there. Else log.dirs of --config."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT, or NAME://HOST:PORT,…; port 0 takes a free one. Wins over listeners "
            "of --config.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A server.properties with Kafka's settings.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, wins over the file; may be repeated.")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT,…/CHROOT of the cluster's ZooKeeper: the setting zookeeper.connect.",
            show_default="none: the broker stands alone",
        ),
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option(help="The broker's id in its cluster: the setting broker.id.")
    ] = None,
    rack: Annotated[
        str | None, typer.Option(help="The broker's rack: the setting broker.rack.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT for a schema registry with Confluent's REST API, /metrics and /health.",
            show_default="off",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(help="HOST:PORT for /metrics and /health alone.", show_default="off"),
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when stdin ends.")
    ] = False,
    watchdog: Annotated[
        bool,
        typer.Option(
            "--watchdog/--no-watchdog",
            help="Have the broker killed once it was silent for zookeeper.session.timeout.ms: its "
            "clients move on at once. Something else has to start it again.",
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Say that it is ready as one line of JSON.")
    ] = False,
    log_level: LogLevels = None,
    log_format: LogForm = LogFormat.TEXT,
) -> None:
    """Run a broker until it is told to stop (Ctrl-C or SIGTERM)."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # also before the loop can tell of it
    log_to_stderr(log_format, parse_levels(log_level))
    with last_words(log_format):
        _serve(
            _Wanted(data_dir, listen, config, registry, http, exit_with_parent, watchdog, json),
            _flags(zookeeper, broker_id, rack) | parse_pairs(override, "--override"),
        )


def _flags(zookeeper: str | None, broker_id: int | None, rack: str | None) -> dict[str, str]:
    """The settings that have a flag of their own."""
    flags = {"zookeeper.connect": zookeeper, "broker.id": broker_id, "broker.rack": rack}
    return {name: str(value) for name, value in flags.items() if value is not None}


cli.command(epilog=EPILOG)(status)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The settings in the flags."""

    data_dir: Path | None
    listen: str | None
    config: Path | None
    registry: str | None
    http: str | None
    exit_with_parent: bool
    watchdog: bool
    json: bool


def _serve(wanted: _Wanted, overrides: dict[str, str]) -> None:
    from kafkalite.cli.server_settings import read_settings

    given = read_settings(wanted.config, wanted.listen, overrides)
    for note in given.notes:
        log.warning("%s", note)
    say_which_codec(cleaner=True, say=log.warning)
    if wanted.watchdog:
        check_supported(os.getpid())
    _allow_many_files()
    try:
        data_dir = wanted.data_dir or given.log_dir
        if data_dir is None:
            raise typer.BadParameter("give one, or log.dirs in --config", param_hint="--data-dir")
        with asyncio.Runner(loop_factory=partial(new_event_loop, log.warning)) as runner:
            runner.run(_run(wanted, data_dir, given.values))
    except ConfigError as error:
        raise given.located(error) from error


class _Stop:
    """The first reason to stop counts; more of them change nothing."""

    def __init__(self) -> None:
        self.reason = ""
        self._is_wanted = asyncio.Event()

    def want(self, reason: str) -> None:
        """Asks for the stop."""
        self.reason = self.reason or reason
        self._is_wanted.set()

    async def wait(self) -> None:
        """Returns once there is a reason."""
        await self._is_wanted.wait()


async def _run(wanted: _Wanted, data_dir: Path, settings: Mapping[str, str]) -> None:
    from kafkalite.node import start_node

    stop = _Stop()
    _watch_signals(asyncio.get_running_loop(), stop)
    if wanted.exit_with_parent:
        _stop_at_end_of_stdin(asyncio.get_running_loop(), stop)
    starting = asyncio.ensure_future(
        start_node(data_dir, wanted.listen, settings, wanted.registry, wanted.http)
    )
    if settings.get("zookeeper.connect") and await _is_given_up(starting, stop):
        return
    node = await starting
    gc.collect()
    gc.freeze()  # what is here now stays: no later collection needs to look at it again
    if wanted.registry is not None or wanted.http is not None:
        sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with _signs_of_life(node, watchdog=wanted.watchdog):
            _say_ready(node, data_dir, wanted.json)
            await stop.wait()
    finally:
        await _close(node, stop.reason)


async def _is_given_up(starting: asyncio.Task[Node], stop: _Stop) -> bool:
    """Whether the stop came before the broker was ready, which then does not start.

    A start in a cluster may wait for a minute, for ZooKeeper or for a controller. A broker that
    stands alone waits for its own disk, and is not interrupted there.
    """
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return False
    began = time.perf_counter()
    starting.cancel()
    await asyncio.wait({starting})
    if starting.cancelled():
        seconds = time.perf_counter() - began
        log.info("%s before the broker was ready, stopped in %.2f s", stop.reason, seconds)
    return starting.cancelled()


@contextmanager
def _signs_of_life(node: Node, *, watchdog: bool) -> Iterator[None]:
    """While the broker serves, whoever watches it hears of that."""
    with measured_lag(node.broker.metrics), ExitStack() as stack:
        if watchdog:
            stack.enter_context(watched(node.broker.config["zookeeper.session.timeout.ms"] / 1000))
        stack.enter_context(told_to_service_manager(os.environ))
        yield


def _watch_signals(loop: asyncio.AbstractEventLoop, stop: _Stop) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.want, number.name)
    words = "SIGHUP is ignored: settings are read when the broker starts"
    loop.add_signal_handler(signal.SIGHUP, log.info, words)


async def _close(node: Node, reason: str) -> None:
    """Stops the broker, and logs one line: the reason, the duration and leftovers."""
    began = time.perf_counter()
    try:
        await node.close()
    except Exception as error:
        log.error(
            "%s, stopped in %.2f s, not clean: %s", reason, time.perf_counter() - began, error
        )
        raise
    log.info("%s, stopped in %.2f s, clean", reason, time.perf_counter() - began)


def _say_ready(node: Node, data_dir: Path, json: bool) -> None:
    """The one line on stdout: clients can connect."""
    registry = None if node.registry is None else node.registry.url
    http = None if node.http is None else node.http.url
    if json:
        ready = {
            "address": str(node.address),
            "listeners": {name: str(at) for name, at in node.addresses.items()},
            "registry": registry,
            "http": http,
            "data_dir": str(data_dir),
            "pid": os.getpid(),
        }
        print(to_json(ready).decode(), flush=True)
        return
    doors = [] if registry is None else [f"schema registry at {registry}"]
    doors += [] if http is None else [f"metrics at {http}"]
    doors += [f"{name} at {at}" for name, at in node.addresses.items() if at != node.address]
    words = ", ".join([*doors, f"data in {data_dir}"])
    print(f"kafkalite is ready at {node.address} ({words})", flush=True)


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: _Stop) -> None:
    """Ends the broker when its stdin ends."""
    stdin = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(stdin).st_mode):
        raise ConfigError("--exit-with-parent: stdin is a file, give the end of a pipe")

    def readable() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stop.want("the end of stdin")

    loop.add_reader(stdin, readable)


def _allow_many_files() -> None:
    """A connection is a file, and so is a segment: takes as many as the system gives."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
