"""Columns into Avro's bytes; `avro_encode` describes the columns.                            [P]"""

from collections.abc import Sequence
from typing import TypeAlias, final

from kafkalite.serde.avro_plan import Plan

Sources: TypeAlias = Sequence[tuple[int, int, int, int, int, int, int]]

@final
class Encoder:
    def __init__(self, plan: Plan) -> None: ...
    def encode(self, sources: Sources, rows: int, header: bytes = b"") -> list[bytes | None]: ...
    def encode_spans(
        self, sources: Sources, rows: int, header: bytes = b""
    ) -> tuple[bytes, bytes, bytes | None]: ...
