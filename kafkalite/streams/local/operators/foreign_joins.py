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

from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Any, Final

from kafkalite.core.columns import keeps_all, negated, objects, take
from kafkalite.serde.msgpack import msgpack
from kafkalite.serde.serde import Codec
from kafkalite.streams import plan as p
from kafkalite.streams.foreign import PREFIX, AnswerSerde, What, checked, hash_of, reminded
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.calling import function_needs, row_caller
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED, convert
from kafkalite.streams.local.operators.getters import Getter, StoreGetter, getter_needs, getter_of
from kafkalite.streams.local.operators.references import answers, asks, matched, opened
from kafkalite.streams.local.operators.table_joins import join_caller, joined_rows
from kafkalite.streams.local.operators.tables import LatestRows, as_update
from kafkalite.streams.local.operators.versioned import latest_only
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state.backend import after
from kafkalite.streams.local.state.ordered import OrderedStore

Column = Sequence[Any]

KNOWN_MAX: Final = 100_000  # hashes of rows
KNOWN_BYTES_MAX: Final = 32 << 20  # of these rows, which stay in memory with their hashes
# As plain numbers: an enum's members are slow to compare
FORGET_AND_ANSWER, IF_THERE = int(What.FORGET_AND_ANSWER), int(What.ANSWER_IF_THERE)


class Hashes:
    """Hashes of the left table's rows, by their bytes. Those of rows that came last are known."""

    def __init__(self, left: p.Node, runtime: Runtime) -> None:
        plan = runtime.sub_topology.plan
        serde = runtime.schema(left).value or plan.value or msgpack()
        self._codec: Codec = runtime.codec(serde, is_key=False)
        self._topic = left.name
        self._known: dict[bytes, tuple[Any, bytes | None]] = {}  # a row of a key, and its hash
        self._known_bytes = 0  # of the rows that were noted, also of those replaced since

    def note(
        self, keys: Sequence[bytes], rows: Column, failed: Callable[[int, Exception], None]
    ) -> list[bytes | None]:
        """The hash of each row, None where there is none."""
        found, _ = convert(self._codec.serialize, self._topic, rows, failed)
        hashes = list(map(hash_of, found))
        if len(self._known) > KNOWN_MAX or self._known_bytes > KNOWN_BYTES_MAX:
            self._known.clear()
            self._known_bytes = 0
        self._known_bytes += sum(map(len, filter(None, found)))
        self._known.update(zip(keys, zip(rows, hashes, strict=True), strict=True))
        return hashes

    def of(self, keys: Sequence[bytes], rows: Column) -> list[bytes | None]:
        """The same for rows that may have been noted; failures to write them were reported then."""
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
        self.hashes = hashes_of(node.parent, runtime)
        self.objects = ObjectsOf(node, runtime)
        self.forward = runtime.forward_several(node)

    def run(self, batch: Batch) -> None:
        """Takes updates of the left table."""
        batch = latest_only(batch, self.node, self.runtime)
        assert batch.values is not None
        assert batch.olds is not None
        assert batch.raw_keys is not None
        lefts: list[Any] = objects(batch.raw_keys)
        olds, old_keys, _ = self._foreign_keys(batch, batch.olds, are_olds=True)
        news, new_keys, failed = self._foreign_keys(batch, batch.values)
        hashes = self.hashes.note(lefts, batch.values, self._failed(batch))
        is_left = self.node.how == "left"
        asked = asks(lefts, objects(batch.olds), objects(batch.values), objects(old_keys),
                     objects(new_keys), hashes, self.runtime.partition, is_left)  # fmt: skip
        if not is_left and None in new_keys:
            self._drop_without_key(batch.values, new_keys, failed)
        if not asked.records:
            return
        keys = None
        if self.runtime.needs(self.node).key:
            pairs = zip(asked.records, asked.of_old, strict=True)
            keys = [(olds if is_old else news)[index] for index, is_old in pairs]
        self.forward(made_of(batch, asked.records, keys, asked.keys, self.objects(asked.values),
                             asked.values))  # fmt: skip

    def _drop_without_key(
        self, rows: Column, keys: Sequence[bytes | None], failed: Collection[int]
    ) -> None:
        """Counts the rows of an inner join that refer to nothing; failures are counted already."""
        pairs = enumerate(zip(rows, keys, strict=True))
        dropped = sum(
            row is not None and key is None and at not in failed for at, (row, key) in pairs
        )
        self.runtime.metrics[DROPPED] += dropped
        self.runtime.drops.add(Reason.NULL_KEY, self.node.name, dropped)

    def _foreign_keys(
        self, batch: Batch, rows: Column, *, are_olds: bool = False
    ) -> tuple[Column, Sequence[bytes | None], set[int]]:
        """What each row refers to, as an object and as the right table's key, None for nothing; and
        where that could not be found out."""
        found, failed = self.select(batch, rows, are_olds=are_olds)
        note = (lambda *_: None) if are_olds else self._failed(batch)
        keys, bad = convert(self.keys.serialize, self.node.name, found, note)
        return found, keys, {*failed, *bad}

    def _failed(self, batch: Batch) -> Callable[[int, Exception], None]:
        failures = self.runtime.failures
        return lambda index, error: failures.at(self.node, error, batch, index)


# References of left rows


@node_needs.register
def _(node: p.Match, below: Needs, runtime: Runtime) -> tuple[Needs, Needs]:
    asked = Needs(raw_key=True, raw_value=True)
    return asked | getter_needs(node.parents[1], runtime), Needs(raw_key=True, value=True)


