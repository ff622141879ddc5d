"""Numbers in one order, in native code where they are columns of 64 bits.                    [P]

    places_in_order   by which numbers ascend; many of them ascend already, in a few runs
    ranks             of the places that were picked
    shifted           numbers with room for others below them
    bytes_at          some bytes, in any order

Owns   the choice of native code, made once at import and for each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from kafkalite.core.columns import take
from kafkalite.core.protocol.record_codec import Int64s

INTERFACE: Final = 1  # what the native module and this one agree on
BITS: Final = 62  # of a number that is shifted in native code

_native: Any = None
try:
    from kafkalite.streams.local import _merging

    if _merging.INTERFACE == INTERFACE:
        _native = _merging
except ImportError:
    pass


def places_in_order(numbers: Sequence[int]) -> Sequence[int]:
    """The places by which numbers ascend, those of equal numbers in their order."""
    if _native is not None and type(numbers) is Int64s:
        places: Int64s = _native.places_in_order(numbers)
        return places
    known = list(numbers)
    return sorted(range(len(known)), key=known.__getitem__)


def ranks(picks: Sequence[int], counts: Sequence[int]) -> list[Sequence[int]]:
    """The ranks of the places that were picked, ascending for each part of so many places."""
    if _native is not None and type(picks) is Int64s:
        found: list[Sequence[int]] = _native.ranks(picks, list(counts))
        return found
    known = [-1] * sum(counts)
    for rank, pick in enumerate(picks):
        known[pick] = rank
    each = (known[end - some : end] for end, some in zip(accumulate(counts), counts, strict=True))
    return [[rank for rank in some if rank >= 0] for some in each]


def shifted(numbers: Sequence[int], by: int) -> Sequence[int]:
    """Each number times 2 to the power of `by`. They ascend and are not negative."""
    if _native is not None and type(numbers) is Int64s:
        greatest = numbers[-1] if len(numbers) else 0
        if greatest.bit_length() + by <= BITS:
            made: Int64s = _native.shifted(numbers, by)
            return made
    return [number << by for number in numbers]


def bytes_at(data: bytes, places: Sequence[int]) -> bytes:
    """The bytes at these places."""
    if _native is not None and type(places) is Int64s:
        made: bytes = _native.bytes_at(data, places)
        return made
    return bytes(take(data, places))
