"""The worker: a member of the topology's consumer group that runs the tasks it is given.  [IO]

One turn of its loop: poll columns into inboxes, run a round of tasks, send what they made. At the
end of a commit interval the committer brings outputs, changelogs and offsets into the log. A task
that is new to this member restores its state from its changelogs first.

Owns   one client, consumer and committer; this member's tasks; when to commit.
Never  keeps the loop longer than a slice of records, so that heartbeats go out in time; writes
       for a task that the group has taken away.
Fails  with the first error of a user function, a serde or the broker; what was not committed is
       read again by the next run.
Source KIP-447 (commit cycle), KIP-695 (waiting for inputs that lag).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, TopologyError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams.local.alignment import NO_LIMIT, Inbox, Pace
from kafkalite.streams.local.assignor import TaskAssignor, TaskId, tasks_of
from kafkalite.streams.local.committer import (
    Committer,
    Guarantee,
    abort_orphans,
    has_transactions,
    make_committer,
    transactional_id,
)
from kafkalite.streams.local.compile import SubTopology, compile_topology, flows_of
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.restore import log_ends, restore_tasks
from kafkalite.streams.local.state.directory import Places
from kafkalite.streams.local.state.limit import MemoryLimit
from kafkalite.streams.local.task import Output, Task, TaskCommit
from kafkalite.streams.local.topics import Wanted, missing_sources, resolve_topics
from kafkalite.streams.local.upkeep import Upkeep
from kafkalite.streams.local.watermarks import Flow
from kafkalite.streams.plan import Plan

log: Final = logging.getLogger(__name__)

POLL_MS: Final = 100
CAUGHT_UP_CHECK_MS: Final = 50
METADATA_MAX_AGE_MS: Final = 30_000  # how late partitions that are added may be noticed
TOPIC_WAIT_SECONDS: Final = 0.25  # between two looks for a source's topic
LAG_WAIT_MS_MAX: Final = 5_000  # a partition that lags and gives nothing holds others no longer
COMMIT_INTERVAL_MS: Final[Mapping[Guarantee, int]] = {"exactly_once": 100, "at_least_once": 1_000}


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker runs. Times in milliseconds.

    Without a `processing_guarantee` it is exactly once where the broker has transactions. Without
    a `commit_interval_ms` it is 100 for exactly once, where readers see results only then, and
    1,000 for at least once. A user function may block for `max_poll_interval_ms`.

    With `on_missing_topics` the worker waits for topics of its sources that do not exist, and
    reports them there whenever they change, at last as none. Without it they are an error.
    """

    processing_guarantee: Guarantee | None = None
    commit_interval_ms: int | None = None
    buffered_records_max: int = 100_000  # a partition's inbox; beyond it the partition is paused
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    group_instance_id: str | None = None
    idle_ms: int = 5_000  # without a record an input holds the stream time of others no longer
    purge_interval_ms: int = 30_000  # how often committed records leave repartition topics
    state_dir: Path | None = None
    state_memory_bytes: int | None = None  # of rows as objects; None, and without state_dir: no end
    on_missing_topics: Callable[[Sequence[Wanted]], None] | None = None


