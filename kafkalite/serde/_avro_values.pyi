"""Python's values into Avro's bytes; `avro_writer` says what becomes of the others.          [P]"""

from collections.abc import Sequence
from typing import Any, final

from kafkalite.serde.avro_plan import Plan

@final
class ValueEncoder:
    def __init__(self, plan: Plan) -> None: ...
    def encode(
        self, column: Sequence[Any], begin: int, header: bytes, out: list[bytes | None]
    ) -> int: ...
