"""Which loop joins the records of a run with the rows of the other side.                     [P]

The native loop reads the segments of both sides as they are in memory. Its twin is
`StreamJoin.record`, record by record, which also reads pages that are on disk alone.

Owns   the choice, made once at import.
"""

from __future__ import annotations

from typing import Final

INTERFACE: Final = 1  # what the native module and this one agree on

try:
    from kafkalite.streams.local.operators._matching import INTERFACE as BUILT
    from kafkalite.streams.local.operators._matching import match

    NATIVE = BUILT == INTERFACE
except ImportError:
    NATIVE = False

__all__ = ["INTERFACE", "NATIVE", "match"]
