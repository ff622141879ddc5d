# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""JSON texts of a batch into columns, one for each field, in the layout of Arrow's arrays.   [P]

    {"id":1,"user":{"name":"a"}}        id: int64    user: struct of name: text

All texts are objects of the same fields; a field, and an item of lists, has one type, or null. The reader refuses every
other batch as a whole, and every text that is not JSON to the letter: then each text is read as an
object, and its error, if there is one, is the error.

Where only some fields are asked for, the others are passed over, and may differ from text to text.
A field that is asked for stands in all texts or in none. Without a choice of fields, and in an
object inside, all texts have the same fields in the same order, so a column of structs has the
order of every object's keys.

Owns   the columns, until they are copied out.
Fails  with nothing but MemoryError: it gives None for a batch that it refuses.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.math cimport isinf
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcmp, memcpy

from kafkalite.core.protocol._varint cimport unlikely
from kafkalite.serde._json_columns cimport *
from kafkalite.serde._json_text cimport (
    DEPTH_MAX,
    is_digit,
    past_space,
    skip,
    skip_number,
    skip_word,
    text_end,
    unescape,
)

from kafkalite.serde.json_kinds import INTERFACE, Kind

cdef enum:
    INTERFACE_BUILT = 3  # raised together with json_kinds.INTERFACE

if INTERFACE != INTERFACE_BUILT:
    raise ImportError(f"built for interface {INTERFACE_BUILT}, the sources have {INTERFACE}")

KINDS = tuple(Kind)

cdef enum:
    DIGITS_MAX = 19  # that 64 bits hold
    EXPONENT_MAX = 100_000  # beyond it every number is 0 or infinite, whatever its digits

cdef extern from "float.h":
    int FLT_EVAL_METHOD  # 0: doubles are computed as doubles

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *, char **, PyObject *) except? -1.0

cdef double[23] POWERS  # of ten, exact as doubles
cdef int power
for power in range(23):
    POWERS[power] = float(10 ** power)

cdef int put_int(Scan *s, int c, int64_t row, uint64_t digits, bint minus) noexcept nogil:
    cdef Column *column = &s.columns[c]
    if column.kind != INT_KIND and becomes(column, INT_KIND) < 0:
        return -1
    if digits > <uint64_t> 0x7FFFFFFFFFFFFFFF + minus:
        return -1
    column.numbers[row] = <int64_t> (0 - digits if minus else digits)
    return 0


cdef int put_float(
    Scan *s, int c, int64_t row, uint64_t digits, int64_t exponent, bint minus
) noexcept nogil:
    """digits * 10 ** exponent, where both are exact as doubles; 1 where they are not."""
    cdef double value
    if FLT_EVAL_METHOD != 0 or digits > <uint64_t> 1 << 53 or exponent < -22 or exponent > 22:
        return 1
    value = <double> digits
    value = value / POWERS[-exponent] if exponent < 0 else value * POWERS[exponent]
    (<double *> s.columns[c].numbers)[row] = -value if minus else value
    return 0


cdef const uint8_t *read_float(
    Scan *s, int c, int64_t row, const uint8_t *start, const uint8_t *end
) noexcept nogil:
    """A number with a fraction or an exponent."""
    cdef Column *column = &s.columns[c]
    cdef const uint8_t *stop = skip_number(start, end)
    cdef const uint8_t *at = start
    cdef uint64_t digits = 0
    cdef int64_t exponent = 0, given = 0
    cdef int significant = 0, status
    cdef bint behind_point = False, below_one
    if stop == NULL or (column.kind != FLOAT_KIND and becomes(column, FLOAT_KIND) < 0):
        return NULL
    at += start[0] == 45
    while at < stop and at[0] | 32 != 101:
        if at[0] == 46:
            behind_point = True
        else:
            if significant < DIGITS_MAX:
                digits = digits * 10 + at[0] - 48
            significant += digits != 0
            exponent -= behind_point
        at += 1
    if at < stop:
        at += 1
        below_one = at[0] == 45
        at += at[0] == 45 or at[0] == 43
        while at < stop:
            given = min(given * 10 + at[0] - 48, EXPONENT_MAX)
            at += 1
        exponent += -given if below_one else given
    status = 1
    if significant <= DIGITS_MAX:
        status = put_float(s, c, row, digits, exponent, start[0] == 45)
    if status and later(s, c, row, start, stop) < 0:
        return NULL
    return stop


