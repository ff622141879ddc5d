# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""What stays for one segment, in native memory, for loops that run without the GIL.          [P]"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._lending cimport lend

from kafkalite.core.log.values import Mark
from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)


cdef bint make_room(void **items, int64_t *size, int64_t used, size_t item_bytes) noexcept nogil:
    """Room for one more of the items, `used` of which are there; false when memory is short."""
    cdef int64_t wanted = 2 * size[0] + 16
    cdef void *more
    if used < size[0]:
        return True
    more = realloc(items[0], wanted * item_bytes)
    if more == NULL:
        return False
    items[0] = more
    size[0] = wanted
    return True


@cython.final
@cython.no_gc
cdef class Output:
    """What stays for one segment, a run of batches at a time; see the twin."""

    def __cinit__(self, int64_t index_interval_bytes):
        self.interval = index_interval_bytes
        self.max_timestamp = self.max_timestamp_offset = -1

    def __dealloc__(self):
        free(self.data)
        free(self.places)
        free(self.producers)

    def __len__(self):
        return self.used

    def view(self):
        """The bytes, to be released before the next batch comes."""
        return memoryview(self)

    @property
    def latest(self):
        """The largest timestamp of all, and the last offset of the batch that bears it."""
        return self.max_timestamp, self.max_timestamp_offset

    cdef bint saw(self, int64_t producer_id) noexcept nogil:
        """Notes that a batch of the producer's transaction was met."""
        cdef int64_t count = self.producer_count
        if count and self.producers[count - 1] == producer_id:
            return True
        if not make_room(
            <void **> &self.producers, &self.producers_size, count, sizeof(int64_t)
        ):
            return False
        self.producers[count] = producer_id
        self.producer_count += 1
        return True

    def take_producers(self):
        """Producers of whose transactions batches were met since this was last asked."""
        cdef list taken = [self.producers[i] for i in range(self.producer_count)]
        self.producer_count = 0
        return taken

    cdef uint8_t *reserve(self, int64_t more) noexcept nogil:
        """Where `more` bytes may be written; NULL also while the bytes are lent out."""
        cdef int64_t size
        cdef uint8_t *data
        if self.used + more > self.size:
            if self.lent:
                return NULL
            size = max(self.used + more, self.size + self.size // 2)
            data = <uint8_t *> realloc(self.data, size)
            if data == NULL:
                return NULL
            self.data = data
            self.size = size
        return self.data + self.used

    cdef bint grown(self, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept nogil:
        """A batch of `size` bytes was written where `reserve` said."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since > self.interval:
            if not make_room(
                <void **> &self.places, &self.places_size, self.place_count, sizeof(Place)
            ):
                return False
            self.places[self.place_count] = Place(
                self.used, last_offset, self.max_timestamp, self.max_timestamp_offset
            )
            self.place_count += 1
            self.bytes_since = 0
        self.bytes_since += size
        self.used += size
        return True

    cdef bint add(
        self, const uint8_t *batch, int64_t size, int64_t last_offset, int64_t max_timestamp
    ) noexcept nogil:
        """Adds a batch as it is."""
        cdef uint8_t *at = self.reserve(size)
        if at == NULL:
            return False
        memcpy(at, batch, size)
        return self.grown(size, last_offset, max_timestamp)

    def append(self, batch, int64_t last_offset, int64_t max_timestamp):
        """Adds a batch as it is."""
        cdef Py_buffer view
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            if not self.add(<const uint8_t *> view.buf, view.len, last_offset, max_timestamp):
                raise MemoryError
        finally:
            PyBuffer_Release(&view)

    def marks(self):
        """The batches of this run that get an index entry."""
        return [
            Mark(
                self.places[i].position,
                self.places[i].last_offset,
                self.places[i].max_timestamp,
                self.places[i].max_timestamp_offset,
            )
            for i in range(self.place_count)
        ]

    def clear(self):
        """Begins the next run; not while its bytes are lent."""
        assert not self.lent, self.lent
        self.used = self.place_count = 0

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        lend(buffer, flags, self, self.data, &self.used)
        self.lent += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.lent -= 1
