# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""MessagePack values of a batch into columns, one for each field, as `_json_read` does texts. [P]

    {"id": 1, "user": {"name": "a"}}        id: int64    user: struct of name: text

All values are maps of the same fields, whose names are texts; a field, and an item of lists, has
one type, or nil. The reader refuses every other batch as a whole, one with a value that is damaged
among them: then each value is read as an object, and its error, if there is one, is the error.

Where only some fields are asked for, the others are passed over, and may differ from value to
value. A field that is asked for stands in all values or in none. Without a choice of fields, and in
a map inside, all values have the same fields in the same order.

Owns   the columns, until they are copied out.
Fails  with nothing but MemoryError: it gives None for a batch that it refuses.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcmp, memcpy

from kafkalite.core.protocol._varint cimport unlikely
from kafkalite.serde._avro_bytes cimport is_utf8
from kafkalite.serde._json_columns cimport *

from kafkalite.serde.json_kinds import INTERFACE, Kind

cdef enum:
    INTERFACE_BUILT = 3  # raised together with json_kinds.INTERFACE

if INTERFACE != INTERFACE_BUILT:
    raise ImportError(f"built for interface {INTERFACE_BUILT}, the sources have {INTERFACE}")

KINDS = tuple(Kind)

cdef enum:
    DEPTH_MAX = 64  # of maps and lists

cdef enum:  # what a head says of the value behind it
    NONE, NIL, FALSE, TRUE, INT, FLOAT, TEXT, BLOB, ARRAY, MAP

cdef struct Head:
    int what
    uint64_t number  # an integer or the bits of a float; the length of anything else


cdef inline uint64_t big_endian(const uint8_t *at, int size) noexcept nogil:
    cdef uint64_t number = 0
    cdef int i
    for i in range(size):
        number = number << 8 | at[i]
    return number


cdef inline const uint8_t *with_number(
    Head *head, int what, const uint8_t *at, const uint8_t *end, int size
) noexcept nogil:
    """A head of a number of some bytes, or of a length."""
    if end - at < size:
        return NULL
    head.what, head.number = what, big_endian(at, size)
    return at + size


cdef inline const uint8_t *read_signed(
    Head *head, const uint8_t *at, const uint8_t *end, int size
) noexcept nogil:
    cdef int shift = 64 - 8 * size
    at = with_number(head, INT, at, end, size)
    if at != NULL and shift:
        head.number = <uint64_t> (<int64_t> (head.number << shift) >> shift)
    return at


