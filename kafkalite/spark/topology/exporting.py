"""Moving an application back from Spark: its state becomes changelogs and offsets again.    [IO]

    claim      the topology log says that the state is leaving: no query may begin
    fence      the sink's transactional id gets a new epoch: a query that still runs writes no more
    read       the last completed batch: its offsets, and the rows of all tasks
    write      changelogs and the group's offsets, in one transaction
    claim      the local engine has the state

Each step may be repeated. Only rows that differ from the changelog's are written, so an export that
was killed after its transaction writes nothing the second time.

Owns   the order of an export, and its transaction.
Fails  with TopologyError, in one line with the command that helps: the checkpoint is not the
       holder's, a batch is in the log but not complete in the checkpoint, workers run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.errors import TopologyError
from kafkalite.spark.sink.epochs import last_epoch
from kafkalite.spark.topology.checkpoint import Checkpoint
from kafkalite.spark.topology.moving import (
    changelog_rows,
    changelogs_of,
    refuse_members,
    sink_name,
)
from kafkalite.spark.topology.state import decode_rows, folded
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.holder import SPARK, Holder, elsewhere
from kafkalite.streams.local.topics import resolve_topics
from kafkalite.streams.local.topology_log import TopologyLog
from kafkalite.streams.plan import Plan

TIMEOUT_MS: Final = 900_000  # the longest that brokers allow by default
NO_HEADERS: Final = ()

Rows = Mapping[str, Columns]  # of a task, by store
# The blobs of every task as a batch left them, by its name (state.py).
ReadState = Callable[[int], Mapping[str, Sequence[bytes]]]


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    batch: int | None  # the last completed one; None: the query had none
    tasks: int
    rows: int  # of changelogs, deletions too
    offsets: Mapping[TopicPartition, int]


async def export_state(
    client: Client, servers: str, plan: Plan, checkpoint: Checkpoint, read_state: ReadState
) -> Exported | None:
    """Gives the state back to the local engine; None: it was given back before."""
    app, subs = plan.application_id, compile_topology(plan)
    async with Admin(client) as admin:
        claim = await TopologyLog(client, admin, plan, subs).in_force()
        holder = None if claim is None else claim.holder
        if holder is None and checkpoint.stay(app) is not None:
            return None
        if holder is None:
            raise TopologyError(
                f"{app}: the local engine holds the state, and {checkpoint.location} is no "
                "checkpoint of this application: `kafkalite-streams run FILE.py` goes on"
            )
        if checkpoint.stay(app) != holder.stay:
            mine = Holder(SPARK, checkpoint.location, "")
            raise TopologyError(elsewhere(app, holder.staying(), mine))
        log = TopologyLog(client, admin, plan, subs, holder)
        await log.check()
        if not holder.is_leaving:
            await _refuse_unfinished(servers, app, checkpoint)
            await log.hand_over(holder.leaving())
        await refuse_members(admin, app)
        async with TransactionalProducer(
            client, sink_name(app), transaction_timeout_ms=TIMEOUT_MS
        ) as producer:
            try:
                await _refuse_unfinished(servers, app, checkpoint)
            except TopologyError:
                await log.hand_over(holder.staying())
                raise
            sources, partitions_of = await resolve_topics(admin, subs, servers)
            changelogs = changelogs_of(subs, sources, partitions_of)
            exported = await _write(
                client,
                producer,
                app,
                {str(task): stores for task, stores in changelogs.items()},
                checkpoint,
                read_state,
            )
        await log.hand_over(None)
    return exported


async def _refuse_unfinished(servers: str, app: str, checkpoint: Checkpoint) -> None:
    """TopologyError where the sink has committed a batch that the checkpoint does not count."""
    async with Admin(servers) as admin:
        topic = f"{sink_name(app)}-epochs"
        if topic not in await admin.list_topics():
            return
    last = await last_epoch(servers, TopicPartition(topic, 0))
    done = -1 if checkpoint.completed is None else checkpoint.completed
    if last is not None and last.query == checkpoint.query and last.number > done:
        raise TopologyError(
            f"{app}: batch {last.number} is in the log, but {checkpoint.location} has completed "
            f"{done} only: `kafkalite-streams run FILE.py --engine spark --checkpoint "
            f"{checkpoint.location} --until-caught-up` completes it"
        )


async def _write(
    client: Client,
    producer: TransactionalProducer,
    app: str,
    changelogs: Mapping[str, Mapping[str, TopicPartition]],
    checkpoint: Checkpoint,
    read_state: ReadState,
) -> Exported:
    """Changelogs and offsets in one transaction."""
    batch = checkpoint.completed
    if batch is None:  # the changelogs and offsets are as they were
        return Exported(None, 0, 0, {})
    state, offsets, rows = read_state(batch), checkpoint.offsets(batch), 0
    if unknown := sorted(state.keys() - changelogs.keys()):
        raise TopologyError(
            f"{app}: {checkpoint.location} has state of the task {unknown[0]}, which this topology "
            "does not have: run `export-state` with the topology that the query ran"
        )
    async with producer.transaction():
        for task, stores in changelogs.items():
            there = await changelog_rows(client, stores)
            wanted = folded(decode_rows(state.get(task, ())))
            for store, columns in differences(there, wanted):
                tp = stores[store]
                await producer.send_columns(tp.topic, columns, partition=tp.partition)
                rows += len(columns)
        await producer.send_offsets(offsets, app)
    return Exported(batch, len(state), rows, offsets)


def differences(there: Rows, wanted: Rows) -> Iterator[tuple[str, Columns]]:
    """The records that turn the rows `there` into those `wanted`, by store; None deletes."""
    for store in sorted({*there, *wanted}):
        old, new = there.get(store), wanted.get(store)
        parts: list[Columns] = []
        if old is not None:
            kept = set() if new is None else set(new.keys)
            gone = [key not in kept for key in old.keys]
            leaving = old.where(gone)
            parts.append(
                Columns(leaving.keys, [None] * len(leaving), leaving.timestamps, None, None)
            )
        if new is not None:
            known = {} if old is None else _by_key(old)
            rows = zip(new.keys, _contents(new), strict=True)
            changed = new.where([known.get(key) != content for key, content in rows])
            parts.append(
                Columns(changed.keys, changed.values, changed.timestamps, None, changed.headers)
            )
        if len(columns := concat(parts)):
            yield store, columns


def _by_key(columns: Columns) -> dict[object, object]:
    return dict(zip(columns.keys, _contents(columns), strict=True))


def _contents(columns: Columns) -> Iterator[tuple[object, ...]]:
    """What a row is besides its key."""
    headers = columns.headers or [NO_HEADERS] * len(columns)
    return zip(columns.values, columns.timestamps, headers, strict=True)
