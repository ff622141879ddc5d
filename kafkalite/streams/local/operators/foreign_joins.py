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

from collections.abc import Callable, Sequence
from itertools import compress
from operator import not_
from typing import Any, Final

from kafkalite.core.columns import objects
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.serde import Codec
from kafkalite.streams import plan as p
from kafkalite.streams.foreign import (
    ANSWER,
    ASKED,
    HASH_BYTES,
    NO_HASH,
    PREFIX,
    AnswerSerde,
    What,
    answered,
    asked_heads,
    checked,
    hash_of,
    kept_of,
    reminded,
)
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

KNOWN_MAX: Final = 100_000  # hashes of rows
# As plain numbers: an enum's members are slow to hash and to compare
FORGET, FORGET_AND_ANSWER, ANSWER_IT, IF_THERE = map(int, What)
FORGETS: Final = (FORGET, FORGET_AND_ANSWER)
# What an update of a left row asks for: of the old foreign key, or of the new one
Asks = tuple[tuple[bool, int], ...]
ASK: Final[Asks] = ((False, ANSWER_IT),)
ASK_IF_THERE: Final[Asks] = ((False, IF_THERE),)
FORGET_AND_ASK: Final[Asks] = ((True, FORGET), (False, ANSWER_IT))
LEAVE: Final[Asks] = ((True, FORGET_AND_ANSWER),)


class Hashes:
    """Hashes of the left table's rows, by their bytes. Those of rows that came last are known."""

    def __init__(self, left: p.Node, runtime: Runtime) -> None:
        plan = runtime.sub_topology.plan
        serde = runtime.schema(left).value or plan.value or msgpack()
        self._codec: Codec = runtime.codec(serde, is_key=False)
        self._topic = left.name
        self._known: dict[bytes, tuple[Any, bytes | None]] = {}  # a row of a key, and its hash

    def note(
        self, keys: Sequence[bytes], rows: Column, failed: Callable[[int, Exception], None]
    ) -> list[bytes | None]:
        """The hash of each row, None where there is none."""
        found, _ = convert(self._codec.serialize, self._topic, rows, failed)
        hashes = list(map(hash_of, found))
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        self._known.update(zip(keys, zip(rows, hashes, strict=True), strict=True))
        return hashes

    def of(self, keys: Sequence[bytes], rows: Column) -> list[bytes | None]:
        """The same of rows that may have been noted; those that cannot be written were told of."""
        found: list[bytes | None] = []
        unknown: list[int] = []
        known = self._known.get
        for index, (key, row) in enumerate(zip(keys, rows, strict=True)):
            entry = known(key)
            is_known = row is not None and entry is not None and entry[0] is row
            if is_known or row is None:
                found.append(entry[1] if is_known and entry is not None else None)
            else:
                found.append(None)
                unknown.append(index)
        if unknown:
            its = [rows[index] for index in unknown]
            data, _ = convert(self._codec.serialize, self._topic, its, lambda *_: None)
            for index, each in zip(unknown, data, strict=True):
                found[index] = hash_of(each)
        return found


def hashes_of(left: p.Node, runtime: Runtime) -> Hashes:
    """The hashes of a left table, which two steps of a join have in common."""
    if left not in runtime.hashes:
        runtime.hashes[left] = Hashes(left, runtime)
    found = runtime.hashes[left]
    assert isinstance(found, Hashes)
    return found


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
        self.heads = asked_heads(runtime.partition)
        self.hashes = hashes_of(node.parent, runtime)
        self.asks = self._left_asks if node.how == "left" else self._asks
        self.objects = ObjectsOf(node, runtime)
        self.forward = runtime.forward_several(node)

    def run(self, batch: Batch) -> None:
        """Takes updates of the left table."""
        batch = latest_only(batch, self.node, self.runtime)
        assert batch.values is not None
        assert batch.olds is not None
        assert batch.raw_keys is not None
        lefts: list[Any] = objects(batch.raw_keys)
        olds, old_keys = self._foreign_keys(batch, batch.olds, are_olds=True)
        news, new_keys = self._foreign_keys(batch, batch.values)
        hashes = self.hashes.note(lefts, batch.values, self._failed(batch))
        taken: list[int] = []
        keys: list[Any] = []
        raw_keys: list[bytes | None] = []
        asked: list[bytes] = []
        rows = zip(lefts, batch.olds, batch.values, old_keys, new_keys, hashes, strict=True)
        for index, (left, was, row, old, new, found) in enumerate(rows):
            if found is None:
                new = None  # perhaps its serde does not write the row
            heads, tail = self.heads[found is not None], (found or NO_HASH) + left
            for is_old, what in self.asks(was is not None, row is not None, old, new):
                taken.append(index)
                keys.append((olds if is_old else news)[index])
                raw_keys.append(old if is_old else new)
                asked.append(heads[what] + tail)
        if taken:
            batch = batch.take(taken)
            values = self.objects(asked)
            self.forward(Batch(batch.timestamps, batch.origin, keys, raw_keys, values, asked,
                               headers=batch.headers, times=batch.times))  # fmt: skip

    def _left_asks(self, was: bool, is_there: bool, old: bytes | None, new: bytes | None) -> Asks:
        """What an update asks for, of its old or its new foreign key."""
        if not was and not is_there:
            return ()
        return ASK if old is None or old == new else FORGET_AND_ASK

    def _asks(self, was: bool, is_there: bool, old: bytes | None, new: bytes | None) -> Asks:
        """The same, of an inner join."""
        if not is_there or new is None:
            if is_there:
                self.runtime.metrics[DROPPED] += 1
                self.runtime.drops.add(Reason.NULL_KEY, self.node.name)
            return () if old is None else LEAVE
        return ASK_IF_THERE if old is None or old == new else FORGET_AND_ASK

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
    asked = Needs(raw_key=True, raw_value=True)
    return asked | getter_needs(node.parents[1], runtime), Needs(raw_key=True, value=True)


