"""The join by a foreign key: its steps, and what goes between them.                         [P]

A row of the left table names a row of the right one, which is in another task. So the join has
three steps, and a repartition topic from one to the next and back:

    left ──┬─▶ Reference ─▶ …-subscription ─▶ Match ─▶ …-response ─▶ ForeignJoin ─▶ result
           └──────────────────────────────────────────────────────────────▲
    right ─────────────────────────────────────▲

    Reference      what a left row refers to, by the foreign key: who asks, and a hash of the row
    Match          keeps who refers to which key, and answers with the right row: at once, and
                   again whenever that row changes
    ForeignJoin    joins the answer with the left row; an answer whose hash is not the row's is
                   stale, because the row has changed since: another answer follows

    topic           key             value
    subscription    foreign key     Asked: what to do, the left row's hash, task and key
    response        left key        Answer: that hash, the right row, the left task

Owns   the form of both values. Operators work on their bytes, and make no objects of them.
Fails  with SerdeError for bytes that are none.
Source Kafka Streams' SubscriptionWrapper, SubscriptionResponseWrapper, CombinedKeySchema (KIP-213).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from kafkalite.errors import SerdeError
from kafkalite.serde.serde import Codec, Serde, SerdeContext
from kafkalite.streams import plan as p

HASH_BYTES: Final = 16
NO_HASH: Final = bytes(HASH_BYTES)
VERSION: Final = 1
ASKED: Final = struct.Struct(">BBBi16s")  # version, what, whether there is a hash, task, hash
ANSWER: Final = struct.Struct(">BBBi16s")  # version, whether there is a row, a hash; task, hash
assert ASKED.size == ANSWER.size
PREFIX: Final = struct.Struct(">BI")  # before keys of the store: 0, length of the foreign key


class What(IntEnum):
    """What a left row's change asks for."""

    FORGET = 0  # the row refers to another key now, which answers
    FORGET_AND_ANSWER = 1  # it refers to nothing any more: the result is over
    ANSWER = 2  # with the right row, or that there is none
    ANSWER_IF_THERE = 3  # a row that was not in the result stays out of it


class Asked(NamedTuple):
    """A reference on its way to the right table."""

    what: What
    hash: bytes | None  # of the left row; None: there is none
    task: int
    key: bytes  # of the left row


class Answer(NamedTuple):
    """The right row on its way to a left one that refers to it."""

    hash: bytes | None
    row: Any
    task: int


@dataclass(frozen=True, slots=True)
class AskedSerde:
    """Of the subscription topic; `key` is the serde of the left table's keys."""

    key: Serde

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return AskedCodec()

    def __repr__(self) -> str:
        return f"asked({self.key!r})"


@dataclass(frozen=True, slots=True)
class AskedCodec:
    """Writes and reads columns of Asked."""

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each."""
        return [
            ASKED.pack(VERSION, a.what, a.hash is not None, a.task, a.hash or NO_HASH) + a.key
            for a in column
        ]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The Asked in each record."""
        return [_asked(topic, index, data) for index, data in enumerate(column)]


@dataclass(frozen=True, slots=True)
class AnswerSerde:
    """Of the response topic; `row` is the serde of the right table's rows."""

    row: Serde

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return AnswerCodec(self.row.open(context))

    def __repr__(self) -> str:
        return f"answer({self.row!r})"


@dataclass(frozen=True, slots=True)
class AnswerCodec:
    """Writes and reads columns of Answer."""

    rows: Codec

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each."""
        rows = self.rows.serialize(topic, [answer.row for answer in column])
        return [
            ANSWER.pack(VERSION, row is not None, a.hash is not None, a.task, a.hash or NO_HASH)
            + (row or b"")
            for a, row in zip(column, rows, strict=True)
        ]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The Answer in each record."""
        heads = [_head(ANSWER, topic, index, data) for index, data in enumerate(column)]
        data = [
            d and d[ANSWER.size :] if head[1] else None
            for d, head in zip(column, heads, strict=True)
        ]
        rows = self.rows.deserialize(topic, data)
        return [
            Answer(found if has_hash else None, row, task)
            for (_, _, has_hash, task, found), row in zip(heads, rows, strict=True)
        ]


def reminded(kept: bytes, row: bytes | None) -> bytes:
    """The Answer to a left row whose reference the store keeps, as bytes."""
    return bytes((VERSION, row is not None, True)) + kept + (row or b"")


def checked(topic: str, column: Sequence[bytes | None]) -> Sequence[bytes]:
    """The bytes of Asked or Answers. SerdeError for others, with the index."""
    data = [each for each in column if each is not None and len(each) >= ASKED.size]
    if len(data) < len(column) or any(each[0] != VERSION for each in data):
        for index, each in enumerate(column):
            _head(ASKED, topic, index, each)
    return data


def _asked(topic: str, index: int, data: bytes | None) -> Asked:
    _, what, has_hash, task, found = _head(ASKED, topic, index, data)
    assert data is not None
    return Asked(What(what), found if has_hash else None, task, data[ASKED.size :])


def _head(form: struct.Struct, topic: str, index: int, data: bytes | None) -> tuple[Any, ...]:
    if data is None or len(data) < form.size or data[0] != VERSION:
        raise SerdeError(f"{topic!r} holds a value that no join by a foreign key wrote", index)
    return form.unpack_from(data)


def hash_of(row: bytes | None) -> bytes | None:
    """What tells two left rows apart."""
    return None if row is None else blake2b(row, digest_size=HASH_BYTES).digest()


class ToItsTask:
    """The partition of an answer: that of the task which has the left row."""

    def __call__(self, key: Any, value: Answer, partitions: int) -> int:
        """Of one answer."""
        return value.task % partitions

    def of_bytes(self, column: Sequence[bytes | None], partitions: int) -> list[int]:
        """Of answers as they are written."""
        read = ANSWER.unpack_from
        return [read(data)[3] % partitions for data in column if data is not None]


# The steps


def steps_of(
    node: p.ForeignJoin, left: p.Node, right: p.Node
) -> tuple[p.Reference, p.Repartition, p.Match, p.Repartition, p.ForeignJoin]:
    """The nodes that stand for the user's one, each below those before it."""
    named = node.name
    made: dict[str, Any] = {"on_error": node.on_error, "made_at": node.made_at}
    reference = p.Reference(
        name=f"{named}-reference",
        parents=(left,),
        select=node.select,
        how=node.how,
        right=right,
        **made,
    )
    asked = p.Repartition(name=f"{named}-subscription", parents=(reference,), **made)
    match = p.Match(name=f"{named}-match", parents=(asked, right), how=node.how, **made)
    answers = p.Repartition(
        name=f"{named}-response", parents=(match,), partitioner=ToItsTask(), **made
    )
    whole = p.ForeignJoin(
        name=named,
        parents=(left, answers),
        select=node.select,
        function=node.function,
        how=node.how,
        named=node.named,
        value=node.value,
        **made,
    )
    return reference, asked, match, answers, whole
