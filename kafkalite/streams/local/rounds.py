"""Rounds: fetched records into tasks, each task a bit, those that must keep together as one. [IO]

    receive ──> inboxes ──> a round, in the task thread ──> outputs
                            every task of a sub-topology: what is idle, records, wall clock

Owns   the tasks that run, the inboxes of their partitions, and the pace of each sub-topology.
Never  keeps the thread longer than a slice of each task's records; runs a task that was removed.
Fails  with the first error of a user function or a serde.
Source KIP-695 (waiting for inputs that lag).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.streams.local.alignment import NO_LIMIT, Inbox, Pace
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.compile import SubTopology
from kafkalite.streams.local.reads import ASKED_SLICE_MS, Reads
from kafkalite.streams.local.state.limit import MemoryLimit
from kafkalite.streams.local.task import Output, Task, TaskCommit, join
from kafkalite.streams.local.task_manager import Life

R = TypeVar("R")

LAG_WAIT_MS_MAX: Final = 5_000  # a partition that lags and gives nothing holds others no longer
CALLS_SECONDS_MAX: Final = 5.0  # a stop, or another member, waits for calls no longer
CALLS_LOOK_SECONDS: Final = 0.005  # how often it looks
REST_SECONDS: Final = 0.01  # how often tasks without records look at the clock, at most


class InThread(Protocol):
    """Runs a call in the task thread; the event loop goes on meanwhile."""

    def __call__(self, call: Callable[[], R], /) -> Awaitable[R]:
        """The call's result."""


class Source(Protocol):
    """What rounds need of a consumer."""

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset a poll gives."""

    def lag(self, partition: TopicPartition) -> int | None:
        """How many offsets are still to come."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls give nothing of these."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The monotonic clock in seconds, and the wall clock in epoch milliseconds."""

    monotonic: Callable[[], float]
    wall_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one task gets to do in a round."""

    life: Life
    task: Task
    idle: Mapping[str, bool]  # by topic
    fetched: Sequence[tuple[str, Columns]]


