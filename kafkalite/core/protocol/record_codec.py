"""Which code reads, writes and partitions records: the native modules, or their pure twins.  [P]

All of the native modules or none, so that nobody mixes two builds. None where one is missing (no C
compiler was there) or was built from sources with another interface (a tree that has moved on since
it was built). The pure twins are slower by one or two orders of magnitude; the commands say so.

Owns   the choice, made once at import.
"""

from __future__ import annotations

try:
    from kafkalite.core.protocol._int64s import Int64s
    from kafkalite.core.protocol._partitions import murmur2, partition_column, split
    from kafkalite.core.protocol._records_forms import decode_forms
    from kafkalite.core.protocol._records_read import (
        Window,
        check_batch,
        decode_records,
        skim_records,
        unfit_records,
    )
    from kafkalite.core.protocol._records_write import encode_batch
    from kafkalite.core.protocol._spans import Spans

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
    from kafkalite.core.protocol.spans_pure import (  # type: ignore[assignment]  # never made
        Int64s,
        Spans,
        decode_forms,
    )

    NATIVE = False

__all__ = [
    "NATIVE",
    "Int64s",
    "Spans",
    "Window",
    "check_batch",
    "decode_forms",
    "decode_records",
    "encode_batch",
    "murmur2",
    "partition_column",
    "skim_records",
    "split",
    "unfit_records",
]
