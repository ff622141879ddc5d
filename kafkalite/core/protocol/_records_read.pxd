# cython: language_level=3
"""What reading records lends to reading them as forms.                                       [P]"""

from libc.stdint cimport int64_t

from kafkalite.core.protocol._reading cimport Reader


cdef object raise_fault(Reader *reader, Py_ssize_t record)
cdef tuple decode_headers(Reader *reader, int64_t count, Py_ssize_t record)
