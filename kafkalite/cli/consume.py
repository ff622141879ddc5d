"""`kafkalite consume`: records of topics as text, as JSON lines, or by a template.          [IO]

Ctrl-C ends it with 130 (SIGTERM: 143) after the consumer has left its group, a closed pipe with 0.
In a group the offsets of printed records are committed, and no others. Keys and values that are not
text are shown with escapes; a hint on stderr says once what they probably are.

Fails  with one line and exit code 1: an unknown topic, an offset outside of the log, bytes that
       --key or --value cannot read (named by topic, partition and offset).
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from kafkalite.cli import SIGNALLED, completing
from kafkalite.cli.guesses import Guess, first_unreadable, guess
from kafkalite.cli.options import (
    BOOTSTRAP,
    Bootstrap,
    Partitions,
    choose,
    examples,
    parse_partitions,
)
from kafkalite.cli.output import CLIENT_ID, warn
from kafkalite.cli.places import (
    BEGINNING,
    END,
    Place,
    bounds_of,
    offsets_at,
    parse_place,
)
from kafkalite.cli.refusals import explaining
from kafkalite.cli.values import (
    KEY_NAMES,
    KINDS,
    Kind,
    open_codec,
    open_key_codec,
    open_registry,
    parse_key,
)

if TYPE_CHECKING:
    from kafkalite.cli.records_out import Lines
    from kafkalite.cli.standard_io import Stdout, Stop
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.consumer.consumer import Consumer
    from kafkalite.core.types import Columns, TopicPartition
    from kafkalite.serde.serde import Codec

POLL_MS: Final = 1_000
TEXT: Final = "text"
JSON: Final = "json"

EPILOG = examples(
    "kafkalite consume orders",
    "kafkalite consume orders --from -10 --until-end",
    "kafkalite consume orders --from 2024-05-01 --to 2024-05-02 --json | jq .value",
    "kafkalite consume orders --from -15m --partition 0,2 --format '{time} {key}: {value}'",
    "kafkalite consume orders --group billing --value avro --json",
    "kafkalite consume delays --key windowed:1h --value avro --format '{key} {value}'",
)

Topics = Annotated[
    list[str],
    typer.Argument(help="The topics to read.", metavar="TOPIC", autocompletion=completing.topics),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="beginning, end, an offset, -N for the last N, or a time: 2024-05-01T12:00, -15m, "
        "@EPOCH_MS.",
        show_default="beginning",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", help="Where to stop: a place as for --from, exclusive.")
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop at the present end of the log, do not wait.")
]
MaxRecords = Annotated[
    int | None, typer.Option("--max-records", "-n", min=1, help="Stop after this many records.")
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", help="Read as a member of this group.", autocompletion=completing.groups
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        help="text (values), json (a line with every field), or a template with {topic} "
        "{partition} {offset} {timestamp} {time} {key} {value} {headers}.",
    ),
]
Key = Annotated[
    str,
    typer.Option(
        help=f"How to read keys: {', '.join(KEY_NAMES)}. SIZE is the size of the windows, such as "
        "1m; without it the windows are sessions.",
        autocompletion=completing.key_kinds,
    ),
]
Value = Annotated[Kind, typer.Option(help=f"How to read values: {KINDS}.")]
Null = Annotated[str, typer.Option(help="The text for null, except in JSON.")]
Committed = Annotated[
    bool, typer.Option("--committed", help="Skip records of transactions that are open or aborted.")
]


@dataclass(frozen=True, slots=True)
class Plan:
    """The flags, parsed."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    partitions: list[int] | None
    begin: Place | None
    end: Place | None
    records_max: int | None
    group: str | None
    committed: bool
    lines: Lines
    key_codec: Codec | None
    value_codec: Codec | None
    asks_registry: bool
    shows_keys: bool
    shows_values: bool

    @property
    def isolation(self) -> Literal["read_committed", "read_uncommitted"]:
        """The isolation level that `--committed` asks for."""
        return "read_committed" if self.committed else "read_uncommitted"


def register(cli: typer.Typer) -> None:
    """Adds the command to the tree."""
    cli.command(epilog=EPILOG)(consume)