@dataclass(slots=True)
class Progress:
    """What a worker has done so far."""

    records: int = 0
    records_out: int = 0
    records_restored: int = 0
    commits: int = 0
    drops: Drops = field(default_factory=Drops)  # records that were left out
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
        self._bootstrap_servers = bootstrap_servers
        self._client = Client(
            bootstrap_servers,
            client_id=plan.application_id,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        self._sub_topologies: dict[int, SubTopology] = {s.id: s for s in compile_topology(plan)}
        if not self._sub_topologies:
            raise TopologyError(f"{plan.application_id}: the topology reads no topic")
        subs = tuple(self._sub_topologies.values())
        self._upkeep = Upkeep(
            self._client,
            plan,
            subs,
            config.purge_interval_ms,
            self.progress.drops,
            bootstrap_servers,
        )
        self._places = Places(config.state_dir, plan.application_id)
        self._memory = MemoryLimit(config.state_memory_bytes if config.state_dir else None)
        self._internal_topics = {t.name for sub in subs for t in sub.repartition_sources}
        self._tasks: dict[TaskId, Task] = {}
        self._suspended: dict[TaskId, Task] = {}  # during a rebalance, with their state
        self._inboxes: dict[TopicPartition, Inbox] = {}
        self._pace: dict[int, Pace] = defaultdict(Pace)  # by sub-topology
        self._waiting_since: dict[TopicPartition, float] = {}  # when a round first had to wait
        self._received_at: dict[TopicPartition, float] = {}
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}  # by this assignment
        self._has_assignment = False  # perhaps of no task
        self._ends: dict[TopicPartition, int] = {}  # as of the last look whether all is caught up
        self._flows: dict[str, Flow] = {}
        self.is_stopping = self._is_over = False

    def stop(self) -> None:
        """Asks the worker to commit, leave its group and return from `run`."""
        self.is_stopping = True

    async def run(self, *, until_caught_up: bool = False) -> Progress:
        """Runs until stopped, or until every input of the whole group is read to its end."""
        async with self._client:
            await self._prepare()
            if self.is_stopping:  # perhaps before every topic existed
                return self.progress
            async with self._consumer:
                self._committer = self._new_committer()
                try:
                    await self._committer.start()
                    await self._loop(until_caught_up)
                    await self._commit()
                    await self._upkeep.close(finish=True)
                finally:
                    await self._upkeep.close(finish=False)
                    self._is_over = True  # nothing is left to commit when the group lets go
                    await self._committer.close()
                    _close([*self._suspended.values(), *self._tasks.values()])
        return self.progress

    async def _find_transactional_id(self) -> str | None:
        """Who this worker is in transactions; None where the broker has none."""
        if await has_transactions(self._client):
            return transactional_id(
                self._client, self.plan.application_id, self.config.group_instance_id
            )
        if self.config.processing_guarantee == "exactly_once":
            raise TopologyError(
                f"{self.plan.application_id}: the broker at {self._bootstrap_servers} has no "
                "transactions that a group can fence, which exactly_once needs; run it with "
                "processing_guarantee='at_least_once'"
            )
        return None

    def _new_committer(self) -> Committer:
        """The committer of the guarantee that was asked for, or else of the best there is."""
        name = self._assignor.transactional_id
        best: Guarantee = "exactly_once" if name else "at_least_once"
        guarantee = self.config.processing_guarantee or best
        interval_ms = self.config.commit_interval_ms
        self._commit_interval_ms = (
            COMMIT_INTERVAL_MS[guarantee] if interval_ms is None else interval_ms
        )
        return make_committer(
            self._client,
            self._consumer,
            name,
            guarantee=guarantee,
            timeout_ms=self.config.max_poll_interval_ms,
        )

    async def _prepare(self) -> None:
        sub_topologies = list(self._sub_topologies.values())
        async with Admin(self._client) as admin:
            await self._wait_for_topics(admin, sub_topologies)
            if self.is_stopping:
                return
            await self._upkeep.check()
            sources, self._partitions_of = await resolve_topics(
                admin, sub_topologies, self._bootstrap_servers
            )
            await self._upkeep.begin()
        self._sub_topology_of = {topic: sub for sub, topics in sources.items() for topic in topics}
        self._flows = flows_of(sub_topologies, tasks_of(sources, self._partitions_of))
        wanted = (t for sub in self._sub_topologies.values() for t in sub.source_topics)
        self._assignor = TaskAssignor(
            sources,
            [topic for topic in wanted if isinstance(topic, str)],
            await self._find_transactional_id(),
        )
        self._consumer = Consumer(
            self._client,
            group_id=self.plan.application_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            assignors=(self._assignor,),
            session_timeout_ms=self.config.session_timeout_ms,
            max_poll_interval_ms=self.config.max_poll_interval_ms,
            group_instance_id=self.config.group_instance_id,
            isolation_level="read_committed",
            allow_auto_create_topics=False,  # an input that is deleted is not made anew
        )
        self._consumer.subscribe(
            sorted(self._sub_topology_of),
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
            on_lost=self._on_lost,
        )

    async def _wait_for_topics(self, admin: Admin, sub_topologies: list[SubTopology]) -> None:
        """Returns once every source has its topic, if this worker waits for them at all."""
        report, reported = self.config.on_missing_topics, list[Wanted]()
        while report is not None and not self.is_stopping:
            missing = missing_sources(sub_topologies, await admin.describe_topics())
            if missing != reported:
                report(missing)
                reported = missing
            if not missing:
                return
            await asyncio.sleep(TOPIC_WAIT_SECONDS)

    async def _loop(self, until_caught_up: bool) -> None:
        committed_at = checked_at = time.monotonic()
        worked = False
        while not self.is_stopping:
            polled = await self._consumer.poll(timeout_ms=0 if worked else POLL_MS)
            for partition, columns in polled.items():
                self._receive(partition, columns)
            worked = await self._round()
            self._upkeep.turn()
            at = time.monotonic()
            is_due = (at - committed_at) * 1000 >= self._commit_interval_ms
            if is_due or self._memory.is_exceeded(self._tasks.values()):
                await self._commit()
                committed_at = time.monotonic()
            idle = until_caught_up and not worked and self._has_assignment
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
        self._received_at[partition] = time.monotonic()
        if inbox.is_full:
            self._consumer.pause([partition])

    async def _round(self) -> bool:
        """Runs every task a bit, those that must keep together as one; whether anything ran."""
        worked = False
        for sub, tasks in self._tasks_by_sub():
            self._note_idle(tasks)
            for together in [tasks] if sub.feeds_repartition else [[task] for task in tasks]:
                worked |= await self._run_together(together, self._pace[sub.id])
            await self._send(output for task in tasks for output in task.drain())
        return worked

    def _note_idle(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            task.note_idle({tp.topic: self._is_idle(tp) for tp in self._inputs(task)})

    def _is_idle(self, partition: TopicPartition) -> bool:
        """Whether nothing is to be expected of an input: it has been at its end for long, or is at
        the end up to which this worker runs."""
        if self._inboxes[partition].records:
            return False
        end = self._ends.get(partition)
        if end is not None and (self._consumer.position(partition) or 0) >= end:
            return True
        since = self._received_at.setdefault(partition, time.monotonic())
        idle_ms = (time.monotonic() - since) * 1000
        return self._consumer.lag(partition) == 0 and idle_ms >= self.config.idle_ms

    def _tasks_by_sub(self) -> list[tuple[SubTopology, list[Task]]]:
        """The tasks of each sub-topology."""
        return [
            (sub, [task for task_id, task in self._tasks.items() if task_id.sub_topology == sub.id])
            for sub in self._sub_topologies.values()
        ]

    async def _run_together(self, tasks: Sequence[Task], pace: Pace) -> bool:
        """Runs `tasks` up to the time to which all their inputs have records; whether any ran."""
        inboxes = {tp: self._inboxes[tp] for task in tasks for tp in self._inputs(task)}
        if self._must_wait(inboxes):
            return False
        fronts = {tp: box.front(pace.records) for tp, box in inboxes.items() if box.records}
        until = min((newest for newest, _ in fronts.values()), default=NO_LIMIT)
        worked = False
        for task in tasks:
            for tp in self._inputs(task):
                if tp in fronts:
                    for columns in inboxes[tp].take(until, fronts[tp][1]):
                        task.enqueue(tp.topic, columns)
                if inboxes[tp].is_low:
                    self._consumer.resume([tp])
            worked |= await self._run_task(task, pace)
        return worked

    def _must_wait(self, inboxes: Mapping[TopicPartition, Inbox]) -> bool:
        """Whether a partition has records to come that belong before those of the others."""
        now = time.monotonic()
        waiting = False
        for tp, inbox in inboxes.items():
            if len(inboxes) > 1 and not inbox.records and self._consumer.lag(tp) != 0:
                since = self._waiting_since.setdefault(tp, now)
                waiting |= (now - since) * 1000 < LAG_WAIT_MS_MAX
            else:
                self._waiting_since.pop(tp, None)
        return waiting

    async def _run_task(self, task: Task, pace: Pace) -> bool:
        """Runs all that the round gave to `task`; to stop before others have theirs would be to
        let it run ahead of them."""
        worked = False
        started = time.monotonic()
        while ran := task.process(pace.records, now_ms()):
            pace.ran(ran, (time.monotonic() - started) * 1000)
            worked = True
            self.progress.records += ran
            await asyncio.sleep(0)
            started = time.monotonic()
        task.tick(now_ms())
        return worked

    def _inputs(self, task: Task) -> tuple[TopicPartition, ...]:
        return self._partitions[TaskId(task.sub_topology.id, task.partition)]

    async def _send(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self.progress.records_out += len(output.columns) - output.markers
            self._upkeep.sends(output)
            await self._committer.send(output)

    # Commit and assignment

    async def _commit(self) -> None:
        """Commits what all tasks have made, with the offsets that it came from."""
        commits: list[tuple[Task, TaskCommit]] = []
        for task in self._tasks.values():
            commit = task.commit()
            await self._send(commit.outputs)
            commits.append((task, commit))
        changes = [(task.partition, output) for task, each in commits for output in each.changelog]
        offsets = dict(entry for task, each in commits for entry in self._offsets(task, each))
        moved = {tp: at for tp, at in offsets.items() if self._committed.get(tp) != at}
        self.progress.commits += await self._committer.commit(changes, offsets, moved)
        self._committed |= moved
        self._checkpoint(commits)
        self._upkeep.committed(moved)

    def _checkpoint(self, commits: Iterable[tuple[Task, TaskCommit]]) -> None:
        """Lets state on disk follow the commit that went through."""
        for task, commit in commits:
            topics = (output.topic for output in commit.changelog)
            ends = {
                t: self._committer.end_offset(TopicPartition(t, task.partition)) for t in topics
            }
            task.checkpoint({topic: end for topic, end in ends.items() if end is not None})
        self._memory.enforce(self._tasks.values())

    def _offsets(
        self, task: Task, commit: TaskCommit
    ) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        """Where each input goes on: behind the last record, and where none waits behind what the
        consumer has passed, so that markers of transactions are no lag."""
        for tp in self._inputs(task):
            offset = commit.offsets.get(tp.topic)
            if not self._inboxes[tp].records and not task.buffered(tp.topic):
                position = self._consumer.position(tp)
                offset = offset if position is None else position
            if offset is not None:
                yield tp, OffsetAndMetadata(offset)

    async def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commits while the group still waits; if it no longer does, drops the state, now ahead.

        Tasks that come back to this member in the next assignment need no restoring.
        """
        if self._is_over:
            return
        try:
            await self._commit()
            self._suspended = self._tasks
        except (ApiError, BrokerUnavailable):
            await self._committer.abort()
            _close(self._tasks.values())
            self._suspended = {}
        self._let_go()

    async def _on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drops everything: others may have these tasks already."""
        await self._committer.abort()
        _close([*self._suspended.values(), *self._tasks.values()])
        self._suspended = {}
        self._assignor.owned = frozenset()
        self._let_go()

    def _let_go(self) -> None:
        self._tasks, self._inboxes = {}, {}
        self._committed, self._waiting_since, self._received_at = {}, {}, {}
        self._has_assignment = False

    async def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Makes and restores the tasks that are new here, drops those that went elsewhere."""
        self._partitions = self._by_task(partitions)
        self._inboxes = {tp: Inbox(self.config.buffered_records_max) for tp in partitions}
        kept = {t: task for t, task in self._suspended.items() if t in self._partitions}
        _close(task for t, task in self._suspended.items() if t not in kept)
        wanted = sorted(self._partitions.keys() - kept.keys())
        places = await self._places.open(map(str, wanted))
        new = {
            task_id: Task(
                self._sub_topologies[task_id.sub_topology],
                task_id.partition,
                self._registry,
                partition_counts=self._partitions_of,
                drops=self.progress.drops,
                limits=self._upkeep.limits,
                flows=self._flows,
                place=places[str(task_id)],
            )
            for task_id in wanted
        }
        self._suspended = kept | new  # until they are restored
        await self._abort_orphans()
        committed = await self._consumer.committed(partitions)  # before the changelogs' ends
        self.progress.records_restored += await restore_tasks(
            self._client, new.values(), lambda: self.is_stopping, time.monotonic, now_ms
        )
        if self.is_stopping:  # perhaps before all was restored
            return
        self._skip_to_the_end(tp for tp in partitions if committed[tp] is None)
        self._tasks, self._suspended = dict(sorted((kept | new).items())), {}
        self._assignor.owned = frozenset(self._tasks)
        self._has_assignment = True

    async def _abort_orphans(self) -> None:
        """As the leader, ends what workers that are gone have left open."""
        living, self._assignor.living = self._assignor.living, None
        if living is not None and self._assignor.transactional_id is not None:
            name = self.plan.application_id
            for orphan in await abort_orphans(self._client, name, living):
                log.info("%s: aborted the open transaction of %s, which is gone", name, orphan)

    def _by_task(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TaskId, tuple[TopicPartition, ...]]:
        """The partitions of each task; TopologyError for a task that has no place for its state,
        or for a topic that this topology does not read."""
        found: dict[TaskId, list[TopicPartition]] = {}
        for tp in partitions:
            if tp.topic not in self._sub_topology_of:
                raise TopologyError(
                    f"the group gives this worker {tp}, which its topology does not read: another "
                    f"topology runs as {self.plan.application_id!r}"
                )
            sub = self._sub_topologies[self._sub_topology_of[tp.topic]]
            for changelog in sub.changelogs:
                if tp.partition >= self._partitions_of[changelog.name]:
                    raise TopologyError(
                        f"{tp.topic!r} has more partitions than the internal topic "
                        f"{changelog.name!r}, which keeps the state of "
                        f"{self._partitions_of[changelog.name]}: use another application id, or "
                        "`kafkalite-streams reset`"
                    )
            found.setdefault(TaskId(sub.id, tp.partition), []).append(tp)
        return {task_id: tuple(tps) for task_id, tps in found.items()}

    def _skip_to_the_end(self, uncommitted: Iterable[TopicPartition]) -> None:
        """A source that starts at the latest record does so where nothing was ever committed."""
        for tp in uncommitted:
            source = self._sub_topologies[self._sub_topology_of[tp.topic]].source_of(tp.topic)
            if source is not None and source.offset_reset == "latest":
                self._consumer.seek_to_end([tp])

    async def _is_caught_up(self) -> bool:
        """Whether the group has read every input to its end and this member has sent all of it."""
        await self._commit()
        partitions = [
            TopicPartition(topic, p)
            for topic in self._sub_topology_of
            for p in range(self._partitions_of[topic])
        ]
        others = [tp for tp in partitions if tp not in self._inboxes]
        committed = await self._consumer.committed(others) if others else {}
        # Ends come last: what follows from a committed record is in the log by then, though
        # perhaps in a transaction whose markers are still on their way.
        internal = [tp for tp in partitions if tp.topic in self._internal_topics]
        ends = await self._consumer.end_offsets(set(partitions).difference(internal))
        ends |= await log_ends(self._client, internal)
        self._ends = dict(ends)
        for tp, end in ends.items():
            entry = committed.get(tp)
            position = (
                self._consumer.position(tp) if tp in self._inboxes else entry and entry.offset
            )
            if (position or 0) < end:
                return False
        if any(inbox.records for inbox in self._inboxes.values()):
            return False
        return not await self._tell_of_rest()

    async def _tell_of_rest(self) -> bool:
        """Lets tasks tell their readers that they are idle; whether any had something to tell."""
        self._note_idle(self._tasks.values())
        outputs = [output for task in self._tasks.values() for output in task.drain()]
        await self._send(outputs)
        return bool(outputs)


def _close(tasks: Iterable[Task]) -> None:
    """Lets the state of tasks go that are no longer this worker's."""
    for task in tasks:
        task.close()
