# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Reading records: the native twins of skim, check and decode, and bytes lent without a copy.  [P]

A failed read (`_reading.pxd`) leaves its reason in the `Reader`; `raise_fault` makes it the error
that the twin raises.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._lending cimport lend
from kafkalite.core.protocol._objects cimport (
    Py_INCREF,
    Py_None,
    PyList_New,
    PyList_SET_ITEM,
    PyObject,
    PyUnicode_DecodeUTF8,
    new_bytes,
    new_int,
)
from kafkalite.core.protocol._reading cimport (
    ALONE_BYTES,
    HEADER_KEY_LENGTH,
    HEADER_VALUE_LENGTH,
    KEY_LENGTH,
    NULL_KEY,
    FIRST_DELTA,
    OFFSET,
    ORDER,
    TIMESTAMP,
    VALUE_LENGTH,
    Blob,
    Reader,
    begin_record,
    end_record,
    note,
    open_reader,
    read_blob,
    read_header_count,
    record_add,
    skim_headers,
)
from kafkalite.core.protocol._varint cimport unlikely

from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    FAULTS,
    HEADER_BYTES,
    INTERFACE,
    check_count,
    check_last_delta,
    check_trailing,
    fail,
)
from kafkalite.core.types import Columns

check_interface(INTERFACE)

cdef enum:
    HEADER_SIZE = 61
    CRC_AT = 17
    COVERED_FROM = 21
    NO_TIMESTAMP = -1

assert (HEADER_SIZE, CRC_AT, COVERED_FROM) == (HEADER_BYTES, CRC_POSITION, ATTRIBUTES_POSITION)
assert len(FAULTS) == OFFSET + 1


@cython.final
@cython.no_gc
cdef class Window:
    """Lends the bytes of `data` from `start` on, read-only and without a release.

    Some C functions take any such object but no memoryview, which must be told when they are done.
    """

    cdef Py_buffer view
    cdef Py_ssize_t start
    cdef Py_ssize_t size

    def __cinit__(self, data, Py_ssize_t start=0):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        if not 0 <= start <= self.view.len:
            raise ValueError(f"window from byte {start} of {self.view.len}")
        self.start = start
        self.size = self.view.len - start

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        lend(buffer, flags, self, <char *> self.view.buf + self.start, &self.size)


# ---- reading ---------------------------------------------------------------------------------


cdef object raise_fault(Reader *reader, Py_ssize_t record):
    fail(
        FAULTS[reader.fault],
        record,
        reader.position - reader.start,
        field=reader.field,
        number=reader.number,
        limit=reader.limit,
    )


# ---- skim ------------------------------------------------------------------------------------


cdef struct Skim:
    int64_t records  # how many were read
    int64_t last_delta  # offset delta of the last one
    int64_t oldest  # least and greatest timestamp delta
    int64_t newest


def skim_records(data, int64_t record_count, int64_t last_offset_delta, bint keys_required):
    """Checks that the records are what their batch says; see the twin."""
    cdef Py_buffer view
    cdef Reader reader
    cdef Skim skim
    cdef int fault
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= record_count <= view.len // 7:
            check_count(record_count, view.len)
        reader = open_reader(&view)
        if view.len < ALONE_BYTES:
            fault = skim_loop(&reader, record_count, keys_required, &skim)
        else:
            with nogil:  # other threads run meanwhile
                fault = skim_loop(&reader, record_count, keys_required, &skim)
        if fault < 0:
            return raise_fault(&reader, skim.records)
        if reader.position != reader.end:
            check_trailing(record_count, reader.end - reader.position)
        if skim.last_delta != last_offset_delta:
            check_last_delta(skim.last_delta, last_offset_delta)
        return (skim.oldest, skim.newest)
    finally:
        PyBuffer_Release(&view)


cdef int skim_loop(
    Reader *reader, int64_t record_count, bint keys_required, Skim *skim
) noexcept nogil:
    cdef const uint8_t *end = reader.end
    cdef int64_t timestamp_delta, delta
    cdef Blob blob
    skim.records = 0
    skim.last_delta = -1
    skim.oldest = skim.newest = 0
    while skim.records < record_count:
        if begin_record(reader, &timestamp_delta, &delta) < 0:
            return -1
        if unlikely(delta <= skim.last_delta or (skim.records == 0 and delta != 0)):
            if skim.records == 0:
                return note(reader, FIRST_DELTA, 0, delta, 0)
            return note(reader, ORDER, 0, delta, skim.last_delta + 1)
        skim.last_delta = delta
        if skim.records == 0:
            skim.oldest = skim.newest = timestamp_delta
        elif timestamp_delta > skim.newest:
            skim.newest = timestamp_delta
        elif timestamp_delta < skim.oldest:
            skim.oldest = timestamp_delta
        if read_blob(reader, KEY_LENGTH, -1, &blob) < 0:
            return -1
        if unlikely(keys_required and blob.size < 0):
            return note(reader, NULL_KEY, 0, 0, 0)
        if read_blob(reader, VALUE_LENGTH, -1, &blob) < 0:
            return -1
        if skim_headers(reader) < 0 or end_record(reader, end) < 0:
            return -1
        skim.records += 1
    return 0


