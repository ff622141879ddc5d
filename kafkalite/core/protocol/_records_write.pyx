# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Writing records: the native twin of encode.                                               [P]

All that can fail is looked at before the first byte is written: `take_numbers` and `measure` refuse
what cannot be encoded, `write` fills the bytes that they counted.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkalite.core.protocol._int64s cimport Int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._objects cimport (
    Py_None,
    PyBytes_Check,
    PyList_Check,
    PyObject,
    PySequence_Fast,
    PySequence_Fast_GET_ITEM,
    PySequence_Fast_GET_SIZE,
    PySequence_Fast_ITEMS,
    PyTuple_Check,
    PyUnicode_AsUTF8AndSize,
    PyUnicode_Check,
    bytes_data,
    bytes_size,
    number_at,
)
from kafkalite.core.protocol._spans cimport Spans
from kafkalite.core.protocol._varint cimport unlikely, varint_size, write_varint

from kafkalite.core.protocol._records_read import Window
from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_BYTES,
    INTERFACE,
    check_lengths,
    check_offsets,
    check_size,
    int64,
    pack_header,
    refuse_blob,
    refuse_headers,
    refuse_timestamp,
)

check_interface(INTERFACE)

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define record_subtract(a, b, difference) __builtin_sub_overflow(a, b, difference)
    #else
    static int record_subtract(int64_t a, int64_t b, int64_t *difference) {
        *difference = (int64_t)((uint64_t)a - (uint64_t)b);
        return b < 0 ? *difference < a : *difference > a;
    }
    #endif
    """
    bint record_subtract(int64_t a, int64_t b, int64_t *difference) noexcept nogil

cdef enum:
    HEADER_SIZE = 61
    CRC_AT = 17
    COVERED_FROM = 21

assert (HEADER_SIZE, CRC_AT, COVERED_FROM) == (HEADER_BYTES, CRC_POSITION, ATTRIBUTES_POSITION)


cdef struct Record:
    int64_t timestamp
    int64_t delta  # of its offset
    int64_t size  # after its length


cdef inline uint8_t *write_blob(uint8_t *output, PyObject *blob) noexcept:
    """A key or value: null, or bytes."""
    if blob == Py_None:
        return write_varint(output, -1)
    cdef Py_ssize_t size = bytes_size(blob)
    output = write_varint(output, size)
    memcpy(output, bytes_data(blob), size)
    return output + size


cdef inline int64_t blob_size(PyObject *blob) noexcept:
    """Bytes that `write_blob` takes, -1 for what is neither bytes nor None."""
    if blob == Py_None:
        return 1
    if unlikely(not PyBytes_Check(blob)):
        return -1
    return varint_size(bytes_size(blob)) + bytes_size(blob)


cdef struct Cells:
    PyObject **items  # NULL: spans
    const char *bytes
    const int64_t *first
    const int64_t *last


cdef Cells cells_of(object column):
    """The entries of a sequence with fast items, or of spans."""
    cdef Spans spans
    if type(column) is Spans:
        spans = column
        return Cells(NULL, spans.bytes, spans.first, spans.last)
    return Cells(PySequence_Fast_ITEMS(<PyObject *> column), NULL, NULL, NULL)


cdef inline int64_t cell_size(Cells *cells, Py_ssize_t i) noexcept:
    """Bytes that `write_cell` takes, -1 for what is neither bytes nor None."""
    cdef int64_t size
    if cells.items != NULL:
        return blob_size(cells.items[i])
    if cells.first[i] < 0:
        return 1
    size = cells.last[i] - cells.first[i]
    return varint_size(size) + size


cdef inline uint8_t *write_cell(uint8_t *output, Cells *cells, Py_ssize_t i) noexcept:
    cdef int64_t size
    if cells.items != NULL:
        return write_blob(output, cells.items[i])
    if cells.first[i] < 0:
        return write_varint(output, -1)
    size = cells.last[i] - cells.first[i]
    output = write_varint(output, size)
    memcpy(output, cells.bytes + cells.first[i], size)
    return output + size


cdef object sequence_of(object column, str what):
    return column if type(column) is Spans else PySequence_Fast(column, what.encode())


cdef inline Py_ssize_t length_of(object column):
    return (<Spans> column).size if type(column) is Spans else PySequence_Fast_GET_SIZE(<PyObject *> column)


cdef class _Rows:
    """Columns as they are encoded: sequences with fast items or spans, and numbers copied out."""

    cdef object keys, values, headers
    cdef Py_ssize_t count
    cdef Record *records
    cdef int64_t total  # bytes of all records
    cdef int64_t max_timestamp
    cdef int64_t base_offset  # where the columns have offsets

    def __cinit__(self, columns):
        self.count = check_lengths(columns)
        self.records = <Record *> malloc(self.count * sizeof(Record))
        if self.records == NULL:
            raise MemoryError
        self.keys = sequence_of(columns.keys, "keys are no sequence")
        self.values = sequence_of(columns.values, "values are no sequence")
        self.headers = None
        if columns.headers is not None:
            self.headers = PySequence_Fast(columns.headers, "headers are no sequence")

    def __dealloc__(self):
        free(self.records)

    cdef int still(self) except -1:
        """Python code has run: the lists must be what they were."""
        if (
            length_of(self.keys) != self.count
            or length_of(self.values) != self.count
            or self.headers is not None
            and PySequence_Fast_GET_SIZE(<PyObject *> self.headers) != self.count
        ):
            raise ValueError("columns changed while they were encoded")
        return 0

    cdef int take_numbers(self, timestamps, offsets) except -1:
        cdef Py_ssize_t i
        cdef object column
        cdef object slowly = int64  # looked up once
        cdef const int64_t *numbers
        if type(timestamps) is Int64s:
            numbers = (<Int64s> timestamps).numbers
            for i in range(self.count):
                self.records[i].timestamp = numbers[i]
                self.records[i].delta = i
        else:
            column = PySequence_Fast(timestamps, "timestamps are no sequence")
            for i in range(self.count):
                self.records[i].timestamp = number_at(column, i, "timestamp", slowly)
                self.records[i].delta = i
        self.max_timestamp = self.records[0].timestamp
        for i in range(self.count):
            self.max_timestamp = max(self.max_timestamp, self.records[i].timestamp)
        if offsets is None:
            return 0
        column = PySequence_Fast(offsets, "offsets are no sequence")
        for i in range(self.count):
            self.records[i].delta = number_at(column, i, "offset", slowly)
        self.base_offset = self.records[0].delta
        for i in range(1, self.count):
            if not (
                self.records[i - 1].delta < self.records[i].delta
                and <uint64_t> self.records[i].delta - <uint64_t> self.base_offset <= INT32_MAX
            ):
                check_offsets([self.records[j].delta for j in range(i + 1)])
        for i in range(self.count):
            self.records[i].delta -= self.base_offset
        return 0

    cdef int measure(self) except -1:
        """Sizes of all records; whatever cannot be encoded is refused here."""
        cdef Cells keys = cells_of(self.keys)
        cdef Cells values = cells_of(self.values)
        cdef PyObject **headers = NULL
        cdef Record *record
        cdef Py_ssize_t i
        cdef int64_t base = self.records[0].timestamp
        cdef int64_t timestamp_delta, key, value
        if self.headers is not None:
            headers = PySequence_Fast_ITEMS(<PyObject *> self.headers)
        self.total = 0
        for i in range(self.count):
            record = &self.records[i]
            if unlikely(record_subtract(record.timestamp, base, &timestamp_delta)):
                refuse_timestamp(i, record.timestamp, base)
            record.timestamp = timestamp_delta
            key = cell_size(&keys, i)
            if unlikely(key < 0):
                refuse_blob("key", i, self.keys[i])
            value = cell_size(&values, i)
            if unlikely(value < 0):
                refuse_blob("value", i, self.values[i])
            record.size = (
                1 + varint_size(timestamp_delta) + varint_size(record.delta) + key + value
                + (1 if headers == NULL else headers_size(headers[i], i))
            )
            self.total += varint_size(record.size) + record.size
            if unlikely(self.total > INT32_MAX):
                check_size(self.total)
        return 0

    cdef void write(self, uint8_t *output) noexcept:
        """All records, in the `total` bytes that `measure` found."""
        cdef Cells keys = cells_of(self.keys)
        cdef Cells values = cells_of(self.values)
        cdef PyObject **headers = NULL
        cdef Py_ssize_t i
        if self.headers is not None:
            headers = PySequence_Fast_ITEMS(<PyObject *> self.headers)
        for i in range(self.count):
            output = write_varint(output, self.records[i].size)
            output[0] = 0  # attributes
            output = write_varint(output + 1, self.records[i].timestamp)
            output = write_varint(output, self.records[i].delta)
            output = write_cell(output, &keys, i)
            output = write_cell(output, &values, i)
            if headers == NULL:
                output[0] = 0
                output += 1
            else:
                output = write_headers(output, headers[i])


cdef inline bint is_row(PyObject *row) noexcept:
    return PyTuple_Check(row) or PyList_Check(row)


cdef int64_t headers_size(PyObject *row, Py_ssize_t i) except -1:
    """Bytes of a record's headers; refuses what is no row of pairs."""
    cdef Py_ssize_t j, count, name_size
    cdef int64_t size, value
    cdef PyObject *pair
    cdef PyObject *name
    if not is_row(row):
        refuse_headers(i, <object> row)
    count = PySequence_Fast_GET_SIZE(row)
    size = varint_size(count)
    for j in range(count):
        pair = PySequence_Fast_GET_ITEM(row, j)
        if not (is_row(pair) and PySequence_Fast_GET_SIZE(pair) == 2):
            refuse_headers(i, <object> pair)
        name = PySequence_Fast_GET_ITEM(pair, 0)
        if not PyUnicode_Check(name):
            refuse_headers(i, <object> pair)
        PyUnicode_AsUTF8AndSize(name, &name_size)
        value = blob_size(PySequence_Fast_GET_ITEM(pair, 1))
        if value < 0:
            refuse_blob("header value", i, <object> PySequence_Fast_GET_ITEM(pair, 1))
        size += varint_size(name_size) + name_size + value
    return size


