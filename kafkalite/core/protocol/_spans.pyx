# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Columns of bytes and None without an object for each: where they lie in one buffer.         [P]

An entry becomes an object when somebody looks at it. Nothing of a column changes once it is made,
so threads may share it. Slices, and spans of one buffer that are joined, share what they look at.
Records that are picked out of a far larger buffer get a copy of their bytes, so that few records
do not keep many bytes alive.

Owns   nothing: the buffer stays its owner's, who may not change it while a column is there.
Fails  with ValueError for spans that leave their buffer, IndexError like a list.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from kafkalite.core.protocol._int64s cimport (
    Block,
    Int64s,
    as_indexes,
    as_mask,
    count_of,
    new_block,
    new_int64s,
    numbers_of,
    sliced_indexes,
)
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._objects cimport (
    Py_INCREF,
    Py_None,
    PyList_New,
    PyList_SET_ITEM,
    PyObject,
    PySequence_Fast,
    PySequence_Fast_GET_ITEM,
    PySequence_Fast_GET_SIZE,
    new_bytes,
)

from kafkalite.core.columns import Form
from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)

cdef extern from "Python.h":
    bint is_bytes "PyBytes_CheckExact"(PyObject *)
    char *bytes_data "PyBytes_AS_STRING"(PyObject *)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject *)
    int PySlice_Unpack(object, Py_ssize_t *, Py_ssize_t *, Py_ssize_t *) except -1
    Py_ssize_t PySlice_AdjustIndices(Py_ssize_t, Py_ssize_t *, Py_ssize_t *, Py_ssize_t)

cdef enum:
    SPARSE = 4  # records that take less than this part of their buffer are copied out of it
    ALONE_BYTES = 65536  # letting other threads run costs more than so many bytes take


@cython.final
cdef class Held:
    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.source = source

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef Held hold(object data, Py_ssize_t *shift):
    """Keeps what `data` is a part of, so that columns of all parts know that they share it.

    `shift` becomes the place of the first byte of `data` in it.
    """
    cdef Held part = Held(data), whole
    cdef const char *first = <const char *> part.view.buf
    cdef const char *start
    shift[0] = 0
    if not isinstance(data, memoryview) or data.obj is None:
        return part
    whole = Held(data.obj)
    start = <const char *> whole.view.buf
    if not start <= first <= first + part.view.len <= start + whole.view.len:
        return part
    shift[0] = first - start
    return whole


cdef Spans new_spans(
    Held held, Block block, const int64_t *first, const int64_t *last, Py_ssize_t size
):
    cdef Spans made = Spans.__new__(Spans)
    made.held, made.block, made.bytes = held, block, <const char *> held.view.buf
    made.first, made.last, made.size = first, last, size
    return made


cdef int64_t total_of(Spans spans) noexcept nogil:
    """The bytes of all entries together."""
    cdef Py_ssize_t i
    cdef int64_t total = 0
    for i in range(spans.size):
        total += spans.last[i] - spans.first[i]
    return total


cdef int64_t copy_spans(
    Spans spans, char *out, int64_t at, int64_t *first, int64_t *last
) noexcept nogil:
    """Copies all entries to `out` from byte `at` on, and notes where they are there."""
    cdef Py_ssize_t i
    cdef int64_t size
    for i in range(spans.size):
        if spans.first[i] < 0:
            first[i] = last[i] = -1
            continue
        size = spans.last[i] - spans.first[i]
        memcpy(out + at, spans.bytes + spans.first[i], size)
        first[i] = at
        at += size
        last[i] = at
    return at


