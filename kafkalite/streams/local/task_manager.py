"""Which tasks a worker has, and what each is to do next: events in, effects out.          [P]

              assigned        prepared          restored           revoked
    (none) ──────────> CREATED ──────> RESTORING ──────> RUNNING ──────────> SUSPENDED
                          │                │                │                    │
                          └────────────────┴────────────────┴────────────────────┴──> CLOSED
                            revoked, lost, failed                      committed, lost, failed

              standbys        prepared           assigned, not wanted any more
    (none) ──────────> CREATED ──────> FOLLOWING ─────────────────────────────────> CLOSED

Tasks that stay with the worker in a rebalance hear nothing of it. A task that goes elsewhere is
suspended, committed and closed. What was not committed when the worker fails or is fenced is
thrown away: every task is closed, and those that are still the worker's begin a new life from the
last commit, after a pause that grows with failures in a row.

A standby follows the changelogs of a task that another worker runs. When the task becomes this
worker's, a new life takes over what the standby has (`Promote`). Standbys survive failures of
commits, and the loss of the membership: they have read what is committed, and write nothing.

Restoring takes many turns of the worker's loop, and a task may be closed meanwhile: so each life
of a task has a number, and events of a life that is over are ignored.

Owns   the state of each task, its partitions, and when a failed worker tries again.
Never  touches a task: the worker does what the effects say, in their order.
Fails  not at all; an event that cannot be is an assert.
Source KIP-429 (cooperative rebalancing); Kafka Streams' TaskManager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.assignor import TaskId

RETRY_MS: Final = 100
RETRY_MS_MAX: Final = 10_000


class LifeState(Enum):
    """Where a task of this worker is in its life."""

    CREATED = "waits for the offsets of its last commit"
    RESTORING = "takes in its changelogs"
    FOLLOWING = "takes in its changelogs for as long as another worker runs the task"
    RUNNING = "processes records"
    SUSPENDED = "processes no more, and waits for its last commit"
    CLOSED = "is over"


CREATED: Final = LifeState.CREATED
RESTORING: Final = LifeState.RESTORING
FOLLOWING: Final = LifeState.FOLLOWING
RUNNING: Final = LifeState.RUNNING
SUSPENDED: Final = LifeState.SUSPENDED
CLOSED: Final = LifeState.CLOSED

LEGAL: Final[Mapping[LifeState, frozenset[LifeState]]] = {
    CREATED: frozenset({RESTORING, FOLLOWING, CLOSED}),
    FOLLOWING: frozenset({CLOSED}),
    RESTORING: frozenset({RUNNING, CLOSED}),
    RUNNING: frozenset({SUSPENDED, CLOSED}),
    SUSPENDED: frozenset({CLOSED}),
    CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a task. The worker has at most one at a time that is not over."""

    number: int
    task_id: TaskId
    partitions: tuple[TopicPartition, ...]
    is_standby: bool = False

    def __str__(self) -> str:
        return str(self.task_id)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make these tasks and fetch the offsets that they go on from; `prepared` when that is done."""

    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """Read the changelogs of these standbys until they are closed or promoted."""

    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class Promote:
    """The standby is over, and `life`, which is prepared next, goes on with what it has."""

    standby: Life
    life: Life


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the changelogs of these tasks; `restored` for each that is done."""

    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """From now on the task processes records."""

    life: Life


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit all tasks that run or are suspended; `committed` or `failed` says what came of it."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop the uncommitted work of all tasks."""


@dataclass(frozen=True, slots=True)
class Close:
    """The task is over. What it has written since its last commit does not count."""

    life: Life


Effect: TypeAlias = Prepare | Follow | Promote | Restore | Run | Commit | Abort | Close
Effects: TypeAlias = tuple[Effect, ...]


