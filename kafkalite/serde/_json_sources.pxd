# cython: language_level=3
"""Columns in the layout of Arrow's arrays, as `_json_write` and `_msgpack_write` read them.  [P]

All there is to it is here: no module belongs to this file. Whoever fills columns keeps the sources.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t

cdef enum:  # members of json_kinds.Kind, by place
    NULL_KIND, INT_KIND, FLOAT_KIND, BOOL_KIND, TEXT_KIND, OBJECT_KIND, LIST_KIND

cdef enum:  # places in a source
    ROWS = 1
    FLOATS = 10

cdef struct Column:
    int kind
    int end  # behind its last part
    int width  # of an integer
    int64_t offset
    const uint8_t *valid
    const uint8_t *data
    const uint8_t *content
    int64_t content_size  # or the items of lists
    const uint8_t *head  # what stands before its value: its name, and what belongs to that
    int64_t head_size
    int64_t *ends  # of the text of each float


cdef inline bint is_there(const uint8_t *valid, int64_t row) noexcept nogil:
    return valid == NULL or (valid[row >> 3] >> (row & 7)) & 1


cdef inline int fill_columns(Column *columns, list sources, dict places) except -1:
    """Of each column: its Kind, its rows, where its parts end, the bytes of an integer, its offset,
    the addresses of its validity, its data and its content, the number of the content's bytes or of
    items, the bytes before its value, and its floats as orjson writes the list. The parts of each
    stand behind it; `places` are those of kinds."""
    cdef Column *column
    cdef int place
    cdef bytes head
    for place in range(len(sources)):
        column = &columns[place]
        kind, _, end, width, offset, valid, data, content, size, head, _ = sources[place]
        if not place < end <= len(sources):
            raise ValueError(f"the parts of column {place} end at {end} of {len(sources)}")
        column.kind, column.end, column.width = places[kind], end, width
        column.offset = offset
        column.valid = <const uint8_t *> <size_t> valid
        column.data = <const uint8_t *> <size_t> data
        column.content, column.content_size = <const uint8_t *> <size_t> content, size
        column.head, column.head_size = <const uint8_t *> PyBytes_AS_STRING(head), len(head)
    return 0
