"""The loops of a join by a foreign key; see references_pure.py.                             [P]"""

from kafkalite.streams.local.operators.reference_columns import Asks, Matched

INTERFACE: int

def asks(
    lefts: list[bytes],
    olds: list[object],
    news: list[object],
    old_keys: list[bytes | None],
    new_keys: list[bytes | None],
    hashes: list[bytes | None],
    task: int,
    is_left: bool,
) -> Asks: ...
def matched(keys: list[bytes | None], asked: list[bytes], stamps: list[int]) -> Matched: ...
def answers(asked: list[bytes], rows: list[bytes | None]) -> tuple[list[bytes], list[bytes]]: ...
def opened(
    answers: list[bytes], hashes: list[bytes | None]
) -> tuple[bytearray, list[bytes | None]]: ...
