"""What joins of streams share: their inputs as bytes, and the results of a run as columns.    [P]

A side's records come with keys and values as their store writes them: as they came where the
serdes are those of the topic. A result is a pair of such values, of which one may be missing. The
results of a run are read, given to the user's function and sent on as one batch.

Owns   nothing. Values that cannot be read or written go to the error policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafkalite.core.columns import take, where
from kafkalite.core.types import Headers
from kafkalite.serde.serde import Serde
from kafkalite.streams import plan as p
from kafkalite.streams.expressions.tree import Input
from kafkalite.streams.local.arrows import fields_of, on_sides
from kafkalite.streams.local.batch import MADE, Batch, Origin, Place, Push
from kafkalite.streams.local.calling import joiner
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED, convert
from kafkalite.streams.local.runtime import Needs, Runtime
from kafkalite.streams.stores import Store

LEFT, RIGHT = 0, 1
WORDS: Final = ("left", "right")


@dataclass(slots=True)
class Pairs:
    """What a run makes, as columns.

    `at` is the record that led to it, None outside a run; `made` says that it follows from rows
    that waited, whose headers `own_headers` has where they are not those of that record. Native
    code makes the columns as a whole.
    """

    at: Sequence[int | None] = field(default_factory=list)
    made: Sequence[int] = field(default_factory=list)  # from rows alone: null results after a wait
    keys: Sequence[bytes | None] = field(default_factory=list)
    stamps: Sequence[int] = field(default_factory=list)
    values: tuple[Sequence[bytes | None], Sequence[bytes | None]] = field(
        default_factory=lambda: ([], [])
    )
    own_headers: dict[int, Headers] = field(default_factory=dict)

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
        columns = (self.at, self.made, self.keys, self.stamps, *self.values)
        for column, entry in zip(columns, (at, made, key, stamp, left, right), strict=True):
            assert isinstance(column, list)
            column.append(entry)

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
    at: Sequence[Any]  # all of them there
    made: Sequence[int]

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The record that came; None for a row that waited."""
        places = self.above.places(take(self.at, indexes))
        return [None if self.made[i] else each for i, each in zip(indexes, places, strict=True)]

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """At the moment of the record that came."""
        return self.above.order(take(self.at, indexes))


class Results:
    """The results of a join on their way out."""

    def __init__(self, node: p.JoinOfStreams, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        stores = [store_of(node, word, runtime) for word in WORDS]
        self.topics = [store.changelog_topic for store in stores]
        forms = runtime.needs(node).arrow and on_sides(node.function) is not None
        self.codecs = [
            runtime.codec(
                each.value,
                is_key=False,
                fields=fields_of(node.function, Input(each.word)),
                forms=forms,
                arrow=forms,
            )
            for each in stores
        ]
        self.key_codec = runtime.codec(stores[LEFT].key, is_key=True)
        self.join = joiner(node, node.function, runtime.failures, takes_forms=forms)
        self.needs_keys = runtime.needs(node).key or node.function.takes_key
        self.forward = runtime.forward_several(node)

    def drop(self, reason: Reason, count: int = 1) -> None:
        """Counts records that are left out."""
        if count:
            self.runtime.metrics[DROPPED] += count
            self.runtime.drops.add(reason, self.node.name, count)

    def send(self, pairs: Pairs, batch: Batch | None) -> None:
        """Calls the function for the results of a run, and sends on what it gives."""
        if not len(pairs.stamps):
            return
        keys = None
        if self.needs_keys:
            keys = self.key_codec.deserialize(self.topics[LEFT], pairs.keys)
        origin = MADE
        if batch is not None:
            origin = Joined(batch.origin, pairs.at, pairs.made)
        headers = _headers(pairs, batch)
        results = Batch(pairs.stamps, origin, keys, pairs.keys, headers=headers)
        results, left, right = self._decode(results, pairs)
        if len(results):
            results, values = self.join(results, left, right)
            self.forward(replace(results, values=values))

    def _decode(self, results: Batch, pairs: Pairs) -> tuple[Batch, Sequence[Any], Sequence[Any]]:
        """The values of both sides; results of a value that cannot be read are left out."""
        columns: list[Sequence[Any]] = []
        bad: set[int] = set()
        for codec, topic, column in zip(self.codecs, self.topics, pairs.values, strict=True):
            found, failed = convert(
                codec.deserialize,
                topic,
                column,
                lambda index, error: self.runtime.failures.at(self.node, error, results, index),
            )
            columns.append(found)
            bad.update(failed)
        left, right = columns
        if bad:
            keep = [index not in bad for index in range(len(results))]
            return results.where(keep), where(left, keep), where(right, keep)
        return results, left, right


def _headers(pairs: Pairs, batch: Batch | None) -> list[Headers] | None:
    """Those of the record that led to a result, but where a row has its own."""
    theirs = None if batch is None else batch.headers
    if theirs is None and not pairs.own_headers:
        return None
    found: list[Headers] = [() if theirs is None or at is None else theirs[at] for at in pairs.at]
    for index, headers in pairs.own_headers.items():
        found[index] = headers
    return found


def store_of(node: p.Node, word: str, runtime: Runtime) -> Store:
    """The store of one side."""
    store = runtime.store_of(node, word)
    assert store is not None, f"{node.name!r} keeps no {word} side"
    return store


# Inputs: keys and values as the stores have them


def ready(node: p.JoinOfStreams, side: int, runtime: Runtime) -> Callable[[Batch], Batch]:
    """Gives batches of one side the bytes of its store: as they came, or by the store's serdes."""
    store = store_of(node, WORDS[side], runtime)
    schema = runtime.schema(node.parents[side])
    needs = side_needs(node, side, runtime)
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


def side_needs(node: p.JoinOfStreams, side: int, runtime: Runtime) -> Needs:
    """Bytes where they came as the store writes them, else objects."""
    store = store_of(node, WORDS[side], runtime)
    schema = runtime.schema(node.parents[side])
    raw_key = schema.key == store.key
    raw_value = schema.has_raw_value and schema.value == store.value
    return Needs(key=not raw_key, raw_key=raw_key, value=not raw_value, raw_value=raw_value)


def inputs_of(
    node: p.JoinOfStreams, process: Callable[[bytes, Batch], None], runtime: Runtime
) -> tuple[Push, ...]:
    """The inputs of a join that takes the records of both sides together."""
    pushes = runtime.gathering(process, len(WORDS))
    return tuple(_into(ready(node, side, runtime), pushes[side]) for side in (LEFT, RIGHT))


def needs_of(node: p.JoinOfStreams, runtime: Runtime) -> tuple[Needs, ...]:
    """What the inputs need."""
    return tuple(side_needs(node, side, runtime) for side in (LEFT, RIGHT))


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
