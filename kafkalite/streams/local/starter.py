"""From an assignment to a task that runs: made, sent to its offsets, restored.            [IO]

    prepare ──> made, offsets known ──> restore ──> advance ... advance ──> take
            └─> made, a standby ──────> follow ───> advance ... promote, or drop

A task that is promoted is not made anew: it restores what it has not followed yet.

Nothing here keeps the worker's loop: tasks are prepared in the background and restored in turns.

Owns   tasks that do not run yet, and their restores, of which a few go on at a time; standbys.
Never  sends a worker to offsets that are older than its state: see `_prepare`.
Fails  from `prepared` and `advance`, with what the broker or a changelog's row made go wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.assignor import TaskAssignor
from kafkalite.streams.local.committer import Committer, abort_orphans
from kafkalite.streams.local.compile import SubTopology
from kafkalite.streams.local.following import Follower
from kafkalite.streams.local.placement import TaskId
from kafkalite.streams.local.replay import Replay
from kafkalite.streams.local.restore import Restore, look_up
from kafkalite.streams.local.state.backend import Place
from kafkalite.streams.local.state.directory import Places
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.task_manager import Life
from kafkalite.streams.local.task_thread import TaskThread

log: Final = logging.getLogger(__name__)

REPORT_SECONDS: Final = 5.0
RESTORES_MAX: Final = 8  # at a time
BUDGET_MS: Final = 10  # of each, in a turn of the worker's loop


Preparing: TypeAlias = "asyncio.Task[Sequence[Life]]"


class MakeTask(Protocol):
    """Makes the task of a life, in the task thread."""

    def __call__(self, life: Life, place: Place, /) -> Task:
        """A task without state."""


class TaskStarter:
    """Starts the tasks of one membership of the group."""

    def __init__(
        self,
        application_id: str,
        client: Client,
        consumer: Consumer,
        committer: Committer,
        assignor: TaskAssignor,
        thread: TaskThread,
        places: Places,
        make_task: MakeTask,
        sub_topology_of: Callable[[TopicPartition], SubTopology],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._application_id = application_id
        self._client = client
        self._consumer = consumer
        self._committer = committer
        self._assignor = assignor
        self._thread = thread
        self._places = places
        self._make_task = make_task
        self._sub_topology_of = sub_topology_of
        self._clock = clock
        self._now_ms = now_ms
        self._wanted: set[Life] = set()
        self._made: dict[Life, tuple[Task, list[Replay]]] = {}
        self._promoted: dict[Life, Task] = {}  # standbys until then, to be prepared
        self._follower = Follower(client, clock, now_ms)
        self._queue: list[Life] = []  # to be restored
        self._restores: dict[Life, Restore] = {}
        self._behind: dict[Life, int] = {}
        self._began: dict[Life, float] = {}  # to be restored, at
        self.restore_seconds: dict[TaskId, float] = {}  # of each task's last restore
        self._records = 0
        self._preparing: set[Preparing] = set()
        self._following: set[Preparing] = set()  # the same of standbys
        self._reported_at = clock()

    def prepare(self, lives: Sequence[Life]) -> None:
        """Begins to make these tasks, and to find the offsets that they go on from."""
        self._wanted.update(lives)
        are_standbys = lives[0].is_standby
        preparing = self._make(lives) if are_standbys else self._prepare(lives)
        (self._following if are_standbys else self._preparing).add(asyncio.create_task(preparing))

    def prepared(self) -> list[Life]:
        """The tasks that have been prepared since the last call. Raises what made one fail."""
        return _take_done(self._preparing)

    def restore(self, lives: Collection[Life]) -> None:
        """Begins to restore tasks that are prepared."""
        self._queue += lives

    def follow(self, lives: Collection[Life]) -> None:
        """Begins to read changelogs of standbys that are prepared."""
        for life in lives:
            self._follower.add(life, self._made[life][1])

    def promote(self, standby: Life, life: Life) -> None:
        """What the standby has is the other life's, which is prepared next."""
        self._follower.remove(standby)
        self._wanted.discard(standby)
        if standby in self._made:  # else it was only about to be made
            self._promoted[life], _ = self._made.pop(standby)

    @property
    def lags(self) -> Mapping[TaskId, int]:
        """How many records each standby is behind."""
        return self._follower.lags

    @property
    def restoring(self) -> Mapping[TaskId, int]:
        """The tasks that are restored or wait for it, with the offsets to go as far as known."""
        lives = [*self._restores, *self._queue]
        return {life.task_id: self._behind.get(life, 0) for life in lives}

    @property
    def is_restoring(self) -> bool:
        """Whether `advance` has something to do at once."""
        return bool(self._queue or self._restores)

    @property
    def copies(self) -> Mapping[TaskId, tuple[Task, int]]:
        """The tasks that do not run here but have state, with how many records of their changelogs
        that lacks. For the worker's loop."""
        lags = self._follower.known_lags
        found = {
            life.task_id: (task, lags[life.task_id])
            for life, (task, _) in self._made.items()
            if life.is_standby and life.task_id in lags
        }
        return found | {life.task_id: (self._made[life][0], n) for life, n in self._behind.items()}

    def prepared_standbys(self) -> list[Life]:
        """The standbys that have been prepared since the last call, as `prepared`."""
        return _take_done(self._following)

    async def read_on(self) -> bool:
        """Takes standbys a bit further; whether there was something to read."""
        return await self._follower.step(BUDGET_MS)

    async def advance(self) -> list[Life]:
        """Restores a bit; the tasks that are done."""
        if not self.is_restoring:
            self._reported_at = self._clock()
            return []
        done = [life for life in self._queue if not self._made[life][1]]
        self._queue = [life for life in self._queue if life not in done]
        while self._queue and len(self._restores) < RESTORES_MAX:
            life = self._queue.pop(0)
            _, replays = self._made[life]
            self._began[life] = self._clock()
            self._restores[life] = Restore(self._client, replays, self._clock, self._now_ms)
        lives = list(self._restores)
        restores = [self._restores[life] for life in lives]
        before = sum(restore.records for restore in restores)
        told = await asyncio.gather(*(restore.step(BUDGET_MS) for restore in restores))
        self._records += sum(restore.records for restore in restores) - before
        self._behind = {life: each.behind for life, each in zip(lives, told, strict=True)}
        done += [life for life, each in zip(lives, told, strict=True) if each.is_over]
        for life in done:
            if life in self._began:
                self.restore_seconds[life.task_id] = self._clock() - self._began[life]
            await self._end_restore(life)
        self._report()
        return done

    def take_count(self) -> int:
        """How many records were restored since the last call."""
        count, self._records = self._records, 0
        return count

    def take(self, life: Life) -> Task:
        """The task, which runs from now on."""
        self._wanted.discard(life)
        task, _ = self._made.pop(life)
        return task

    async def drop(self, life: Life) -> None:
        """The task is wanted no more."""
        self._wanted.discard(life)
        if life in self._queue:
            self._queue.remove(life)
        await self._end_restore(life)
        self._follower.remove(life)
        if life in self._promoted:
            self._promoted.pop(life).close()
        if life in self._made:
            self._made.pop(life)[0].close()

    async def close(self) -> None:
        """Nothing more is started."""
        under_way = [*self._preparing, *self._following]
        for preparing in under_way:
            preparing.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for life in [*self._made, *self._promoted]:
            await self.drop(life)
        await self._follower.close()

    async def _end_restore(self, life: Life) -> None:
        self._behind.pop(life, None)
        self._began.pop(life, None)
        if (restore := self._restores.pop(life, None)) is not None:
            await restore.close()

    def _report(self) -> None:
        """Says how far it is, now and then."""
        now = self._clock()
        if not self.is_restoring:
            self._reported_at = now
        elif now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            names = ", ".join(str(life) for life in [*self._restores, *self._queue])
            behind = sum(self._behind.values())
            log.warning(
                "%s: restoring tasks %s: %d offsets to go", self._application_id, names, behind
            )

    async def _prepare(self, lives: Sequence[Life]) -> Sequence[Life]:
        """The order counts. First all that dead workers and this one left open is ended; then
        offsets are fetched, which waits for those in doubt; then the ends of changelogs are."""
        await self._committer.start()
        await self._abort_orphans()
        partitions = [tp for life in lives for tp in life.partitions]
        committed = await self._consumer.committed(partitions)
        made = await self._make(lives)
        for life in made:
            for tp in life.partitions:
                self._seek(tp, committed[tp])
        return made

    async def _make(self, lives: Sequence[Life]) -> Sequence[Life]:
        """Makes tasks, but for those that were standbys, and finds out what they have to read;
        those that are still wanted then. For a standby this is all: it waits for no commit."""
        await self._thread.submit(lambda: None)  # tasks that end let their state go first
        tasks = {life: task for life in lives if (task := self._promoted.pop(life, None))}
        new = [life for life in lives if life not in tasks]
        places: Mapping[str, Place] = {}
        try:
            places = await self._places.open([str(life) for life in new])
            made = await self._thread.submit(
                lambda: [self._make_task(life, places[str(life)]) for life in new]
            )
            tasks |= zip(new, made, strict=True)
            replays = {
                life: await look_up(self._client, [task], self._now_ms())
                for life, task in tasks.items()
            }
        except BaseException:
            for place in places.values():
                place.close()
            for task in tasks.values():
                task.close()
            raise
        for life in lives:
            if life in self._wanted:
                self._made[life] = tasks[life], replays[life]
            else:
                tasks[life].close()
        return [life for life in lives if life in self._wanted]

    def _seek(self, tp: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """To where the last commit ended, or where the source begins."""
        source = self._sub_topology_of(tp).source_of(tp.topic)
        if committed is not None:
            self._consumer.seek(tp, committed)
        elif source is not None and source.offset_reset == "latest":
            self._consumer.seek_to_end([tp])
        else:
            self._consumer.seek_to_beginning([tp])

    async def _abort_orphans(self) -> None:
        """As the leader, ends what workers that are gone have left open."""
        living, self._assignor.living = self._assignor.living, None
        if living is None or self._assignor.transactional_id is None:
            return
        name = self._application_id
        for orphan in await abort_orphans(self._client, name, living):
            log.info("%s: aborted the open transaction of %s, which is gone", name, orphan)


def _take_done(preparing: set[Preparing]) -> list[Life]:
    done = [each for each in preparing if each.done()]
    preparing.difference_update(done)
    return [life for each in done for life in each.result()]
