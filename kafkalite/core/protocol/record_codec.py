"""Which code reads, writes and partitions records: the native modules, or their pure twins.  [P]

All of the native modules or none, so that nobody mixes two builds. None where one is missing (no C
compiler was there) or was built from sources with another interface (a tree that has moved on since
it was built). The pure twins are slower by one or two orders of magnitude; the commands say so.

Owns   the choice, made once at import.
"""

from __future__ import annotations

try:
    from kafkalite.core.protocol._partitions import murmur2, partition_column, split
    from kafkalite.core.protocol._records_read import (
        Window,
        check_batch,
        decode_records,
        skim_records,
        unfit_records,
    )
    from kafkalite.core.protocol._records_write import encode_batch

    NATIVE = True
except ImportError:
    from kafkalite.core.protocol.records_pure import (  # type: ignore[assignment]  # its Window is bytes
        Window,
        check_batch,
        decode_records,
        encode_batch,
        murmur2,
        partition_column,
        skim_records,
        split,
        unfit_records,
    )

    NATIVE = False

__all__ = [
    "NATIVE",
    "Window",
    "check_batch",
    "decode_records",
    "encode_batch",
    "murmur2",
    "partition_column",
    "skim_records",
    "split",
    "unfit_records",
]
