# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Columns into Avro's bytes: runs an `avro_plan` over the rows of Arrow buffers.             [P]

The buffers are read as `avro_encode` describes them, which has checked their types and sizes. What
lies in them may still be wrong: offsets and symbols are held against what they point into.

Owns   the bytes made, until they are given away.
Fails  with SerdeError that has the row's index and names the field.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kafkalite.core.protocol._varint cimport unlikely
from kafkalite.serde._avro_bytes cimport decimal_bits, format_uuid
from kafkalite.serde._avro_columns cimport *
from kafkalite.serde._avro_output cimport Output, fit, put_bytes, put_number

from kafkalite.errors import SerdeError
from kafkalite.serde.avro_plan import WRITE_FAULTS
from kafkalite.serde.avro_schema import at

cdef enum:  # indices of avro_plan.WRITE_FAULTS
    NULL_WRITTEN, SYMBOL_WRITTEN, DIGITS_WRITTEN, SIZE_WRITTEN, OFFSETS_WRITTEN, NO_MEMORY_LEFT

assert len(WRITE_FAULTS) == NO_MEMORY_LEFT + 1

cdef enum:
    ALONE_ROWS = 512  # letting other threads run costs more than so many rows take

cdef struct Source:
    const uint8_t *valid
    const uint8_t *data
    const uint8_t *bytes
    int64_t bytes_size
    int64_t offset
    int64_t length
    const int64_t *places  # of its rows; NULL: all, from the offset on

cdef struct Writer:
    const Node *nodes
    const int32_t *tables
    const Store *stores
    const int32_t *parts
    const Source *sources
    Output out
    int fault
    int node
    int64_t found


cdef int fail(Writer *w, int fault, int64_t found) noexcept nogil:
    w.fault, w.found = fault, found
    return -1


cdef inline int64_t place_of(const Source *s, int64_t row) noexcept nogil:
    return row + s.offset if s.places == NULL else s.places[row]


cdef inline bint is_there(const Source *s, int64_t row) noexcept nogil:
    return s.valid == NULL or (s.valid[row >> 3] >> (row & 7)) & 1


cdef int put_text(Writer *w, const Source *s, int64_t row) noexcept nogil:
    """A length and bytes between two offsets."""
    cdef int64_t begin = (<const int32_t *> s.data)[row]
    cdef int64_t end = (<const int32_t *> s.data)[row + 1]
    if unlikely(begin < 0 or end < begin or end > s.bytes_size):
        return fail(w, OFFSETS_WRITTEN, end)
    if put_number(&w.out, end - begin) < 0:
        return -1
    return put_bytes(&w.out, s.bytes + begin, end - begin)


cdef int put_decimal(
    Writer *w, const Node *node, const Store *store, const uint8_t *raw
) noexcept nogil:
    """Two's complement, big end first: in as many bytes as fastavro takes, or as the fixed has."""
    cdef int bits = decimal_bits(raw, store.width, store.limit)
    cdef int64_t size, i
    cdef uint8_t fill = 0xFF if raw[store.width - 1] & 0x80 else 0
    if unlikely(bits < 0):
        return fail(w, DIGITS_WRITTEN, 0)
    if node.op == OP_DECIMAL:
        size = (bits + 8) // 8
        if put_number(&w.out, size) < 0:
            return -1
    else:
        size = node.arg
    if fit(&w.out, size) < 0:
        return -1
    for i in range(size):
        w.out.bytes[w.out.used + size - 1 - i] = raw[i] if i < store.width else fill
    for i in range(size, store.width):
        if unlikely(raw[i] != fill):
            return fail(w, SIZE_WRITTEN, size)
    if unlikely(size == 0 or (w.out.bytes[w.out.used] ^ fill) & 0x80):
        return fail(w, SIZE_WRITTEN, size)
    w.out.used += size
    return 0


