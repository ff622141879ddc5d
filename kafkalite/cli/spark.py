"""`kafkalite-spark`: load topics into a warehouse of Parquet tables and ask it in SQL.     [IO]

Fails  with one line and exit code 1: a broker that does not answer, a topic that does not exist, a
       record that does not fit its table, no Spark or no Java on this machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli import run_command
from kafkalite.cli.options import BOOTSTRAP, AsJson, Bootstrap, examples, program
from kafkalite.cli.output import emit, print_json, to_json
from kafkalite.cli.places import parse_duration_ms
from kafkalite.cli.spark_compact import (
    KEEP,
    MERGE_ABOVE,
    Keep,
    MergeAbove,
    Warehouse,
    compact,
    merge_after_loads,
)
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalite.cli.spark_rounds import Rounds, Signals
    from kafkalite.spark.engine import SparkEngine
    from kafkalite.warehouse.engines import Engine as Workers
    from kafkalite.warehouse.load import Layout, Load
    from kafkalite.warehouse.tables import TopicLoad

INTERVAL_MIN_MS: Final = 100

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
Upsert = Annotated[
    bool,
    typer.Option(
        "--upsert", help="One row for each key, its latest: null values delete (delta, iceberg)."
    ),
]
WithErrors = Annotated[
    OnError, typer.Option(help="What becomes of records that cannot be decoded.")
]
Query = Annotated[
    Path | None, typer.Option(help="A file with one SQL query to run and print at the end.")
]
Once = Annotated[bool, typer.Option("--once", help="Load what is new and end. The default.")]
Continuous = Annotated[
    str | None,
    typer.Option(help="Load this often until a signal or --until: 30s, 5m.", metavar="INTERVAL"),
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
        "kafkalite-spark load customers --format delta --upsert --key customers=string",
        "kafkalite-spark load flights delays --key delays=windowed:1h --query worst.sql",
    )
)
def load(
    topics: Annotated[
        list[str], typer.Argument(help="Topics, each a table of its own.", metavar="TOPIC")
    ],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    warehouse: Warehouse = Path("warehouse"),
    key: Annotated[
        list[str] | None,
        typer.Option(help="TOPIC=binary, string, avro, json, or windowed:1h for windows."),
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
    upsert: Upsert = False,
    sort: Sort = True,
    file_mb: FileSize = 128,
    min_partitions: MinPartitions = 1,
    merge_above: MergeAbove = MERGE_ABOVE,
    keep: Keep = KEEP,
    on_error: WithErrors = OnError.FAIL,
    once: Once = False,
    continuous: Continuous = None,
    until: Until = None,
    query: Query = None,
    json: AsJson = False,
) -> None:
    """Load the new records of topics into their tables.

    Every record is loaded exactly once, however often a load runs and wherever it breaks off.
    """
    keys, values = _by_topic("--key", key, topics), _by_topic("--value", value, topics)
    sql, until_ms = _read_query(query), _moment(until)
    interval_ms = _interval(continuous, once=once, query=query)
    needs_spark = engine is Engine.SPARK or query is not None
    kind = None if table_format is None else table_format.value
    loads = {
        wanted.topic: replace(
            wanted, on_error=on_error.value, table_format=kind, catalog=catalog, upsert=upsert
        )
        for wanted in _topic_loads(topics, keys, values, needs_spark)
    }
    from kafkalite.warehouse.load import Layout

    layout = Layout(partition_by, sort, file_mb << 20, min_partitions)
    _check_topics(bootstrap_servers, topics)
    command = Command(loads, warehouse, bootstrap_servers, layout, until_ms, json)
    command.after = lambda tables: merge_after_loads(
        tables, merge_above, keep, catalog, command.tell
    )
    with command.engine(processes, local=engine is Engine.LOCAL, needs_spark=needs_spark) as spark:
        if interval_ms is not None:
            command.every(interval_ms)
        else:
            command.once(spark, query, sql)


@dataclass(slots=True)
class Command:
    """The command `load`, once its options are known to make sense."""

    loads: dict[str, TopicLoad]
    warehouse: Path
    bootstrap_servers: str
    layout: Layout
    until_ms: int | None
    json: bool
    signals: Signals = field(init=False)
    workers: Workers = field(init=False)
    after: Callable[[list[dict[str, Any]]], None] = field(init=False)  # a round of loads

    def __post_init__(self) -> None:
        from kafkalite.cli.spark_rounds import Signals

        self.signals = Signals()

    @contextmanager
    def engine(
        self, processes: int, *, local: bool, needs_spark: bool
    ) -> Iterator[SparkEngine | None]:
        """Spark's engine, if there is a need for it; signals end the command meanwhile."""
        from kafkalite.warehouse.engines import LocalEngine

        with (
            self.signals.listening(),
            _spark(self.warehouse, self.tell, needs_spark, self.signals) as spark,
        ):
            self.workers = LocalEngine(processes) if local or spark is None else spark
            yield spark

    def tell(self, line: str) -> None:
        """A line for people."""
        if not self.json:
            emit(line)

    def _make(self, topic: str) -> Load:
        return self.loads[topic].into(
            self.warehouse, self.bootstrap_servers, self.workers, self.layout, self.until_ms
        )

    @property
    def _rounds(self) -> Rounds:
        from kafkalite.cli.spark_rounds import Rounds

        return Rounds([*self.loads], self._make, self.tell, self.signals, self.after)

    def every(self, interval_ms: int) -> None:
        """Loads until a signal or a time."""
        self.signals.code = 0
        self._rounds.every(
            interval_ms / 1000, _one_line if self.json else lambda _: None, self.until_ms
        )

    def once(self, spark: SparkEngine | None, query: Path | None, sql: str) -> None:
        """One load of each topic, and the answer of a query."""
        summary = self._rounds.once()
        answer = None
        if query is not None and spark is not None:
            answer = _ask_tables(spark.session, self.warehouse, [*self.loads.values()], query, sql)
        if self.json:
            print_json({**summary, "rows": None if answer is None else answer.as_dicts()})
        elif answer is not None:
            show(answer)


