"""Which aggregates many small windows are folded by in native code.                          [P]

A batch that spans hundreds of windows, a few records each, is folded record by record: to cut it
into a segment for each window would cost more than the records do. `fold_records` does that for
the aggregates in KINDS. For others, and without the native module of this very build, segments are
the way; they are its twin.

Owns   the choice, made once at import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kafkalite.streams.aggregates import Aggregate, Count, Max, Mean, Min, Sum

INTERFACE: Final = 1  # what the native module and this one agree on

try:
    from kafkalite.streams.local.operators._folding import INTERFACE as BUILT
    from kafkalite.streams.local.operators._folding import fold_records

    NATIVE = BUILT == INTERFACE
except ImportError:
    NATIVE = False

    def fold_records(*_: object) -> dict[int, dict[Any, int]]:  # type: ignore[misc]
        """Is never called: `kinds_of` knows of no aggregate then."""
        raise AssertionError("there is no native module")


__all__ = ["FEW_RECORDS", "INTERFACE", "NATIVE", "fold_records", "kinds_of"]

COUNT, COUNT_OF, SUM, MEAN, MIN, MAX = range(6)  # as _folding.pyx has them
KINDS: Final[dict[type[Aggregate], int]] = {Sum: SUM, Mean: MEAN, Min: MIN, Max: MAX}
FEW_RECORDS: Final = 128  # of a window, below which cutting costs more than folding singly


def kinds_of(aggregates: Sequence[Aggregate]) -> bytes | None:
    """What `fold_records` calls each aggregate; None where it cannot fold them."""
    if not NATIVE:
        return None
    found: list[int] = []
    for aggregate in aggregates:
        if type(aggregate) is Count:
            found.append(COUNT if aggregate.argument is None else COUNT_OF)
        elif type(aggregate) in KINDS:
            found.append(KINDS[type(aggregate)])
        else:
            return None
    return bytes(found)
