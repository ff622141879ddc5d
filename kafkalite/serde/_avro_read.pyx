# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Avro's bytes into columns: runs an `avro_plan` over records, and makes no object of a value. [P]

Bytes are read through raw pointers, so bounds are checked here by hand: every read goes through
`number`, `length` or `take`, which never pass `Reader.end`. Memory comes from a budget in
proportion to the input: what a length claims is held against the bytes left before anything grows.

Owns   the columns of a `Batch`, in buffers as Arrow has them.
Fails  with SerdeError that has the record's index and names the field; the columns are then lost.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from kafkalite.core.protocol._varint cimport read_varint, unlikely
from kafkalite.serde._avro_bytes cimport is_utf8, parse_decimal, parse_uuid
from kafkalite.serde._avro_columns cimport *

from kafkalite.errors import SerdeError
from kafkalite.serde.avro_plan import FAULTS
from kafkalite.serde.avro_schema import at

cdef enum:
    ALONE_BYTES = 65536  # letting other threads run costs more than so many bytes take
    OFFSET_MAX = 0x7FFFFFFF
    BUDGET_LEAST = 16777216
    BUDGET_FACTOR = 64  # a null of one byte may become a number of eight and its bit
    FIRST_ROOM = 16

cdef enum:
    DATE_MIN = -719162  # 0001-01-01, as far as Python's dates go
    DATE_MAX = 2932896  # 9999-12-31

cdef int64_t DAY_MILLIS = 86_400_000
cdef int64_t SECONDS_MIN = -62_135_596_800
cdef int64_t SECONDS_END = 253_402_300_800


cdef struct Reader:
    const uint8_t *at
    const uint8_t *end
    const Node *nodes
    const int32_t *tables
    Store *stores
    const int32_t *parts
    int64_t budget
    int fault
    int node
    int64_t found  # the number that the fault names


# ---- columns ---------------------------------------------------------------------------------


cdef int charge(Reader *r, int64_t bytes) noexcept nogil:
    if bytes > r.budget:
        r.fault, r.found = TOO_MUCH, bytes
        return -1
    r.budget -= bytes
    return 0


cdef int enlarge(Reader *r, uint8_t **buffer, int64_t old, int64_t new) noexcept nogil:
    """Makes room for `new` bytes where there were `old`; what is added is zero."""
    if charge(r, new - old) < 0:
        return -1
    cdef uint8_t *moved = <uint8_t *> realloc(buffer[0], new)
    if moved == NULL:
        r.fault, r.found = NO_MEMORY, new
        return -1
    memset(moved + old, 0, new - old)
    buffer[0] = moved
    return 0


cdef int reserve(Reader *r, Store *s, int64_t room) noexcept nogil:
    """Makes room for so many values."""
    cdef int64_t old = data_bytes(s, s.room) if s.data != NULL else 0
    cdef int64_t new = data_bytes(s, room)
    if new > old and enlarge(r, &s.data, old, new) < 0:
        return -1
    old = (s.room + 7) >> 3 if s.valid != NULL else 0
    new = (room + 7) >> 3
    if s.nullable and new > old and enlarge(r, &s.valid, old, new) < 0:
        return -1
    s.room = room
    return 0


cdef inline int fit(Reader *r, Store *s) noexcept nogil:
    """Makes sure of room for one more value."""
    if unlikely(s.length >= s.room):
        if s.length >= OFFSET_MAX:
            r.fault, r.found = TOO_MUCH, s.length
            return -1
        return reserve(r, s, s.room * 2 if s.room else FIRST_ROOM)
    return 0


cdef inline void mark(Store *s) noexcept nogil:
    """Counts a value that is there."""
    if s.nullable:
        s.valid[s.length >> 3] |= 1 << (s.length & 7)
    s.length += 1


cdef int append_null(Reader *r, int column) noexcept nogil:
    """A null in a column, and in all that it is made of value by value."""
    cdef Store *s = &r.stores[column]
    cdef int part
    if fit(r, s) < 0:
        return -1
    if s.width < -1:
        (<int32_t *> s.data)[s.length + 1] = (<int32_t *> s.data)[s.length]
    s.length += 1
    s.nulls += 1
    if s.kind == KIND_RECORD:
        for part in range(s.part, s.part + s.parts):
            if append_null(r, r.parts[part]) < 0:
                return -1
    return 0


