"""The order of records where the ways of one stream meet again.                           [P]

A batch goes through one arm of a fork whole, and then through the next. Where two arms meet, in a
node with several parents or in a topic that several sinks write, their records are put back into
the order in which Kafka Streams would have sent them: record by record, each through all arms
before the next.

                 ┌─ even ─────── 2 4 ─┐
    1 2 3 4 ─ fork                    meeting: -1 2 -3 4
                 └─ odd ── neg ─ -1 -3 ┘

The origin of a batch knows the order of each record as a number. It has a field of FIELD_BITS for
each level, the source's side first: a fork writes the record's index there and the arm, a node
that pushes several batches in a run counts its pushes. So the lower number came first.

    level     source     fork A           fork B
    field     index      index │ arm      index │ arm

Only topologies with forks whose arms meet have levels; others pay nothing.

Records of several inputs may go through a task together, as many as a stretch of time has: then a
record's number at the source is its place among all records of the stretch, and they come into
their order where they meet. Such a stretch is read where a node `gathers`, as a join of streams
does, and where no other node looks at more than its own inputs. A source of several topics puts
their records into their order first. A join with a table finds rows as they were (looking_back.py).

Owns   the rule of which nodes are forks; the batches that wait where arms meet until a run is over.
Never  changes the order within an arm.
Source Kafka Streams' ProcessorContextImpl.forward (depth first, children in order).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, groupby
from operator import itemgetter
from typing import Any, Final

from kafkalite.core.columns import joined, take
from kafkalite.core.types import Columns, concat
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch, Origin, Output, Place, Push
from kafkalite.streams.local.looking_back import looked_into
from kafkalite.streams.local.ranks import bytes_at, places_in_order, ranks, shifted

Gathered = Callable[[bytes, Batch], None]  # the input of each record, the records of all inputs
ANY_TOPIC: Final = object()  # where sinks meet whose topics a function chooses
# Nodes that see nothing of other inputs than their own, so that these may run ahead a little.
LOCAL: Final = (
    p.Source, p.Filter, p.Map, p.FlatMap, p.SelectKey, p.MapPairs, p.MapBatch, p.Peek, p.Branch,
    p.BranchArm, p.Merge, p.Sink, p.Aggregate, p.Final, p.Late, p.Unfinished, p.ToTable,
    p.TableFilter, p.TableMap, p.TableGroupBy, p.ToStream, p.JoinOfStreams, p.GlobalJoin,
    p.FinalRows, p.Suppress, p.Pattern,
)  # fmt: skip
FIELD_BITS: Final = 64
ARM_BITS: Final = 16  # of a fork's field; the rest is the index


def shared_topics(nodes: Iterable[p.Node]) -> frozenset[object]:
    """The topics that several sinks of a sub-topology write; ANY_TOPIC if a function names one."""
    topics = [sink.topic for sink in nodes if isinstance(sink, p.Sink)]
    if len(topics) > 1 and not all(isinstance(topic, str) for topic in topics):
        return frozenset({ANY_TOPIC})
    return frozenset(topic for topic in topics if topics.count(topic) > 1)


class Ordering:
    """The forks and levels of one sub-topology. `nodes`: parents first.

    With `is_needed` False records come one by one, and so in their order.
    """

    def __init__(
        self,
        nodes: Sequence[p.Node],
        children: Mapping[p.Node, Sequence[p.Node]],
        *,
        is_cached: bool,
        is_needed: bool = True,
    ) -> None:
        shared = shared_topics(nodes)
        self.forks = _forks(nodes, children, shared) if is_needed else frozenset[p.Node]()
        self.gathers = _gathers(nodes)
        self.meets = bool(self.forks) or self.gathers
        self._shared_topics = shared if self.meets else frozenset[object]()
        self._pushes = count()
        self._shifts: dict[tuple[p.Node, str], int] = {}
        if self.meets:
            self._set_levels(nodes, is_cached=is_cached)

    def _set_levels(self, nodes: Sequence[p.Node], *, is_cached: bool) -> None:
        """Gives forks and nodes that push several times their fields, the source's side highest."""
        several = {node for node in nodes if not is_cached or node.pushes_often}
        levels: dict[tuple[p.Node, str], int] = {}
        depth: dict[p.Node, int] = {}  # levels from the source to each node, itself included
        for node in nodes:
            at = max((depth[parent] for parent in node.parents), default=0)
            may_begin = not node.parents or node.begins_runs
            begins_run = may_begin and (bool(several) or self.gathers)
            uses = (("run", begins_run), ("push", node in several), ("fork", node in self.forks))
            for use, is_used in uses:
                if is_used:
                    levels[node, use] = at
                    at += 1
            depth[node] = at
        last = max(depth.values()) - 1
        self._shifts = {of: (last - level) * FIELD_BITS for of, level in levels.items()}

    def is_shared(self, topic: str) -> bool:
        """Whether several sinks below one fork write `topic`."""
        return topic in self._shared_topics or ANY_TOPIC in self._shared_topics

    def of_run(self, source: p.Node, batch: Batch) -> Batch:
        """A batch that begins a run: its records in the order in which they were read."""
        shift = self._shifts.get((source, "run"))
        return batch if shift is None else _in_arm(batch, shift, 0)

    def of_stretch(self, source: p.Node, batch: Batch, ranks: Sequence[int]) -> Batch:
        """A batch of a stretch: `ranks` are the places of its records among those of all inputs."""
        orders = shifted(ranks, self._shifts[source, "run"] + ARM_BITS)
        return replace(batch, origin=Ranked(batch.origin, orders))

    def of_branch(self, branch: p.Branch, batch: Batch) -> Batch:
        """A batch before its records are parted: each goes into one arm, so its index suffices."""
        shift = self._shifts.get((branch, "fork"))
        return batch if shift is None else _in_arm(batch, shift, 0)

    def in_arm(self, fork: p.Node, number: int, push: Push) -> Push:
        """Pushes into arm `number` of `fork`."""
        shift = self._shifts[fork, "fork"]
        return lambda batch: push(_in_arm(batch, shift, number))

    def counted(self, node: p.Node, push: Push) -> Push:
        """Pushes of a node; records of a later push come after those of the earlier ones."""
        shift = self._shifts.get((node, "push"))
        if shift is None:
            return push
        pushes = self._pushes

        def push_counted(batch: Batch) -> None:
            push(replace(batch, origin=Pushed(batch.origin, next(pushes) << shift)))

        return push_counted


