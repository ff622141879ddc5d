"""Moving an application from the local engine to Spark: who has the state, and what it is.  [IO]

    hold      writes down that Spark has the state: in the checkpoint's folder, then in the topology
              log. Local workers refuse to start from then on.
    seeds     the changelogs as the first state of the query's tasks
    Stay      where the query begins: the offsets of the group

The changelogs and the group's offsets do not change while Spark has the state. So a query whose
checkpoint has no batch yet takes them again, however often it was killed; later the checkpoint
counts alone.

Owns   the order of a move.
Fails  with TopologyError, in one line with the command that helps: workers run, another engine or
       another checkpoint has the state, the checkpoint is of an earlier stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.spark.topology.checkpoint import Checkpoint
from kafkalite.spark.topology.state import Head, encode_rows, folded
from kafkalite.streams.local.assignor import TaskId, tasks_of
from kafkalite.streams.local.committer import abort_orphans
from kafkalite.streams.local.compile import SubTopology, compile_topology
from kafkalite.streams.local.holder import SPARK, Holder, elsewhere
from kafkalite.streams.local.restore import log_ends, make_reader
from kafkalite.streams.local.topics import resolve_topics
from kafkalite.streams.local.topology_log import AT_REST, TopologyLog, read_claim
from kafkalite.streams.plan import Plan
from kafkalite.streams.rewrites import topology_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_MS: Final = 1_000
IDLE_POLLS_MAX: Final = 30
SEEDED: Final = b"seeded"  # the token of a state that no task has committed
STAY_BITS: Final = 128
SEED_COLUMNS: Final = "to string, head binary, blob binary"
SEED_SCHEMA: Final = pa.schema([("to", pa.string()), ("head", pa.binary()), ("blob", pa.binary())])

Changelogs = Mapping[str, TopicPartition]  # of a task, by store


@dataclass(frozen=True, slots=True)
class Stay:
    """An application's stay on Spark. `offsets` are where the local engine stopped: partitions
    that are missing begin where their source says. `is_new`: the checkpoint has no batch yet."""

    application_id: str
    holder: Holder
    is_new: bool
    offsets: Mapping[TopicPartition, int]
    sources: Mapping[int, tuple[str, ...]]  # the topics that each sub-topology reads
    partitions_of: Mapping[str, int]

    @property
    def seeds(self) -> bool:
        """Whether the query begins with the state of the local engine."""
        return self.is_new and bool(self.offsets)

    @property
    def sink_name(self) -> str:
        """The transactional id of the query's sink, which fences an earlier query's."""
        return sink_name(self.application_id)


def sink_name(application_id: str) -> str:
    """The transactional id of the sink of an application."""
    return f"{application_id}-spark"


def hold_state(servers: str, plan: Plan, location: str, *, from_local: bool) -> Stay:
    """`hold`, for programs without an event loop."""

    async def main() -> Stay:
        async with Client(servers, client_id=f"{plan.application_id}-spark") as client:
            return await hold(client, servers, plan, Checkpoint(location), from_local=from_local)

    return asyncio.run(main())


async def hold(
    client: Client, servers: str, plan: Plan, checkpoint: Checkpoint, *, from_local: bool
) -> Stay:
    """Sees to it that Spark has the state, in this checkpoint, and nobody else."""
    app, subs = plan.application_id, compile_topology(plan)
    async with Admin(client) as admin:
        claim = await TopologyLog(client, admin, plan, subs).in_force()
        if claim is not None and claim.holder is not None:
            holder = _same_stay(app, claim.holder, checkpoint)
        else:
            stay = f"{client.random.getrandbits(STAY_BITS):x}"
            holder = await _new_stay(admin, app, checkpoint, stay, claim is not None, from_local)
        current = None if claim is None else claim.holder
        log = TopologyLog(client, admin, plan, subs, current)
        await log.check()
        sources, partitions_of = await resolve_topics(admin, subs, servers)
        if current is None:
            checkpoint.begin(app, holder.stay)
            await log.hand_over(holder)
        if checkpoint.planned is None:
            try:  # a worker may have started in the same moment
                await refuse_members(admin, app)
                await abort_orphans(client, app, ())
                await _refuse_rest(admin, app, subs, partitions_of)
            except TopologyError:
                await log.hand_over(None)
                raise
        await log.claim()
        offsets = await admin.list_group_offsets(app)
    return Stay(
        app,
        holder,
        checkpoint.planned is None,
        {tp: entry.offset for tp, entry in offsets.items()},
        sources,
        partitions_of,
    )


def _same_stay(app: str, holder: Holder, checkpoint: Checkpoint) -> Holder:
    """The holder, if it is this checkpoint. TopologyError for another one, and while it leaves."""
    mine = Holder(SPARK, checkpoint.location, checkpoint.stay(app) or "")
    if mine.stay == holder.stay and not holder.is_leaving:
        return holder
    raise TopologyError(elsewhere(app, holder, mine))


async def _new_stay(
    admin: Admin, app: str, checkpoint: Checkpoint, stay: str, is_claimed: bool, from_local: bool
) -> Holder:
    """The holder that this checkpoint is to be, for `stay` unless a move began before.
    TopologyError where that cannot be."""
    if checkpoint.planned is not None:
        raise TopologyError(
            f"{app}: {checkpoint.location} is of an earlier stay on Spark, and the local engine "
            "holds the state since: give --checkpoint a new folder"
        )
    holder = Holder(SPARK, checkpoint.location, checkpoint.stay(app) or stay)
    if not from_local and (is_claimed or await admin.list_group_offsets(app)):
        raise TopologyError(elsewhere(app, None, holder))
    await refuse_members(admin, app)
    return holder


async def refuse_members(admin: Admin, app: str) -> None:
    """TopologyError while workers of the local engine run."""
    (group,) = await admin.describe_groups([app])
    if group.state not in AT_REST:
        hosts = ", ".join(sorted({member.client_host for member in group.members})) or "a rebalance"
        raise TopologyError(
            f"{app}: {len(group.members)} workers run ({hosts}): stop them, then move the state. A "
            "worker that was killed leaves when its session times out"
        )


async def _refuse_rest(
    admin: Admin, app: str, subs: Iterable[SubTopology], partitions_of: Mapping[str, int]
) -> None:
    """TopologyError while records of a repartition topic are unread: a query on Spark shuffles
    records without the log."""
    topics = [topic.name for sub in subs for topic in sub.repartition_sources]
    partitions = [TopicPartition(t, n) for t in topics for n in range(partitions_of[t])]
    if not partitions:
        return
    ends = await admin.end_offsets(partitions, isolation_level="read_committed")
    starts = await admin.beginning_offsets(partitions)
    committed = await admin.list_group_offsets(app)
    for tp, end in ends.items():
        read = committed[tp].offset if tp in committed else 0
        if end > max(starts[tp], read):
            raise TopologyError(
                f"{app}: {end - max(starts[tp], read):,} records of {tp} wait to be read: run "
                "`kafkalite-streams run FILE.py --until-caught-up` first, then move the state"
            )


async def check_stay(servers: str, application_id: str, holder: Holder) -> None:
    """TopologyError unless Spark still has the state, for the same stay.

    A sink asks once its transactional id is its own and before it writes. An export changes the
    topology log first and takes the transactional id then, so one of the two is refused.
    """
    async with Client(servers, client_id=f"{application_id}-spark") as client:
        cluster = await client.refresh([topology_topic(application_id)])
        is_there = topology_topic(application_id) in cluster.topics
        claim = await read_claim(client, application_id) if is_there else None
    if claim is None or claim.fingerprint is None or claim.holder != holder:
        raise TopologyError(
            f"{application_id}: the state was moved away from Spark, or reset, while this query "
            "ran: the query ends"
        )


# The first state


def changelogs_of(
    subs: Iterable[SubTopology],
    sources: Mapping[int, Sequence[str]],
    partitions_of: Mapping[str, int],
) -> dict[TaskId, dict[str, TopicPartition]]:
    """The changelogs of every task that has some, by store."""
    by_id = {sub.id: sub for sub in subs}
    return {
        task: {
            store.name: TopicPartition(store.changelog_topic, task.partition)
            for store in by_id[task.sub_topology].stores
        }
        for task in tasks_of(sources, partitions_of)
        if by_id[task.sub_topology].stores
    }


async def changelog_rows(client: Client, changelogs: Changelogs) -> dict[str, Columns]:
    """The rows of a task's stores, as its changelogs tell them."""
    stores = {tp: store for store, tp in changelogs.items()}
    ends = await log_ends(client, list(stores))
    found: list[tuple[str, Columns]] = []
    consumer = await make_reader(client)
    try:
        begins = await consumer.beginning_offsets(stores)
        consumer.assign(stores)
        for tp, offset in begins.items():
            consumer.seek(tp, offset)
        idle = 0
        while behind := [tp for tp in stores if (consumer.position(tp) or 0) < ends[tp]]:
            polled = await consumer.poll(POLL_MS)
            found += [(stores[tp], columns) for tp, columns in polled.items()]
            idle = 0 if polled else idle + 1
            if idle > IDLE_POLLS_MAX:
                raise TopologyError(f"changelog {behind[0]} cannot be read to its end")
    finally:
        await consumer.close()
    return folded(found)