class Rounds:
    """The running tasks of one worker. `send` takes what they make."""

    def __init__(
        self,
        subs: Sequence[SubTopology],
        in_thread: InThread,
        send: Callable[[Iterable[Output]], Awaitable[None]],
        clocks: Clocks,
        memory: MemoryLimit,
        reads: Reads,
        *,
        buffered_records_max: int,
        idle_ms: int,
    ) -> None:
        self.tasks: dict[Life, Task] = {}
        self.running: Mapping[TaskId, Task] = {}  # never changed, but replaced: any thread reads it
        self.inboxes: dict[TopicPartition, Inbox] = {}
        self.ends: Mapping[TopicPartition, int] = {}  # up to which this worker runs, if it ends
        self._subs = subs
        self._in_thread = in_thread
        self._send = send
        self._clocks = clocks
        self._memory = memory
        self._reads = reads
        self._buffered_records_max = buffered_records_max
        self._idle_ms = idle_ms
        self._pace: dict[int, Pace] = defaultdict(Pace)  # by sub-topology
        self._waiting_since: dict[TopicPartition, float] = {}  # when a round first had to wait
        self._received_at: dict[TopicPartition, float] = {}
        self._calling: dict[Life, Task] = {}  # those with async functions
        self.is_released = False  # a commit is over, and tasks may process records again
        self._full: set[TopicPartition] = set()  # paused until their inboxes are low
        self._lives_of: dict[int, list[Life]] = defaultdict(list)  # by sub-topology
        self._looked_at: dict[int, float] = {}  # when the tasks of a sub-topology last had a turn

    def begin(self, consumer: Source) -> None:
        """A new membership: there are no tasks yet."""
        self._consumer = consumer

    def add(self, life: Life, task: Task) -> None:
        """From now on the task runs."""
        self.tasks[life] = task
        self.tasks = dict(sorted(self.tasks.items(), key=lambda entry: entry[0].task_id))
        for tp in life.partitions:
            self.inboxes[tp] = Inbox(self._buffered_records_max)
        if task.has_calls:
            self._calling[life] = task
        self._group_lives()
        self._consumer.resume(life.partitions)

    def remove(self, life: Life) -> Task | None:
        """The task runs no more; None if it did not."""
        if (task := self.tasks.pop(life, None)) is not None:
            self._calling.pop(life, None)
            self._group_lives()
            for tp in life.partitions:
                del self.inboxes[tp]
                self._full.discard(tp)
                self._waiting_since.pop(tp, None)
                self._received_at.pop(tp, None)
        return task

    def receive(self, partition: TopicPartition, columns: Columns) -> None:
        """Takes in fetched records; those of a partition that was revoked meanwhile are dropped."""
        inbox = self.inboxes.get(partition)
        if inbox is None:
            return
        inbox.put(columns)
        self._received_at[partition] = self._clocks.monotonic()
        if inbox.is_full:
            self._full.add(partition)
            self._consumer.pause([partition])

    @property
    def has_records(self) -> bool:
        """Whether records wait that no task has processed."""
        return any(inbox.records for inbox in self.inboxes.values()) or any(
            task.is_full for task in self._calling.values()
        )

    @property
    def has_calls(self) -> bool:
        """Whether calls of async functions are under way."""
        return any(task.in_flight for task in self._calling.values())

    async def prepare(self) -> bool:
        """Whether a commit may follow: see `Task.prepare`."""
        if not self._calling:
            return True
        tasks = list(self._calling.values())
        return await self._in_thread(lambda: all(list(map(Task.prepare, tasks))))

    async def are_calls_over(self) -> bool:
        """Whether no call is under way, nor follows from what waits for the commit."""
        return not self.has_calls and await self.prepare()

    async def finish_calls(self) -> None:
        """Waits until a commit may follow, but not for ever."""
        until = self._clocks.monotonic() + CALLS_SECONDS_MAX
        while not await self.prepare():
            if self._clocks.monotonic() > until:
                count = sum(task.in_flight for task in self._calling.values())
                words = f"{count} calls of async functions have not ended"
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, words)
            await asyncio.sleep(CALLS_LOOK_SECONDS)

    async def run(self) -> int:
        """One round; how many records it processed."""
        done = 0
        self.is_released = False
        for sub in self._subs:
            if (lives := self._lives_of.get(sub.id)) and (turns := self._turns(sub, lives)):
                done += await self._in_thread(partial(self._work, turns, self._pace[sub.id]))
                await self.send_made([turn.life for turn in turns])
        return done

    async def work(self) -> int:
        """As `run`, but nothing is sent: a commit of what was made before is under way."""
        done = 0
        for sub in self._subs:
            if (lives := self._lives_of.get(sub.id)) and (turns := self._turns(sub, lives)):
                done += await self._in_thread(partial(self._work, turns, self._pace[sub.id]))
        return done

    async def rest(self) -> bool:
        """Lets tasks tell their readers that they are idle; whether any had something to tell."""
        lives = list(self.tasks)
        turns = [Turn(life, self.tasks[life], self._idle(life), ()) for life in lives]
        await self._in_thread(partial(_note_idle, turns))
        return await self.send_made(lives)

    async def send_made(self, lives: Iterable[Life]) -> bool:
        """Sends what these tasks have made, if they still run; whether that was anything.

        What several tasks have for one topic goes out together.
        """
        running = [self.tasks[life] for life in lives if life in self.tasks]
        outputs = join([output for task in running for output in task.drain()])
        if outputs:
            await self._send(outputs)
        return bool(outputs)

    async def commit(self, lives: Iterable[Life]) -> list[tuple[Life, TaskCommit]]:
        """What these tasks have to commit, with everything that waited for it."""
        tasks = [(life, self.tasks[life]) for life in lives]
        self.is_released = bool(self._calling)
        return await self._in_thread(lambda: list(self._commit(tasks)))

    async def checkpoint(
        self,
        commits: Iterable[tuple[Life, TaskCommit]],
        end_offset: Callable[[TopicPartition], int | None],
    ) -> None:
        """A commit went through: lets state on disk follow it, and rows leave memory."""
        known: list[tuple[Task, dict[str, int]]] = []
        for life, commit in commits:
            ends = {
                output.topic: end
                for output in commit.changelog
                if (end := end_offset(TopicPartition(output.topic, life.task_id.partition)))
                is not None
            }
            known.append((self.tasks[life], ends))
        await self._in_thread(partial(self._checkpoint, known))

    @property
    def has_too_much_state(self) -> bool:
        """Whether a commit is due, so that rows can leave memory."""
        return self._memory.is_exceeded(self.tasks.values())

    def offsets(
        self, life: Life, commit: TaskCommit
    ) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        """Where each input goes on: behind the last record, and where none waits behind what the
        consumer has passed, so that markers of transactions are no lag."""
        task = self.tasks[life]
        for tp in life.partitions:
            offset = commit.offsets.get(tp.topic)
            if not self.inboxes[tp].records and not task.buffered(tp.topic):
                position = self._consumer.position(tp)
                offset = offset if position is None else position
            if offset is not None:
                yield tp, OffsetAndMetadata(offset)

    # ---- one sub-topology ----

    def _group_lives(self) -> None:
        """The running tasks by sub-topology, in order."""
        self.running = {life.task_id: task for life, task in self.tasks.items()}
        self._lives_of.clear()
        for life in self.tasks:
            self._lives_of[life.task_id.sub_topology].append(life)

    def _must_look(self, sub: SubTopology) -> bool:
        """Whether its tasks have not looked at the clock for a while."""
        now = self._clocks.monotonic()
        if now - self._looked_at.get(sub.id, -1.0) < REST_SECONDS:
            return False
        self._looked_at[sub.id] = now
        return True

    def _turns(self, sub: SubTopology, lives: Sequence[Life]) -> list[Turn]:
        """What each task gets: those that feed a repartition topic keep together.

        Tasks without records get a turn now and then, to look at the clock.
        """
        groups = [lives] if sub.feeds_repartition else [[life] for life in lives]
        pace = self._pace[sub.id]
        must_look = self._must_look(sub)
        idle = {  # before records are taken out
            life: self._idle(life) for life in lives if must_look or self._has_work(life)
        }
        if not idle:
            return []
        return [
            Turn(life, self.tasks[life], idle[life], fetched)
            for group in groups
            if len(group) > 1 or len(group[0].partitions) > 1 or group[0] in idle
            for life, fetched in self._take(group, pace).items()
            if fetched or must_look or (life in idle and life in self._calling)
        ]

    def _has_work(self, life: Life) -> bool:
        if any(self.inboxes[tp].records for tp in life.partitions):
            return True
        task = self._calling.get(life)
        return task is not None and (task.has_results or task.is_full)

    def _take(self, group: Sequence[Life], pace: Pace) -> dict[Life, list[tuple[str, Columns]]]:
        """Records up to the time to which all inputs of the group have some."""
        taken: dict[Life, list[tuple[str, Columns]]] = {life: [] for life in group}
        inboxes = {tp: self.inboxes[tp] for life in group for tp in life.partitions}
        if self._must_wait(inboxes) or any(
            task.is_full for life in group if (task := self._calling.get(life)) is not None
        ):
            return taken
        fronts = {tp: box.front(pace.records) for tp, box in inboxes.items() if box.records}
        until = min((newest for newest, _ in fronts.values()), default=NO_LIMIT)
        for life in group:
            for tp in life.partitions:
                if tp in fronts:
                    batches = inboxes[tp].take(until, fronts[tp][1])
                    taken[life] += [(tp.topic, columns) for columns in batches]
                if tp in self._full and inboxes[tp].is_low:
                    self._full.discard(tp)
                    self._consumer.resume([tp])
        return taken

    def _must_wait(self, inboxes: Mapping[TopicPartition, Inbox]) -> bool:
        """Whether a partition has records to come that belong before those of the others."""
        now = self._clocks.monotonic()
        waiting = False
        for tp, inbox in inboxes.items():
            if len(inboxes) > 1 and not inbox.records and self._consumer.lag(tp) != 0:
                since = self._waiting_since.setdefault(tp, now)
                waiting |= (now - since) * 1000 < LAG_WAIT_MS_MAX
            else:
                self._waiting_since.pop(tp, None)
        return waiting

    def _idle(self, life: Life) -> dict[str, bool]:
        return {tp.topic: self._is_idle(tp) for tp in life.partitions}

    def _is_idle(self, partition: TopicPartition) -> bool:
        """Whether nothing is to be expected of an input: it has been at its end for long, or is at
        the end up to which this worker runs."""
        if self.inboxes[partition].records:
            return False
        end = self.ends.get(partition)
        if end is not None and (self._consumer.position(partition) or 0) >= end:
            return True
        now = self._clocks.monotonic()
        since = self._received_at.setdefault(partition, now)
        return self._consumer.lag(partition) == 0 and (now - since) * 1000 >= self._idle_ms

    # ---- in the task thread ----

    def _commit(self, tasks: Sequence[tuple[Life, Task]]) -> Iterator[tuple[Life, TaskCommit]]:
        for life, task in tasks:
            yield life, task.commit()
            self._reads.serve()

    def _checkpoint(self, known: Sequence[tuple[Task, Mapping[str, int]]]) -> None:
        for task, ends in known:
            task.checkpoint(ends)
            self._reads.serve()
        self._memory.enforce([task for task, _ in known])

    def _work(self, turns: Sequence[Turn], pace: Pace) -> int:
        """Gives each task its turn. All that a task was given is run: to stop before others have
        theirs would be to let it run ahead of them."""
        return sum(self._turn(turn, pace) for turn in turns)

    def _turn(self, turn: Turn, pace: Pace) -> int:
        """What one task was given. Reads of stores come between slices, which are short while
        somebody asks; a batch is decoded as a whole, so it is cut into slices before."""
        task, done = turn.task, 0
        task.note_idle(turn.idle)
        for topic, columns in turn.fetched:
            for part in self._cut(columns, pace):
                task.enqueue(topic, part)
        started = self._clocks.monotonic()
        while ran := task.process(self._slice(pace), self._clocks.wall_ms()):
            now = self._clocks.monotonic()
            pace.ran(ran, (now - started) * 1000)
            self._reads.serve()
            done, started = done + ran, self._clocks.monotonic()
        task.tick(self._clocks.wall_ms())
        return done

    def _slice(self, pace: Pace) -> int:
        return pace.piece(ASKED_SLICE_MS) if self._reads.is_asked else pace.records

    def _cut(self, columns: Columns, pace: Pace) -> Iterator[Columns]:
        if not self._reads.is_asked:
            yield columns
            return
        piece, count = self._slice(pace), len(columns)
        for first in range(0, count, piece):
            yield columns.slice(first, min(first + piece, count))


def _note_idle(turns: Sequence[Turn]) -> None:
    for turn in turns:
        turn.task.note_idle(turn.idle)
