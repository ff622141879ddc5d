"""`kafkalite topics`: list, describe, create, alter, trim and delete topics.                [IO]

Fails  with one line and exit code 1: a topic that does not exist or exists already, a setting that
       the broker refuses, a broker that is not there.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli import completing
from kafkalite.cli.cluster_state import OFFLINE, UNDER_REPLICATED, sizes_of
from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    DryRun,
    Partitions,
    Yes,
    choose,
    examples,
    parse_pairs,
    parse_partitions,
    program,
)
from kafkalite.cli.output import (
    ask,
    confirm,
    counted,
    emit,
    print_json,
    print_table,
    say,
    show_bytes,
)
from kafkalite.cli.places import Bounds, bounds_of, offsets_at, parse_place
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, ConfigEntry
    from kafkalite.clients.metadata import PartitionInfo, TopicInfo
    from kafkalite.core.types import TopicPartition

ENDS_PAUSES: Final = (0.05, 0.1, 0.2, 0.4)  # s, in which a new leader may learn its log's end

cli = program("List, describe, create, alter and delete topics.")

Names = Annotated[list[str], typer.Argument(help="Names of topics.", metavar="TOPIC")]
KnownNames = Annotated[
    list[str],
    typer.Argument(help="Names of topics.", metavar="TOPIC", autocompletion=completing.topics),
]


@cli.command(
    "list",
    epilog=examples("kafkalite topics list", "kafkalite topics list --json | jq -r '.[].name'"),
)
def list_(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also internal topics, such as __consumer_offsets.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List every topic with its number of partitions and replicas."""

    async def work(admin: Admin) -> list[TopicInfo]:
        return [t for t in await admin.describe_topics() if internal or not t.is_internal]

    listed = [
        {
            "name": topic.name,
            "partitions": topic.partition_count,
            "replication_factor": max((len(p.replicas) for p in topic.partitions), default=0),
            "internal": topic.is_internal,
        }
        for topic in ask(bootstrap_servers, work)
    ]
    if json:
        print_json(listed)
        return
    print_table(
        ["topic", "partitions", "replicas"],
        [[t["name"], t["partitions"], t["replication_factor"]] for t in listed],
    )


@cli.command(
    epilog=examples(
        "kafkalite topics describe orders", "kafkalite topics describe orders --all-configs --json"
    )
)
def describe(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of topics. Default: all.",
            metavar="[TOPIC]",
            autocompletion=completing.topics,
        ),
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Also settings with their default values.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show partitions with leaders, offsets and sizes, and settings."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = await admin.describe_topics(topics or None)
        sizes = await sizes_of(admin)
        return [await _described(admin, t, sizes, all_configs) for t in found]

    described = ask(bootstrap_servers, work, topics=topics or ())
    if json:
        print_json(described)
        return
    for topic in described:
        _print_topic(topic)


