# cython: language_level=3
"""Records read field by field, for the native modules to inline.                             [P]

All there is to it is here: no module belongs to this file.

Bytes are read through raw pointers, so bounds are checked here by hand: every read of a field goes
through `read_number`, `read_length` or `read_blob`, and those never pass `Reader.end`. A failed
read leaves its reason in the `Reader`.
"""

from libc.stdint cimport int64_t, uint8_t

from kafkalite.core.protocol._varint cimport read_varint, unlikely, varint_bytes_max

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define record_add(a, b, sum) __builtin_add_overflow(a, b, sum)
    #else
    static int record_add(int64_t a, int64_t b, int64_t *sum) {
        *sum = (int64_t)((uint64_t)a + (uint64_t)b);
        return b < 0 ? *sum > a : *sum < a;
    }
    #endif
    """
    bint record_add(int64_t a, int64_t b, int64_t *total) noexcept nogil

# Indices of records_pure.FAULTS and FIELDS.
cdef enum:
    TRUNCATED, OVERLONG, NEGATIVE, PAST_END, UNREAD, ORDER, FIRST_DELTA, NULL_KEY, TIMESTAMP, OFFSET
cdef enum:
    LENGTH, ATTRIBUTES, TIMESTAMP_DELTA, OFFSET_DELTA, KEY_LENGTH, VALUE_LENGTH, HEADER_COUNT
    HEADER_KEY_LENGTH, HEADER_VALUE_LENGTH

cdef enum:
    ALONE_BYTES = 65536  # letting other threads run costs more than so many bytes take


cdef struct Reader:
    const uint8_t *start
    const uint8_t *position
    const uint8_t *end  # of the record; of all records between two
    int fault
    int field
    int64_t number
    int64_t limit


cdef struct Blob:
    const char *data
    int64_t size  # -1: null


cdef inline int note(Reader *reader, int fault, int field, int64_t number, int64_t limit) noexcept nogil:
    """Keeps why a read failed. Always -1."""
    reader.fault = fault
    reader.field = field
    reader.number = number
    reader.limit = limit
    return -1


cdef inline int note_no_number(Reader *reader, int field, int bits) noexcept nogil:
    if reader.end - reader.position < varint_bytes_max(bits):
        return note(reader, TRUNCATED, field, 0, reader.end - reader.start)
    return note(reader, OVERLONG, field, 0, varint_bytes_max(bits))


cdef inline int read_number(Reader *reader, int field, int bits, int64_t *number) noexcept nogil:
    """A varint of at most `bits` bits; -1 and the position unmoved on failure."""
    cdef const uint8_t *after = read_varint(reader.position, reader.end, bits, number)
    if unlikely(after == NULL):
        return note_no_number(reader, field, bits)
    reader.position = after
    return 0


cdef inline int read_length(Reader *reader, int field, int least, int64_t *length) noexcept nogil:
    """A length in [least, bytes left]; -1 and the position unmoved on failure."""
    cdef const uint8_t *at = reader.position
    if unlikely(read_number(reader, field, 32, length) < 0):
        return -1
    cdef int64_t left = reader.end - reader.position
    if unlikely(length[0] < least or length[0] > left):
        reader.position = at
        return note(reader, NEGATIVE if length[0] < least else PAST_END, field, length[0], left)
    return 0


cdef inline int read_blob(Reader *reader, int field, int least, Blob *blob) noexcept nogil:
    """A length and its bytes, which are passed over."""
    if unlikely(read_length(reader, field, least, &blob.size) < 0):
        return -1
    blob.data = <const char *> reader.position
    if blob.size > 0:
        reader.position += blob.size
    return 0


cdef inline int begin_record(
    Reader *reader, int64_t *timestamp_delta, int64_t *delta
) noexcept nogil:
    """Reads up to the offset delta; `end` is now the record's."""
    cdef int64_t length
    if read_length(reader, LENGTH, 0, &length) < 0:
        return -1
    reader.end = reader.position + length
    if unlikely(length == 0):
        return note(reader, TRUNCATED, ATTRIBUTES, 0, reader.end - reader.start)
    reader.position += 1
    if read_number(reader, TIMESTAMP_DELTA, 64, timestamp_delta) < 0:
        return -1
    return read_number(reader, OFFSET_DELTA, 32, delta)


cdef inline int read_header_count(Reader *reader, int64_t *count) noexcept nogil:
    cdef const uint8_t *at = reader.position
    if read_length(reader, HEADER_COUNT, 0, count) < 0:
        return -1
    cdef int64_t left = reader.end - reader.position
    if unlikely(count[0] * 2 > left):
        reader.position = at
        return note(reader, PAST_END, HEADER_COUNT, count[0], left)
    return 0


cdef inline int end_record(Reader *reader, const uint8_t *end) noexcept nogil:
    """The record ends where its length said; the next is bounded by `end` again."""
    if unlikely(reader.position != reader.end):
        return note(reader, UNREAD, 0, reader.end - reader.position, 0)
    reader.end = end
    return 0


cdef inline Reader open_reader(Py_buffer *view) noexcept nogil:
    cdef Reader reader
    reader.start = <const uint8_t *> view.buf
    reader.position = reader.start
    reader.end = reader.start + view.len
    reader.fault = reader.field = 0
    reader.number = reader.limit = 0
    return reader


cdef inline int skim_headers(Reader *reader) noexcept nogil:
    cdef int64_t count
    cdef Blob blob
    if read_header_count(reader, &count) < 0:
        return -1
    while count > 0:
        if read_blob(reader, HEADER_KEY_LENGTH, 0, &blob) < 0:
            return -1
        if read_blob(reader, HEADER_VALUE_LENGTH, -1, &blob) < 0:
            return -1
        count -= 1
    return 0