cdef inline int append_bytes(Reader *r, Store *s, const uint8_t *data, int64_t size) noexcept nogil:
    cdef int64_t room, used = s.used + size
    if fit(r, s) < 0:
        return -1
    if unlikely(used > s.bytes_room):
        if used > OFFSET_MAX:
            r.fault, r.found = TOO_MUCH, used
            return -1
        room = max(used, s.bytes_room * 2, 64)
        if enlarge(r, &s.bytes, s.bytes_room, room) < 0:
            return -1
        s.bytes_room = room
    if size:  # nothing may be copied to NULL, not even nothing
        memcpy(s.bytes + s.used, data, size)
    s.used = used
    (<int32_t *> s.data)[s.length + 1] = <int32_t> used
    mark(s)
    return 0


# ---- reading ---------------------------------------------------------------------------------


cdef int fail(Reader *r, int fault, int64_t found) noexcept nogil:
    r.fault, r.found = fault, found
    return -1


cdef inline int number(Reader *r, int64_t *value) noexcept nogil:
    cdef const uint8_t *after
    cdef uint8_t byte
    if r.at < r.end:
        byte = r.at[0]
        if byte < 0x80:
            r.at += 1
            value[0] = (byte >> 1) ^ -(byte & 1)
            return 0
    after = read_varint(r.at, r.end, 64, value)
    if unlikely(after == NULL):
        return fail(r, ENDS_EARLY if r.end - r.at < 10 else TOO_LONG_A_NUMBER, 0)
    r.at = after
    return 0


cdef inline int length(Reader *r, int64_t *value) noexcept nogil:
    """A length in [0, bytes left]."""
    if number(r, value) < 0:
        return -1
    if unlikely(value[0] < 0):
        return fail(r, NEGATIVE_LENGTH, value[0])
    if unlikely(value[0] > r.end - r.at):
        return fail(r, PAST_END, value[0])
    return 0


cdef inline int take(Reader *r, int64_t size, const uint8_t **data) noexcept nogil:
    """So many bytes, which are passed over."""
    if unlikely(size > r.end - r.at):
        return fail(r, ENDS_EARLY, size)
    data[0] = r.at
    r.at += size
    return 0


cdef int append_uuid(Reader *r, Store *s, const uint8_t *text, int64_t size) noexcept nogil:
    if fit(r, s) < 0:
        return -1
    if size != 36 or not parse_uuid(text, s.data + s.length * 16):
        return fail(r, NO_UUID, 0)
    mark(s)
    return 0


cdef int append_decimal(Reader *r, Store *s, const uint8_t *data, int64_t size) noexcept nogil:
    if fit(r, s) < 0:
        return -1
    if not parse_decimal(data, size, s.limit, s.data + s.length * s.width, s.width):
        return fail(r, NO_DECIMAL, 0)
    mark(s)
    return 0


cdef int read_items(Reader *r, int pc, int body, int end) noexcept nogil:
    """The items of an array or a map; `body` to `end` reads one. Its column, if any, grows by one.

    Each item takes a byte at least, so no count beyond the bytes left is believed.
    """
    cdef const Node *node = &r.nodes[pc]
    cdef int64_t count, size
    cdef const uint8_t *data
    cdef Store *s = NULL
    cdef Store *keys = NULL
    cdef int items = -1
    if node.column >= 0:
        s = &r.stores[node.column]
        items = r.parts[s.part + s.parts - 1]
        if node.op == OP_MAP:
            keys = &r.stores[r.parts[s.part]]
        if fit(r, s) < 0:
            return -1
    while True:
        if number(r, &count) < 0:
            return -1
        if count == 0:
            break
        if count < 0:
            if unlikely(count < -OFFSET_MAX):
                return fail(r, PAST_END, count)
            count = -count
            if number(r, &size) < 0:
                return -1
        if unlikely(count > r.end - r.at):
            return fail(r, PAST_END, count)
        while count:
            if node.op == OP_MAP:
                if length(r, &size) < 0 or take(r, size, &data) < 0:
                    return -1
                if keys != NULL:
                    if not is_utf8(data, data + size):
                        return fail(r, NO_TEXT, 0)
                    if append_bytes(r, keys, data, size) < 0:
                        return -1
            if run(r, body, end) < 0:
                return -1
            count -= 1
    if s != NULL:
        (<int32_t *> s.data)[s.length + 1] = <int32_t> r.stores[items].length
        mark(s)
    return 0


