# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Columns of a batch of Avro, and the numbers and verdicts that are computed of them.        [P]

    Vector    a column as it lies in its batch, or some of its rows: nothing is copied
    Values    booleans, integers or floats that a function of this module made

    compare(LE, vector, 28.0) -> Values of booleans -> mask() -> bytes for a filter

A constant is a Python bool, int, float or str. Results are those of the loop over Python objects:
integers have 64 bits, an integer that meets a float becomes a float, a null makes a null.

Owns   the memory of `Values`; a `Vector` keeps its batch.
Fails  with None where the loop may give another result: a sum beyond 64 bits, types that this
       module does not know.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from kafkalite.core.protocol._int64s cimport Block, Int64s, new_block, new_int64s, sliced_indexes
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._lending cimport lend
from kafkalite.serde._avro_columns cimport *

from kafkalite.core.protocol import records_pure
from kafkalite.core.protocol._spans import Spans
from kafkalite.serde.avro_plan import INTERFACE

check_interface(records_pure.INTERFACE)
if INTERFACE != AVRO_INTERFACE_BUILT:
    raise ImportError(f"built for interface {AVRO_INTERFACE_BUILT}, the sources have {INTERFACE}")

cdef extern from *:
    bint __builtin_add_overflow(int64_t, int64_t, int64_t *) nogil
    bint __builtin_sub_overflow(int64_t, int64_t, int64_t *) nogil
    bint __builtin_mul_overflow(int64_t, int64_t, int64_t *) nogil

cdef enum:  # vectors.py names them
    EQ, NE, LT, LE, GT, GE
    ADD = 0, SUB, MUL, DIV

cdef enum:  # of `Values`
    BOOLS, INTS, FLOATS

ctypedef fused number:
    int64_t
    double


@cython.final
cdef class Vector:
    """A column of a record's fields. `places` are the rows that it has; None: all."""

    cdef readonly Batch batch
    cdef readonly int place
    cdef readonly Int64s places
    cdef Store *store
    cdef Py_ssize_t size

    def __init__(self, Batch batch, int place, Int64s places=None):
        assert 0 <= place < batch.shape.count
        self.batch, self.place, self.places = batch, place, places
        self.store = &batch.stores[place]
        self.size = self.store.length if places is None else places.size

    def __len__(self):
        return self.size

    @property
    def null_count(self):
        """How many values are null."""
        cdef Py_ssize_t row, found = 0
        if self.store.nulls == 0:
            return 0
        for row in range(self.size):
            found += not is_valid(self.store, at(self, row))
        return found

    def source(self):
        """The addresses of its buffers, as the encoder of Avro takes them."""
        cdef Store *s = self.store
        return (
            s.length, 0, 0 if s.nulls == 0 else <size_t> s.valid, <size_t> s.data,
            <size_t> s.bytes, s.used, 0 if self.places is None else <size_t> self.places.numbers,
        )

    def texts(self):
        """Texts as places in the batch's memory; None for other kinds."""
        cdef const int32_t *offsets = <const int32_t *> self.store.data
        cdef Block starts, ends
        cdef Py_ssize_t row
        cdef int64_t place
        if self.store.kind != KIND_STRING:
            return None
        starts, ends = new_block(self.size), new_block(self.size)
        for row in range(self.size):
            place = at(self, row)
            if self.store.nulls and not is_valid(self.store, place):
                starts.numbers[row] = ends.numbers[row] = -1
            else:
                starts.numbers[row], ends.numbers[row] = offsets[place], offsets[place + 1]
        content = memoryview(Content(self.batch, self.place))
        return Spans(
            content,
            new_int64s(starts, starts.numbers, self.size),
            new_int64s(ends, ends.numbers, self.size),
        )


cdef inline int64_t at(Vector vector, Py_ssize_t row) noexcept:
    return row if vector.places is None else vector.places.numbers[row]


