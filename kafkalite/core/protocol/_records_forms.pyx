# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Reading records as forms: columns without an object for a record.                         [P]

Fails  as `decode_records` does, of which this is the twin.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t

from kafkalite.core.protocol._int64s cimport Block, new_block, new_int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._reading cimport (
    ALONE_BYTES,
    KEY_LENGTH,
    OFFSET,
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
from kafkalite.core.protocol._records_read cimport decode_headers, raise_fault
from kafkalite.core.protocol._spans cimport Held, hold, new_spans
from kafkalite.core.protocol._varint cimport unlikely

from kafkalite.core.protocol.records_pure import INTERFACE, check_count, check_trailing
from kafkalite.core.types import Columns

check_interface(INTERFACE)


cdef struct Places:
    int64_t *numbers  # six a record, column by column: see `column_of`
    Py_ssize_t count
    int64_t shift  # of the records' first byte in the buffer that is held
    int64_t base_offset
    int64_t base_timestamp
    bint has_headers
    bint is_dense  # each offset is one more than the one before it


cdef enum:
    KEY_FIRST, KEY_LAST, VALUE_FIRST, VALUE_LAST, TIMESTAMPS, OFFSETS, COLUMN_COUNT


cdef inline int64_t *column_of(Places *places, int column) noexcept nogil:
    return places.numbers + column * places.count


cdef inline void place_blob(
    Reader *reader, Places *places, int column, Py_ssize_t i, Blob *blob
) noexcept nogil:
    cdef int64_t first = -1, last = -1
    if blob.size >= 0:
        first = <const uint8_t *> blob.data - reader.start + places.shift
        last = first + blob.size
    column_of(places, column)[i] = first
    column_of(places, column + 1)[i] = last


cdef Py_ssize_t place_loop(Reader *reader, Places *places) noexcept nogil:
    """Where everything is; the record that cannot be read, or how many there are."""
    cdef const uint8_t *end = reader.end
    cdef const uint8_t *before
    cdef int64_t timestamp_delta, delta, first = 0
    cdef int64_t *timestamps = column_of(places, TIMESTAMPS)
    cdef int64_t *offsets = column_of(places, OFFSETS)
    cdef Blob key, value
    cdef Py_ssize_t i
    places.has_headers, places.is_dense = False, True
    for i in range(places.count):
        if begin_record(reader, &timestamp_delta, &delta) < 0:
            return i
        if unlikely(record_add(places.base_timestamp, timestamp_delta, &timestamps[i])):
            note(reader, TIMESTAMP, 0, timestamp_delta, places.base_timestamp)
            return i
        if unlikely(record_add(places.base_offset, delta, &offsets[i])):
            note(reader, OFFSET, 0, delta, places.base_offset)
            return i
        if i == 0:
            first = delta
        elif unlikely(delta != first + i):
            places.is_dense = False
        if (
            read_blob(reader, KEY_LENGTH, -1, &key) < 0
            or read_blob(reader, VALUE_LENGTH, -1, &value) < 0
        ):
            return i
        place_blob(reader, places, KEY_FIRST, i, &key)
        place_blob(reader, places, VALUE_FIRST, i, &value)
        before = reader.position
        if skim_headers(reader) < 0:
            return i
        if unlikely(reader.position != before + 1):
            places.has_headers = True
        if end_record(reader, end) < 0:
            return i
    return places.count


def decode_forms(
    data, int64_t record_count, int64_t base_offset, int64_t base_timestamp, log_append_time
):
    """The records as `decode_records` gives them, with forms for columns.

    Keys and values look at the buffer that `data` is a part of and keep it alive.
    """
    cdef Py_ssize_t shift, count = record_count, i, read
    cdef Py_buffer view
    cdef Reader reader
    cdef Places places
    cdef Held held = hold(data, &shift)
    cdef Block block
    cdef int64_t stamp
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= record_count <= view.len // 7:
            check_count(record_count, view.len)
        block = new_block(COLUMN_COUNT * count)
        places = Places(block.numbers, count, shift, base_offset, base_timestamp, False, True)
        reader = open_reader(&view)
        if view.len < ALONE_BYTES:
            read = place_loop(&reader, &places)
        else:
            with nogil:  # other threads run meanwhile
                read = place_loop(&reader, &places)
        if read < count:
            return raise_fault(&reader, read)
        if reader.position != reader.end:
            check_trailing(count, reader.end - reader.position)
        headers = headers_of(&view, count) if places.has_headers else None
    finally:
        PyBuffer_Release(&view)
    if log_append_time is not None:
        stamp = log_append_time
        for i in range(count):
            column_of(&places, TIMESTAMPS)[i] = stamp
    offsets = new_int64s(block, column_of(&places, OFFSETS), count)
    if places.is_dense:
        first = offsets[0] if count else base_offset
        offsets = range(first, first + count)
    return Columns(
        new_spans(
            held, block, column_of(&places, KEY_FIRST), column_of(&places, KEY_LAST), count
        ),
        new_spans(
            held, block, column_of(&places, VALUE_FIRST), column_of(&places, VALUE_LAST), count
        ),
        new_int64s(block, column_of(&places, TIMESTAMPS), count),
        offsets,
        headers,
    )


cdef list headers_of(Py_buffer *view, Py_ssize_t count):
    """The headers of records that were read before, so that nothing is wrong with them."""
    cdef Reader reader = open_reader(view)
    cdef const uint8_t *end = reader.end
    cdef int64_t timestamp_delta, delta, header_count
    cdef list headers = [()] * count
    cdef Blob blob
    cdef Py_ssize_t i
    for i in range(count):
        if (
            begin_record(&reader, &timestamp_delta, &delta) < 0
            or read_blob(&reader, KEY_LENGTH, -1, &blob) < 0
            or read_blob(&reader, VALUE_LENGTH, -1, &blob) < 0
            or read_header_count(&reader, &header_count) < 0
        ):
            return raise_fault(&reader, i)
        if header_count:
            headers[i] = decode_headers(&reader, header_count, i)
        if end_record(&reader, end) < 0:
            return raise_fault(&reader, i)
    return headers
