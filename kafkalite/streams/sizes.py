"""Sizes as users write them: bytes, or "512KB" "64MB" "1.5GB" "256MiB".                   [P]

Fails  with TopologyError, which names what the size is for and what was given.
"""

from __future__ import annotations

import re
from typing import Final

from kafkalite.errors import TopologyError

Size = int | str

UNITS: Final = {
    "": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30
}  # fmt: skip
TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", re.IGNORECASE)


def size_in_bytes(size: Size, what: str) -> int:
    """`size` in bytes, at least one. TopologyError for anything else."""
    found = -1
    if isinstance(size, int) and not isinstance(size, bool):
        found = size
    elif isinstance(size, str) and (match := TEXT.fullmatch(size.strip())):
        found = int(float(match[1]) * UNITS.get(match[2].upper(), 0))
    if found < 1:
        raise TopologyError(f'{what}: expected bytes or text such as "64MB", got {size!r}')
    return found
