"""Columns into Avro's bytes; `avro_encode` describes the columns.                            [P]"""

from collections.abc import Sequence
from typing import final

from kafkalite.serde.avro_plan import Plan

@final
class Encoder:
    def __init__(self, plan: Plan) -> None: ...
    def encode(
        self, sources: Sequence[tuple[int, int, int, int, int, int]], rows: int, header: bytes = b""
    ) -> list[bytes | None]: ...
