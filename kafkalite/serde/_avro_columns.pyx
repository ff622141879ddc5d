# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""A batch of columns: what Avro's bytes become, in buffers as Arrow has them.                [P]

Owns   the buffers. Whoever lends them out keeps the batch.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING

from kafkalite.serde._avro_columns cimport *

import sys
from decimal import Context

from kafkalite.serde.avro_plan import FAULTS, INTERFACE, NODE_INTS, Kind, Op, Union

if INTERFACE != AVRO_INTERFACE_BUILT:
    raise ImportError(f"built for interface {AVRO_INTERFACE_BUILT}, the sources have {INTERFACE}")
if sys.byteorder != "little":
    raise ImportError("Avro's floats are read as they lie, little end first")
assert (len(FAULTS), len(Op), len(Union), len(Kind)) == (
    NO_MEMORY + 1, OP_SKIP_UNION + 1, UNION_NULL_SECOND + 1, KIND_CONSTANT + 1
)


cdef int widths(int kind, int size) noexcept:
    if kind == KIND_BOOLEAN:
        return -1
    if kind in (KIND_BYTES, KIND_STRING):
        return -2
    if kind in (KIND_ARRAY, KIND_MAP):
        return -3
    if kind in (KIND_NULL, KIND_RECORD, KIND_CONSTANT):
        return 0
    if kind in (KIND_INT, KIND_FLOAT, KIND_ENUM, KIND_DATE, KIND_TIME_MILLIS):
        return 4
    if kind == KIND_UUID:
        return 16
    if kind in (KIND_FIXED, KIND_DECIMAL):
        return size
    return 8


cdef object detail(column):
    """What the objects of a column are made with: symbols, a context and a scale, a default."""
    if column.kind == KIND_ENUM:
        return column.symbols
    if column.kind == KIND_DECIMAL:
        return Context(prec=column.precision), -column.scale
    if column.kind == KIND_CONSTANT:
        return column.default
    return None


cdef class Shape:
    """The columns of a plan, without values: what each batch of them begins as."""

    def __cinit__(self, plan):
        cdef int i, j, part = 0
        columns = plan.columns
        self.plan, self.count = plan, len(columns)
        self.details = [detail(column) for column in columns]
        self.names = [
            {columns[j].name: i for i, j in enumerate(column.parts)} for column in columns
        ]
        self.stores = <Store *> calloc(self.count, sizeof(Store))
        self.parts = <int32_t *> calloc(self.count + 1, sizeof(int32_t))
        if self.stores == NULL or self.parts == NULL:
            raise MemoryError
        for i in range(self.count):
            column = columns[i]
            self.stores[i].kind = column.kind
            self.stores[i].width = widths(column.kind, column.size)
            self.stores[i].nullable = column.nullable
            self.stores[i].part = part
            self.stores[i].parts = len(column.parts)
            for j in column.parts:
                assert 0 < j < self.count and part < self.count
                self.parts[part] = j
                part += 1
            if column.kind == KIND_DECIMAL:
                limit = (10 ** column.precision).to_bytes(32, "little")
                memcpy(self.stores[i].limit, PyBytes_AS_STRING(limit), 32)

    def __dealloc__(self):
        free(self.stores)
        free(self.parts)


cdef class Program:
    """A plan ready to run: its nodes as they lie in memory, and the shape of its columns."""

    def __cinit__(self, plan):
        nodes, tables = plan.nodes.tobytes(), plan.tables.tobytes()
        assert NODE_INTS * 4 == sizeof(Node) and len(nodes) == len(plan.paths) * sizeof(Node)
        self.shape, self.count = Shape(plan), len(plan.paths)
        self.nodes = <Node *> malloc(len(nodes))
        self.tables = <int32_t *> malloc(len(tables) + 1)
        if self.nodes == NULL or self.tables == NULL:
            raise MemoryError
        memcpy(self.nodes, PyBytes_AS_STRING(nodes), len(nodes))
        memcpy(self.tables, PyBytes_AS_STRING(tables), len(tables))

    def __dealloc__(self):
        free(self.nodes)
        free(self.tables)


@cython.no_gc_clear  # a batch in a circle of garbage keeps its shape, which says what to free
cdef class Batch:
    """The columns of a plan, empty at first; `_avro_read` fills them."""

    def __cinit__(self, Shape shape, Py_ssize_t rows):
        self.shape, self.rows = shape, rows
        self.stores = <Store *> calloc(shape.count, sizeof(Store))
        if self.stores == NULL:
            raise MemoryError
        memcpy(self.stores, shape.stores, shape.count * sizeof(Store))

    def __dealloc__(self):
        cdef int i
        if self.stores != NULL:
            for i in range(self.shape.count):
                free(self.stores[i].valid)
                free(self.stores[i].data)
                free(self.stores[i].bytes)
        free(self.stores)

    @property
    def plan(self):
        """The plan whose columns they are."""
        return self.shape.plan

    def length(self, int column):
        """How many values a column has."""
        assert 0 <= column < self.shape.count
        return self.stores[column].length

    def null_count(self, int column):
        """How many values of a column are null."""
        assert 0 <= column < self.shape.count
        return self.stores[column].nulls

    def buffers(self, int column):
        """Address and size of a column's validity, of its numbers or offsets, of its bytes; None
        for what it does not have. They are the batch's, and go with it."""
        assert 0 <= column < self.shape.count
        cdef Store *s = &self.stores[column]
        cdef int64_t size = data_bytes(s, s.length)
        bits = (s.length + 7) >> 3
        return [
            None if s.valid == NULL or s.nulls == 0 else (<size_t> s.valid, bits),
            None if s.data == NULL else (<size_t> s.data, size),
            None if s.bytes == NULL else (<size_t> s.bytes, s.used),
        ]