cdef Spans copied(list parts, Py_ssize_t count, int64_t total):
    """The entries of `parts`, `count` of `total` bytes, in a buffer of their own."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
    cdef char *out = PyBytes_AS_STRING(data)
    cdef Block block = new_block(2 * count)
    cdef int64_t *first = block.numbers
    cdef int64_t *last = block.numbers + count
    cdef int64_t at = 0
    cdef Spans part
    for part in parts:
        if total < ALONE_BYTES:
            at = copy_spans(part, out, at, first, last)
        else:
            with nogil:  # other threads run meanwhile
                at = copy_spans(part, out, at, first, last)
        first += part.size
        last += part.size
    return new_spans(Held(data), block, block.numbers, block.numbers + count, count)


cdef Spans unless_sparse(Spans spans):
    """Without the buffer, where that is far larger than the entries."""
    cdef int64_t total = total_of(spans)
    if total * SPARSE < spans.held.view.len:
        return copied([spans], spans.size, total)
    return spans


cdef Spans spans_where(Spans spans, const uint8_t *mask, Py_ssize_t count, Py_ssize_t kept):
    """The entries that a mask keeps, so many of the first `count`."""
    cdef Block block = new_block(2 * kept)
    cdef int64_t *first = block.numbers
    cdef Py_ssize_t i, at = 0
    for i in range(count):
        first[at] = spans.first[i]  # one beyond the last may be written, and is again below
        at += mask[i] != 0
    at = 0
    for i in range(count):
        first[kept + at] = spans.last[i]
        at += mask[i] != 0
    return unless_sparse(new_spans(spans.held, block, first, first + kept, kept))


cdef Spans all_at(Spans spans, const int64_t *indexes, Py_ssize_t count):
    """The entries at indexes that were looked at, in their buffer."""
    cdef Block block = new_block(2 * count)
    cdef Py_ssize_t i
    for i in range(count):
        block.numbers[i] = spans.first[indexes[i]]
        block.numbers[count + i] = spans.last[indexes[i]]
    return new_spans(spans.held, block, block.numbers, block.numbers + count, count)


cdef Spans spans_at(Spans spans, const int64_t *indexes, Py_ssize_t count):
    """The entries at indexes that were looked at."""
    return unless_sparse(all_at(spans, indexes, count))


cdef inline object entry(Spans spans, Py_ssize_t i):
    if spans.first[i] < 0:
        return None
    return PyBytes_FromStringAndSize(
        spans.bytes + spans.first[i], spans.last[i] - spans.first[i]
    )


@cython.final
cdef class Spans:
    def __init__(self, data, starts, ends):
        cdef Int64s first = starts if type(starts) is Int64s else numbers_of(starts)
        cdef Int64s last = ends if type(ends) is Int64s else numbers_of(ends)
        cdef Py_ssize_t i, count = first.size, shift
        cdef Held held
        cdef Block block = new_block(2 * count)
        if last.size != count:
            raise ValueError(f"{count} starts and {last.size} ends")
        cdef Held part = Held(data)
        held = hold(data, &shift)
        for i in range(count):
            if first.numbers[i] == -1 and last.numbers[i] == -1:
                block.numbers[i] = block.numbers[count + i] = -1
                continue
            if not 0 <= first.numbers[i] <= last.numbers[i] <= part.view.len:
                raise ValueError(
                    f"entry {i}: [{first.numbers[i]}, {last.numbers[i]}) of {part.view.len} bytes"
                )
            block.numbers[i] = first.numbers[i] + shift
            block.numbers[count + i] = last.numbers[i] + shift
        self.held, self.block, self.bytes = held, block, <const char *> held.view.buf
        self.first, self.last, self.size = block.numbers, block.numbers + count, count

    @staticmethod
    def of_offsets(offsets, data, validity=None):
        """Entries one after the other: `offsets` has one more, of 4 or 8 bytes each.

        `validity` is a bitmap, lowest bit first: 0 where the entry is None.
        """
        cdef Held given = Held(memoryview(offsets).cast("B"))
        cdef Py_ssize_t width = memoryview(offsets).itemsize
        cdef Py_ssize_t i, shift, count
        cdef Held part = Held(data), held = hold(data, &shift)
        cdef Held valid = None if validity is None else Held(validity)
        cdef const uint8_t *bits = NULL
        cdef int64_t first, last
        cdef Block block
        if width not in (4, 8) or given.view.len < width:
            raise ValueError(f"{given.view.len} bytes of offsets, {width} each")
        count = given.view.len // width - 1
        if valid is not None and valid.view.len * 8 < count:
            raise ValueError(f"{valid.view.len} bytes say which of {count} entries are there")
        if valid is not None:
            bits = <const uint8_t *> valid.view.buf
        block = new_block(2 * count)
        last = offset_at(given.view.buf, width, 0)
        for i in range(count):
            first, last = last, offset_at(given.view.buf, width, i + 1)
            if not 0 <= first <= last <= part.view.len:
                raise ValueError(f"entry {i}: [{first}, {last}) of {part.view.len} bytes")
            if bits != NULL and not bits[i >> 3] >> (i & 7) & 1:
                block.numbers[i] = block.numbers[count + i] = -1
                continue
            block.numbers[i] = first + shift
            block.numbers[count + i] = last + shift
        return new_spans(held, block, block.numbers, block.numbers + count, count)

    @classmethod
    def gathered(cls, column):
        """A column of bytes and None as spans of a copy; None where an entry is another thing."""
        cdef PyObject *item
        cdef Py_ssize_t i, count, size
        cdef int64_t total = 0, at = 0
        cdef bytes data
        cdef Block block
        if type(column) is Spans:
            return column
        sequence = PySequence_Fast(column, "a column is no sequence")
        count = PySequence_Fast_GET_SIZE(<PyObject *> sequence)
        for i in range(count):
            item = PySequence_Fast_GET_ITEM(<PyObject *> sequence, i)
            if is_bytes(item):
                total += bytes_size(item)
            elif item != Py_None:
                return None
        block = new_block(2 * count)
        data = PyBytes_FromStringAndSize(NULL, total)
        for i in range(count):
            item = PySequence_Fast_GET_ITEM(<PyObject *> sequence, i)
            if item == Py_None:
                block.numbers[i] = block.numbers[count + i] = -1
                continue
            size = bytes_size(item)
            memcpy(PyBytes_AS_STRING(data) + at, bytes_data(item), size)
            block.numbers[i] = at
            at += size
            block.numbers[count + i] = at
        return new_spans(Held(data), block, block.numbers, block.numbers + count, count)

    @property
    def data(self):
        """The buffer that the spans are of."""
        return self.held.source

    @property
    def starts(self):
        """Each entry's first byte; -1: None."""
        return new_int64s(self.block, self.first, self.size)

    @property
    def ends(self):
        """The byte behind each entry's last; -1: None."""
        return new_int64s(self.block, self.last, self.size)

    @property
    def has_nulls(self):
        """Whether an entry is None."""
        cdef Py_ssize_t i
        for i in range(self.size):
            if self.first[i] < 0:
                return True
        return False

    @property
    def longest(self):
        """The bytes of the longest entry."""
        cdef Py_ssize_t i
        cdef int64_t longest = 0
        for i in range(self.size):
            longest = max(longest, self.last[i] - self.first[i])
        return longest

    @property
    def bytes_total(self):
        """The bytes of all entries together."""
        return total_of(self)

    @property
    def held_bytes(self):
        """The bytes of the buffer that this column keeps alive."""
        return self.held.view.len

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        cdef Py_ssize_t start, stop, step, count
        if isinstance(place, slice):
            PySlice_Unpack(place, &start, &stop, &step)
            count = PySlice_AdjustIndices(self.size, &start, &stop, step)
            if step == 1:
                start = start if count else 0
                return new_spans(
                    self.held, self.block, self.first + start, self.last + start, count
                )
            return spans_at(self, sliced_indexes(start, step, count).numbers, count)
        start = place
        if start < 0:
            start += self.size
        if not 0 <= start < self.size:
            raise IndexError(f"index {place} of {self.size} entries")
        return entry(self, start)

    def __iter__(self):
        cdef _SpansIterator made = _SpansIterator.__new__(_SpansIterator)
        made.column = self
        return made

    def __reversed__(self):
        return iter(self[::-1])

    def __contains__(self, wanted):
        return find_span(self, wanted, 0, self.size) >= 0

    def index(self, wanted, start=0, stop=None):
        """The index of the first such entry; ValueError."""
        first, end, _ = slice(start, stop).indices(self.size)
        cdef Py_ssize_t found = find_span(self, wanted, first, end)
        if found < 0:
            raise ValueError(f"{wanted!r} is not in the column")
        return found

    def count(self, wanted):
        """How many entries are equal to this one."""
        cdef Py_ssize_t at = 0, found = 0
        while (at := find_span(self, wanted, at, self.size)) >= 0:
            at += 1
            found += 1
        return found

    def tolist(self):
        """The entries as objects."""
        cdef list made = PyList_New(self.size)
        cdef PyObject *item
        cdef Py_ssize_t i
        for i in range(self.size):
            if self.first[i] < 0:
                item = Py_None
                Py_INCREF(item)
            else:
                item = new_bytes(self.bytes + self.first[i], self.last[i] - self.first[i])
            PyList_SET_ITEM(<PyObject *> made, i, item)
        return made

    def where(self, mask):
        """The entries whose entry in the mask is true."""
        cdef bytes kept = as_mask(mask)
        cdef const uint8_t *keep = <const uint8_t *> PyBytes_AS_STRING(kept)
        cdef Py_ssize_t count = min(self.size, PyBytes_GET_SIZE(kept))
        return spans_where(self, keep, count, count_of(keep, count))

    def take(self, indexes):
        """The entries at `indexes`."""
        cdef Int64s places
        if type(indexes) is range and indexes.step == 1 and 0 <= indexes.start:
            if indexes.stop <= self.size:
                return self[indexes.start : indexes.stop]
        places = as_indexes(indexes, self.size)
        return spans_at(self, places.numbers, places.size)

    def followed_by(self, others):
        """These entries and others as one column. Spans of one buffer go on sharing it."""
        cdef list parts = [self, *others]
        cdef Spans part
        cdef Py_ssize_t count = 0
        cdef int64_t total = 0
        cdef bint shared = True
        cdef Block block
        for part in parts:
            count += part.size
            total += total_of(part)
            shared = shared and part.held.source is self.held.source
        if not shared:
            return copied(parts, count, total)
        block = new_block(2 * count)
        total = 0
        for part in parts:
            memcpy(block.numbers + total, part.first, part.size * sizeof(int64_t))
            memcpy(block.numbers + count + total, part.last, part.size * sizeof(int64_t))
            total += part.size
        return new_spans(self.held, block, block.numbers, block.numbers + count, count)

    def contiguous(self):
        """The entries as Arrow keeps binary: offsets of 4 bytes, data, validity.

        Validity is a bitmap, lowest bit first, None where no entry is. OverflowError where the
        entries have 2 GiB together.
        """
        cdef int64_t total = total_of(self), at = 0, size
        cdef bytes offsets, data, validity = None
        cdef int32_t *places
        cdef char *out
        cdef uint8_t *bits = NULL
        cdef Py_ssize_t i
        if total > INT32_MAX:
            raise OverflowError(f"{total} bytes; an array of Arrow has at most {INT32_MAX}")
        offsets = PyBytes_FromStringAndSize(NULL, (self.size + 1) * sizeof(int32_t))
        data = PyBytes_FromStringAndSize(NULL, total)
        if self.has_nulls:
            validity = bytes((self.size + 7) // 8)
            bits = <uint8_t *> PyBytes_AS_STRING(validity)
        places = <int32_t *> PyBytes_AS_STRING(offsets)
        out = PyBytes_AS_STRING(data)
        with nogil:
            for i in range(self.size):
                places[i] = <int32_t> at
                if self.first[i] < 0:
                    continue
                size = self.last[i] - self.first[i]
                memcpy(out + at, self.bytes + self.first[i], size)
                at += size
                if bits != NULL:
                    bits[i >> 3] |= <uint8_t> (1 << (i & 7))
            places[self.size] = <int32_t> at
        return offsets, data, validity

    def __repr__(self):
        return f"Spans of {self.size}"

    def __reduce__(self):
        return (Spans.gathered, (self.tolist(),))


cdef inline int64_t offset_at(const void *offsets, Py_ssize_t width, Py_ssize_t i) noexcept:
    return (<const int32_t *> offsets)[i] if width == 4 else (<const int64_t *> offsets)[i]


cdef Py_ssize_t find_span(
    Spans column, object wanted, Py_ssize_t start, Py_ssize_t stop
) except? -1:
    """The index of the first such entry in [start, stop); -1: there is none."""
    cdef const char *data
    cdef Py_ssize_t i, size
    if wanted is None:
        for i in range(start, stop):
            if column.first[i] < 0:
                return i
        return -1
    if not PyBytes_CheckExact(wanted):
        made = column[start:stop].tolist()
        return start + made.index(wanted) if wanted in made else -1
    data, size = PyBytes_AS_STRING(wanted), PyBytes_GET_SIZE(wanted)
    for i in range(start, stop):
        if (
            column.last[i] - column.first[i] == size
            and column.first[i] >= 0
            and memcmp(column.bytes + column.first[i], data, size) == 0
        ):
            return i
    return -1


@cython.final
cdef class _SpansIterator:
    cdef Spans column
    cdef Py_ssize_t at

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t at = self.at
        if at >= self.column.size:
            raise StopIteration
        self.at = at + 1
        return entry(self.column, at)

    def __length_hint__(self):
        return self.column.size - self.at


Form.register(Spans)
