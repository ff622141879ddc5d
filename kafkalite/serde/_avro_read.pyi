"""Avro's bytes into columns; `avro_columns` says whether it is there.                        [P]"""

from collections.abc import Iterable, Sequence
from typing import final

from kafkalite.core.protocol.records_pure import Buffer
from kafkalite.serde._avro_columns import Batch
from kafkalite.serde.avro_plan import Plan

def common_head(values: Iterable[bytes | None], size: int) -> bytes | None: ...

@final
class Decoder:
    def __init__(self, plan: Plan) -> None: ...
    def decode(self, values: Sequence[bytes | None], skip: int = 0) -> Batch: ...
    def decode_spans(self, data: Buffer, starts: Buffer, ends: Buffer, skip: int = 0) -> Batch: ...
