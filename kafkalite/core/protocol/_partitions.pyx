# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Which partition a record belongs to, and its columns taken apart by that: native twins.    [P]"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from kafkalite.core.protocol._int64s cimport Block, Int64s, int64s_at, new_block, new_int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._objects cimport (
    Py_INCREF,
    Py_None,
    PyBytes_Check,
    PyList_New,
    PyList_SET_ITEM,
    PyObject,
    PySequence_Fast,
    PySequence_Fast_GET_ITEM,
    PySequence_Fast_GET_SIZE,
    PySequence_Fast_ITEMS,
    bytes_data,
    bytes_size,
    new_int,
    number_at,
)
from kafkalite.core.protocol._spans cimport Spans, all_at

from kafkalite.core.protocol.records_pure import (
    INTERFACE,
    check_partition_count,
    check_split_lengths,
    int64,
    refuse_blob,
    refuse_hash,
    refuse_partition,
)
from kafkalite.core.types import Columns

check_interface(INTERFACE)


cdef uint32_t hash_bytes(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t h = 0x9747B28CU ^ <uint32_t> length
    cdef uint32_t k
    while length >= 4:
        k = (
            data[0] | <uint32_t> data[1] << 8 | <uint32_t> data[2] << 16 | <uint32_t> data[3] << 24
        )
        k *= multiplier
        k ^= k >> 24
        k *= multiplier
        h *= multiplier
        h ^= k
        data += 4
        length -= 4
    if length >= 3:
        h ^= <uint32_t> data[2] << 16
    if length >= 2:
        h ^= <uint32_t> data[1] << 8
    if length >= 1:
        h ^= data[0]
        h *= multiplier
    h ^= h >> 13
    h *= multiplier
    return h ^ h >> 15


def murmur2(key):
    """Java clients' hash of a key, as an unsigned 32-bit number."""
    if not isinstance(key, bytes):
        refuse_hash(key)
    return hash_bytes(<const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


def partition_column(keys, partition_count):
    """The partition of each key, -1 for a null one: a form where the keys are one."""
    check_partition_count(partition_count)
    cdef uint32_t count = partition_count
    if type(keys) is Spans:
        return partitions_of_spans(keys, count)
    cdef object sequence = PySequence_Fast(keys, "keys are no sequence")
    cdef Py_ssize_t length = PySequence_Fast_GET_SIZE(<PyObject *> sequence)
    cdef list column = PyList_New(length)
    cdef PyObject *key
    cdef uint32_t h
    cdef Py_ssize_t i
    cdef int64_t partition
    if PySequence_Fast_GET_SIZE(<PyObject *> sequence) != length:
        raise ValueError("keys changed while they were hashed")
    for i in range(length):
        key = PySequence_Fast_GET_ITEM(<PyObject *> sequence, i)
        if key == Py_None:
            partition = -1
        elif PyBytes_Check(key):
            h = hash_bytes(<const uint8_t *> bytes_data(key), bytes_size(key))
            partition = (h & INT32_MAX) % count
        else:
            return refuse_blob("key", i, <object> key)
        PyList_SET_ITEM(<PyObject *> column, i, new_int(partition))
    return column


cdef Int64s partitions_of_spans(Spans keys, uint32_t count):
    cdef Block block = new_block(keys.size)
    cdef Py_ssize_t i
    cdef uint32_t h
    for i in range(keys.size):
        block.numbers[i] = -1
        if keys.first[i] >= 0:
            h = hash_bytes(
                <const uint8_t *> keys.bytes + keys.first[i], keys.last[i] - keys.first[i]
            )
            block.numbers[i] = (h & INT32_MAX) % count
    return new_int64s(block, block.numbers, keys.size)


cdef class _Split:
    """Where each record goes, and how many go to each partition."""

    cdef int32_t *partitions
    cdef Py_ssize_t *counts
    cdef Py_ssize_t *filled
    cdef PyObject **targets
    cdef int64_t *indexes  # those of the first partition, then of the next; made for a form

    def __cinit__(self, Py_ssize_t records, Py_ssize_t partition_count):
        self.partitions = <int32_t *> malloc((records + 1) * sizeof(int32_t))
        self.counts = <Py_ssize_t *> calloc(partition_count, sizeof(Py_ssize_t))
        self.filled = <Py_ssize_t *> malloc(partition_count * sizeof(Py_ssize_t))
        self.targets = <PyObject **> malloc(partition_count * sizeof(PyObject *))
        if not (self.partitions and self.counts and self.filled and self.targets):
            raise MemoryError

    def __dealloc__(self):
        free(self.partitions)
        free(self.counts)
        free(self.filled)
        free(self.targets)
        free(self.indexes)

    cdef int index(self, Py_ssize_t records, Py_ssize_t count) except -1:
        """Fills `indexes`, once."""
        cdef Py_ssize_t i, at = 0
        if self.indexes != NULL:
            return 0
        self.indexes = <int64_t *> malloc((records + 1) * sizeof(int64_t))
        if self.indexes == NULL:
            raise MemoryError
        for i in range(count):
            self.filled[i] = at
            at += self.counts[i]
        for i in range(records):
            self.indexes[self.filled[self.partitions[i]]] = i
            self.filled[self.partitions[i]] += 1
        return 0


def split(columns, partitions, partition_count):
    """The records of each partition, in order; see the twin."""
    check_partition_count(partition_count)
    check_split_lengths(columns, partitions)
    cdef Py_ssize_t records = len(partitions)
    cdef Py_ssize_t count = partition_count
    cdef _Split plan = _Split(records, count)
    cdef const int64_t *numbers = NULL
    cdef object sequence = partitions
    cdef Py_ssize_t i
    cdef int64_t partition
    if type(partitions) is Int64s:
        numbers = (<Int64s> partitions).numbers
    else:
        sequence = PySequence_Fast(partitions, "partitions are no sequence")
    for i in range(records):
        if numbers != NULL:
            partition = numbers[i]
        else:
            partition = number_at(sequence, i, "partition", int64)
        if not 0 <= partition < count:
            refuse_partition(i, partition, partition_count)
        plan.partitions[i] = <int32_t> partition
        plan.counts[partition] += 1
    keys = split_column(columns.keys, plan, records, count)
    values = split_column(columns.values, plan, records, count)
    timestamps = split_column(columns.timestamps, plan, records, count)
    offsets = headers = [None] * count
    if columns.offsets is not None:
        offsets = split_column(columns.offsets, plan, records, count)
    if columns.headers is not None:
        headers = split_column(columns.headers, plan, records, count)
    return [Columns(*part) for part in zip(keys, values, timestamps, offsets, headers)]


cdef list split_column(object column, _Split plan, Py_ssize_t records, Py_ssize_t count):
    """One column's entries by partition. All lists are made before the first item is taken."""
    if type(column) is Spans or type(column) is Int64s:
        return split_form(column, plan, records, count)
    cdef object sequence = PySequence_Fast(column, "a column is no sequence")
    cdef list parts = [PyList_New(plan.counts[j]) for j in range(count)]
    cdef PyObject **items
    cdef PyObject *item
    cdef int32_t partition
    cdef Py_ssize_t i
    if PySequence_Fast_GET_SIZE(<PyObject *> sequence) != records:
        raise ValueError("columns changed while they were split")
    for i in range(count):
        plan.targets[i] = <PyObject *> parts[i]
        plan.filled[i] = 0
    items = PySequence_Fast_ITEMS(<PyObject *> sequence)
    for i in range(records):
        partition = plan.partitions[i]
        item = items[i]
        Py_INCREF(item)
        PyList_SET_ITEM(plan.targets[partition], plan.filled[partition], item)
        plan.filled[partition] += 1
    return parts


cdef list split_form(object column, _Split plan, Py_ssize_t records, Py_ssize_t count):
    """A form's entries by partition, as forms."""
    cdef list parts = []
    cdef Py_ssize_t i, at = 0
    plan.index(records, count)
    for i in range(count):
        if type(column) is Spans:
            parts.append(all_at(column, plan.indexes + at, plan.counts[i]))
        else:
            parts.append(int64s_at(column, plan.indexes + at, plan.counts[i]))
        at += plan.counts[i]
    return parts