@cython.final
cdef class Content:
    """The bytes of a column of texts."""

    cdef Batch batch
    cdef const uint8_t *bytes
    cdef Py_ssize_t size

    def __init__(self, Batch batch, int place):
        self.batch, self.bytes = batch, batch.stores[place].bytes
        self.size = batch.stores[place].used

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        lend(buffer, flags, self, <void *> self.bytes, &self.size)


@cython.final
cdef class Values:
    """Values side by side, or one that stands for all rows."""

    cdef int type
    cdef Py_ssize_t size
    cdef bint is_constant
    cdef uint8_t *data
    cdef uint8_t *there  # a byte for each, 0 for null; NULL where none is
    cdef list packed  # bits that were lent

    def __dealloc__(self):
        free(self.data)
        free(self.there)

    def __len__(self):
        return self.size

    @property
    def null_count(self):
        """How many values are null."""
        cdef Py_ssize_t row, found = 0
        if self.there != NULL:
            for row in range(self.size):
                found += not self.there[row]
        return found

    @property
    def is_bools(self):
        """Whether they are booleans."""
        return self.type == BOOLS

    @property
    def is_floats(self):
        """Whether they are floats."""
        return self.type == FLOATS

    def tolist(self):
        """The values as objects."""
        cdef Py_ssize_t row
        cdef list made = []
        for row in range(self.size):
            if self.there != NULL and not self.there[row]:
                made.append(None)
            elif self.type == BOOLS:
                made.append(self.data[row] != 0)
            elif self.type == INTS:
                made.append((<int64_t *> self.data)[row])
            else:
                made.append((<double *> self.data)[row])
        return made

    def mask(self):
        """Booleans as a mask of bytes; None for others, and where one is null."""
        if self.type != BOOLS or self.null_count:
            return None
        return PyBytes_FromStringAndSize(<const char *> self.data, self.size)

    def numbers(self):
        """Whether they are floats, their bytes, their bits of validity if one is null."""
        data = PyBytes_FromStringAndSize(<const char *> self.data, 8 * self.size)
        return self.type == FLOATS, data, bits(self.there, self.size) if self.null_count else None

    def taken(self, Int64s places):
        """Some of them, in any order."""
        cdef Values made = new_values(self.type, places.size, self.there != NULL)
        cdef Py_ssize_t row
        for row in range(places.size):
            if self.type == BOOLS:
                made.data[row] = self.data[places.numbers[row]]
            else:
                (<int64_t *> made.data)[row] = (<int64_t *> self.data)[places.numbers[row]]
            if self.there != NULL:
                made.there[row] = self.there[places.numbers[row]]
        return made

    def source(self):
        """The addresses of buffers, as the encoder of Avro takes them."""
        cdef size_t valid = 0, data = <size_t> self.data
        if self.packed is None:
            self.packed = [
                bits(self.there, self.size) if self.null_count else None,
                bits(self.data, self.size) if self.type == BOOLS else None,
            ]
        if self.packed[0] is not None:
            valid = <size_t> PyBytes_AS_STRING(self.packed[0])
        if self.packed[1] is not None:
            data = <size_t> PyBytes_AS_STRING(self.packed[1])
        return self.size, 0, valid, data, 0, 0, 0


