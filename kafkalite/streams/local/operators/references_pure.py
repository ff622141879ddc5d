"""The loops of a join by a foreign key, in Python: the twin of _references.pyx.             [P]

The three steps of streams/foreign.py go through their batches here, from bytes to bytes:

    asks       what updates of left rows ask for           Reference
    matched    who refers to what, and who is answered     Match
    answers    the right rows on their way back            Match
    opened     answers that are not stale                  ForeignJoin

    Asked      version, what, whether there is a hash; task, hash; left key
    Answer     version, whether there is a row, whether there is a hash; task, hash; row
    kept       task, hash: of who asks, as the store has it

Never  looks into a row, calls a user's function, or changes what it is given.
"""

from __future__ import annotations

from typing import Final

from kafkalite.streams.foreign import ANSWER, ASKED, HASH_BYTES, NO_HASH, PREFIX, VERSION, What
from kafkalite.streams.local.operators.reference_columns import Asks, Matched

# As plain numbers: an enum's members are slow to hash and to compare
FORGET, FORGET_AND_ANSWER, ANSWER_IT, IF_THERE = map(int, What)
HEAD: Final = ASKED.size
HASH: Final = ASKED.size - HASH_BYTES  # where it begins
KEPT: Final = 3  # where what is kept begins, behind three bytes


def asks(
    lefts: list[bytes],
    olds: list[object],
    news: list[object],
    old_keys: list[bytes | None],
    new_keys: list[bytes | None],
    hashes: list[bytes | None],
    task: int,
    is_left: bool,
) -> Asks:
    """What updates of left rows ask for, given what these refer to and their hashes."""
    heads = [[ASKED.pack(VERSION, what, has, task, NO_HASH)[:HASH] for what in What]
             for has in (False, True)]  # fmt: skip
    asked = Asks([], bytearray(), [], [])
    step = _left_step if is_left else _inner_step
    rows = zip(lefts, olds, news, old_keys, new_keys, hashes, strict=True)
    for index, (left, was, row, old, new, its) in enumerate(rows):
        new = None if its is None else new  # perhaps the serde does not write the row
        of_old, of_new = step(was is not None, row is not None, old, new)
        for what, key, is_old in ((of_old, old, 1), (of_new, new, 0)):
            if what is not None:
                asked.records.append(index)
                asked.of_old.append(is_old)
                asked.keys.append(key)
                asked.values.append(heads[its is not None][what] + (its or NO_HASH) + left)
    return asked


Step = tuple[int | None, int | None]  # what is asked of the old foreign key, and of the new one


def _left_step(was: bool, is_there: bool, old: bytes | None, new: bytes | None) -> Step:
    if not was and not is_there:
        return None, None
    return (None if old is None or old == new else FORGET), ANSWER_IT


def _inner_step(was: bool, is_there: bool, old: bytes | None, new: bytes | None) -> Step:
    if not is_there or new is None:
        return (None if old is None else FORGET_AND_ANSWER), None
    return (None, IF_THERE) if old is None or old == new else (FORGET, ANSWER_IT)


def matched(keys: list[bytes | None], asked: list[bytes], stamps: list[int]) -> Matched:
    """What changes in the store of references, and the records that may be answered."""
    found = Matched([], [])
    for index, (key, each, stamp) in enumerate(zip(keys, asked, stamps, strict=True)):
        what = each[1]
        if key is not None:
            forgets = what in (FORGET, FORGET_AND_ANSWER)
            assert each[2] or forgets, "a reference of no row"
            place = PREFIX.pack(0, len(key)) + key + each[HEAD:]
            found.changes.append((place, None if forgets else each[KEPT:HEAD], stamp))
        if what != FORGET:
            found.answered.append(index)
    return found


def answers(asked: list[bytes], rows: list[bytes | None]) -> tuple[list[bytes], list[bytes]]:
    """Left keys, and the Answers that their tasks get."""
    values = [
        bytes((VERSION, row is not None, each[2])) + each[KEPT:HEAD] + (row or b"")
        for each, row in zip(asked, rows, strict=True)
    ]
    return [each[HEAD:] for each in asked], values


def opened(
    answers: list[bytes], hashes: list[bytes | None]
) -> tuple[bytearray, list[bytes | None]]:
    """Which answers are to the left rows as they are now, and the right rows of these."""
    size = ANSWER.size
    fresh = bytearray(
        (each[HASH:size] if each[2] else None) == its
        for each, its in zip(answers, hashes, strict=True)
    )
    return fresh, [
        each[size:] if each[1] else None
        for each, is_fresh in zip(answers, fresh, strict=True)
        if is_fresh
    ]