class TaskManager:
    """The tasks of one worker."""

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self._states: dict[Life, LifeState] = {}  # of lives that are not over
        self._owned: dict[TaskId, tuple[TopicPartition, ...]] = {}
        self._waiting: set[TaskId] = set()  # for a new life, until `_retry_at_ms`
        self._retry_at_ms = 0.0
        self._standbys: set[TaskId] = set()  # that are to be followed
        self._follow_at_ms = 0.0
        self._lives = 0

    # ---- what is asked ----

    def state(self, life: Life) -> LifeState:
        """Where a life is."""
        return self._states.get(life, CLOSED)

    def is_in(self, life: Life, *states: LifeState) -> bool:
        """Whether a life is in one of these states."""
        return self.state(life) in states

    def lives(self, *states: LifeState) -> list[Life]:
        """The lives in these states, in the order of their tasks."""
        found = [life for life, state in self._states.items() if state in states]
        return sorted(found, key=lambda life: life.task_id)

    @property
    def owned(self) -> frozenset[TaskId]:
        """The tasks that the group has given to this worker, whatever they do."""
        return frozenset(self._owned)

    @property
    def standbys(self) -> dict[TaskId, Life]:
        """The lives of standbys, by their tasks."""
        return {life.task_id: life for life in self._states if life.is_standby}

    @property
    def is_settled(self) -> bool:
        """Whether every task of this worker runs."""
        running = {life.task_id for life in self.lives(RUNNING)}
        return running == self.owned

    # ---- what happens ----

    def assigned(self, tasks: Mapping[TaskId, tuple[TopicPartition, ...]]) -> Effects:
        """The group gives these to this worker, beside those that it has."""
        assert not tasks.keys() & self._owned.keys(), "a task was given twice"
        self._owned |= tasks
        self._standbys -= tasks.keys()
        return self._begin(tasks)

    def prepared(self, lives: Collection[Life]) -> Effects:
        """These tasks are made, and the offsets known that they go on from."""
        there = [life for life in lives if self.state(life) is CREATED]
        for life in there:
            self._become(life, FOLLOWING if life.is_standby else RESTORING)
        restored = tuple(life for life in there if not life.is_standby)
        followed = tuple(life for life in there if life.is_standby)
        effects: Effects = (Restore(restored),) if restored else ()
        return (*effects, Follow(followed)) if followed else effects

    def restored(self, life: Life) -> Effects:
        """A task's state is that of its last commit."""
        if self.state(life) is not RESTORING:
            return ()
        self._become(life, RUNNING)
        return (Run(life),)

    def revoked(self, task_ids: Collection[TaskId]) -> Effects:
        """The group takes these away, and waits for this worker to let go of them."""
        for task_id in task_ids:
            self._forget(task_id)
        mine = [life for life in self._active() if life.task_id in set(task_ids)]
        running = [life for life in mine if self.state(life) is RUNNING]
        for life in running:
            self._become(life, SUSPENDED)
        closed = self._close([life for life in mine if self.state(life) is not SUSPENDED])
        return (*closed, Commit()) if running else closed

    def committed(self) -> Effects:
        """A commit went through; tasks that waited for it are let go."""
        self.failures = 0
        return self._close(self.lives(SUSPENDED))

    def lost(self) -> Effects:
        """The group has gone on without this worker: others may have its tasks already."""
        self._owned.clear()
        self._waiting.clear()
        return (Abort(), *self._close(self._active()))

    def failed(self, now_ms: float) -> Effects:
        """A commit did not go through, or a broker was silent for too long.

        Nobody knows what of it counts: all tasks begin anew from what the log says.
        """
        pause_ms = min(RETRY_MS_MAX, RETRY_MS << min(self.failures, 16))
        self.failures += 1
        self._retry_at_ms = now_ms + pause_ms
        self._waiting = set(self._owned)
        return (Abort(), *self._close(self._active()))

    def tick(self, now_ms: float) -> Effects:
        """Time passes; after a failure tasks try again."""
        effects: Effects = ()
        if self._waiting and now_ms >= self._retry_at_ms:
            waiting, self._waiting = self._waiting, set()
            effects = self._begin({task_id: self._owned[task_id] for task_id in waiting})
        return (*effects, *self._begin_standbys()) if now_ms >= self._follow_at_ms else effects

    # ---- standbys ----

    def follow(self, wanted: Collection[TaskId], kept: Collection[TaskId] = ()) -> Effects:
        """The group wants these to be followed here from now on, and no others. What is `kept` is
        followed on if it is followed already."""
        before = self.standbys
        self._standbys = (set(wanted) | (set(kept) & before.keys())) - self.owned
        gone = [life for task_id, life in before.items() if task_id not in self._standbys]
        return self._close(gone)

    def following_failed(self, now_ms: float) -> Effects:
        """The changelogs could not be read on; standbys begin anew after a pause."""
        self._follow_at_ms = now_ms + RETRY_MS_MAX
        return self._close(list(self.standbys.values()))

    def _begin_standbys(self) -> Effects:
        new = sorted(self._standbys - {life.task_id for life in self._states})
        lives = tuple(self._new_life(task_id, (), is_standby=True) for task_id in new)
        return (Prepare(lives),) if lives else ()

    # ---- lives ----

    def _active(self) -> list[Life]:
        """The lives of tasks that are or were this worker's, in the order of their tasks."""
        return [life for life in self.lives(*LifeState) if not life.is_standby]

    def _begin(self, tasks: Mapping[TaskId, tuple[TopicPartition, ...]]) -> Effects:
        standbys = self.standbys
        lives = tuple(self._new_life(task_id, tasks[task_id]) for task_id in sorted(tasks))
        promoted = []
        for life in lives:
            if (standby := standbys.get(life.task_id)) is not None:
                self._end(standby)
                promoted.append(Promote(standby, life))
        return (*promoted, Prepare(lives)) if lives else ()

    def _new_life(
        self,
        task_id: TaskId,
        partitions: tuple[TopicPartition, ...],
        *,
        is_standby: bool = False,
    ) -> Life:
        self._lives += 1
        life = Life(self._lives, task_id, partitions, is_standby)
        self._states[life] = CREATED
        return life

    def _forget(self, task_id: TaskId) -> None:
        assert task_id in self._owned, f"task {task_id} is not this worker's"
        del self._owned[task_id]
        self._waiting.discard(task_id)

    def _close(self, lives: Collection[Life]) -> Effects:
        closed = tuple(lives)
        for life in closed:
            self._end(life)
        return tuple(Close(life) for life in closed)

    def _end(self, life: Life) -> None:
        self._become(life, CLOSED)
        del self._states[life]

    def _become(self, life: Life, state: LifeState) -> None:
        now = self.state(life)
        assert state in LEGAL[now], f"task {life}: {now.name} -> {state.name}"
        self._states[life] = state
