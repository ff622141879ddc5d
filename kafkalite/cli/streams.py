"""`kafkalite-streams`: run and describe the topology that a Python file builds.           [IO]

Fails  with one line and exit code 1: a file that does not exist, an error in it (named by its
       line), no `Streams` object in it or several, an error that stops the topology.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkalite.cli import run_command, say_which_codec
from kafkalite.cli.completing import SERVERS_VARIABLE
from kafkalite.cli.options import AsJson, Bootstrap, examples, program
from kafkalite.cli.output import emit, print_json
from kafkalite.cli.streams_dlq import (
    ErrorType,
    Force,
    Topic,
    Where,
    list_letters,
    replay_letters,
    show_letter,
)
from kafkalite.cli.streams_moving import Data, Exports, Servers, Through, export_to_local
from kafkalite.cli.streams_reset import (
    BootstrapServers,
    DataDir,
    Execute,
    StateDir,
    To,
    reset_application,
)
from kafkalite.cli.streams_spark import (
    AsEngine,
    Checkpoint,
    Engine,
    From,
    Master,
    Trigger,
    describe_on_spark,
    refuse_local_options,
    refuse_spark_options,
    run_on_spark,
)
from kafkalite.cli.streams_status import Interval, Watch, show_status
from kafkalite.errors import KafkaliteError, TopologyError

if TYPE_CHECKING:
    from kafkalite.streams import Streams
    from kafkalite.streams.local.worker import Progress

cli = program(
    "Run stream topologies written in Python.",
    epilog=examples(
        "kafkalite-streams describe app.py --format mermaid", "kafkalite-streams run app.py"
    ),
)

dlq = program("Dead letters of an application: count, show and replay them.")
cli.add_typer(dlq, name="dlq")

AppFile = Annotated[
    str, typer.Argument(help="A Python file with one Streams object, or FILE.py:NAME.")
]

StateIn = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Where state is kept on this machine, so that a restart is quick.",
        show_default="memory",
    ),
]


Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-w",
        min=1,
        help="Processes that share the work. One that is killed is started again.",
        show_default="1",
    ),
]


Standbys = Annotated[
    int | None,
    typer.Option(
        "--standby-replicas",
        min=0,
        help="Other workers that keep a copy of each task's state, to take over at once.",
        show_default="0",
    ),
]


class Guarantee(StrEnum):
    """The guarantee of a run for its results after a fault."""

    exactly_once = "exactly_once"
    at_least_once = "at_least_once"


Guaranteed = Annotated[
    Guarantee | None,
    typer.Option(
        "--processing-guarantee",
        help="What a crash leaves behind: each result once, or some of them repeated.",
        show_default="exactly_once, if the broker has transactions",
    ),
]

CommitInterval = Annotated[
    str | None,
    typer.Option(
        help="How often results, state and offsets are committed, such as 250ms.",
        show_default="100ms, at least once: 1s",
    ),
]

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Answer there: stores, metrics, health. The second worker takes the next port.",
        show_default="nothing answers",
    ),
]

BrokerData = Annotated[
    Path | None,
    typer.Option(help="Where a broker of its own keeps its log.", show_default="kafkalite-data"),
]

Reload = Annotated[
    bool,
    typer.Option("--reload", help="Start again when a Python file of the app's folder changes."),
]

RunServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        help="HOST:PORT[,…] of a broker. Default: a broker of its own, until the run ends.",
        envvar=SERVERS_VARIABLE,
    ),
]

UntilCaughtUp = Annotated[
    bool, typer.Option("--until-caught-up", help="Stop when every input's lag is 0.")
]

Traced = Annotated[
    bool, typer.Option("--traceback", help="Show where an error comes from, frame by frame.")
]


class Format(StrEnum):
    """How `describe` prints a topology."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"
    json = "json"


