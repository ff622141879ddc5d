# cython: language_level=3, binding=False
"""Memory for bytes that are still to come: the native twin.                                  [P]"""

from kafkalite.core.protocol._interface cimport check_interface

from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)

cdef extern from "Python.h":
    object PyByteArray_FromStringAndSize(const char *, Py_ssize_t)


def unwritten(Py_ssize_t size):
    """Memory of `size` bytes; see the twin."""
    if size < 0:
        raise ValueError("negative count")
    return PyByteArray_FromStringAndSize(NULL, size)
