"""The native twin of cleaning_pure: same names, same results.                             [P]"""

from kafkalite.compaction.cleaning_pure import OffsetMap as OffsetMap

def hash_key(secret: bytes, key: bytes) -> bytes: ...
