# cython: language_level=3
"""Text, UUIDs and decimals as Avro has them, for the native modules to inline.               [P]

All there is to it is here: no module belongs to this file. Nothing looks past what it is given.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from kafkalite.core.protocol._varint cimport varint_bits


cdef inline bint is_utf8(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether Python decodes it: no surrogates, nothing longer than it must be."""
    cdef uint64_t eight
    cdef uint8_t a, b
    cdef int more
    while at < end:
        while end - at >= 8:
            memcpy(&eight, at, 8)
            if eight & <uint64_t> 0x8080808080808080:
                break
            at += 8
        if at == end:
            return True
        a = at[0]
        at += 1
        if a < 0x80:
            continue
        if a < 0xC2 or a > 0xF4:
            return False
        more = 1 if a < 0xE0 else 2 if a < 0xF0 else 3
        if end - at < more:
            return False
        b = at[0]
        if b & 0xC0 != 0x80:
            return False
        if (a == 0xE0 and b < 0xA0) or (a == 0xED and b > 0x9F):
            return False
        if (a == 0xF0 and b < 0x90) or (a == 0xF4 and b > 0x8F):
            return False
        if more > 1 and at[1] & 0xC0 != 0x80:
            return False
        if more > 2 and at[2] & 0xC0 != 0x80:
            return False
        at += more
    return True


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c >= 48 and c <= 57:
        return c - 48
    c |= 0x20
    if c >= 97 and c <= 102:
        return c - 87
    return -1


cdef inline bint parse_uuid(const uint8_t *text, uint8_t *out) noexcept nogil:
    """The 16 bytes of 36 characters; false where they are no UUID."""
    cdef int made, high, low, place = 0
    for made in range(16):
        if made == 4 or made == 6 or made == 8 or made == 10:
            if text[place] != 45:
                return False
            place += 1
        high, low = hex_digit(text[place]), hex_digit(text[place + 1])
        if high < 0 or low < 0:
            return False
        out[made] = <uint8_t> (high << 4 | low)
        place += 2
    return True


cdef inline bint parse_decimal(
    const uint8_t *data, int64_t size, const uint64_t *limit, uint8_t *out, int width
) noexcept nogil:
    """From two's complement, big end first, to `width` bytes, little end first; false where the
    number is `limit` or more in magnitude."""
    cdef uint8_t fill = 0xFF if size and data[0] & 0x80 else 0
    cdef uint64_t[4] limbs
    cdef uint8_t *raw = <uint8_t *> limbs
    cdef uint64_t magnitude
    cdef int64_t i
    cdef int carry = 1, order = 0
    while size > 32:
        if data[0] != fill:
            return False
        data += 1
        size -= 1
    if size == 32 and (data[0] ^ fill) & 0x80:
        return False
    memset(raw, fill, 32)
    for i in range(size):
        raw[i] = data[size - 1 - i]
    for i in range(4):
        magnitude = limbs[i]
        if fill:
            magnitude = ~magnitude + carry
            carry = carry and magnitude == 0
        if magnitude != limit[i]:
            order = -1 if magnitude < limit[i] else 1
    memcpy(out, raw, width)
    return order < 0


cdef inline void format_uuid(const uint8_t *raw, uint8_t *out) noexcept nogil:
    """The 36 characters of 16 bytes."""
    cdef const char *digits = "0123456789abcdef"
    cdef int i, place = 0
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[place] = 45
            place += 1
        out[place] = digits[raw[i] >> 4]
        out[place + 1] = digits[raw[i] & 15]
        place += 2


cdef inline int decimal_bits(const uint8_t *raw, int width, const uint64_t *limit) noexcept nogil:
    """The bits of a number's magnitude, which lies little end first; -1 for `limit` and more."""
    cdef uint8_t fill = 0xFF if raw[width - 1] & 0x80 else 0
    cdef uint64_t[4] limbs
    cdef int i, bits = 0, carry = 1, order = 0
    memset(<uint8_t *> limbs, fill, 32)
    memcpy(<uint8_t *> limbs, raw, width)
    for i in range(4):
        if fill:
            limbs[i] = ~limbs[i] + carry
            carry = carry and limbs[i] == 0
        if limbs[i] != limit[i]:
            order = -1 if limbs[i] < limit[i] else 1
        if limbs[i]:
            bits = i * 64 + varint_bits(limbs[i])
    return bits if order < 0 else -1
