# cython: language_level=3
"""What the native record modules share of columns of integers: see `_int64s.pyx`.            [P]"""

from libc.stdint cimport int64_t


cdef class Block:
    """Numbers that several columns may look at. Not changed once a column does."""

    cdef int64_t *numbers


cdef class Int64s:
    cdef Block block
    cdef const int64_t *numbers
    cdef Py_ssize_t size


cdef Block new_block(Py_ssize_t count)
cdef Int64s new_int64s(Block block, const int64_t *numbers, Py_ssize_t size)
cdef Int64s int64s_at(Int64s numbers, const int64_t *indexes, Py_ssize_t count)
cdef Int64s numbers_of(object column)
cdef Int64s as_indexes(object indexes, Py_ssize_t size)
cdef Int64s sliced_indexes(Py_ssize_t start, Py_ssize_t step, Py_ssize_t count)
cdef bytes as_mask(object mask)
cdef Py_ssize_t count_of(const unsigned char *mask, Py_ssize_t count) noexcept nogil
