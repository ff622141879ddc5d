# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Rows of sessions and sliding windows on their way out, side by side.                       [P]

Owns   a copy of what windows were when they were told of.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kafkalite.core.protocol._int64s cimport Block, new_block, new_int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._spans cimport hold, new_spans

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 1  # as in _table.pyx


@cython.final
cdef class SpanLog:
    """Rows of windows, or words that a window is gone, side by side."""

    def __cinit__(self, Py_ssize_t parts, bint of_sessions):
        self.keys, self.results = [], [[] for _ in range(parts)]
        self._of_sessions = of_sessions

    def __dealloc__(self):
        free(self._entries)
        free(self._packed)

    def __len__(self):
        return self._count

    cdef int add(
        self, object key, int64_t start, int64_t end, int64_t stamp, Py_ssize_t record, bint is_row,
        object headers
    ) except -1:
        cdef Entry *entry
        if self._count == self._room:
            self._entries = <Entry *> longer(self._entries, 2 * self._room + 16, sizeof(Entry))
            self._room = 2 * self._room + 16
        entry = &self._entries[self._count]
        entry.start, entry.end, entry.stamp = start, end, stamp
        entry.record, entry.is_row, entry.is_place = <int32_t> record, is_row, False
        entry.packed_end = self._packed_count
        self.keys.append(key)
        if headers and self.headers is None:
            self.headers = [()] * self._count
        if self.headers is not None:
            self.headers.append(headers)
        self._count += 1
        self.rows += is_row
        return 0

    cdef int add_place(self, object place, object value, int64_t stamp) except -1:
        """A value in bytes under a whole key of topics."""
        self.add(place, 0, 0, stamp, 0, True, ())
        self._entries[self._count - 1].is_place = True
        self.pack_bytes(value)
        return self.end_packing()

    def values(self, rows):
        """`rows` with None where a window is gone."""
        cdef Py_ssize_t i, at = 0
        cdef list found
        if self.rows == self._count:
            return rows
        found = []
        for i in range(self._count):
            if self._entries[i].is_row:
                found.append(rows[at])
                at += 1
            else:
                found.append(None)
        return found

    def bounds(self):
        """First and last timestamp of each window."""
        cdef Py_ssize_t i
        return [(self._entries[i].start, self._entries[i].end) for i in range(self._count)]

    def stamps(self):
        """The timestamps of rows."""
        cdef Py_ssize_t i
        cdef Block block = new_block(self._count)
        for i in range(self._count):
            block.numbers[i] = self._entries[i].stamp
        return new_int64s(block, block.numbers, self._count)

    def records(self):
        """The record that each is from."""
        cdef Py_ssize_t i
        cdef Block block = new_block(self._count)
        for i in range(self._count):
            block.numbers[i] = self._entries[i].record
        return new_int64s(block, block.numbers, self._count)

    cdef Py_ssize_t tail_of(self, Py_ssize_t i) noexcept:
        """How many bytes stand behind the key in topics."""
        if self._entries[i].is_place:
            return 0
        return 2 * NUMBER_BYTES if self._of_sessions else NUMBER_BYTES

    def places(self):
        """Their keys in topics."""
        cdef Py_ssize_t i, shift, length, tail, total = 0, at = 0
        cdef Block block = new_block(2 * self._count)
        cdef int64_t *first = block.numbers
        cdef int64_t *last = first + self._count
        for i in range(self._count):
            total += PyBytes_GET_SIZE(<object> self.keys[i]) + self.tail_of(i)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
        cdef unsigned char *out = <unsigned char *> PyBytes_AS_STRING(data)
        for i in range(self._count):
            key = <object> self.keys[i]
            length, tail = PyBytes_GET_SIZE(key), self.tail_of(i)
            first[i], last[i] = at, at + length + tail
            memcpy(out + at, PyBytes_AS_STRING(key), length)
            if tail:
                put_place(out + at + length, &self._entries[i], self._of_sessions)
            at = last[i]
        return new_spans(hold(data, &shift), block, first, last, self._count)

    # Rows as MessagePack

    def packed(self):
        """The rows in bytes; null where a window is gone."""
        cdef Py_ssize_t i, shift
        cdef int64_t at = 0
        cdef Block block = new_block(2 * self._count)
        cdef int64_t *first = block.numbers
        cdef int64_t *last = first + self._count
        cdef bytes data = PyBytes_FromStringAndSize(<char *> self._packed, self._packed_count)
        for i in range(self._count):
            if self._entries[i].is_row:
                first[i], last[i] = at, self._entries[i].packed_end
                at = last[i]
            else:
                first[i] = last[i] = -1
        return new_spans(hold(data, &shift), block, first, last, self._count)

    cdef unsigned char *more(self, Py_ssize_t count) except NULL:
        """Where so many more bytes go."""
        cdef unsigned char *found
        if self._packed_count + count > self._packed_room:
            self._packed_room = 2 * (self._packed_count + count) + 64
            self._packed = <unsigned char *> longer(self._packed, self._packed_room, 1)
        found = self._packed + self._packed_count
        self._packed_count += count
        return found

    cdef int end_packing(self) except -1:
        """The bytes of the last row are complete."""
        self._entries[self._count - 1].packed_end = self._packed_count
        return 0

    cdef int pack_bytes(self, object data) except -1:
        """What is packed already."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
        memcpy(self.more(length), PyBytes_AS_STRING(data), length)
        return 0

    cdef int pack_head(self, int head, uint64_t number, int bytes) except -1:
        """A byte, and the last `bytes` bytes of a number."""
        cdef unsigned char *out = self.more(1 + bytes)
        cdef int i
        out[0] = <unsigned char> head
        for i in range(bytes):
            out[1 + i] = <unsigned char> (number >> 8 * (bytes - 1 - i) & 0xFF)
        return 0

    cdef int pack_array(self, Py_ssize_t count) except -1:
        if count < 16:
            return self.pack_head(0x90 | <int> count, 0, 0)
        return self.pack_head(0xDC, <uint64_t> count, 2)

    cdef int pack_nil(self) except -1:
        return self.pack_head(0xC0, 0, 0)

    cdef int pack_real(self, double number) except -1:
        cdef uint64_t bits
        memcpy(&bits, &number, sizeof(double))
        return self.pack_head(0xCB, bits, 8)

    cdef int pack_number(self, int64_t number) except -1:
        """In as few bytes as can be."""
        if -32 <= number < 128:
            return self.pack_head(<int> (number & 0xFF), 0, 0)
        if number >= 0:
            if number < 1 << 8:
                return self.pack_head(0xCC, <uint64_t> number, 1)
            if number < 1 << 16:
                return self.pack_head(0xCD, <uint64_t> number, 2)
            if number < <int64_t> 1 << 32:
                return self.pack_head(0xCE, <uint64_t> number, 4)
            return self.pack_head(0xCF, <uint64_t> number, 8)
        if number >= -(1 << 7):
            return self.pack_head(0xD0, <uint64_t> number, 1)
        if number >= -(1 << 15):
            return self.pack_head(0xD1, <uint64_t> number, 2)
        if number >= -(<int64_t> 1 << 31):
            return self.pack_head(0xD2, <uint64_t> number, 4)
        return self.pack_head(0xD3, <uint64_t> number, 8)
