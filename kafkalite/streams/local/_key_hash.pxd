# cython: language_level=3
"""The hash of a key's bytes that tables of keys in native code share.                        [P]

All there is to it is here: no module belongs to this file. `seed` is of each process, so that no
sender of keys can foresee the hash of one.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    static uint64_t key_mixed(uint64_t a, uint64_t b) {
        __uint128_t product = (__uint128_t) a * b;
        return (uint64_t) product ^ (uint64_t) (product >> 64);
    }
    """
    uint64_t mixed "key_mixed"(uint64_t a, uint64_t b) noexcept nogil


cdef inline uint64_t hash_of(
    const char *data, Py_ssize_t length, uint64_t start, uint64_t seed
) noexcept nogil:
    """A hash of bytes, and of the number `start`."""
    cdef uint64_t h = mixed(start ^ seed, <uint64_t> length ^ 0x9E3779B97F4A7C15ULL)
    cdef uint64_t word
    while length >= 8:
        memcpy(&word, data, 8)
        h = mixed(h ^ word, seed)
        data += 8
        length -= 8
    if length:
        word = 0
        memcpy(&word, data, length)
        h = mixed(h ^ word, seed)
    return h ^ h >> 32
