"""Tables joined by a foreign key: the three steps of streams/foreign.py.                    [P]

Match keeps one row for each left row that refers to something, in the order of the foreign keys
and then of the left keys:

    0, length of the foreign key, foreign key, left key   ->   task and hash of the left row

A row is deleted when the left one refers to another key or is gone, so the store is as large as
the left table, and not larger.

Facts  A result that follows from the left has the newer timestamp of both rows, one that follows
       from the right that of the right record. Inner: a left row that changes its foreign key and
       finds no row gives a deletion, one that is new or keeps its key gives nothing; one without a
       foreign key is dropped and counted. A left row that is gone, or refers to nothing any more,
       gives a deletion if it referred to something. Left: every update of the left gives one of
       the result. An update of the right gives one for each left row that refers to it, in the
       order of the left keys' bytes. Updates of a versioned table that are not the latest of their
       key are dropped and counted, and so are answers to left rows that are gone: deleted, or of a
       window that the store has left (shown.py). Answers to rows that have changed since are left
       out, uncounted, where Kafka Streams counts them: another answer follows.
Fails  through the error policy, with the record. A left row on which the user's function fails
       refers to nothing.
Source Kafka Streams' SubscriptionSendProcessorSupplier, SubscriptionReceiveProcessorSupplier,
       SubscriptionJoinProcessorSupplier, ForeignTableJoinProcessorSupplier,
       ResponseJoinProcessorSupplier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import not_
from typing import Any

from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.serde import Codec
from kafkalite.streams import plan as p
from kafkalite.streams.foreign import PREFIX, ROW, Answer, Asked, What, hash_of
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import function_needs, row_caller
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED, convert
from kafkalite.streams.local.operators.getters import Getter, StoreGetter, getter_needs, getter_of
from kafkalite.streams.local.operators.table_joins import join_caller, joined_rows
from kafkalite.streams.local.operators.tables import LatestRows, as_update
from kafkalite.streams.local.operators.versioned import latest_only
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state.backend import after
from kafkalite.streams.local.state.ordered import OrderedStore

Column = Sequence[Any]


class Hashes:
    """Hashes of the left table's rows, by their bytes."""

    def __init__(self, left: p.Node, runtime: Runtime) -> None:
        plan = runtime.sub_topology.plan
        serde = runtime.schema(left).value or plan.value or msgpack()
        self._codec: Codec = runtime.codec(serde, is_key=False)
        self._topic = left.name

    def __call__(
        self, rows: Column, failed: Callable[[int, Exception], None]
    ) -> list[bytes | None]:
        """The hash of each row, None where there is none."""
        found, _ = convert(self._codec.serialize, self._topic, rows, failed)
        return list(map(hash_of, found))


# What left rows refer to


@node_needs.register
def _(node: p.Reference, below: Needs, runtime: Runtime) -> Needs:
    return (
        Needs(raw_key=True, value=True, old=True) | function_needs(node.select) | Needs(value=True)
    )


@compile_node.register
def _(node: p.Reference, runtime: Runtime) -> Push:
    return References(node, runtime).run


