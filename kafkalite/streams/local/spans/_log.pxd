# cython: language_level=3
"""What the native modules of sessions and sliding windows share of rows: see `_log.pyx`.     [P]"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport realloc

cdef enum:
    NUMBER_BYTES = 8

cdef struct Entry:
    int64_t start, end, stamp
    int64_t packed_end  # behind its bytes among those that are packed
    int32_t record
    bint is_row
    bint is_place  # the key is a whole key of topics


@cython.final
cdef class SpanLog:
    cdef readonly list results  # for each aggregate those of the rows
    cdef readonly list keys  # bytes
    cdef readonly list headers  # None: there are none at all
    cdef readonly Py_ssize_t rows  # how many there are
    cdef Entry *_entries
    cdef Py_ssize_t _count, _room
    cdef unsigned char *_packed
    cdef Py_ssize_t _packed_count, _packed_room
    cdef bint _of_sessions

    cdef int add(
        self, object key, int64_t start, int64_t end, int64_t stamp, Py_ssize_t record, bint is_row,
        object headers
    ) except -1
    cdef int add_place(self, object place, object value, int64_t stamp) except -1
    cdef unsigned char *more(self, Py_ssize_t count) except NULL
    cdef int pack_bytes(self, object data) except -1
    cdef int pack_array(self, Py_ssize_t count) except -1
    cdef int pack_nil(self) except -1
    cdef int pack_real(self, double number) except -1
    cdef int pack_number(self, int64_t number) except -1
    cdef int pack_head(self, int head, uint64_t number, int bytes) except -1
    cdef int end_packing(self) except -1
    cdef Py_ssize_t tail_of(self, Py_ssize_t i) noexcept


cdef inline void *longer(void *old, Py_ssize_t count, Py_ssize_t size) except NULL:
    """Memory for `count` things, with those that were there."""
    cdef void *found = realloc(old, count * size)
    if found == NULL:
        raise MemoryError
    return found


cdef inline void put_number(unsigned char *out, uint64_t number) noexcept nogil:
    """A time as keys have it: the highest byte first."""
    cdef int byte
    for byte in range(NUMBER_BYTES):
        out[byte] = <unsigned char> (number >> 8 * (NUMBER_BYTES - 1 - byte) & 0xFF)


cdef inline int64_t get_number(const unsigned char *found) noexcept nogil:
    cdef uint64_t number = 0
    cdef int byte
    for byte in range(NUMBER_BYTES):
        number = number << 8 | found[byte]
    return <int64_t> number


cdef inline void put_place(unsigned char *out, const Entry *entry, bint of_sessions) noexcept nogil:
    """What stands behind a key in topics."""
    if of_sessions:
        put_number(out, <uint64_t> entry.end)
        out += NUMBER_BYTES
    put_number(out, <uint64_t> entry.start)