cdef bytes bits(const uint8_t *given, Py_ssize_t size):
    """A bit for each byte."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, (size + 7) >> 3)
    cdef uint8_t *packed = <uint8_t *> PyBytes_AS_STRING(made)
    cdef Py_ssize_t row
    memset(packed, 0, (size + 7) >> 3)
    for row in range(size):
        packed[row >> 3] |= (given[row] != 0) << (row & 7)
    return made


cdef Values new_values(int type_, Py_ssize_t size, bint nulls):
    cdef Values made = Values.__new__(Values)
    made.type, made.size = type_, size
    made.data = <uint8_t *> calloc(size + 1, 1 if type_ == BOOLS else 8)
    made.there = <uint8_t *> calloc(size + 1, 1) if nulls else NULL
    if made.data == NULL or (nulls and made.there == NULL):
        raise MemoryError
    return made


# Values of what is given


cdef Values values_of(object given):
    """A constant, or a column of booleans or numbers, as values; None for others."""
    cdef Values made
    if isinstance(given, Values):
        return <Values> given
    if isinstance(given, Vector):
        return loaded(<Vector> given)
    if type(given) not in (bool, int, float):
        return None
    made = new_values(BOOLS if type(given) is bool else INTS, 1, False)
    made.is_constant = True
    if type(given) is bool:
        made.data[0] = given
    elif type(given) is int:
        (<int64_t *> made.data)[0] = given
    else:
        made.type = FLOATS
        (<double *> made.data)[0] = given
    return made


cdef Values loaded(Vector vector):
    cdef Store *s = vector.store
    cdef int kind = s.kind
    cdef Py_ssize_t row
    cdef int64_t place
    cdef Values made
    if kind not in (KIND_BOOLEAN, KIND_INT, KIND_LONG, KIND_FLOAT, KIND_DOUBLE):
        return None
    made = new_values(
        BOOLS if kind == KIND_BOOLEAN else INTS if kind in (KIND_INT, KIND_LONG) else FLOATS,
        vector.size, s.nulls != 0,
    )
    if vector.places is None and kind in (KIND_LONG, KIND_DOUBLE):
        memcpy(made.data, s.data, 8 * vector.size)
    else:
        for row in range(vector.size):
            place = at(vector, row)
            if kind == KIND_BOOLEAN:
                made.data[row] = (s.data[place >> 3] >> (place & 7)) & 1
            elif kind == KIND_INT:
                (<int64_t *> made.data)[row] = (<const int32_t *> s.data)[place]
            elif kind == KIND_FLOAT:
                (<double *> made.data)[row] = (<const float *> s.data)[place]
            else:
                (<int64_t *> made.data)[row] = (<const int64_t *> s.data)[place]
    if made.there != NULL:
        for row in range(vector.size):
            made.there[row] = is_valid(s, at(vector, row))
    return made


cdef Values as_floats(Values given):
    cdef Values made
    cdef Py_ssize_t row
    if given.type == FLOATS:
        return given
    made = new_values(FLOATS, given.size, given.there != NULL)
    made.is_constant = given.is_constant
    for row in range(given.size):
        (<double *> made.data)[row] = <double> (<int64_t *> given.data)[row]
    if given.there != NULL:
        memcpy(made.there, given.there, given.size)
    return made


def repeated(given, Py_ssize_t count):
    """A constant as often as there are records; None for a text."""
    cdef Values one = values_of(given), made
    cdef Py_ssize_t row
    if one is None:
        return None
    made = new_values(one.type, count, False)
    for row in range(count):
        if one.type == BOOLS:
            made.data[row] = one.data[0]
        else:
            (<int64_t *> made.data)[row] = (<int64_t *> one.data)[0]
    return made


def dense(given):
    """A column of booleans or numbers as values; None for others."""
    return values_of(given)


def every(Py_ssize_t count):
    """The places of so many rows."""
    return sliced_indexes(0, 1, count)


cdef struct Pair:  # what two operands have; a step of 0 stays at a constant
    Py_ssize_t size
    Py_ssize_t a
    Py_ssize_t b


cdef bint paired(Values a, Values b, Pair *pair):
    """Whether two operands are columns of one length, or a column and a constant."""
    pair.a, pair.b = not a.is_constant, not b.is_constant
    pair.size = b.size if a.is_constant else a.size
    return pair.a + pair.b > 0 and (a.is_constant or b.is_constant or a.size == b.size)


cdef Values made_of(int type_, Values a, Values b, const Pair *pair):
    """Room for what is made of two operands; null where one of them is."""
    cdef Values made = new_values(type_, pair.size, a.there != NULL or b.there != NULL)
    cdef Py_ssize_t row
    if made.there != NULL:
        for row in range(pair.size):
            made.there[row] = is_there(a, row) & is_there(b, row)
    return made


cdef inline uint8_t is_there(Values given, Py_ssize_t row) noexcept:
    return given.there == NULL or given.there[row]


# Comparisons


cdef void equal(const number *a, const number *b, const Pair *p, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t row
    for row in range(p.size):
        out[row] = a[row * p.a] == b[row * p.b]


cdef void less(const number *a, const number *b, const Pair *p, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t row
    for row in range(p.size):
        out[row] = a[row * p.a] < b[row * p.b]


cdef void no_more(const number *a, const number *b, const Pair *p, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t row
    for row in range(p.size):
        out[row] = a[row * p.a] <= b[row * p.b]


cdef void held_against(
    int how, const number *a, const number *b, const Pair *p, uint8_t *out
) noexcept nogil:
    if how in (EQ, NE):
        equal(a, b, p, out)
    elif how == LT:
        less(a, b, p, out)
    else:
        no_more(a, b, p, out)


cdef void flip(uint8_t *verdicts, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t row
    for row in range(size):
        verdicts[row] = not verdicts[row]


def compare(int how, left, right):
    """`left < right` and the like, of numbers; of texts whether they are equal to a constant."""
    cdef Values a, b, made
    cdef Pair pair
    if isinstance(left, Vector) and type(right) is str:
        return compared_text(how, <Vector> left, right) if how in (EQ, NE) else None
    if how in (GT, GE):
        how, left, right = LT if how == GT else LE, right, left
    a, b = values_of(left), values_of(right)
    if a is None or b is None or BOOLS in (a.type, b.type) or not paired(a, b, &pair):
        return None
    if a.type != b.type:
        a, b = as_floats(a), as_floats(b)
    made = made_of(BOOLS, a, b, &pair)
    if a.type == INTS:
        held_against(how, <int64_t *> a.data, <int64_t *> b.data, &pair, made.data)
    else:
        held_against(how, <double *> a.data, <double *> b.data, &pair, made.data)
    if how == NE:
        flip(made.data, made.size)
    return made


cdef Values compared_text(int how, Vector vector, str text):
    cdef Store *s = vector.store
    cdef const int32_t *offsets = <const int32_t *> s.data
    cdef Values made
    cdef Py_ssize_t row, size
    cdef int64_t place
    cdef const char *wanted
    if s.kind != KIND_STRING:
        return None
    encoded = text.encode("utf-8", "surrogatepass")  # no text of Avro has half a surrogate
    wanted, size = PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded)
    made = new_values(BOOLS, vector.size, s.nulls != 0)
    for row in range(vector.size):
        place = at(vector, row)
        made.data[row] = offsets[place + 1] - offsets[place] == size and (
            size == 0 or memcmp(s.bytes + offsets[place], wanted, size) == 0
        )
        if made.there != NULL:
            made.there[row] = is_valid(s, place)
    if how == NE:
        flip(made.data, made.size)
    return made


# Arithmetic


def arithmetic(int how, left, right):
    """`left + right` and the like, of numbers; a division by zero is null."""
    cdef Values a = values_of(left), b = values_of(right), made
    cdef Pair pair
    if a is None or b is None or BOOLS in (a.type, b.type) or not paired(a, b, &pair):
        return None
    if a.type == INTS and b.type == INTS and how != DIV:
        made = made_of(INTS, a, b, &pair)
        fits = add_up(how, <int64_t *> a.data, <int64_t *> b.data, &pair, <int64_t *> made.data)
        return made if fits else None
    a, b = as_floats(a), as_floats(b)
    if how == DIV:
        b = null_for_zero(b)
        if b.is_constant and b.there != NULL:
            return None
    made = made_of(FLOATS, a, b, &pair)
    reckon(how, <double *> a.data, <double *> b.data, &pair, <double *> made.data)
    return made


cdef bint add_up(
    int how, const int64_t *a, const int64_t *b, const Pair *p, int64_t *out
) noexcept nogil:
    """Whether all results have 64 bits."""
    cdef Py_ssize_t row
    cdef bint beyond = False
    if how == ADD:
        for row in range(p.size):
            beyond |= __builtin_add_overflow(a[row * p.a], b[row * p.b], &out[row])
    elif how == SUB:
        for row in range(p.size):
            beyond |= __builtin_sub_overflow(a[row * p.a], b[row * p.b], &out[row])
    else:
        for row in range(p.size):
            beyond |= __builtin_mul_overflow(a[row * p.a], b[row * p.b], &out[row])
    return not beyond


cdef void reckon(
    int how, const double *a, const double *b, const Pair *p, double *out
) noexcept nogil:
    cdef Py_ssize_t row
    if how == ADD:
        for row in range(p.size):
            out[row] = a[row * p.a] + b[row * p.b]
    elif how == SUB:
        for row in range(p.size):
            out[row] = a[row * p.a] - b[row * p.b]
    elif how == MUL:
        for row in range(p.size):
            out[row] = a[row * p.a] * b[row * p.b]
    else:
        for row in range(p.size):
            out[row] = a[row * p.a] / b[row * p.b]


cdef Values null_for_zero(Values given):
    cdef const double *numbers = <const double *> given.data
    cdef Py_ssize_t row
    cdef Values made
    for row in range(given.size):
        if numbers[row] == 0:
            break
    else:
        return given
    made = new_values(FLOATS, given.size, True)
    made.is_constant = given.is_constant
    memcpy(made.data, given.data, 8 * given.size)
    for row in range(given.size):
        made.there[row] = is_there(given, row) and numbers[row] != 0
    return made


# Logic, by Kleene's rules


def joined(left, right, bint is_and):
    """`left & right` or `left | right`: false decides the one, true the other."""
    cdef Values a = values_of(left), b = values_of(right), made
    cdef Pair pair
    cdef Py_ssize_t row
    cdef uint8_t x, y, has_x, has_y, decides
    if a is None or b is None or a.type != BOOLS or b.type != BOOLS or not paired(a, b, &pair):
        return None
    made = new_values(BOOLS, pair.size, a.there != NULL or b.there != NULL)
    for row in range(pair.size):
        has_x, has_y = is_there(a, row * pair.a), is_there(b, row * pair.b)
        x, y = a.data[row * pair.a] & has_x, b.data[row * pair.b] & has_y
        made.data[row] = x & y if is_and else x | y
        if made.there != NULL:
            decides = (has_x & (not x)) | (has_y & (not y)) if is_and else x | y
            made.there[row] = (has_x & has_y) | decides
    return made


def inverted(given):
    """`~given`."""
    cdef Values a = values_of(given), made
    if a is None or a.type != BOOLS or a.is_constant:
        return None
    made = new_values(BOOLS, a.size, a.there != NULL)
    memcpy(made.data, a.data, a.size)
    flip(made.data, a.size)
    if a.there != NULL:
        memcpy(made.there, a.there, a.size)
    return made


def is_null(given):
    """Whether each is null; never null itself."""
    cdef Values made, values
    cdef Vector vector
    cdef Py_ssize_t row
    if isinstance(given, Vector):
        vector = <Vector> given
        made = new_values(BOOLS, vector.size, False)
        if vector.store.nulls:
            for row in range(vector.size):
                made.data[row] = not is_valid(vector.store, at(vector, row))
        return made
    if not isinstance(given, Values):
        return None
    values = <Values> given
    made = new_values(BOOLS, values.size, False)
    for row in range(values.size):
        made.data[row] = not is_there(values, row)
    return made


def filled(given, constant):
    """A constant of the same type where null is."""
    cdef Values a = values_of(given), b = values_of(constant), made
    cdef Py_ssize_t row
    if a is None or b is None or a.is_constant or not b.is_constant or a.type != b.type:
        return None
    if a.there == NULL:
        return a
    made = new_values(a.type, a.size, False)
    memcpy(made.data, a.data, a.size * (1 if a.type == BOOLS else 8))
    for row in range(a.size):
        if not a.there[row]:
            if a.type == BOOLS:
                made.data[row] = b.data[0]
            else:
                (<int64_t *> made.data)[row] = (<int64_t *> b.data)[0]
    return made
