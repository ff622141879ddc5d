# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The offset map in native memory, 24 bytes a slot; offset_map.py draws it.                  [P]"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kafkalite.core.protocol._interface cimport check_interface

from kafkalite.compaction.cleaning_pure import ENTRY_BYTES, SECRET_BYTES, refuse_full
from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)
assert sizeof(Entry) == ENTRY_BYTES


@cython.final
@cython.no_gc
cdef class OffsetMap:
    """From a key to the offset of its latest record; see the twin."""

    def __cinit__(self, int64_t slots, bytes secret):
        if slots < 1 or len(secret) != SECRET_BYTES:
            raise ValueError(f"{slots} slots, a secret of {len(secret)} bytes")
        self.table.entries = <Entry *> calloc(slots, sizeof(Entry))
        if self.table.entries == NULL:
            raise MemoryError
        self.table.slots = slots
        memcpy(self.table.secret, PyBytes_AS_STRING(secret), sizeof(self.table.secret))

    def __dealloc__(self):
        free(self.table.entries)

    @property
    def slots(self):
        """How many keys have room."""
        return self.table.slots

    @property
    def size(self):
        """How many keys it knows."""
        return self.table.size

    def release(self):
        """Gives the memory back; it knows nothing any more, and takes nothing."""
        cdef Entry *entries = self.table.entries
        self.table.entries = NULL
        self.table.slots = self.table.size = 0  # no search takes a step
        with nogil:
            free(entries)

    def put(self, bytes key, int64_t offset):
        """The key's latest record has `offset`."""
        cdef uint64_t[2] hash
        siphash(self.table.secret, <const uint8_t *> PyBytes_AS_STRING(key), len(key), hash)
        if not set_latest(&self.table, hash, offset):
            refuse_full(self.table.slots)

    def get(self, bytes key):
        """The offset of the key's latest record, -1 when it is not known."""
        cdef uint64_t[2] hash
        siphash(self.table.secret, <const uint8_t *> PyBytes_AS_STRING(key), len(key), hash)
        return latest(&self.table, hash)


def hash_key(bytes secret, bytes key):
    """SipHash-2-4-128, for a test to compare."""
    cdef uint64_t[2] words
    cdef uint64_t[2] hash
    assert len(secret) == SECRET_BYTES
    memcpy(words, PyBytes_AS_STRING(secret), sizeof(words))
    siphash(words, <const uint8_t *> PyBytes_AS_STRING(key), len(key), hash)
    return (<object> hash[0]).to_bytes(8, "little") + (<object> hash[1]).to_bytes(8, "little")