@cli.command(
    epilog=examples(
        "kafkalite-streams run app.py",
        "kafkalite-streams run app.py --bootstrap-servers 127.0.0.1:9092 --until-caught-up",
        "kafkalite-streams run apps.py:billing -b kafka-1:9092 --commit-interval 250ms",
        "kafkalite-streams run app.py -b kafka-1:9092 --engine spark --master spark://host:7077",
    )
)
def run(
    app: AppFile,
    bootstrap_servers: RunServers = None,
    data_dir: BrokerData = None,
    until_caught_up: UntilCaughtUp = False,
    commit_interval: CommitInterval = None,
    guarantee: Guaranteed = None,
    state_dir: StateIn = None,
    standby_replicas: Standbys = None,
    workers: Workers = None,
    http: Http = None,
    reload: Reload = False,
    engine: AsEngine = Engine.local,
    master: Master = None,
    checkpoint: Checkpoint = None,
    trigger: Trigger = None,
    begin: From = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    traceback: Traced = False,
) -> None:
    """Run a topology until it is stopped with Ctrl-C or SIGTERM.

    The first signal commits and ends the run with exit code 0; the next run goes on from there. A
    second signal does not wait for the commit (the broker may be gone) and ends it with 130.

    Without --bootstrap-servers a broker of its own runs, prints its address, and waits for topics.

    With --reload a change of the source commits, ends the run, and starts it again with its state.
    While the source does not load, its error is shown and the run before goes on.

    With --engine spark the same topology runs as a query of Spark, exactly once. --from local moves
    the state there, `export-state` moves it back.
    """
    if engine is Engine.spark:
        refuse_local_options(
            commit_interval=commit_interval, processing_guarantee=guarantee, state_dir=state_dir,
            standby_replicas=standby_replicas, workers=workers, http=http, reload=reload,
        )  # fmt: skip
        with _traced(traceback):
            run_on_spark(
                load(app), Path(app.partition(":")[0]), bootstrap_servers, data_dir, master=master,
                checkpoint=checkpoint, trigger=trigger, begin=begin, json=json,
                until_caught_up=until_caught_up,
            )  # fmt: skip
        return
    refuse_spark_options(**{"from": begin}, master=master, checkpoint=checkpoint, trigger=trigger)
    if reload:
        raise typer.Exit(_run_again_on_change(app))
    with _traced(traceback):
        streams = load(app)
    from kafkalite.streams.workers import VARIABLE

    say_which_codec()
    named = streams.bootstrap_servers if bootstrap_servers is None else bootstrap_servers
    # A supervisor says it for its workers, and `run` prints the address of a broker of its own.
    if named is not None and VARIABLE not in os.environ:
        typer.echo(f"{streams.application_id}: running on {named}", err=True)
    with _traced(traceback):
        progress = streams.run(
            bootstrap_servers,
            until_caught_up=until_caught_up,
            commit_interval=commit_interval,
            processing_guarantee=None if guarantee is None else guarantee.value,
            data_dir=data_dir,
            state_dir=state_dir,
            num_standby_replicas=standby_replicas,
            http=http,
            **({} if workers is None else {"workers": workers}),
        )
    _tell(streams, progress, "caught up" if until_caught_up else "stopped", json=json)


def _tell(streams: Streams, progress: Progress, ending: str, *, json: bool) -> None:
    if json:
        print_json(_figures(streams, progress))
        return
    typer.echo(f"{streams.application_id}: {ending}: {_summary(progress)}")
    for line in progress.drops.lines():
        typer.echo(f"{streams.application_id}: {line}")


def _run_again_on_change(app: str) -> int:
    from kafkalite.cli.reloading import Reloading, command_without

    file = Path(app.partition(":")[0])
    if not file.is_file():
        raise TopologyError(f"{file}: no such file")
    check = [sys.executable, "-m", "kafkalite.cli.streams", "describe", app, "--json"]
    say = partial(typer.echo, err=True)
    return Reloading(file, command_without("--reload"), check, say).run()


@contextmanager
def _traced(wanted: bool) -> Iterator[None]:
    """Prints the traceback of an error of the user's code if it is wanted."""
    try:
        yield
    except KafkaliteError:
        if wanted:
            traceback.print_exc()
        raise


def _figures(streams: Streams, progress: Progress) -> dict[str, object]:
    return {
        "application_id": streams.application_id,
        "records": progress.records,
        "written": progress.records_out,
        "restored": progress.records_restored,
        "dropped": progress.drops.document(),
        "seconds": progress.seconds,
    }


def _summary(progress: Progress) -> str:
    restored = f", {progress.records_restored:,} restored" if progress.records_restored else ""
    return (
        f"{progress.records:,} records in {progress.seconds:.1f} s "
        f"({progress.records / progress.seconds:,.0f} records/s)"
        f"{restored}; {progress.records_out:,} written"
    )


