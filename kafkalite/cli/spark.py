"""`kafkalite-spark`: load topics into a warehouse of Parquet tables and ask it in SQL.     [IO]

Fails  with one line and exit code 1: a broker that does not answer, a topic that does not exist, a
       record that does not fit its table, no Spark or no Java on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalite.cli import run_command
from kafkalite.cli.options import BOOTSTRAP, AsJson, Bootstrap, examples, program
from kafkalite.cli.output import emit, print_json
from kafkalite.cli.spark_progress import progress
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalite.spark.engine import SparkEngine
    from kafkalite.warehouse.load import Load, Loaded
    from kafkalite.warehouse.tables import TopicLoad

cli = program("Load topics into a warehouse, with Spark or without.")


class Engine(Enum):
    """Who reads and writes."""

    SPARK = "spark"
    LOCAL = "local"


class Format(Enum):
    """A kind of table."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class OnError(Enum):
    """What becomes of a record that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    DLQ = "dlq"


AsFormat = Annotated[
    Format | None,
    typer.Option("--format", help="The kind of new tables (parquet); a table keeps its kind."),
]
Catalog = Annotated[
    str | None,
    typer.Option(help="Iceberg's catalog, by its name in pyiceberg's configuration."),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(help="day, hour, month of the timestamp, or a field: a folder for each."),
]
Sort = Annotated[
    bool, typer.Option(help="Sort the rows of a file by timestamp, so that readers skip more.")
]
FileSize = Annotated[
    int, typer.Option(help="Megabytes of the log that become one file.", min=1, max=4_096)
]
MinPartitions = Annotated[
    int, typer.Option(help="Divide a load into so many ranges at least.", min=1, max=100_000)
]
WithErrors = Annotated[
    OnError, typer.Option(help="What becomes of records that cannot be decoded.")
]
Until = Annotated[
    str | None, typer.Option(help="Load records before this time: ISO 8601, or epoch ms.")
]


@cli.callback()
def commands() -> None:
    """Load topics into a warehouse, with Spark or without."""


@cli.command(
    epilog=examples(
        "kafkalite-spark load orders --warehouse warehouse --key orders=string",
        "kafkalite-spark load orders --engine local --partition-by day --on-error dlq",
        "kafkalite-spark load orders --format iceberg",
        "kafkalite-spark load flights delays --key delays=windowed:1h --query worst.sql",
    )
)
def load(
    topics: Annotated[
        list[str], typer.Argument(help="Topics, each a table of its own.", metavar="TOPIC")
    ],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    warehouse: Annotated[Path, typer.Option(help="The folder of the tables.")] = Path("warehouse"),
    key: Annotated[
        list[str] | None,
        typer.Option(help="TOPIC=binary, string, or windowed:1h for keys of windows."),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(help="TOPIC=avro, json, string or binary. JSON fields become columns."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Spark, or processes of this machine without Spark.")
    ] = Engine.SPARK,
    processes: Annotated[
        int, typer.Option(help="Processes of the local engine.", min=1, max=256)
    ] = 1,
    table_format: AsFormat = None,
    catalog: Catalog = None,
    partition_by: PartitionBy = None,
    sort: Sort = True,
    file_mb: FileSize = 128,
    min_partitions: MinPartitions = 1,
    on_error: WithErrors = OnError.FAIL,
    until: Until = None,
    query: Annotated[
        Path | None, typer.Option(help="A file with one SQL query to run and print at the end.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Load the new records of topics into their tables.

    Every record is loaded exactly once, however often a load runs and wherever it breaks off.
    """
    keys, values = _by_topic("--key", key, topics), _by_topic("--value", value, topics)
    sql, until_ms = _read_query(query), _moment(until)
    needs_spark = engine is Engine.SPARK or query is not None
    kind = None if table_format is None else table_format.value
    loads = [
        replace(wanted, on_error=on_error.value, table_format=kind, catalog=catalog)
        for wanted in _topic_loads(topics, keys, values, needs_spark)
    ]
    from kafkalite.spark.log import partitions_of
    from kafkalite.warehouse.engines import LocalEngine
    from kafkalite.warehouse.load import Layout

    partitions_of(bootstrap_servers, topics)  # before there is a folder: do all topics exist?
    tell = (lambda _: None) if json else emit
    layout = Layout(partition_by, sort, file_mb << 20, min_partitions)
    with _spark(warehouse, tell, needs_spark) as spark:
        workers = spark if spark and engine is Engine.SPARK else LocalEngine(processes)
        told = _run(
            [
                (wanted, wanted.into(warehouse, bootstrap_servers, workers, layout, until_ms))
                for wanted in loads
            ],
            tell,
        )
        answer = None
        if query is not None and spark is not None:
            answer = _ask_tables(spark.session, warehouse, loads, query, sql)
        if json:
            print_json({**told, "rows": None if answer is None else answer.as_dicts()})
        elif answer is not None:
            show(answer)


