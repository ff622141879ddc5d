# cython: language_level=3
"""Zigzag varints, the numbers that records are made of, for the native modules to inline.     [P]

All there is to it is here: no module belongs to this file. `read_varint` never looks past `end`.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define varint_bits(number) (64 - __builtin_clzll((number) | 1))
    #define kafkalite_unlikely(condition) __builtin_expect(!!(condition), 0)
    #else
    static int varint_bits(uint64_t number) {
        int bits = 1;
        while (number >>= 1) bits++;
        return bits;
    }
    #define kafkalite_unlikely(condition) (condition)
    #endif
    """
    int varint_bits(uint64_t number) noexcept nogil
    bint unlikely "kafkalite_unlikely"(bint condition) noexcept nogil  # moves the branch away


cdef inline const uint8_t *read_varint(
    const uint8_t *at, const uint8_t *end, int bits, int64_t *number
) noexcept nogil:
    """Where the number at `at` ends; NULL where it is not whole or has more than `bits` bits.

    It is not whole where fewer than `varint_bytes_max(bits)` bytes are left, too long otherwise.
    """
    cdef uint64_t raw
    cdef int shift = 7
    cdef uint8_t byte
    if unlikely(at == end):
        return NULL
    byte = at[0]
    raw = byte & 0x7F
    at += 1
    while byte >= 0x80:
        if unlikely(shift >= bits or at == end):
            return NULL
        byte = at[0]
        at += 1
        raw |= <uint64_t> (byte & 0x7F) << shift
        shift += 7
    # What the last possible byte may hold: 4 bits of 32, 1 bit of 64.
    if unlikely(shift > bits and byte >> (bits + 7 - shift)):
        return NULL
    number[0] = <int64_t> ((raw >> 1) ^ (0 - (raw & 1)))
    return at


cdef inline int varint_bytes_max(int bits) noexcept nogil:
    """How many bytes a number of `bits` bits may take."""
    return (bits + 6) // 7


cdef inline int varint_size(int64_t number) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    return (varint_bits(raw) + 6) // 7


cdef inline uint8_t *write_varint(uint8_t *output, int64_t number) noexcept nogil:
    """Writes a number, in the `varint_size` bytes that it takes; where the next byte goes."""
    cdef uint64_t raw = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    while raw > 0x7F:
        output[0] = <uint8_t> (raw | 0x80)
        output += 1
        raw >>= 7
    output[0] = <uint8_t> raw
    return output + 1
