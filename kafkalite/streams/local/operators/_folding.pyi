"""Batches into groups of records by window and key; see folding.py.                        [P]"""

from collections.abc import Sequence
from typing import Any

from kafkalite.streams.local.operators.folding import Argument

INTERFACE: int

class Groups:
    is_known: bool
    is_ascending: bool
    newest: int
    missed: int
    late: list[int]
    starts: list[int]
    stamps: list[dict[bytes, int]]

    def __new__(
        cls,
        keys: Sequence[Any],
        timestamps: Sequence[int],
        times: Sequence[int] | None,
        before: int,
        size: int,
        advance: int,
        held_open: int,
    ) -> Groups: ...
    def last_records(self, window: int) -> list[int]: ...
    def fold(
        self,
        kinds: bytes,
        columns: list[Argument],
        partials: list[tuple[dict[Any, Any], ...]],
        deletes: bool,
    ) -> bool: ...
    def write(
        self, window: int, partials: tuple[dict[Any, Any], ...], stamps: dict[bytes, int]
    ) -> int: ...
    def rows(self) -> tuple[list[bytes], list[int], list[int], list[list[Any]]]: ...