cdef int put_items(Writer *w, int pc, const Source *s, int64_t row) noexcept nogil:
    """The block of an array's or a map's items, and its end."""
    cdef const Node *node = &w.nodes[pc]
    cdef const Store *store = &w.stores[node.column]
    cdef int last = w.parts[store.part + store.parts - 1]
    cdef const Source *keys = &w.sources[w.parts[store.part]]
    cdef int64_t begin = (<const int32_t *> s.data)[row]
    cdef int64_t end = (<const int32_t *> s.data)[row + 1]
    cdef int64_t item
    if unlikely(begin < 0 or end < begin or end > w.sources[last].length):
        return fail(w, OFFSETS_WRITTEN, end)
    if end > begin and put_number(&w.out, end - begin) < 0:
        return -1
    for item in range(begin, end):
        if node.op == OP_MAP:
            if unlikely(item >= keys.length or not is_there(keys, item + keys.offset)):
                return fail(w, NULL_WRITTEN, 0)
            if put_text(w, keys, item + keys.offset) < 0:
                return -1
        if put(w, pc + 1, node.end, item) < 0:
            return -1
    return put_number(&w.out, 0)


cdef int put_plain(Writer *w, const Node *node, const Source *s, int64_t row) noexcept nogil:
    """A value without parts."""
    cdef const Store *store = &w.stores[node.column]
    cdef int op = node.op
    cdef int32_t small
    cdef uint8_t byte
    if op in (OP_INT, OP_DATE, OP_TIME_MILLIS):
        return put_number(&w.out, (<const int32_t *> s.data)[row])
    if op in (OP_LONG, OP_TIME_MICROS, OP_TIMESTAMP_MILLIS, OP_TIMESTAMP_MICROS):
        return put_number(&w.out, (<const int64_t *> s.data)[row])
    if op in (OP_STRING, OP_BYTES):
        return put_text(w, s, row)
    if op in (OP_DOUBLE, OP_FLOAT, OP_FIXED):
        return put_bytes(&w.out, s.data + row * store.width, store.width)
    if op == OP_BOOLEAN:
        byte = (s.data[row >> 3] >> (row & 7)) & 1
        return put_bytes(&w.out, &byte, 1)
    if op == OP_ENUM:
        small = (<const int32_t *> s.data)[row]
        if unlikely(small < 0 or small >= w.tables[node.arg]):
            return fail(w, SYMBOL_WRITTEN, small)
        return put_number(&w.out, small)
    if op == OP_UUID:
        if put_number(&w.out, 36) < 0 or fit(&w.out, 36) < 0:
            return -1
        format_uuid(s.data + row * 16, w.out.bytes + w.out.used)
        w.out.used += 36
        return 0
    if op in (OP_DECIMAL, OP_FIXED_DECIMAL):
        return put_decimal(w, node, store, s.data + row * store.width)
    return 0  # null


cdef int put(Writer *w, int pc, int end, int64_t row) noexcept nogil:
    """Writes the values of the nodes from `pc` to `end`. As deep as the plan, which is bounded."""
    cdef const Node *node
    cdef const Source *s
    cdef bint there
    cdef int status
    cdef int64_t place
    while pc < end:
        node = &w.nodes[pc]
        s = &w.sources[node.column]
        place = place_of(s, row)
        there = node.op == OP_NULL or is_there(s, place)
        status = 0
        if node.union_ != UNION_NONE:
            if node.union_ == UNION_SOLE:
                status = put_number(&w.out, 0)
            else:
                status = put_number(&w.out, there == (node.union_ == UNION_NULL_FIRST))
            if not there and node.union_ != UNION_SOLE and status == 0:
                pc = node.end
                continue
        if unlikely(not there):
            status = fail(w, NULL_WRITTEN, 0)
        elif status == 0:
            if node.op == OP_RECORD:
                status = put(w, pc + 1, node.end, row)
            elif node.op in (OP_ARRAY, OP_MAP):
                status = put_items(w, pc, s, place)
            else:
                status = put_plain(w, node, s, place)
        if unlikely(status < 0):
            if w.node < 0:
                w.node = pc
            return -1
        pc = node.end
    return 0


cdef int64_t put_all(
    Writer *w, int count, int64_t rows, const uint8_t *header, int64_t header_size, int64_t *ends
) noexcept nogil:
    """Writes each row; the index of the row that failed, `rows` if none. A null row takes no
    bytes, not even the header's."""
    cdef int64_t row
    cdef const Source *root = &w.sources[0]
    for row in range(rows):
        if w.nodes[0].op != OP_NULL and is_there(root, row + root.offset):
            if put_bytes(&w.out, header, header_size) < 0 or put(w, 0, count, row) < 0:
                return row
        ends[row] = w.out.used
    return rows


