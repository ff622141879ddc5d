"""Avro's bytes into columns; `avro_columns` says whether it is there.                        [P]"""

from collections.abc import Iterable, Sequence
from typing import final

from kafkalite.core.protocol._int64s import Int64s
from kafkalite.core.protocol.records_pure import Buffer
from kafkalite.serde._avro_columns import Batch
from kafkalite.serde.avro_plan import Plan

def common_head(values: Iterable[bytes | None], size: int) -> bytes | None: ...
def common_head_of_spans(
    data: Buffer, starts: Buffer | Int64s, ends: Buffer | Int64s, size: int
) -> bytes | None: ...

@final
class Decoder:
    def __init__(self, plan: Plan) -> None: ...
    def decode(self, values: Sequence[bytes | None], skip: int = 0) -> Batch: ...
    def decode_spans(
        self, data: Buffer, starts: Buffer | Int64s, ends: Buffer | Int64s, skip: int = 0
    ) -> Batch: ...