cdef int read_number(Reader *r, const Node *node, Store *s) noexcept nogil:
    """What is written as a varint and kept as a number."""
    cdef int64_t value, day
    cdef int op = node.op
    if number(r, &value) < 0 or fit(r, s) < 0:
        return -1
    if op == OP_LONG:
        (<int64_t *> s.data)[s.length] = value
    elif op == OP_INT:
        if unlikely(value != <int32_t> value):
            return fail(r, NO_INT, value)
        (<int32_t *> s.data)[s.length] = <int32_t> value
    elif op == OP_INTEGER_AS_DOUBLE:
        (<double *> s.data)[s.length] = <double> value
    elif op == OP_ENUM:
        if unlikely(value < 0 or value >= r.tables[node.arg]):
            return fail(r, NO_SYMBOL, value)
        (<int32_t *> s.data)[s.length] = r.tables[node.arg + 1 + value]
        if unlikely(r.tables[node.arg + 1 + value] < 0):
            return fail(r, UNKNOWN_SYMBOL, value)
    elif op == OP_DATE:
        if unlikely(value < DATE_MIN or value > DATE_MAX):
            return fail(r, NO_DATE, value)
        (<int32_t *> s.data)[s.length] = <int32_t> value
    elif op == OP_TIME_MILLIS:
        if unlikely(value < 0 or value >= DAY_MILLIS):
            return fail(r, NO_TIME, value)
        (<int32_t *> s.data)[s.length] = <int32_t> value
    else:
        day = 1000 if op == OP_TIMESTAMP_MILLIS else 1_000_000
        if op == OP_TIME_MICROS:
            if unlikely(value < 0 or value >= DAY_MILLIS * 1000):
                return fail(r, NO_TIME, value)
        elif unlikely(value < SECONDS_MIN * day or value >= SECONDS_END * day):
            return fail(r, NO_TIMESTAMP, value)
        (<int64_t *> s.data)[s.length] = value
    mark(s)
    return 0


cdef int read_plain(Reader *r, const Node *node, Store *s) noexcept nogil:
    """What is not written as a varint and has no parts."""
    cdef int64_t size
    cdef const uint8_t *data
    cdef float single
    cdef int op = node.op
    if op in (OP_STRING, OP_BYTES, OP_UUID, OP_DECIMAL):
        if length(r, &size) < 0 or take(r, size, &data) < 0:
            return -1
        if op == OP_STRING and unlikely(not is_utf8(data, data + size)):
            return fail(r, NO_TEXT, 0)
        if op == OP_UUID:
            return append_uuid(r, s, data, size)
        if op == OP_DECIMAL:
            return append_decimal(r, s, data, size)
        return append_bytes(r, s, data, size)
    if op == OP_FIXED_DECIMAL:
        return -1 if take(r, node.arg, &data) < 0 else append_decimal(r, s, data, node.arg)
    if fit(r, s) < 0:
        return -1
    if op == OP_BOOLEAN:
        if take(r, 1, &data) < 0:
            return -1
        if unlikely(data[0] > 1):
            return fail(r, NO_BOOLEAN, data[0])
        s.data[s.length >> 3] |= data[0] << (s.length & 7)
    elif op == OP_FLOAT_AS_DOUBLE:
        if take(r, 4, &data) < 0:
            return -1
        memcpy(&single, data, 4)
        (<double *> s.data)[s.length] = single
    elif op != OP_NULL:  # float, double and fixed lie as they will
        if take(r, s.width, &data) < 0:
            return -1
        if s.width:
            memcpy(s.data + s.length * s.width, data, s.width)
    mark(s)
    return 0


cdef int read_branch(Reader *r, const Node *node) noexcept nogil:
    """The branch of a union: 1 where it is null and was read, 0 where the value follows."""
    cdef int64_t branch
    cdef int null = 0 if node.union_ == UNION_NULL_FIRST else 1
    if number(r, &branch) < 0:
        return -1
    if node.union_ == UNION_SOLE:
        return 0 if branch == 0 else fail(r, NO_BRANCH, branch)
    if unlikely(branch != 0 and branch != 1):
        return fail(r, NO_BRANCH, branch)
    if branch != null:
        return 0
    if node.column >= 0:
        if unlikely(not node.null_ok):
            return fail(r, NO_NULL, 0)
        if append_null(r, node.column) < 0:
            return -1
    return 1