@cython.final
cdef class Encoder(Program):
    """A plan's program, ready to write rows."""

    def encode(self, sources, int64_t rows, bytes header=b""):
        """The bytes of each row after the header; None for a null row.

        `sources` has of each column its length, its offset, and the addresses of its validity,
        its data and its bytes, or 0, and the number of those bytes; last the address of the places
        of its rows, as integers of 64 bits, or 0 for all rows from the offset on.
        """
        return self.written(sources, rows, header, False)

    def encode_spans(self, sources, int64_t rows, bytes header=b""):
        """The same in one buffer: offsets of 64 bits, the bytes, the bits of validity or None."""
        return self.written(sources, rows, header, True)

    cdef object written(self, sources, int64_t rows, bytes header, bint as_spans):
        cdef Source *made = <Source *> calloc(self.shape.count, sizeof(Source))
        cdef int64_t *ends = <int64_t *> calloc(rows + 1, sizeof(int64_t))
        cdef Writer w
        cdef int64_t row
        cdef const uint8_t *head = <const uint8_t *> PyBytes_AS_STRING(header)
        cdef int64_t head_size = len(header)
        memset(&w, 0, sizeof(Writer))
        try:
            if made == NULL or ends == NULL:
                raise MemoryError
            if not self.shape.plan.is_own:
                raise ValueError("a plan that resolves two schemas, or leaves fields out")
            self.describe(sources, made)
            w.nodes, w.tables, w.stores = self.nodes, self.tables, self.shape.stores
            w.parts, w.sources = self.shape.parts, made
            w.node, w.fault = -1, NO_MEMORY_LEFT
            if rows >= ALONE_ROWS:
                with nogil:
                    row = put_all(&w, self.count, rows, head, head_size, ends)
            else:
                row = put_all(&w, self.count, rows, head, head_size, ends)
            if row < rows:
                path = self.shape.plan.paths[w.node] if w.node > 0 else ""
                raise SerdeError(f"{at(path)}{WRITE_FAULTS[w.fault].format(number=w.found)}", row)
            return spans(&w, ends, rows) if as_spans else records(&w, ends, rows)
        finally:
            free(w.out.bytes)
            free(made)
            free(ends)

    cdef int describe(self, sources, Source *made) except -1:
        cdef int place
        if len(sources) != self.shape.count:
            raise ValueError(f"{len(sources)} columns, the plan has {self.shape.count}")
        for place in range(self.shape.count):
            length, offset, valid, data, content, size, places = sources[place]
            made[place].length, made[place].offset = length, offset
            made[place].valid = <const uint8_t *> <size_t> valid
            made[place].data = <const uint8_t *> <size_t> data
            made[place].bytes = <const uint8_t *> <size_t> content
            made[place].bytes_size = size
            made[place].places = <const int64_t *> <size_t> places
        return 0


cdef list records(const Writer *w, const int64_t *ends, int64_t rows):
    cdef list made = []
    cdef int64_t row, begin = 0
    for row in range(rows):
        if w.nodes[0].op == OP_NULL or not is_there(w.sources, row + w.sources.offset):
            made.append(None)
            continue
        made.append(PyBytes_FromStringAndSize(<const char *> w.out.bytes + begin, ends[row] - begin))
        begin = ends[row]
    return made


cdef tuple spans(const Writer *w, const int64_t *ends, int64_t rows):
    """Offsets, bytes and validity, as Arrow's large binary has them."""
    cdef const Source *root = w.sources
    cdef int64_t row, nulls = 0
    cdef int64_t zero = 0
    cdef bytearray valid = bytearray((rows + 7) >> 3)
    cdef uint8_t[::1] bits = valid
    for row in range(rows):
        if w.nodes[0].op == OP_NULL or not is_there(root, row + root.offset):
            nulls += 1
        else:
            bits[row >> 3] |= 1 << (row & 7)
    offsets = PyBytes_FromStringAndSize(<const char *> &zero, 8)
    offsets += PyBytes_FromStringAndSize(<const char *> ends, rows * 8)
    data = PyBytes_FromStringAndSize(<const char *> w.out.bytes, w.out.used)
    return offsets, data, bytes(valid) if nulls else None
