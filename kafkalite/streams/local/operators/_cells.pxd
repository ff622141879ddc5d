# cython: language_level=3
"""Cells: partials while a batch is folded, as numbers of the machine. See _folding.pyx.       [P]

A cell adds and compares as Python does with the same ints and floats, or refuses. A bool is added
as an int. The least and the greatest may be of texts, bytes or bools, all of one kind.
"""

from cpython.bool cimport PyBool_Check
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_CheckExact
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.object cimport Py_GT, Py_LT, PyObject, PyObject_RichCompareBool
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t

cdef extern from "Python.h":
    bint PyLong_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    PyObject **list_items "PySequence_Fast_ITEMS"(object)

cdef extern from *:
    """
    static int add_overflows(int64_t *total, int64_t number) {
        return __builtin_add_overflow(*total, number, total);
    }
    """
    bint add_overflows(int64_t *total, int64_t number) noexcept nogil

cdef enum:  # aggregates, as folding.py has them
    COUNT, COUNT_OF, SUM, MEAN, MIN, MAX, FIRST, LAST

cdef enum:  # what a cell, or an argument, is
    EMPTY, INT, FLOAT, OTHER, OBJECT

cdef struct Cell:
    int64_t number
    double real
    int64_t count  # of a mean; the record that is the first or the last
    PyObject *item  # of an object: of a column or of a store, which hold it
    int kind
    bint is_new

cdef struct Column:  # of arguments
    PyObject **objects
    const int64_t *numbers
    const double *reals
    const uint8_t *validity  # a bit for each entry; NULL: all are there


cdef inline const char *address(buffer, Py_ssize_t bytes_min) except NULL:
    """Where the bytes of a buffer are that its owner does not move."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef const char *found = <const char *> view.buf
    cdef Py_ssize_t length = view.len
    PyBuffer_Release(&view)
    if length < bytes_min:
        raise ValueError(f"a column of {length} bytes, expected {bytes_min}")
    return found


cdef inline int open_column(column, Py_ssize_t records, Column *found) except -1:
    """Arguments, as folding.argument gives them."""
    found.objects, found.numbers, found.reals, found.validity = NULL, NULL, NULL, NULL
    if column is None:
        return 0
    if type(column) is list:
        if len(<list> column) != records:
            raise ValueError("columns of different lengths")
        if records:
            found.objects = list_items(column)
        return 0
    is_real, data, validity = column
    cdef const char *start = address(data, 8 * records)
    if is_real:
        found.reals = <const double *> start
    else:
        found.numbers = <const int64_t *> start
    if validity is not None:
        found.validity = <const uint8_t *> address(validity, (records + 7) // 8)
    return 0


cdef inline bint read_number(item, Cell *cell) except -1:
    """An int of 64 bits or a float; False for anything else."""
    cdef int overflow = 0
    if PyFloat_CheckExact(item):
        cell.kind, cell.real = FLOAT, PyFloat_AS_DOUBLE(item)
        return True
    if PyLong_CheckExact(item):
        cell.kind, cell.number = INT, PyLong_AsLongLongAndOverflow(item, &overflow)
        return not overflow
    return False


cdef inline bint read_object(int kind, item, Cell *cell) except -1:
    """What is no number by its type, but can be added or compared; False for anything else."""
    if kind < MIN:
        cell.kind, cell.number = INT, item is True
        return PyBool_Check(item)
    cell.kind, cell.item = OBJECT, <PyObject *> item
    return PyUnicode_CheckExact(item) or PyBytes_CheckExact(item) or PyBool_Check(item)


cdef inline object value_of(Cell *cell):
    if cell.kind == OBJECT:
        return <object> cell.item
    return cell.real if cell.kind == FLOAT else cell.number


cdef inline bint is_none(Column *column, Py_ssize_t i) noexcept:
    if column.objects != NULL:
        return column.objects[i] == <PyObject *> None
    return column.validity != NULL and not column.validity[i >> 3] >> (i & 7) & 1


cdef inline bint read_argument(Column *column, Py_ssize_t i, Cell *cell) except -1:
    """An argument that is not None; False for one that is no number."""
    if column.objects != NULL:
        return read_number(<object> column.objects[i], cell)
    if column.numbers != NULL:
        cell.kind, cell.number = INT, column.numbers[i]
    else:
        cell.kind, cell.real = FLOAT, column.reals[i]
    return True


cdef inline object object_at(Column *column, Py_ssize_t i):
    """An argument that is not None, as an object."""
    cdef Cell found
    if column.objects != NULL:
        return <object> column.objects[i]
    read_argument(column, i, &found)
    return value_of(&found)


cdef inline bint add_number(Cell *cell, Cell *x) noexcept:
    """Adds as Python does; False where the sum does not fit."""
    if cell.kind == EMPTY:
        cell.kind, cell.number = INT, 0
    if cell.kind == INT:
        if x.kind == INT:
            return not add_overflows(&cell.number, x.number)
        cell.kind, cell.real = FLOAT, <double> cell.number
    cell.real += x.real if x.kind == FLOAT else <double> x.number
    return True


cdef inline bint fits_float(Cell *cell) noexcept:
    """Whether the number is the same as a float."""
    cdef int64_t most = <int64_t> 1 << 53  # every int up to it is a float, too
    return cell.kind == FLOAT or -most <= cell.number <= most


cdef inline bint keep_better(Cell *cell, Cell *x, bint larger) except -1:
    """The first of the smallest or largest; False for what it cannot compare."""
    cdef bint is_better
    cdef double old, new
    if cell.kind == EMPTY:
        is_better = True
    elif cell.kind == INT and x.kind == INT:
        is_better = x.number > cell.number if larger else x.number < cell.number
    elif cell.kind == OBJECT or x.kind == OBJECT:
        if cell.kind != x.kind or type(<object> cell.item) is not type(<object> x.item):
            return False
        is_better = PyObject_RichCompareBool(
            <object> x.item, <object> cell.item, Py_GT if larger else Py_LT
        )
    else:
        if not (fits_float(cell) and fits_float(x)):
            return False
        old = cell.real if cell.kind == FLOAT else <double> cell.number
        new = x.real if x.kind == FLOAT else <double> x.number
        is_better = new > old if larger else new < old
    if is_better:
        cell.kind, cell.number, cell.real, cell.item = x.kind, x.number, x.real, x.item
        cell.is_new = True
    return True


cdef inline bint add_argument(
    int kind, Cell *cell, Column *column, Py_ssize_t record
) except -1:
    """One argument, which is not None; False where it cannot be added."""
    cdef Cell x
    x.number, x.real, x.item = 0, 0.0, NULL
    if kind <= COUNT_OF:
        cell.kind, cell.number, cell.is_new = INT, cell.number + 1, True
        return True
    if kind >= FIRST:
        if kind == LAST or cell.kind == EMPTY:
            cell.kind, cell.count, cell.is_new = OTHER, record, True
        return True
    if not read_argument(column, record, &x):
        if not read_object(kind, <object> column.objects[record], &x):
            return False
    if kind >= MIN:
        return keep_better(cell, &x, kind == MAX)
    cell.count, cell.is_new = cell.count + 1, True
    return add_number(cell, &x)
