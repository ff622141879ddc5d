"""The cleaner's memory: of every key in the dirty part of a log, the latest offset.       [P]

    slot     hash of the key, 128 bits | next offset, 64 bits       24 bytes
             taken by hash modulo slots, else the first free one after it

The size is fixed when the map is made, `log.cleaner.dedupe.buffer.size` at the most, and a key of
any length takes one slot: 128 MiB hold 5 million keys at the default load of 0.9. When they are in,
the pass ends there, and the next cleaning goes on.

Keys are told apart by their hash alone: two keys with the same one would be taken for one, and the
older record would be lost. Apache Kafka lives with that too; it hashes with MD5, also 128 bits, of
which anyone can make two keys that collide. The hash here is SipHash-2-4-128 under a secret drawn
for each cleaning, so that keys cannot be chosen to collide: of 5 million there are 2**43.5 pairs,
and each is one with odds of 1 in 2**128. A key of 8 to 24 bytes takes some 20 ns.

The pure twin is a dictionary that takes about 200 bytes a key, and gets as many fewer of them.

Source apache/kafka SkimpyOffsetMap; Aumasson and Bernstein, "SipHash: a fast short-input PRF".
"""

from __future__ import annotations

from typing import Final

from kafkalite.compaction.cleaning_pure import ENTRY_BYTES, PURE_ENTRY_BYTES
from kafkalite.compaction.loops import NATIVE

SLOT_BYTES: Final = ENTRY_BYTES if NATIVE else PURE_ENTRY_BYTES


def slots_for(keys_max: int, load_factor: float, buffer_bytes: int) -> int:
    """How many slots to make for `keys_max` keys in `buffer_bytes` at the most."""
    return max(1, min(buffer_bytes // SLOT_BYTES, int(keys_max / load_factor) + 1))
