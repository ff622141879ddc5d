"""Patterns of records per key: sequences that meet conditions in turn, within a time.        [P]

    partial    the first records of a sequence that may become whole; one for each that began
    record     goes to every partial of its key: it takes it on (steps.py), or changes nothing, or
               ends it (`without`); if no partial became whole it may begin one
    match      the earliest partial that is whole; the others of the key are forgotten with it
    unfinished a partial whose first record is more than `within` older than those to come. It goes
               out before the record that shows this if anybody reads it; else it may stay a while

Records count in the order of their timestamps. With a grace, or where several tasks write the
input, they wait until no earlier one may come; without, one older than the newest is late.

    row of a partial    p, first timestamp, number, key       values so far
    row that waits      w, timestamp, number, key             value

Facts  Null keys are dropped and counted, late records too. A match has the timestamp and headers of
       its last record. A record on which a condition fails is left out as a whole.
Owns   the store of partials and waiting records.
Source Flink's MATCH_RECOGNIZE with relaxed contiguity (cep NFA), skip past last row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalite.core.types import Headers
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Led, Origin, Push, Taken
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED
from kafkalite.streams.local.operators.keys import store_key_needs, store_keys
from kafkalite.streams.local.operators.steps import OneRecord, Steps, Values
from kafkalite.streams.local.operators.windowed import LATE, port_of
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import START, OrderedStore
from kafkalite.streams.local.watermarks import NEVER

PARTIAL: Final = b"p"
WAITING: Final = b"w"
HEAD: Final = 1 + 2 * START.size  # of a row's key, before the key's bytes
SWEEPS: Final = 4  # in the time `within`, of partials that are over and that nobody reads


@dataclass(slots=True)
class Partial:
    """The first records of a sequence."""

    place: bytes  # its row
    start: int  # timestamp of the first record
    values: Values


@dataclass(slots=True)
class Made:
    """What a batch led to, side by side."""

    at: list[int] = field(default_factory=list)  # the record that led to each
    keys: list[Any] = field(default_factory=list)
    raw_keys: list[bytes] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def add(
        self,
        at: int,
        key: Any,
        raw_key: bytes,
        stamp: int,
        value: dict[str, Any],
        headers: Headers = (),
    ) -> None:
        """One record more."""
        self.at.append(at)
        self.keys.append(key)
        self.raw_keys.append(raw_key)
        self.stamps.append(stamp)
        self.values.append(value)
        self.headers.append(headers)

    def send(self, push: Push, origin: Origin) -> None:
        """Pushes them, if there are any."""
        if self.at:
            headers = self.headers if any(self.headers) else None
            push(Batch(self.stamps, origin, self.keys, self.raw_keys, self.values, headers=headers))


@node_needs.register
def _(node: p.Pattern, below: Needs, runtime: Runtime) -> Needs:
    late = runtime.needs(node, p.Port.LATE)
    return Needs(key=True, value=True) | late | store_key_needs(node, runtime)


@compile_node.register
def _(node: p.Pattern, runtime: Runtime) -> Push:
    runtime.stateful[node] = matcher = Matcher(node, runtime)
    keys = store_keys(node, runtime)
    return lambda batch: matcher.run(keys(batch))


@node_needs.register
def _(node: p.Unfinished, below: Needs, runtime: Runtime) -> Needs:
    return Needs()


@compile_node.register
def _(node: p.Unfinished, runtime: Runtime) -> Push:
    return runtime.forward(node)


class Matcher:
    """The operator of one node."""

    def __init__(self, node: p.Pattern, runtime: Runtime) -> None:
        store = runtime.store_of(node)
        assert store is not None, f"{node.name!r} owns no store"
        self._node = node
        self._runtime = runtime
        self._steps = Steps(node)
        self._waits = runtime.is_timed or node.grace_ms > 0
        self._forward = runtime.forward_several(node)
        self._forward_late = port_of(node, p.Port.LATE, runtime)
        self._forward_unfinished = port_of(node, p.Port.UNFINISHED, runtime)
        # Partials that are over may stay a while, unless somebody reads them.
        self._slack = 0 if self._forward_unfinished else node.within_ms // SWEEPS
        self._key_codec = runtime.codec(store.key, is_key=True)
        runtime.stores[store.name] = self._store = OrderedStore(
            store.name,
            store.changelog_topic,
            runtime.codec(store.value, is_key=False),
            runtime.place.backend(store.name),
        )
        self._partials: dict[bytes, list[Partial]] = {}  # by key, the earlier ones first
        self._oldest: int | None = None  # no partial began before
        self._time = NEVER
        self._earliest: int | None = None  # of those that wait
        self._number = 0  # of rows

    # Records

    def run(self, batch: Batch) -> None:
        """Takes the records of a batch."""
        assert batch.keys is not None
        assert batch.raw_keys is not None
        assert batch.values is not None
        made, over = Made(), Made()
        late: list[int] = []
        times = batch.times if self._runtime.is_timed else None
        columns = zip(batch.keys, batch.raw_keys, batch.values, batch.timestamps, strict=True)
        for at, (key, raw_key, value, stamp) in enumerate(columns):
            if raw_key is None:
                self._runtime.metrics[DROPPED] += 1
                self._runtime.drops.add(Reason.NULL_KEY, self._node.name)
                continue
            if times is None:
                self._time = max(self._time, stamp)
            if stamp < (self._time if times is None else times[at]) - self._node.grace_ms:
                late.append(at)
                continue
            headers = () if batch.headers is None else batch.headers[at]
            if self._waits:
                self._wait(raw_key, value, stamp, headers)
                if times is None:
                    self._release(made, over, at)
                continue
            self._expire(over, at, stamp)
            try:
                self._take(made, at, key, raw_key, value, stamp, headers)
            except Exception as error:
                self._runtime.failures.at(self._node, error, batch, at)
        self._report_late(batch, late)
        self._send(made, over, batch.origin)

    def _report_late(self, batch: Batch, late: Sequence[int]) -> None:
        if not late:
            return
        self._runtime.metrics[DROPPED] += len(late)
        self._runtime.metrics[LATE] += len(late)
        reason = Reason.LATE if self._forward_late is None else Reason.LATE_KEPT
        self._runtime.drops.add(reason, self._node.name, len(late))
        if self._forward_late is not None:
            self._forward_late(batch.take(late))

    def _take(
        self,
        made: Made,
        at: int,
        key: Any,
        raw_key: bytes,
        value: Any,
        stamp: int,
        headers: Headers,
    ) -> None:
        """The record that comes next in the order of time. Nothing changes if a condition fails."""
        before = self._partials.get(raw_key, [])
        record = self._steps.record(key, value, stamp)
        kept, grown, whole = self._grown(before, record, stamp)
        if whole is None and (begun := record.begun()) is not None:
            kept.append(Partial(self._place(PARTIAL, stamp, raw_key), stamp, begun))
            grown.append(kept[-1])
            self._oldest = stamp if self._oldest is None else min(self._oldest, stamp)
        if whole is not None:
            made.add(at, key, raw_key, stamp, self._steps.match(whole), headers)
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

    def _grown(
        self, partials: Sequence[Partial], record: OneRecord, stamp: int
    ) -> tuple[list[Partial], list[Partial], Values | None]:
        """The partials that are left, those that grew, and the values of the one that is whole."""
        kept: list[Partial] = []
        grown: list[Partial] = []
        for partial in partials:
            if stamp - partial.start > self._node.within_ms:
                continue
            values = record.added(partial.values)
            if values is None:
                if not record.ends(partial.values):
                    kept.append(partial)
                continue
            if record.is_whole(values):
                return [], [], values
            kept.append(Partial(partial.place, partial.start, values))
            grown.append(kept[-1])
        return kept, grown, None

    def _place(self, kind: bytes, stamp: int, raw_key: bytes) -> bytes:
        self._number += 1
        return kind + START.pack(stamp) + START.pack(self._number) + raw_key

    # Waiting for earlier records

    def _wait(self, raw_key: bytes, value: Any, stamp: int, headers: Headers) -> None:
        self._store.put(self._place(WAITING, stamp, raw_key), [value], stamp, headers)
        self._earliest = stamp if self._earliest is None else min(self._earliest, stamp)

    def _release(self, made: Made, over: Made, at: int) -> None:
        """Takes the records that no earlier one can follow any more."""
        until = self._time - self._node.grace_ms
        if self._earliest is not None and self._earliest <= until:
            for place, row in self._store.range(WAITING, WAITING + START.pack(until + 1)):
                (stamp,) = START.unpack_from(place, 1)
                self._store.delete(place, stamp)
                raw_key = place[HEAD:]
                key = self._key_of(raw_key)
                self._expire(over, at, stamp)
                try:
                    self._take(made, at, key, raw_key, row.value[0], stamp, row.headers)
                except Exception as error:
                    what = f"the record of key {key!r} at {stamp}"
                    self._runtime.failures.handle(self._node, error, None, what, row.value[0])
            self._look_for_earliest()
        self._expire(over, at, until)

    def _look_for_earliest(self) -> None:
        first = next(self._store.range(WAITING, WAITING + b"\xff"), None)
        self._earliest = None if first is None else START.unpack_from(first[0], 1)[0]

    def _expire(self, over: Made, at: int, now: int) -> None:
        """Lets the partials go that no record at `now` or later can complete."""
        limit = now - self._node.within_ms
        if self._oldest is None or self._oldest >= limit - self._slack:
            return
        for place, row in self._store.range(PARTIAL, PARTIAL + START.pack(limit)):
            self._store.delete(place, now)
            raw_key = place[HEAD:]
            left = [each for each in self._partials.pop(raw_key, ()) if each.place != place]
            if left:
                self._partials[raw_key] = left
            if self._forward_unfinished is not None:
                end = START.unpack_from(place, 1)[0] + self._node.within_ms
                values = self._steps.match(row.value)
                over.add(at, self._key_of(raw_key), raw_key, end, values)
        first = next(self._store.range(PARTIAL, PARTIAL + b"\xff"), None)
        self._oldest = None if first is None else START.unpack_from(first[0], 1)[0]

    def _key_of(self, raw_key: bytes) -> Any:
        return self._key_codec.deserialize(self._store.changelog_topic, [raw_key])[0]

    def _send(self, made: Made, over: Made, origin: Origin | None) -> None:
        if self._forward_unfinished is not None:
            over.send(self._forward_unfinished, Led(origin, over.at) if origin else MADE)
        kind = Led if self._waits else Taken
        made.send(self._forward, kind(origin, made.at) if origin else MADE)

    # Time, and what survives

    def flush(self) -> None:
        """Nothing waits for the commit."""

    def tick(self, now_ms: int) -> None:
        """The wall clock ends nothing."""

    def advance(self, stream_time: int) -> None:
        """All tasks have come so far: no earlier record follows."""
        self._time = max(self._time, stream_time)
        made, over = Made(), Made()
        self._release(made, over, 0)
        self._send(made, over, None)

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
            self._oldest = start if self._oldest is None else min(self._oldest, start)
        for place, _ in self._store.range(WAITING, WAITING + b"\xff"):
            self._number = max(self._number, START.unpack_from(place, 1 + START.size)[0])
        self._look_for_earliest()
