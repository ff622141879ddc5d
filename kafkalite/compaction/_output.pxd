# cython: language_level=3
"""What stays for one segment, in native memory; _output.pyx says more.                        [P]"""

from libc.stdint cimport int64_t, uint8_t


cdef struct Place:
    int64_t position
    int64_t last_offset
    int64_t max_timestamp
    int64_t max_timestamp_offset


cdef class Output:
    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t size
    cdef Place *places
    cdef int64_t place_count
    cdef int64_t places_size
    cdef int64_t interval
    cdef int64_t bytes_since  # the last place
    cdef int64_t max_timestamp
    cdef int64_t max_timestamp_offset
    cdef int64_t *producers
    cdef int64_t producer_count
    cdef int64_t producers_size
    cdef int lent

    # All three are false, or NULL, where memory is short.
    cdef bint saw(self, int64_t producer_id) noexcept nogil
    cdef uint8_t *reserve(self, int64_t more) noexcept nogil
    cdef bint grown(self, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept nogil
    cdef bint add(
        self, const uint8_t *batch, int64_t size, int64_t last_offset, int64_t max_timestamp
    ) noexcept nogil
