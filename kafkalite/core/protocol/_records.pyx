# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The record codec in native code: the twin of records_pure.py, where records are drawn.  [P]

Bytes are read through raw pointers, so bounds are checked here by hand: every read of a field goes
through `read_number`, `read_length` or `read_blob`, and those never pass `Reader.end`. A failed
read leaves its reason in the `Reader`; `raise_fault` makes it the error that the twin raises.

Columns are read through borrowed references. That is safe while no Python code runs, so numbers
(whose `__index__` may) are copied out first, lists are made next, sizes are looked at again, and
only then do the pointers begin.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kafkalite.core.protocol._varint cimport (
    read_varint,
    unlikely,
    varint_bytes_max,
    varint_size,
    write_varint,
)

from kafkalite.core.protocol.records_pure import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    FAULTS,
    HEADER_BYTES,
    check_count,
    check_last_delta,
    check_lengths,
    check_offsets,
    check_partition_count,
    check_size,
    check_split_lengths,
    check_trailing,
    fail,
    int64,
    pack_header,
    refuse_blob,
    refuse_headers,
    refuse_hash,
    refuse_partition,
    refuse_timestamp,
)
from kafkalite.core.types import Columns

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define record_add(a, b, sum) __builtin_add_overflow(a, b, sum)
    #define record_subtract(a, b, difference) __builtin_sub_overflow(a, b, difference)
    #else
    static int record_add(int64_t a, int64_t b, int64_t *sum) {
        *sum = (int64_t)((uint64_t)a + (uint64_t)b);
        return b < 0 ? *sum > a : *sum < a;
    }
    static int record_subtract(int64_t a, int64_t b, int64_t *difference) {
        *difference = (int64_t)((uint64_t)a - (uint64_t)b);
        return b < 0 ? *difference < a : *difference > a;
    }
    #endif
    """
    bint record_add(int64_t a, int64_t b, int64_t *total) noexcept nogil
    bint record_subtract(int64_t a, int64_t b, int64_t *difference) noexcept nogil

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    PyObject *Py_None
    void Py_INCREF(PyObject *)
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    PyObject *new_int "PyLong_FromLongLong"(long long) except NULL
    list PyList_New(Py_ssize_t)
    void PyList_SET_ITEM(PyObject *, Py_ssize_t, PyObject *)
    object PySequence_Fast(object, const char *)
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject *)
    PyObject *PySequence_Fast_GET_ITEM(PyObject *, Py_ssize_t)
    PyObject **PySequence_Fast_ITEMS(PyObject *)
    bint PyBytes_Check(PyObject *)
    bint PyLong_CheckExact(PyObject *)
    bint PyList_Check(PyObject *)
    bint PyTuple_Check(PyObject *)
    bint PyUnicode_Check(PyObject *)
    char *bytes_data "PyBytes_AS_STRING"(PyObject *)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject *)
    const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *) except NULL
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)

# Indices of records_pure.FAULTS and FIELDS.
cdef enum:
    TRUNCATED, OVERLONG, NEGATIVE, PAST_END, UNREAD, ORDER, FIRST_DELTA, NULL_KEY, TIMESTAMP, OFFSET
cdef enum:
    LENGTH, ATTRIBUTES, TIMESTAMP_DELTA, OFFSET_DELTA, KEY_LENGTH, VALUE_LENGTH, HEADER_COUNT
    HEADER_KEY_LENGTH, HEADER_VALUE_LENGTH

cdef enum:
    HEADER_SIZE = 61
    CRC_AT = 17
    COVERED_FROM = 21

assert (HEADER_SIZE, CRC_AT, COVERED_FROM) == (HEADER_BYTES, CRC_POSITION, ATTRIBUTES_POSITION)
assert len(FAULTS) == OFFSET + 1

cdef char *UNSIGNED_BYTES = b"B"


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
        # Field by field: PyBuffer_FillInfo would lose the reference that Cython put in `obj`.
        if flags & PyBUF_WRITABLE:
            raise BufferError("a window is read-only")
        buffer.obj = self
        buffer.buf = <char *> self.view.buf + self.start
        buffer.len = self.size
        buffer.readonly = 1
        buffer.itemsize = 1
        buffer.format = UNSIGNED_BYTES if flags & PyBUF_FORMAT else NULL
        buffer.ndim = 1
        buffer.shape = &self.size if flags & PyBUF_ND else NULL
        buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL


# ---- reading ---------------------------------------------------------------------------------


cdef struct Reader:
    const uint8_t *start
    const uint8_t *position
    const uint8_t *end  # of the record; of all records between two
    int fault
    int field
    int64_t number
    int64_t limit


cdef struct Blob:
    const char *data
    int64_t size  # -1: null


cdef int note(Reader *reader, int fault, int field, int64_t number, int64_t limit) noexcept nogil:
    """Keeps why a read failed. Always -1."""
    reader.fault = fault
    reader.field = field
    reader.number = number
    reader.limit = limit
    return -1


cdef int note_no_number(Reader *reader, int field, int bits) noexcept nogil:
    if reader.end - reader.position < varint_bytes_max(bits):
        return note(reader, TRUNCATED, field, 0, reader.end - reader.start)
    return note(reader, OVERLONG, field, 0, varint_bytes_max(bits))


cdef object raise_fault(Reader *reader, Py_ssize_t record):
    fail(
        FAULTS[reader.fault],
        record,
        reader.position - reader.start,
        field=reader.field,
        number=reader.number,
        limit=reader.limit,
    )


cdef inline int read_number(Reader *reader, int field, int bits, int64_t *number) noexcept nogil:
    """A varint of at most `bits` bits; -1 and the position unmoved on failure."""
    cdef const uint8_t *after = read_varint(reader.position, reader.end, bits, number)
    if unlikely(after == NULL):
        return note_no_number(reader, field, bits)
    reader.position = after
    return 0


cdef inline int read_length(Reader *reader, int field, int least, int64_t *length) noexcept nogil:
    """A length in [least, bytes left]; -1 and the position unmoved on failure."""
    cdef const uint8_t *at = reader.position
    if unlikely(read_number(reader, field, 32, length) < 0):
        return -1
    cdef int64_t left = reader.end - reader.position
    if unlikely(length[0] < least or length[0] > left):
        reader.position = at
        return note(reader, NEGATIVE if length[0] < least else PAST_END, field, length[0], left)
    return 0


cdef inline int read_blob(Reader *reader, int field, int least, Blob *blob) noexcept nogil:
    """A length and its bytes, which are passed over."""
    if unlikely(read_length(reader, field, least, &blob.size) < 0):
        return -1
    blob.data = <const char *> reader.position
    if blob.size > 0:
        reader.position += blob.size
    return 0


cdef inline int begin_record(
    Reader *reader, int64_t *timestamp_delta, int64_t *delta
) noexcept nogil:
    """Reads up to the offset delta; `end` is now the record's."""
    cdef int64_t length
    if read_length(reader, LENGTH, 0, &length) < 0:
        return -1
    reader.end = reader.position + length
    if unlikely(length == 0):
        return note(reader, TRUNCATED, ATTRIBUTES, 0, reader.end - reader.start)
    reader.position += 1
    if read_number(reader, TIMESTAMP_DELTA, 64, timestamp_delta) < 0:
        return -1
    return read_number(reader, OFFSET_DELTA, 32, delta)


