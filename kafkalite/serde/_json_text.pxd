# cython: language_level=3
"""The grammar of JSON texts, for the native modules to inline.                              [P]

All there is to it is here: no module belongs to this file. Nothing looks past `end`. What is passed
over is looked at as closely as what is read.

Source RFC 8259.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from kafkalite.core.protocol._varint cimport unlikely
from kafkalite.serde._avro_bytes cimport hex_digit, is_utf8

cdef enum:
    DEPTH_MAX = 64  # of objects and arrays


cdef inline const uint8_t *past_space(const uint8_t *at, const uint8_t *end) noexcept nogil:
    while at < end and at[0] <= 32 and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef inline bint is_digit(const uint8_t *at, const uint8_t *end) noexcept nogil:
    return at < end and at[0] >= 48 and at[0] <= 57


cdef inline const uint8_t *plain_end(
    const uint8_t *at, const uint8_t *end, uint64_t *high
) noexcept nogil:
    """The first quote, backslash or control character of a text, or its end.

    `high` gets the bytes before it, so that 0x80 in one says that not all are ASCII.
    """
    cdef uint64_t eight, quotes, slashes, found
    cdef uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080
    while end - at >= 8:
        memcpy(&eight, at, 8)
        quotes, slashes = eight ^ (ones * 34), eight ^ (ones * 92)
        found = ((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes)
        found |= (eight - ones * 32) & ~eight
        if found & tops:
            break
        high[0] |= eight
        at += 8
    while at < end and at[0] != 34 and at[0] != 92 and at[0] >= 32:
        high[0] |= at[0]
        at += 1
    return at


cdef inline int hex_number(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The number that `u` and four hexadecimal digits at `at` name; -1 where they are not."""
    cdef int i, digit, found = 0
    if end - at < 5 or at[0] != 117:
        return -1
    for i in range(1, 5):
        digit = hex_digit(at[i])
        if digit < 0:
            return -1
        found = found << 4 | digit
    return found


cdef inline int escaped(uint8_t c) noexcept nogil:
    """The character behind a backslash; -1 where it is none, or a number."""
    if c == 34 or c == 92 or c == 47:
        return c
    if c == 110:
        return 10
    if c == 116:
        return 9
    if c == 114:
        return 13
    if c == 98:
        return 8
    if c == 102:
        return 12
    return -1


cdef inline const uint8_t *text_end(const uint8_t *at, const uint8_t *end, bint *is_plain) noexcept nogil:
    """The closing quote of the text that begins at `at`; NULL where it is no text.

    `is_plain`: it has no escapes. These are looked at when they are replaced.
    """
    cdef const uint8_t *start = at
    cdef uint64_t high = 0
    is_plain[0] = True
    while True:
        at = plain_end(at, end, &high)
        if unlikely(at >= end or at[0] < 32):
            return NULL
        if at[0] == 34:
            break
        if end - at < 2:
            return NULL
        is_plain[0] = False
        at += 2
    if unlikely(high & <uint64_t> 0x8080808080808080 != 0) and not is_utf8(start, at):
        return NULL
    return at


cdef inline uint8_t *put_character(uint8_t *out, uint64_t c) noexcept nogil:
    """A code point as UTF-8."""
    if c < 0x80:
        out[0] = <uint8_t> c
        return out + 1
    if c < 0x800:
        out[0], out[1] = <uint8_t> (0xC0 | c >> 6), <uint8_t> (0x80 | c & 63)
        return out + 2
    if c < 0x10000:
        out[0], out[1] = <uint8_t> (0xE0 | c >> 12), <uint8_t> (0x80 | c >> 6 & 63)
        out[2] = <uint8_t> (0x80 | c & 63)
        return out + 3
    out[0], out[1] = <uint8_t> (0xF0 | c >> 18), <uint8_t> (0x80 | c >> 12 & 63)
    out[2], out[3] = <uint8_t> (0x80 | c >> 6 & 63), <uint8_t> (0x80 | c & 63)
    return out + 4


