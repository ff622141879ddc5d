"""The worker: a member of the topology's consumer group that runs the tasks it is given.  [IO]

One turn of its loop: poll columns into inboxes, run a round of tasks, send what they made. At the
end of a commit interval outputs and changelogs are flushed, then offsets are committed with the
operators' stream times in their metadata. A task that is new to this member restores its state
from its changelogs first.

Owns   one client, consumer and producer; this member's tasks; the commit cycle.
Never  keeps the loop longer than a slice of records, so that heartbeats go out in time.
Fails  with the first error of a user function, a serde or the broker; what was not committed is
       read again by the next run (at least once).
Source KIP-447 (commit cycle), KIP-695 (waiting for inputs that lag).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafkalite.core.admin import Admin
from kafkalite.core.client import Client
from kafkalite.core.consumer import Consumer, OffsetAndMetadata
from kafkalite.core.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams.local.alignment import NO_LIMIT, Inbox, merge_by_time
from kafkalite.streams.local.assignor import TaskAssignor, TaskId, tasks_of
from kafkalite.streams.local.compile import SubTopology, compile_topology
from kafkalite.streams.local.restore import restore_tasks
from kafkalite.streams.local.task import Output, Task
from kafkalite.streams.local.topics import resolve_topics
from kafkalite.streams.plan import Plan

SLICE_RECORDS: Final = 10_000  # between two turns of the event loop
POLL_MS: Final = 100
CAUGHT_UP_CHECK_MS: Final = 50
LAG_WAIT_MS_MAX: Final = 5_000  # a partition that lags and gives nothing holds others no longer


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker runs. Times in milliseconds."""

    commit_interval_ms: int = 1_000
    buffered_records_max: int = 100_000  # a partition's inbox; beyond it the partition is paused
    session_timeout_ms: int = 45_000
    group_instance_id: str | None = None


