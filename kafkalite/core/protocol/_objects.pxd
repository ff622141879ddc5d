# cython: language_level=3
"""What the native record modules take from Python's C interface, and share beside it.         [P]

All there is to it is here: no module belongs to this file.

Columns are read through borrowed references. That is safe while no Python code runs, so numbers
(whose `__index__` may) are copied out first, lists are made next, sizes are looked at again, and
only then do the pointers begin.
"""

from libc.stdint cimport int64_t

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    PyObject *Py_None
    void Py_INCREF(PyObject *)
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    PyObject *new_int "PyLong_FromLongLong"(long long) except NULL
    long long int_value "PyLong_AsLongLongAndOverflow"(PyObject *, int *) noexcept  # of an int
    list PyList_New(Py_ssize_t)
    void PyList_SET_ITEM(PyObject *, Py_ssize_t, PyObject *)
    object PySequence_Fast(object, const char *)
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject *)
    PyObject *PySequence_Fast_GET_ITEM(PyObject *, Py_ssize_t)
    PyObject **PySequence_Fast_ITEMS(PyObject *)
    bint PyBytes_Check(PyObject *)
    bint PyLong_CheckExact(PyObject *)
    bint PyList_Check(PyObject *)
    bint PyTuple_Check(PyObject *)
    bint PyUnicode_Check(PyObject *)
    char *bytes_data "PyBytes_AS_STRING"(PyObject *)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject *)
    const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *) except NULL
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)


cdef inline int64_t number_at(
    object column, Py_ssize_t i, str name, object int64
) except? -1:
    """An integer of 64 bits from a column that may change while its items are asked.

    `int64` is the twin's, for what is no such integer at first sight.
    """
    cdef int overflow = 0
    cdef long long number
    cdef PyObject *item
    cdef object held
    if i >= PySequence_Fast_GET_SIZE(<PyObject *> column):
        raise ValueError("columns changed while their numbers were read")
    item = PySequence_Fast_GET_ITEM(<PyObject *> column, i)
    if PyLong_CheckExact(item):
        number = int_value(item, &overflow)
        if not overflow:
            return number
    held = <object> item
    return int64(held, name, i)
