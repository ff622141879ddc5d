"""map_async: records wait here while their calls run, and go on when these are done.        [P]

    run:      a batch ──> calls, handed in at once           the run is over; the task goes on
    collect:  calls that are done ──> batches of results     each a run of its own

With `ordered` a record goes on when all before it have; else when all before it of its key have.
The task stops reading while as many calls again as may run wait for their turn, and commits only
when no record is here: so outputs, state and offsets of a commit belong to the same records.

Stream time that others than the records tell (watermarks.py) must not overtake them: operators
below get the time of the oldest record that waits here.

Owns   the records whose calls are not over, and their order.
Never  waits, reads a clock, or runs a function.
Fails  through the error policy when a call does, in the order of the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch, Delivered, Push
from kafkalite.streams.local.calling import arguments, function_needs
from kafkalite.streams.local.calls import AsyncCallee, Call, Done
from kafkalite.streams.local.operators.changed import with_values
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.sharing import copies
from kafkalite.streams.local.watermarks import NEVER

AHEAD_FACTOR: Final = 2  # calls handed in, for each that may run: so that none has to be waited for
UNHASHABLE: Final = object()  # keys that cannot tell themselves apart count as one


@dataclass(slots=True, eq=False)
class Waiting:
    """A record whose call is not over, or that may not go on yet."""

    batch: Batch
    index: int
    lane: Hashable  # records of one lane stay in order
    time: int  # the stream time as of which it came
    done: Done | None = None


class MapAsync:
    """The operator of one task."""

    def __init__(self, node: p.MapAsync, runtime: Runtime) -> None:
        self._node = node
        self._runtime = runtime
        self._function = node.function
        self._must_copy = runtime.must_copy(node, node.function)
        self._calls = runtime.open_calls(AsyncCallee(node.function.call, node.limits))
        self._room_max = AHEAD_FACTOR * node.limits.concurrency
        self._forward = runtime.forward(node)
        self._waiting: dict[int, Waiting] = {}  # by the number of the call, oldest first
        self._lanes: dict[Hashable, deque[Waiting]] = {}
        self._count = 0  # calls so far
        self._time = NEVER

    # Records in

    def run(self, batch: Batch) -> None:
        """Hands in a call for each record."""
        given = arguments(self._function, self._owned(batch))
        calls: list[Call] = []
        for index, (lane, *values) in enumerate(zip(self._lanes_of(batch), *given, strict=False)):
            record = Waiting(batch, index, lane, self._time)
            self._waiting[self._count] = record
            self._lanes.setdefault(lane, deque()).append(record)
            calls.append(Call(self._count, tuple(values)))
            self._count += 1
        self._calls.submit(calls)

    def _owned(self, batch: Batch) -> Batch:
        if not self._must_copy or batch.values is None:
            return batch
        return replace(batch, values=copies(batch.values))

    def _lanes_of(self, batch: Batch) -> Iterable[Hashable]:
        if self._node.ordered:
            return [None] * len(batch)
        keys = batch.keys if batch.raw_keys is None else batch.raw_keys
        assert keys is not None
        return map(_lane, keys)

    # Results out

    def collect(self) -> bool:
        """Sends on the records that may go on now; whether there were any results."""
        results = self._calls.completed()
        ready: list[int] = []
        for done in results:
            record = self._waiting[done.number]
            record.done = done
            lane = self._lanes[record.lane]
            while lane and (ended := lane[0].done) is not None:
                lane.popleft()
                ready.append(ended.number)
            if not lane:
                del self._lanes[record.lane]
        self._send(ready)
        return bool(results)

    def _send(self, ready: Sequence[int]) -> None:
        """Records on their way, as long as they came in one batch together."""
        for _, run in groupby(ready, key=lambda number: id(self._waiting[number].batch)):
            numbers = list(run)
            records = [self._waiting[number] for number in numbers]
            batch, results = self._succeeded(records)
            if len(batch):
                made = replace(with_values(batch, results), origin=Delivered(batch.origin))
                self._forward(self._runtime.ordering.of_run(self._node, made))
            self._runtime.settle()
            for number in numbers:  # last: until here they hold time back
                del self._waiting[number]

    def _succeeded(self, records: Sequence[Waiting]) -> tuple[Batch, list[Any]]:
        """The records whose calls gave a result, and these; the others go to the policy."""
        batch, indexes, results = records[0].batch, [], []
        for record in records:
            done = record.done
            assert done is not None
            if done.error is None:
                indexes.append(record.index)
                results.append(done.result)
            elif isinstance(done.error, Exception):
                self._runtime.failures.at(self._node, done.error, batch, record.index)
            else:
                raise done.error
        return batch.take(indexes), results

    # What the task asks

    @property
    def in_flight(self) -> int:
        """Records that wait here."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more records it should get now."""
        return self._room_max - len(self._waiting)

    @property
    def has_results(self) -> bool:
        """Whether `collect` would find any."""
        return self._calls.has_completed

    @property
    def time_held(self) -> int | None:
        """The stream time beyond which those below may not go; None: any."""
        oldest = next(iter(self._waiting.values()), None)
        return None if oldest is None else oldest.time

    def close(self) -> None:
        """Drops what waits."""
        self._calls.cancel()

    # As every operator that time is told

    def flush(self) -> None:
        """Nothing here waits for the commit; the commit waits."""

    def tick(self, now_ms: int) -> None:
        """The wall clock is the calls' affair."""

    def advance(self, stream_time: int) -> None:
        """Notes what time it is for the records that come."""
        self._time = stream_time

    def stream_time(self) -> int | None:
        """Nothing to keep: no record is here at a commit."""
        return None

    def resume(self, stream_time: int) -> None:
        """There is nothing to go on with."""


