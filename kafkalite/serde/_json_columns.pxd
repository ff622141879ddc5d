# cython: language_level=3
"""The columns that `_json_read` and `_msgpack_read` fill, for them to inline.               [P]

All there is to it is here: no module belongs to this file. A function gives -1 where there is no
memory, or no room.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from kafkalite.core.protocol._varint cimport unlikely

cdef enum:
    COLUMNS_MAX = 256
    TEXT_ROOM = 4096

cdef enum:  # members of json_kinds.Kind, by place
    NULL_KIND, INT_KIND, FLOAT_KIND, BOOL_KIND, TEXT_KIND, OBJECT_KIND, LIST_KIND

cdef enum:  # what a row has in a column
    MISSING, NULL_THERE, VALUE_THERE

cdef struct Column:
    const uint8_t *name
    int64_t name_size
    int kind
    int first  # of its fields; -1: none
    int last
    int next  # field of the same object
    int fields
    bint is_open  # the first object adds its fields
    int64_t present  # rows in which the field stands
    int64_t capacity  # rows that there is room for
    uint8_t *there  # of each row
    int64_t *numbers  # int64, doubles, offsets of 32 bits, or a byte for each bool
    int width  # bytes of a row in them
    uint8_t *text
    int64_t used  # bytes of text, items of lists
    int64_t room
    int64_t filled  # rows whose text or list has an end

cdef struct Late:  # a float that takes Python's own parser
    int column
    int64_t row
    const uint8_t *start
    const uint8_t *end

cdef struct Scan:
    Column columns[COLUMNS_MAX]
    int count
    int64_t rows
    bint is_choice  # the root's fields are those asked for
    int chosen  # fields of the choice that each object has; -1: none was read
    Late *late
    int64_t late_count
    int64_t late_room


cdef inline int new_column(Scan *s, int parent, const uint8_t *name, int64_t size) noexcept nogil:
    """Adds a field to an object; -1 where there is no room."""
    cdef int made = s.count
    cdef Column *column = &s.columns[made]
    if made == COLUMNS_MAX:
        return -1
    column.capacity = s.rows
    column.there = <uint8_t *> calloc(column.capacity + 1, 1)
    if column.there == NULL:
        return -1
    s.count += 1
    column.name, column.name_size = name, size
    column.first = column.last = column.next = -1
    if parent >= 0:
        if s.columns[parent].first < 0:
            s.columns[parent].first = made
        else:
            s.columns[s.columns[parent].last].next = made
        s.columns[parent].last = made
        s.columns[parent].fields += 1
    return made


cdef inline int becomes(Column *column, int kind) noexcept nogil:
    """The first value of a column decides about its type; -1 for a second type."""
    if column.kind != NULL_KIND:
        return -1
    column.width = 1 if kind == BOOL_KIND else 8
    if kind == OBJECT_KIND:
        column.is_open = True
    else:
        column.numbers = <int64_t *> calloc(column.capacity + 1, column.width)
        if column.numbers == NULL:
            return -1
    column.kind = kind
    return 0


cdef inline int grow(Column *column, int64_t rows) noexcept nogil:
    """Makes room for so many rows."""
    cdef int64_t old = column.capacity + 1
    cdef int64_t room = max(rows, 2 * column.capacity) + 1
    cdef uint8_t *there
    cdef uint8_t *numbers
    if rows <= column.capacity:
        return 0
    there = <uint8_t *> realloc(column.there, room)
    if there == NULL:
        return -1
    memset(there + old, 0, room - old)
    column.there = there
    if column.numbers != NULL:
        numbers = <uint8_t *> realloc(column.numbers, room * column.width)
        if numbers == NULL:
            return -1
        memset(numbers + old * column.width, 0, (room - old) * column.width)
        column.numbers = <int64_t *> numbers
    column.capacity = room - 1
    return 0


cdef inline int later(Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Leaves a float to Python."""
    cdef int64_t room
    cdef Late *moved
    if s.late_count == s.late_room:
        room = max(256, s.late_room * 2)
        moved = <Late *> realloc(s.late, room * sizeof(Late))
        if moved == NULL:
            return -1
        s.late, s.late_room = moved, room
    s.late[s.late_count] = Late(c, row, at, end)
    s.late_count += 1
    return 0


