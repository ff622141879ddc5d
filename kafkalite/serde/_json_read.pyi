"""JSON texts of a batch into columns.                                                       [P]"""

from typing import TypeAlias

from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.core.protocol.records_pure import Buffer
from kafkalite.serde.json_kinds import Kind

# Name, kind, how many rows are null; the bits of validity, the data, the content of texts; fields.
Read: TypeAlias = tuple[str, Kind, int, bytes | None, bytes | None, bytes | None, list["Read"]]

def read_columns(
    data: Buffer, starts: Int64s, ends: Int64s, fields: tuple[bytes, ...] | None
) -> Read | None: ...