cdef uint8_t *write_headers(uint8_t *output, PyObject *row) noexcept:
    """What `headers_size` measured; names keep their UTF-8 form from then, so nothing fails."""
    cdef Py_ssize_t j, size
    cdef PyObject *pair
    cdef const char *name
    output = write_varint(output, PySequence_Fast_GET_SIZE(row))
    for j in range(PySequence_Fast_GET_SIZE(row)):
        pair = PySequence_Fast_GET_ITEM(row, j)
        name = PyUnicode_AsUTF8AndSize(PySequence_Fast_GET_ITEM(pair, 0), &size)
        output = write_varint(output, size)
        memcpy(output, name, size)
        output = write_blob(output + size, PySequence_Fast_GET_ITEM(pair, 1))
    return output


def encode_batch(
    columns, int attributes, base_offset, leader_epoch, tuple producer, compress, checksum
):
    """One batch; see the twin."""
    cdef _Rows rows = _Rows(columns)
    cdef bytes batch, body, header
    cdef uint32_t crc
    cdef uint8_t *start
    cdef Py_ssize_t stored
    rows.take_numbers(columns.timestamps, columns.offsets)
    rows.still()
    cdef int64_t base_timestamp = rows.records[0].timestamp
    if columns.offsets is not None:
        base_offset = rows.base_offset
    rows.measure()
    if compress is None:
        stored = rows.total
        batch = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + stored)
        rows.write(<uint8_t *> PyBytes_AS_STRING(batch) + HEADER_SIZE)
    else:
        body = PyBytes_FromStringAndSize(NULL, rows.total)
        rows.write(<uint8_t *> PyBytes_AS_STRING(body))
        body = bytes(compress(body))
        stored = PyBytes_GET_SIZE(body)
        batch = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + stored)
        memcpy(PyBytes_AS_STRING(batch) + HEADER_SIZE, PyBytes_AS_STRING(body), stored)
    header = pack_header(
        (
            base_offset,
            rows.records[rows.count - 1].delta,
            leader_epoch,
            attributes,
            base_timestamp,
            rows.max_timestamp,
        ),
        producer,
        rows.count,
        stored,
    )
    assert PyBytes_GET_SIZE(header) == HEADER_SIZE
    start = <uint8_t *> PyBytes_AS_STRING(batch)
    memcpy(start, PyBytes_AS_STRING(header), HEADER_SIZE)
    crc = checksum(Window(batch, COVERED_FROM))
    start[CRC_AT] = crc >> 24
    start[CRC_AT + 1] = crc >> 16 & 0xFF
    start[CRC_AT + 2] = crc >> 8 & 0xFF
    start[CRC_AT + 3] = crc & 0xFF
    return batch
