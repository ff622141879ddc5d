# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Python's values into Avro's bytes: runs an `avro_plan` over dicts, checking each value.    [P]

It writes what is plainly of its type, in the bytes that fastavro has for it: an int that is an int
and in its range, a dict that has no field but its record's. Of all else (a subclass, a value of a
wrong type) it is not sure, and leaves it to fastavro, which writes it or says what is wrong.

Owns   nothing between two calls.
Fails  with MemoryError alone.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.datetime cimport (
    PyDate_CheckExact,
    PyDateTime_CheckExact,
    PyTime_CheckExact,
    datetime_day,
    datetime_hour,
    datetime_microsecond,
    datetime_minute,
    datetime_month,
    datetime_second,
    datetime_tzinfo,
    datetime_year,
    import_datetime,
    time_hour,
    time_microsecond,
    time_minute,
    time_second,
    timedelta_days,
    timedelta_microseconds,
    timedelta_seconds,
)
from cpython.dict cimport PyDict_Size
from libc.math cimport isfinite
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from kafkalite.serde._avro_columns cimport *
from kafkalite.serde._avro_output cimport Output, put_bytes, put_number

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from kafkalite.serde._avro_rows import Row

import_datetime()

cdef object MISSING = object()
cdef object EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
cdef int DAYS_SHIFT = EPOCH.toordinal()

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    double PyLong_AsDouble(object) except? -1
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL

cdef enum:  # how the writing of a value ended
    WRITTEN, UNSURE


cdef inline int done(int status) except -1:
    """What a function of the output gave, as a status."""
    if status < 0:
        raise MemoryError
    return WRITTEN


cdef inline int put_text(Output *o, str text) except -1:
    cdef Py_ssize_t size
    cdef const char *data = PyUnicode_AsUTF8AndSize(text, &size)
    done(put_number(o, size))
    return done(put_bytes(o, <const uint8_t *> data, size))


cdef inline int put_int(Output *o, value, bint is_small) except -1:
    """A number of 32 or 64 bits."""
    cdef int overflow = 0
    cdef long long number
    if type(value) is not int:
        return UNSURE
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or (is_small and number != <int32_t> number):
        return UNSURE
    return done(put_number(o, number))


cdef inline int put_real(Output *o, value, bint is_single) except -1:
    """A float or a double."""
    cdef double number
    cdef float single
    if type(value) is float:
        number = value
    elif type(value) is int:
        number = PyLong_AsDouble(value)
    else:
        return UNSURE
    if not is_single:
        return done(put_bytes(o, <const uint8_t *> &number, 8))
    single = <float> number
    if isfinite(number) and not isfinite(single):
        return UNSURE
    return done(put_bytes(o, <const uint8_t *> &single, 4))


cdef int64_t days_before(int64_t year, int64_t month, int64_t day):
    """The days of a date since 1970. Source: days_from_civil of Howard Hinnant."""
    year -= month <= 2
    cdef int64_t era = year // 400
    cdef int64_t of_era = year - era * 400
    cdef int64_t of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


