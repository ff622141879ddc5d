"""Joins of two streams: pairs of records with equal keys whose timestamps are close.         [P]

Each side keeps its rows, values as bytes, for as long as a partner may come (state/segments.py). A
record of either side is joined with the rows of the other side, and then becomes a row itself.

    left at t      is joined with right rows in [t - before, t + after]
    right at t     is joined with left rows in [t - after, t + before]
    visible        are rows with timestamp > newest row of that side - (before + after + grace)
    null result    of a row without a partner, once it is not visible any more: never beside a pair

No record is too late to be joined. Where several tasks write an input (watermarks.py), `newest` is
the time by which the record is judged, and rows leave when all tasks have passed them.

The inputs are gathered (order.py): a run gives the records of both sides in their order, and the
pairs of a run leave together, as one batch unless they are very many.

Facts  A record without key or value is dropped; with a value and without a key it gives a null
       result at once where its side may have one. Pairs come oldest row first. A pair has the later
       timestamp and the headers of the record that came; a null result its own timestamp and the
       headers of the record that ended the wait.
Fails  through the error policy where a value cannot be written or read, or the function fails.
Source Kafka Streams' KStreamKStreamJoin, and KIP-633. Its null results may come before a pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import repeat
from typing import Final

from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import TIMESTAMP_MAX
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.operators.matching import NATIVE, match
from kafkalite.streams.local.operators.pairs import (
    LEFT,
    RIGHT,
    WORDS,
    Pairs,
    Results,
    inputs_of,
    needs_of,
    store_of,
)
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import SegmentStore
from kafkalite.streams.stores import Store

NEVER: Final = -1
PAIRS_MAX: Final = 100_000  # that leave as one batch, and those of one record more
DROPS: Final = (Reason.NULL_KEY, Reason.NULL_VALUE, Reason.EXPIRED_ROW)  # as the loop counts them


class StreamJoin:
    """Both sides of a join."""

    def __init__(self, node: p.StreamJoin, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.keeps_ms = min(node.before_ms + node.after_ms + node.grace_ms, TIMESTAMP_MAX)
        self.reach = ((node.before_ms, node.after_ms), (node.after_ms, node.before_ms))
        self.waits = (node.how != "inner", node.how == "outer")
        self.time = NEVER  # that all tasks have reached, where operators do not go by records
        stores = [store_of(node, word, runtime) for word in WORDS]
        self.sides = [self._open(each, side) for side, each in enumerate(stores)]
        self.results = Results(node, runtime)

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
        times = batch.times if self.runtime.is_timed else None
        assert times is not None or not self.runtime.is_timed
        if NATIVE:
            for found in self.natively(sides, batch.raw_keys, batch, batch.raw_values, times):
                self.results.send(found, batch)
            return
        pairs = Pairs()
        records = zip(sides, batch.raw_keys, batch.timestamps, batch.raw_values, strict=True)
        for at, (side, key, stamp, value) in enumerate(records):
            if key is None or value is None:
                self.incomplete(pairs, side, at, key, stamp, value)
            else:
                time = None if times is None else times[at]
                self.record(pairs, side, at, key, stamp, value, time)
            if len(pairs.stamps) >= PAIRS_MAX:
                self.results.send(pairs, batch)
                pairs = Pairs()
        self.results.send(pairs, batch)

    def natively(
        self,
        sides: bytes,
        keys: Sequence[bytes | None],
        batch: Batch,
        values: Sequence[bytes | None],
        times: Sequence[int] | None,
    ) -> Iterator[Pairs]:
        """What the native loop makes of a run, some `PAIRS_MAX` at a time."""
        stamps = Int64s.gathered(batch.timestamps)
        judged = None if times is None else Int64s.gathered(times)
        assert stamps is not None, f"{self.node.name!r}: timestamps are no integers"
        columns, end = (sides, _spans(keys), stamps, _spans(values), judged), 0
        while end < len(batch):
            end, at, made, made_stamps, made_keys, left, right, dropped = match(
                self, *columns, end, PAIRS_MAX
            )
            for reason, count in zip(DROPS, dropped, strict=True):
                self.results.drop(reason, count)
            yield Pairs(at, made, made_keys, made_stamps, (left, right))

    def incomplete(
        self, pairs: Pairs, side: int, at: int, key: bytes | None, stamp: int, value: bytes | None
    ) -> None:
        """A record without a value, or a key."""
        if value is not None and self.waits[side]:
            pairs.alone(side, at, key, stamp, value, made=False)
            return
        self.results.drop(Reason.NULL_KEY if key is None else Reason.NULL_VALUE)

    def record(
        self,
        pairs: Pairs,
        side: int,
        at: int,
        key: bytes,
        stamp: int,
        value: bytes,
        time: int | None,
    ) -> None:
        """A record, judged by `time` or, without it, by the rows that there are."""
        own, other = self.sides[side], self.sides[1 - side]
        if time is None and stamp > own.newest:
            self.expire(pairs, side, at, stamp)
        before, after = self.reach[side]
        newest = other.newest if time is None else time
        low = max(0, stamp - before, newest - self.keeps_ms + 1)
        high = min(stamp + after, TIMESTAMP_MAX)
        rows = other.matches(key, low, high) if low <= high else []
        for row_stamp, row_value in rows:
            left, right = (value, row_value) if side == LEFT else (row_value, value)
            pairs.add(at, key, max(stamp, row_stamp), left, right)
        if rows and other.waits:
            other.meet(key, low, high)
        if stamp > (own.newest if time is None else self.time) - self.keeps_ms:
            own.put(key, stamp, value, waits=own.waits and not rows)
        else:
            self.refuse(pairs, side, at, key, stamp, value, bool(rows))

    def expire(self, pairs: Pairs, side: int, at: int, newest: int) -> None:
        """A record is the newest of its side: the rows that it puts out of reach are over."""
        own = self.sides[side]
        own.newest = newest
        for stamp, key, value in own.expire(newest - self.keeps_ms):
            pairs.alone(side, at, key, stamp, value, made=True)

    def refuse(
        self, pairs: Pairs, side: int, at: int, key: bytes, stamp: int, value: bytes, has_met: bool
    ) -> None:
        """A record that is too old to become a row."""
        self.results.drop(Reason.EXPIRED_ROW)
        if self.waits[side] and not has_met:
            pairs.alone(side, at, key, stamp, value, made=False)

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
        in_time = merge(*over, key=lambda each: (each[0][0], LEFT - each[1], each[0][1]))
        for (stamp, key, value), side in in_time:
            pairs.alone(side, None, key, stamp, value, made=True)
        self.results.send(pairs, None)

    def stream_time(self) -> int | None:
        """How far the tasks had come."""
        return self.time if self.runtime.is_timed else None

    def resume(self, stream_time: int) -> None:
        """Goes on from there."""
        self.time = max(self.time, stream_time)


def _spans(column: Sequence[bytes | None]) -> Spans:
    """Bytes of any kind as spans: a serde of the user's may write a bytearray."""
    found = Spans.gathered(column)
    if found is None:
        found = Spans.gathered([None if each is None else bytes(each) for each in column])
        assert found is not None
    return found


@node_needs.register
def _(node: p.StreamJoin, below: Needs, runtime: Runtime) -> tuple[Needs, ...]:
    return needs_of(node, runtime)


@compile_node.register
def _(node: p.StreamJoin, runtime: Runtime) -> tuple[Push, ...]:
    operator = StreamJoin(node, runtime)
    runtime.stateful[node] = operator
    return inputs_of(node, operator.process, runtime)
