"""The native twins of records_pure that read: same names, same results, same errors.        [P]"""

from typing import TypeVar, final

from kafkalite.core.protocol.records_pure import Buffer, Checksum
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
