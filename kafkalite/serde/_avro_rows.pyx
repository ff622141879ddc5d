# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Rows of Avro columns: what looks like fastavro's dicts, and makes a value when it is asked.  [P]

    Row --> Rows (of one record of the plan) --> Batch
              cells: a field's objects, made once for each row that was asked for it

`Rows.release` copies out the rows that somebody still holds, as dicts, and lets the columns go: so
a row that is kept costs what its dict costs, and not the batch that it came with. To find them, the
rows alive stand in a list that they leave when they end; the list holds no references.

Owns   the objects made of columns. Their types are those that fastavro gives.
Never  fails on a value: the decoder let none pass that Python has no object for.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.datetime cimport date_new, datetime_new, import_datetime, time_new
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kafkalite.serde._avro_columns cimport *

from collections.abc import Mapping
from copy import deepcopy
from datetime import timezone
from uuid import UUID

import_datetime()

cdef object UTC = timezone.utc
cdef int64_t DAY_MICROS = 86_400_000_000

cdef extern from "Python.h":
    list PyList_New(Py_ssize_t)
    void PyList_SET_ITEM(list, Py_ssize_t, PyObject *)


@cython.final
@cython.no_gc
cdef class Rows:
    """One record of a plan, in the columns of one batch."""

    cdef Batch batch
    cdef int place
    cdef bint as_dicts  # records inside are made dicts at once
    cdef dict names
    cdef dict children  # of the records inside, by their columns
    cdef PyObject ***cells  # by field and row; NULL where nobody has asked
    cdef PyObject *first  # of the rows alive

    def __cinit__(self, Batch batch, int place, bint as_dicts):
        self.batch, self.place, self.as_dicts = batch, place, as_dicts
        self.names, self.children = batch.shape.names[place], {}
        self.cells = <PyObject ***> calloc(len(self.names) + 1, sizeof(PyObject **))
        if self.cells == NULL:
            raise MemoryError

    def __dealloc__(self):
        self.clear()
        free(self.cells)

    cdef void clear(self):
        """Forgets all objects made."""
        cdef Py_ssize_t field, row, rows
        cdef PyObject **made
        if self.cells == NULL:
            return
        rows = self.batch.stores[self.place].length
        for field in range(self.batch.stores[self.place].parts):
            made, self.cells[field] = self.cells[field], NULL
            if made != NULL:
                for row in range(rows):
                    Py_XDECREF(made[row])
                free(made)

    cdef object cell(self, Py_ssize_t field, Py_ssize_t row):
        """A field's object, made once."""
        cdef PyObject **made = self.cells[field]
        cdef const Store *own = &self.batch.stores[self.place]
        if made == NULL:
            made = <PyObject **> calloc(own.length + 1, sizeof(PyObject *))
            if made == NULL:
                raise MemoryError
            self.cells[field] = made
        if made[row] != NULL:
            return <object> made[row]
        value = self.value(self.batch.shape.parts[own.part + field], row)
        Py_INCREF(value)
        made[row] = <PyObject *> value
        return value

    cdef dict copy(self, Py_ssize_t row):
        """A row as a dict."""
        cdef dict made = {}
        cdef Py_ssize_t field = 0
        for name in self.names:
            made[name] = self.cell(field, row)
            field += 1
        return made

    cdef dict fresh(self, Py_ssize_t row):
        """A row as a dict of its own, whose parts are nobody else's."""
        cdef const int32_t *parts = self.batch.shape.parts + self.batch.stores[self.place].part
        cdef dict made = {}
        cdef Py_ssize_t field = 0
        for name in self.names:
            made[name] = self.value(parts[field], row)
            field += 1
        return made

    cdef object record(self, Py_ssize_t index):
        """A row that was not there before, or its dict."""
        if self.as_dicts:
            return self.fresh(index)
        cdef Row made = Row.__new__(Row)
        made.rows, made.index = self, index
        made.next = self.first
        if self.first != NULL:
            (<Row> self.first).previous = <PyObject *> made
        self.first = <PyObject *> made
        return made

    cdef Rows inside(self, int place):
        """The rows of a record that is part of this one."""
        found = self.children.get(place)
        if found is None:
            found = self.children[place] = Rows(self.batch, place, self.as_dicts)
        return <Rows> found

    def at(self, indexes):
        """The values of some records of the batch, in the order of their indexes."""
        cdef const Store *root = &self.batch.stores[self.place]
        cdef Py_ssize_t row
        cdef list made = []
        for index in indexes:
            row = index
            if not 0 <= row < self.batch.rows:
                raise IndexError(f"record {row} of {self.batch.rows}")
            if root.kind != KIND_RECORD:
                made.append(self.value(self.place, row))
            else:
                made.append(self.record(row) if is_valid(root, row) else None)
        return made

    cpdef release(self):
        """Copies out the rows alive, and lets go of the columns."""
        cdef Row row
        while self.first != NULL:
            row = <Row> self.first
            row.own = self.copy(row.index)
            row.leave()
        self.clear()  # rows inside that nobody holds end here
        for inner in self.children.values():
            (<Rows> inner).release()

    cdef object value(self, int place, Py_ssize_t row):
        """The object of a value of a column."""
        cdef const Store *s = &self.batch.stores[place]
        cdef const int32_t *offsets = <const int32_t *> s.data
        cdef int kind = s.kind
        cdef int64_t number
        if kind == KIND_CONSTANT:
            default = self.batch.shape.details[place]
            return deepcopy(default) if isinstance(default, list | dict) else default
        if kind == KIND_NULL or not is_valid(s, row):
            return None
        if kind == KIND_STRING:
            number = offsets[row]
            return PyUnicode_DecodeUTF8(
                <const char *> s.bytes + number, offsets[row + 1] - number, NULL
            )
        if kind == KIND_INT:
            return (<const int32_t *> s.data)[row]
        if kind in (KIND_LONG, KIND_TIMESTAMP_NANOS, KIND_LOCAL_NANOS):
            return (<const int64_t *> s.data)[row]
        if kind == KIND_DOUBLE:
            return (<const double *> s.data)[row]
        if kind == KIND_FLOAT:
            return <double> (<const float *> s.data)[row]
        if kind == KIND_BOOLEAN:
            return bool((s.data[row >> 3] >> (row & 7)) & 1)
        if kind == KIND_ENUM:
            return (<tuple> self.batch.shape.details[place])[(<const int32_t *> s.data)[row]]
        if kind == KIND_RECORD:
            return self.inside(place).record(row)
        if kind == KIND_BYTES:
            number = offsets[row]
            return PyBytes_FromStringAndSize(
                <const char *> s.bytes + number, offsets[row + 1] - number
            )
        if kind == KIND_FIXED:
            return PyBytes_FromStringAndSize(<const char *> s.data + row * s.width, s.width)
        if kind in (KIND_ARRAY, KIND_MAP):
            return self.collection(s, offsets[row], offsets[row + 1])
        return self.logical(s, place, row)

    cdef object collection(self, const Store *s, Py_ssize_t begin, Py_ssize_t end):
        """A list, or a dict in which the last of equal keys counts."""
        cdef const int32_t *parts = self.batch.shape.parts
        cdef Py_ssize_t at
        cdef int last = parts[s.part + s.parts - 1]
        cdef list items
        if s.kind == KIND_ARRAY:
            items = []
            for at in range(begin, end):
                items.append(self.value(last, at))
            return items
        made = {}
        for at in range(begin, end):
            made[self.value(parts[s.part], at)] = self.value(last, at)
        return made

    cdef object logical(self, const Store *s, int place, Py_ssize_t row):
        """Python's own date, time, datetime, UUID or Decimal."""
        cdef int kind = s.kind
        cdef int64_t number
        if kind == KIND_DATE:
            return moment((<const int32_t *> s.data)[row] * DAY_MICROS, None, True)
        if kind == KIND_TIME_MILLIS:
            return time_of((<const int32_t *> s.data)[row] * <int64_t> 1000)
        if kind == KIND_UUID:
            return UUID(bytes=PyBytes_FromStringAndSize(<const char *> s.data + row * 16, 16))
        if kind == KIND_DECIMAL:
            raw = PyBytes_FromStringAndSize(<const char *> s.data + row * s.width, s.width)
            context, scale = self.batch.shape.details[place]
            unscaled = context.create_decimal(int.from_bytes(raw, "little", signed=True))
            return unscaled.scaleb(scale, context)
        number = (<const int64_t *> s.data)[row]
        if kind == KIND_TIME_MICROS:
            return time_of(number)
        if kind in (KIND_TIMESTAMP_MILLIS, KIND_LOCAL_MILLIS):
            number *= 1000
        local = kind in (KIND_LOCAL_MILLIS, KIND_LOCAL_MICROS)
        return moment(number, None if local else UTC, False)


