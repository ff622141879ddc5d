"""Which loops go through the batches of a join by a foreign key: native ones or their twins.  [P]

Owns   the choice, made once at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalite.streams.local.operators import references_pure

INTERFACE: Final = 1  # what the native module and this one agree on

__all__ = ["INTERFACE", "NATIVE", "answers", "asks", "matched", "opened"]

NATIVE = False
if TYPE_CHECKING:
    from kafkalite.streams.local.operators._references import answers, asks, matched, opened
else:
    _loops = references_pure
    try:
        from kafkalite.streams.local.operators import _references

        if _references.INTERFACE == INTERFACE:
            NATIVE, _loops = True, _references
    except ImportError:
        pass
    answers, asks = _loops.answers, _loops.asks
    matched, opened = _loops.matched, _loops.opened
