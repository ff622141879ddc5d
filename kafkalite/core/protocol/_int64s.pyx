# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Columns of integers of 64 bits, side by side, without an object for each.                  [P]

A number becomes an object when somebody looks at it. Nothing of a column changes once it is made,
so threads may share it. Slices share the numbers.

Owns   the numbers.
Fails  with OverflowError for a number beyond 64 bits, IndexError like a list.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._objects cimport (
    Py_INCREF,
    PyList_New,
    PyList_SET_ITEM,
    PyLong_CheckExact,
    PyObject,
    PySequence_Fast,
    PySequence_Fast_GET_ITEM,
    PySequence_Fast_GET_SIZE,
    int_value,
    new_int,
)

from kafkalite.core.columns import Form
from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)

cdef extern from "Python.h":
    int PyObject_IsTrue(PyObject *) except -1
    int PySlice_Unpack(object, Py_ssize_t *, Py_ssize_t *, Py_ssize_t *) except -1
    Py_ssize_t PySlice_AdjustIndices(Py_ssize_t, Py_ssize_t *, Py_ssize_t *, Py_ssize_t)

cdef extern from *:
    """
    static char kafkalite_int64_format[] = "q";
    """
    char *INT64_FORMAT "kafkalite_int64_format"


@cython.final
cdef class Block:
    def __dealloc__(self):
        free(self.numbers)


cdef Block new_block(Py_ssize_t count):
    """Room for so many numbers, and one more."""
    cdef Block block = Block()
    block.numbers = <int64_t *> malloc((count + 1) * sizeof(int64_t))
    if block.numbers == NULL:
        raise MemoryError
    return block


cdef bytes as_mask(object mask):
    """A mask as bytes that are 0 where it is false."""
    cdef object sequence
    cdef bytes found
    cdef uint8_t *out
    cdef Py_ssize_t i, count
    if PyBytes_CheckExact(mask):
        return mask
    if isinstance(mask, (bytes, bytearray)):
        return bytes(mask)
    sequence = PySequence_Fast(mask, "a mask is no sequence")
    count = PySequence_Fast_GET_SIZE(<PyObject *> sequence)
    found = PyBytes_FromStringAndSize(NULL, count)
    out = <uint8_t *> PyBytes_AS_STRING(found)
    for i in range(count):
        if i >= PySequence_Fast_GET_SIZE(<PyObject *> sequence):
            raise ValueError("a mask changed while it was read")
        # Held, as its truth may be told by Python code that drops it.
        item = <object> PySequence_Fast_GET_ITEM(<PyObject *> sequence, i)
        out[i] = PyObject_IsTrue(<PyObject *> item)
    return found


