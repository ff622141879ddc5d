# cython: language_level=3
"""What the native record modules share of columns of bytes: see `_spans.pyx`.                [P]"""

from libc.stdint cimport int64_t

from kafkalite.core.protocol._int64s cimport Block


cdef class Held:
    """Bytes that are kept, where they are, while columns look at them."""

    cdef Py_buffer view
    cdef readonly object source


cdef class Spans:
    cdef Held held
    cdef Block block
    cdef const char *bytes
    cdef const int64_t *first  # a record's first byte, -1: null
    cdef const int64_t *last  # behind its last byte, -1: null
    cdef Py_ssize_t size


cdef Held hold(object data, Py_ssize_t *shift)
cdef Spans new_spans(
    Held held, Block block, const int64_t *first, const int64_t *last, Py_ssize_t size
)
cdef Spans all_at(Spans spans, const int64_t *indexes, Py_ssize_t count)
