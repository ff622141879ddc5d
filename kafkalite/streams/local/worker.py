"""The worker: a member of the topology's consumer group that runs the tasks it is given.  [IO]

One turn of its loop: poll columns into inboxes, run a round of tasks, send what they made, restore
a bit of what is new here. At the end of a commit interval outputs, changelogs and offsets go into
the log together (commits.py). Tasks run in a thread of their own, and the worker polls meanwhile,
so that the group rebalances however long a user function takes.

    poll ──> assigned, revoked, lost ──> TaskManager ──> effects ──> TaskStarter, Rounds, Committer
      └────> records ──> Rounds ──> outputs ──> Committer

A worker that was fenced, evicted or cut off throws its tasks away, begins them anew from the last
commit, and joins its group again.

Owns   one client, the task thread, this member's tasks; a consumer and a committer for as long as
       the group lets it be one member.
Never  writes for a task that the group has taken away; polls while it commits.
Fails  with the first error of a user function, a serde, or of a broker that another try would not
       mend; what was not committed is read again by the next run.
Source KIP-62, KIP-429 (cooperative rebalancing), KIP-447 (commit cycle).
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, KafkaliteError, TopologyError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.streams.local.assignor import TaskAssignor, tasks_of
from kafkalite.streams.local.call_loop import CallLoop
from kafkalite.streams.local.caught_up import is_behind, look_at_ends
from kafkalite.streams.local.commit_times import CommitTimes
from kafkalite.streams.local.commits import Commits, Done
from kafkalite.streams.local.committer import TOPIC_GONE, Guarantee, is_passing, make_committer
from kafkalite.streams.local.compile import SubTopology, compile_topology, flows_of
from kafkalite.streams.local.global_tables import GlobalTables
from kafkalite.streams.local.holdings import Holdings
from kafkalite.streams.local.membership import (
    Refused,
    find_transactional_id,
    make_consumer,
    next_config,
)
from kafkalite.streams.local.overview import Overview
from kafkalite.streams.local.polling import Polling, observed
from kafkalite.streams.local.progress import Progress
from kafkalite.streams.local.queries import Queries
from kafkalite.streams.local.rounds import Clocks, Rounds
from kafkalite.streams.local.settings import COMMIT_INTERVAL_MS, DEFAULTS, WorkerConfig
from kafkalite.streams.local.starter import TaskStarter
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.directory import Places
from kafkalite.streams.local.state.limit import MemoryLimit
from kafkalite.streams.local.task import Output, Task
from kafkalite.streams.local.task_inputs import TaskInputs
from kafkalite.streams.local.task_manager import (
    RUNNING,
    SUSPENDED,
    Abort,
    Close,
    Commit,
    Effects,
    Follow,
    Life,
    Prepare,
    Promote,
    Restore,
    Run,
    TaskManager,
)
from kafkalite.streams.local.task_thread import TaskThread
from kafkalite.streams.local.topics import resolve_topics, wait_for_topics
from kafkalite.streams.local.upkeep import Upkeep
from kafkalite.streams.local.watermarks import Flow
from kafkalite.streams.plan import Plan

__all__ = ["Progress", "Worker", "WorkerConfig", "now_ms"]

R = TypeVar("R")

log: Final = logging.getLogger(__name__)

POLL_MS: Final = 100
CAUGHT_UP_CHECK_MS: Final = 50
METADATA_MAX_AGE_MS: Final = 30_000  # how late partitions that are added may be noticed
ASK_SECONDS: Final = 10.0  # between two rebalances that warm-ups ask for
REJOIN_SECONDS: Final = 1.0  # before a worker that the group has refused joins as another member


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
        config: WorkerConfig = DEFAULTS,
    ) -> None:
        self.plan = plan
        self.config = config
        self.progress = Progress(time.monotonic)
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
        self._flows: dict[str, Flow] = {}
        self._thread = TaskThread(_spawn, time.monotonic)
        drops, clocks = self.progress.drops, Clocks(time.monotonic, now_ms)
        self._globals = GlobalTables(
            plan, self._client, self._places, registry, self._thread, drops, clocks
        )
        self._rounds = Rounds(
            subs,
            self._in_thread,
            self._send,
            clocks,
            MemoryLimit(config.state_memory_bytes if config.state_dir else None),
            self._thread.reads,
            buffered_records_max=config.buffered_records_max,
            idle_ms=config.idle_ms,
        )
        self._polling = Polling(
            plan.application_id, self._thread, self._rounds.receive, config.max_poll_interval_ms
        )
        self._calls = CallLoop(partial(_spawn, name="kafkalite-calls"), self._polling.wake)
        self.loop: asyncio.AbstractEventLoop | None = None  # in which it runs
        self.queries = Queries(
            plan.application_id,
            subs,
            registry,
            self._client,
            self._thread,
            lambda: self._rounds.running,
            lambda: self._inputs,
            lambda: self._starter.copies if self._has_assignment else {},
            self._globals,
        )
        self._inputs = TaskInputs(plan.application_id, subs, {}, {})  # until topics are known
        self._commits = Commits(self._rounds, self._polling, self._send, self._upkeep.committed)
        self._forget_membership()
        self.is_stopping = False
        self._comes_back = False

    def _forget_membership(self) -> None:
        """What begins anew with every membership."""
        self._manager = TaskManager()
        self._has_assignment = False  # perhaps of no task
        self._is_over = False
        self._ask_at = 0.0  # when the group may be asked for the tasks of warm-ups

    def stop(self, *, comes_back: bool = False) -> None:
        """Asks the worker to commit, leave its group and return from `run`.

        A static member that `comes_back` does not leave: its tasks wait for it until its session
        ends, and the others go on undisturbed.
        """
        self.is_stopping = True
        self._comes_back = comes_back

    def overview(self) -> Overview | None:
        """The worker as it is now, for its own loop to ask; None while it is in no group."""
        if not self._has_assignment:
            return None
        tasks = self._rounds.running
        lags = {tp: self._consumer.lag(tp) for tp in self._rounds.inboxes}
        starter, is_settled = self._starter, self._manager.is_settled
        return Overview(
            self.progress, tasks, lags, starter.restoring, starter.lags,
            starter.restore_seconds, is_settled,
        )  # fmt: skip

    async def run(self, *, until_caught_up: bool = False) -> Progress:
        """Runs until stopped, or until every input of the whole group is read to its end."""
        self.loop = asyncio.get_running_loop()
        async with self._client:
            await self._prepare_once_brokers_stay()
            identity = self._places.take_identity(self._client.random)
            self._thread.start()
            try:
                if identity is not None and self.config.group_instance_id is None:
                    name = f"{self.plan.application_id}-{identity.name}"
                    self.config = replace(self.config, group_instance_id=name)
                await self._globals.read(lambda: self.is_stopping)
                await self._be_members(until_caught_up)
            finally:
                await self._globals.close()
                await self._thread.close()
                await self._calls.close()
                if identity is not None:
                    identity.close()
        return self.progress

    async def _be_members(self, until_caught_up: bool) -> None:
        """One membership after the other, until the run is over."""
        done = False
        while not (self.is_stopping or done):  # perhaps before every topic existed
            try:
                done = await self._be_member(until_caught_up)
            except Refused as error:
                log.warning("%s: %s; it joins again", self.plan.application_id, error)
                await asyncio.sleep(REJOIN_SECONDS)

    # Before and between memberships

    async def _prepare_once_brokers_stay(self) -> None:
        """Brokers that answered once and then went away are waited for."""
        while not self.is_stopping:
            try:
                await self._prepare()
                return
            except BrokerUnavailable as error:
                log.warning("%s: %s; it starts again", self.plan.application_id, error)
                await asyncio.sleep(REJOIN_SECONDS)

    async def _prepare(self) -> None:
        sub_topologies = list(self._sub_topologies.values())
        async with Admin(self._client) as admin:
            await wait_for_topics(
                admin, sub_topologies, self.config.on_missing_topics, lambda: self.is_stopping
            )
            if self.is_stopping:
                return
            await self._upkeep.check()
            self._sources, partitions_of = await resolve_topics(
                admin, sub_topologies, self._bootstrap_servers
            )
            await self._upkeep.begin()
        self._inputs = TaskInputs(
            self.plan.application_id, sub_topologies, self._sources, partitions_of
        )
        self._flows = flows_of(sub_topologies, tasks_of(self._sources, partitions_of))

    async def _new_membership(self) -> None:
        """A consumer that will join the group, and its committer."""
        self._forget_membership()
        config = self.config
        wanted = (t for sub in self._sub_topologies.values() for t in sub.source_topics)
        name = await find_transactional_id(
            self._client,
            self.plan.application_id,
            config.group_instance_id,
            config.processing_guarantee,
            self._bootstrap_servers,
        )
        self._holdings = Holdings(
            self._client,
            self._places,
            self._inputs.changelogs,
            lambda: self._starter.lags,
            time.monotonic,
        )
        await self._holdings.look()
        self._assignor = TaskAssignor(
            self._sources,
            [topic for topic in wanted if isinstance(topic, str)],
            name,
            self._holdings.knowledge,
            config.placement_rules,
            config.address,
        )
        self._consumer = make_consumer(
            self._client, self.plan.application_id, config, self._assignor
        )
        self._consumer.subscribe(
            self._inputs.topics,
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
            on_lost=self._on_lost,
        )
        best: Guarantee = "exactly_once" if name else "at_least_once"
        guarantee = config.processing_guarantee or best
        interval_ms = config.commit_interval_ms
        self._commit_interval_ms = (
            COMMIT_INTERVAL_MS[guarantee] if interval_ms is None else interval_ms
        )
        self._committer = make_committer(
            self._client,
            self._consumer,
            name,
            guarantee=guarantee,
            timeout_ms=config.max_poll_interval_ms,
            is_known=config.group_instance_id is not None,
        )
        self._rounds.begin(self._consumer)
        self._polling.begin(self._consumer)
        self._commits.begin(self._committer)
        self._starter = TaskStarter(
            self.plan.application_id,
            self._client,
            self._consumer,
            self._committer,
            self._assignor,
            self._thread,
            self._places,
            self._new_task,
            self._inputs.reader,
            time.monotonic,
            now_ms,
        )

    async def _be_member(self, until_caught_up: bool) -> bool:
        """One membership of the group; whether the run is over with it."""
        await self._new_membership()
        try:
            async with self._consumer:
                try:
                    await self._loop(until_caught_up)
                    while not await self._finish():
                        await self._loop(until_caught_up)
                    await self._upkeep.close(finish=True)
                finally:
                    self._is_over = True  # nothing is left to commit when the group lets go
                    await self._upkeep.close(finish=False)
                    await self._let_go()
                    await self._consumer.close(leave_group=None if self._comes_back else True)
        except Refused as error:
            self.config = next_config(self.config, error)
            raise
        return True

    async def _finish(self) -> bool:
        """The last commit; whether that was the end.

        What the group does not take of a worker that is to stop, others do again.
        """
        try:
            await self._commit(is_last=True)
        except ApiError as error:
            if not self.is_stopping or not is_passing(error):
                await self._begin_anew(error)
                return False
            words = "%s: %s; what it has not committed is left to the group"
            log.warning(words, self.plan.application_id, error)
        return True

    async def _let_go(self) -> None:
        """Throws away the rest of a membership."""
        await self._holdings.close()
        await self._starter.close()
        for life in list(self._rounds.tasks):
            self._stop_task(life)
        await self._committer.close()

    # The loop

    async def _loop(self, until_caught_up: bool) -> None:
        checked_at = time.monotonic()
        commits = CommitTimes(self._commit_interval_ms / 1000, checked_at)
        worked, has_followed = 0, False
        while not self.is_stopping:
            try:
                # With `until_caught_up` the loop looks for the end at once where nothing is left.
                goes_on = worked and (until_caught_up or self._rounds.has_records)
                is_busy = goes_on or has_followed or self._starter.is_restoring
                now = time.monotonic()
                wait_ms = POLL_MS if self._rounds.has_calls else commits.wait_ms(now, POLL_MS)
                await self._polling.poll(0 if is_busy or self._rounds.is_released else wait_ms)
                worked = await self._rounds.run()
                self.progress.records += worked
                commits.processed(worked)
                await self._start_tasks()
                has_followed = await self._follow()
                self._upkeep.turn()
                self._globals.check()
                self._holdings.turn()
                await self._commit_if_due(commits)
                at = time.monotonic()
                idle = until_caught_up and not worked and self._has_assignment
                if idle and (at - checked_at) * 1000 >= CAUGHT_UP_CHECK_MS:
                    checked_at = at
                    if await self._is_caught_up():
                        return
            except (ApiError, BrokerUnavailable) as error:
                await self._begin_anew(error)

    async def _commit_if_due(self, times: CommitTimes) -> None:
        if times.due_in(time.monotonic()) > 0 and not self._rounds.has_too_much_state:
            return
        if self._consumer.is_rebalancing:
            times.put_off(time.monotonic())
            return
        if await self._rounds.prepare():
            done = await self._commit(goes_on=not self._rounds.has_too_much_state)
            times.committed(time.monotonic(), wrote=done.wrote)
            times.processed(done.worked)

    async def _in_thread(self, call: Callable[[], R]) -> R:
        return await self._polling.in_thread(call)

    async def _start_tasks(self) -> None:
        """Takes tasks that are new here a step further."""
        await self._do(self._manager.tick(time.monotonic() * 1000))
        await self._do(self._manager.prepared(self._starter.prepared()))
        for life in await self._starter.advance():
            await self._do(self._manager.restored(life))
        self.progress.records_restored += self._starter.take_count()

    async def _follow(self) -> bool:
        """Takes standbys a step further; whether there was something to read."""
        try:
            await self._do(self._manager.prepared(self._starter.prepared_standbys()))
            had_some = await self._starter.read_on()
        except (ApiError, BrokerUnavailable) as error:
            if not is_passing(error):
                raise
            log.warning("%s: %s; standbys restart", self.plan.application_id, error)
            await self._do(self._manager.following_failed(time.monotonic() * 1000))
            return False
        self._ask_for_warm_tasks()
        return had_some

    def _ask_for_warm_tasks(self) -> None:
        """Asks for a rebalance once the state of a warm-up is here."""
        lags, acceptable = self._starter.lags, self.config.acceptable_recovery_lag
        warm = [t for t in self._assignor.following.warmups if lags.get(t, math.inf) <= acceptable]
        if warm and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_SECONDS
            names = ", ".join(map(str, sorted(warm)))
            self._consumer.enforce_rebalance(f"has the state of tasks {names}")

    async def _begin_anew(self, error: KafkaliteError) -> None:
        """Throws all tasks away, and begins them anew from the last commit after a pause."""
        if not is_passing(error):
            if isinstance(error, ApiError) and error.error_code in TOPIC_GONE:
                with suppress(ApiError, BrokerUnavailable):
                    there = await self._client.refresh(sorted(self._assignor.required))
                    self._assignor.refuse_gone(there.topics)
            raise error
        log.warning(
            "%s: %s; its tasks restart from their last commit", self.plan.application_id, error
        )
        await self._do(self._manager.failed(time.monotonic() * 1000))

    # Results

    async def _send(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self.progress.records_out += len(output.columns) - output.markers
            self._upkeep.sends(output)
            await self._committer.send(output)

    async def _commit(self, *, is_last: bool = False, goes_on: bool = False) -> Done:
        """Commits what all tasks have made, with the offsets that it came from. With `goes_on`
        tasks have a round meanwhile.

        Not while a join is under way: its generation would be refused before it is known here.
        """
        if self._consumer.is_rebalancing and not is_last:
            return Done(wrote=False)
        if is_last:
            await self._rounds.finish_calls()
        began = time.monotonic()
        done = await self._commits.commit(self._manager.lives(RUNNING, SUSPENDED), goes_on=goes_on)
        self.progress.commits += done.wrote
        self.progress.commit_seconds += (time.monotonic() - began) * done.wrote
        self.progress.records += done.worked
        await self._do(self._manager.committed())
        return done

    # What the group decides, and what follows

    async def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions that are new here; what this member had stays as it was."""
        tasks = self._inputs.by_task(partitions)
        self._consumer.pause(partitions)  # until their tasks run
        if grown := tasks.keys() & self._manager.owned:  # a task whose inputs have grown
            tasks |= {
                life.task_id: (*life.partitions, *tasks[life.task_id])
                for life in self._manager.lives(RUNNING)
                if life.task_id in grown
            }
            await self._do(self._manager.revoked(grown))
        await self._do(self._manager.assigned(tasks))
        following = self._assignor.following
        wanted = following.standbys | following.warmups
        await self._do(self._manager.follow(wanted, following.pending))
        self._has_assignment = True

    async def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions that go to another member, which waits until they are let go."""
        if not self._is_over:
            gone = {self._inputs.task_of(tp) for tp in partitions} & self._manager.owned
            await self._do(self._manager.revoked(gone))

    async def _on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The group has gone on without this member: others may have its tasks already."""
        if not self._is_over:
            await self._do(self._manager.lost())

    async def _do(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Prepare(lives):
                    self._starter.prepare(lives)
                case Follow(lives):
                    self._starter.follow(lives)
                case Promote(standby, life):
                    self._starter.promote(standby, life)
                case Restore(lives):
                    self._starter.restore(lives)
                case Run(life):
                    self._rounds.add(life, self._starter.take(life))
                case Commit():
                    await self._commit_or_begin_anew()
                case Abort():
                    await self._committer.abort()
                case Close(life):
                    await self._close(life)

    async def _commit_or_begin_anew(self) -> None:
        try:
            await self._commit(is_last=True)
        except (ApiError, BrokerUnavailable) as error:
            await self._begin_anew(error)

    async def _close(self, life: Life) -> None:
        self._stop_task(life)
        await self._starter.drop(life)
        self._commits.forget(life.partitions)
        here = self._consumer.assignment
        self._consumer.pause([tp for tp in life.partitions if tp in here])

    def _stop_task(self, life: Life) -> None:
        """The task runs no more. Its state is let go behind the call that it may be in."""
        if (task := self._rounds.remove(life)) is not None:
            self._thread.submit(task.close).add_done_callback(observed)

    def _new_task(self, life: Life, place: Place) -> Task:
        return Task(
            self._sub_topologies[life.task_id.sub_topology],
            life.task_id.partition,
            self._registry,
            partition_counts=self._inputs.partitions_of,
            drops=self.progress.drops,
            limits=self._upkeep.limits,
            flows=self._flows,
            place=place,
            global_stores=self._globals.stores,
            calls=self._calls.open,
            counts_passed=self.config.address is not None,  # somebody may ask for rates
        )

    async def _is_caught_up(self) -> bool:
        """Whether the group has read every input to its end and this member has sent all of it."""
        mine = self._rounds.inboxes
        if is_behind(self._consumer, mine) or not await self._rounds.are_calls_over():
            return False
        await self._commit()
        ends = await look_at_ends(self._client, self._consumer, self._inputs, mine)
        self._rounds.ends = ends.offsets
        if not ends.are_reached or self._rounds.has_records or not self._manager.is_settled:
            return False
        return not await self._rounds.rest() and not self._rounds.has_calls


def _spawn(run: Callable[[], None], name: str = "kafkalite-tasks") -> None:
    threading.Thread(target=run, name=name, daemon=True).start()