cdef inline int fit_text(Column *column, int64_t size) noexcept nogil:
    cdef int64_t room
    cdef uint8_t *moved
    if unlikely(column.used + size > column.room):
        room = max(column.used + size, column.room * 2, TEXT_ROOM)
        moved = <uint8_t *> realloc(column.text, room)
        if column.used + size > INT32_MAX or moved == NULL:
            column.text = column.text if moved == NULL else moved
            return -1
        column.text, column.room = moved, room
    return 0


cdef inline void fill_ends(Column *column, int64_t rows) noexcept nogil:
    """Rows without a text or a list end where the one before them does."""
    cdef int32_t *offsets = <int32_t *> column.numbers
    while column.filled < rows:
        column.filled += 1
        offsets[column.filled] = <int32_t> column.used


cdef inline void free_scan(Scan *s) noexcept:
    cdef int c
    if s == NULL:
        return
    for c in range(s.count):
        free(s.columns[c].there)
        free(s.columns[c].numbers)
        free(s.columns[c].text)
    free(s.late)
    free(s)


cdef inline bytes bits_of(const uint8_t *entries, int64_t rows, uint8_t truth):
    """A bitmap, lowest bit first: 1 where an entry is `truth`."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, (rows + 7) >> 3)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(made)
    cdef int64_t row
    memset(out, 0, (rows + 7) >> 3)
    for row in range(rows):
        out[row >> 3] |= <uint8_t> ((entries[row] == truth) << (row & 7))
    return made


cdef inline tuple column_of(Scan *s, int c, int64_t rows, tuple kinds):
    """A column as Python has it: see `read_columns`."""
    cdef Column *column = &s.columns[c]
    cdef int64_t row, nulls = 0
    cdef int part = column.first
    cdef list parts = []
    data = content = None
    if grow(column, rows) < 0:  # of objects in lists only those that are there have grown it
        raise MemoryError
    for row in range(rows):
        nulls += column.there[row] != VALUE_THERE
    if column.kind == BOOL_KIND:
        data = bits_of(<const uint8_t *> column.numbers, rows, 1)
    elif column.kind == TEXT_KIND or column.kind == LIST_KIND:
        fill_ends(column, rows)
        data = PyBytes_FromStringAndSize(<const char *> column.numbers, (rows + 1) * 4)
        if column.kind == TEXT_KIND:
            content = PyBytes_FromStringAndSize(<const char *> column.text, column.used)
    elif column.kind == INT_KIND or column.kind == FLOAT_KIND:
        data = PyBytes_FromStringAndSize(<const char *> column.numbers, rows * 8)
    while part >= 0:
        if c != 0 or not s.is_choice or s.columns[part].present:
            parts.append(column_of(s, part, column.used if column.kind == LIST_KIND else rows, kinds))
        part = s.columns[part].next
    name = PyBytes_FromStringAndSize(<const char *> column.name, column.name_size).decode()
    valid = bits_of(column.there, rows, VALUE_THERE) if nulls else None
    return name, kinds[column.kind], nulls, valid, data, content, parts


cdef inline bint chosen_alike(const Scan *s) noexcept nogil:
    """Whether each field stands in all objects or in none, and one of them in all."""
    cdef int c = s.columns[0].first
    cdef bint some = False
    while c >= 0:
        if s.columns[c].present:
            some = True
            if s.is_choice and s.columns[c].present != s.columns[0].present:
                return False
        c = s.columns[c].next
    return some


cdef inline int check_spans(
    const Py_buffer *texts, const Py_buffer *first, const Py_buffer *last
) except -1:
    cdef int64_t row
    cdef const int64_t *starts = <const int64_t *> first.buf
    cdef const int64_t *ends = <const int64_t *> last.buf
    if first.len != last.len or first.len % 8:
        raise ValueError(f"{first.len} bytes of starts and {last.len} of ends")
    for row in range(first.len // 8):
        if starts[row] != -1 and not 0 <= starts[row] <= ends[row] <= texts.len:
            raise ValueError(f"text {row}: [{starts[row]}, {ends[row]}) of {texts.len} bytes")
    return 0
