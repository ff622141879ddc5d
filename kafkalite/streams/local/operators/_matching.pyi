"""The records of a run with the rows of the other side: see matching.py.                     [P]"""

from typing import Any

INTERFACE: int

def match(
    join: Any,
    sides: bytes,
    keys: list[bytes | None],
    stamps: list[int],
    values: list[bytes | None],
    times: list[int] | None,
    pairs: Any,
) -> None: ...