def consume(
    topics: Topics,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    from_: From = None,
    to: To = None,
    until_end: UntilEnd = False,
    max_records: MaxRecords = None,
    partition: Partitions = None,
    group: Group = None,
    format_: FormatOption = TEXT,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    key: Key = Kind.string.value,
    value: Value = Kind.string,
    null: Null = "",
    committed: Committed = False,
) -> None:
    """Print records, from the beginning, and wait for more."""
    now_ms = time.time_ns() // 1_000_000
    if to is not None and until_end:
        raise typer.BadParameter("give either --to or --until-end")
    begin = None if from_ is None else parse_place(from_, "--from", now_ms)
    end = parse_place(to, "--to", now_ms) if to is not None else END if until_end else None
    numbers = parse_partitions(partition)
    if group is not None:
        _check_group(begin, end, numbers)
    key_kind = parse_key(key, "--key")
    with open_registry(bootstrap_servers, key_kind, value) as registry:
        plan = Plan(
            bootstrap_servers, tuple(dict.fromkeys(topics)), numbers, begin, end, max_records,
            group, committed, _lines(JSON if json else format_, null.encode()),
            open_key_codec(key_kind, registry),
            None if value is Kind.string else open_codec(value, registry),
            Kind.avro in (key_kind, value),
            shows_keys=json or format_ == JSON or "{key}" in format_,
            shows_values=json or format_ in (TEXT, JSON) or "{value}" in format_,
        )  # fmt: skip
        ended_by = asyncio.run(_consume(plan))
    if ended_by is not None:
        raise typer.Exit(SIGNALLED + ended_by)


def _check_group(begin: Place | None, end: Place | None, numbers: list[int] | None) -> None:
    if numbers is not None:
        raise typer.BadParameter("a group assigns its partitions itself", param_hint="--partition")
    if begin not in (None, BEGINNING, END):
        raise typer.BadParameter(
            "a group begins at its committed offsets; beginning or end counts where it has none, "
            "and 'kafkalite groups reset-offsets' moves them",
            param_hint="--from",
        )
    if end not in (None, END):
        raise typer.BadParameter("a group reads on, or stops with --until-end", param_hint="--to")


def _lines(chosen: str, null: bytes) -> Lines:
    from kafkalite.cli.records_out import json_lines, template_lines, text_lines

    if chosen == JSON:
        return json_lines
    if chosen == TEXT:
        return text_lines(null)
    if "{" not in chosen:
        raise typer.BadParameter(
            f"'{chosen}' is neither text nor json nor a template such as {{key}}: {{value}}",
            param_hint="--format",
        )
    return template_lines(chosen, null)


@dataclass(slots=True)
class Reading:
    """The state of a run. `ends` holds the ends of partitions that are not read up to there yet."""

    plan: Plan
    admin: Admin
    consumer: Consumer
    out: Stdout
    stop: Stop
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    knows_ends: bool = False
    printed: int = 0
    hinted: set[str] = field(default_factory=set)  # `key`, `value`: the user has got the hint

    @property
    def is_done(self) -> bool:
        """Whether enough records are printed, or every partition is read to its end."""
        enough = self.plan.records_max is not None and self.printed >= self.plan.records_max
        return enough or (self.knows_ends and not self.ends)

    def has_ended(self) -> bool:
        """Whether the user has interrupted the command, or closed its stdout."""
        return self.stop.event.is_set() or self.out.gone.is_set()


async def _consume(plan: Plan) -> int | None:
    """Reads until the end. Returns the signal that ended the command, if any."""
    from kafkalite.cli.standard_io import Stdout, Stop
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.cluster import Client
    from kafkalite.clients.consumer.consumer import Consumer

    with closing(Stdout()) as out, Stop().on_signals() as stop:
        async with Client(plan.bootstrap_servers, client_id=CLIENT_ID) as client:
            admin = Admin(client)
            async with explaining(admin, plan.bootstrap_servers, topics=plan.topics):
                topics = await admin.describe_topics(plan.topics)
            counts = {topic.name: topic.partition_count for topic in topics}
            async with Consumer(
                client,
                group_id=plan.group,
                auto_offset_reset="latest" if plan.begin == END else "earliest",
                isolation_level=plan.isolation,
                records_max=plan.records_max,
            ) as consumer:
                reading = Reading(plan, admin, consumer, out, stop)
                if plan.group is None:
                    await _begin(reading, counts)
                else:
                    _join(reading)
                await _read(reading)
    return stop.signal


async def _begin(reading: Reading, counts: dict[str, int]) -> None:
    """Assigns the partitions, and seeks to where reading begins."""
    plan, consumer = reading.plan, reading.consumer
    wanted = choose(counts, plan.partitions)
    bounds = await bounds_of(reading.admin, wanted, committed=plan.committed)
    begins = await offsets_at(reading.admin, plan.begin or BEGINNING, bounds)
    if plan.end is not None:
        stops = await offsets_at(reading.admin, plan.end, bounds)
        reading.ends = {tp: end for tp, end in stops.items() if begins[tp] < end}
        reading.knows_ends = True
        wanted = list(reading.ends)
    consumer.assign(wanted)
    for tp in wanted:
        consumer.seek(tp, begins[tp])


def _join(reading: Reading) -> None:
    """Subscribes; with an end, each partition is read up to its end at the assignment."""

    async def assigned(partitions: tuple[TopicPartition, ...]) -> None:
        level = reading.plan.isolation
        if not partitions:  # others may be about to give some up
            return
        found = await reading.admin.end_offsets(partitions, isolation_level=level)
        reading.ends.update(found)
        reading.knows_ends = True

    def revoked(partitions: tuple[TopicPartition, ...]) -> None:
        for tp in partitions:
            reading.ends.pop(tp, None)

    has_end = reading.plan.end is not None
    reading.consumer.subscribe(
        reading.plan.topics,
        on_assigned=assigned if has_end else None,
        on_revoked=revoked if has_end else None,
    )