cdef inline const uint8_t *read_escape(
    const uint8_t *at, const uint8_t *end, uint64_t *character
) noexcept nogil:
    """Behind the escape that begins at `at`; NULL where it is none, or half of a pair."""
    cdef int c = escaped(at[1]), second
    if c >= 0:
        character[0] = c
        return at + 2
    c = hex_number(at + 1, end)
    if c < 0 or (c >= 0xDC00 and c < 0xE000):
        return NULL
    at += 6
    if c >= 0xD800 and c < 0xDC00:
        if end - at < 6 or at[0] != 92:
            return NULL
        second = hex_number(at + 1, end)
        if second < 0xDC00 or second >= 0xE000:
            return NULL
        c = 0x10000 + ((c - 0xD800) << 10 | (second - 0xDC00))
        at += 6
    character[0] = c
    return at


cdef inline uint8_t *unescape(const uint8_t *at, const uint8_t *end, uint8_t *out) noexcept nogil:
    """Copies a text without its escapes; NULL where one is wrong.

    The copy is no longer than the text.
    """
    cdef uint64_t high = 0, character
    cdef const uint8_t *stop
    while True:
        stop = plain_end(at, end, &high)
        if stop > at:
            memcpy(out, at, stop - at)
        out += stop - at
        if stop >= end:
            return out
        at = read_escape(stop, end, &character)
        if at == NULL:
            return NULL
        out = put_character(out, character)


cdef inline const uint8_t *skip_text(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Behind the text that begins at `at`."""
    cdef bint is_plain
    cdef uint64_t ignored
    cdef const uint8_t *stop = text_end(at, end, &is_plain)
    if stop == NULL:
        return NULL
    while not is_plain and at < stop:
        at = read_escape(at, stop, &ignored) if at[0] == 92 else at + 1
        if at == NULL:
            return NULL
    return stop + 1


cdef inline const uint8_t *skip_number(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Behind a number."""
    if at[0] == 45:
        at += 1
    if not is_digit(at, end):
        return NULL
    if at[0] == 48:
        at += 1
    else:
        while is_digit(at, end):
            at += 1
    if at < end and at[0] == 46:
        at += 1
        if not is_digit(at, end):
            return NULL
        while is_digit(at, end):
            at += 1
    if at < end and at[0] | 32 == 101:
        at += 1
        if at < end and (at[0] == 43 or at[0] == 45):
            at += 1
        if not is_digit(at, end):
            return NULL
        while is_digit(at, end):
            at += 1
    return at


cdef inline const uint8_t *skip_word(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Behind true, false or null."""
    if end - at >= 4 and (memcmp(at, b"true", 4) == 0 or memcmp(at, b"null", 4) == 0):
        return at + 4
    if end - at >= 5 and memcmp(at, b"false", 5) == 0:
        return at + 5
    return NULL


cdef inline const uint8_t *skip_items(
    const uint8_t *at, const uint8_t *end, bint is_object, int depth
) noexcept nogil:
    """Behind the array or object that begins before `at`."""
    cdef uint8_t close = 125 if is_object else 93
    if depth > DEPTH_MAX:
        return NULL
    at = past_space(at, end)
    if at < end and at[0] == close:
        return at + 1
    while True:
        if is_object:
            if at >= end or at[0] != 34:
                return NULL
            at = skip_text(at + 1, end)
            if at == NULL:
                return NULL
            at = past_space(at, end)
            if at >= end or at[0] != 58:
                return NULL
            at = past_space(at + 1, end)
        at = skip(at, end, depth)
        if at == NULL:
            return NULL
        at = past_space(at, end)
        if at >= end:
            return NULL
        if at[0] == close:
            return at + 1
        if at[0] != 44:
            return NULL
        at = past_space(at + 1, end)


cdef inline const uint8_t *skip(const uint8_t *at, const uint8_t *end, int depth) noexcept nogil:
    """Behind a value that nobody wants; NULL where it is none."""
    if at >= end:
        return NULL
    if at[0] == 34:
        return skip_text(at + 1, end)
    if at[0] == 123 or at[0] == 91:
        return skip_items(at + 1, end, at[0] == 123, depth + 1)
    if at[0] == 45 or is_digit(at, end):
        return skip_number(at, end)
    return skip_word(at, end)