cdef inline int64_t number_of(const uint8_t *at, int size) noexcept nogil:
    """A big-endian number with its sign."""
    cdef uint64_t number = 0 - <uint64_t> (at[0] >> 7)
    cdef int i
    for i in range(size):
        number = number << 8 | at[i]
    return <int64_t> number


def check_batch(data, bint keys_required, checksum, header_type):
    """What one glance tells of a batch as producers send it; see the twin."""
    cdef Py_buffer view
    cdef Reader reader
    cdef Skim skim
    cdef const uint8_t *start
    cdef int64_t attributes, codec, last_offset_delta, producer_id, base_sequence, count, crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < HEADER_SIZE:
            return None
        reader = open_reader(&view)
        start = reader.start
        attributes = number_of(start + COVERED_FROM, 2)
        last_offset_delta = number_of(start + 23, 4)
        producer_id = number_of(start + 43, 8)
        base_sequence = number_of(start + 53, 4)
        count = number_of(start + 57, 4)
        codec = attributes & 7
        if (
            start[16] != 2
            or number_of(start, 8) != 0
            or number_of(start + 8, 4) != view.len - 12
            or attributes & 0x20
            or codec > 4
            or count <= 0
            or count != last_offset_delta + 1
            or (producer_id >= 0 and base_sequence < 0)
        ):
            return None
        skim.oldest = skim.newest = 0
        if codec == 0:
            reader.position += HEADER_SIZE
            if (
                count > view.len // 7
                or skim_loop(&reader, count, keys_required, &skim) < 0
                or reader.position != reader.end
                or skim.last_delta != last_offset_delta
            ):
                return None
        crc = number_of(start + CRC_AT, 4) & 0xFFFFFFFF
        if <int64_t> checksum(Window(data, COVERED_FROM)) != crc:
            return None
        header = tuple.__new__(header_type, (
            0,
            number_of(start + 8, 4),
            number_of(start + 12, 4),
            2,
            crc,
            attributes,
            last_offset_delta,
            number_of(start + 27, 8),
            number_of(start + 35, 8),
            producer_id,
            number_of(start + 51, 2),
            base_sequence,
            count,
        ))
        return header, skim.oldest, skim.newest
    finally:
        PyBuffer_Release(&view)


# ---- search ----------------------------------------------------------------------------------


cdef struct Demands:
    int64_t base_timestamp
    bint keys_required  # and any timestamp will do
    int64_t earliest
    int64_t latest


def unfit_records(
    data, int64_t record_count, int64_t base_timestamp, times, Py_ssize_t most
):
    """The first records that are not as demanded; see the twin."""
    cdef Py_buffer view
    cdef Reader reader
    cdef Demands demands = Demands(base_timestamp, times is None, 0, 0)
    cdef int64_t record = 0, timestamp = 0
    cdef int found
    cdef list unfit = []
    if times is not None:
        demands.earliest, demands.latest = times
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= record_count <= view.len // 7:
            check_count(record_count, view.len)
        reader = open_reader(&view)
        while len(unfit) < most:
            with nogil:
                found = next_unfit(&reader, &demands, record_count, &record, &timestamp)
            if found < 0:
                return raise_fault(&reader, record)
            if not found:
                break
            unfit.append((record - 1, timestamp))
        return unfit
    finally:
        PyBuffer_Release(&view)


cdef int next_unfit(
    Reader *reader, Demands *demands, int64_t record_count, int64_t *record, int64_t *timestamp
) noexcept nogil:
    """Reads from `record` on to behind the next one that is unfit: 1; 0 behind the last record."""
    cdef const uint8_t *end = reader.end
    cdef int64_t timestamp_delta, delta
    cdef Blob key, value
    while record[0] < record_count:
        if begin_record(reader, &timestamp_delta, &delta) < 0:
            return -1
        if unlikely(record_add(demands.base_timestamp, timestamp_delta, timestamp)):
            return note(reader, TIMESTAMP, 0, timestamp_delta, demands.base_timestamp)
        if (
            read_blob(reader, KEY_LENGTH, -1, &key) < 0
            or read_blob(reader, VALUE_LENGTH, -1, &value) < 0
            or skim_headers(reader) < 0
            or end_record(reader, end) < 0
        ):
            return -1
        record[0] += 1
        if demands.keys_required:
            if key.size < 0:
                return 1
        elif timestamp[0] != NO_TIMESTAMP and not (
            demands.earliest <= timestamp[0] <= demands.latest
        ):
            return 1
    return 0


