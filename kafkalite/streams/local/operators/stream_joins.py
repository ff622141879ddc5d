"""Joins of two streams: pairs of records with equal keys whose timestamps are close.         [P]

Each side keeps its rows, values as bytes, for as long as a partner may come (state/segments.py). A
record of either side is joined with the rows of the other side, and then becomes a row itself.

    left at t      is joined with right rows in [t - before, t + after]
    right at t     is joined with left rows in [t - after, t + before]
    visible        are rows with timestamp > newest row of that side - (before + after + grace)
    null result    of a row without a partner, once it is not visible any more: never beside a pair

No record is too late to be joined. Where several tasks write an input (watermarks.py), `newest` is
the time by which the record is judged, and rows leave when all tasks have passed them.

The inputs are gathered (order.py): a run gives the records of both sides in their order, and all
pairs of a run leave as one batch.

Facts  A record without key or value is dropped; with a value and without a key it gives a null
       result at once where its side may have one. Pairs come oldest row first. A pair has the later
       timestamp and the headers of the record that came; a null result its own timestamp and the
       headers of the record that ended the wait.
Fails  through the error policy where a value cannot be written or read, or the function fails.
Source Kafka Streams' KStreamKStreamJoin, and KIP-633. Its null results may come before a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import compress, repeat
from typing import Any, Final

from kafkalite.core.columns import take
from kafkalite.serde.serde import Serde
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Origin, Place, Push
from kafkalite.streams.local.calling import joiner
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED, convert
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import SegmentStore
from kafkalite.streams.stores import Store

LEFT, RIGHT = 0, 1
WORDS: Final = ("left", "right")
NEVER: Final = -1


@dataclass(slots=True)
class Pairs:
    """What a run makes, as columns; `at` is the record that led to it, None outside a run."""

    at: list[int | None] = field(default_factory=list)
    made: list[bool] = field(default_factory=list)  # from rows alone: null results after a wait
    keys: list[bytes | None] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: tuple[list[bytes | None], list[bytes | None]] = field(default_factory=lambda: ([], []))

    def add(
        self,
        at: int | None,
        key: bytes | None,
        stamp: int,
        left: bytes | None,
        right: bytes | None,
        *,
        made: bool = False,
    ) -> None:
        """One result."""
        self.at.append(at)
        self.made.append(made)
        self.keys.append(key)
        self.stamps.append(stamp)
        self.values[LEFT].append(left)
        self.values[RIGHT].append(right)

    def alone(
        self, side: int, at: int | None, key: bytes | None, stamp: int, value: bytes, *, made: bool
    ) -> None:
        """The null result of a record of one side."""
        left, right = (value, None) if side == LEFT else (None, value)
        self.add(at, key, stamp, left, right, made=made)


@dataclass(frozen=True, slots=True)
class Joined:
    """Where pairs are from: the record that led to each, though a row that waited is not it."""

    above: Origin
    at: Sequence[int]
    made: Sequence[bool]

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The record that came; None for a row that waited."""
        places = self.above.places([self.at[i] for i in indexes])
        return [None if self.made[i] else each for i, each in zip(indexes, places, strict=True)]

    def order(self, indexes: Sequence[int]) -> list[int]:
        """At the moment of the record that came."""
        return self.above.order([self.at[i] for i in indexes])