cdef int put_moment(Output *o, value, bint is_local, bint is_millis) except -1:
    """A datetime, as a local time by what its clock shows."""
    cdef int64_t seconds, micros
    if not PyDateTime_CheckExact(value):
        return put_int(o, value, False)
    zone = <object> datetime_tzinfo(value)
    if is_local or zone is UTC:
        seconds = days_before(datetime_year(value), datetime_month(value), datetime_day(value))
        seconds = seconds * 24 + datetime_hour(value)
        seconds = (seconds * 60 + datetime_minute(value)) * 60 + datetime_second(value)
        micros = datetime_microsecond(value)
    elif zone is None:
        return UNSURE
    else:
        passed = value - EPOCH
        seconds = <int64_t> timedelta_days(passed) * 86_400 + timedelta_seconds(passed)
        micros = timedelta_microseconds(passed)
    if is_millis:
        return done(put_number(o, seconds * 1000 + micros // 1000))
    return done(put_number(o, seconds * 1_000_000 + micros))


cdef int put_time(Output *o, value, bint is_millis) except -1:
    cdef int64_t seconds
    if not PyTime_CheckExact(value):
        return put_int(o, value, is_millis)
    seconds = (time_hour(value) * 60 + time_minute(value)) * 60 + time_second(value)
    if is_millis:
        return done(put_number(o, seconds * 1000 + time_microsecond(value) // 1000))
    return done(put_number(o, seconds * 1_000_000 + time_microsecond(value)))


cdef int put_decimal(Output *o, value, const Node *node, int precision, int scale) except -1:
    """The unscaled number, big end first."""
    if type(value) is not Decimal or not value.is_finite():
        return UNSURE
    sign, digits, exponent = value.as_tuple()
    if len(digits) > precision or exponent + scale < 0 or exponent > precision:
        return UNSURE
    number = int("".join(map(str, digits))) * 10 ** (exponent + scale)
    bits = number.bit_length()
    if node.op == OP_FIXED_DECIMAL:
        if bits >= node.arg * 8:
            return UNSURE
        raw = (-number if sign else number).to_bytes(node.arg, "big", signed=True)
    else:
        raw = (-number if sign else number).to_bytes((bits + 8) // 8, "big", signed=True)
        done(put_number(o, len(raw)))
    return done(put_bytes(o, <const uint8_t *> PyBytes_AS_STRING(raw), len(raw)))


@cython.final
cdef class ValueEncoder(Program):
    """A plan's program, ready to write Python's values."""

    cdef list details  # of each column: a record's names, an enum's places, a decimal's digits

    def __init__(self, plan):
        if not plan.is_own:
            raise ValueError("a plan that resolves two schemas, or leaves fields out")
        self.details = []
        for column in plan.columns:
            if column.kind == KIND_RECORD:
                names = [plan.columns[part].name for part in column.parts]
                defaults = [plan.defaults.get(part, MISSING) for part in column.parts]
                self.details.append(list(zip(names, defaults)))
            elif column.kind == KIND_ENUM:
                self.details.append({name: place for place, name in enumerate(column.symbols)})
            else:
                self.details.append((column.precision, column.scale))

    def encode(self, column, Py_ssize_t begin, bytes header, list out):
        """Appends the record of each value from the index `begin` on, up to the first that it is
        not sure of; the index of that one, or the length of the column. None stays None."""
        cdef Output o
        cdef Py_ssize_t index = begin, count = len(column)
        memset(&o, 0, sizeof(Output))
        try:
            while index < count:
                value = column[index]
                if value is None:
                    out.append(None)
                else:
                    o.used = 0
                    done(put_bytes(&o, <const uint8_t *> PyBytes_AS_STRING(header), len(header)))
                    try:
                        if self.put(&o, 0, value) != WRITTEN:
                            break
                    except MemoryError:
                        raise
                    except Exception:  # of a zone's own code; text that is no UTF-8; a huge int
                        break
                    out.append(PyBytes_FromStringAndSize(<const char *> o.bytes, o.used))
                index += 1
        finally:
            free(o.bytes)
        return index

    cdef int put(self, Output *o, int pc, value) except -1:
        """Writes one value as the node says. As deep as the plan, which is bounded."""
        cdef const Node *node = &self.nodes[pc]
        cdef int op = node.op
        cdef bint first
        if node.union_ == UNION_SOLE:
            done(put_number(o, 0))
        elif node.union_ != UNION_NONE:
            first = node.union_ == UNION_NULL_FIRST
            if value is None:
                return done(put_number(o, 0 if first else 1))
            done(put_number(o, 1 if first else 0))
        if op == OP_STRING:
            return put_text(o, value) if type(value) is str else UNSURE
        if op == OP_INT or op == OP_LONG:
            return put_int(o, value, op == OP_INT)
        if op == OP_DOUBLE or op == OP_FLOAT:
            return put_real(o, value, op == OP_FLOAT)
        if op == OP_RECORD:
            return self.put_record(o, pc, value)
        if op == OP_ARRAY:
            return self.put_list(o, pc, value)
        if op == OP_MAP:
            return self.put_map(o, pc, value)
        return self.put_plain(o, node, value)

    cdef int put_plain(self, Output *o, const Node *node, value) except -1:
        cdef int op = node.op
        cdef int kind = self.shape.stores[node.column].kind
        cdef uint8_t byte
        if op == OP_BOOLEAN:
            if value is not True and value is not False:
                return UNSURE
            byte = value is True
            return done(put_bytes(o, &byte, 1))
        if op == OP_NULL:
            return WRITTEN if value is None else UNSURE
        if op == OP_ENUM:
            place = (<dict> self.details[node.column]).get(value) if type(value) is str else None
            return UNSURE if place is None else done(put_number(o, place))
        if op == OP_BYTES or op == OP_FIXED:
            if type(value) is not bytes:
                return UNSURE
            if op == OP_BYTES:
                done(put_number(o, PyBytes_GET_SIZE(value)))
            elif PyBytes_GET_SIZE(value) != node.arg:
                return UNSURE
            data = <const uint8_t *> PyBytes_AS_STRING(value)
            return done(put_bytes(o, data, PyBytes_GET_SIZE(value)))
        if op == OP_TIMESTAMP_MILLIS or op == OP_TIMESTAMP_MICROS:
            is_local = kind == KIND_LOCAL_MILLIS or kind == KIND_LOCAL_MICROS
            return put_moment(o, value, is_local, op == OP_TIMESTAMP_MILLIS)
        if op == OP_TIME_MILLIS or op == OP_TIME_MICROS:
            return put_time(o, value, op == OP_TIME_MILLIS)
        if op == OP_DATE:
            if PyDate_CheckExact(value):
                return done(put_number(o, <int64_t> value.toordinal() - DAYS_SHIFT))
            return put_int(o, value, True)
        if op == OP_UUID:
            if type(value) is UUID:
                return put_text(o, str(value))
            return put_text(o, value) if type(value) is str else UNSURE
        precision, scale = self.details[node.column]
        return put_decimal(o, value, node, precision, scale)

    cdef int put_record(self, Output *o, int pc, value) except -1:
        """A dict's fields. What it lacks is written as the default, if there is one."""
        cdef list fields = <list> self.details[self.nodes[pc].column]
        cdef dict given
        cdef tuple field
        cdef int at = pc + 1
        cdef Py_ssize_t found = 0
        if type(value) is dict:
            given = <dict> value
        elif isinstance(value, Row):
            given = value.copy()
        else:
            return UNSURE
        for field in fields:
            item = given.get(field[0], MISSING)
            if item is MISSING:
                item = field[1]
                if item is MISSING:
                    return UNSURE
            else:
                found += 1
            if self.put(o, at, item) != WRITTEN:
                return UNSURE
            at = self.nodes[at].end
        return WRITTEN if found == PyDict_Size(given) else UNSURE

    cdef int put_list(self, Output *o, int pc, value) except -1:
        cdef Py_ssize_t count, index
        if type(value) is not list:
            return UNSURE
        count = len(<list> value)
        if count:
            done(put_number(o, count))
        for index in range(count):
            if index >= len(<list> value):
                return UNSURE
            if self.put(o, pc + 1, (<list> value)[index]) != WRITTEN:
                return UNSURE
        return done(put_number(o, 0))

    cdef int put_map(self, Output *o, int pc, value) except -1:
        if type(value) is not dict:
            return UNSURE
        if value:
            done(put_number(o, len(value)))
        for key, item in (<dict> value).items():
            if type(key) is not str:
                return UNSURE
            put_text(o, key)
            if self.put(o, pc + 1, item) != WRITTEN:
                return UNSURE
        return done(put_number(o, 0))