@contextmanager
def _spark(
    warehouse: Path, tell: Callable[[str], None], needed: bool
) -> Iterator[SparkEngine | None]:
    """An engine whose session starts when it is first used, and ends with the command."""
    if not needed:
        yield None
        return
    from kafkalite.spark.engine import SparkEngine

    def start() -> SparkSession:
        from kafkalite.spark.session import local_session

        started = time.monotonic()
        session = local_session("kafkalite-load")
        tell(f"Spark {session.version} is up after {time.monotonic() - started:.1f} s")
        return session

    engine = SparkEngine(start, str(warehouse))
    try:
        yield engine
    finally:
        if engine.is_started:
            engine.session.stop()


def _topic_loads(
    topics: list[str],
    keys: dict[str, str],
    values: dict[str, str],
    needs_spark: bool,
) -> list[TopicLoad]:
    try:
        from kafkalite.warehouse.tables import TopicLoad

        if needs_spark and find_spec("pyspark") is None:  # not imported: perhaps nothing is new
            raise ImportError("No module named 'pyspark'")
    except ImportError as error:
        extra = "spark" if needs_spark else "warehouse"
        raise ConfigError(
            f"a package is not installed ({error}): pip install 'kafkalite[{extra}]'"
        ) from error
    loads = [TopicLoad(t, keys.get(t, "binary"), values.get(t, "avro")) for t in topics]
    names: dict[str, str] = {}
    for wanted in loads:
        other = names.setdefault(wanted.table.lower(), wanted.topic)
        if other != wanted.topic:
            raise ConfigError(
                f"topics {other} and {wanted.topic} would both be table {wanted.table}"
            )
    return loads


def _run(loads: list[tuple[TopicLoad, Load]], tell: Callable[[str], None]) -> dict[str, Any]:
    """Loads each table; returns the summary."""
    started, records = time.monotonic(), 0
    tables: list[dict[str, Any]] = []
    for wanted, load in loads:
        with progress(wanted.topic) as load.progress:
            done = load.run()
        records += done.records
        tables.append(
            {
                "topic": wanted.topic,
                "table": str(load.target.table),
                "records": done.records,
                "files": done.files,
                "skipped": done.skipped,
                "dead_letters": done.dead,
                "gaps": [asdict(gap) for gap in done.gaps],
            }
        )
        tell(f"{wanted.topic} -> {_shown(load.target.table)}: {_what(done)}")
        for gap in done.gaps:
            tell(f"  {gap} was deleted from the log before it could be loaded")
        if done.dead:
            tell(f"  {done.dead:,} dead letters -> {_shown(load.dead.table)}")
        elif done.skipped:
            tell(f"  {done.skipped:,} records could not be decoded and were skipped")
    seconds = time.monotonic() - started
    tell(f"loaded: {records:,} records in {seconds:.1f} s ({records / seconds:,.0f} records/s)")
    return {"tables": tables, "records": records, "seconds": seconds}


def _what(done: Loaded) -> str:
    if done.records:
        return f"{done.records:,} new rows in {done.files:,} files"
    return "no new rows" if done.ranges else "up to date"


def _shown(table: Path) -> Path:
    """A path as short as it can be said here."""
    return table.relative_to(Path.cwd()) if table.is_relative_to(Path.cwd()) else table


def _ask_tables(
    spark: SparkSession, warehouse: Path, loads: list[TopicLoad], path: Path, sql: str
) -> Answer:
    from kafkalite.spark.views import read_table

    for wanted in loads:
        read_table(spark, warehouse.resolve() / wanted.table, wanted.catalog)
    return ask(spark, path, sql)


def _moment(text: str | None) -> int | None:
    """Epoch ms of a time; one without a zone is in UTC."""
    if text is None or text.isdigit():
        return None if text is None else int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--until {text}: neither ISO 8601 nor epoch ms") from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query; two columns may have one name."""

    names: list[str]
    rows: list[tuple[Any, ...]]

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows by the names of their columns."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


def ask(spark: SparkSession, path: Path, sql: str) -> Answer:
    """Runs the query that stands in the file `path`. Timestamps come in UTC."""
    from pyspark.errors import PySparkException

    try:
        # Not `collect`, which gives timestamps in the machine's zone and structs as tuples.
        table = spark.sql(sql).toArrow()
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in table.columns]
    except PySparkException as error:
        raise ConfigError(f"{path}: {str(error).strip().splitlines()[0]}") from error
    except (OverflowError, ValueError) as error:
        raise ConfigError(
            f"{path}: a time beyond the years 1 to 9999 ({error}): cast it to a string"
        ) from error
    return Answer(table.column_names, list(zip(*columns, strict=True)))


def show(answer: Answer) -> None:
    """Prints a query's answer as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in answer.names:
        table.add_column(Text(name))
    for row in answer.rows:
        table.add_row(*(Text(f"{v:,.1f}" if isinstance(v, float) else str(v)) for v in row))
    Console().print(table)


def _by_topic(option: str, given: list[str] | None, topics: list[str]) -> dict[str, str]:
    pairs = [entry.partition("=")[::2] for entry in given or []]
    for topic, kind in pairs:
        if topic not in topics or not kind:
            raise ConfigError(f"{option} {topic}={kind}: give TOPIC=FORMAT for a topic to load")
    return dict(pairs)


def _read_query(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text("utf-8").strip().rstrip(";")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error}") from error


def main() -> None:
    """The console script."""
    run_command(cli)


if __name__ == "__main__":
    main()
