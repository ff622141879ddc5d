"""`kafkalite produce`: lines of text or JSON into a topic.                                 [IO]

The first Ctrl-C ends reading; the records read so far are sent and acknowledged. The second one
ends the command at once.

Fails  with one line and exit code 1: an unknown topic, a line that cannot be read (named by its
       number), a record that brokers refuse. Input is read in pieces of up to a megabyte: the
       pieces before the faulty one have been sent.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli import SIGNALLED, completing
from kafkalite.cli.options import BOOTSTRAP, Bootstrap, examples, no_such_partition, parse_size
from kafkalite.cli.output import CLIENT_ID, counted, print_json, say, show_bytes
from kafkalite.cli.progress import Progress
from kafkalite.cli.refusals import explaining
from kafkalite.cli.values import KINDS, Kind, open_codec, open_registry
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.cli.records_in import Batch, Shape
    from kafkalite.cli.standard_io import Stop
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.producer.producer import Producer
    from kafkalite.core.types import Headers

CREATE: Final = "With --create it is made."
DELIVERY_TIMEOUT_MS: Final = 30_000
ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0", "\\\\": "\\"}


class Format(StrEnum):
    """How input is read."""

    text = "text"
    json = "json"


class Codec(StrEnum):
    """How batches are compressed."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    """How many replicas must have a batch before it is acknowledged."""

    all = "all"
    leader = "1"
    nobody = "0"


@dataclass(frozen=True, slots=True)
class Plan:
    """The flags, parsed."""

    bootstrap_servers: str
    topic: str
    files: tuple[Path | None, ...]
    shape: Shape
    partition: int | None
    create: bool
    acks: Acks
    compression: str
    batch_bytes: int
    linger_ms: float
    quiet: bool


@dataclass(slots=True)
class Sent:
    """How much the producer got."""

    records: int = 0
    size_bytes: int = 0


EPILOG = examples(
    "seq 1000 | kafkalite produce numbers --create",
    "kafkalite produce orders --key-separator : --compression zstd orders.txt",
    'echo \'{"key": "a", "value": {"x": 1}, "headers": {"h": "1"}}\' | '
    "kafkalite produce orders --format json",
    "kafkalite produce orders --value avro --schema order.avsc orders.jsonl",
    "kafkalite consume old --json --until-end | kafkalite produce new --format json",
)


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        help="text: a line is a value. json: a line is an object with key, value, headers, "
        "timestamp, partition.",
    ),
]
Files = Annotated[
    list[Path] | None, typer.Argument(help="Files to read. Default: stdin, as for -.")
]
Separator = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", help="The text between key and value of a line."),
]
WithKey = Annotated[str | None, typer.Option(help="The key of records without a key.")]
Schema = Annotated[
    Path | None, typer.Option(help="An .avsc file for --value avro. Default: inferred.")
]
KeySchema = Annotated[
    Path | None, typer.Option(help="An .avsc file for --key avro. Default: inferred.")
]
Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE, a header of every record.")
]
Null = Annotated[str | None, typer.Option(help="The text that means null, such as NULL.")]
Partition = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="Send every record to this partition."),
]
Create = Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")]
AcksOption = Annotated[
    Acks, typer.Option(help="Replicas that acknowledge a batch: all, 1 (the leader) or 0.")
]
Compression = Annotated[
    Codec,
    typer.Option(
        "--compression", "-z", help="How batches are compressed: none, gzip, snappy, lz4, zstd."
    ),
]
Linger = Annotated[float, typer.Option(min=0, help="Milliseconds that a batch waits for more.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print neither progress nor summary.")]


def register(cli: typer.Typer) -> None:
    """Adds the command to the tree."""
    cli.command(epilog=EPILOG)(produce)


def produce(
    topic: Annotated[str, typer.Argument(help="The topic.", autocompletion=completing.topics)],
    files: Files = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    format_: FormatOption = Format.text,
    key_separator: Separator = None,
    with_key: WithKey = None,
    key: Annotated[Kind, typer.Option(help=f"How to write keys: {KINDS}.")] = Kind.string,
    value: Annotated[Kind, typer.Option(help=f"How to write values: {KINDS}.")] = Kind.string,
    schema: Schema = None,
    key_schema: KeySchema = None,
    header: Header = None,
    null: Null = None,
    partition: Partition = None,
    create: Create = False,
    acks: AcksOption = Acks.all,
    compression: Compression = Codec.none,
    batch_size: Annotated[str, typer.Option(help="The size of a batch.")] = "512Ki",
    linger_ms: Linger = 5,
    quiet: Quiet = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Send lines of stdin or files as records. Waits until all are acknowledged."""
    from kafkalite.cli.records_in import Shape

    if format_ is Format.json and (key_separator is not None or null is not None):
        raise typer.BadParameter("--key-separator and --null are for --format text, not for json")
    with open_registry(bootstrap_servers, key, value) as registry:
        key_avsc, avsc = _path(key_schema, key, "--key-schema"), _path(schema, value, "--schema")
        shape = Shape(
            topic, key, value,
            open_codec(key, registry, is_key=True, schema=key_avsc),
            open_codec(value, registry, schema=avsc),
            is_json=format_ is Format.json,
            key_separator=_separator(key_separator),
            key=None if with_key is None else with_key.encode(),
            null=None if null is None else null.encode(),
            headers=_headers(header),
        )  # fmt: skip
        plan = Plan(
            bootstrap_servers, topic, tuple(files or [None]), shape, partition, create, acks,
            compression.value, parse_size(batch_size, "--batch-size"), linger_ms, quiet or json,
        )  # fmt: skip
        summary, ended_by = asyncio.run(_produce(plan))
    if json:
        print_json(summary)
    elif not quiet:
        say(_summary_line(summary))
    if ended_by is not None:
        raise typer.Exit(SIGNALLED + ended_by)


