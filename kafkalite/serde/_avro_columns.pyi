"""Batches of columns, filled by `_avro_read`.                                                [P]"""

from kafkalite.serde.avro_plan import Plan

class Batch:
    plan: Plan
    rows: int
    def length(self, column: int) -> int: ...
    def null_count(self, column: int) -> int: ...
    def buffers(self, column: int) -> list[tuple[int, int] | None]: ...
