"""Patterns of records per key: sequences that meet conditions in turn, within a time.        [P]

    partial    the first records of a sequence that may become whole; one for each that began
    step       a record goes to every partial of its key: it is what comes next there, or nothing,
               or ends it (`without`); if no partial became whole it may begin one
    match      the earliest partial that is whole; the others of the key are forgotten with it

Partials end when their first record is more than `within` older than those to come. Records count
in the order of their timestamps. With a grace, or where several tasks write the input, they wait
until no earlier one may come; without, one that is older than the newest is late.

    row of a partial    p, first timestamp, number, key       values so far
    row that waits      w, timestamp, number, key             value

Facts  Null keys are dropped and counted, late records too. A match has the timestamp and headers of
       its last record. A record on which a condition fails is left out as a whole.
Source Flink's MATCH_RECOGNIZE with relaxed contiguity (cep NFA), skip past last row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalite.core.types import Headers
from kafkalite.streams import plan as p
from kafkalite.streams.expressions.tree import KEY, TIMESTAMP, VALUE
from kafkalite.streams.functions import ExpressionFunction, Function
from kafkalite.streams.local.batch import MADE, Batch, Led, Origin, Push, Taken
from kafkalite.streams.local.calling import called
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED
from kafkalite.streams.local.operators.keys import store_key_needs, store_keys
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import START, OrderedStore
from kafkalite.streams.local.watermarks import NEVER

PARTIAL: Final = b"p"
WAITING: Final = b"w"
HEAD: Final = 1 + 2 * START.size  # of a row's key, before the key's bytes
SWEEPS: Final = 4  # in the time `within`, of partials that are over
Condition = Callable[[Any, Any, int], bool]  # of key, value and timestamp


@dataclass(slots=True)
class Partial:
    """The first records of a sequence."""

    place: bytes  # its row
    start: int  # timestamp of the first record
    values: list[Any]


@dataclass(slots=True)
class Matches:
    """What a batch led to, side by side."""

    at: list[int] = field(default_factory=list)  # the record that led to each
    keys: list[Any] = field(default_factory=list)
    raw_keys: list[bytes] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)


@node_needs.register
def _(node: p.Pattern, below: Needs, runtime: Runtime) -> Needs:
    return Needs(key=True, value=True) | store_key_needs(node, runtime)


@compile_node.register
def _(node: p.Pattern, runtime: Runtime) -> Push:
    runtime.stateful[node] = matcher = Matcher(node, runtime)
    keys = store_keys(node, runtime)
    return lambda batch: matcher.run(keys(batch))


class Matcher:
    """The operator of one node."""

    def __init__(self, node: p.Pattern, runtime: Runtime) -> None:
        store = runtime.store_of(node)
        assert store is not None, f"{node.name!r} owns no store"
        self._node = node
        self._runtime = runtime
        self._words = [word for word, _ in node.steps]
        self._steps = [_condition(function) for _, function in node.steps]
        self._without = None if node.without is None else _condition(node.without)
        self._waits = runtime.is_timed or node.grace_ms > 0
        self._forward = runtime.forward_several(node)
        self._key_codec = runtime.codec(store.key, is_key=True)
        runtime.stores[store.name] = self._store = OrderedStore(
            store.name,
            store.changelog_topic,
            runtime.codec(store.value, is_key=False),
            runtime.place.backend(store.name),
        )
        self._partials: dict[bytes, list[Partial]] = {}  # by key, the earlier ones first
        self._time = NEVER
        self._earliest: int | None = None  # of those that wait
        self._swept = NEVER
        self._number = 0  # of rows

    # Records

    def run(self, batch: Batch) -> None:
        """Takes the records of a batch."""
        assert batch.keys is not None
        assert batch.raw_keys is not None
        assert batch.values is not None
        made = Matches()
        times = batch.times if self._runtime.is_timed else None
        columns = zip(batch.keys, batch.raw_keys, batch.values, batch.timestamps, strict=True)
        for at, (key, raw_key, value, stamp) in enumerate(columns):
            if raw_key is None:
                self._drop(Reason.NULL_KEY)
                continue
            if times is None:
                self._time = max(self._time, stamp)
            if stamp < (self._time if times is None else times[at]) - self._node.grace_ms:
                self._drop(Reason.LATE)
                continue
            headers = () if batch.headers is None else batch.headers[at]
            if not self._waits:
                try:
                    self._take(made, at, key, raw_key, value, stamp, headers)
                except Exception as error:
                    self._runtime.failures.at(self._node, error, batch, at)
                continue
            self._wait(raw_key, value, stamp, headers)
            if times is None:
                self._release(made, at)
        self._sweep()
        self._send(made, batch.origin)

    def _drop(self, reason: Reason) -> None:
        self._runtime.metrics[DROPPED] += 1
        self._runtime.drops.add(reason, self._node.name)

    def _take(
        self,
        made: Matches,
        at: int,
        key: Any,
        raw_key: bytes,
        value: Any,
        stamp: int,
        headers: Headers,
    ) -> None:
        """The record that comes next in the order of time. Nothing changes if a condition fails."""
        before = self._partials.get(raw_key, [])
        kept, grown, whole = self._stepped(before, key, value, stamp)
        if whole is not None:
            made.at.append(at)
            made.keys.append(key)
            made.raw_keys.append(raw_key)
            made.stamps.append(stamp)
            made.values.append(dict(zip(self._words, [*whole.values, value], strict=True)))
            made.headers.append(headers)
        elif self._steps[0](key, value, stamp):
            kept.append(Partial(self._place(PARTIAL, stamp, raw_key), stamp, [value]))
            grown.append(kept[-1])
        there = {partial.place for partial in kept}
        for partial in before:
            if partial.place not in there:
                self._store.delete(partial.place, stamp)
        for partial in grown:
            self._store.put(partial.place, partial.values, stamp)
        if kept:
            self._partials[raw_key] = kept
        else:
            self._partials.pop(raw_key, None)

    def _stepped(
        self, partials: Sequence[Partial], key: Any, value: Any, stamp: int
    ) -> tuple[list[Partial], list[Partial], Partial | None]:
        """The partials that are left, those that grew, and the one that became whole."""
        kept: list[Partial] = []
        grown: list[Partial] = []
        is_next: dict[int, bool] = {}
        ends: bool | None = None
        for partial in partials:
            if stamp - partial.start > self._node.within_ms:
                continue
            step = len(partial.values)
            if step not in is_next:
                is_next[step] = self._steps[step](key, value, stamp)
            if is_next[step]:
                if step + 1 == len(self._steps):
                    return [], [], partial
                kept.append(Partial(partial.place, partial.start, [*partial.values, value]))
                grown.append(kept[-1])
                continue
            if ends is None:
                ends = self._without is not None and self._without(key, value, stamp)
            if not ends:
                kept.append(partial)
        return kept, grown, None

    def _place(self, kind: bytes, stamp: int, raw_key: bytes) -> bytes:
        self._number += 1
        return kind + START.pack(stamp) + START.pack(self._number) + raw_key

    # Waiting for earlier records

    def _wait(self, raw_key: bytes, value: Any, stamp: int, headers: Headers) -> None:
        self._store.put(self._place(WAITING, stamp, raw_key), [value], stamp, headers)
        self._earliest = stamp if self._earliest is None else min(self._earliest, stamp)

    def _release(self, made: Matches, at: int) -> None:
        """Takes the records that no earlier one can follow any more."""
        until = self._time - self._node.grace_ms
        if self._earliest is None or self._earliest > until:
            return
        for place, row in self._store.range(WAITING, WAITING + START.pack(until + 1)):
            (stamp,) = START.unpack_from(place, 1)
            self._store.delete(place, stamp)
            raw_key = place[HEAD:]
            (key,) = self._key_codec.deserialize(self._store.changelog_topic, [raw_key])
            try:
                self._take(made, at, key, raw_key, row.value[0], stamp, row.headers)
            except Exception as error:
                what = f"the record of key {key!r} at {stamp}"
                self._runtime.failures.handle(self._node, error, None, what, row.value[0])
        self._look_for_earliest()

    def _look_for_earliest(self) -> None:
        first = next(self._store.range(WAITING, WAITING + b"\xff"), None)
        self._earliest = None if first is None else START.unpack_from(first[0], 1)[0]

    def _sweep(self) -> None:
        """Forgets partials that no record can complete any more."""
        limit = self._time - self._node.grace_ms - self._node.within_ms
        if limit - self._swept < max(1, self._node.within_ms // SWEEPS):
            return
        self._swept = limit
        for place, _ in self._store.range(PARTIAL, PARTIAL + START.pack(max(0, limit))):
            self._store.delete(place, self._time)
            raw_key = place[HEAD:]
            left = [each for each in self._partials.pop(raw_key, ()) if each.place != place]
            if left:
                self._partials[raw_key] = left

    def _send(self, made: Matches, origin: Origin | None) -> None:
        if not made.at:
            return
        origin = origin and (Led if self._waits else Taken)(origin, made.at)
        self._forward(
            Batch(
                made.stamps,
                origin or MADE,
                made.keys,
                made.raw_keys,
                made.values,
                headers=made.headers if any(made.headers) else None,
            )
        )

    # Time, and what survives

    def flush(self) -> None:
        """Nothing waits for the commit."""

    def tick(self, now_ms: int) -> None:
        """The wall clock ends nothing."""

    def advance(self, stream_time: int) -> None:
        """All tasks have come so far: no earlier record follows."""
        self._time = max(self._time, stream_time)
        made = Matches()
        self._release(made, 0)
        self._sweep()
        self._send(made, None)

    def stream_time(self) -> int | None:
        """By which records are late."""
        return self._time

    def resume(self, stream_time: int) -> None:
        """Goes on from the rows that were restored."""
        self._time = max(self._time, stream_time)
        for place, row in self._store.range(PARTIAL, PARTIAL + b"\xff"):
            start, number = START.unpack_from(place, 1)[0], START.unpack_from(place, 9)[0]
            self._number = max(self._number, number)
            partial = Partial(place, start, list(row.value))
            self._partials.setdefault(place[HEAD:], []).append(partial)
        for place, _ in self._store.range(WAITING, WAITING + b"\xff"):
            self._number = max(self._number, START.unpack_from(place, 1 + START.size)[0])
        self._look_for_earliest()


def _condition(function: Function) -> Condition:
    """A condition of key, value and timestamp, whatever the function looks at."""
    call = called(function)
    if not isinstance(function, ExpressionFunction):
        return lambda key, value, stamp: bool(call(value))
    order = {KEY: 0, VALUE: 1, TIMESTAMP: 2}
    takes = [order[each] for each in function.inputs]
    return lambda *given: bool(call(*(given[index] for index in takes)))
