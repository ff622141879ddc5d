"""Which sessions and sliding windows are packed in native code.                              [P]

Native code knows the aggregates that folding.py knows, and every type of argument: what is no
number of the machine is added and compared by Python. It stops at a record on which that fails, so
that the task ends there; where failures are skipped, the twins are used. So they are where those
below ask for the rows that were, or look rows up.

Owns   the choice; it stays the same as long as a task lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafkalite.streams import plan as p
from kafkalite.streams.local.operators.folding import TIME_MAX, kinds_of
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.stores import rows_read
from kafkalite.streams.windows import SessionWindow, SlidingWindow

INTERFACE: Final = 1  # what the native modules and this one agree on

__all__ = ["INTERFACE", "NATIVE", "SessionFold", "SlidingFold", "SpanLog", "SpanTable", "is_packed"]

NATIVE = False
if TYPE_CHECKING:
    from kafkalite.streams.local.spans._folds import SessionFold, SlidingFold
    from kafkalite.streams.local.spans._log import SpanLog
    from kafkalite.streams.local.spans._table import SpanTable
else:
    SessionFold = SlidingFold = SpanLog = SpanTable = None
    try:
        from kafkalite.streams.local.spans import _folds, _log, _table, _windows

        if {each.INTERFACE for each in (_folds, _log, _table, _windows)} == {INTERFACE}:
            NATIVE = True
            SessionFold, SlidingFold = _folds.SessionFold, _folds.SlidingFold
            SpanLog, SpanTable = _log.SpanLog, _table.SpanTable
    except ImportError:
        pass


def is_packed(node: p.Node, runtime: Runtime) -> bool:
    """Whether the windows of `node` are packed."""
    window: Any = node.window if isinstance(node, p.Aggregate) else None
    if not (NATIVE and isinstance(window, SessionWindow | SlidingWindow)):
        return False
    assert isinstance(node, p.Aggregate)
    needs = runtime.needs(node) | runtime.needs(node, p.Port.FINAL)
    children = {each: runtime.children(each) for each in runtime.sub_topology.nodes}
    is_looked_into = needs.old or rows_read(node, children)
    is_known = kinds_of(node.aggregates) is not None and window.held_ms <= TIME_MAX
    is_known = is_known and window.length_ms <= TIME_MAX
    return is_known and not is_looked_into and runtime.failures.policy(node) == "fail"
