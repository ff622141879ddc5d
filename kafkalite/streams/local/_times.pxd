# cython: language_level=3
"""Times in native code, which end where 64 bits do.                                          [P]"""

from libc.stdint cimport INT64_MAX, int64_t


cdef inline int64_t later(int64_t time, int64_t by) noexcept nogil:
    """A time so much later, or the last one there is."""
    return INT64_MAX if by > 0 and time > INT64_MAX - by else time + by
