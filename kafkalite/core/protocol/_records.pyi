"""The native twin of records_pure: same names, same results, same errors.                 [P]"""

from collections.abc import Sequence
from typing import final

from kafkalite.core.protocol.records_pure import Buffer, Checksum, Compress
from kafkalite.core.types import Columns

@final
class Window:
    def __init__(self, data: Buffer, start: int = 0) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def decode_records(
    data: Buffer,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
) -> Columns: ...
def skim_records(
    data: Buffer, record_count: int, last_offset_delta: int, keys_required: bool
) -> None: ...
def encode_batch(
    columns: Columns,
    attributes: int,
    base_offset: int,
    leader_epoch: int,
    producer: tuple[int, int, int],
    compress: Compress | None,
    checksum: Checksum,
) -> bytes: ...
def murmur2(key: bytes) -> int: ...
def partition_column(keys: Sequence[bytes | None], partition_count: int) -> list[int]: ...
def split(columns: Columns, partitions: Sequence[int], partition_count: int) -> list[Columns]: ...
