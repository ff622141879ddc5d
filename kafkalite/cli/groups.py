"""`kafkalite groups`: consumer groups, their members, offsets and lag.                     [IO]

Fails  with one line and exit code 1: a group that does not exist, offsets to move of a group that
       has members, a broker that does not answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli import completing
from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    Yes,
    choose,
    examples,
    parse_topic_partitions,
    program,
)
from kafkalite.cli.output import ask, confirm, counted, emit, print_json, print_table, say
from kafkalite.cli.places import Bounds, Place, bounds_of, offsets_at, parse_place
from kafkalite.errors import ApiError, ConfigError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, GroupInfo
    from kafkalite.clients.consumer.consumer import OffsetAndMetadata
    from kafkalite.core.types import TopicPartition

cli = program("Show consumer groups and lag, move offsets, delete groups.")

DEAD: Final = "Dead"  # how brokers describe a group that does not exist
INACTIVE: Final = frozenset({"Empty", DEAD})
GroupNames = Annotated[
    list[str],
    typer.Argument(help="The group ids.", metavar="GROUP", autocompletion=completing.groups),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="TOPIC or TOPIC:PARTITION[,…]; may be repeated."),
]


@cli.command(
    "list", epilog=examples("kafkalite groups list", "kafkalite groups list --state Stable")
)
def list_(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only groups in this state: Stable, Empty, …; may be repeated."),
    ] = None,
    json: AsJson = False,
) -> None:
    """List consumer groups and their states."""
    listed = ask(bootstrap_servers, lambda admin: admin.list_groups(state or ()))
    if json:
        print_json(
            [{"group": g.group_id, "state": g.state, "protocol": g.protocol_type} for g in listed]
        )
        return
    rows = [[g.group_id, g.state, g.protocol_type] for g in listed]
    print_table(["group", "state", "protocol"], rows)


@cli.command(
    epilog=examples(
        "kafkalite groups describe billing",
        "kafkalite groups describe billing --json | jq .[0].lag",
    )
)
def describe(
    groups: GroupNames, bootstrap_servers: Bootstrap = BOOTSTRAP, json: AsJson = False
) -> None:
    """Show members, committed offsets and lag."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [await _described(admin, group) for group in await admin.describe_groups(groups)]

    described = ask(bootstrap_servers, work, groups=groups)
    if json:
        print_json(described)
        return
    for group in described:
        _print_group(group)


async def _described(admin: Admin, group: GroupInfo) -> dict[str, Any]:
    offsets = await admin.list_group_offsets(group.group_id)
    if group.state == DEAD and not offsets:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group.group_id}")
    readers = {tp: member for member in group.members for tp in member.partitions}
    ends = await _ends(admin, {*offsets, *readers})
    partitions = []
    for tp in sorted({*offsets, *readers}):
        committed = offsets.get(tp)
        end = ends.get(tp)
        partitions.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed.offset if committed else None,
                "end": end,
                "lag": max(0, end - committed.offset) if committed and end is not None else None,
                "member": readers[tp].member_id if tp in readers else None,
                "metadata": committed.metadata if committed else None,
            }
        )
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol,
        "lag": sum(p["lag"] or 0 for p in partitions),
        "members": [
            {
                "member": m.member_id,
                "instance": m.group_instance_id,
                "client": m.client_id,
                "host": m.client_host,
                "partitions": [str(tp) for tp in m.partitions],
            }
            for m in group.members
        ],
        "partitions": partitions,
    }


