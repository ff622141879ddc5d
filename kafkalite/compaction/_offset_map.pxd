# cython: language_level=3
"""The native offset map, its look-ups inlined into the loops; _offset_map.pyx says more.      [P]"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from kafkalite.core.protocol._varint cimport unlikely

cdef extern from "_siphash.h" nogil:
    """
    /* Where in a table a hash belongs: the upper bits of their product, which take no division. A
       table that was released has no slots. */
    #ifdef __SIZEOF_INT128__
    #define map_slot(hash, slots) \
        ((int64_t) (((unsigned __int128) (hash) * (uint64_t) (slots)) >> 64))
    #else
    #define map_slot(hash, slots) ((int64_t) ((slots) ? (hash) % (uint64_t) (slots) : 0))
    #endif

    #if defined(__GNUC__) || defined(__clang__)
    #define map_prefetch(address) __builtin_prefetch(address)
    #else
    #define map_prefetch(address) ((void)(address))
    #endif
    """
    int64_t map_slot(uint64_t hash, int64_t slots) noexcept
    void map_prefetch(const void *address) noexcept
    void siphash(
        const uint64_t *secret, const uint8_t *key, size_t size, uint64_t *hash
    ) noexcept


cdef struct Entry:
    uint64_t high
    uint64_t low
    int64_t next  # the offset after the key's latest record; 0: no entry


cdef struct Table:
    Entry *entries
    int64_t slots
    int64_t size  # how many keys it knows
    uint64_t[2] secret


cdef class OffsetMap:
    cdef Table table


cdef inline void hash_in(
    const Table *table, const uint8_t *key, size_t size, uint64_t *hash
) noexcept nogil:
    """Hashes a key, and asks for the memory that its entry is in."""
    siphash(table.secret, key, size, hash)
    map_prefetch(table.entries + map_slot(hash[0], table.slots))


cdef inline Entry *find(const Table *table, const uint64_t *hash) noexcept nogil:
    """The entry of a key, or the free one where it would be; NULL when there is neither."""
    cdef Entry *entry = table.entries + map_slot(hash[0], table.slots)
    cdef Entry *end = table.entries + table.slots
    cdef int64_t left = table.slots
    while left:
        if not entry.next or (entry.high == hash[0] and entry.low == hash[1]):
            return entry
        entry += 1
        if entry == end:
            entry = table.entries
        left -= 1
    return NULL


cdef inline bint set_latest(Table *table, const uint64_t *hash, int64_t offset) noexcept nogil:
    """The key's latest record has `offset`; false where there is no room for it."""
    cdef Entry *entry = find(table, hash)
    if unlikely(entry == NULL):
        return False
    if not entry.next:
        entry.high = hash[0]
        entry.low = hash[1]
        table.size += 1
    entry.next = offset + 1
    return True


cdef inline int64_t latest(const Table *table, const uint64_t *hash) noexcept nogil:
    """The offset of the key's latest record, -1 when it is not known."""
    cdef Entry *entry = find(table, hash)
    return -1 if entry == NULL else entry.next - 1
