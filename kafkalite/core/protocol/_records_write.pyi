"""The native twin of records_pure that writes: same name, same results, same errors.        [P]"""

from kafkalite.core.protocol.records_pure import Checksum, Compress
from kafkalite.core.types import Columns

def encode_batch(
    columns: Columns,
    attributes: int,
    base_offset: int,
    leader_epoch: int,
    producer: tuple[int, int, int],
    compress: Compress | None,
    checksum: Checksum,
) -> bytes: ...