@dataclass(slots=True)
class Progress:
    """What a worker has done so far."""

    records: int = 0
    records_out: int = 0
    records_restored: int = 0
    commits: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the worker was made."""
        return time.monotonic() - self.started


def now_ms() -> int:
    """The wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Worker:
    """Runs the tasks of `plan` that its consumer group gives it, until `stop()` or caught up."""

    def __init__(
        self,
        plan: Plan,
        bootstrap_servers: str,
        registry: SchemaRegistry,
        config: WorkerConfig = WorkerConfig(),
    ) -> None:
        self.plan = plan
        self.config = config
        self.progress = Progress()
        self._registry = registry
        self._client = Client(bootstrap_servers, client_id=plan.application_id)
        self._sub_topologies: dict[int, SubTopology] = {s.id: s for s in compile_topology(plan)}
        self._tasks: dict[TaskId, Task] = {}
        self._suspended: dict[TaskId, Task] = {}  # during a rebalance, with their state
        self._inboxes: dict[TopicPartition, Inbox] = {}
        self._waiting_since: dict[int, float] = {}  # sub-topology -> when a round had to wait
        self._stopping = False

    def stop(self) -> None:
        """Asks the worker to commit, leave its group and return from `run`."""
        self._stopping = True

    async def run(self, *, until_caught_up: bool = False) -> Progress:
        """Runs until stopped, or until every input of the whole group is read to its end."""
        async with self._client:
            await self._prepare()
            async with Producer(self._client, linger_ms=0) as self._producer, self._consumer:
                try:
                    await self._loop(until_caught_up)
                    await self._commit()
                finally:
                    self._tasks.clear()  # nothing is left to commit when the group lets go
        return self.progress

    async def _prepare(self) -> None:
        async with Admin(self._client) as admin:
            sources, self._partitions_of = await resolve_topics(
                admin, list(self._sub_topologies.values())
            )
        self._sub_topology_of = {topic: sub for sub, topics in sources.items() for topic in topics}
        self._assignor = TaskAssignor(sources)
        self._consumer = Consumer(
            self._client,
            group_id=self.plan.application_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            assignors=(self._assignor,),
            session_timeout_ms=self.config.session_timeout_ms,
            group_instance_id=self.config.group_instance_id,
            isolation_level="read_committed",
        )
        self._consumer.subscribe(
            sorted(self._sub_topology_of),
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
        )

    async def _loop(self, until_caught_up: bool) -> None:
        committed_at = checked_at = time.monotonic()
        worked = False
        while not self._stopping:
            for partition, columns in (
                await self._consumer.poll(timeout_ms=0 if worked else POLL_MS)
            ).items():
                self._receive(partition, columns)
            worked = await self._round()
            at = time.monotonic()
            if (at - committed_at) * 1000 >= self.config.commit_interval_ms:
                await self._commit()
                committed_at = time.monotonic()
            idle = until_caught_up and not worked and self._tasks
            if idle and (at - checked_at) * 1000 >= CAUGHT_UP_CHECK_MS:
                checked_at = at
                if await self._is_caught_up():
                    return

    # Records in, records out

    def _receive(self, partition: TopicPartition, columns: Columns) -> None:
        inbox = self._inboxes.get(partition)
        if inbox is None:  # revoked while its records were on the way
            return
        inbox.put(columns)
        if inbox.records >= self.config.buffered_records_max:
            self._consumer.pause([partition])

    async def _round(self) -> bool:
        """Runs every task as far as its sub-topology's round goes; whether anything ran."""
        worked = False
        for sub in self._sub_topologies.values():
            tasks = [
                task for task_id, task in self._tasks.items() if task_id.sub_topology == sub.id
            ]
            until = self._round_limit(sub, tasks)
            if until is not None:
                worked |= await self._run_tasks(tasks, until)
                await self._send_outputs(sub, [o for task in tasks for o in task.drain()])
        return worked

    def _round_limit(self, sub: SubTopology, tasks: Sequence[Task]) -> int | None:
        """Up to which timestamp a round may go; None when it has to wait for a partition."""
        if not sub.feeds_repartition or len(tasks) < 2:
            return NO_LIMIT
        inboxes = {tp: self._inboxes[tp] for task in tasks for tp in self._inputs(task)}
        empty = [tp for tp, inbox in inboxes.items() if not inbox.records]
        if any(self._consumer.lag(tp) != 0 for tp in empty):
            since = self._waiting_since.setdefault(sub.id, time.monotonic())
            if (time.monotonic() - since) * 1000 < LAG_WAIT_MS_MAX:
                return None
        self._waiting_since.pop(sub.id, None)
        return min((box.newest for box in inboxes.values() if box.records), default=NO_LIMIT)

    async def _run_tasks(self, tasks: Iterable[Task], until: int) -> bool:
        worked = False
        for task in tasks:
            for partition in self._inputs(task):
                inbox = self._inboxes[partition]
                for columns in inbox.take(until, self.config.buffered_records_max):
                    task.enqueue(partition.topic, columns)
                if inbox.records < self.config.buffered_records_max // 2:
                    self._consumer.resume([partition])
            while ran := task.process(SLICE_RECORDS, now_ms()):
                worked = True
                self.progress.records += ran
                await asyncio.sleep(0)
            task.tick(now_ms())
        return worked

    def _inputs(self, task: Task) -> tuple[TopicPartition, ...]:
        return self._partitions[TaskId(task.sub_topology.id, task.partition)]

    async def _send_outputs(self, sub: SubTopology, outputs: Sequence[Output]) -> None:
        """Sends what a round made; what goes to a repartition topic leaves merged by time."""
        if not sub.feeds_repartition:
            return await self._send(outputs)
        internal = sub.repartition_sinks
        await self._send(output for output in outputs if output.topic not in internal)
        for topic in internal:
            batches = [output for output in outputs if output.topic == topic]
            if batches:
                await self._send([merge_by_time(topic, batches)])
        return None

    async def _send(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self.progress.records_out += len(output.columns)
            await self._producer.send_columns(
                output.topic, output.columns, partitions=output.partitions
            )

    # Commit and assignment

    async def _commit(self) -> None:
        """Outputs and changelogs first, then the offsets they came from."""
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for task in self._tasks.values():
            commit = task.commit()
            await self._send(commit.outputs)
            for changes in commit.changelog:
                await self._producer.send_columns(
                    changes.topic, changes.columns, partition=task.partition
                )
            for topic, offset in commit.offsets.items():
                offsets[TopicPartition(topic, task.partition)] = OffsetAndMetadata(
                    offset, metadata=commit.metadata
                )
        await self._producer.flush()
        if offsets:
            await self._consumer.commit(offsets)
            self.progress.commits += 1

    async def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commits while the group still waits; if it no longer does, drops the state, now ahead.

        Tasks that come back to this member in the next assignment need no restoring.
        """
        try:
            await self._commit()
            self._suspended = self._tasks
        except ApiError:
            self._suspended = {}
        self._tasks = {}
        self._inboxes = {}

    async def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Makes and restores the tasks that are new here, drops those that went elsewhere."""
        all_tasks = tasks_of(self._assignor.sources, self._partitions_of)
        mine = {TaskId(self._sub_topology_of[tp.topic], tp.partition) for tp in partitions}
        self._partitions = {task_id: all_tasks[task_id] for task_id in mine}
        self._inboxes = {tp: Inbox() for tps in self._partitions.values() for tp in tps}
        new = {
            task_id: Task(
                self._sub_topologies[task_id.sub_topology],
                task_id.partition,
                self._registry,
                partition_counts=self._partitions_of,
            )
            for task_id in sorted(mine - self._suspended.keys())
        }
        self.progress.records_restored += await restore_tasks(self._client, new.values())
        committed = await self._consumer.committed([tp for t in new for tp in all_tasks[t]])
        for task_id, task in new.items():
            self._resume(task, all_tasks[task_id], committed)
        self._skip_to_the_end(tp for tp in committed if committed[tp] is None)
        kept = {task_id: task for task_id, task in self._suspended.items() if task_id in mine}
        self._tasks, self._suspended = dict(sorted((kept | new).items())), {}
        self._assignor.owned = frozenset(self._tasks)

    def _resume(
        self,
        task: Task,
        partitions: Sequence[TopicPartition],
        committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    ) -> None:
        """Gives a task the stream times that its last commit carried."""
        found = [entry for tp in partitions if (entry := committed.get(tp)) is not None]
        if found:
            task.restore_metadata(max(found, key=lambda entry: entry.offset).metadata)

    def _skip_to_the_end(self, uncommitted: Iterable[TopicPartition]) -> None:
        """A source that starts at the latest record does so where nothing was ever committed."""
        for tp in uncommitted:
            source = self._sub_topologies[self._sub_topology_of[tp.topic]].source_of(tp.topic)
            if source.offset_reset == "latest":
                self._consumer.seek_to_end([tp])

    async def _is_caught_up(self) -> bool:
        """Whether the group has read every input to its end and this member has sent all of it."""
        await self._commit()
        partitions = [
            TopicPartition(topic, p)
            for topic in self._sub_topology_of
            for p in range(self._partitions_of[topic])
        ]
        ends = await self._consumer.end_offsets(partitions)
        others = [tp for tp in partitions if tp not in self._inboxes]
        committed = await self._consumer.committed(others) if others else {}
        for tp, end in ends.items():
            entry = committed.get(tp)
            position = (
                self._consumer.position(tp) if tp in self._inboxes else entry and entry.offset
            )
            if (position or 0) < end:
                return False
        return not any(inbox.records for inbox in self._inboxes.values())
