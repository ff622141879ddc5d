"""Memory for bytes that are still to come.                                                  [P]

A fetch's answer of megabytes is written by the system from its first to its last byte. Zeros that
lie there before cost about as much as the bytes themselves: the pages of the buffer are written
twice. Large buffers that are freed and made again keep their pages.

Owns   the choice of the twin, made once at import.
"""

from __future__ import annotations

__all__ = ["unwritten"]

try:
    from kafkalite.core.protocol._memory import unwritten
except ImportError:

    def unwritten(size: int) -> bytearray:
        """Memory of `size` bytes, which hold anything. The caller writes to all of it before
        anybody reads; the system gives its pages as they are written to."""
        return bytearray(size)