def _forks(
    nodes: Sequence[p.Node],
    children: Mapping[p.Node, Sequence[p.Node]],
    shared: frozenset[object],
) -> frozenset[p.Node]:
    """The nodes from which two ways lead to one meeting place."""
    reached: dict[p.Node, frozenset[object]] = {}  # the meeting places at and below each node
    result = set()
    for node in reversed(nodes):
        ways = [reached[child] for child in children[node]]
        below = frozenset[object]().union(*ways)
        if sum(map(len, ways)) > len(below):
            result.add(node)
        reached[node] = below | _meeting_places(node, shared)
    return frozenset(result)


def _gathers(nodes: Iterable[p.Node]) -> bool:
    """Whether a stretch of all inputs may go through together, and whether a node is the better
    for it."""
    sources = [node for node in nodes if isinstance(node, p.Source)]
    looking = [node for node in nodes if looked_into(node) is not None]
    return (
        (bool(looking) or any(node.gathers for node in nodes))
        and (len(sources) > 1 or any(map(is_of_several, sources)))
        and all(isinstance(node, LOCAL) or node in looking for node in nodes)
    )


def is_of_several(source: p.Source) -> bool:
    """Whether records of several topics come from a source."""
    return source.pattern is not None or len(source.topics) > 1


def _meeting_places(node: p.Node, shared: frozenset[object]) -> frozenset[object]:
    if len(node.parents) > 1:
        return frozenset({node})
    if isinstance(node, p.Sink):
        return shared & {node.topic, ANY_TOPIC}
    return frozenset()


