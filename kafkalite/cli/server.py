"""`kafkalite server start`: a broker in the foreground.                                    [IO]

stdout gets one line, when clients can connect; stderr gets the log, a line an event. SIGTERM and
SIGINT end the broker gracefully, and so does the end of stdin under --exit-with-parent, which the
parent's death brings about however it dies.

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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalite.cli import say_which_codec
from kafkalite.cli.options import examples, parse_pairs, program
from kafkalite.cli.output import to_json
from kafkalite.cli.status import EPILOG, status
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.node import Node

# Each time that the broker comes back from the system, the registry's thread may keep the
# interpreter for so long. Python's own 5 ms are ten times what a request takes.
SWITCH_SECONDS: Final = 0.0005

cli = program("Run a broker; ask how a cluster is.")


@cli.command(
    epilog=examples(
        "kafkalite server start --data-dir ./data",
        "kafkalite server start --data-dir ./data --listen 127.0.0.1:0 "
        "--override auto.create.topics.enable=false",
        "kafkalite server start --config server.properties",
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
    registry: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT for a schema registry with Confluent's REST API, and for /metrics.",
            show_default="off",
        ),
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when stdin ends.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Say that it is ready as one line of JSON.")
    ] = False,
) -> None:
    """Run a broker until it is told to stop (Ctrl-C or SIGTERM)."""
    from kafkalite.cli.server_settings import read_settings
    from kafkalite.core.broker.turns import MeasuredLoop

    given = read_settings(config, listen, parse_pairs(override, "--override"))
    for note in given.notes:
        print(f"kafkalite: {note}", file=sys.stderr)
    say_which_codec(cleaner=True)
    log_to_stderr()
    _allow_many_files()
    try:
        where = data_dir or given.log_dir
        if where is None:
            raise typer.BadParameter("give one, or log.dirs in --config", param_hint="--data-dir")
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            runner.run(_run(where, listen, given.values, registry, exit_with_parent, json))
    except ConfigError as error:
        raise given.located(error) from error


cli.command(epilog=EPILOG)(status)


async def _run(
    data_dir: Path,
    listen: str | None,
    settings: Mapping[str, str],
    registry: str | None,
    exit_with_parent: bool,
    json: bool,
) -> None:
    from kafkalite.node import start_node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if exit_with_parent:
        _stop_at_end_of_stdin(loop, stop)
    node = await start_node(data_dir, listen, settings, registry)
    gc.collect()
    gc.freeze()  # what is here now stays: no later collection needs to look at it again
    if registry is not None:
        sys.setswitchinterval(SWITCH_SECONDS)
    _say_ready(node, data_dir, json)
    try:
        await stop.wait()
    finally:
        await node.close()


def _say_ready(node: Node, data_dir: Path, json: bool) -> None:
    """The one line on stdout: clients can connect."""
    url = None if node.registry is None else node.registry.url
    if json:
        told = {
            "address": str(node.address),
            "listeners": {name: str(at) for name, at in node.addresses.items()},
            "registry": url,
            "data_dir": str(data_dir),
            "pid": os.getpid(),
        }
        print(to_json(told).decode(), flush=True)
        return
    others = [f"{name} at {at}" for name, at in node.addresses.items() if at != node.address]
    doors = others if url is None else [f"schema registry at {url}", *others]
    words = ", ".join([*doors, f"data in {data_dir}"])
    print(f"kafkalite is ready at {node.address} ({words})", flush=True)


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Whoever holds the other end of our stdin keeps us alive."""
    stdin = sys.stdin.fileno()
    if stat.S_ISREG(os.fstat(stdin).st_mode):
        raise ConfigError("--exit-with-parent: stdin is a file, give the end of a pipe")

    def readable() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stop.set()

    loop.add_reader(stdin, readable)


def log_to_stderr() -> None:
    """A line an event, UTC."""
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _allow_many_files() -> None:
    """A connection is a file, and so is a segment: takes as many as the system gives."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