cdef int skip_branch(Reader *r, int pc) noexcept nogil:
    """Passes over a value of a union of several types."""
    cdef int64_t branch
    cdef int part = pc + 1
    if number(r, &branch) < 0:
        return -1
    if unlikely(branch < 0 or branch >= r.nodes[pc].arg):
        return fail(r, NO_BRANCH, branch)
    while branch:
        part = r.nodes[part].end
        branch -= 1
    return run(r, part, r.nodes[part].end)


cdef int skip(Reader *r, int pc) noexcept nogil:
    """Passes over a value that has no column."""
    cdef const Node *node = &r.nodes[pc]
    cdef int64_t size = node.arg
    cdef const uint8_t *data
    if node.op == OP_SKIP_NUMBER:
        return number(r, &size)
    if node.op == OP_SKIP_BYTES and length(r, &size) < 0:
        return -1
    if node.op == OP_RECORD:
        return run(r, pc + 1, node.end)
    if node.op in (OP_ARRAY, OP_MAP):
        return read_items(r, pc, pc + 1, node.end)
    if node.op == OP_SKIP_UNION:
        return skip_branch(r, pc)
    if node.op == OP_NULL:
        return 0
    return take(r, size, &data)


cdef int run(Reader *r, int pc, int end) noexcept nogil:
    """Reads the values of the nodes from `pc` to `end`. As deep as the plan, which is bounded."""
    cdef const Node *node
    cdef Store *s
    cdef int op, branch, status
    while pc < end:
        node = &r.nodes[pc]
        if node.union_ != UNION_NONE:
            branch = read_branch(r, node)
            if branch:
                if unlikely(branch < 0):
                    if r.node < 0:
                        r.node = pc
                    return -1
                pc = node.end
                continue
        op = node.op
        if node.column < 0:
            status = skip(r, pc)
        else:
            s = &r.stores[node.column]
            if op in (OP_INT, OP_LONG, OP_INTEGER_AS_DOUBLE, OP_ENUM, OP_DATE, OP_TIME_MILLIS,
                      OP_TIME_MICROS, OP_TIMESTAMP_MILLIS, OP_TIMESTAMP_MICROS):
                status = read_number(r, node, s)
            elif op == OP_RECORD:
                status = fit(r, s)
                if status == 0:
                    mark(s)
                    status = run(r, pc + 1, node.end)
            elif op in (OP_ARRAY, OP_MAP):
                status = read_items(r, pc, pc + 1, node.end)
            else:
                status = read_plain(r, node, s)
        if unlikely(status < 0):
            if r.node < 0:
                r.node = pc
            return -1
        pc = node.end
    return 0


# ---- programs --------------------------------------------------------------------------------


def common_head(values, Py_ssize_t size):
    """The first bytes of all records, None where they differ, are fewer, or no record is there."""
    cdef const uint8_t *head = NULL
    cdef const uint8_t *found
    for value in values:
        if value is None:
            continue
        if type(value) is not bytes or PyBytes_GET_SIZE(value) < size:
            return None
        found = <const uint8_t *> PyBytes_AS_STRING(value)
        if head == NULL:
            head, first = found, value
        elif memcmp(head, found, size) != 0:
            return None
    return None if head == NULL else first[:size]


def common_head_of_spans(data, starts, ends, Py_ssize_t size):
    """The same of records that lie in one buffer, as `decode_spans` takes them."""
    cdef const uint8_t[::1] lying = data
    cdef const int64_t[::1] first = memoryview(starts).cast("B").cast("q")
    cdef const int64_t[::1] last = memoryview(ends).cast("B").cast("q")
    cdef Py_ssize_t i, head = -1
    if last.shape[0] != first.shape[0]:
        raise ValueError(f"{first.shape[0]} starts and {last.shape[0]} ends")
    for i in range(first.shape[0]):
        if first[i] == -1:
            continue
        if not 0 <= first[i] <= last[i] <= lying.shape[0]:
            raise ValueError(f"record {i}: [{first[i]}, {last[i]}) of {lying.shape[0]} bytes")
        if last[i] - first[i] < size:
            return None
        if head < 0:
            head = first[i]
        elif memcmp(&lying[head], &lying[first[i]], size) != 0:
            return None
    return None if head < 0 else bytes(lying[head : head + size])


