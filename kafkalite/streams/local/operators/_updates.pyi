"""The rows of a batch after each of its records; see updates.py.                           [P]"""

from collections.abc import Sequence
from typing import Any

from kafkalite.core.protocol._int64s import Int64s
from kafkalite.core.protocol._spans import Spans
from kafkalite.streams.local.operators._folding import Groups
from kafkalite.streams.local.operators.folding import Argument

INTERFACE: int

class Updates:
    is_known: bool
    results: list[Sequence[Any]]
    stamps: Int64s
    records: Int64s | None

    def __new__(
        cls,
        groups: Groups,
        kinds: bytes,
        columns: list[Argument],
        partials: list[tuple[dict[Any, Any], ...]],
        stamps: list[dict[bytes, int]],
        deletes: bool,
    ) -> Updates: ...
    def __len__(self) -> int: ...
    def starts(self) -> Int64s: ...
    def windowed_keys(self) -> Spans: ...
    def olds(self, rows: Sequence[Any], before: list[Any]) -> list[Any]: ...