@dataclass(frozen=True, slots=True)
class Seeds:
    """The first state of tasks, for `mapInArrow`: a Spark task reads a task's changelogs. Rows by
    SEED_SCHEMA: a task's name, its head, and a blob; as many rows as it has blobs."""

    servers: str
    tasks: Sequence[tuple[str, Changelogs]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first state of the tasks that have these numbers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                name, changelogs = self.tasks[number]
                yield from seed_rows(name, asyncio.run(self._rows(changelogs)))

    async def _rows(self, changelogs: Changelogs) -> dict[str, Columns]:
        async with Client(self.servers, client_id="kafkalite-spark") as client:
            return await changelog_rows(client, changelogs)


def seed_rows(name: str, rows: Mapping[str, Columns]) -> Iterator[pa.RecordBatch]:
    """The first state of one task."""
    total = sum(len(columns) for columns in rows.values())
    head = Head(SEEDED, total, 0).encode()
    for blob in encode_rows(rows.items()):
        arrays = [pa.array([name]), pa.array([head], pa.binary()), pa.array([blob], pa.binary())]
        yield pa.RecordBatch.from_arrays(arrays, schema=SEED_SCHEMA)


def seeds(servers: str, plan: Plan, stay: Stay, tasks: Collection[TaskId] | None = None) -> Seeds:
    """The first state of all tasks with stores, or of some."""
    found = changelogs_of(compile_topology(plan), stay.sources, stay.partitions_of)
    wanted = [(str(t), logs) for t, logs in found.items() if tasks is None or t in tasks]
    return Seeds(servers, wanted)


def initial_state(session: SparkSession, first: Seeds) -> DataFrame:
    """The first state as rows; a task of Spark reads the changelogs of a task."""
    count = len(first.tasks)
    return session.range(0, count, 1, max(1, count)).mapInArrow(first, SEED_COLUMNS)
