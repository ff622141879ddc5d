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

ADVERTISED: Final = "advertised.listeners"
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
            help="HOST:PORT; port 0 takes a free one. Wins over listeners of --config.",
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
    settings = _settings(config, listen, parse_pairs(override, "--override"))
    where = data_dir or _log_dir(settings)
    say_which_codec(cleaner=True)
    log_to_stderr()
    _allow_many_files()
    from kafkalite.core.broker.turns import MeasuredLoop

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(_run(where, listen, settings, registry, exit_with_parent, json))


cli.command(epilog=EPILOG)(status)


async def _run(
    data_dir: Path,
    listen: str | None,
    settings: dict[str, str],
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
            "registry": url,
            "data_dir": str(data_dir),
            "pid": os.getpid(),
        }
        print(to_json(told).decode(), flush=True)
        return
    door = "" if url is None else f"schema registry at {url}, "
    print(f"kafkalite is ready at {node.address} ({door}data in {data_dir})", flush=True)


def _settings(file: Path | None, listen: str | None, overrides: dict[str, str]) -> dict[str, str]:
    """The settings of the file, and over them those of the flags.

    A file may hold what Kafka does not know, a plugin's settings for example: that is only told.
    """
    from kafkalite.core.config.settings import parse_properties, split_known

    if file is None:
        return overrides
    try:
        known, unknown = split_known(parse_properties(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {file}: {error}") from error
    for name in unknown:
        print(f"kafkalite: {file}: {name} is no setting of Kafka's, ignored", file=sys.stderr)
    if listen is not None:
        known = _advertised_at(known, listen, file)
    return known | overrides


def _advertised_at(known: dict[str, str], listen: str, file: Path) -> dict[str, str]:
    """The file's settings where --listen takes the place of its listeners: clients must not be
    sent to the port that the file speaks of."""
    told = known.get(ADVERTISED, "")
    port = listen.rpartition(":")[2]
    if not told or any(entry.strip().endswith(f":{port}") for entry in told.split(",")):
        return known
    print(
        f"kafkalite: {file}: {ADVERTISED} {told} is of another port than --listen {listen}, "
        f"left out; --override {ADVERTISED}=… sets it",
        file=sys.stderr,
    )
    return {name: value for name, value in known.items() if name != ADVERTISED}


def _log_dir(settings: dict[str, str]) -> Path:
    """Where the settings say that the log is kept."""
    from kafkalite.core.config.settings import BrokerConfig

    if not settings.keys() & {"log.dirs", "log.dir"}:
        raise typer.BadParameter("give one, or log.dirs in --config", param_hint="--data-dir")
    first, *others = BrokerConfig.parse(settings).log_dirs
    if others:
        raise ConfigError(f"log.dirs names {len(others) + 1} directories; give one of them")
    return Path(first)


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
