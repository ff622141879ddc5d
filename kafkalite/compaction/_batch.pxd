# cython: language_level=3
"""Batches and records as the cleaner's native modules see them; _batch.pyx says more.         [P]"""

from libc.stdint cimport int64_t, uint8_t

from kafkalite.core.protocol._varint cimport read_varint, unlikely

cdef extern from "_bytes.h" nogil:
    int get_int32(const uint8_t *at) noexcept
    int64_t get_int64(const uint8_t *at) noexcept
    void put_int32(uint8_t *at, int number) noexcept
    void put_int64(uint8_t *at, int64_t number) noexcept

cdef enum:
    HEADER_BYTES = 61
    LENGTH_AT = 8
    OVERHEAD = 12  # base offset and length, which the length does not count
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    COUNT_AT = 57
    RECORD_BYTES_MIN = 7

cdef enum:
    CODEC = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40

cdef enum Walked:  # by a loop over a run; all but the first end it
    ON, END_OF_RUN, OTHER_BATCH, FULL_MAP, NO_MEMORY


cdef class Held:
    """The bytes of a Python object, which stays as it is as long as this lives."""

    cdef Py_buffer view


cdef struct Run:
    const uint8_t *data
    int64_t size
    int64_t position  # of the batch that comes
    int64_t next_offset  # its offsets and those of all after it are from here on
    int64_t end_offset  # and below this
    const int64_t *aborted  # ascending ranges: producer id, first and last offset
    int64_t aborted_count


cdef struct Batch:
    const uint8_t *data
    const uint8_t *records
    const uint8_t *end
    int64_t base_offset
    int64_t last_offset
    int64_t count  # of the records; they have room for so many
    int attributes  # the lower byte


cdef struct Record:
    const uint8_t *attributes  # after its length
    const uint8_t *offset_delta  # after its timestamp delta
    const uint8_t *end
    const uint8_t *key
    int64_t timestamp_delta
    int64_t delta
    int64_t key_size  # -1: null
    int64_t value_size  # -1: null


cdef Run run_of(
    Held data, int64_t position, int64_t next_offset, int64_t end_offset, Held aborted
) except *
cdef Walked next_batch(Run *run, Batch *batch) noexcept nogil
cdef tuple stopped(const Run *run, Walked walked)
cdef uint8_t *copy_kept(
    const uint8_t *at,
    const uint8_t *end,
    int64_t count,
    const uint8_t *mask,
    int64_t shift,
    uint8_t *output,
) noexcept nogil
cdef int64_t kept_bytes_max(int64_t size, int64_t count) noexcept nogil
cdef void seal(uint8_t *batch, int64_t size) noexcept nogil
cdef int check_record_count(int64_t count, int64_t size) except -1


cdef inline void pass_over(Run *run, const Batch *batch) noexcept nogil:
    """The run goes on after the batch."""
    run.position += batch.end - batch.data
    run.next_offset = batch.last_offset + 1


cdef inline bint parse_record(const uint8_t *at, const uint8_t *end, Record *record) noexcept nogil:
    """The record at `at`, its headers unread; false where it is not one."""
    cdef int64_t length
    at = read_varint(at, end, 32, &length)
    if unlikely(at == NULL or length < 1 or length > end - at):
        return False
    end = record.end = at + length
    record.attributes = at
    at = read_varint(at + 1, end, 64, &record.timestamp_delta)
    if unlikely(at == NULL):
        return False
    record.offset_delta = at
    at = read_varint(at, end, 32, &record.delta)
    if unlikely(at == NULL or record.delta < 0):
        return False
    at = read_varint(at, end, 32, &record.key_size)
    if unlikely(at == NULL or record.key_size < -1 or record.key_size > end - at):
        return False
    record.key = at
    if record.key_size > 0:
        at += record.key_size
    at = read_varint(at, end, 32, &record.value_size)
    return at != NULL and -1 <= record.value_size <= end - at
