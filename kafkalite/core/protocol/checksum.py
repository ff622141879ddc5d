"""CRC-32C (Castagnoli), the checksum of record batches.                                  [P]

google-crc32c computes it with the processor's own instruction (some 28 GB/s) where its C
extension loads; crcmod computes it everywhere. The choice is made once, at import.

google-crc32c takes any read-only bytes but those that must be released, as a memoryview must. The
native record codec lends it such bytes as a `Window`; its twin copies them once.

Source RFC 3720, appendix B.4; KIP-98.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, cast

from kafkalite.core.protocol.record_codec import Window

Buffer: TypeAlias = bytes | bytearray | memoryview
Checksum: TypeAlias = Callable[[object], int]
Lend: TypeAlias = Callable[[Buffer], object]


def _choose() -> tuple[str, Checksum, Lend]:
    """The fastest implementation that loads: its name, it, and how to hand it other than bytes."""
    try:
        import google_crc32c
    except ImportError:
        pass
    else:
        if google_crc32c.implementation == "c":
            return "google-crc32c", cast("Checksum", google_crc32c.value), Window
    from crcmod.predefined import mkPredefinedCrcFun

    return "crcmod", cast("Checksum", mkPredefinedCrcFun("crc-32c")), bytes


_CHOICE: Final = _choose()

IMPLEMENTATION: Final[str] = _CHOICE[0]
_checksum: Final = _CHOICE[1]
_lent: Final = _CHOICE[2]


def crc32c(data: Buffer) -> int:
    """The CRC-32C of `data`, in [0, 2**32). A `Window` is taken as it is."""
    kind = type(data)
    return _checksum(data if kind is bytes or kind is _lent else _lent(data))
