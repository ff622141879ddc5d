"""Which loop joins the records of a run with the rows of the other side.                     [P]

The native loop reads and adds rows where they lie in memory. Its twin is `StreamJoin.record`,
record by record.

Owns   the choice, made once at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalite.streams.local.state.segment_rows import NATIVE as ROWS

INTERFACE: Final = 3  # what the native module and this one agree on

__all__ = ["INTERFACE", "NATIVE", "match"]

NATIVE = False
if TYPE_CHECKING:
    from kafkalite.streams.local.operators._matching import match
else:
    match = None
    try:
        from kafkalite.streams.local.operators import _matching

        if _matching.INTERFACE == INTERFACE:
            NATIVE, match = ROWS, _matching.match
    except ImportError:
        pass