class InFlight:
    """The map_asyncs of one task, those above first. `nodes`: parents first."""

    def __init__(self, nodes: Sequence[p.Node], runtime: Runtime) -> None:
        by_node = {n: op for n, op in runtime.stateful.items() if isinstance(op, MapAsync)}
        self._operators = [by_node[node] for node in nodes if node in by_node]
        self._above: dict[p.Node, tuple[MapAsync, ...]] = {}  # of each node, any way up
        for node in nodes:
            found: dict[MapAsync, None] = {}
            for parent in node.parents:
                found |= dict.fromkeys(self._above.get(parent, ()))
                if parent in by_node:
                    found[by_node[parent]] = None
            self._above[node] = tuple(found)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._operators)

    def __iter__(self) -> Iterator[MapAsync]:
        return iter(self._operators)

    def collect(self) -> None:
        """Sends finished records on, up to the first call that still runs."""
        for operator in self._operators:
            while operator.collect():
                pass  # results may have come meanwhile: no more than records wait

    @property
    def count(self) -> int:
        """Records that wait for their calls."""
        return sum(operator.in_flight for operator in self._operators)

    @property
    def room(self) -> int:
        """How many records may be read now."""
        return min(operator.room for operator in self._operators)

    @property
    def has_results(self) -> bool:
        """Whether `collect` would find any."""
        return any(operator.has_results for operator in self._operators)

    def time_for(self, node: p.Node, reached: int) -> int:
        """The stream time for `node`: no record above it is older."""
        held = (operator.time_held for operator in self._above[node])
        return min([reached, *(time for time in held if time is not None)])


def _lane(key: object) -> Hashable:
    try:
        hash(key)
    except TypeError:
        return UNHASHABLE
    return key


@node_needs.register
def _(node: p.MapAsync, below: Needs, runtime: Runtime) -> Needs:
    needs = Needs(below.key, below.raw_key) | function_needs(node.function)
    if node.ordered:
        return needs
    has_bytes = runtime.input_schema(node).key is not None
    return needs | Needs(key=not has_bytes, raw_key=has_bytes)


@compile_node.register
def _(node: p.MapAsync, runtime: Runtime) -> Push:
    operator = runtime.stateful[node] = MapAsync(node, runtime)
    return operator.run
