"""`kafkalite transactions`: show open transactions and producers, and abort transactions.     [IO]

Fails  with one line and exit code 1: an unknown transactional id, a broker without transactions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    Partitions,
    Yes,
    choose,
    examples,
    parse_partitions,
    parse_topic_partition,
    program,
)
from kafkalite.cli.output import ask, confirm, emit, print_json, print_table, show_time
from kafkalite.cli.places import parse_duration_ms
from kafkalite.errors import ApiError, ConfigError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, ProducerInfo, TransactionInfo
    from kafkalite.core.types import TopicPartition

cli = program("Show transactions and producers, abort hanging ones.")

ANY_DURATION: Final = -1
CLOSED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
TRANSACTION_LONGEST: Final = "15m"  # Kafka's default of transaction.max.timeout.ms


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@cli.command(
    "list",
    epilog=examples(
        "kafkalite transactions list --state Ongoing",
        "kafkalite transactions list --longer-than 10m",
    ),
)
def list_(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only transactions in this state: Ongoing, CompleteCommit, …; may be repeated."
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option(help="Only transactions of this producer id; may be repeated."),
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option(help="Only transactions open for longer, such as 10m.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List transactional ids with their states."""
    longer_ms = ANY_DURATION
    if longer_than is not None:
        longer_ms = parse_duration_ms(longer_than, "--longer-than")
    listed = ask(
        bootstrap_servers,
        lambda admin: admin.list_transactions(
            states=state or (), producer_ids=producer_id or (), longer_than_ms=longer_ms
        ),
    )
    rows = [
        {
            "transactional_id": t.transactional_id,
            "state": t.state,
            "producer_id": t.producer_id,
            "coordinator": t.coordinator_id,
        }
        for t in listed
        if longer_than is None or t.state not in CLOSED  # Kafka counts these as open since 1970
    ]
    if json:
        print_json(rows)
    else:
        columns = ["transactional_id", "state", "producer_id", "coordinator"]
        print_table(columns, [[row[c] for c in columns] for row in rows])


@cli.command(epilog=examples("kafkalite transactions describe billing-1"))
def describe(
    transactional_ids: Annotated[
        list[str], typer.Argument(help="The transactional ids.", metavar="TRANSACTIONAL_ID")
    ],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    json: AsJson = False,
) -> None:
    """Show a transaction's state, producer, age and partitions."""
    found = ask(bootstrap_servers, lambda admin: admin.describe_transactions(transactional_ids))
    documents = [_document(each) for each in found]
    if json:
        print_json(documents)
        return
    for each in documents:
        age = f", open for {each['open_ms'] / 1000:.1f} s" if each["open_ms"] is not None else ""
        emit(
            f"{each['transactional_id']}: {each['state']}{age}, "
            f"producer {each['producer_id']} epoch {each['producer_epoch']}, "
            f"timeout {each['timeout_ms'] / 1000:g} s"
        )
        for partition in each["partitions"]:
            emit(f"  {partition}")


def _document(found: TransactionInfo) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "started": show_time(found.started_ms) if found.started_ms >= 0 else None,
        "open_ms": max(0, _now_ms() - found.started_ms) if found.started_ms >= 0 else None,
        "partitions": [str(tp) for tp in found.partitions],
    }


@cli.command(
    epilog=examples(
        "kafkalite transactions producers orders",
        "kafkalite transactions producers orders --partition 0 --open",
    )
)
def producers(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    partition: Partitions = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Only producers with an open transaction.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show a topic's producers and their open transactions."""
    numbers = parse_partitions(partition)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        (found,) = await admin.describe_topics([topic])
        wanted = choose({topic: found.partition_count}, numbers)
        states = await admin.describe_producers(wanted)
        return [
            _producer(tp, producer)
            for tp in wanted
            for producer in states[tp]
            if producer.in_transaction or not open_
        ]

    _print_producers(ask(bootstrap_servers, work, topics=[topic]), json)


def _producer(tp: TopicPartition, producer: ProducerInfo) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp,
        "start_offset": producer.transaction_start_offset if producer.in_transaction else None,
    }


def _print_producers(found: list[dict[str, Any]], json: bool) -> None:
    if json:
        print_json(found)
        return
    columns = ["topic", "partition", "producer_id", "producer_epoch", "last_sequence"]
    rows = [
        [*(p[c] for c in columns), show_time(p["last_timestamp"]), p["start_offset"]] for p in found
    ]
    print_table([*columns, "last_time", "start_offset"], rows)


