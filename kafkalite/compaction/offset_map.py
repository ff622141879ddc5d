"""The cleaner's memory: the latest offset of each key in the dirty part of a log.          [P]

    slot     hash of the key, 128 bits | next offset, 64 bits       24 bytes
             taken by hash modulo slots, else the first free one after it

The map has a fixed size of at most `log.cleaner.dedupe.buffer.size`, and each key takes one slot
however long it is: 128 MiB hold 5 million keys at the default load factor of 0.9. When the map is
full, the pass ends, and the next cleaning continues.

The map compares hashes, not keys. If two keys had the same hash, the older record would be lost.
Apache Kafka accepts this risk too, but it hashes with MD5 (128 bits), and clients can make two keys
that collide in MD5. This map uses SipHash-2-4-128 with a new secret for each cleaning, so clients
cannot choose keys that collide: 5 million keys make 2**43.5 pairs, and a pair collides with a
probability of 1 in 2**128. Hashing a key of 8 to 24 bytes takes some 20 ns.

The twin in plain Python is a dictionary. It needs about 200 bytes a key, so it holds fewer keys.

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