async def _described(
    admin: Admin, topic: TopicInfo, sizes: dict[TopicPartition, int], all_configs: bool
) -> dict[str, Any]:
    from kafkalite.clients.admin.client import ConfigResource, ConfigSource, ResourceType
    from kafkalite.core.types import TopicPartition

    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions if p.leader_id >= 0]
    bounds = await _known_bounds(admin, led)
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    configs = (await admin.describe_configs([resource]))[resource]
    shown = [c for c in configs.values() if all_configs or c.source is ConfigSource.TOPIC]

    def partition(p: PartitionInfo) -> dict[str, Any]:
        tp = TopicPartition(topic.name, p.partition)
        return {
            "partition": p.partition,
            "leader": p.leader_id,
            "leader_epoch": p.leader_epoch,
            "replicas": list(p.replicas),
            "isr": list(p.in_sync_replicas),
            "offline": list(p.offline_replicas),
            "state": _state(p),
            "begin": bounds.beginnings.get(tp),
            "end": bounds.ends.get(tp),
            "bytes": sizes.get(tp),
        }

    return {
        "name": topic.name,
        "id": None if topic.topic_id is None else str(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": [partition(p) for p in topic.partitions],
        "configs": {c.name: _config(c) for c in sorted(shown, key=lambda c: c.name)},
    }


async def _known_bounds(admin: Admin, partitions: list[TopicPartition]) -> Bounds:
    """The bounds of the logs, without the ends that stay unknown: a new leader tells none before it
    knows that its records are committed, which takes as many replicas as min.insync.replicas
    says."""
    for pause in (*ENDS_PAUSES, None):
        ends = await admin.end_offsets(partitions, known_only=True)
        if pause is None or len(ends) == len(partitions):
            break
        await asyncio.sleep(pause)
    return Bounds(await admin.beginning_offsets(partitions), ends)


def _state(partition: PartitionInfo) -> str:
    if partition.leader_id < 0:
        return OFFLINE
    in_sync = len(partition.in_sync_replicas) >= len(partition.replicas)
    return "in sync" if in_sync else UNDER_REPLICATED


def _config(entry: ConfigEntry) -> dict[str, Any]:
    return {"value": entry.value, "source": entry.source.name}


def _print_topic(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    records = sum(p["end"] - p["begin"] for p in partitions if p["end"] is not None)
    known = [p["bytes"] for p in partitions if p["bytes"] is not None]
    size = f", {show_bytes(sum(known))}" if known else ""
    emit(
        f"{topic['name']}: {counted(len(partitions), 'partition')}, "
        f"{counted(records, 'offset')}{size}{_troubles(partitions)}"
    )
    for name, config in topic["configs"].items():
        emit(f"  {name}={'' if config['value'] is None else config['value']}  ({config['source']})")
    columns = ["partition", "leader", "replicas", "isr", "offline", "begin", "end", "bytes"]
    if _troubles(partitions):
        columns.append("state")
    print_table(columns, [[p[c] for c in columns] for p in partitions])


def _troubles(partitions: list[dict[str, Any]]) -> str:
    """How many partitions are in trouble, or nothing."""
    states = [p["state"] for p in partitions]
    counts = {kind: states.count(kind) for kind in (OFFLINE, UNDER_REPLICATED)}
    return "".join(f", {count} {kind}" for kind, count in counts.items() if count)


@cli.command(
    epilog=examples(
        "kafkalite topics create orders --partitions 6",
        "kafkalite topics create prices --config cleanup.policy=compact --if-not-exists",
    )
)
def create(
    topics: Names,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Number of partitions. Default: as brokers are set up."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Number of brokers that hold each partition.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, for example cleanup.policy=compact.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave a topic that exists as it is.")
    ] = False,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Create topics, all with the same settings."""
    from kafkalite.clients.admin.client import BROKER_DEFAULT, NewTopic

    count = BROKER_DEFAULT if partitions is None else partitions
    factor = BROKER_DEFAULT if replication_factor is None else replication_factor
    configs: dict[str, str | None] = {**parse_pairs(config, "--config")}

    async def work(admin: Admin) -> list[dict[str, Any]]:
        made = []
        for name in topics:
            new = NewTopic(name, count, factor, configs)
            if if_not_exists:
                created = bool(await admin.create_missing_topics([new], validate_only=dry_run))
            else:
                await admin.create_topics([new], validate_only=dry_run)
                created = True
            made.append({"name": name, "created": created and not dry_run, "exists": not created})
            if not json:
                say_made(made[-1])
        return made

    def say_made(topic: dict[str, Any]) -> None:
        what = "exists" if topic["exists"] else "created"
        emit(f"{topic['name']}: {'would be created' if dry_run and what != 'exists' else what}")

    made = ask(bootstrap_servers, work, topic_settings=configs)
    if json:
        print_json(made)


@cli.command(
    epilog=examples(
        "kafkalite topics alter orders --partitions 12",
        "kafkalite topics alter orders --set retention.ms=86400000 --unset segment.bytes",
    )
)
def alter(
    topics: KnownNames,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="The new number of partitions, more than now.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", help="KEY; the broker's value is in force again.")
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Give topics more partitions, or change their settings."""
    changes: dict[str, str | None] = {**parse_pairs(set_, "--set")}
    changes.update(dict.fromkeys(unset or ()))
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to change: give --partitions, --set or --unset")

    async def work(admin: Admin) -> None:
        from kafkalite.clients.admin.client import ConfigResource, ResourceType

        for name in topics:
            if changes:
                resource = ConfigResource(ResourceType.TOPIC, name)
                await admin.alter_configs(resource, changes, validate_only=dry_run)
            if partitions is not None:
                await admin.create_partitions({name: partitions}, validate_only=dry_run)
            if not json:
                emit(f"{name}: {'would be altered' if dry_run else 'altered'}")

    ask(bootstrap_servers, work, topics=topics, topic_settings=changes)
    if json:
        print_json([{"name": name, "altered": not dry_run} for name in topics])


@cli.command(
    epilog=examples(
        "kafkalite topics trim orders --before end --yes",
        "kafkalite topics trim orders --before -7d --partition 0-2",
    )
)
def trim(
    topic: Annotated[str, typer.Argument(help="The topic.", autocompletion=completing.topics)],
    before: Annotated[
        str,
        typer.Option(help="end, an offset, -N to keep the last N, or a time such as -7d."),
    ],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    partition: Partitions = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete a topic's oldest records, up to a place."""
    place = parse_place(before, "--before", time.time_ns() // 1_000_000)
    numbers = parse_partitions(partition)

    async def find(admin: Admin) -> dict[TopicPartition, int]:
        (found,) = await admin.describe_topics([topic])
        bounds = await bounds_of(admin, choose({topic: found.partition_count}, numbers))
        wanted = await offsets_at(admin, place, bounds)
        return {tp: offset for tp, offset in wanted.items() if offset > bounds.beginnings[tp]}

    wanted = ask(bootstrap_servers, find, topics=[topic])
    if wanted:
        places = ", ".join(f"{tp} before {offset}" for tp, offset in wanted.items())
        confirm(f"Delete the records of {places}?", yes=yes)
    starts = ask(bootstrap_servers, lambda admin: admin.delete_records(wanted)) if wanted else {}
    if json:
        print_json([{"topic": t, "partition": p, "begin": at} for (t, p), at in starts.items()])
    elif starts:
        print_table(["topic", "partition", "begin"], [[t, p, at] for (t, p), at in starts.items()])
    else:
        say(f"{topic}: no records lie before that place")


@cli.command(epilog=examples("kafkalite topics delete orders", "kafkalite topics delete a b --yes"))
def delete(
    topics: KnownNames,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Skip topics that do not exist.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Delete topics and all their records."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes=yes)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        done = []
        for name in topics:
            deleted = True
            try:
                await admin.delete_topics([name])
            except ApiError as error:
                missing = error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not (if_exists and missing):
                    raise
                deleted = False
            done.append({"name": name, "deleted": deleted})
            if not json:
                emit(f"{name}: {'deleted' if deleted else 'does not exist'}")
        return done

    done = ask(bootstrap_servers, work, topics=topics)
    if json:
        print_json(done)
