"""Chooses the cleaner's loops: the native modules, or their twins in plain Python.          [P]

Either all native modules are used or none, as with records (record_codec.py): they share memory,
so they must come from one build. The twins are some 40 times slower, and need more memory.

Owns   the choice, made once at import.
"""

from __future__ import annotations

try:
    from kafkalite.compaction._batch import copy_records
    from kafkalite.compaction._loops import (
        filter_batches,
        judge_records,
        put_batches,
        put_records,
    )
    from kafkalite.compaction._offset_map import OffsetMap
    from kafkalite.compaction._output import Output

    NATIVE = True
except (ImportError, TypeError, ValueError):  # how Cython names what is of another build
    from kafkalite.compaction.cleaning_pure import (
        OffsetMap,
        Output,
        copy_records,
        filter_batches,
        judge_records,
        put_batches,
        put_records,
    )

    NATIVE = False

__all__ = [
    "NATIVE",
    "OffsetMap",
    "Output",
    "copy_records",
    "filter_batches",
    "judge_records",
    "put_batches",
    "put_records",
]