async def _read(reading: Reading) -> None:
    """Polls and prints until the end, a signal, or the end of stdout's reader."""
    from kafkalite.cli.standard_io import first_of

    _drop_reached(reading)
    while not reading.is_done:
        poll = asyncio.ensure_future(reading.consumer.poll(POLL_MS))
        await first_of(poll, reading.stop.event, reading.out.gone)
        if reading.has_ended():
            poll.cancel()
            polled = (await asyncio.gather(poll, return_exceptions=True))[0]
            if isinstance(polled, dict):  # it had some in the same moment
                _put_back(reading, list(polled.items()))
            return
        await _print(reading, poll.result())
        if reading.has_ended():
            return
        _drop_reached(reading)


def _drop_reached(reading: Reading) -> None:
    """Pauses partitions that are read to their end."""
    for tp, end in list(reading.ends.items()):
        position = reading.consumer.position(tp)
        if position is not None and position >= end:
            del reading.ends[tp]
            reading.consumer.pause([tp])


async def _print(reading: Reading, polled: dict[TopicPartition, Columns]) -> None:
    """Prints the wanted records, and seeks back to the first one that was not printed."""
    for index, (tp, columns) in enumerate(polled.items()):
        columns = _records(tp, columns)
        offsets = columns.offsets
        assert offsets is not None
        count = len(columns)
        if tp in reading.ends:
            count = min(count, bisect_left(offsets, reading.ends[tp]))
        if reading.plan.records_max is not None:
            count = min(count, reading.plan.records_max - reading.printed)
        if count < len(columns):
            reading.consumer.seek(tp, offsets[count])
        if not count:
            continue
        is_written = False
        try:
            is_written = await _write(reading, tp, columns.slice(0, count))
        finally:
            if not is_written:
                _put_back(reading, list(polled.items())[index:])
        if not is_written:
            return
        reading.printed += count


def _put_back(reading: Reading, unprinted: list[tuple[TopicPartition, Columns]]) -> None:
    """Seeks back to records that were not printed: a group commits positions."""
    for tp, columns in unprinted:
        assert columns.offsets is not None
        reading.consumer.seek(tp, columns.offsets[0])


def _records(tp: TopicPartition, columns: Columns) -> Columns:
    """The records of `columns`, without the watermarks that stand in a repartition topic."""
    if not tp.topic.endswith("-repartition"):
        return columns
    from kafkalite.streams.local.watermarks import without_markers

    return without_markers(columns)[0]


async def _write(reading: Reading, tp: TopicPartition, columns: Columns) -> bool:
    """Writes the records. False if stdout is closed, or a signal came first."""
    from kafkalite.cli.standard_io import first_of

    _hint(reading, tp, columns)
    lines = await _formatted(reading.plan, tp, columns)
    writing = asyncio.ensure_future(reading.out.write(lines))
    await first_of(writing, reading.stop.event)
    if not writing.done():
        writing.cancel()
        return False
    try:
        writing.result()
    except BrokenPipeError:
        reading.out.gone.set()
        return False
    return True


def _hint(reading: Reading, tp: TopicPartition, columns: Columns) -> None:
    """Says once for keys and once for values that they are not text, and what they may be."""
    plan = reading.plan
    looked_at = {
        "key": (plan.shows_keys and plan.key_codec is None, columns.keys),
        "value": (plan.shows_values and plan.value_codec is None, columns.values),
    }
    for what, (is_read_as_text, column) in looked_at.items():
        if not is_read_as_text or what in reading.hinted:
            continue
        index = first_unreadable(column)
        if index is not None:
            reading.hinted.add(what)
            assert columns.offsets is not None
            found = guess(column[index], is_key=what == "key")
            warn(f"{tp}, offset {columns.offsets[index]}: {_advice(what, found)}")


def _advice(what: str, found: Guess | None) -> str:
    """Advice about a key or value that is not text."""
    if found is None:
        return f"the {what} is not text; --{what} hex shows every byte"
    if not found.kinds:
        return f"the {what} is not text but looks like {found.looks_like}, which no --{what} reads"
    flags = " or ".join(f"--{what} {kind}" for kind in found.kinds)
    return f"the {what} is not text but looks like {found.looks_like}: try {flags}"


async def _formatted(plan: Plan, tp: TopicPartition, columns: Columns) -> bytes:
    """The lines of records, made in a thread if a registry may have to be asked."""
    from kafkalite.cli.records_out import decoded

    def work() -> bytes:
        return plan.lines(tp, decoded(tp, columns, plan.key_codec, plan.value_codec))

    return await asyncio.to_thread(work) if plan.asks_registry else work()