@compile_node.register
def _(node: p.Match, runtime: Runtime) -> tuple[Push, ...]:
    matches = Matches(node, runtime)
    return runtime.meeting((matches.asked, matches.right))


class Matches:
    """Answers the left rows that refer to a row of the right table."""

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
        asked: list[Any] = objects(values)
        found = matched(objects(batch.raw_keys), asked, objects(batch.timestamps))
        self.store.change(found.changes)
        if len(found.answered) < len(asked):
            batch = batch.take(found.answered)
            asked = [asked[index] for index in found.answered]
        if asked:
            self._answer_asked(batch, asked)

    def _answer_asked(self, batch: Batch, asked: list[bytes]) -> None:
        """Answers the left rows that ask for a row, now."""
        rows, stamps = self._rows(batch)
        times = zip(rows, stamps, batch.timestamps, strict=True)
        timestamps = [own if row is None else max(own, stamp) for row, stamp, own in times]
        whats = [each[1] for each in asked]
        given = rows
        if FORGET_AND_ANSWER in whats:
            pairs = zip(whats, rows, strict=True)
            given = [None if what == FORGET_AND_ANSWER else row for what, row in pairs]
        data, bad = self._written(batch, given)
        keys, made = answers(asked, objects(data))
        left_out = set(bad)
        if IF_THERE in whats:
            there = enumerate(zip(whats, rows, strict=True))
            left_out |= {at for at, (what, row) in there if what == IF_THERE and row is None}
        self._answer(batch, None, keys, made, timestamps, left_out)

    def right(self, batch: Batch) -> None:
        """Takes updates of the right table, which have reached its store."""
        batch = latest_only(batch, self.node, self.runtime)
        assert batch.raw_keys is not None
        assert batch.values is not None
        rows, bad = list[bytes | None](), list[int]()
        taken: list[int] = []
        keys: list[bytes] = []
        made: list[bytes] = []
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
            made += [reminded(kept.value, row) for _, kept in found]
        if taken:
            self._answer(batch, taken, keys, made, take(batch.timestamps, taken))

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
        taken: Sequence[int] | None,
        raw_keys: Sequence[bytes],
        made: Sequence[bytes],
        timestamps: Sequence[int],
        left_out: Collection[int] = (),
    ) -> None:
        """Sends answers to the records, or to those at `taken`."""
        keys = None
        if self.keys is not None:
            keys = self.keys.deserialize(self.node.name, raw_keys)
        whole = made_of(batch, taken, keys, raw_keys, self.objects(made), made, timestamps)
        if left_out:
            whole = whole.where([index not in left_out for index in range(len(whole))])
        if len(whole):
            self.forward(whole)


def made_of(
    batch: Batch,
    taken: Sequence[int] | None,
    keys: Column | None,
    raw_keys: Sequence[bytes | None],
    values: Column | None,
    raw_values: Sequence[bytes],
    timestamps: Sequence[int] | None = None,
) -> Batch:
    """Records that follow from those of `batch`, or of these at `taken`."""
    above = Batch(batch.timestamps, batch.origin, headers=batch.headers, times=batch.times)
    above = above if taken is None else above.take(taken)
    stamps = above.timestamps if timestamps is None else timestamps
    return Batch(stamps, above.origin, keys, raw_keys, values, raw_values, headers=above.headers,
                 times=above.times)  # fmt: skip


def checked_bytes(batch: Batch, node: p.Node, runtime: Runtime) -> tuple[Batch, Sequence[bytes]]:
    """Messages between the steps, as bytes; other bytes go to the policy."""
    assert batch.raw_values is not None
    note = lambda index, error: runtime.failures.at(node, error, batch, index)  # noqa: E731
    values, bad = convert(checked, node.name, objects(batch.raw_values), note)
    if not bad:
        return batch, values
    batch = batch.where([index not in bad for index in range(len(batch))])
    return batch, [each for each in values if each is not None]


class ObjectsOf:
    """A step's messages as objects, for explanations."""

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

    def read(batch: Batch, data: Sequence[bytes | None]) -> tuple[Column, list[int]]:
        """The right rows of answers, and where they cannot be read."""
        note = lambda index, error: runtime.failures.at(node, error, batch, index)  # noqa: E731
        return convert(rows.deserialize, topic, data, note)

    def answered(batch: Batch) -> None:
        batch, values = checked_bytes(batch, node, runtime)
        keys: list[Any] = objects(batch.raw_keys or ())
        lefts = get(batch).values
        fresh, data = opened(objects(values), hashes.of(keys, lefts))
        if not keeps_all(fresh):
            gone = sum(left is None for left in compress(lefts, negated(fresh)))
            runtime.metrics[DROPPED] += gone
            runtime.drops.add(Reason.GONE, node.name, gone)
            batch, lefts = batch.where(fresh), list(compress(lefts, fresh))
        rights, bad = read(batch, data)
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

    return _ignore, answered


def _source_of(node: p.ForeignJoin) -> p.Source:
    source = node.parents[1]
    assert isinstance(source, p.Source), f"{node.name!r}: answers come from a topic"
    return source


def _ignore(batch: Batch) -> None:
    """Updates of the left table are in its store when the answer comes."""


@getter_of.register
def _(node: p.ForeignJoin, runtime: Runtime, *, as_of: bool = False) -> Getter:
    return StoreGetter(node, runtime)
