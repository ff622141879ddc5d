"""Inputs of the joins, and of windows that move: users, what they look at, order and pay.

Values are 100 B of JSON, `{"amount":10..99,"id":…,"user":…,"pad":…}`. How many records meet does
not depend on how many there are: with twice as many there are twice as many users.

| topic | records | keys |
|---|---|---|
| orders | N | each its own, of 9 B |
| payments | N | one for each order, three seconds before or after it at the most |
| visits | N | users in visits: some ten records, two seconds apart on average |
| users | N/20 before all others, then N/100 | each user once, then users at random |
| purchases | N | N/5 in turn, so each is changed four times; `user` is one at random |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

VALUE_BYTES: Final = 100
SECONDS: Final = 600  # that an input lasts
PAID_SPREAD_S: Final = 6
VISIT_RECORDS: Final = 10
VISIT_PACE_S: Final = 2

Column = Sequence[bytes | None]
MakeChunk = Callable[[random.Random, range], tuple[Column, Column]]  # keys and values


@dataclass(frozen=True, slots=True)
class Input:
    """Records of a topic. The first ones have one time, before all others; then times ascend."""

    records: int
    make_chunk: MakeChunk
    at_once: int = 0

    def after_ms(self, row: int, span_ms: int) -> int:
        """When a record comes, from the begin."""
        if row < self.at_once:
            return -1
        return span_ms * (row - self.at_once) // (self.records - self.at_once)


def values_of_json(rng: random.Random, rows: Sequence[int], users: Sequence[bytes]) -> list[bytes]:
    """100 B each."""
    heads = [
        b'{"amount":%d,"id":%d,"user":"%s","pad":"' % (amount, 100_000_000 + row, user)
        for amount, row, user in zip(
            rng.choices(range(10, 100), k=len(rows)), rows, users, strict=True
        )
    ]
    pads = rng.randbytes(VALUE_BYTES * len(rows) // 2).hex().encode()
    return [
        head + pads[start : start + VALUE_BYTES - len(head) - 2] + b'"}'
        for head, start in zip(heads, range(0, len(pads), VALUE_BYTES), strict=True)
    ]


def users_of(records: int) -> int:
    """How many users there are."""
    return max(1, records // 20)


def user(number: int) -> bytes:
    return b"u%07d" % number


def anyone(rng: random.Random, records: int, count: int) -> list[bytes]:
    """Users at random."""
    return [user(number) for number in rng.choices(range(users_of(records)), k=count)]


def orders(records: int) -> Input:
    def make_chunk(rng: random.Random, rows: range) -> tuple[Column, Column]:
        values = values_of_json(rng, rows, anyone(rng, records, len(rows)))
        return [b"o%08d" % row for row in rows], values

    return Input(records, make_chunk)


def payments(records: int) -> Input:
    delay = PAID_SPREAD_S * records / SECONDS  # in records

    def make_chunk(rng: random.Random, rows: range) -> tuple[Column, Column]:
        at = {row: row + rng.random() * delay for row in rows}
        paid = sorted(rows, key=at.__getitem__)
        values = values_of_json(rng, paid, anyone(rng, records, len(paid)))
        return [b"o%08d" % row for row in paid], values

    return Input(records, make_chunk)


def visits(records: int) -> Input:
    at_once = max(1, VISIT_PACE_S * records // SECONDS)

    def sequence() -> Iterator[bytes]:
        rng = random.Random(7)
        present = anyone(rng, records, at_once)
        while True:
            place = rng.randrange(at_once)
            yield present[place]
            if rng.random() < 1 / VISIT_RECORDS:
                (present[place],) = anyone(rng, records, 1)

    seen = sequence()

    def make_chunk(rng: random.Random, rows: range) -> tuple[Column, Column]:
        keys = list(islice(seen, len(rows)))
        return keys, values_of_json(rng, rows, keys)

    return Input(records, make_chunk)


def users(records: int) -> Input:
    known = users_of(records)

    def make_chunk(rng: random.Random, rows: range) -> tuple[Column, Column]:
        everybody = [user(row) for row in rows if row < known]
        keys = everybody + anyone(rng, records, len(rows) - len(everybody))
        return keys, values_of_json(rng, rows, keys)

    return Input(known + records // 100, make_chunk, at_once=known)


def purchases(records: int) -> Input:
    number = max(1, records // 5)

    def make_chunk(rng: random.Random, rows: range) -> tuple[Column, Column]:
        keys = [b"p%08d" % (row % number) for row in rows]
        return keys, values_of_json(rng, rows, anyone(rng, records, len(rows)))

    return Input(records, make_chunk)


INPUTS: Final[dict[str, Callable[[int], Input]]] = {
    "orders": orders,
    "payments": payments,
    "visits": visits,
    "users": users,
    "purchases": purchases,
}
