"""Plans of moves: which brokers are to hold each partition, and which of them leads it.     [P]

    drain      no replica on these brokers any more; all others stay where they are
    rebalance  as many replicas, and as many leaders, on each broker: of each topic, and of all
    move       some partitions to some brokers

A plan maps each partition that changes to its new replicas, the preferred leader first. Loads are
evened by chains of steps: a step moves one replica (or one leadership) from a broker to another,
and a chain of steps ends at a broker that has at least two fewer than the one where it began. So
the sum of squared loads falls with each chain, and no chain is left when the plan is done.

Never  loses or adds a replica (a move with another replication factor apart), or puts replicas of
       a partition into fewer racks than before.
Fails  with PlanError where brokers are too few.
Source KIP-36 (racks); apache/kafka `ReassignPartitionsCommand`; augmenting paths of matchings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kafkalite.core.types import TopicPartition
from kafkalite.errors import KafkaliteError

Replicas = tuple[int, ...]
Placed = Mapping[TopicPartition, Replicas]  # the preferred leader first
Racks = Mapping[int, str | None]  # of every broker that may hold replicas
Find = Callable[[int, int], "Step | None"]  # a step from one broker to another

LEAST_DIFFERENCE: Final = 2  # of two loads that a step brings closer


class PlanError(KafkaliteError):
    """No plan does what is asked; the message names the partition or the broker."""


def drain(placed: Placed, racks: Racks, leaving: Collection[int]) -> dict[TopicPartition, Replicas]:
    """Replaces the replicas on the brokers that leave; `racks` are of all brokers."""
    staying = {broker: rack for broker, rack in racks.items() if broker not in leaving}
    layout = _Layout(placed, staying)
    touched = [tp for tp, replicas in placed.items() if set(replicas) & set(leaving)]
    for tp in touched:
        _check_enough(tp, len(placed[tp]), staying)
        for broker in placed[tp]:
            if broker in leaving:
                layout.swap(tp, broker, layout.best_new(tp, broker))
    layout.even_replicas(movable=lambda tp, broker: broker not in placed[tp])
    layout.even_leaders(set(touched))
    return layout.changes()


def rebalance(placed: Placed, racks: Racks) -> dict[TopicPartition, Replicas]:
    """Evens replicas, then leaders. Racks come first: where they differ in size, so do loads."""
    layout = _Layout(placed, racks)
    for tp, replicas in placed.items():
        if missing := sorted(set(replicas) - racks.keys()):
            raise PlanError(
                f"{tp} has a replica on broker {missing[0]}, which is down: start the broker, or "
                "drain it"
            )
        layout.spread_over_racks(tp)
    layout.even_replicas(movable=lambda tp, broker: True)
    layout.even_leaders(placed.keys())
    return layout.changes()


def move(
    placed: Placed,
    wanted: Collection[TopicPartition],
    to: Sequence[int],
    racks: Racks,
    replication_factor: int | None = None,
) -> dict[TopicPartition, Replicas]:
    """The wanted partitions on the brokers `to` alone.

    With as many brokers as replicas, each in turn is the preferred leader, from the first one on.
    With more, replicas that lie on one of them stay, and loads are evened.
    """
    if missing := [broker for broker in to if broker not in racks]:
        raise PlanError(f"there is no broker {missing[0]} now")
    chosen = {broker: racks[broker] for broker in to}
    layout = _Layout(placed, chosen)
    counted: Counter[str] = Counter()
    for tp in wanted:
        count = replication_factor or len(placed[tp])
        _check_enough(tp, count, chosen)
        if count == len(to):
            turn = counted[tp.topic] % count
            layout.set(tp, (*to[turn:], *to[:turn]))
        else:
            layout.resize(tp, count)
        counted[tp.topic] += 1
    free = {tp for tp in wanted if len(layout.replicas[tp]) < len(to)}
    layout.even_replicas(movable=lambda tp, broker: tp in free and broker not in placed[tp])
    layout.even_leaders(free)
    return layout.changes()


def copies(placed: Placed, plan: Placed) -> dict[TopicPartition, tuple[int, ...]]:
    """The brokers that have to copy each partition of a plan."""
    return {
        tp: tuple(broker for broker in replicas if broker not in placed[tp])
        for tp, replicas in plan.items()
    }


def loads(placed: Placed) -> tuple[Counter[int], Counter[int]]:
    """How many replicas each broker has, and of how many partitions it is the preferred leader."""
    replicas = Counter(broker for each in placed.values() for broker in each)
    return replicas, Counter(each[0] for each in placed.values())


def _check_enough(tp: TopicPartition, count: int, brokers: Racks) -> None:
    if count > len(brokers):
        words = f"{tp} has {count} replicas, there are only {len(brokers)} brokers for them"
        raise PlanError(f"{words}: {', '.join(map(str, sorted(brokers))) or 'none'}")


@dataclass(frozen=True, slots=True)
class Step:
    """Moves a replica, or the leadership, of a partition."""

    partition: TopicPartition
    take: Callable[[], None]


@dataclass(slots=True)
class _Load:
    """How many replicas, or leaderships, each broker has: of all topics, and of each."""

    total: Counter[int] = field(default_factory=Counter)
    of_topic: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, topic: str, broker: int, count: int) -> None:
        """One more, or one less."""
        self.total[broker] += count
        self.of_topic.setdefault(topic, Counter())[broker] += count

    def rank(self, topic: str, broker: int) -> tuple[int, int, int]:
        """The broker with the lowest rank has the most room."""
        return self.of_topic.get(topic, Counter())[broker], self.total[broker], broker


class _Layout:
    """Where all partitions are while a plan is made. `racks` has the brokers that may get more."""

    def __init__(self, placed: Placed, racks: Racks) -> None:
        self._before = placed
        self._racks = racks
        self.replicas = {tp: list(replicas) for tp, replicas in placed.items()}
        self._load = _Load()
        self._leaders = _Load()
        self._held: dict[int, dict[str, dict[TopicPartition, None]]] = {}
        for tp, replicas in placed.items():
            self._leaders.add(tp.topic, replicas[0], 1)
            for broker in replicas:
                self._hold(tp, broker)

    def changes(self) -> dict[TopicPartition, Replicas]:
        """The partitions that differ from before."""
        found = {tp: tuple(replicas) for tp, replicas in self.replicas.items()}
        return {tp: replicas for tp, replicas in found.items() if replicas != self._before[tp]}

    # -- one partition

    def swap(self, tp: TopicPartition, old: int, new: int) -> None:
        """Puts a replica elsewhere, in the same place of the order."""
        replicas = self.replicas[tp]
        self.set(tp, [new if broker == old else broker for broker in replicas])

    def set(self, tp: TopicPartition, wanted: Sequence[int]) -> None:
        """Gives a partition these replicas."""
        known = self.replicas[tp]
        for broker in known:
            self._drop(tp, broker)
        for broker in wanted:
            self._hold(tp, broker)
        self._leaders.add(tp.topic, known[0], -1)
        self._leaders.add(tp.topic, wanted[0], 1)
        self.replicas[tp] = list(wanted)

    def resize(self, tp: TopicPartition, count: int) -> None:
        """Keeps the replicas on brokers of the layout, up to `count`, and adds those that lack."""
        known = self.replicas[tp]
        stay = [broker for broker in known if broker in self._racks][:count]
        self.set(tp, stay or [self.best_new(tp)])
        while len(self.replicas[tp]) < count:
            self.set(tp, [*self.replicas[tp], self.best_new(tp)])

    def best_new(self, tp: TopicPartition, instead_of: int | None = None) -> int:
        """The broker for another replica: in a new rack if there is one, with the most room."""
        left = [broker for broker in self.replicas[tp] if broker != instead_of]
        used = {self._racks[broker] for broker in left if broker in self._racks}
        free = (b for b in self._racks if b not in self.replicas[tp])
        return min(free, key=lambda b: (self._racks[b] in used, self._load.rank(tp.topic, b)))

    def spread_over_racks(self, tp: TopicPartition) -> None:
        """Moves replicas out of racks that have several, while there are racks without any."""
        wanted = min(len(self.replicas[tp]), len(set(self._racks.values())))
        while self._rack_count(replicas := self.replicas[tp]) < wanted:
            of_rack = Counter(self._racks[broker] for broker in replicas)
            crowded = [b for b in replicas if of_rack[self._racks[b]] > 1]
            full = max(crowded, key=lambda b: self._load.rank(tp.topic, b))
            self.swap(tp, full, self.best_new(tp))

    def _rack_count(self, replicas: Iterable[int]) -> int:
        return len({self._racks.get(broker) for broker in replicas})

    def _hold(self, tp: TopicPartition, broker: int) -> None:
        self._load.add(tp.topic, broker, 1)
        self._held.setdefault(broker, {}).setdefault(tp.topic, {})[tp] = None

    def _drop(self, tp: TopicPartition, broker: int) -> None:
        self._load.add(tp.topic, broker, -1)
        del self._held[broker][tp.topic][tp]

    # -- all partitions

    def even_replicas(self, movable: Callable[[TopicPartition, int], bool]) -> None:
        """Evens the replicas of each topic, then of all topics without undoing that."""

        def of_topic(topic: str, old: int, new: int) -> Step | None:
            found = None
            for tp in self._held.get(old, {}).get(topic, ()):
                if movable(tp, old) and self._may_swap(tp, old, new):
                    found = found or tp
                    if old not in self._before[tp] or new in self._before[tp]:
                        found = tp  # costs no further copy
                        break
            return None if found is None else Step(found, partial(self.swap, found, old, new))

        self._even(self._load, list(dict.fromkeys(tp.topic for tp in self.replicas)), of_topic)

    def _may_swap(self, tp: TopicPartition, old: int, new: int) -> bool:
        replicas = self.replicas[tp]
        if old not in replicas or new in replicas:
            return False
        after = [new if broker == old else broker for broker in replicas]
        return self._rack_count(after) >= self._rack_count(replicas)

    def even_leaders(self, movable: Collection[TopicPartition]) -> None:
        """The same for preferred leaders, by the order of replicas alone."""
        led: dict[tuple[str, int], dict[TopicPartition, None]] = {}
        for tp in self.replicas:
            if tp in movable:
                led.setdefault((tp.topic, self.replicas[tp][0]), {})[tp] = None

        def lead(tp: TopicPartition, old: int, new: int) -> None:
            replicas = self.replicas[tp]
            at = replicas.index(new)
            replicas[0], replicas[at] = new, old
            self._leaders.add(tp.topic, old, -1)
            self._leaders.add(tp.topic, new, 1)
            del led[tp.topic, old][tp]
            led.setdefault((tp.topic, new), {})[tp] = None

        def of_topic(topic: str, old: int, new: int) -> Step | None:
            for tp in led.get((topic, old), ()):
                if new in self.replicas[tp]:
                    return Step(tp, partial(lead, tp, old, new))
            return None

        topics = list(dict.fromkeys(tp.topic for tp in self.replicas if tp in movable))
        self._even(self._leaders, topics, of_topic)

    def _even(
        self, load: _Load, topics: list[str], of_topic: Callable[[str, int, int], Step | None]
    ) -> None:
        for topic in topics:
            counts = load.of_topic.setdefault(topic, Counter())
            _even(counts, self._racks, partial(of_topic, topic))

        def of_any(old: int, new: int) -> Step | None:
            for topic in topics:
                counts = load.of_topic[topic]
                if counts[old] > counts[new] and (step := of_topic(topic, old, new)):
                    return step
            return None

        _even(load.total, self._racks, of_any)


def _even(counts: Counter[int], brokers: Collection[int], find: Find) -> None:
    """Takes chains of steps while there are any. `counts` change with the steps."""
    while chain := _chain(counts, brokers, find):
        for step in chain:
            step.take()


def _chain(counts: Counter[int], brokers: Collection[int], find: Find) -> list[Step]:
    """The shortest chain of steps from a full broker to one with at least two fewer."""
    rising = sorted(brokers, key=lambda broker: (counts[broker], broker))
    known: dict[tuple[int, int], Step | None] = {}

    def step(old: int, new: int) -> Step | None:
        if (old, new) not in known:
            known[old, new] = find(old, new)
        return known[old, new]

    for full in reversed(rising):
        goal = counts[full] - LEAST_DIFFERENCE
        if counts[rising[0]] > goal:
            return []
        chains: dict[int, list[Step]] = {full: []}
        queue = [full]
        for broker in queue:
            for other in rising:
                if other in chains or (found := step(broker, other)) is None:
                    continue
                if any(found.partition == earlier.partition for earlier in chains[broker]):
                    continue  # the earlier step may have made this one impossible
                chains[other] = [*chains[broker], found]
                if counts[other] <= goal:
                    return chains[other]
                queue.append(other)
    return []