class References:
    """Asks for the rows that left rows refer to."""

    def __init__(self, node: p.Reference, runtime: Runtime) -> None:
        key = runtime.schema(node).key
        assert key is not None, f"{node.name!r}: a table knows its key's serde"
        self.node = node
        self.runtime = runtime
        self.select = row_caller(node, node.select, runtime.failures)
        self.keys = runtime.codec(key, is_key=True)
        self.hashes = Hashes(node.parent, runtime)
        self.forward = runtime.forward_several(node)

    def run(self, batch: Batch) -> None:
        """Takes updates of the left table."""
        batch = latest_only(batch, self.node, self.runtime)
        assert batch.values is not None
        assert batch.olds is not None
        assert batch.raw_keys is not None
        olds, old_keys = self._foreign_keys(batch, batch.olds, are_olds=True)
        news, new_keys = self._foreign_keys(batch, batch.values)
        hashes = self.hashes(batch.values, self._failed(batch))
        taken: list[int] = []
        keys: list[Any] = []
        raw_keys: list[bytes | None] = []
        asked: list[Asked] = []
        for index, (old, new) in enumerate(zip(old_keys, new_keys, strict=True)):
            changes = batch.olds[index] is not None, batch.values[index] is not None
            new = None if hashes[index] is None else new  # perhaps its serde does not write it
            for is_old, what in self._asks(*changes, old, new):
                raw_key = batch.raw_keys[index]
                assert raw_key is not None, f"{self.node.name!r}: a row without a key"
                taken.append(index)
                keys.append((olds if is_old else news)[index])
                raw_keys.append(old if is_old else new)
                asked.append(Asked(what, hashes[index], self.runtime.partition, raw_key))
        if taken:
            batch = batch.take(taken)
            self.forward(Batch(batch.timestamps, batch.origin, keys, raw_keys, asked,
                               headers=batch.headers, times=batch.times))  # fmt: skip

    def _asks(
        self, was: bool, is_there: bool, old: bytes | None, new: bytes | None
    ) -> Iterator[tuple[bool, What]]:
        """What an update asks for, of its old or its new foreign key."""
        if self.node.how == "left":
            if was or is_there:
                if old is not None and old != new:
                    yield True, What.FORGET
                yield False, What.ANSWER
        elif is_there and new is None:
            self.runtime.metrics[DROPPED] += 1
            self.runtime.drops.add(Reason.NULL_KEY, self.node.name)
            if old is not None:
                yield True, What.FORGET_AND_ANSWER
        elif is_there:
            if old is not None and old != new:
                yield True, What.FORGET
                yield False, What.ANSWER
            else:
                yield False, What.ANSWER_IF_THERE
        elif old is not None:
            yield True, What.FORGET_AND_ANSWER

    def _foreign_keys(
        self, batch: Batch, rows: Column, *, are_olds: bool = False
    ) -> tuple[Column, Sequence[bytes | None]]:
        """What each row refers to, as an object and as the right table's key; None: nothing."""
        found, _ = self.select(batch, rows, are_olds=are_olds)
        note = (lambda *_: None) if are_olds else self._failed(batch)
        return found, convert(self.keys.serialize, self.node.name, found, note)[0]

    def _failed(self, batch: Batch) -> Callable[[int, Exception], None]:
        failures = self.runtime.failures
        return lambda index, error: failures.at(self.node, error, batch, index)


# Who refers to what


@node_needs.register
def _(node: p.Match, below: Needs, runtime: Runtime) -> tuple[Needs, Needs]:
    asked = Needs(raw_key=True, value=True)
    return asked | getter_needs(node.parents[1], runtime), Needs(raw_key=True, value=True)


@compile_node.register
def _(node: p.Match, runtime: Runtime) -> tuple[Push, ...]:
    matches = Matches(node, runtime)
    return runtime.meeting((matches.asked, matches.right))