class StreamJoin:
    """Both sides of a join."""

    def __init__(self, node: p.StreamJoin, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.keeps_ms = node.before_ms + node.after_ms + node.grace_ms
        self.reach = ((node.before_ms, node.after_ms), (node.after_ms, node.before_ms))
        self.waits = (node.how != "inner", node.how == "outer")
        self.time = NEVER  # that all tasks have reached, where operators do not go by records
        stores = [_store(node, word, runtime) for word in WORDS]
        self.sides = [self._open(each, side) for side, each in enumerate(stores)]
        self.codecs = [runtime.codec(each.value, is_key=False) for each in stores]
        self.key_codec = runtime.codec(stores[LEFT].key, is_key=True)
        self.join = joiner(node, node.function, runtime.failures)
        self.needs_keys = runtime.needs(node).key or node.function.takes_key
        self.forward = runtime.forward_several(node)

    def _open(self, store: Store, side: int) -> SegmentStore:
        window_ms = self.node.before_ms + self.node.after_ms
        self.runtime.stores[store.name] = opened = SegmentStore(
            store.name,
            store.changelog_topic,
            max(1, -(-window_ms // 2)),
            self.runtime.place.backend(store.name),
            waits=self.waits[side],
        )
        return opened

    # Records

    def process(self, sides: bytes, batch: Batch) -> None:
        """Joins the records of a run, each of the side that its byte tells."""
        assert batch.raw_keys is not None
        assert batch.raw_values is not None
        pairs = Pairs()
        times: Sequence[int] | None = batch.times if self.runtime.is_timed else None
        records = zip(sides, batch.raw_keys, batch.timestamps, batch.raw_values, strict=True)
        for at, (side, key, stamp, value) in enumerate(records):
            if value is None or key is None:
                self._incomplete(pairs, side, at, key, stamp, value)
            else:
                time = None if times is None else times[at]
                self._record(pairs, side, at, key, stamp, value, time)
        self._emit(pairs, batch)

    def _incomplete(
        self, pairs: Pairs, side: int, at: int, key: bytes | None, stamp: int, value: bytes | None
    ) -> None:
        """A record without a value, or a key."""
        if value is not None and self.waits[side]:
            pairs.alone(side, at, key, stamp, value, made=False)
            return
        self._drop(Reason.NULL_KEY if key is None else Reason.NULL_VALUE)

    def _record(
        self,
        pairs: Pairs,
        side: int,
        at: int,
        key: bytes,
        stamp: int,
        value: bytes,
        time: int | None,
    ) -> None:
        own, other = self.sides[side], self.sides[1 - side]
        if time is None and stamp > own.newest:
            own.newest = stamp
            for row in own.expire(stamp - self.keeps_ms):
                pairs.alone(side, at, row.key, row.stamp, row.value, made=True)
        before, after = self.reach[side]
        newest = other.newest if time is None else time
        low, high = max(stamp - before, newest - self.keeps_ms + 1), stamp + after
        rows = other.matches(key, low, high) if low <= high else []
        for row_stamp, row_value in rows:
            left, right = (value, row_value) if side == LEFT else (row_value, value)
            pairs.add(at, key, max(stamp, row_stamp), left, right)
        if rows and other.waits:
            other.meet(key, low, high)
        waits = own.waits and not rows
        if stamp > (own.newest if time is None else self.time) - self.keeps_ms:
            own.put(key, stamp, value, waits=waits)
            return
        self._drop(Reason.EXPIRED_ROW)
        if waits:
            pairs.alone(side, at, key, stamp, value, made=False)

    def _drop(self, reason: Reason) -> None:
        self.runtime.metrics[DROPPED] += 1
        self.runtime.drops.add(reason, self.node.name)

    # Results

    def _emit(self, pairs: Pairs, batch: Batch | None) -> None:
        """Calls the function for the results of a run, and sends on what it gives."""
        if not pairs.stamps:
            return
        keys = (
            self.key_codec.deserialize(self.sides[LEFT].changelog_topic, pairs.keys)
            if (self.needs_keys)
            else None
        )
        origin, headers = MADE, None
        if batch is not None:
            at = [each for each in pairs.at if each is not None]
            origin = Joined(batch.origin, at, pairs.made)
            headers = None if batch.headers is None else take(batch.headers, at)
        results = Batch(pairs.stamps, origin, keys, pairs.keys, headers=headers)
        results, left, right = self._decode(results, pairs)
        if len(results):
            results, values = self.join(results, left, right)
            self.forward(replace(results, values=values))

    def _decode(self, results: Batch, pairs: Pairs) -> tuple[Batch, Sequence[Any], Sequence[Any]]:
        """The values of both sides; results of a value that cannot be read are left out."""
        columns: list[Sequence[Any]] = []
        bad: set[int] = set()
        for codec, side, column in zip(self.codecs, self.sides, pairs.values, strict=True):
            found, failed = convert(
                codec.deserialize,
                side.changelog_topic,
                column,
                lambda index, error: self.runtime.failures.at(self.node, error, results, index),
            )
            columns.append(found)
            bad.update(failed)
        left, right = columns
        if bad:
            keep = [index not in bad for index in range(len(results))]
            return results.where(keep), list(compress(left, keep)), list(compress(right, keep))
        return results, left, right

    # Time, where operators do not go by their records

    def flush(self) -> None:
        """Nothing waits for the commit."""

    def tick(self, now_ms: int) -> None:
        """The wall clock ends nothing."""

    def advance(self, stream_time: int) -> None:
        """Rows leave that no record of any task can reach."""
        self.time = max(self.time, stream_time)
        limit, pairs = self.time - self.keeps_ms, Pairs()
        over = [zip(self.sides[side].expire(limit), repeat(side)) for side in (RIGHT, LEFT)]
        in_time = merge(*over, key=lambda each: (each[0].stamp, LEFT - each[1], each[0].key))
        for row, side in in_time:
            pairs.alone(side, None, row.key, row.stamp, row.value, made=True)
        self._emit(pairs, None)

    def stream_time(self) -> int | None:
        """How far the tasks had come."""
        return self.time if self.runtime.is_timed else None

    def resume(self, stream_time: int) -> None:
        """Goes on from there."""
        self.time = max(self.time, stream_time)


def _store(node: p.Node, word: str, runtime: Runtime) -> Store:
    store = runtime.store_of(node, word)
    assert store is not None, f"{node.name!r} keeps no {word} side"
    return store


# Inputs: keys and values as the stores have them


def _ready(node: p.StreamJoin, side: int, runtime: Runtime) -> Callable[[Batch], Batch]:
    """Gives batches of one side the bytes of its store: as they came, or by the store's serdes."""
    store = _store(node, WORDS[side], runtime)
    schema = runtime.schema(node.parents[side])
    needs = _side_needs(node, side, runtime)
    steps: list[Callable[[Batch], Batch]] = []
    if needs.key:
        steps.append(_encoder(node, store.key, runtime, is_key=True))
    if needs.value:
        steps.append(_encoder(node, store.value, runtime, is_key=False))
    assert needs.key or schema.key == store.key
    if len(steps) == 2:
        first, second = steps
        return lambda batch: second(first(batch))
    return steps[0] if steps else lambda batch: batch


def _encoder(
    node: p.Node, serde: Serde, runtime: Runtime, *, is_key: bool
) -> Callable[[Batch], Batch]:
    codec = runtime.codec(serde, is_key=is_key)

    def run(batch: Batch) -> Batch:
        column = batch.keys if is_key else batch.values
        assert column is not None
        encoded, bad = convert(
            codec.serialize,
            node.name,
            column,
            lambda index, error: runtime.failures.at(node, error, batch, index),
        )
        made = replace(batch, raw_keys=encoded) if is_key else replace(batch, raw_values=encoded)
        return made.where([index not in bad for index in range(len(made))]) if bad else made

    return run


def _side_needs(node: p.StreamJoin, side: int, runtime: Runtime) -> Needs:
    """Bytes where they came as the store writes them, else objects."""
    store = _store(node, WORDS[side], runtime)
    schema = runtime.schema(node.parents[side])
    raw_key = schema.key == store.key
    raw_value = schema.has_raw_value and schema.value == store.value
    return Needs(key=not raw_key, raw_key=raw_key, value=not raw_value, raw_value=raw_value)


@node_needs.register
def _(node: p.StreamJoin, below: Needs, runtime: Runtime) -> tuple[Needs, ...]:
    return tuple(_side_needs(node, side, runtime) for side in (LEFT, RIGHT))


@compile_node.register
def _(node: p.StreamJoin, runtime: Runtime) -> tuple[Push, ...]:
    operator = StreamJoin(node, runtime)
    runtime.stateful[node] = operator
    inputs = runtime.gathering(operator.process, 2)
    return tuple(_into(_ready(node, side, runtime), inputs[side]) for side in (LEFT, RIGHT))


def _into(ready: Callable[[Batch], Batch], push: Push) -> Push:
    """Only the columns that the join looks at: keys and values as bytes."""

    def run(batch: Batch) -> None:
        batch = ready(batch)
        push(
            Batch(
                batch.timestamps,
                batch.origin,
                raw_keys=batch.raw_keys,
                raw_values=batch.raw_values,
                headers=batch.headers,
                times=batch.times,
            )
        )

    return run
