# cython: language_level=3
"""Bytes that a native object lends, read-only, as its buffer.                                [P]

All there is to it is here: no module belongs to this file.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE

cdef extern from *:
    """
    static char kafkalite_unsigned_bytes[] = "B";
    """
    char *UNSIGNED_BYTES "kafkalite_unsigned_bytes"


cdef inline int lend(
    Py_buffer *buffer, int flags, object owner, void *data, Py_ssize_t *size
) except -1:
    """What `__getbuffer__` does; `size` must stay where it is. No data is lent as none."""
    # Field by field: PyBuffer_FillInfo would lose the reference that Cython put in `obj`.
    if flags & PyBUF_WRITABLE:
        raise BufferError("bytes that are lent are read-only")
    buffer.obj = owner
    buffer.buf = data if data != NULL else <void *> UNSIGNED_BYTES
    buffer.len = size[0]
    buffer.readonly = 1
    buffer.itemsize = 1
    buffer.format = UNSIGNED_BYTES if flags & PyBUF_FORMAT else NULL
    buffer.ndim = 1
    buffer.shape = size if flags & PyBUF_ND else NULL
    buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
    buffer.suboffsets = NULL
    buffer.internal = NULL
    return 0