@compile_node.register
def _(node: p.Match, runtime: Runtime) -> tuple[Push, ...]:
    matches = Matches(node, runtime)
    return runtime.meeting((matches.asked, matches.right))


class Matches:
    """Answers those who refer to a row of the right table."""

    def __init__(self, node: p.Match, runtime: Runtime) -> None:
        owned, schema = runtime.store_of(node), runtime.schema(node)
        assert owned is not None, f"{node.name!r} owns no store"
        assert schema.key is not None, f"{node.name!r}: the left table knows its key's serde"
        assert isinstance(schema.value, AnswerSerde)
        self.node = node
        self.runtime = runtime
        self.get: Getter = getter_of(node.parents[1], runtime)
        self.keys = runtime.codec(schema.key, is_key=True) if runtime.needs(node).key else None
        self.rows = runtime.codec(schema.value.row, is_key=False)
        (sink,) = runtime.children(node, p.Sink)
        assert isinstance(sink, p.Sink)
        assert isinstance(sink.topic, str)
        self.topic = sink.topic
        self.objects = ObjectsOf(node, runtime)
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
        batch, values = checked_bytes(batch, self.node, self.runtime)
        assert batch.raw_keys is not None
        rows, stamps = self._rows(batch)
        taken: list[int] = []
        timestamps: list[int] = []
        given: list[Any] = []
        changes: list[tuple[bytes, bytes | None, int]] = []  # of who refers to what
        size = ASKED.size
        columns = zip(objects(batch.raw_keys), values, rows, stamps, batch.timestamps, strict=True)
        for index, (key, asked, row, stamp, own) in enumerate(columns):
            what = asked[1]
            if key is not None:
                assert asked[2] or what in FORGETS, f"{self.node.name!r}: a reference of no row"
                place = PREFIX.pack(0, len(key)) + key + asked[size:]
                changes.append((place, None if what in FORGETS else kept_of(asked), own))
            if what == FORGET or (what == IF_THERE and row is None):
                continue
            taken.append(index)
            given.append(None if what == FORGET_AND_ANSWER else row)
            timestamps.append(own if row is None else max(own, stamp))
        self.store.change(changes)
        if taken:
            batch = batch.take(taken)
            asking = [values[index] for index in taken]
            data, bad = self._written(batch, given)
            answers = list(map(answered, asking, data))
            self._answer(batch, [asked[size:] for asked in asking], answers, timestamps, bad)

    def right(self, batch: Batch) -> None:
        """Takes updates of the right table, which have reached its store."""
        batch = latest_only(batch, self.node, self.runtime)
        assert batch.raw_keys is not None
        assert batch.values is not None
        rows, bad = list[bytes | None](), list[int]()
        taken: list[int] = []
        keys: list[bytes] = []
        answers: list[bytes] = []
        rights: list[Any] = objects(batch.raw_keys)
        for index, key in enumerate(rights):
            prefix = PREFIX.pack(0, len(key)) + key
            found = list(self.store.range(prefix, after(prefix)))
            if not found:
                continue
            if not rows:  # not written before somebody refers to one
                written, bad = self._written(batch, batch.values)
                rows = list(written)
            if index in bad:
                continue
            at, row = len(prefix), rows[index]
            taken += [index] * len(found)
            keys += [place[at:] for place, _ in found]
            answers += [reminded(kept.value, row) for _, kept in found]
        if taken:
            batch = batch.take(taken)
            self._answer(batch, keys, answers, batch.timestamps)

    def _written(self, batch: Batch, rows: Column) -> tuple[Sequence[bytes | None], list[int]]:
        """The bytes of rows in answers, and where the serde cannot write them."""
        failures = self.runtime.failures
        note = lambda index, error: failures.at(self.node, error, batch, index)  # noqa: E731
        return convert(self.rows.serialize, self.topic, rows, note)

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

    def _answer(
        self,
        batch: Batch,
        raw_keys: Sequence[bytes],
        answers: Sequence[bytes],
        timestamps: Sequence[int],
        bad: Sequence[int] = (),
    ) -> None:
        keys = None
        if self.keys is not None:
            keys = self.keys.deserialize(self.node.name, raw_keys)
        made = Batch(timestamps, batch.origin, keys, raw_keys, self.objects(answers),
                     answers, headers=batch.headers, times=batch.times)  # fmt: skip
        if bad:
            made = made.where([index not in bad for index in range(len(made))])
        if len(made):
            self.forward(made)