@cython.final
cdef class Decoder(Program):
    """A plan's program, ready to read records."""

    def decode(self, values, Py_ssize_t skip=0):
        """The columns of records, each without its first `skip` bytes; None is a null row."""
        cdef tuple held = tuple(values)
        cdef Py_ssize_t rows = len(held), i
        cdef const uint8_t **spans = <const uint8_t **> malloc((2 * rows + 1) * sizeof(void *))
        cdef int64_t total = 0
        if spans == NULL:
            raise MemoryError
        try:
            for i in range(rows):
                value = held[i]
                if value is None:
                    spans[2 * i] = spans[2 * i + 1] = NULL
                    continue
                if type(value) is not bytes:
                    raise TypeError(f"record {i}: {type(value).__name__}, expected bytes")
                spans[2 * i] = <const uint8_t *> PyBytes_AS_STRING(value) + skip
                spans[2 * i + 1] = spans[2 * i] - skip + PyBytes_GET_SIZE(value)
                total += PyBytes_GET_SIZE(value)
            return self._columns(spans, rows, total)
        finally:
            free(spans)

    def decode_spans(self, data, starts, ends, Py_ssize_t skip=0):
        """The columns of records that lie in one buffer. `starts` and `ends` are buffers of
        int64: a record's first byte, -1 for a null row, and the byte after its last."""
        cdef Py_buffer view
        cdef const int64_t[::1] first = memoryview(starts).cast("B").cast("q")
        cdef const int64_t[::1] last = memoryview(ends).cast("B").cast("q")
        cdef Py_ssize_t rows = first.shape[0], i
        cdef const uint8_t **spans
        if last.shape[0] != rows:
            raise ValueError(f"{rows} starts and {last.shape[0]} ends")
        spans = <const uint8_t **> malloc((2 * rows + 1) * sizeof(void *))
        if spans == NULL:
            raise MemoryError
        try:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                for i in range(rows):
                    if first[i] == -1:
                        spans[2 * i] = spans[2 * i + 1] = NULL
                        continue
                    if not 0 <= first[i] <= last[i] <= view.len:
                        raise ValueError(f"record {i}: [{first[i]}, {last[i]}) of {view.len} bytes")
                    spans[2 * i] = <const uint8_t *> view.buf + first[i] + skip
                    spans[2 * i + 1] = <const uint8_t *> view.buf + last[i]
                return self._columns(spans, rows, view.len)
            finally:
                PyBuffer_Release(&view)
        finally:
            free(spans)

    cdef Batch _columns(self, const uint8_t **spans, Py_ssize_t rows, int64_t total):
        cdef Batch batch = Batch(self.shape, rows)
        cdef Reader r
        cdef Py_ssize_t row
        cdef int64_t budget
        memset(&r, 0, sizeof(Reader))
        r.nodes, r.tables = self.nodes, self.tables
        r.stores, r.parts = batch.stores, self.shape.parts
        r.node = -1
        r.budget = budget = BUDGET_LEAST + BUDGET_FACTOR * total
        if total >= ALONE_BYTES:
            with nogil:
                row = run_all(&r, spans, rows, self.count)
        else:
            row = run_all(&r, spans, rows, self.count)
        if row < rows:
            number = budget if r.fault == TOO_MUCH else r.found
            path = self.shape.plan.paths[r.node] if r.node > 0 else ""
            raise SerdeError(f"{at(path)}{FAULTS[r.fault].format(number=number)}", row)
        return batch


cdef int reserve_rows(Reader *r, int column, Py_ssize_t rows) noexcept nogil:
    """Makes room for each record's value in a column and what it is made of value by value."""
    cdef Store *s = &r.stores[column]
    cdef int part
    if reserve(r, s, rows) < 0:
        return -1
    if s.kind == KIND_RECORD:
        for part in range(s.part, s.part + s.parts):
            if reserve_rows(r, r.parts[part], rows) < 0:
                return -1
    return 0


cdef Py_ssize_t run_all(
    Reader *r, const uint8_t **spans, Py_ssize_t rows, int nodes
) noexcept nogil:
    """Runs the program over each record; the index of the record that failed, `rows` if none."""
    cdef Py_ssize_t row
    if reserve_rows(r, 0, rows) < 0:
        return 0 if rows else rows
    for row in range(rows):
        if spans[2 * row] == NULL:
            if append_null(r, 0) < 0:
                return row
            continue
        r.at, r.end = spans[2 * row], spans[2 * row + 1]
        if unlikely(r.at > r.end):
            r.fault = ENDS_EARLY
            return row
        if run(r, 0, nodes) < 0:
            return row
        if unlikely(r.at != r.end):
            r.fault, r.found = LEFT_OVER, r.end - r.at
            return row
    return rows
