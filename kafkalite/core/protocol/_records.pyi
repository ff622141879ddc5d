"""The native twin of records_pure: same names, same results, same errors.                 [P]"""

from collections.abc import Sequence
from typing import TypeVar, final

from kafkalite.core.protocol.records_pure import Buffer, Checksum, Compress
from kafkalite.core.types import Columns

H = TypeVar("H", bound=tuple[int, ...])

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
) -> tuple[int, int]: ...
def check_batch(
    data: Buffer, keys_required: bool, checksum: Checksum, header_type: type[H]
) -> tuple[H, int, int] | None: ...
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
