"""map_async, one call at a time: which records may leave when a call has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def leaving(keys: Sequence[Any], ended: Iterable[int], *, ordered: bool) -> list[int]:
    """The records in the order in which they leave, when their calls end in the order `ended`.

    A record leaves when its call has ended and every record before it (of its key) has left.
    """
    done: set[int] = set()
    left: list[int] = []
    for number in ended:
        done.add(number)
        for index, key in enumerate(keys):
            before = [i for i in range(index) if ordered or keys[i] == key]
            if index in done and index not in left and all(i in left for i in before):
                left.append(index)
    return left
