"""Records into many small windows at once; `folding` says whether it is there.               [P]"""

from collections.abc import Callable, Sequence
from typing import Any

INTERFACE: int

def fold_records(
    keys: list[Any],
    timestamps: list[int],
    size: int,
    kinds: bytes,
    columns: Sequence[list[Any] | None],
    open_window: Callable[[int], tuple[dict[Any, Any], ...]],
    done: list[int],
) -> dict[int, dict[Any, int]]: ...