cdef inline int read_header_count(Reader *reader, int64_t *count) noexcept nogil:
    cdef const uint8_t *at = reader.position
    if read_length(reader, HEADER_COUNT, 0, count) < 0:
        return -1
    cdef int64_t left = reader.end - reader.position
    if unlikely(count[0] * 2 > left):
        reader.position = at
        return note(reader, PAST_END, HEADER_COUNT, count[0], left)
    return 0


cdef inline int end_record(Reader *reader, const uint8_t *end) noexcept nogil:
    """The record ends where its length said; the next is bounded by `end` again."""
    if unlikely(reader.position != reader.end):
        return note(reader, UNREAD, 0, reader.end - reader.position, 0)
    reader.end = end
    return 0


cdef Reader open_reader(Py_buffer *view) noexcept nogil:
    cdef Reader reader
    reader.start = <const uint8_t *> view.buf
    reader.position = reader.start
    reader.end = reader.start + view.len
    reader.fault = reader.field = 0
    reader.number = reader.limit = 0
    return reader


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
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= record_count <= view.len // 7:
            check_count(record_count, view.len)
        reader = open_reader(&view)
        if skim_loop(&reader, record_count, keys_required, &skim) < 0:
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


cdef inline int skim_headers(Reader *reader) noexcept nogil:
    cdef int64_t count
    cdef Blob blob
    if read_header_count(reader, &count) < 0:
        return -1
    while count > 0:
        if read_blob(reader, HEADER_KEY_LENGTH, 0, &blob) < 0:
            return -1
        if read_blob(reader, HEADER_VALUE_LENGTH, -1, &blob) < 0:
            return -1
        count -= 1
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


