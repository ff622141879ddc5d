# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Columns in the layout of Arrow's arrays into MessagePack, as msgpack packs the same dicts.  [P]

    {"id": 1, "user": {"name": "a"}}        fields in the order of their columns

Every number, length and text takes the shortest form that there is, a float eight bytes.

Owns   the bytes made, until they are given away.
Fails  with ValueError for offsets that leave their buffer.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kafkalite.core.protocol._varint cimport unlikely
from kafkalite.serde._avro_output cimport Output, fit, put_bytes
from kafkalite.serde._json_sources cimport *

from kafkalite.serde.json_kinds import INTERFACE, Kind

cdef enum:
    INTERFACE_BUILT = 3  # raised together with json_kinds.INTERFACE

if INTERFACE != INTERFACE_BUILT:
    raise ImportError(f"built for interface {INTERFACE_BUILT}, the sources have {INTERFACE}")

PLACES = {kind: place for place, kind in enumerate(Kind)}

cdef enum:
    NIL = 0xC0
    FALSE = 0xC2
    TRUE = 0xC3
    FLOAT_64 = 0xCB
    UINT_8 = 0xCC
    UINT_16 = 0xCD
    UINT_32 = 0xCE
    UINT_64 = 0xCF
    INT_8 = 0xD0
    INT_16 = 0xD1
    INT_32 = 0xD2
    INT_64 = 0xD3
    STR_8 = 0xD9
    STR_16 = 0xDA
    STR_32 = 0xDB
    ARRAY_16 = 0xDC
    ARRAY_32 = 0xDD

cdef struct Writer:
    Column *columns
    Output out


cdef inline int put_sized(Output *out, uint8_t code, uint64_t number, int size) noexcept nogil:
    """A code, and the lowest bytes of a number behind it, big end first."""
    cdef int at
    if fit(out, 1 + size) < 0:
        return -1
    out.bytes[out.used] = code
    for at in range(size):
        out.bytes[out.used + 1 + at] = <uint8_t> (number >> (8 * (size - 1 - at)))
    out.used += 1 + size
    return 0


cdef int put_int(Output *out, int64_t value) noexcept nogil:
    cdef uint64_t bits = <uint64_t> value
    if -32 <= value < 128:
        return put_sized(out, <uint8_t> bits, 0, 0)
    if value >= 0:
        if value < 1 << 8:
            return put_sized(out, UINT_8, bits, 1)
        if value < 1 << 16:
            return put_sized(out, UINT_16, bits, 2)
        if value < <int64_t> 1 << 32:
            return put_sized(out, UINT_32, bits, 4)
        return put_sized(out, UINT_64, bits, 8)
    if value >= -(1 << 7):
        return put_sized(out, INT_8, bits, 1)
    if value >= -(1 << 15):
        return put_sized(out, INT_16, bits, 2)
    if value >= -(<int64_t> 1 << 31):
        return put_sized(out, INT_32, bits, 4)
    return put_sized(out, INT_64, bits, 8)


cdef int put_text(Output *out, const uint8_t *at, int64_t size) noexcept nogil:
    cdef int status
    if size < 32:
        status = put_sized(out, <uint8_t> (0xA0 | size), 0, 0)
    elif size < 1 << 8:
        status = put_sized(out, STR_8, size, 1)
    elif size < 1 << 16:
        status = put_sized(out, STR_16, size, 2)
    else:
        status = put_sized(out, STR_32, size, 4)
    return status if status < 0 else put_bytes(out, at, size)