cdef Py_ssize_t count_of(const uint8_t *mask, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i, kept = 0
    for i in range(count):
        kept += mask[i] != 0
    return kept


cdef Int64s as_indexes(object indexes, Py_ssize_t size):
    """Indexes into a column of so many records, none of them negative any more."""
    cdef Int64s given
    cdef Py_ssize_t i, index, count
    cdef Block block
    if isinstance(indexes, Int64s):
        given = indexes
    else:
        given = numbers_of(indexes)
    count = given.size
    block = new_block(count)
    for i in range(count):
        index = given.numbers[i]
        if index < 0:
            index += size
        if not 0 <= index < size:
            raise IndexError(f"index {given.numbers[i]} of {size} records")
        block.numbers[i] = index
    return new_int64s(block, block.numbers, count)


cdef Int64s sliced_indexes(Py_ssize_t start, Py_ssize_t step, Py_ssize_t count):
    cdef Block block = new_block(count)
    cdef Py_ssize_t i
    for i in range(count):
        block.numbers[i] = start + i * step
    return new_int64s(block, block.numbers, count)


cdef Int64s numbers_of(object column):
    """The numbers of any sequence or buffer of int64; TypeError, OverflowError."""
    cdef object sequence
    cdef Block block
    cdef Py_ssize_t i, count
    cdef PyObject *item
    cdef int overflow = 0
    cdef int64_t number
    sequence = PySequence_Fast(column, "a column is no sequence")
    count = PySequence_Fast_GET_SIZE(<PyObject *> sequence)
    block = new_block(count)
    for i in range(count):
        if i >= PySequence_Fast_GET_SIZE(<PyObject *> sequence):
            raise ValueError("a column changed while it was read")
        item = PySequence_Fast_GET_ITEM(<PyObject *> sequence, i)
        if PyLong_CheckExact(item):
            number = int_value(item, &overflow)
            if overflow:
                raise OverflowError(f"{<object> item} of record {i} does not fit 64 bits")
            block.numbers[i] = number
        else:
            held = <object> item
            block.numbers[i] = held.__index__()
    return new_int64s(block, block.numbers, count)


cdef Int64s new_int64s(Block block, const int64_t *numbers, Py_ssize_t size):
    cdef Int64s made = Int64s.__new__(Int64s)
    made.block, made.numbers, made.size = block, numbers, size
    return made


cdef Int64s int64s_at(Int64s numbers, const int64_t *indexes, Py_ssize_t count):
    """The numbers at indexes that were looked at."""
    cdef Block block = new_block(count)
    cdef Py_ssize_t i
    for i in range(count):
        block.numbers[i] = numbers.numbers[indexes[i]]
    return new_int64s(block, block.numbers, count)


@cython.final
cdef class Int64s:
    def __cinit__(self, numbers=()):
        cdef Int64s given
        if type(numbers) is tuple and not numbers:
            self.block = new_block(0)
            self.numbers, self.size = self.block.numbers, 0
            return
        given = numbers_of(numbers)
        self.block, self.numbers, self.size = given.block, given.numbers, given.size

    @classmethod
    def gathered(cls, column):
        """A column of integers as such numbers; None where one is no int of 64 bits."""
        cdef PyObject *item
        cdef int overflow = 0
        cdef Py_ssize_t i
        if type(column) is Int64s:
            return column
        if type(column) is range:
            return numbers_of(column)
        sequence = PySequence_Fast(column, "a column is no sequence")
        for i in range(PySequence_Fast_GET_SIZE(<PyObject *> sequence)):
            item = PySequence_Fast_GET_ITEM(<PyObject *> sequence, i)
            if not PyLong_CheckExact(item):
                return None
            int_value(item, &overflow)
            if overflow:
                return None
        return numbers_of(sequence)

    @staticmethod
    def of_buffer(data):
        """The int64 that a buffer holds, copied."""
        cdef Py_buffer view
        cdef Py_ssize_t count
        cdef Block block
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            count = view.len // <Py_ssize_t> sizeof(int64_t)
            if count * <Py_ssize_t> sizeof(int64_t) != view.len:
                raise ValueError(f"{view.len} bytes are no numbers of 8 bytes")
            block = new_block(count)
            memcpy(block.numbers, view.buf, view.len)
            return new_int64s(block, block.numbers, count)
        finally:
            PyBuffer_Release(&view)

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        cdef Py_ssize_t start, stop, step, count
        if isinstance(place, slice):
            PySlice_Unpack(place, &start, &stop, &step)
            count = PySlice_AdjustIndices(self.size, &start, &stop, step)
            if step == 1:
                return new_int64s(self.block, self.numbers + (start if count else 0), count)
            return int64s_at(self, sliced_indexes(start, step, count).numbers, count)
        start = place
        if start < 0:
            start += self.size
        if not 0 <= start < self.size:
            raise IndexError(f"index {place} of {self.size} numbers")
        return self.numbers[start]

    def __iter__(self):
        cdef _Int64sIterator made = _Int64sIterator.__new__(_Int64sIterator)
        made.column = self
        return made

    def __reversed__(self):
        return iter(self[::-1])

    def __contains__(self, number):
        return find_number(self, number, 0, self.size) >= 0

    def index(self, number, start=0, stop=None):
        """The index of the first such number; ValueError."""
        first, end, _ = slice(start, stop).indices(self.size)
        cdef Py_ssize_t found = find_number(self, number, first, end)
        if found < 0:
            raise ValueError(f"{number!r} is not in the column")
        return found

    def count(self, number):
        """How many records have this number."""
        cdef Py_ssize_t i, found = 0
        cdef int64_t wanted
        if type(number) is not int:
            return self.tolist().count(number)
        if not -(1 << 63) <= number < 1 << 63:
            return 0
        wanted = number
        for i in range(self.size):
            found += self.numbers[i] == wanted
        return found

    def tolist(self):
        """The numbers as objects; equal neighbours are one."""
        cdef list made = PyList_New(self.size)
        cdef PyObject *last = NULL
        cdef Py_ssize_t i
        for i in range(self.size):
            if i and self.numbers[i] == self.numbers[i - 1]:
                Py_INCREF(last)
            else:
                last = new_int(self.numbers[i])
            PyList_SET_ITEM(<PyObject *> made, i, last)
        return made

    def where(self, mask):
        """The numbers whose entry in the mask is true."""
        cdef bytes kept = as_mask(mask)
        cdef const uint8_t *keep = <const uint8_t *> PyBytes_AS_STRING(kept)
        cdef Py_ssize_t i, count = min(self.size, PyBytes_GET_SIZE(kept)), at = 0
        cdef Block block = new_block(count_of(keep, count))
        for i in range(count):  # one beyond the last may be written: a block has room for that
            block.numbers[at] = self.numbers[i]
            at += keep[i] != 0
        return new_int64s(block, block.numbers, at)

    def take(self, indexes):
        """The numbers at `indexes`."""
        cdef Int64s places
        if type(indexes) is range and indexes.step == 1 and 0 <= indexes.start:
            if indexes.stop <= self.size:
                return self[indexes.start : indexes.stop]
        places = as_indexes(indexes, self.size)
        return int64s_at(self, places.numbers, places.size)

    def followed_by(self, others):
        """These numbers and others as one column."""
        cdef list parts = [self, *others]
        cdef Int64s part
        cdef Py_ssize_t total = 0
        cdef Block block
        for part in parts:
            total += part.size
        block = new_block(total)
        total = 0
        for part in parts:
            memcpy(block.numbers + total, part.numbers, part.size * sizeof(int64_t))
            total += part.size
        return new_int64s(block, block.numbers, total)

    def min(self):
        """The least number; ValueError without any."""
        cdef Py_ssize_t i
        cdef int64_t least
        if not self.size:
            raise ValueError("the least of no numbers")
        least = self.numbers[0]
        for i in range(self.size):
            least = min(least, self.numbers[i])
        return least

    def max(self):
        """The greatest number; ValueError without any."""
        cdef Py_ssize_t i
        cdef int64_t greatest
        if not self.size:
            raise ValueError("the greatest of no numbers")
        greatest = self.numbers[0]
        for i in range(self.size):
            greatest = max(greatest, self.numbers[i])
        return greatest

    def greatest_so_far(self, int64_t before):
        """For each number the greatest up to it, and `before`."""
        cdef Block block = new_block(self.size)
        cdef Py_ssize_t i
        for i in range(self.size):
            before = max(before, self.numbers[i])
            block.numbers[i] = before
        return new_int64s(block, block.numbers, self.size)

    def furthest_behind(self, int64_t before):
        """How far a number is behind the greatest up to it, and `before`, at most; else 0."""
        cdef uint64_t furthest = 0
        cdef Py_ssize_t i
        for i in range(self.size):
            before = max(before, self.numbers[i])
            furthest = max(furthest, <uint64_t> before - <uint64_t> self.numbers[i])
        return furthest

    @property
    def is_ascending(self):
        """Whether no number is less than the one before it."""
        cdef Py_ssize_t i
        for i in range(1, self.size):
            if self.numbers[i] < self.numbers[i - 1]:
                return False
        return True

    def first_over(self, int64_t limit, Py_ssize_t start, Py_ssize_t stop):
        """The first index in [start, stop) of a number greater than `limit`; else `stop`."""
        cdef Py_ssize_t i
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"[{start}, {stop}) of {self.size} numbers")
        for i in range(start, stop):
            if self.numbers[i] > limit:
                return i
        return stop

    def __repr__(self):
        return f"Int64s of {self.size}"

    def __reduce__(self):
        return (Int64s, (self.tolist(),))

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("a column is read-only")
        buffer.obj = self
        buffer.buf = <void *> self.numbers
        buffer.len = self.size * sizeof(int64_t)
        buffer.readonly = 1
        buffer.itemsize = sizeof(int64_t)
        buffer.format = INT64_FORMAT if flags & PyBUF_FORMAT else NULL
        buffer.ndim = 1
        buffer.shape = &self.size if flags & PyBUF_ND else NULL
        buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL


cdef Py_ssize_t find_number(
    Int64s column, object number, Py_ssize_t start, Py_ssize_t stop
) except? -1:
    """The index of the first such number in [start, stop); -1: there is none."""
    cdef int64_t wanted
    cdef Py_ssize_t i
    if type(number) is not int:
        made = column[start:stop].tolist()
        return start + made.index(number) if number in made else -1
    if not -(1 << 63) <= number < 1 << 63:
        return -1
    wanted = number
    for i in range(start, stop):
        if column.numbers[i] == wanted:
            return i
    return -1


@cython.final
cdef class _Int64sIterator:
    cdef Int64s column
    cdef Py_ssize_t at

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t at = self.at
        if at >= self.column.size:
            raise StopIteration
        self.at = at + 1
        return self.column.numbers[at]

    def __length_hint__(self):
        return self.column.size - self.at


Form.register(Int64s)