async def _ends(admin: Admin, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """The ends of the logs that still exist."""
    topics = {t.name: t for t in await admin.describe_topics()}
    led = [
        tp
        for tp in partitions
        if tp.topic in topics
        and tp.partition < topics[tp.topic].partition_count
        and topics[tp.topic].partitions[tp.partition].leader_id >= 0
    ]
    return await admin.end_offsets(led)


def _print_group(group: dict[str, Any]) -> None:
    members, partitions = group["members"], group["partitions"]
    assignor = f", {group['assignor']}" if group["assignor"] else ""
    emit(
        f"{group['group']}: {group['state']}{assignor}, "
        f"{counted(len(members), 'member')}, lag {group['lag']:,}"
    )
    if members:
        columns = ["member", "instance", "client", "host", "partitions"]
        print_table(columns, [[m[c] for c in columns] for m in members])
    columns = ["topic", "partition", "committed", "end", "lag", "member"]
    print_table(columns, [[p[c] for c in columns] for p in partitions])


@cli.command(
    "reset-offsets",
    epilog=examples(
        "kafkalite groups reset-offsets billing --topic orders --to earliest",
        "kafkalite groups reset-offsets billing --all-topics --to 2024-05-01T12:00 --execute",
        "kafkalite groups reset-offsets billing --topic orders:0,1 --shift-by -100 --execute",
    ),
)
def reset_offsets(
    group: Annotated[str, typer.Argument(help="The group id.", autocompletion=completing.groups)],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every topic with offsets of the group.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(help="earliest, latest, an offset, -N, a time (ISO, -15m or @EPOCH_MS)."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="Move by this many records; back if negative.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move the offsets; else they are only shown.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Move a group's committed offsets. Without --execute it only shows the new ones.

    The group must have no members. Offsets stay within the log.
    """
    if (to is None) == (shift_by is None):
        raise typer.BadParameter("give either --to or --shift-by")
    if bool(topic) == all_topics:
        raise typer.BadParameter("give either --topic or --all-topics")
    place = None if to is None else parse_place(to, "--to", time.time_ns() // 1_000_000)
    chosen = parse_topic_partitions(topic, "--topic")

    async def work(admin: Admin) -> list[dict[str, Any]]:
        (described,) = await admin.describe_groups([group])
        if described.state not in INACTIVE:
            members = counted(len(described.members), "member")
            raise ConfigError(f"group {group} is {described.state} with {members}: stop them first")
        committed = await admin.list_group_offsets(group)
        partitions = await _partitions(admin, chosen, committed)
        if not partitions:
            raise ConfigError(f"group {group} has no offsets: name topics with --topic")
        bounds = await bounds_of(admin, partitions)
        wanted = await _moved(admin, place, shift_by, bounds, committed)
        if execute:
            await _commit(admin, group, wanted)
        return [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed[tp].offset if tp in committed else None,
                "new": offset,
                "begin": bounds.beginnings[tp],
                "end": bounds.ends[tp],
            }
            for tp, offset in sorted(wanted.items())
        ]

    moved = ask(bootstrap_servers, work, topics=chosen)
    if json:
        print_json({"group": group, "executed": execute, "partitions": moved})
        return
    columns = ["topic", "partition", "committed", "new", "begin", "end"]
    print_table(columns, [[p[c] for c in columns] for p in moved])
    if not execute:
        say("Nothing is changed yet: pass --execute to move the offsets.")


async def _partitions(
    admin: Admin,
    chosen: dict[str, list[int] | None],
    committed: dict[TopicPartition, OffsetAndMetadata],
) -> list[TopicPartition]:
    """The chosen partitions; without a choice every partition with offsets of the group."""
    if not chosen:
        there = {t.name: t.partition_count for t in await admin.describe_topics()}
        return [tp for tp in committed if tp.partition < there.get(tp.topic, 0)]
    counts = {t.name: t.partition_count for t in await admin.describe_topics(chosen)}
    return [
        tp
        for name, numbers in chosen.items()
        for tp in choose({name: counts[name]}, numbers, "--topic")
    ]


async def _moved(
    admin: Admin,
    place: Place | None,
    shift_by: int | None,
    bounds: Bounds,
    committed: dict[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    if place is not None:
        return await offsets_at(admin, place, bounds, strict=False)
    missing = [tp for tp in bounds.ends if tp not in committed]
    if missing:
        raise ConfigError(f"{missing[0]}: the group has no committed offset to shift")
    by = shift_by or 0
    return {tp: bounds.clamp(tp, committed[tp].offset + by) for tp in bounds.ends}


async def _commit(admin: Admin, group: str, offsets: dict[TopicPartition, int]) -> None:
    from kafkalite.clients.consumer.consumer import OffsetAndMetadata

    await admin.alter_group_offsets(
        group, {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
    )


@cli.command(
    epilog=examples("kafkalite groups delete billing", "kafkalite groups delete a b --yes")
)
def delete(
    groups: GroupNames,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete groups and their offsets. A group with members is refused."""
    confirm(f"Delete {', '.join(groups)} with all offsets?", yes=yes)

    async def work(admin: Admin) -> None:
        for group in groups:
            await admin.delete_groups([group])
            if not json:
                emit(f"{group}: deleted")

    ask(bootstrap_servers, work, groups=groups)
    if json:
        print_json([{"group": group, "deleted": True} for group in groups])


@cli.command(
    "delete-offsets",
    epilog=examples("kafkalite groups delete-offsets billing --topic orders --yes"),
)
def delete_offsets(
    group: Annotated[str, typer.Argument(help="The group id.", autocompletion=completing.groups)],
    topic: Topics = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete a group's offsets of topics that no member reads."""
    chosen = parse_topic_partitions(topic, "--topic")
    if not chosen:
        raise typer.BadParameter("name the topics", param_hint="--topic")

    async def find(admin: Admin) -> list[TopicPartition]:
        committed = await admin.list_group_offsets(group)
        found = [
            tp
            for tp in sorted(committed)
            if tp.topic in chosen
            and ((numbers := chosen[tp.topic]) is None or tp.partition in numbers)
        ]
        if not found:
            raise ConfigError(f"group {group} has no offsets of {', '.join(chosen)}")
        return found

    found = ask(bootstrap_servers, find)
    confirm(f"Delete the offsets of {', '.join(map(str, found))}?", yes=yes)
    ask(bootstrap_servers, lambda admin: admin.delete_group_offsets(group, found))
    if json:
        print_json([{"topic": t, "partition": p, "deleted": True} for t, p in found])
    else:
        emit(f"{group}: deleted the offsets of {', '.join(map(str, found))}")
