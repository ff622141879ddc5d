"""The records of a run with the rows of the other side: see matching.py.                     [P]"""

from typing import Any

from kafkalite.core.protocol._int64s import Int64s
from kafkalite.core.protocol._spans import Spans

INTERFACE: int

def match(
    join: Any,
    sides: bytes,
    keys: Spans,
    stamps: Int64s,
    values: Spans,
    times: Int64s | None,
    start: int,
    pairs_max: int,
) -> tuple[int, Int64s, bytes, Int64s, Spans, Spans, Spans, tuple[int, int, int]]: ...
