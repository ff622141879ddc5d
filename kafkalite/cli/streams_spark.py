"""`kafkalite-streams run --engine spark`: the same topology as a query of Spark.            [IO]

Owns   the session's life: the JVM ends with the command. The first Ctrl-C or SIGTERM stops the
       query; the micro-batch under way is repeated by the next run.
Fails  with one line and exit code 1, as `run` does.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalite.cli.output import print_json
from kafkalite.errors import TopologyError

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

    from kafkalite.spark.topology.query import Seen
    from kafkalite.streams import Streams
    from kafkalite.streams.plan import Plan

CHECKPOINTS: Final = "kafkalite-checkpoints"


class Engine(StrEnum):
    """Where a topology runs."""

    local = "local"
    spark = "spark"


AsEngine = Annotated[
    Engine, typer.Option("--engine", help="Workers of our own, or a query of Spark.")
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark: its master, such as spark://host:7077.", show_default="local[*]"),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Spark: the folder of the query's offsets and state, for all of its machines.",
        show_default=f"{CHECKPOINTS}/APPLICATION-ID",
    ),
]
Trigger = Annotated[
    str | None,
    typer.Option(help="Spark: how often a micro-batch begins, such as 1s.", show_default="at once"),
]
From = Annotated[
    Engine | None,
    typer.Option(
        "--from",
        help="Spark: move the state there from this engine, whose workers are stopped.",
        show_default="the state is there, or there is none",
    ),
]


def refuse_local_options(**given: object) -> None:
    """TopologyError for an option that workers of our own have and Spark has not."""
    for name, value in given.items():
        if value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise TopologyError(f"{option} is for --engine local; Spark has its own ways for that")


def refuse_spark_options(**given: object) -> None:
    """TopologyError for an option that Spark alone has."""
    for name, value in given.items():
        if value is not None:
            raise TopologyError(f"--{name} is for --engine spark")


def run_on_spark(
    streams: Streams,
    file: Path,
    bootstrap_servers: str | None,
    data_dir: Path | None,
    *,
    master: str | None,
    checkpoint: str | None,
    trigger: str | None,
    begin: Engine | None,
    until_caught_up: bool,
    json: bool,
) -> None:
    """Runs a topology on Spark until it is stopped, or is caught up. With `begin` its state comes
    from that engine."""
    from kafkalite.spark.topology.moving import hold_state, initial_state, seeds
    from kafkalite.spark.topology.preparing import prepare
    from kafkalite.spark.topology.query import QuerySettings, TopologyQuery
    from kafkalite.spark.topology.shipping import Shipment
    from kafkalite.spark.topology.stages import stages_of
    from kafkalite.streams.durations import not_negative
    from kafkalite.streams.local.settings import DEFAULTS

    name = streams.application_id
    stages = stages_of(_plan(streams))
    idle_ms = DEFAULTS.idle_ms if streams.idle is None else not_negative(streams.idle, "idle")
    interval = None if trigger is None else f"{not_negative(trigger, '--trigger')} milliseconds"
    folder = checkpoint or str(Path(CHECKPOINTS, name).resolve())
    started = time.monotonic()
    with streams.broker(bootstrap_servers, data_dir) as servers:
        stay = hold_state(servers, stages.plan, folder, from_local=begin is Engine.local)
        layout = prepare(
            servers, stages, idle_ms=idle_ms, starting=stay.offsets, holder=stay.holder
        )
        shipment = Shipment.of(layout, servers, _module(file), [str(file.parent.resolve())])
        _say(f"{name}: starting Spark; its checkpoint is {folder}")
        with _session(name, master) as session, _stop_flag() as stopping:
            first = (
                initial_state(session, seeds(servers, stages.plan, stay)) if stay.seeds else None
            )
            settings = QuerySettings(folder, interval, initial_state=first, holder=stay.holder)
            query = TopologyQuery(session, layout, shipment, settings)
            _say(f"{name}: running on {servers} with Spark, Ctrl-C stops it")
            query.run(lambda: bool(stopping), until_caught_up=until_caught_up)
    _tell(name, query.seen, time.monotonic() - started, until_caught_up, json=json)


def _tell(name: str, seen: Seen, seconds: float, is_caught_up: bool, *, json: bool) -> None:
    if json:
        print_json(
            {
                "application_id": name,
                "records": seen.records,
                "micro_batches": seen.micro_batches,
                "dropped": seen.drops.document(),
                "seconds": seconds,
            }
        )
        return
    ending = "caught up" if is_caught_up else "stopped"
    typer.echo(
        f"{name}: {ending}: {seen.records:,} records in {seconds:.1f} s with Spark's start, "
        f"{seen.micro_batches:,} micro-batches"
    )
    for line in seen.drops.lines():
        typer.echo(f"{name}: {line}")


def describe_on_spark(streams: Streams, form: str) -> str:
    """Where each part of a topology runs, as text or JSON."""
    from kafkalite.spark.topology.stages import describe_stages, stages_of

    if form not in ("text", "json"):
        raise TopologyError(f"--format {form} is for --engine local; with spark: text or json")
    return describe_stages(stages_of(_plan(streams)), form).rstrip("\n")


def _plan(streams: Streams) -> Plan:
    """The plan as a run has it."""
    from kafkalite.streams.rewrites import without_cache

    plan = streams.plan()
    return plan if streams.cache is None else without_cache(plan)


def _module(file: Path) -> ModuleType | None:
    return sys.modules.get(file.stem)


@contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """A session whose JVM ends with the block."""
    try:
        from kafkalite.spark import session
    except ImportError as error:
        raise TopologyError(f"--engine spark needs PySpark: {error}") from error
    made = session(name, master=master)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def _stop_flag() -> Iterator[list[int]]:
    """A list that the first signal fills; the second signal ends the process."""
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if signals:
            raise SystemExit(130)
        signals.append(number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _say(text: str) -> None:
    typer.echo(text, err=True)