class Matches:
    """Answers those who refer to a row of the right table."""

    def __init__(self, node: p.Match, runtime: Runtime) -> None:
        owned, key = runtime.store_of(node), runtime.schema(node).key
        assert owned is not None, f"{node.name!r} owns no store"
        assert key is not None, f"{node.name!r}: the left table knows its key's serde"
        self.node = node
        self.runtime = runtime
        self.get: Getter = getter_of(node.parents[1], runtime)
        self.keys = runtime.codec(key, is_key=True) if runtime.needs(node).key else None
        self.forward = runtime.forward_several(node)
        self.store = OrderedStore(
            owned.name,
            owned.changelog_topic,
            runtime.codec(owned.value, is_key=False),
            runtime.place.backend(owned.name),
        )
        runtime.stores[owned.name] = self.store

    def asked(self, batch: Batch) -> None:
        """Takes what left rows ask for."""
        assert batch.raw_keys is not None
        assert batch.values is not None
        rows, stamps = self._rows(batch)
        taken: list[int] = []
        keys: list[bytes] = []
        answers: list[Answer] = []
        timestamps: list[int] = []
        for index, asked in enumerate(batch.values):
            row, own = rows[index], batch.timestamps[index]
            self._note(batch.raw_keys[index], asked, own)
            if asked.what is What.FORGET or (asked.what is What.ANSWER_IF_THERE and row is None):
                continue
            taken.append(index)
            keys.append(asked.key)
            given = None if asked.what is What.FORGET_AND_ANSWER else row
            answers.append(Answer(asked.hash, given, asked.task))
            timestamps.append(own if row is None else max(own, stamps[index]))
        self._answer(batch, taken, keys, answers, timestamps)

    def right(self, batch: Batch) -> None:
        """Takes updates of the right table, which have reached its store."""
        batch = latest_only(batch, self.node, self.runtime)
        assert batch.raw_keys is not None
        assert batch.values is not None
        taken: list[int] = []
        keys: list[bytes] = []
        answers: list[Answer] = []
        for index, (key, row) in enumerate(zip(batch.raw_keys, batch.values, strict=True)):
            prefix = _prefix(key)
            for place, found in self.store.range(prefix, after(prefix)):
                task, left = ROW.unpack(found.value)
                taken.append(index)
                keys.append(place[len(prefix) :])
                answers.append(Answer(left, row, task))
        self._answer(batch, taken, keys, answers, [batch.timestamps[index] for index in taken])

    def _rows(self, batch: Batch) -> tuple[Column, Sequence[int]]:
        """The row that each foreign key has, and its timestamp; None without a foreign key."""
        assert batch.raw_keys is not None
        has_key = [key is not None for key in batch.raw_keys]
        if all(has_key):
            return self.get(batch)
        there = list(compress(range(len(batch)), has_key))
        rows: list[Any] = [None] * len(batch)
        stamps = [0] * len(batch)
        found = self.get(batch.take(there)) if there else ((), ())
        for index, row, stamp in zip(there, *found, strict=True):
            rows[index], stamps[index] = row, stamp
        return rows, stamps

    def _note(self, key: bytes | None, asked: Asked, stamp: int) -> None:
        """Keeps who refers to `key`."""
        if key is None:
            return
        place = _prefix(key) + asked.key
        if asked.what in (What.FORGET, What.FORGET_AND_ANSWER):
            self.store.delete(place, stamp)
        else:
            assert asked.hash is not None, f"{self.node.name!r}: a reference of no row"
            self.store.put(place, ROW.pack(asked.task, asked.hash), stamp)

    def _answer(
        self,
        batch: Batch,
        taken: Sequence[int],
        raw_keys: Sequence[bytes],
        answers: Sequence[Answer],
        timestamps: Sequence[int],
    ) -> None:
        if not taken:
            return
        batch = batch.take(taken)
        keys = None
        if self.keys is not None:
            keys = self.keys.deserialize(self.node.name, raw_keys)
        self.forward(Batch(timestamps, batch.origin, keys, raw_keys, answers,
                           headers=batch.headers, times=batch.times))  # fmt: skip


def _prefix(key: bytes | None) -> bytes:
    assert key is not None, "a table has no row without a key"
    return PREFIX.pack(0, len(key)) + key


# The result


@node_needs.register
def _(node: p.ForeignJoin, below: Needs, runtime: Runtime) -> tuple[Needs, Needs]:
    answers = Needs(below.key or node.function.takes_key, raw_key=True, value=True)
    return Needs(), answers | getter_needs(node.parents[0], runtime)


@compile_node.register
def _(node: p.ForeignJoin, runtime: Runtime) -> tuple[Push, ...]:
    forward = runtime.forward(node)
    get, call = getter_of(node.parents[0], runtime), join_caller(node, runtime)
    hashes = Hashes(node.parents[0], runtime)
    store = None if runtime.store_of(node) is None else LatestRows(node, runtime)

    def answered(batch: Batch) -> None:
        assert batch.values is not None
        lefts = get(batch).values
        note: Callable[[int, Exception], None] = lambda *_: None  # noqa: E731 - References has told
        fresh = [
            answer.hash == found
            for answer, found in zip(batch.values, hashes(lefts, note), strict=True)
        ]
        gone = sum(left is None for left in compress(lefts, map(not_, fresh)))
        runtime.metrics[DROPPED] += gone
        runtime.drops.add(Reason.GONE, node.name, gone)
        batch, lefts = batch.where(fresh), list(compress(lefts, fresh))
        if not len(batch):
            return
        assert batch.values is not None
        rights = [answer.row for answer in batch.values]
        results, failed = joined_rows(node.how, call, batch, lefts, rights)
        olds = None if store is None else store.put(batch, results)
        batch = as_update(batch, results, olds)
        if failed:
            left_out = {at for at in failed if olds is None or olds[at] is None}
            batch = batch.where([index not in left_out for index in range(len(batch))])
        if len(batch):
            forward(batch)

    return _ignore, answered


def _ignore(batch: Batch) -> None:
    """Updates of the left table are in its store when the answer comes."""


@getter_of.register
def _(node: p.ForeignJoin, runtime: Runtime, *, as_of: bool = False) -> Getter:
    return StoreGetter(node, runtime)