# ---- encode ----------------------------------------------------------------------------------


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


cdef class _Rows:
    """Columns as they are encoded: sequences with fast items, and numbers copied out."""

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
        self.keys = PySequence_Fast(columns.keys, "keys are no sequence")
        self.values = PySequence_Fast(columns.values, "values are no sequence")
        self.headers = None
        if columns.headers is not None:
            self.headers = PySequence_Fast(columns.headers, "headers are no sequence")

    def __dealloc__(self):
        free(self.records)

    cdef int still(self) except -1:
        """Python code has run: the lists must be what they were."""
        if (
            PySequence_Fast_GET_SIZE(<PyObject *> self.keys) != self.count
            or PySequence_Fast_GET_SIZE(<PyObject *> self.values) != self.count
            or self.headers is not None
            and PySequence_Fast_GET_SIZE(<PyObject *> self.headers) != self.count
        ):
            raise ValueError("columns changed while they were encoded")
        return 0

    cdef int take_numbers(self, timestamps, offsets) except -1:
        cdef Py_ssize_t i
        cdef object column = PySequence_Fast(timestamps, "timestamps are no sequence")
        for i in range(self.count):
            self.records[i].timestamp = number_at(column, i, "timestamp")
            self.records[i].delta = i
        self.max_timestamp = self.records[0].timestamp
        for i in range(self.count):
            self.max_timestamp = max(self.max_timestamp, self.records[i].timestamp)
        if offsets is None:
            return 0
        column = PySequence_Fast(offsets, "offsets are no sequence")
        for i in range(self.count):
            self.records[i].delta = number_at(column, i, "offset")
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
        cdef PyObject **keys = PySequence_Fast_ITEMS(<PyObject *> self.keys)
        cdef PyObject **values = PySequence_Fast_ITEMS(<PyObject *> self.values)
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
            key = blob_size(keys[i])
            if unlikely(key < 0):
                refuse_blob("key", i, <object> keys[i])
            value = blob_size(values[i])
            if unlikely(value < 0):
                refuse_blob("value", i, <object> values[i])
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
        cdef PyObject **keys = PySequence_Fast_ITEMS(<PyObject *> self.keys)
        cdef PyObject **values = PySequence_Fast_ITEMS(<PyObject *> self.values)
        cdef PyObject **headers = NULL
        cdef Py_ssize_t i
        if self.headers is not None:
            headers = PySequence_Fast_ITEMS(<PyObject *> self.headers)
        for i in range(self.count):
            output = write_varint(output, self.records[i].size)
            output[0] = 0  # attributes
            output = write_varint(output + 1, self.records[i].timestamp)
            output = write_varint(output, self.records[i].delta)
            output = write_blob(output, keys[i])
            output = write_blob(output, values[i])
            if headers == NULL:
                output[0] = 0
                output += 1
            else:
                output = write_headers(output, headers[i])


cdef int64_t number_at(object column, Py_ssize_t i, str name) except? -1:
    """An integer of 64 bits from a column that may change while its items are asked."""
    cdef int overflow = 0
    cdef long long number
    cdef object item
    if i >= PySequence_Fast_GET_SIZE(<PyObject *> column):
        raise ValueError("columns changed while they were encoded")
    item = <object> PySequence_Fast_GET_ITEM(<PyObject *> column, i)
    if PyLong_CheckExact(<PyObject *> item):
        number = PyLong_AsLongLongAndOverflow(item, &overflow)
        if not overflow:
            return number
    return int64(item, name, i)


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


# ---- partitions ------------------------------------------------------------------------------


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
    """The partition of each key, -1 for a null one."""
    check_partition_count(partition_count)
    cdef uint32_t count = partition_count
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


cdef class _Split:
    """Where each record goes, and how many go to each partition."""

    cdef int32_t *partitions
    cdef Py_ssize_t *counts
    cdef Py_ssize_t *filled
    cdef PyObject **targets

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


def split(columns, partitions, partition_count):
    """The records of each partition, in order; see the twin."""
    check_partition_count(partition_count)
    check_split_lengths(columns, partitions)
    cdef Py_ssize_t records = len(partitions)
    cdef Py_ssize_t count = partition_count
    cdef _Split plan = _Split(records, count)
    cdef object sequence = PySequence_Fast(partitions, "partitions are no sequence")
    cdef Py_ssize_t i
    cdef int64_t partition
    for i in range(records):
        partition = number_at(sequence, i, "partition")
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