cdef object time_of(int64_t micros):
    cdef int64_t seconds = micros // 1_000_000
    return time_new(
        seconds // 3600, seconds // 60 % 60, seconds % 60, micros % 1_000_000, None
    )


cdef object moment(int64_t micros, zone, bint is_date):
    """The date, or the date and time, so many microseconds after 1970. Source: the algorithm
    civil_from_days of Howard Hinnant, over eras of 400 years that begin in March."""
    cdef int64_t days = micros // DAY_MICROS - (micros % DAY_MICROS < 0)  # C rounds to zero
    cdef int64_t rest = micros - days * DAY_MICROS
    cdef int64_t shifted = days + 719_468
    cdef int64_t era = shifted // 146_097  # not negative since the year 0
    cdef int64_t of_era = shifted - era * 146_097
    cdef int64_t year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    cdef int64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef int64_t month = (5 * of_year + 2) // 153
    cdef int64_t day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    year += era * 400 + (month <= 2)
    if is_date:
        return date_new(year, month, day)
    cdef int64_t seconds = rest // 1_000_000
    return datetime_new(
        year, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, rest % 1_000_000, zone
    )


@cython.final
@cython.no_gc
@cython.freelist(1024)
@cython.collection_type("mapping")
cdef class Row:
    """One record, looked at like the dict that it equals. It cannot be changed: change a copy."""

    cdef Rows rows  # None once it was copied out
    cdef Py_ssize_t index
    cdef dict own
    cdef PyObject *previous
    cdef PyObject *next

    def __init__(self):
        raise TypeError("rows come from a batch of records")

    def __dealloc__(self):
        self.leave()

    cdef void leave(self):
        """Out of the list of rows alive."""
        cdef Rows rows = self.rows
        if rows is None:
            return
        if self.previous != NULL:
            (<Row> self.previous).next = self.next
        else:
            rows.first = self.next
        if self.next != NULL:
            (<Row> self.next).previous = self.previous
        self.previous = self.next = NULL
        self.rows = None

    cdef dict shape(self):
        """A dict that has the names of its fields, in their order."""
        return self.own if self.rows is None else self.rows.names

    def __getitem__(self, name):
        if self.rows is None:
            return self.own[name]
        return self.rows.cell(self.rows.names[name], self.index)

    def get(self, name, default=None):
        """A field's value, or the default where the record has no such field."""
        return self[name] if name in self.shape() else default

    def copy(self):
        """The dict that this is a view of; records inside stay views."""
        return dict(self.own) if self.rows is None else self.rows.copy(self.index)

    def keys(self):
        """The names of the fields."""
        return self.shape().keys()

    def values(self):
        """The values of all fields."""
        return self.copy().values()

    def items(self):
        """Names and values of all fields."""
        return self.copy().items()

    def __iter__(self):
        return iter(self.shape())

    def __reversed__(self):
        return reversed(self.shape())

    def __len__(self):
        return len(self.shape())

    def __contains__(self, name):
        return name in self.shape()

    def __eq__(self, other):
        if isinstance(other, Row):
            return self.copy() == (<Row> other).copy()
        return self.copy() == other if isinstance(other, dict) else NotImplemented

    __hash__ = None

    def __or__(self, other):
        if not isinstance(other, (Row, dict)):
            return NotImplemented
        return {**self.copy(), **other}

    def __ror__(self, other):
        return {**other, **self.copy()} if isinstance(other, dict) else NotImplemented

    def __repr__(self):
        return repr(self.copy())

    def __reduce__(self):
        return dict, (self.copy(),)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return deepcopy(self.copy(), memo)

    def __setitem__(self, name, value):
        raise TypeError(f"a row read from Avro cannot be changed: make {{**row, {name!r}: ...}}")

    def __delitem__(self, name):
        raise TypeError(f"a row read from Avro cannot lose {name!r}: change a copy, dict(row)")

    def _refuse(self, *args, **more):
        """Rows cannot be changed."""
        raise TypeError("a row read from Avro cannot be changed: change a copy, dict(row)")

    clear = pop = popitem = setdefault = update = _refuse


Mapping.register(Row)


def objects(Batch batch, bint as_dicts):
    """The value of each record of a batch, and the Rows to release when the next batch comes.

    Records are rows, or dicts.
    """
    cdef Rows rows = Rows(batch, 0, as_dicts)
    return rows.at(range(batch.rows)), rows