cdef const uint8_t *read_number(
    Scan *s, int c, int64_t row, const uint8_t *start, const uint8_t *end
) noexcept nogil:
    """An integer of 64 bits, or a float."""
    cdef const uint8_t *at = start + (start[0] == 45)
    cdef const uint8_t *first = at
    cdef uint64_t digits = 0
    while is_digit(at, end):
        if at - first < DIGITS_MAX:
            digits = digits * 10 + at[0] - 48
        at += 1
    if at == first or at >= end:
        return NULL
    if at[0] == 46 or at[0] | 32 == 101:
        return read_float(s, c, row, start, end)
    if at - first > DIGITS_MAX or (first[0] == 48 and at - first > 1):
        return NULL
    if put_int(s, c, row, digits, start[0] == 45) < 0:
        return NULL
    return at


cdef const uint8_t *read_text(
    Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """A text that begins at `at`, behind its quote."""
    cdef Column *column = &s.columns[c]
    cdef bint is_plain
    cdef const uint8_t *stop = text_end(at, end, &is_plain)
    cdef uint8_t *made
    if unlikely(stop == NULL):
        return NULL
    if unlikely(column.kind != TEXT_KIND) and becomes(column, TEXT_KIND) < 0:
        return NULL
    fill_ends(column, row)
    if fit_text(column, stop - at) < 0:
        return NULL
    if is_plain:
        if stop > at:
            memcpy(column.text + column.used, at, stop - at)
        column.used += stop - at
    else:
        made = unescape(at, stop, column.text + column.used)
        if made == NULL:
            return NULL
        column.used = made - column.text
    column.filled = row + 1
    (<int32_t *> column.numbers)[row + 1] = <int32_t> column.used
    return stop + 1


cdef const uint8_t *read_word(
    Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """true, false or null."""
    cdef Column *column = &s.columns[c]
    cdef const uint8_t *stop = skip_word(at, end)
    if stop == NULL:
        return NULL
    if at[0] == 110:
        column.there[row] = NULL_THERE
        return stop
    if column.kind != BOOL_KIND and becomes(column, BOOL_KIND) < 0:
        return NULL
    (<uint8_t *> column.numbers)[row] = at[0] == 116
    return stop


cdef const uint8_t *read_value(
    Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end, int depth
) noexcept nogil:
    """A value into its column."""
    cdef Column *column = &s.columns[c]
    if at >= end or grow(column, row + 1) < 0 or column.there[row] != MISSING:
        return NULL  # MISSING no longer: a key that stands twice
    column.there[row] = VALUE_THERE
    column.present += 1
    if at[0] == 34:
        return read_text(s, c, row, at + 1, end)
    if at[0] == 45 or is_digit(at, end):
        return read_number(s, c, row, at, end)
    if at[0] == 123:
        if column.kind != OBJECT_KIND and becomes(column, OBJECT_KIND) < 0:
            return NULL
        return read_object(s, c, row, at + 1, end, depth + 1)
    if at[0] == 91:
        return read_list(s, c, row, at + 1, end, depth + 1)
    return read_word(s, c, row, at, end)


cdef const uint8_t *read_list(
    Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end, int depth
) noexcept nogil:
    """A list that begins before `at`; its items are rows of a column of their own."""
    cdef Column *column = &s.columns[c]
    if depth > DEPTH_MAX or (column.kind != LIST_KIND and becomes(column, LIST_KIND) < 0):
        return NULL
    if column.first < 0 and new_column(s, c, NULL, 0) < 0:
        return NULL
    fill_ends(column, row)
    at = past_space(at, end)
    if at < end and at[0] == 93:
        fill_ends(column, row + 1)
        return at + 1
    while True:
        if column.used == INT32_MAX:
            return NULL
        at = read_value(s, column.first, column.used, at, end, depth)
        if at == NULL:
            return NULL
        column.used += 1
        at = past_space(at, end)
        if at >= end or (at[0] != 44 and at[0] != 93):
            return NULL
        if at[0] == 93:
            fill_ends(column, row + 1)
            return at + 1
        at = past_space(at + 1, end)


cdef const uint8_t *read_key(
    Scan *s, int c, int *field, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Which field a key names, `field` being the next in order; -1: nobody wants it."""
    cdef Column *column
    cdef bint is_plain, is_choice = c == 0 and s.is_choice
    cdef const uint8_t *start = at + 1
    cdef int next_field = field[0]
    if at >= end or at[0] != 34:
        return NULL
    if next_field >= 0:
        column = &s.columns[next_field]
        at = start + column.name_size
        if at < end and at[0] == 34 and memcmp(start, column.name, column.name_size) == 0:
            return at + 1
        if not is_choice:
            return NULL
    at = text_end(start, end, &is_plain)
    if at == NULL or not is_plain:
        return NULL
    field[0] = s.columns[c].first
    while field[0] >= 0:
        column = &s.columns[field[0]]
        if at - start == column.name_size and memcmp(start, column.name, at - start) == 0:
            break
        field[0] = column.next
    if is_choice:
        return at + 1
    if field[0] >= 0 or not s.columns[c].is_open:
        return NULL
    field[0] = new_column(s, c, start, at - start)
    return at + 1 if field[0] >= 0 else NULL


cdef const uint8_t *read_object(
    Scan *s, int c, int64_t row, const uint8_t *at, const uint8_t *end, int depth
) noexcept nogil:
    """An object that begins before `at`; NULL where it is refused."""
    cdef bint is_choice = c == 0 and s.is_choice
    cdef int field, seen = 0, expected = -1 if s.columns[c].is_open else s.columns[c].first
    if depth > DEPTH_MAX:
        return NULL
    at = past_space(at, end)
    if at < end and at[0] == 125:
        return at + 1 if is_choice and s.chosen <= 0 else NULL
    while True:
        field = expected
        at = read_key(s, c, &field, at, end)
        if unlikely(at == NULL):
            return NULL
        at = past_space(at, end)
        if at >= end or at[0] != 58:
            return NULL
        at = past_space(at + 1, end)
        if field < 0:
            at = skip(at, end, depth)
        else:
            at = read_value(s, field, row, at, end, depth)
            seen += 1
            if not s.columns[c].is_open:
                expected = s.columns[field].next
        if unlikely(at == NULL):
            return NULL
        at = past_space(at, end)
        if at >= end:
            return NULL
        if at[0] == 125:
            break
        if at[0] != 44:
            return NULL
        at = past_space(at + 1, end)
        if not is_choice and expected < 0 and not s.columns[c].is_open:
            return NULL
    if is_choice:
        if s.chosen < 0:
            s.chosen = seen
        return at + 1 if seen == s.chosen else NULL
    s.columns[c].is_open = False
    return at + 1 if seen == s.columns[c].fields else NULL


cdef bint read_all(
    Scan *s, const uint8_t *data, const int64_t *starts, const int64_t *ends
) noexcept nogil:
    """Reads every text; false where one is refused."""
    cdef int64_t row
    cdef const uint8_t *at
    cdef const uint8_t *end
    for row in range(s.rows):
        if starts[row] < 0:
            s.columns[0].there[row] = NULL_THERE
            continue
        s.columns[0].there[row] = VALUE_THERE
        s.columns[0].present += 1
        end = data + ends[row]
        at = past_space(data + starts[row], end)
        if at >= end or at[0] != 123:
            return False
        at = read_object(s, 0, row, at + 1, end, 1)
        if at == NULL or past_space(at, end) != end:
            return False
    return True


cdef bint read_late(Scan *s) except -1:
    """The floats that were left; false where one is beyond the range of a double."""
    cdef int64_t i
    cdef Late *late
    cdef bytes text
    cdef double value
    for i in range(s.late_count):
        late = &s.late[i]
        text = PyBytes_FromStringAndSize(<const char *> late.start, late.end - late.start)
        value = PyOS_string_to_double(PyBytes_AS_STRING(text), NULL, NULL)
        if isinf(value):
            return False
        (<double *> s.columns[late.column].numbers)[late.row] = value
    return True


def read_columns(data, starts, ends, fields):
    """The column of all texts, a struct; None where the batch is refused.

    A text lies in `data` from its start to its end; a start of -1 is a null. `fields` are the names
    that are wanted, as bytes; None: all of them. A column is a tuple: its name, its Kind, how many
    rows are null, and as bytes the bits of validity (None: no nulls), the data, and the content of
    texts; then the columns of its fields, or that of its items.
    """
    cdef Py_buffer texts, first, last
    cdef Scan *s = NULL
    cdef bytes name
    cdef int c
    cdef bint is_read
    PyObject_GetBuffer(data, &texts, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(starts, &first, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(ends, &last, PyBUF_SIMPLE)
            try:
                check_spans(&texts, &first, &last)
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
                        s, <const uint8_t *> texts.buf,
                        <const int64_t *> first.buf, <const int64_t *> last.buf,
                    )
                if not is_read or not chosen_alike(s) or not read_late(s):
                    return None
                return column_of(s, 0, s.rows, KINDS)
            finally:
                PyBuffer_Release(&last)
        finally:
            PyBuffer_Release(&first)
    finally:
        PyBuffer_Release(&texts)
        free_scan(s)