# ---- decode ----------------------------------------------------------------------------------


def decode_records(
    data, int64_t record_count, int64_t base_offset, int64_t base_timestamp, log_append_time
):
    """The records as columns; see the twin."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= record_count <= view.len // 7:
            check_count(record_count, view.len)
        return decode_view(&view, record_count, base_offset, base_timestamp, log_append_time)
    finally:
        PyBuffer_Release(&view)


cdef object decode_view(
    Py_buffer *view,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    object log_append_time,
):
    cdef Reader reader = open_reader(view)
    cdef const uint8_t *end = reader.end
    cdef list keys = PyList_New(count)
    cdef list values = PyList_New(count)
    cdef list timestamps = None
    cdef list offsets = None  # made when a delta breaks the run
    cdef list headers = None  # made when a record has some
    cdef Py_ssize_t i
    cdef int64_t timestamp_delta, delta, offset, timestamp
    cdef int64_t first = 0, last_timestamp = 0
    cdef int64_t header_count
    cdef PyObject *last_int = NULL  # borrowed from `timestamps`: equal neighbours share it
    cdef Blob key, value
    if log_append_time is None:
        timestamps = PyList_New(count)
    for i in range(count):
        if begin_record(&reader, &timestamp_delta, &delta) < 0:
            return raise_fault(&reader, i)
        if unlikely(record_add(base_timestamp, timestamp_delta, &timestamp)):
            note(&reader, TIMESTAMP, 0, timestamp_delta, base_timestamp)
            return raise_fault(&reader, i)
        if unlikely(record_add(base_offset, delta, &offset)):
            note(&reader, OFFSET, 0, delta, base_offset)
            return raise_fault(&reader, i)
        if i == 0:
            first = delta
        if offsets is not None:
            offsets.append(offset)
        elif unlikely(delta != first + i):
            offsets = list(range(base_offset + first, base_offset + first + i))
            offsets.append(offset)
        if (
            read_blob(&reader, KEY_LENGTH, -1, &key) < 0
            or read_blob(&reader, VALUE_LENGTH, -1, &value) < 0
            or read_header_count(&reader, &header_count) < 0
        ):
            return raise_fault(&reader, i)
        set_blob(keys, i, &key)
        set_blob(values, i, &value)
        if timestamps is not None:
            if last_int == NULL or timestamp != last_timestamp:
                last_int = new_int(timestamp)
                last_timestamp = timestamp
            else:
                Py_INCREF(last_int)
            PyList_SET_ITEM(<PyObject *> timestamps, i, last_int)
        if unlikely(header_count > 0):
            if headers is None:
                headers = [()] * count
            headers[i] = decode_headers(&reader, header_count, i)
        if end_record(&reader, end) < 0:
            return raise_fault(&reader, i)
    if reader.position != end:
        check_trailing(count, end - reader.position)
    return Columns(
        keys,
        values,
        [log_append_time] * count if timestamps is None else timestamps,
        range(base_offset + first, base_offset + first + count) if offsets is None else offsets,
        headers,
    )


cdef inline int set_blob(list column, Py_ssize_t i, Blob *blob) except -1:
    cdef PyObject *item
    if blob.size < 0:
        item = Py_None
        Py_INCREF(item)
    else:
        item = new_bytes(blob.data, blob.size)
    PyList_SET_ITEM(<PyObject *> column, i, item)
    return 0


cdef tuple decode_headers(Reader *reader, int64_t count, Py_ssize_t record):
    cdef list row = []
    cdef Blob name, value
    while count > 0:
        if (
            read_blob(reader, HEADER_KEY_LENGTH, 0, &name) < 0
            or read_blob(reader, HEADER_VALUE_LENGTH, -1, &value) < 0
        ):
            return raise_fault(reader, record)
        row.append(
            (
                PyUnicode_DecodeUTF8(name.data, name.size, "replace"),
                None if value.size < 0 else PyBytes_FromStringAndSize(value.data, value.size),
            )
        )
        count -= 1
    return tuple(row)