@cli.command(
    "find-hanging",
    epilog=examples(
        "kafkalite transactions find-hanging",
        "kafkalite transactions find-hanging orders --longer-than 20m",
    ),
)
def find_hanging(
    topics: Annotated[
        list[str] | None, typer.Argument(help="The topics. Default: all.", metavar="[TOPIC]")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    longer_than: Annotated[
        str, typer.Option(help="The time without a record of the transaction.")
    ] = TRANSACTION_LONGEST,
    json: AsJson = False,
) -> None:
    """Find open transactions that no coordinator knows of.

    Consumers that read only committed records wait for them until they are aborted.
    """
    longer_ms = parse_duration_ms(longer_than, "--longer-than")

    async def work(admin: Admin) -> list[dict[str, Any]]:
        counts = {t.name: t.partition_count for t in await admin.describe_topics(topics or None)}
        states = await admin.describe_producers(choose(counts, None))
        silent = [
            (tp, producer)
            for tp, found in states.items()
            for producer in found
            if producer.in_transaction and _now_ms() - producer.last_timestamp >= longer_ms
        ]
        known = await _known(admin, {producer.producer_id for _, producer in silent})
        return [
            _producer(tp, producer)
            for tp, producer in silent
            if tp not in known.get(producer.producer_id, ())
        ]

    _print_producers(ask(bootstrap_servers, work, topics=topics or ()), json)


async def _known(admin: Admin, producer_ids: set[int]) -> dict[int, set[TopicPartition]]:
    """The partitions of these producers' transactions, as coordinators know them."""
    known: dict[int, set[TopicPartition]] = {}
    if not producer_ids:
        return known
    for listed in await admin.list_transactions(producer_ids=sorted(producer_ids)):
        try:
            (told,) = await admin.describe_transactions([listed.transactional_id])
        except ApiError as error:
            if error.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue  # it expired in between
            raise
        known.setdefault(told.producer_id, set()).update(told.partitions)
    return known


@cli.command(
    epilog=examples(
        "kafkalite transactions abort billing-1",
        "kafkalite transactions abort --hanging orders:3 --start-offset 4711",
    )
)
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="The id whose transaction to abort.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    hanging: Annotated[
        str | None,
        typer.Option(help="TOPIC:PARTITION of a transaction that no coordinator knows of."),
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="The first offset of the hanging transaction.")
    ] = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Abort the transaction of an id, or a hanging transaction.

    The producer of the id is fenced: if it still runs, its next request fails.
    """
    if (transactional_id is None) == (hanging is None):
        raise typer.BadParameter("give a TRANSACTIONAL_ID, or --hanging with --start-offset")
    if (hanging is None) != (start_offset is None):
        raise typer.BadParameter("--hanging and --start-offset belong together")
    if transactional_id is not None:
        confirm(f"Abort the transaction of {transactional_id}, fence its producer?", yes=yes)
        done = ask(bootstrap_servers, lambda admin: _fence(admin, transactional_id))
    else:
        assert hanging is not None
        assert start_offset is not None
        tp, begin = parse_topic_partition(hanging, "--hanging"), start_offset
        confirm(f"Abort the transaction that begins at {tp}, offset {begin}?", yes=yes)
        done = ask(bootstrap_servers, lambda admin: _abort_hanging(admin, tp, begin))
    if json:
        print_json(done)
    else:
        emit(f"aborted: {', '.join(f'{name} {value}' for name, value in done.items())}")


async def _fence(admin: Admin, transactional_id: str) -> dict[str, Any]:
    await admin.describe_transactions([transactional_id])  # an unknown id would be made
    producer_id, epoch = await admin.fence_producer(transactional_id)
    return {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }


async def _abort_hanging(admin: Admin, tp: TopicPartition, start_offset: int) -> dict[str, Any]:
    states = (await admin.describe_producers([tp]))[tp]
    found = [p for p in states if p.transaction_start_offset == start_offset]
    if not found:
        raise ConfigError(f"{tp}: no open transaction begins at offset {start_offset}")
    (producer,) = found
    coordinator_epoch = max(producer.coordinator_epoch, 0)
    await admin.abort_transaction(
        tp, producer.producer_id, producer.producer_epoch, coordinator_epoch
    )
    return {"partition": str(tp), "producer_id": producer.producer_id, "start_offset": start_offset}