# Origins that keep the order


@dataclass(frozen=True, slots=True)
class Arm:
    """A batch on its way through one arm of a fork."""

    above: Origin
    shift: int
    number: int

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The same as before the fork."""
        return self.above.places(indexes)

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """The order before the fork, then the index at the fork and the arm."""
        arm, shift = self.number << self.shift, self.shift + ARM_BITS
        above = self.above.order(indexes)
        return [order + (index << shift) + arm for order, index in zip(above, indexes, strict=True)]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A batch that begins its way in a stretch of several inputs."""

    above: Origin
    orders: Sequence[int]

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The same as before."""
        return self.above.places(indexes)

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """The place among the records of all inputs."""
        return self.orders if indexes == range(len(self.orders)) else take(self.orders, indexes)


@dataclass(frozen=True, slots=True)
class Pushed:
    """One of several batches that a node pushed in a run."""

    above: Origin
    number: int  # in its field

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The same as before."""
        return self.above.places(indexes)

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """The order before, then the number of the push."""
        return [order + self.number for order in self.above.order(indexes)]


@dataclass(frozen=True, slots=True)
class Met:
    """Records of several batches in their order."""

    parts: Sequence[Batch]
    ordered: Ordered

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """Of each record, where it came from before the arms met."""
        ends = list(accumulate(map(len, self.parts)))
        found: list[Place | None] = []
        for index in indexes:
            at = self.ordered.picks[index]
            number = next(n for n, end in enumerate(ends) if at < end)
            part = self.parts[number]
            found += part.origin.places([at - ends[number] + len(part)])
        return found

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """The order that each had before."""
        return take(self.ordered.keys, take(self.ordered.picks, indexes))


def _in_arm(batch: Batch, shift: int, number: int) -> Batch:
    return replace(batch, origin=Arm(batch.origin, shift, number))


# Meeting places


class Ordered:
    """How the records of several parts, laid side by side, come into their order."""

    def __init__(self, orders: Iterable[Sequence[int]]) -> None:
        self.keys = joined(list(orders))
        self.picks = places_in_order(self.keys)

    def pick(self, columns: Sequence[Sequence[Any] | None]) -> Sequence[Any] | None:
        """The parts of one column as one; None if a part is missing."""
        there = [column for column in columns if column is not None]
        return take(joined(there), self.picks) if len(there) == len(columns) else None

    def headers(self, parts: Sequence[Batch]) -> Sequence[Any] | None:
        """The same of headers, where a part without has none for each of its records."""
        if all(part.headers is None for part in parts):
            return None
        return self.pick([part.headers or [()] * len(part) for part in parts])


class Merging:
    """A Merge: holds the batches of a run until all arms are through, then sends them on as one."""

    def __init__(self, forward: Push) -> None:
        self._forward = forward
        self._batches: list[Batch] = []

    def collect(self, batch: Batch) -> None:
        """Takes a batch of one arm."""
        if len(batch):
            self._batches.append(batch)

    def settle(self) -> None:
        """The run is over above: sends its records on, in order."""
        batches, self._batches = self._batches, []
        if batches:
            self._forward(batches[0] if len(batches) == 1 else met(batches))


class Meeting:
    """The inputs of a node with several parents: holds the batches of a run until all arms are
    through, then sends each record into its input, in order."""

    def __init__(self, inputs: Sequence[Push]) -> None:
        self._inputs = inputs
        self._batches: list[tuple[int, Batch]] = []

    def collect(self, number: int) -> Push:
        """Takes the batches of one input."""

        def push(batch: Batch) -> None:
            if len(batch):
                self._batches.append((number, batch))

        return push

    def settle(self) -> None:
        """The run is over above."""
        batches, self._batches = self._batches, []
        ordered = Ordered(batch.origin.order(range(len(batch))) for _, batch in batches)
        places = [(part, at) for part, (_, each) in enumerate(batches) for at in range(len(each))]
        for part, run in groupby((places[pick] for pick in ordered.picks), key=itemgetter(0)):
            number, batch = batches[part]
            self._inputs[number](batch.take([at for _, at in run]))


