"""Placement: which worker runs a task, which ones follow it as standbys or warm-ups.       [P]

    1  balance     counts differ by one at the most; a task stays with its owner where that allows,
                   else it goes to a worker that has its state, the least behind first
    2  availability a task with state does not move to a worker that is far behind: it stays where
                   its state is, and the other worker warms up, a few tasks at a time
    3  standbys    each task with state is followed by other workers, as many as are asked for

A warm-up is a standby for a while. The worker that has caught up asks for a rebalance, in which
step 2 finds nothing to hold back.

Owns   nothing: a placement is a function of the tasks and the members.
Never  moves a task away from a living owner unless the balance needs it.
Source KIP-54 (stickiness), KIP-441 (warm-ups, acceptable.recovery.lag, max.warmup.replicas).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ACCEPTABLE_LAG: Final = 10_000
WARMUPS_MAX: Final = 2


class TaskId(NamedTuple):
    """Sub-topology `sub_topology` over partition `partition`; written `0_3` as Kafka does."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"

    @staticmethod
    def parse(name: str) -> TaskId:
        """The id that is written so."""
        sub_topology, _, partition = name.partition("_")
        return TaskId(int(sub_topology), int(partition))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member: the tasks it owns, and how far behind it is with the state that it has."""

    owned: frozenset[TaskId] = frozenset()
    lags: Mapping[TaskId, int] | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How many standbys a task has; from which lag on a task may move; how many warm-ups go on."""

    standbys: int = 0
    acceptable_lag: int = ACCEPTABLE_LAG
    warmups_max: int = WARMUPS_MAX


DEFAULT_RULES: Final = Rules()
Hands = Mapping[str, list[TaskId]]  # tasks by member


@dataclass(frozen=True, slots=True)
class Placement:
    """What each member is to do, its tasks in order."""

    active: Hands
    standbys: Hands
    warmups: Hands


class Placing:
    """The members as one placement looks at them. `sizes`: the changelog of each task with state,
    in records."""

    def __init__(
        self, members: Mapping[str, Candidate], sizes: Mapping[TaskId, int], rules: Rules
    ) -> None:
        self.members = sorted(members)
        self.sizes = sizes
        self.rules = rules
        self._candidates = members
        self.owner_of = {task: m for m in self.members for task in sorted(members[m].owned)}

    def owned(self, member: str) -> list[TaskId]:
        """The tasks of a member, without those that a later one claims too."""
        mine = self._candidates[member].owned
        return sorted(task for task in mine if self.owner_of[task] == member)

    def has_state(self, member: str, task: TaskId) -> bool:
        """Whether a member that does not own the task has state of it."""
        return task in self.sizes and task in (self._candidates[member].lags or ())

    def lag(self, member: str, task: TaskId) -> int:
        """How many records a member would have to restore before it runs the task."""
        if self.owner_of.get(task) == member:
            return 0
        size = self.sizes.get(task, 0)
        return min(size, (self._candidates[member].lags or {}).get(task, size))

    def is_caught_up(self, member: str, task: TaskId) -> bool:
        """Whether the task may move to this member at once."""
        return self.lag(member, task) <= self.rules.acceptable_lag


def place(
    tasks: Iterable[TaskId],
    members: Mapping[str, Candidate],
    sizes: Mapping[TaskId, int],
    rules: Rules = DEFAULT_RULES,
) -> Placement:
    """The placement of all tasks on the members; there is at least one member."""
    placing = Placing(members, sizes, rules)
    todo = sorted(set(tasks))
    target = {task: m for m, mine in balanced(todo, placing).items() for task in mine}
    active, waiting = _hold_back(target, placing)
    warm = sorted(waiting, key=lambda task: _progress(placing, target[task], task))
    warmups = {task: target[task] for task in warm[: rules.warmups_max]}
    standbys = _standbys([t for t in todo if t in sizes], active, warmups, placing)
    return Placement(
        _hands(placing.members, active.items()),
        _hands(placing.members, standbys),
        _hands(placing.members, warmups.items()),
    )


