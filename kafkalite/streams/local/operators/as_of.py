"""Joins of each left record with the latest right one before it.                           [P]

    right     |a      |b   |c              kept for grace + tolerance behind stream time
    left          |1          |2           1 is joined with a, 2 with c
                  └─ waits until stream time is `grace` later, and comes out by (timestamp, key)

Stream time is the newest timestamp of both sides, or what all tasks have reached that write an
input (watermarks.py). A left record that is older than stream time less grace does not wait: it is
joined with the rows that are still there.

Facts  Of right records with one timestamp the last one counts; one that comes after the left record
       has gone out does not. A result has the timestamp and headers of its left record. Records
       without key or value are dropped; a left one with a value and without a key gives the null
       result at once, in a left join.
Fails  through the error policy where a value cannot be written or read, or the function fails.
Source pandas.merge_asof; Kafka Streams' stream-table join with grace (KIP-923).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Final

from kafkalite.core.types import Headers
from kafkalite.serde.primitives import bytes_
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.operators.pairs import (
    LEFT,
    WORDS,
    Pairs,
    Results,
    inputs_of,
    needs_of,
    store_of,
)
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import OrderedStore, SegmentStore

TIME: Final = Struct(">q")
NEVER: Final = -1


class AsOfJoin:
    """The left records that wait, and the right ones that may be their partners."""

    def __init__(self, node: p.AsOfJoin, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.time = NEVER
        self.keeps_ms = node.tolerance_ms + node.grace_ms
        left, right = (store_of(node, word, runtime) for word in WORDS)
        self.waiting = OrderedStore(
            left.name,
            left.changelog_topic,
            runtime.codec(bytes_(), is_key=False),
            runtime.place.backend(left.name),
        )
        self.rows = SegmentStore(
            right.name,
            right.changelog_topic,
            max(1, -(-self.keeps_ms // 2)),
            runtime.place.backend(right.name),
        )
        runtime.stores |= {left.name: self.waiting, right.name: self.rows}
        self.arrivals = 0
        self.queue: list[tuple[int, bytes, int]] = []  # timestamp, key, arrival of those that wait
        self.results = Results(node, runtime)

    def process(self, sides: bytes, batch: Batch) -> None:
        """Takes the records of a run, each of the side that its byte tells."""
        assert batch.raw_keys is not None
        assert batch.raw_values is not None
        pairs = Pairs()
        records = zip(sides, batch.raw_keys, batch.timestamps, batch.raw_values, strict=True)
        for at, (side, key, stamp, value) in enumerate(records):
            if stamp > self.time and not self.runtime.is_timed:
                self._advance(stamp, pairs, at)
            if value is None or (key is None and (side != LEFT or self.node.how == "inner")):
                self.results.drop(Reason.NULL_KEY if key is None else Reason.NULL_VALUE)
            elif key is None:
                pairs.alone(LEFT, at, key, stamp, value, made=False)
            elif side == LEFT:
                headers = () if batch.headers is None else batch.headers[at]
                self._left(pairs, at, key, stamp, value, headers)
            elif stamp < self.time - self.keeps_ms:
                self.results.drop(Reason.EXPIRED_ROW)
            else:
                self.rows.put(key, stamp, value)
        self.results.send(pairs, batch)

    def _left(
        self, pairs: Pairs, at: int, key: bytes, stamp: int, value: bytes, headers: Headers
    ) -> None:
        if stamp <= self.time - self.node.grace_ms:
            self._join(pairs, at, key, stamp, value, made=False)
            return
        self.arrivals += 1
        heappush(self.queue, (stamp, key, self.arrivals))
        self.waiting.put(place_of(stamp, key, self.arrivals), value, stamp, headers)

    def _join(
        self, pairs: Pairs, at: int | None, key: bytes, stamp: int, value: bytes, *, made: bool
    ) -> None:
        low = stamp - self.node.tolerance_ms
        if not made:  # of one that has waited no partner has left, however far time has come
            low = max(low, self.time - self.keeps_ms)
        rows = self.rows.matches(key, low, stamp) if low <= stamp else []
        if rows:
            pairs.add(at, key, stamp, value, rows[-1][1], made=made)
        elif self.node.how == "left":
            pairs.alone(LEFT, at, key, stamp, value, made=made)

    def _advance(self, time: int, pairs: Pairs, at: int | None) -> None:
        """Stream time has come so far: those go out that have waited long enough."""
        self.time = time
        limit = time - self.node.grace_ms
        while self.queue and self.queue[0][0] <= limit:
            stamp, key, arrival = heappop(self.queue)
            place = place_of(stamp, key, arrival)
            row = self.waiting.get(place)
            assert row is not None, f"{self.node.name!r}: a record that waits is gone"
            before = len(pairs.stamps)
            self._join(pairs, at, key, stamp, row.value, made=True)
            if len(pairs.stamps) > before:
                pairs.own_headers[before] = row.headers
            self.waiting.delete(place, stamp)
        self.rows.expire(time - self.keeps_ms - 1)

    # Time and restarts

    def flush(self) -> None:
        """Nothing waits for the commit."""

    def tick(self, now_ms: int) -> None:
        """The wall clock ends no wait."""

    def advance(self, stream_time: int) -> None:
        """All tasks have come so far."""
        if stream_time > self.time:
            pairs = Pairs()
            self._advance(stream_time, pairs, None)
            self.results.send(pairs, None)

    def stream_time(self) -> int | None:
        """The newest timestamp so far."""
        return self.time

    def resume(self, stream_time: int) -> None:
        """Goes on from there."""
        self.time = max(self.time, stream_time)
        places = (place for place, _ in self.waiting.range())
        self.queue = [(TIME.unpack(e[:8])[0], e[8:-8], TIME.unpack(e[-8:])[0]) for e in places]
        heapify(self.queue)
        self.arrivals = max((arrival for _, _, arrival in self.queue), default=0)


def place_of(stamp: int, key: bytes, arrival: int) -> bytes:
    """The key of a row that waits."""
    return TIME.pack(stamp) + key + TIME.pack(arrival)


@node_needs.register
def _(node: p.AsOfJoin, below: Needs, runtime: Runtime) -> tuple[Needs, ...]:
    return needs_of(node, runtime)


@compile_node.register
def _(node: p.AsOfJoin, runtime: Runtime) -> tuple[Push, ...]:
    operator = AsOfJoin(node, runtime)
    runtime.stateful[node] = operator
    return inputs_of(node, operator.process, runtime)
