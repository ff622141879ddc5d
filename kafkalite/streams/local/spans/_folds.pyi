"""Records into sessions and sliding windows; see native.py.                                  [P]"""

from collections.abc import Sequence
from typing import Any

from kafkalite.core.types import Headers
from kafkalite.streams.local.operators.folding import Argument
from kafkalite.streams.local.spans._log import SpanLog
from kafkalite.streams.local.spans._windows import Windows

INTERFACE: int

class SpanFold:
    late: list[int]
    missed: int
    newest: int
    at: int

    def __new__(cls, table: Windows, length: int, held: int, is_timed: bool) -> SpanFold: ...
    def fold(
        self,
        keys: Sequence[Any],
        timestamps: Sequence[int],
        times: Sequence[int] | None,
        before: int,
        columns: list[Argument],
        headers: Sequence[Headers] | None,
        log: SpanLog | None,
    ) -> None: ...

class SessionFold(SpanFold):
    def __new__(cls, table: Windows, length: int, held: int, is_timed: bool) -> SessionFold: ...

class SlidingFold(SpanFold):
    def __new__(cls, table: Windows, length: int, held: int, is_timed: bool) -> SlidingFold: ...
    def oldest(self, limit: int) -> int: ...