def balanced(tasks: Collection[TaskId], placing: Placing) -> dict[str, list[TaskId]]:
    """Tasks by member: counts differ by one at the most, and fewest tasks move."""
    unclaimed = set(tasks)
    mine = {m: [t for t in placing.owned(m) if t in unclaimed] for m in placing.members}
    floor, larger = divmod(len(unclaimed), len(placing.members))
    # Members that own the most get the larger shares, so that fewest tasks move.
    held = {m: sum(placing.has_state(m, t) for t in unclaimed) for m in placing.members}
    by_owned = sorted(placing.members, key=lambda m: (-len(mine[m]), -held[m], m))
    share = {m: floor + (i < larger) for i, m in enumerate(by_owned)}
    open_to = [m for m in placing.members if len(mine[m]) < share[m]]
    given: dict[str, list[TaskId]] = {}
    for m in placing.members:
        given[m] = _to_keep(mine[m], open_to, placing)[: share[m]]
        unclaimed.difference_update(given[m])
    _give_to_holders(unclaimed, given, share, placing)
    # The rest goes round by sub-topology, so that each member gets some of the heavy ones.
    rest = iter(sorted(unclaimed))
    while open_members := [m for m in placing.members if len(given[m]) < share[m]]:
        for m in open_members:
            given[m].append(next(rest))
    return given


def _to_keep(mine: list[TaskId], open_to: list[str], placing: Placing) -> list[TaskId]:
    """A member's tasks, those first that it should keep: last come tasks whose state lies with a
    member that gets more. Each sub-topology is as dear as the others."""
    nth: dict[int, int] = defaultdict(int)
    ranks: dict[TaskId, tuple[bool, int, TaskId]] = {}
    for task in mine:
        elsewhere = any(
            placing.has_state(m, task) and placing.is_caught_up(m, task) for m in open_to
        )
        ranks[task] = elsewhere, nth[task.sub_topology], task
        nth[task.sub_topology] += 1
    return sorted(mine, key=lambda task: ranks[task])


def _give_to_holders(
    unclaimed: set[TaskId],
    given: dict[str, list[TaskId]],
    share: Mapping[str, int],
    placing: Placing,
) -> None:
    """Gives tasks to members who have their state, first those that fewest members have."""
    holders = {t: [m for m in placing.members if placing.has_state(m, t)] for t in unclaimed}
    for task in sorted(unclaimed, key=lambda t: (len(holders[t]), t)):
        able = [m for m in holders[task] if len(given[m]) < share[m]]
        if able:
            best = min(able, key=lambda m: (placing.lag(m, task), len(given[m]), m))
            given[best].append(task)
            unclaimed.discard(task)


def _hold_back(
    target: Mapping[TaskId, str], placing: Placing
) -> tuple[dict[TaskId, str], list[TaskId]]:
    """The present owner of each task, and the tasks whose targets are still too far behind."""
    active, waiting = dict(target), []
    for task, member in target.items():
        if placing.is_caught_up(member, task):
            continue
        owner = placing.owner_of.get(task)
        able = [owner] if owner is not None else _able(task, placing)
        if able:
            loads = {m: sum(a == m for a in active.values()) for m in able}
            active[task] = min(able, key=lambda m: (loads[m], placing.lag(m, task), m))
            waiting.append(task)
    return active, waiting


def _able(task: TaskId, placing: Placing) -> list[str]:
    return [
        m for m in placing.members if placing.has_state(m, task) and placing.is_caught_up(m, task)
    ]


def _progress(placing: Placing, member: str, task: TaskId) -> tuple[bool, int, TaskId]:
    """Warm-ups that have begun come before others, those that are nearly done first."""
    return not placing.has_state(member, task), placing.lag(member, task), task


def _standbys(
    tasks: list[TaskId],
    active: Mapping[TaskId, str],
    warmups: Mapping[TaskId, str],
    placing: Placing,
) -> list[tuple[TaskId, str]]:
    """Followers of each task, on members that do not have it otherwise."""
    found: list[tuple[TaskId, str]] = []
    loads = dict.fromkeys(placing.members, 0)
    taken = {task: {active[task], warmups.get(task, active[task])} for task in tasks}
    for round_number in range(1, placing.rules.standbys + 1):
        most = -(-len(tasks) * round_number // len(placing.members))
        for task in tasks:
            able = [m for m in placing.members if m not in taken[task]]
            if not able:
                continue
            best = min(able, key=lambda m: (
                loads[m] >= most,
                not (placing.has_state(m, task) and placing.is_caught_up(m, task)),
                not placing.has_state(m, task),
                loads[m],
                m,
            ))  # fmt: skip
            loads[best] += 1
            taken[task].add(best)
            found.append((task, best))
    return found


def _hands(members: Iterable[str], placed: Iterable[tuple[TaskId, str]]) -> Hands:
    hands: dict[str, list[TaskId]] = {m: [] for m in members}
    for task, m in placed:
        hands[m].append(task)
    return {m: sorted(mine) for m, mine in hands.items()}
