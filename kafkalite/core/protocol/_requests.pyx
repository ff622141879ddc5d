# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Produce and Fetch of one partition, from bytes to fields and back in one call.            [P]

Every reader returns None for a request that is not the usual one. The compiled codecs then read it,
and say what is wrong with it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kafkalite.core.protocol._interface cimport check_interface

from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    NAME_BYTES_MAX = 249  # of a topic
    ID_BYTES = 16  # of a topic
    ANSWER_BYTES_MAX = 512  # of all fields of an answer around its records


# ---- reading -----------------------------------------------------------------------------------

cdef struct Cursor:
    const uint8_t *data
    Py_ssize_t position
    Py_ssize_t limit
    bint is_odd  # ran past the end, or met what the usual request has not


cdef inline int64_t number(Cursor *at, int size) noexcept nogil:
    """A big-endian number with a sign."""
    cdef uint64_t value = 0
    cdef int i
    if at.limit - at.position < size:
        at.is_odd = True
        return 0
    for i in range(size):
        value = value << 8 | at.data[at.position + i]
    at.position += size
    if size < 8 and value >> (8 * size - 1):
        return <int64_t> value - (<int64_t> 1 << 8 * size)
    return <int64_t> value


cdef inline int64_t length(Cursor *at, bint flexible, int size) noexcept nogil:
    """A length or a count: `size` bytes, or a varint that is one more; -1 is null."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    if not flexible:
        return number(at, size)
    while at.position < at.limit and shift < 35:
        byte = at.data[at.position]
        at.position += 1
        value |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            if value > INT32_MAX:
                break
            return <int64_t> value - 1
        shift += 7
    at.is_odd = True
    return 0


cdef inline void no_tags(Cursor *at, bint flexible) noexcept nogil:
    if flexible and length(at, True, 0) != -1:
        at.is_odd = True


cdef inline object name(Cursor *at, bint flexible):
    """A short string; None where it is none."""
    cdef int64_t size = length(at, flexible, 2)
    cdef Py_ssize_t start = at.position
    if at.is_odd or not 0 <= size <= NAME_BYTES_MAX or at.limit - start < size:
        return None
    at.position += size
    try:
        return PyUnicode_DecodeUTF8(<const char *> at.data + start, size, NULL)
    except UnicodeDecodeError:
        return None


def read_produce(body, int version):
    """(acks, topic, partition, start and end of the records) of a request with one batch, no
    transactional id and no tagged fields, v3 to v11."""
    return read(body, version, produce_fields) if 3 <= version <= 11 else None


def read_poll(body, int version):
    """(session_id, session_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, topic,
    partition, current_leader_epoch, fetch_offset, partition_max_bytes) of a consumer's request for
    one partition, without tagged fields, v4 to v17. The topic is a name, from v13 on the bytes of
    an id, and None where the request names no partition."""
    return read(body, version, poll_fields) if 4 <= version <= 17 else None


ctypedef object (*Fields)(Cursor *at, int version)


cdef object read(object body, int version, Fields fields):
    cdef Py_buffer view
    cdef Cursor at
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    at.data, at.position, at.limit, at.is_odd = <const uint8_t *> view.buf, 0, view.len, False
    try:
        return fields(&at, version)
    finally:
        PyBuffer_Release(&view)


cdef object produce_fields(Cursor *at, int version):
    cdef bint flexible = version >= 9
    cdef int64_t acks, partition, size
    if length(at, flexible, 2) != -1:
        return None
    acks = number(at, 2)
    number(at, 4)  # timeout: the batch waits for nobody
    if length(at, flexible, 4) != 1:
        return None
    topic = name(at, flexible)
    if topic is None or length(at, flexible, 4) != 1:
        return None
    partition = number(at, 4)
    size = length(at, flexible, 4)
    cdef Py_ssize_t start = at.position
    if at.is_odd or size < 0 or at.limit - start < size:
        return None
    at.position += size
    no_tags(at, flexible)
    no_tags(at, flexible)
    no_tags(at, flexible)
    if at.is_odd:
        return None
    return acks, topic, partition, start, start + size


cdef inline object topic_id(Cursor *at):
    """The 16 bytes of an id; None where there are fewer."""
    cdef Py_ssize_t start = at.position
    if at.limit - start < ID_BYTES:
        return None
    at.position += ID_BYTES
    return PyBytes_FromStringAndSize(<const char *> at.data + start, ID_BYTES)


cdef object poll_fields(Cursor *at, int version):
    cdef bint flexible = version >= 12
    cdef int64_t session_id = 0, session_epoch = -1
    cdef int64_t max_wait_ms, min_bytes, max_bytes, isolation_level
    cdef int64_t partition = 0, leader_epoch = -1, offset = 0, partition_max_bytes = 0
    cdef object topic = None
    if version < 15 and number(at, 4) != -1:  # a follower; from v15 on it says so in a tag
        return None
    max_wait_ms = number(at, 4)
    min_bytes = number(at, 4)
    max_bytes = number(at, 4)
    isolation_level = number(at, 1)
    if version >= 7:
        session_id = number(at, 4)
        session_epoch = number(at, 4)
    cdef int64_t topics = length(at, flexible, 4)
    if topics == 1:
        topic = topic_id(at) if version >= 13 else name(at, flexible)
        if topic is None or length(at, flexible, 4) != 1:
            return None
        partition = number(at, 4)
        if version >= 9:
            leader_epoch = number(at, 4)
        offset = number(at, 8)
        if version >= 12:
            number(at, 4)  # last_fetched_epoch and log_start_offset are for followers
        if version >= 5:
            number(at, 8)
        partition_max_bytes = number(at, 4)
        no_tags(at, flexible)
        no_tags(at, flexible)
    elif topics != 0:
        return None
    if version >= 7 and length(at, flexible, 4) != 0:
        return None
    if version >= 11 and name(at, flexible) is None:  # rack_id
        return None
    no_tags(at, flexible)
    if at.is_odd:
        return None
    return (
        session_id, session_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, topic,
        partition, leader_epoch, offset, partition_max_bytes,
    )


# ---- writing -----------------------------------------------------------------------------------

cdef struct Pen:
    uint8_t data[ANSWER_BYTES_MAX]
    Py_ssize_t position


cdef inline void put(Pen *pen, int64_t value, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        pen.data[pen.position + i] = <uint8_t> (<uint64_t> value >> 8 * (size - 1 - i))
    pen.position += size


cdef inline void put_length(Pen *pen, int64_t value, bint flexible, int size) noexcept nogil:
    """A length or a count, -1 for null."""
    cdef uint64_t left
    if not flexible:
        put(pen, value, size)
        return
    left = <uint64_t> (value + 1)
    while left > 0x7F:
        pen.data[pen.position] = <uint8_t> (left & 0x7F | 0x80)
        pen.position += 1
        left >>= 7
    pen.data[pen.position] = <uint8_t> left
    pen.position += 1


cdef int put_head(Pen *pen, int64_t correlation_id, bint flexible) except -1:
    pen.position = 4  # the frame's size
    put(pen, correlation_id, 4)
    if flexible:
        put(pen, 0, 1)
    return 0


cdef int put_name(Pen *pen, str text, bint flexible) except -1:
    cdef Py_ssize_t size
    cdef const char *raw = PyUnicode_AsUTF8AndSize(text, &size)
    if size > NAME_BYTES_MAX:
        raise ValueError(f"a name of {size} bytes")
    put_length(pen, size, flexible, 2)
    memcpy(pen.data + pen.position, raw, size)
    pen.position += size
    return 0


cdef int put_id(Pen *pen, bytes sixteen) except -1:
    if len(sixteen) != ID_BYTES:
        raise ValueError(f"an id of {len(sixteen)} bytes")
    memcpy(pen.data + pen.position, <const char *> sixteen, ID_BYTES)
    pen.position += ID_BYTES
    return 0


cdef int put_one_partition(Pen *pen, topic, int64_t partition, bint flexible) except -1:
    """An array of one topic, by its name or the bytes of its id, and in it an array of one
    partition, which has no error."""
    put_length(pen, 1, flexible, 4)
    if isinstance(topic, bytes):
        put_id(pen, topic)
    else:
        put_name(pen, topic, flexible)
    put_length(pen, 1, flexible, 4)
    put(pen, partition, 4)
    put(pen, 0, 2)
    return 0


def write_produce(
    int version, int64_t correlation_id, str topic, int64_t partition,
    int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset,
):
    """The frame that tells the producer of one batch where it was appended, v3 to v11."""
    cdef bint flexible = version >= 9
    cdef Pen pen
    put_head(&pen, correlation_id, flexible)
    put_one_partition(&pen, topic, partition, flexible)
    put(&pen, base_offset, 8)
    put(&pen, log_append_time_ms, 8)
    if version >= 5:
        put(&pen, log_start_offset, 8)
    if version >= 8:
        put_length(&pen, 0, flexible, 4)  # record_errors
        put_length(&pen, -1, flexible, 2)  # error_message
    if flexible:
        put(&pen, 0, 2)  # no tags of the partition and the topic
    put(&pen, 0, 4)  # throttle_time_ms
    if flexible:
        put(&pen, 0, 1)
    return framed(&pen, pen.position - 4)


def write_poll(
    int version, int64_t correlation_id, int64_t session_id, topic, int64_t partition,
    int64_t high_watermark, int64_t last_stable_offset, int64_t log_start_offset,
    bint is_committed, int64_t record_bytes,
):
    """The frame that gives the reader of one partition `record_bytes` bytes of records, up to where
    they stand, v4 to v17; `topic` is a name, from v13 on the bytes of an id. Behind the records the
    tagged fields of flexible versions follow: `NO_TAGS`."""
    cdef bint flexible = version >= 12
    cdef Pen pen
    put_head(&pen, correlation_id, flexible)
    put(&pen, 0, 4)  # throttle_time_ms
    if version >= 7:
        put(&pen, 0, 2)
        put(&pen, session_id, 4)
    put_one_partition(&pen, topic, partition, flexible)
    put(&pen, high_watermark, 8)
    put(&pen, last_stable_offset, 8)
    if version >= 5:
        put(&pen, log_start_offset, 8)
    put_length(&pen, 0 if is_committed else -1, flexible, 4)  # aborted_transactions
    if version >= 11:
        put(&pen, -1, 4)  # preferred_read_replica
    put_length(&pen, record_bytes, flexible, 4)
    return framed(&pen, pen.position - 4 + record_bytes + (3 if flexible else 0))


cdef bytes framed(Pen *pen, int64_t size):
    cdef Py_ssize_t end = pen.position
    pen.position = 0
    put(pen, size, 4)
    return PyBytes_FromStringAndSize(<const char *> pen.data, end)