def _one_line(summary: dict[str, Any]) -> None:
    emit(to_json(summary).decode())
    sys.stdout.flush()


def _interval(text: str | None, *, once: bool, query: Path | None) -> int | None:
    """The time from load to load in ms; None for a single load."""
    if text is None:
        return None
    for option, is_given in (("--once", once), ("--query", query is not None)):
        if is_given:
            raise ConfigError(f"{option} and --continuous: give one of them")
    interval_ms = parse_duration_ms(text, "--continuous")
    if interval_ms < INTERVAL_MIN_MS:
        raise ConfigError(f"--continuous {text}: shorter than {INTERVAL_MIN_MS} ms")
    return interval_ms


def _check_topics(bootstrap_servers: str, topics: list[str]) -> None:
    """Before there is a folder: do all topics exist?"""
    from kafkalite.columnar.lookup import Lookup
    from kafkalite.columnar.settings import ReadSettings

    with Lookup(ReadSettings(bootstrap_servers)) as lookup:
        lookup.partitions_of(topics)


cli.command(
    epilog=examples(
        "kafkalite-spark compact orders",
        "kafkalite-spark compact orders payments --warehouse lake --keep 1d",
    )
)(compact)


@contextmanager
def _spark(
    warehouse: Path, tell: Callable[[str], None], needed: bool, signals: Signals
) -> Iterator[SparkEngine | None]:
    """An engine whose session starts when it is first used, and ends with the command."""
    if not needed:
        yield None
        return
    from kafkalite.spark.engine import SparkEngine

    def start() -> SparkSession:
        import kafkalite.spark

        started = time.monotonic()
        running = kafkalite.spark.session("kafkalite-load")
        tell(f"Spark {running.version} is up after {time.monotonic() - started:.1f} s")
        return running

    engine = SparkEngine(start, str(warehouse))
    try:
        yield engine
    finally:
        engine.close(at_once=bool(signals.received))


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
