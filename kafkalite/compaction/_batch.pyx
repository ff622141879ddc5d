# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Batches and records under the native cleaner: which are plain, and what stays of them.     [P]

Bytes are read through raw pointers. `next_batch` believes a batch when its framing, offsets and CRC
are true, and leaves all that is not plain (see cleaning_pure) to Python. `parse_record` is the only
reader of records and never passes the end that it is given. What it cannot parse is left to the
strict decoder in Python, which says what is wrong.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._varint cimport varint_size, write_varint

from kafkalite.compaction.cleaning_pure import Stop, refuse_records
from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)

cdef extern from "_crc32c.h" nogil:
    void crc32c_begin() noexcept
    uint32_t crc32c(const uint8_t *at, size_t size) noexcept

cdef enum:
    GROWTH_MAX = 14  # of a record with another base timestamp: 10 bytes of delta, 4 of length
    RANGE = 3  # numbers in each of the aborted

cdef dict STOPS = {END_OF_RUN: Stop.END, OTHER_BATCH: Stop.OTHER, FULL_MAP: Stop.FULL}

crc32c_begin()


@cython.final
cdef class Held:

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef Run run_of(
    Held data, int64_t position, int64_t next_offset, int64_t end_offset, Held aborted
) except *:
    """The run from `position` on; `data` and `aborted` must outlive it."""
    assert 0 <= position <= data.view.len, position
    return Run(
        <const uint8_t *> data.view.buf, data.view.len, position, next_offset, end_offset,
        <const int64_t *> aborted.view.buf, aborted.view.len // (RANGE * sizeof(int64_t)),
    )


cdef Walked next_batch(Run *run, Batch *batch) noexcept nogil:
    """The batch that comes, if it is plain and true."""
    cdef const uint8_t *data = run.data + run.position
    cdef int64_t left = run.size - run.position
    if left < HEADER_BYTES:
        return END_OF_RUN
    cdef int64_t size = <int64_t> get_int32(data + LENGTH_AT) + OVERHEAD
    if data[MAGIC_AT] != 2 or size < HEADER_BYTES:
        return OTHER_BATCH
    if size > left:
        return END_OF_RUN
    batch.data = data
    batch.records = data + HEADER_BYTES
    batch.end = data + size
    batch.base_offset = get_int64(data)
    batch.last_offset = batch.base_offset + get_int32(data + DELTA_AT)
    batch.count = get_int32(data + COUNT_AT)
    batch.attributes = data[ATTRIBUTES_AT + 1]
    if batch.attributes & (CODEC | CONTROL):
        return OTHER_BATCH
    if not 0 <= batch.count <= (size - HEADER_BYTES) // RECORD_BYTES_MIN:
        return OTHER_BATCH
    if not run.next_offset <= batch.base_offset <= batch.last_offset < run.end_offset:
        return OTHER_BATCH
    if crc32c(data + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != <uint32_t> get_int32(data + CRC_AT):
        return OTHER_BATCH
    return OTHER_BATCH if is_aborted(run, batch) else ON


cdef bint is_aborted(const Run *run, const Batch *batch) noexcept nogil:
    """Whether the batch is of a transaction that was aborted."""
    if not batch.attributes & TRANSACTIONAL:
        return False
    cdef const int64_t *ranges = run.aborted
    cdef int64_t producer_id = get_int64(batch.data + PRODUCER_ID_AT)
    cdef int64_t low = 0, high = run.aborted_count, middle
    while low < high:  # to the first range that begins after the batch
        middle = (low + high) >> 1
        if ranges[RANGE * middle] < producer_id or (
            ranges[RANGE * middle] == producer_id
            and ranges[RANGE * middle + 1] <= batch.base_offset
        ):
            low = middle + 1
        else:
            high = middle
    ranges += RANGE * (low - 1)
    return low > 0 and ranges[0] == producer_id and batch.base_offset <= ranges[2]


cdef tuple stopped(const Run *run, Walked walked):
    """What a walk that has ended says: where, why, and up to which offset."""
    if walked == NO_MEMORY:
        raise MemoryError
    return run.position, STOPS[walked], run.next_offset


cdef int64_t kept_bytes_max(int64_t size, int64_t count) noexcept nogil:
    """Room for what stays of `size` bytes of records, `count` of them."""
    return size + count * GROWTH_MAX


cdef uint8_t *copy_kept(
    const uint8_t *at,
    const uint8_t *end,
    int64_t count,
    const uint8_t *mask,
    int64_t shift,
    uint8_t *output,
) noexcept nogil:
    """Copies the records that `mask` keeps, each `shift` added to its timestamp delta. The
    records were parsed before, and `output` has room."""
    cdef Record record
    cdef int64_t i, delta
    for i in range(count):
        if not parse_record(at, end, &record):
            return output  # never: they were parsed to make the mask
        if mask[i]:
            if shift:
                delta = record.timestamp_delta + shift
                output = write_varint(
                    output, 1 + varint_size(delta) + (record.end - record.offset_delta)
                )
                output[0] = record.attributes[0]
                output = write_varint(output + 1, delta)
                at = record.offset_delta
            memcpy(output, at, record.end - at)
            output += record.end - at
        at = record.end
    return output


cdef void seal(uint8_t *batch, int64_t size) noexcept nogil:
    """Writes length and CRC of a batch of which all else is there."""
    put_int32(batch + LENGTH_AT, <int> (size - OVERHEAD))
    put_int32(batch + CRC_AT, <int> crc32c(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT))


cdef int check_record_count(int64_t count, int64_t size) except -1:
    if not 0 <= count <= size // RECORD_BYTES_MIN:
        refuse_records(count, 0)
    return 0


def copy_records(body, bytes mask, int64_t shift):
    """The records that `mask` keeps, and the range of their timestamp deltas; see the twin."""
    cdef Held held = Held(body)
    cdef const uint8_t *start = <const uint8_t *> held.view.buf
    cdef const uint8_t *end = start + held.view.len
    cdef const uint8_t *at = start
    cdef const uint8_t *kept = <const uint8_t *> PyBytes_AS_STRING(mask)
    cdef int64_t count = len(mask), i, least = INT64_MAX, largest = INT64_MIN
    cdef Record record
    cdef bint parsed = True
    check_record_count(count, held.view.len)
    with nogil:
        for i in range(count):
            parsed = parse_record(at, end, &record)
            if not parsed:
                break
            if kept[i]:
                least = min(least, record.timestamp_delta)
                largest = max(largest, record.timestamp_delta)
            at = record.end
    if not parsed or at != end:
        refuse_records(count, 0)
    cdef uint8_t *output = <uint8_t *> malloc(kept_bytes_max(held.view.len, count) + 1)
    if output == NULL:
        raise MemoryError
    try:
        with nogil:
            at = copy_kept(start, end, count, kept, shift, output)
        return PyBytes_FromStringAndSize(<char *> output, at - output), least, largest
    finally:
        free(output)