def ranks_of(upcoming: Sequence[Sequence[int]], records_max: int) -> list[Sequence[int]]:
    """The places of the next records of several inputs in the order in which a task takes them:
    always the earliest head, of equal ones the first input's.

    `upcoming` has for each record the newest timestamp so far, which is why it waits. The inputs
    may have more records than these: the stretch ends where one might come in between.
    """
    end, last = min((reached[-1], number) for number, reached in enumerate(upcoming))
    counts = [
        bisect_right(reached, end) if number <= last else bisect_left(reached, end)
        for number, reached in enumerate(upcoming)
    ]
    times = joined([reached[:some] for reached, some in zip(upcoming, counts, strict=True)])
    return ranks(places_in_order(times)[:records_max], counts)


class Gathering:
    """The inputs of a node that takes the records of all inputs at once: holds the batches of a run
    until all arms are through, then hands them over in order, with the input of each."""

    def __init__(self, take: Gathered) -> None:
        self._take = take
        self._batches: list[tuple[int, Batch]] = []

    def collect(self, number: int) -> Push:
        """Takes the batches of one input."""

        def push(batch: Batch) -> None:
            if len(batch):
                self._batches.append((number, batch))

        return push

    def settle(self) -> None:
        """The run is over above."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        numbers = [number for number, _ in batches]
        parts = [batch for _, batch in batches]
        if len(parts) == 1:
            self._take(bytes(numbers) * len(parts[0]), parts[0])
            return
        ordered = in_order(parts)
        side_by_side = b"".join(
            bytes([n]) * len(part) for n, part in zip(numbers, parts, strict=True)
        )
        self._take(bytes_at(side_by_side, ordered.picks), met(parts, ordered))


def in_order(parts: Iterable[Batch]) -> Ordered:
    """How the records of batches come into their order."""
    return Ordered(part.origin.order(range(len(part))) for part in parts)


def met(parts: Sequence[Batch], ordered: Ordered | None = None) -> Batch:
    """The records of `parts` in order. A column that one of them lacks is gone."""
    ordered = ordered or in_order(parts)
    timestamps = ordered.pick([part.timestamps for part in parts])
    assert timestamps is not None
    return Batch(
        timestamps,
        Met(parts, ordered),
        ordered.pick([part.keys for part in parts]),
        ordered.pick([part.raw_keys for part in parts]),
        ordered.pick([part.values for part in parts]),
        ordered.pick([part.raw_values for part in parts]),
        headers=ordered.headers(parts),
        times=ordered.pick([part.times for part in parts]),
    )


def outputs_in_order(outputs: Sequence[Output]) -> list[Output]:
    """The outputs of a run for one topic, cut anew so that its records leave in order."""
    if len(outputs) == 1:
        return list(outputs)
    ordered = Ordered(output.order for output in outputs)
    joined = concat(output.columns for output in outputs)
    partitions = [p for o in outputs for p in o.partitions or [0] * len(o.columns)]
    # Outputs of one kind differ in nothing but their records.
    kinds = [(o.sink, o.partitions is None) for o in outputs for _ in range(len(o.columns))]
    result: list[Output] = []
    for (sink, by_key), picks in groupby(ordered.picks, kinds.__getitem__):
        run = list(picks)
        columns = Columns(
            [joined.keys[at] for at in run],
            [joined.values[at] for at in run],
            [joined.timestamps[at] for at in run],
            None,
            None if joined.headers is None else [joined.headers[at] for at in run],
        )
        chosen = None if by_key else [partitions[at] for at in run]
        result.append(Output(outputs[0].topic, columns, chosen, sink))
    return result
