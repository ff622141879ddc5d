"""`kafkalite-spark`: load topics into a warehouse of Parquet tables and ask it in SQL.     [IO]

Fails  with one line and exit code 1: a broker that does not answer, a topic that does not exist, a
       record that does not fit its table, no Spark or no Java on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalite.cli import run_command
from kafkalite.cli.options import BOOTSTRAP, AsJson, Bootstrap, examples, program
from kafkalite.cli.output import emit, print_json
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalite.spark.warehouse import TopicLoad

cli = program("Load topics into a warehouse with Spark.")


@cli.callback()
def commands() -> None:
    """Load topics into a warehouse with Spark."""


@cli.command(
    epilog=examples(
        "kafkalite-spark load orders --warehouse warehouse --key orders=string",
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
    query: Annotated[
        Path | None, typer.Option(help="A file with one SQL query to run and print at the end.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Load the new records of topics into their tables.

    Every record is loaded exactly once, however often a load runs.
    """
    keys, values = _by_topic("--key", key, topics), _by_topic("--value", value, topics)
    sql = _read_query(query)
    loads = _topic_loads(topics, keys, values)
    from kafkalite.spark.log import partitions_of

    partitions_of(bootstrap_servers, topics)  # before a JVM starts: is anybody there?
    from kafkalite.spark.session import local_session

    started = time.monotonic()
    spark = local_session("kafkalite-load")
    tell = (lambda _: None) if json else emit
    tell(f"Spark {spark.version} is up after {time.monotonic() - started:.1f} s")
    try:
        told = _run(spark, bootstrap_servers, loads, warehouse, tell)
        answer = None if query is None else ask(spark, query, sql)
        if json:
            print_json({**told, "rows": None if answer is None else answer.as_dicts()})
        elif answer is not None:
            show(answer)
    finally:
        spark.stop()


def _topic_loads(
    topics: list[str], keys: dict[str, str], values: dict[str, str]
) -> list[TopicLoad]:
    try:
        from kafkalite.spark.warehouse import TopicLoad
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed ({error}): pip install 'kafkalite[spark]'"
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


def _run(
    spark: SparkSession,
    bootstrap_servers: str,
    loads: list[TopicLoad],
    warehouse: Path,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Loads each table; returns the summary."""
    from kafkalite.spark.warehouse import load_topic, read_table

    started, records = time.monotonic(), 0
    tables: list[dict[str, Any]] = []
    for wanted in loads:
        done = load_topic(spark, bootstrap_servers, wanted, warehouse)
        records += done.records
        path = warehouse / wanted.table
        tables.append(
            {
                "topic": wanted.topic,
                "table": str(path),
                "records": done.records,
                "files": done.files,
                "gaps": [asdict(gap) for gap in done.gaps],
            }
        )
        what = (
            f"{done.records:,} new rows in {done.files:,} files" if done.records else "up to date"
        )
        tell(f"{wanted.topic} -> {path}: {what}")
        for gap in done.gaps:
            tell(f"  {gap} was deleted from the log before it could be loaded")
        read_table(spark, warehouse, wanted)
    seconds = time.monotonic() - started
    tell(f"loaded: {records:,} records in {seconds:.1f} s ({records / seconds:,.0f} records/s)")
    return {"tables": tables, "records": records, "seconds": seconds}


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