def checked_bytes(batch: Batch, node: p.Node, runtime: Runtime) -> tuple[Batch, Sequence[bytes]]:
    """What goes between the steps, as bytes; what is none of it goes to the policy."""
    assert batch.raw_values is not None
    note = lambda index, error: runtime.failures.at(node, error, batch, index)  # noqa: E731
    values, bad = convert(checked, node.name, objects(batch.raw_values), note)
    if not bad:
        return batch, values
    batch = batch.where([index not in bad for index in range(len(batch))])
    return batch, [each for each in values if each is not None]


class ObjectsOf:
    """Objects of what a step makes, for those who want some: an explanation shows them."""

    def __init__(self, node: p.Reference | p.Match, runtime: Runtime) -> None:
        serde = runtime.schema(node).value
        assert serde is not None
        is_wanted = runtime.needs(node).value
        self._codec = runtime.codec(serde, is_key=False) if is_wanted else None
        self._name = node.name

    def __call__(self, column: Sequence[bytes]) -> Column | None:
        """The objects, None where nobody wants any."""
        return None if self._codec is None else self._codec.deserialize(self._name, column)


# The result


@node_needs.register
def _(node: p.ForeignJoin, below: Needs, runtime: Runtime) -> tuple[Needs, Needs]:
    answers = Needs(below.key or node.function.takes_key, raw_key=True, raw_value=True)
    return Needs(), answers | getter_needs(node.parents[0], runtime)


@compile_node.register
def _(node: p.ForeignJoin, runtime: Runtime) -> tuple[Push, ...]:
    forward = runtime.forward(node)
    get, call = getter_of(node.parents[0], runtime), join_caller(node, runtime)
    hashes = hashes_of(node.parents[0], runtime)
    serde = runtime.schema(node.parents[1]).value
    assert isinstance(serde, AnswerSerde)
    rows = runtime.codec(serde.row, is_key=False)
    (topic,) = _source_of(node).topics
    store = None if runtime.store_of(node) is None else LatestRows(node, runtime)

    def read(batch: Batch, answers: Sequence[bytes]) -> tuple[Batch, Column, list[int]]:
        """The right rows of answers, and where they cannot be read."""
        data = [each[ANSWER.size :] if each[1] else None for each in answers]
        note = lambda index, error: runtime.failures.at(node, error, batch, index)  # noqa: E731
        return batch, *convert(rows.deserialize, topic, data, note)

    def take(batch: Batch) -> None:
        batch, answers = checked_bytes(batch, node, runtime)
        keys: list[Any] = objects(batch.raw_keys or ())
        lefts = get(batch).values
        head = ANSWER.size - HASH_BYTES
        fresh = [
            (answer[head : ANSWER.size] if answer[2] else None) == found
            for answer, found in zip(answers, hashes.of(keys, lefts), strict=True)
        ]
        gone = sum(left is None for left in compress(lefts, map(not_, fresh)))
        runtime.metrics[DROPPED] += gone
        runtime.drops.add(Reason.GONE, node.name, gone)
        batch, lefts = batch.where(fresh), list(compress(lefts, fresh))
        batch, rights, bad = read(batch, list(compress(answers, fresh)))
        if bad:
            keep = [index not in bad for index in range(len(batch))]
            batch, lefts = batch.where(keep), list(compress(lefts, keep))
            rights = list(compress(rights, keep))
        if not len(batch):
            return
        results, failed = joined_rows(node.how, call, batch, lefts, rights)
        olds = None if store is None else store.put(batch, results)
        batch = as_update(batch, results, olds)
        if failed:
            left_out = {at for at in failed if olds is None or olds[at] is None}
            batch = batch.where([index not in left_out for index in range(len(batch))])
        if len(batch):
            forward(batch)

    return _ignore, take


def _source_of(node: p.ForeignJoin) -> p.Source:
    source = node.parents[1]
    assert isinstance(source, p.Source), f"{node.name!r}: answers come from a topic"
    return source


def _ignore(batch: Batch) -> None:
    """Updates of the left table are in its store when the answer comes."""


@getter_of.register
def _(node: p.ForeignJoin, runtime: Runtime, *, as_of: bool = False) -> Getter:
    return StoreGetter(node, runtime)