@cli.command(
    epilog=examples(
        "kafkalite-streams describe app.py",
        "kafkalite-streams describe app.py --format mermaid",
        "kafkalite-streams describe app.py --json | jq .",
        "kafkalite-streams describe app.py --engine spark",
    )
)
def describe(
    app: AppFile,
    output: Annotated[
        Format,
        typer.Option("--format", "-f", help="text, mermaid (a diagram), svg (a picture) or json."),
    ] = Format.text,
    engine: AsEngine = Engine.local,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print a topology: its parts, stores and topics. Nothing runs.

    With --engine spark, where on Spark each part runs, or why it cannot.
    """
    if engine is Engine.spark:
        emit(describe_on_spark(load(app), Format.json.value if json else output.value))
        return
    emit(load(app).describe(format=Format.json.value if json else output.value).rstrip("\n"))


@cli.command(
    epilog=examples(
        "kafkalite-streams reset app.py",
        "kafkalite-streams reset app.py --execute",
        "kafkalite-streams reset app.py -b kafka-1:9092 --to latest --execute",
    )
)
def reset(
    app: AppFile,
    bootstrap_servers: BootstrapServers = None,
    data_dir: DataDir = None,
    to: To = None,
    state_dir: StateDir = None,
    execute: Execute = False,
    json: AsJson = False,
) -> None:
    """Reset an application, so that it begins again.

    Deletes its offsets, internal topics and state directory. Refused while workers run. Topics that
    the application writes for others stay as they are.
    """
    reset_application(
        load(app), bootstrap_servers, data_dir, to, state_dir, execute=execute, json=json
    )


@cli.command(
    "export-state",
    epilog=examples(
        "kafkalite-streams export-state app.py --checkpoint checkpoints/app -b 127.0.0.1:9092",
    ),
)
def export_state(
    app: AppFile,
    checkpoint: Exports,
    bootstrap_servers: Servers = None,
    data_dir: Data = None,
    master: Through = None,
    json: AsJson = False,
) -> None:
    """Move an application from Spark back to the local engine.

    The state after the last completed micro-batch goes to the changelogs, and its offsets to the
    group, in one transaction. After that `run` goes on from there. Stop the query first: one that
    still runs can write nothing more. The command may be repeated.
    """
    export_to_local(load(app), bootstrap_servers, data_dir, checkpoint, master, json=json)


@cli.command(
    epilog=examples(
        "kafkalite-streams status app.py -b 127.0.0.1:9092",
        "kafkalite-streams status app.py -b kafka-1:9092 --watch",
    )
)
def status(
    app: AppFile,
    bootstrap_servers: Bootstrap,
    watch: Watch = False,
    interval: Interval = 2.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document a look.")] = False,
) -> None:
    """Show workers, tasks and lags of an application that runs.

    Workers that were started with --http also say what they restore, and count their records.
    """
    show_status(load(app), bootstrap_servers, watch=watch, interval=interval, json=json)


@dlq.command("list", epilog=examples("kafkalite-streams dlq list app.py -b 127.0.0.1:9092"))
def dlq_list(
    app: AppFile,
    bootstrap_servers: Bootstrap,
    json: AsJson = False,
) -> None:
    """Count dead letters by topic, operator and error."""
    list_letters(load(app), bootstrap_servers, json=json)


@dlq.command("show", epilog=examples("kafkalite-streams dlq show app.py 0:17 -b 127.0.0.1:9092"))
def dlq_show(
    app: AppFile,
    letter: Where,
    bootstrap_servers: Bootstrap,
    json: AsJson = False,
) -> None:
    """Show one dead letter, decoded, with its error and traceback."""
    show_letter(load(app), bootstrap_servers, letter, json=json)


@dlq.command(
    "replay",
    epilog=examples(
        "kafkalite-streams dlq replay app.py -b 127.0.0.1:9092",
        "kafkalite-streams dlq replay app.py -b 127.0.0.1:9092 --error TimeoutError --execute",
    ),
)
def dlq_replay(
    app: AppFile,
    bootstrap_servers: Bootstrap,
    topic: Topic = None,
    error: ErrorType = None,
    force: Force = False,
    execute: Execute = False,
    json: AsJson = False,
) -> None:
    """Send the records of dead letters to where they were read.

    Each letter is replayed once, however often the command runs. A record that failed again after
    three replays is left alone.
    """
    replay_letters(
        load(app), bootstrap_servers, topic, error, force=force, execute=execute, json=json
    )


def load(app: str) -> Streams:
    """The `Streams` object of `FILE.py` or `FILE.py:NAME`. Raises TopologyError."""
    from kafkalite.streams import Streams

    file, _, name = app.partition(":")
    module = _import(Path(file))
    found = {key: value for key, value in vars(module).items() if isinstance(value, Streams)}
    if name:
        if name not in found:
            raise TopologyError(f"{file} has no Streams object called {name!r}")
        return found[name]
    if not found:
        raise TopologyError(f"{file} has no Streams object at its top level")
    if len({id(value) for value in found.values()}) > 1:
        names = ", ".join(sorted(found))
        raise TopologyError(
            f"{file} has several Streams objects ({names}): choose one with {file}:NAME"
        )
    return next(iter(found.values()))


def _import(path: Path) -> object:
    if not path.is_file():
        raise TopologyError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TopologyError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))  # as `python app.py` does
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code: name its line, spare the traceback
        raise TopologyError(
            f"{path}:{_line(error, path)}: {type(error).__name__}: {error}"
        ) from error
    return module


def _line(error: BaseException, path: Path) -> int:
    """The last line of `path` that the error passed through."""
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    path = path.resolve()  # frames have whole paths
    return next((f.lineno or 0 for f in reversed(frames) if Path(f.filename).resolve() == path), 0)


def main() -> None:
    """The console script. SIGTERM while the user's file is imported ends it as it ends a run."""
    signal.signal(signal.SIGTERM, _end)
    run_command(cli)


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
