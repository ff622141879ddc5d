# cython: language_level=3
"""What the native modules of Avro share: nodes of a program, and columns that grow.          [P]

A column's buffers are Arrow's: bits of validity; bits, numbers or offsets; and the bytes that
offsets point into.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef enum:
    AVRO_INTERFACE_BUILT = 9  # raised together with avro_plan.INTERFACE

cdef enum:  # avro_plan.Op
    OP_NULL, OP_BOOLEAN, OP_INT, OP_LONG, OP_INTEGER_AS_DOUBLE, OP_FLOAT, OP_FLOAT_AS_DOUBLE
    OP_DOUBLE, OP_BYTES, OP_STRING, OP_FIXED, OP_ENUM, OP_RECORD, OP_ARRAY, OP_MAP, OP_DATE
    OP_TIME_MILLIS, OP_TIME_MICROS, OP_TIMESTAMP_MILLIS, OP_TIMESTAMP_MICROS, OP_UUID
    OP_DECIMAL, OP_FIXED_DECIMAL, OP_SKIP_NUMBER, OP_SKIP_FIXED, OP_SKIP_BYTES
    OP_SKIP_UNION

cdef enum:  # avro_plan.Union
    UNION_NONE, UNION_SOLE, UNION_NULL_FIRST, UNION_NULL_SECOND

cdef enum:  # avro_plan.Kind
    KIND_NULL, KIND_BOOLEAN, KIND_INT, KIND_LONG, KIND_FLOAT, KIND_DOUBLE, KIND_BYTES
    KIND_STRING, KIND_FIXED, KIND_ENUM, KIND_RECORD, KIND_ARRAY, KIND_MAP, KIND_DATE
    KIND_TIME_MILLIS, KIND_TIME_MICROS, KIND_TIMESTAMP_MILLIS, KIND_TIMESTAMP_MICROS
    KIND_LOCAL_MILLIS, KIND_LOCAL_MICROS, KIND_TIMESTAMP_NANOS, KIND_LOCAL_NANOS, KIND_UUID
    KIND_DECIMAL, KIND_CONSTANT

cdef enum:  # indices of avro_plan.FAULTS
    ENDS_EARLY, TOO_LONG_A_NUMBER, NO_INT, NO_BRANCH, NO_NULL, NO_SYMBOL, UNKNOWN_SYMBOL
    NEGATIVE_LENGTH, PAST_END, NO_TEXT, NO_BOOLEAN, NO_DATE, NO_TIME, NO_TIMESTAMP, NO_UUID
    NO_DECIMAL, LEFT_OVER, TOO_MUCH, NO_MEMORY

cdef struct Node:
    int32_t op
    int32_t column
    int32_t end
    int32_t union_
    int32_t null_ok
    int32_t arg

cdef struct Store:
    int32_t kind
    int32_t width  # bytes of a value; 0: none, -1: a bit, -2: bytes between offsets, -3: parts
    int32_t nullable
    int32_t part  # where its parts begin in the list of parts
    int32_t parts
    int64_t length
    int64_t room  # values that the buffers hold
    int64_t nulls
    uint8_t *valid
    uint8_t *data  # numbers, bits or offsets
    uint8_t *bytes
    int64_t used
    int64_t bytes_room
    uint64_t[4] limit  # 10 to the power of a decimal's precision


cdef class Shape:
    """The columns of a plan, without values: what each batch of them begins as."""

    cdef readonly object plan
    cdef Store *stores
    cdef int32_t *parts
    cdef int count
    cdef list details  # of each column what its Python objects are made with
    cdef list names  # of each record the places of its fields, by their names


cdef class Program:
    """A plan ready to run: its nodes as they lie in memory, and the shape of its columns."""

    cdef readonly Shape shape
    cdef Node *nodes
    cdef int count
    cdef int32_t *tables


cdef class Batch:
    """The columns that some records became. They end with the batch."""

    cdef readonly Shape shape
    cdef readonly Py_ssize_t rows
    cdef Store *stores
    cdef object __weakref__


cdef inline bint is_valid(const Store *store, int64_t row) noexcept nogil:
    return store.valid == NULL or (store.valid[row >> 3] >> (row & 7)) & 1


cdef inline int64_t data_bytes(const Store *s, int64_t room) noexcept nogil:
    """The bytes of numbers, bits or offsets of so many values."""
    if s.width == -1:
        return (room + 7) >> 3
    if s.width < -1:
        return (room + 1) * 4
    return room * s.width
