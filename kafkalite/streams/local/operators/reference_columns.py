"""What the loops of a join by a foreign key give, native or not.                            [P]"""

from __future__ import annotations

from typing import NamedTuple


class Asks(NamedTuple):
    """What updates of left rows ask for, side by side: one may ask for two things."""

    records: list[int]  # whose updates these are
    of_old: bytearray  # 1: of the old foreign key, 0: of the new one
    keys: list[bytes | None]  # that foreign key
    values: list[bytes]  # Asked


class Matched(NamedTuple):
    """What a batch of Asked comes to."""

    changes: list[tuple[bytes, bytes | None, int]]  # of the store: key, value or None, timestamp
    answered: list[int]  # the records that may get an answer
