"""Columns into MessagePack.                                                                 [P]"""

from collections.abc import Sequence

from kafkalite.serde.column_values import Source

def write_values(sources: Sequence[Source], rows: int) -> tuple[bytes, bytes]: ...
