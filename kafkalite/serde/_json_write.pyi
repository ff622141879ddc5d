"""Columns into JSON texts.                                                                  [P]"""

from collections.abc import Sequence

from kafkalite.serde.column_values import Source

def floats_of(data: int, valid: int, offset: int, rows: int) -> list[float | None]: ...
def write_texts(sources: Sequence[Source], rows: int) -> tuple[bytes, bytes]: ...