cdef const uint8_t *read_long_head(
    Head *head, uint8_t code, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """A head with a code from 0xc0 to 0xdf. Extensions and floats of 32 bits are refused."""
    if code == 0xC0 or code == 0xC2 or code == 0xC3:
        head.what = NIL if code == 0xC0 else TRUE if code == 0xC3 else FALSE
        return at
    if 0xC4 <= code <= 0xC6:
        return with_number(head, BLOB, at, end, 1 << (code - 0xC4))
    if code == 0xCB:
        return with_number(head, FLOAT, at, end, 8)
    if 0xCC <= code <= 0xCF:
        at = with_number(head, INT, at, end, 1 << (code - 0xCC))
        return NULL if at == NULL or head.number >> 63 else at
    if 0xD0 <= code <= 0xD3:
        return read_signed(head, at, end, 1 << (code - 0xD0))
    if 0xD9 <= code <= 0xDB:
        return with_number(head, TEXT, at, end, 1 << (code - 0xD9))
    if code == 0xDC or code == 0xDD:
        return with_number(head, ARRAY, at, end, 2 << (code - 0xDC))
    if code == 0xDE or code == 0xDF:
        return with_number(head, MAP, at, end, 2 << (code - 0xDE))
    return NULL


cdef inline const uint8_t *read_head(
    Head *head, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """What begins at `at`; NULL where it is refused. Texts and blobs end before `end`."""
    cdef uint8_t code
    if at >= end:
        return NULL
    code = at[0]
    at += 1
    if code < 0x80 or code >= 0xE0:
        head.what, head.number = INT, <uint64_t> <int64_t> <int8_t> code
        return at
    if code < 0xC0:
        head.what = TEXT if code >= 0xA0 else ARRAY if code >= 0x90 else MAP
        head.number = code & 31 if code >= 0xA0 else code & 15
    else:
        at = read_long_head(head, code, at, end)
    if at != NULL and (head.what == TEXT or head.what == BLOB):
        if head.number > <uint64_t> (end - at):
            return NULL
    return at


cdef const uint8_t *skip(const uint8_t *at, const uint8_t *end, int depth) noexcept nogil:
    """Behind a value that nobody wants; NULL where it is none, or a map has odd keys."""
    cdef Head head
    cdef uint64_t i, count
    at = read_head(&head, at, end)
    if at == NULL or depth > DEPTH_MAX:
        return NULL
    if head.what == TEXT or head.what == BLOB:
        if head.what == TEXT and not is_utf8(at, at + head.number):
            return NULL
        return at + head.number
    if head.what != ARRAY and head.what != MAP:
        return at
    count = head.number
    for i in range(count):
        if head.what == MAP:
            at = read_name(at, end, NULL)
            if at == NULL:
                return NULL
        at = skip(at, end, depth + 1)
        if at == NULL:
            return NULL
    return at


cdef inline const uint8_t *read_name(
    const uint8_t *at, const uint8_t *end, int64_t *size
) noexcept nogil:
    """Behind the key of a map, which is a text; its bytes in `size`."""
    cdef Head head
    at = read_head(&head, at, end)
    if at == NULL or head.what != TEXT or not is_utf8(at, at + head.number):
        return NULL
    if size != NULL:
        size[0] = <int64_t> head.number
    return at + head.number


cdef const uint8_t *read_text(
    Scan *s, int c, int64_t row, const uint8_t *at, int64_t size
) noexcept nogil:
    """A text of so many bytes at `at`."""
    cdef Column *column = &s.columns[c]
    if unlikely(not is_utf8(at, at + size)):
        return NULL
    if unlikely(column.kind != TEXT_KIND) and becomes(column, TEXT_KIND) < 0:
        return NULL
    fill_ends(column, row)
    if fit_text(column, size) < 0:
        return NULL
    if size:
        memcpy(column.text + column.used, at, size)
    column.used += size
    column.filled = row + 1
    (<int32_t *> column.numbers)[row + 1] = <int32_t> column.used
    return at + size


cdef const uint8_t *read_value(
    Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end, int depth
) noexcept nogil:
    """A value into its column."""
    cdef Column *column = &s.columns[c]
    cdef Head head
    cdef int kind
    at = read_head(&head, at, end)
    if at == NULL or grow(column, row + 1) < 0 or column.there[row] != MISSING:
        return NULL  # MISSING no longer: a key that stands twice
    column.present += 1
    if head.what == NIL:
        column.there[row] = NULL_THERE
        return at
    column.there[row] = VALUE_THERE
    if head.what == TEXT:
        return read_text(s, c, row, at, <int64_t> head.number)
    if head.what == MAP:
        if column.kind != OBJECT_KIND and becomes(column, OBJECT_KIND) < 0:
            return NULL
        return read_map(s, c, row, head.number, at, end, depth + 1)
    if head.what == ARRAY:
        return read_list(s, c, row, head.number, at, end, depth + 1)
    if head.what == BLOB:
        return NULL
    kind = INT_KIND if head.what == INT else FLOAT_KIND if head.what == FLOAT else BOOL_KIND
    if column.kind != kind and becomes(column, kind) < 0:
        return NULL
    if kind == BOOL_KIND:
        (<uint8_t *> column.numbers)[row] = head.what == TRUE
    else:
        memcpy(&column.numbers[row], &head.number, 8)
    return at


cdef const uint8_t *read_list(
    Scan *s, int c, int64_t row, uint64_t count, const uint8_t *at, const uint8_t *end, int depth
) noexcept nogil:
    """So many items at `at`; they are rows of a column of their own."""
    cdef Column *column = &s.columns[c]
    cdef uint64_t i
    if depth > DEPTH_MAX or (column.kind != LIST_KIND and becomes(column, LIST_KIND) < 0):
        return NULL
    if column.first < 0 and new_column(s, c, NULL, 0) < 0:
        return NULL
    fill_ends(column, row)
    for i in range(count):
        if column.used == INT32_MAX:
            return NULL
        at = read_value(s, column.first, column.used, at, end, depth)
        if at == NULL:
            return NULL
        column.used += 1
    fill_ends(column, row + 1)
    return at


cdef const uint8_t *read_key(
    Scan *s, int c, int *field, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Which field a key names, `field` being the next in order; -1: nobody wants it."""
    cdef Column *column
    cdef bint is_choice = c == 0 and s.is_choice
    cdef int64_t size = 0
    cdef const uint8_t *stop = read_name(at, end, &size)
    cdef const uint8_t *name = stop - size
    if stop == NULL:
        return NULL
    if field[0] >= 0:
        column = &s.columns[field[0]]
        if size == column.name_size and memcmp(name, column.name, size) == 0:
            return stop
        if not is_choice:
            return NULL
    field[0] = s.columns[c].first
    while field[0] >= 0:
        column = &s.columns[field[0]]
        if size == column.name_size and memcmp(name, column.name, size) == 0:
            break
        field[0] = column.next
    if is_choice:
        return stop
    if field[0] >= 0 or not s.columns[c].is_open:
        return NULL
    field[0] = new_column(s, c, name, size)
    return stop if field[0] >= 0 else NULL


cdef const uint8_t *read_map(
    Scan *s, int c, int64_t row, uint64_t count, const uint8_t *at, const uint8_t *end, int depth
) noexcept nogil:
    """A map of so many fields at `at`; NULL where it is refused."""
    cdef bint is_choice = c == 0 and s.is_choice
    cdef int field, seen = 0, expected = -1 if s.columns[c].is_open else s.columns[c].first
    cdef uint64_t i
    if depth > DEPTH_MAX or (not count and not is_choice):
        return NULL
    for i in range(count):
        if not is_choice and expected < 0 and not s.columns[c].is_open:
            return NULL
        field = expected
        at = read_key(s, c, &field, at, end)
        if unlikely(at == NULL):
            return NULL
        if field < 0:
            at = skip(at, end, depth)
        else:
            at = read_value(s, field, row, at, end, depth)
            seen += 1
            if not s.columns[c].is_open:
                expected = s.columns[field].next
        if unlikely(at == NULL):
            return NULL
    if is_choice:
        if s.chosen < 0:
            s.chosen = seen
        return at if seen == s.chosen else NULL
    s.columns[c].is_open = False
    return at if seen == s.columns[c].fields else NULL


cdef bint read_all(
    Scan *s, const uint8_t *data, const int64_t *starts, const int64_t *ends
) noexcept nogil:
    """Reads every value; false where one is refused."""
    cdef int64_t row
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Head head
    for row in range(s.rows):
        if starts[row] < 0:
            s.columns[0].there[row] = NULL_THERE
            continue
        s.columns[0].there[row] = VALUE_THERE
        s.columns[0].present += 1
        end = data + ends[row]
        at = read_head(&head, data + starts[row], end)
        if at == NULL or head.what != MAP:
            return False
        if read_map(s, 0, row, head.number, at, end, 1) != end:
            return False
    return True


def read_columns(data, starts, ends, fields):
    """The column of all values, a struct; None where the batch is refused: see `_json_read`."""
    cdef Py_buffer values, first, last
    cdef Scan *s = NULL
    cdef bytes name
    cdef int c
    cdef bint is_read
    PyObject_GetBuffer(data, &values, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(starts, &first, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(ends, &last, PyBUF_SIMPLE)
            try:
                check_spans(&values, &first, &last)
                s = <Scan *> calloc(1, sizeof(Scan))
                if s == NULL:
                    raise MemoryError
                s.rows = first.len // 8
                s.is_choice, s.chosen = fields is not None, -1
                if new_column(s, -1, NULL, 0) < 0:
                    raise MemoryError
                s.columns[0].kind, s.columns[0].is_open = OBJECT_KIND, fields is None
                for name in fields or ():
                    c = new_column(
                        s, 0, <const uint8_t *> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
                    )
                    if c < 0:
                        return None
                with nogil:
                    is_read = read_all(
                        s, <const uint8_t *> values.buf,
                        <const int64_t *> first.buf, <const int64_t *> last.buf,
                    )
                if not is_read or not chosen_alike(s):
                    return None
                return column_of(s, 0, s.rows, KINDS)
            finally:
                PyBuffer_Release(&last)
        finally:
            PyBuffer_Release(&first)
    finally:
        PyBuffer_Release(&values)
        free_scan(s)
