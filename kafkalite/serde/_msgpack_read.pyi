"""MessagePack values of a batch into columns.                                               [P]"""

from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.core.protocol.records_pure import Buffer
from kafkalite.serde.column_values import Read

def read_columns(
    data: Buffer, starts: Int64s, ends: Int64s, fields: tuple[bytes, ...] | None
) -> Read | None: ...
