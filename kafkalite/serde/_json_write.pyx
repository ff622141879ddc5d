# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Columns in the layout of Arrow's arrays into JSON texts, as orjson writes the same dicts.   [P]

    {"id":1,"user":{"name":"a"}}        compact, fields in the order of their columns

Floats are orjson's own text: `floats_of` makes a list of them, and orjson prints it once a column.

Owns   the texts made, until they are given away.
Fails  with ValueError for offsets that leave their buffer, and for a list of floats that is not as
       long as its column.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_FromDouble
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
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
    INT_BYTES = 20  # of the longest integer
    ESCAPED_BYTES = 6  # of the longest escape

cdef const char *HEX = "0123456789abcdef"

cdef struct Writer:
    Column *columns
    Output out


cdef inline int put_int(Output *out, int64_t value) noexcept nogil:
    """A decimal number."""
    cdef uint8_t[INT_BYTES] digits
    cdef int at = INT_BYTES
    cdef uint64_t rest = <uint64_t> value if value >= 0 else 0 - <uint64_t> value
    while True:
        at -= 1
        digits[at] = <uint8_t> (48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        at -= 1
        digits[at] = 45
    return put_bytes(out, digits + at, INT_BYTES - at)


cdef inline bint is_plain(uint8_t c) noexcept nogil:
    return c >= 32 and c != 34 and c != 92


cdef inline bint all_plain(const uint8_t *at) noexcept nogil:
    """Whether none of eight bytes is a quote, a backslash or a control character."""
    cdef uint64_t eight, quotes, slashes, found
    cdef uint64_t ones = 0x0101010101010101
    memcpy(&eight, at, 8)
    quotes, slashes = eight ^ (ones * 34), eight ^ (ones * 92)
    found = ((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes)
    found |= (eight - ones * 32) & ~eight
    return found & <uint64_t> 0x8080808080808080 == 0


cdef inline uint8_t *put_escape(uint8_t *out, uint8_t c) noexcept nogil:
    """A quote, a backslash or a control character."""
    cdef uint8_t short_form = 0
    if c == 34 or c == 92:
        short_form = c
    elif c == 10:
        short_form = 110
    elif c == 9:
        short_form = 116
    elif c == 13:
        short_form = 114
    elif c == 8:
        short_form = 98
    elif c == 12:
        short_form = 102
    out[0] = 92
    if short_form:
        out[1] = short_form
        return out + 2
    memcpy(out + 1, b"u00", 3)
    out[4], out[5] = HEX[c >> 4], HEX[c & 15]
    return out + 6


cdef int put_text(Output *out, const uint8_t *at, int64_t size) noexcept nogil:
    """A text in quotes."""
    cdef const uint8_t *end = at + size
    cdef uint8_t *into
    if fit(out, 2 + ESCAPED_BYTES * size) < 0:
        return -1
    into = out.bytes + out.used
    into[0] = 34
    into += 1
    while at < end:
        if end - at >= 8 and all_plain(at):
            memcpy(into, at, 8)
            at += 8
            into += 8
            continue
        if is_plain(at[0]):
            into[0] = at[0]
            into += 1
        else:
            into = put_escape(into, at[0])
        at += 1
    into[0] = 34
    out.used = into + 1 - out.bytes
    return 0


cdef int put_plain(Output *out, const Column *column, int64_t row) noexcept nogil:
    """A value without parts, that is there; -2: its offsets are wrong."""
    cdef int64_t begin, end
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
        row -= column.offset
        begin = column.ends[row] + 1  # behind a comma or the bracket
        return put_bytes(out, column.content + begin, column.ends[row + 1] - begin)
    if (column.data[row >> 3] >> (row & 7)) & 1:
        return put_bytes(out, b"true", 4)
    return put_bytes(out, b"false", 5)


cdef int put_list(Writer *w, int c, int64_t row) noexcept nogil:
    """The items of a list that is there. The column of items begins with those of the first row."""
    cdef const Column *column = &w.columns[c]
    cdef const int32_t *offsets = <const int32_t *> column.data
    cdef int64_t first = offsets[column.offset], begin = offsets[row], end = offsets[row + 1], item
    cdef int status
    if unlikely(begin < first or end < begin or end - first > column.content_size):
        return -2
    if put_bytes(&w.out, b"[", 1) < 0:
        return -1
    for item in range(begin, end):
        if item > begin and put_bytes(&w.out, b",", 1) < 0:
            return -1
        status = put(w, c + 1, item - first)
        if unlikely(status < 0):
            return status
    return put_bytes(&w.out, b"]", 1)


cdef int put(Writer *w, int c, int64_t row) noexcept nogil:
    """The value of a row, `row` being counted without the column's offset. As deep as the columns."""
    cdef const Column *column = &w.columns[c]
    cdef int part = c + 1, status
    if column.kind == NULL_KIND or not is_there(column.valid, row + column.offset):
        return put_bytes(&w.out, b"null", 4)
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
    return put_bytes(&w.out, b"}", 1)


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


def floats_of(size_t data, size_t valid, int64_t offset, int64_t rows):
    """Doubles at an address as a list, None where the bit of validity is 0."""
    cdef list made = []
    cdef int64_t row
    cdef const double *numbers = <const double *> data
    for row in range(offset, offset + rows):
        if is_there(<const uint8_t *> valid, row):
            made.append(PyFloat_FromDouble(numbers[row]))
        else:
            made.append(None)
    return made


cdef int64_t *ends_of(bytes texts, int64_t rows) except NULL:
    """Where the entries of a list of numbers end; the first entry is where the list begins."""
    cdef const char *data = PyBytes_AS_STRING(texts)
    cdef int64_t size = PyBytes_GET_SIZE(texts), at, row = 0
    cdef int64_t *ends = <int64_t *> malloc((rows + 1) * sizeof(int64_t))
    if ends == NULL:
        raise MemoryError
    ends[0] = 0
    for at in range(1, size):
        if data[at] == 44 or (data[at] == 93 and rows):
            row += 1
            if row > rows:
                break
            ends[row] = at
    if row != rows:
        free(ends)
        raise ValueError(f"{row} floats or more, the column has {rows}")
    return ends


@cython.final
cdef class Encoder:
    """Columns described as `fill_columns` has them."""

    cdef Writer w
    cdef int count
    cdef list held  # whose bytes the columns point into

    def __cinit__(self, sources):
        cdef int place
        self.count, self.held = len(sources), list(sources)
        self.w.columns = <Column *> calloc(self.count, sizeof(Column))
        if self.w.columns == NULL:
            raise MemoryError
        fill_columns(self.w.columns, self.held, PLACES)
        for place in range(self.count):
            if self.w.columns[place].kind == FLOAT_KIND:
                floats = self.held[place][FLOATS]
                self.w.columns[place].content = <const uint8_t *> PyBytes_AS_STRING(floats)
                self.w.columns[place].ends = ends_of(floats, self.held[place][ROWS])

    def __dealloc__(self):
        cdef int place
        if self.w.columns != NULL:
            for place in range(self.count):
                free(self.w.columns[place].ends)
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
            raise ValueError("a text's offsets leave its buffer")
        if status < 0:
            raise MemoryError
        return offsets, PyBytes_FromStringAndSize(<const char *> self.w.out.bytes, self.w.out.used)


def write_texts(sources, int64_t rows):
    """The text of each row: offsets of 64 bits, and the bytes. See `fill_columns` for the sources."""
    return (<Encoder> Encoder(sources)).encode(rows)
