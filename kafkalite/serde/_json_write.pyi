"""Columns into JSON texts.                                                                  [P]"""

from collections.abc import Sequence
from typing import TypeAlias

from kafkalite.serde.json_kinds import Kind

# Kind, rows, end of its parts, bytes of an integer, offset; addresses of validity, data and
# content, bytes of the content or items; what stands before a value; the floats as
# orjson writes the list.
Source: TypeAlias = tuple[Kind, int, int, int, int, int, int, int, int, bytes, bytes]

def floats_of(data: int, valid: int, offset: int, rows: int) -> list[float | None]: ...
def write_texts(sources: Sequence[Source], rows: int) -> tuple[bytes, bytes]: ...