cdef int put_plain(Output *out, const Column *column, int64_t row) noexcept nogil:
    """A value without parts, that is there; -2: its offsets are wrong."""
    cdef int64_t begin, end
    cdef uint64_t bits
    cdef const int32_t *offsets = <const int32_t *> column.data
    if column.kind == INT_KIND:
        if column.width == 4:
            return put_int(out, (<const int32_t *> column.data)[row])
        return put_int(out, (<const int64_t *> column.data)[row])
    if column.kind == TEXT_KIND:
        begin, end = offsets[row], offsets[row + 1]
        if unlikely(begin < 0 or end < begin or end > column.content_size):
            return -2
        return put_text(out, column.content + begin, end - begin)
    if column.kind == FLOAT_KIND:
        memcpy(&bits, column.data + 8 * row, 8)
        return put_sized(out, FLOAT_64, bits, 8)
    if (column.data[row >> 3] >> (row & 7)) & 1:
        return put_sized(out, TRUE, 0, 0)
    return put_sized(out, FALSE, 0, 0)


cdef int put_list(Writer *w, int c, int64_t row) noexcept nogil:
    """The items of a list that is there. The column of items begins with those of the first row."""
    cdef const Column *column = &w.columns[c]
    cdef const int32_t *offsets = <const int32_t *> column.data
    cdef int64_t first = offsets[column.offset], begin = offsets[row], end = offsets[row + 1], item
    cdef int64_t count = end - begin
    cdef int status
    if unlikely(begin < first or end < begin or end - first > column.content_size):
        return -2
    if count < 16:
        status = put_sized(&w.out, <uint8_t> (0x90 | count), 0, 0)
    elif count < 1 << 16:
        status = put_sized(&w.out, ARRAY_16, count, 2)
    else:
        status = put_sized(&w.out, ARRAY_32, count, 4)
    for item in range(begin, end):
        if unlikely(status < 0):
            return status
        status = put(w, c + 1, item - first)
    return status


cdef int put(Writer *w, int c, int64_t row) noexcept nogil:
    """The value of a row, `row` being counted without the column's offset. As deep as the columns."""
    cdef const Column *column = &w.columns[c]
    cdef int part = c + 1, status
    if column.kind == NULL_KIND or not is_there(column.valid, row + column.offset):
        return put_sized(&w.out, NIL, 0, 0)
    if column.kind == LIST_KIND:
        return put_list(w, c, row + column.offset)
    if column.kind != OBJECT_KIND:
        return put_plain(&w.out, column, row + column.offset)
    while part < column.end:
        status = put_bytes(&w.out, w.columns[part].head, w.columns[part].head_size)
        if status == 0:
            status = put(w, part, row)
        if unlikely(status < 0):
            return status
        part = w.columns[part].end
    return 0


cdef int put_all(Writer *w, int64_t rows, int64_t *ends) noexcept nogil:
    """Each row; a null row takes no bytes."""
    cdef const Column *root = w.columns
    cdef int64_t row
    cdef int status
    for row in range(rows):
        if root.kind != NULL_KIND and is_there(root.valid, row + root.offset):
            status = put(w, 0, row)
            if status < 0:
                return status
        ends[row] = w.out.used
    return 0


@cython.final
cdef class Encoder:
    """Columns described as `fill_columns` has them."""

    cdef Writer w
    cdef list held  # whose bytes the columns point into

    def __cinit__(self, sources):
        self.held = list(sources)
        self.w.columns = <Column *> calloc(len(self.held), sizeof(Column))
        if self.w.columns == NULL:
            raise MemoryError
        fill_columns(self.w.columns, self.held, PLACES)

    def __dealloc__(self):
        free(self.w.columns)
        free(self.w.out.bytes)

    cdef tuple encode(self, int64_t rows):
        cdef int64_t *ends
        cdef int status
        offsets = PyBytes_FromStringAndSize(NULL, (rows + 1) * 8)
        ends = <int64_t *> PyBytes_AS_STRING(offsets)
        ends[0] = 0
        with nogil:
            status = put_all(&self.w, rows, ends + 1)
        if status == -2:
            raise ValueError("offsets leave their buffer")
        if status < 0:
            raise MemoryError
        return offsets, PyBytes_FromStringAndSize(<const char *> self.w.out.bytes, self.w.out.used)


def write_values(sources, int64_t rows):
    """The bytes of each row: offsets of 64 bits, and the bytes. See `fill_columns` for the sources."""
    return (<Encoder> Encoder(sources)).encode(rows)
