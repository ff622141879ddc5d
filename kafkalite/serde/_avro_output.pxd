# cython: language_level=3
"""Bytes that grow, for the native modules that write Avro to inline.                         [P]

All there is to it is here: no module belongs to this file. A function gives -1 when there is no
memory, and nothing was written.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from kafkalite.core.protocol._varint cimport unlikely, varint_bytes_max, write_varint

cdef enum:
    FIRST_ROOM = 4096

cdef struct Output:
    uint8_t *bytes
    int64_t used
    int64_t room


cdef inline int fit(Output *o, int64_t bytes) noexcept nogil:
    """Makes sure of room for so many more bytes."""
    cdef int64_t room
    cdef uint8_t *moved
    if unlikely(o.used + bytes > o.room):
        room = max(o.used + bytes, o.room * 2, FIRST_ROOM)
        moved = <uint8_t *> realloc(o.bytes, room)
        if moved == NULL:
            return -1
        o.bytes, o.room = moved, room
    return 0


cdef inline int put_number(Output *o, int64_t value) noexcept nogil:
    if fit(o, varint_bytes_max(64)) < 0:
        return -1
    o.used = write_varint(o.bytes + o.used, value) - o.bytes
    return 0


cdef inline int put_bytes(Output *o, const uint8_t *data, int64_t size) noexcept nogil:
    if fit(o, size) < 0:
        return -1
    if size:  # nothing may be copied to NULL, not even nothing
        memcpy(o.bytes + o.used, data, size)
    o.used += size
    return 0
