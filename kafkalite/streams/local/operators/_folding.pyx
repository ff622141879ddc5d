# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Records into many small windows at once: see folding.py.                                   [P]"""

from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.object cimport Py_GT, Py_LT, PyObject, PyObject_RichCompareBool
from libc.stdint cimport int64_t

INTERFACE = 1  # raised whenever this module and folding.py agree on something else

cdef enum:
    COUNT, COUNT_OF, SUM, MEAN, MIN, MAX


cdef inline int add(int kind, partials, key, x) except -1:
    """One argument into the partial of `key`."""
    cdef PyObject *found
    if kind == COUNT:
        found = PyDict_GetItem(partials, key)
        PyDict_SetItem(partials, key, 1 if found == NULL else <object> found + 1)
        return 0
    if x is None:
        return 0
    found = PyDict_GetItem(partials, key)
    if kind == COUNT_OF:
        PyDict_SetItem(partials, key, 1 if found == NULL else <object> found + 1)
    elif kind == SUM:
        PyDict_SetItem(partials, key, 0 + x if found == NULL else <object> found + x)
    elif kind == MEAN:
        if found == NULL:
            PyDict_SetItem(partials, key, (0 + x, 1))
        else:
            total, n = <tuple> <object> found
            PyDict_SetItem(partials, key, (total + x, n + 1))
    elif found == NULL or PyObject_RichCompareBool(
        x, <object> found, Py_LT if kind == MIN else Py_GT
    ):
        PyDict_SetItem(partials, key, x)
    return 0


def fold_records(list keys, list timestamps, int64_t size, kinds, columns, open_window, list done):
    """The windows that were touched: by start, the newest timestamp of each key. See the caller.

    `done[0]` tells how many records went in whole, when one fails.
    """
    cdef Py_ssize_t i, count = len(keys)
    cdef int64_t timestamp, start, current = -1
    cdef dict touched = {}
    cdef dict latest = None
    cdef tuple partials = None
    cdef list columns_of = list(columns)
    cdef bytes codes = bytes(kinds)
    cdef Py_ssize_t part, parts = len(codes)
    cdef const unsigned char *code = codes
    cdef PyObject *found
    if len(timestamps) != count or len(columns_of) != parts:
        raise ValueError("columns of different lengths")
    for column in columns_of:
        if column is not None and len(<list> column) != count:
            raise ValueError("columns of different lengths")
    for i in range(count):
        done[0] = i
        stamp = timestamps[i]
        timestamp = stamp
        start = timestamp - timestamp % size
        if start != current:
            current = start
            found = PyDict_GetItem(touched, start)
            if found == NULL:
                partials, latest = open_window(start), {}
                touched[start] = (partials, latest)
            else:
                partials, latest = <tuple> <object> found
        key = keys[i]
        found = PyDict_GetItem(latest, key)
        if found == NULL or stamp > <object> found:
            PyDict_SetItem(latest, key, stamp)
        for part in range(parts):
            column = columns_of[part]
            add(code[part], partials[part], key, None if column is None else (<list> column)[i])
    done[0] = count
    return {start: latest for start, (_, latest) in touched.items()}