def _headers(given: list[str] | None) -> Headers:
    pairs = []
    for entry in given or ():
        name, equals, text = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"'{entry}' is not NAME=VALUE", param_hint="--header")
        pairs.append((name, text.encode()))
    return tuple(pairs)


def _separator(given: str | None) -> bytes | None:
    if given is None:
        return None
    if not given:
        raise typer.BadParameter("the separator is empty", param_hint="--key-separator")
    return ESCAPES.get(given, given).encode()


def _path(schema: Path | None, kind: Kind, flag: str) -> str | None:
    if schema is None:
        return None
    if kind is not Kind.avro:
        raise typer.BadParameter(f"a schema is for avro, not for {kind.value}", param_hint=flag)
    if not schema.is_file():
        raise ConfigError(f"{schema}: no such file")
    return str(schema)


async def _produce(plan: Plan) -> tuple[dict[str, Any], int | None]:
    """Sends all input. Returns the summary and the signal that ended the command, if any."""
    from kafkalite.cli.standard_io import Source, Stop
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.cluster import Client
    from kafkalite.clients.producer.producer import Producer

    sources = [Source(path) for path in plan.files]
    sizes = [source.size_bytes for source in sources]
    sent, started = Sent(), time.monotonic()
    try:
        async with Client(plan.bootstrap_servers, client_id=CLIENT_ID) as client:
            await _check_topic(Admin(client), plan)
            producer = Producer(
                client,
                acks="all" if plan.acks is Acks.all else 1 if plan.acks is Acks.leader else 0,
                compression=plan.compression,
                batch_bytes=plan.batch_bytes,
                linger_ms=plan.linger_ms,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            )
            total = None if None in sizes else sum(size or 0 for size in sizes)
            with Stop().on_signals() as stop, Progress(total, enabled=not plan.quiet) as progress:
                async with producer:
                    for source in sources:
                        await _send_source(plan, producer, source, stop, sent, progress)
                    await producer.flush()
    finally:
        for source in sources:
            source.close()
    seconds = time.monotonic() - started
    summary = {
        "topic": plan.topic,
        "records": sent.records,
        "bytes": sent.size_bytes,
        "seconds": round(seconds, 6),
        "records_per_second": round(sent.records / seconds, 1),
        "interrupted": stop.signal is not None,
    }
    return summary, stop.signal


async def _check_topic(admin: Admin, plan: Plan) -> None:
    """Checks that topic and partition exist; creates the topic if --create allows it."""
    from kafkalite.clients.admin.client import NewTopic

    if plan.create:
        await admin.create_missing_topics([NewTopic(plan.topic)])
    async with explaining(admin, plan.bootstrap_servers, topics=[plan.topic], remedy=CREATE):
        (topic,) = await admin.describe_topics([plan.topic])
    count = topic.partition_count
    if plan.partition is not None and plan.partition >= count:
        raise ConfigError(no_such_partition(plan.topic, count, plan.partition))


async def _send_source(
    plan: Plan, producer: Producer, source: Any, stop: Stop, sent: Sent, progress: Progress
) -> None:
    from kafkalite.cli.records_in import LineReader

    reader = LineReader(source.name)

    async def send(lines: list[bytes]) -> None:
        if lines:
            first = reader.number - len(lines) + 1
            now_ms = time.time_ns() // 1_000_000
            batch = await _parsed(plan, lines, source.name, first, now_ms)
            await _send(plan, producer, batch)
            sent.records += len(batch.columns)

    async for piece in source.pieces(stop):
        await send(reader.feed(piece))
        sent.size_bytes += len(piece)
        progress.show(sent.size_bytes, sent.records)
    await send(reader.end())


async def _parsed(plan: Plan, lines: list[bytes], name: str, first: int, now_ms: int) -> Batch:
    """The lines' records. A registry may be asked on the way, which takes a thread."""
    from kafkalite.cli.records_in import parse_lines

    arguments = (plan.shape, lines, name, first, now_ms)
    if Kind.avro in (plan.shape.key_kind, plan.shape.value_kind):
        return await asyncio.to_thread(parse_lines, *arguments)
    return parse_lines(*arguments)


async def _send(plan: Plan, producer: Producer, batch: Batch) -> None:
    """Whole columns, or record by record where each may have a partition of its own."""
    columns = batch.columns
    if batch.partitions is None or plan.partition is not None:
        await producer.send_columns(plan.topic, columns, plan.partition)
        return
    for index, partition in enumerate(batch.partitions):
        headers = () if columns.headers is None else columns.headers[index]
        try:
            await producer.send(
                plan.topic, columns.values[index], columns.keys[index], partition,
                columns.timestamps[index], headers,
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(str(error)) from None


def _summary_line(summary: dict[str, Any]) -> str:
    interrupted = "interrupted: " if summary["interrupted"] else ""
    return (
        f"{interrupted}{counted(summary['records'], 'record')}, {show_bytes(summary['bytes'])} in "
        f"{summary['seconds']:.2f} s ({summary['records_per_second']:,.0f} records/s)"
    )
