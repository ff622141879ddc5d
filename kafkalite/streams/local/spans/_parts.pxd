# cython: language_level=3
"""Parts: partials of windows, as numbers of the machine or as objects. See `_windows.pyx`.   [P]

A part adds and compares as Python does; what is no number of the machine is left to Python itself.
"""

from cpython.object cimport Py_GT, Py_LT, PyObject, PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t

from kafkalite.streams.local.operators._cells cimport (
    EMPTY,
    FLOAT,
    INT,
    MAX,
    MEAN,
    MIN,
    OBJECT,
    SUM,
    Cell,
    add_number,
    keep_better,
    read_number,
)
from kafkalite.streams.local.spans._log cimport SpanLog

cdef union Content:
    int64_t number
    double real
    PyObject *item  # held

cdef struct Part:
    Content at
    int64_t count  # of a mean
    int kind  # as of a cell


cdef inline void let_go(Part *part) noexcept:
    if part.kind == OBJECT:
        Py_DECREF(<object> part.at.item)
    part.kind = EMPTY


cdef inline object value_of(Part *part):
    if part.kind == OBJECT:
        return <object> part.at.item
    return part.at.real if part.kind == FLOAT else part.at.number


cdef inline int keep(Part *part, object value) except -1:
    """Puts a value into a part."""
    cdef Cell cell
    let_go(part)
    if read_number(value, &cell):
        keep_number(part, &cell)
    else:
        Py_INCREF(value)
        part.kind, part.at.item = OBJECT, <PyObject *> value
    return 0


cdef inline void keep_number(Part *part, Cell *cell) noexcept:
    part.kind = cell.kind
    if cell.kind == FLOAT:
        part.at.real = cell.real
    else:
        part.at.number = cell.number


cdef inline bint add_cell(int kind, Part *part, Cell *x) except -1:
    """Adds or compares numbers of the machine; False where that needs Python, and nothing has
    changed."""
    cdef Cell cell
    cell.kind = part.kind
    if part.kind == OBJECT:
        return False
    cell.number, cell.real = part.at.number, part.at.real
    if not (keep_better(&cell, x, kind == MAX) if kind >= MIN else add_number(&cell, x)):
        return False
    keep_number(part, &cell)
    return True


cdef inline int add_object(int kind, Part *part, object x) except -1:
    """The same by Python."""
    if kind < MIN:
        keep(part, (0 if part.kind == EMPTY else value_of(part)) + x)
    elif part.kind == EMPTY or PyObject_RichCompareBool(
        x, value_of(part), Py_GT if kind == MAX else Py_LT
    ):
        keep(part, x)
    return 0


cdef inline object result_of(int kind, Part *part):
    """What an aggregate gives."""
    cdef int64_t most = <int64_t> 1 << 53  # every int up to it is a float, too
    if part.kind == EMPTY:
        return 0 if kind <= SUM else None
    if kind != MEAN:
        return value_of(part)
    if part.kind == FLOAT:
        return part.at.real / <double> part.count
    if part.kind == INT and -most <= part.at.number <= most:
        return <double> part.at.number / <double> part.count
    return value_of(part) / part.count


cdef inline int pack_value(SpanLog log, Part *part, object pack) except -1:
    """A value as MessagePack; `pack` writes objects."""
    if part.kind == OBJECT:
        return log.pack_bytes(pack(<object> part.at.item))
    if part.kind == FLOAT:
        return log.pack_real(part.at.real)
    return log.pack_number(part.at.number)


cdef inline int pack_part(SpanLog log, int kind, Part *part, object pack) except -1:
    """A partial as the changelog keeps it; nil for none."""
    if part.kind == EMPTY:
        return log.pack_nil()
    if kind != MEAN:
        return pack_value(log, part, pack)
    log.pack_array(2)
    pack_value(log, part, pack)
    return log.pack_number(part.count)


cdef inline int merge_parts(int kind, Part *one, Part *other) except -1:
    """Two partials of numbers, neither of them empty, the older of which takes the other in."""
    cdef Cell x
    if other.kind != OBJECT:
        x.kind, x.number, x.real, x.item = other.kind, 0, 0.0, NULL
        if other.kind == FLOAT:
            x.real = other.at.real
        else:
            x.number = other.at.number
    if other.kind == OBJECT or not add_cell(kind, one, &x):
        add_object(kind, one, value_of(other))
    one.count += other.count
    return 0
