# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The rows of a segment without an object for each; see segment_rows.py.                     [P]

    chunk    memory that keys and rows are laid into, one behind the other; nothing in it moves
    entry    a key, and the chain of its rows in the order of their arrival
    slot     open addressing: where an entry lies
    heap     rows that wait, and some that did, by timestamp, key and arrival

Owns   its memory, which goes as a whole.
Fails  with MemoryError; TypeError for a key or value that is no bytes.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from kafkalite.streams.local._key_hash cimport hash_of

INTERFACE = 1  # raised whenever this module and segment_rows.py agree on something else

cdef enum:
    CHUNK_BYTES = 1 << 18
    CHUNK_MIN = 1 << 12  # of the first chunk; each is twice as large as the one before
    SLOTS_MIN = 64
    PAGES = 64
    VERSION = 1
    PLAIN = 0  # kinds of events: segment_rows.py
    KIND_WAITS = 1
    KIND_MET = 2

cdef extern from *:
    """
    static uint32_t segment_crc_table[256];
    static void segment_crc_prepare(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            segment_crc_table[i] = c;
        }
    }
    static uint32_t segment_crc(const char *data, Py_ssize_t size) {
        uint32_t c = 0xFFFFFFFFu;
        for (Py_ssize_t i = 0; i < size; i++)
            c = segment_crc_table[(c ^ (uint8_t) data[i]) & 0xFF] ^ (c >> 8);
        return c ^ 0xFFFFFFFFu;
    }
    """
    void segment_crc_prepare()
    uint32_t segment_crc(const char *, Py_ssize_t) noexcept

segment_crc_prepare()
cdef uint64_t SEED = <uint64_t> hash(b"kafkalite segments") | 1  # of its own in each process


cdef uint64_t hashed(const char *key, Py_ssize_t size) noexcept:
    return hash_of(key, size, 0, SEED)


cdef int listed(Listed *some, Row *row) except -1:
    """Adds a row to a list."""
    cdef Py_ssize_t room
    if some.count == some.room:
        room = max(64, some.room * 2)
        rows = <Row **> realloc(some.rows, room * sizeof(Row *))
        if rows == NULL:
            raise MemoryError
        some.rows, some.room = rows, room
    some.rows[some.count] = row
    some.count += 1
    return 0


cdef bint is_before(const Row *one, const Row *other) noexcept:
    """By timestamp, key and arrival."""
    cdef int order
    if one.stamp != other.stamp:
        return one.stamp < other.stamp
    if one.entry == other.entry:
        return one.number < other.number
    order = memcmp(
        key_bytes(one.entry), key_bytes(other.entry), min(one.entry.size, other.entry.size)
    )
    return order < 0 or (order == 0 and one.entry.size < other.entry.size)


@cython.final
cdef class SegmentRows:
    """Rows by key, in the order of their arrival."""

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._chunk_count):
            free(self._chunks[i])
        free(self._chunks)
        free(self._slots)
        free(self._news.rows)
        free(self._mets.rows)
        free(self._heap.rows)

    def __len__(self):
        return self._count

    @property
    def bytes_held(self):
        """The memory of all of it."""
        lists = self._news.room + self._mets.room + self._heap.room
        return self._held + (self._slot_count + lists) * sizeof(void *)

    @property
    def has_news(self):
        """Whether there is something that the changelog has not seen."""
        return self._news.count > 0 or self._mets.count > 0

    # Memory

    cdef char *_room_for(self, Py_ssize_t size) except NULL:
        """Memory for an entry or a row."""
        cdef Py_ssize_t least
        cdef char *place
        cdef char **chunks
        size = (size + 7) & ~7
        if self._used + size > self._size:
            least = CHUNK_BYTES if self._chunk_count > 6 else CHUNK_MIN << self._chunk_count
            chunks = <char **> realloc(self._chunks, (self._chunk_count + 1) * sizeof(char *))
            if chunks == NULL:
                raise MemoryError
            self._chunks = chunks
            place = <char *> malloc(max(size, least))
            if place == NULL:
                raise MemoryError
            chunks[self._chunk_count] = place
            self._chunk_count += 1
            self._used, self._size = 0, max(size, least)
            self._held += self._size
        place = self._chunks[self._chunk_count - 1] + self._used
        self._used += size
        return place

    cdef Entry *find(self, const char *key, Py_ssize_t size, uint64_t h) noexcept:
        """The entry of a key; NULL: it has none."""
        cdef uint64_t mask = self._slot_count - 1, at = h & mask
        cdef Entry *entry
        if self._slot_count == 0:
            return NULL
        while True:
            entry = self._slots[at]
            if entry == NULL:
                return NULL
            if (
                entry.hash == h
                and entry.size == <uint32_t> size
                and memcmp(key_bytes(entry), key, size) == 0
            ):
                return entry
            at = (at + 1) & mask

    cdef int _grow(self) except -1:
        """Slots for one more entry: two thirds are used at most."""
        cdef Py_ssize_t i, count = max(SLOTS_MIN, self._slot_count * 2)
        cdef Entry **slots
        cdef uint64_t at
        if (self._entries + 1) * 3 <= self._slot_count * 2:
            return 0
        slots = <Entry **> calloc(count, sizeof(Entry *))
        if slots == NULL:
            raise MemoryError
        for i in range(self._slot_count):
            if self._slots[i] != NULL:
                at = self._slots[i].hash & (count - 1)
                while slots[at] != NULL:
                    at = (at + 1) & (count - 1)
                slots[at] = self._slots[i]
        free(self._slots)
        self._slots, self._slot_count = slots, count
        return 0

    cdef Entry *_entry(self, const char *key, Py_ssize_t size, uint64_t h) except NULL:
        cdef Entry *entry = self.find(key, size, h)
        cdef uint64_t at
        if entry != NULL:
            return entry
        self._grow()
        entry = <Entry *> self._room_for(sizeof(Entry) + size)
        entry.hash, entry.size = h, <uint32_t> size
        entry.page = segment_crc(key, size) % PAGES
        entry.first = entry.last = NULL
        memcpy(<char *> (entry + 1), key, size)
        at = h & (self._slot_count - 1)
        while self._slots[at] != NULL:
            at = (at + 1) & (self._slot_count - 1)
        self._slots[at] = entry
        self._entries += 1
        return entry

    cdef Row *add(
        self, const char *key, Py_ssize_t key_size, uint64_t h, int64_t stamp,
        const char *value, Py_ssize_t size, uint8_t flags,
    ) except NULL:
        """A row that came."""
        cdef Entry *entry
        cdef Row *row
        if key_size > INT32_MAX or size > INT32_MAX or self._count == INT32_MAX:
            raise MemoryError(f"a row of {size} bytes, with a key of {key_size}")
        entry = self._entry(key, key_size, h)
        row = <Row *> self._room_for(sizeof(Row) + size)
        row.next, row.entry, row.stamp = NULL, entry, stamp
        row.size, row.number, row.flags = <uint32_t> size, self._count, flags
        memcpy(<char *> (row + 1), value, size)
        if entry.last == NULL:
            entry.first = row
        else:
            entry.last.next = row
        entry.last = row
        self._count += 1
        if not flags & LOGGED:
            listed(&self._news, row)
        if flags & WAITS:
            self._push(row)
        return row

    # Rows that wait

    cdef int _push(self, Row *row) except -1:
        cdef Py_ssize_t at, above
        cdef Row **heap
        listed(&self._heap, row)
        heap, at = self._heap.rows, self._heap.count - 1
        while at:
            above = (at - 1) >> 1
            if not is_before(row, heap[above]):
                break
            heap[at] = heap[above]
            at = above
        heap[at] = row
        return 0

    cdef void _pop(self) noexcept:
        cdef Py_ssize_t at = 0, below
        cdef Row **heap = self._heap.rows
        cdef Row *row
        self._heap.count -= 1
        if self._heap.count == 0:
            return
        row = heap[self._heap.count]
        while True:
            below = 2 * at + 1
            if below >= self._heap.count:
                break
            if below + 1 < self._heap.count and is_before(heap[below + 1], heap[below]):
                below += 1
            if not is_before(heap[below], row):
                break
            heap[at] = heap[below]
            at = below
        heap[at] = row

    cdef int met(self, Row *row) except -1:
        """A row waits no more."""
        row.flags &= ~WAITS
        if row.flags & LOGGED:
            listed(&self._mets, row)
        return 0

    cdef int64_t first_wait(self) noexcept:
        """The least timestamp of rows that wait; the greatest number where none does."""
        while self._heap.count:
            if self._heap.rows[0].flags & WAITS:
                return self._heap.rows[0].stamp
            self._pop()
        return INT64_MAX

    cdef Row *overdue(self, int64_t limit) except? NULL:
        """The first row that waits and is not newer than this: it waits no more."""
        cdef Row *row
        if self.first_wait() > limit or not self._heap.count:
            return NULL
        row = self._heap.rows[0]
        self._pop()
        self.met(row)
        return row

    # What callers do

    @property
    def next_wait(self):
        """The least timestamp of rows that wait; None: none does."""
        cdef int64_t found = self.first_wait()
        return found if self._heap.count else None

    def put(self, key, int64_t stamp, value, bint waits=False, bint is_logged=False):
        """Adds a row."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(checked(key))
        cdef const char *data = PyBytes_AS_STRING(key)
        self.add(
            data, size, hashed(data, size), stamp,
            PyBytes_AS_STRING(checked(value)), PyBytes_GET_SIZE(value),
            (WAITS if waits else 0) | (LOGGED if is_logged else 0),
        )

    def matches(self, key, int64_t low, int64_t high):
        """The rows of a key in a span of time, as they arrived."""
        cdef Row *row = self._first(key)
        cdef list found = []
        while row != NULL:
            if low <= row.stamp <= high:
                found.append((row.stamp, value_of(row)))
            row = row.next
        return found

    def meet(self, key, int64_t low, int64_t high, bint is_logged=False):
        """The rows of a key in a span of time wait no more."""
        cdef Row *row = self._first(key)
        while row != NULL:
            if row.flags & WAITS and low <= row.stamp <= high:
                if is_logged:
                    row.flags &= ~WAITS
                else:
                    self.met(row)
            row = row.next

    def expire(self, int64_t limit):
        """The rows that waited, up to this time: by timestamp, key and arrival."""
        cdef Row *row = self.overdue(limit)
        cdef list found = []
        while row != NULL:
            key = PyBytes_FromStringAndSize(key_bytes(row.entry), row.entry.size)
            found.append((row.stamp, key, value_of(row)))
            row = self.overdue(limit)
        return found

    def take_news(self, Py_ssize_t bytes_max):
        """What the changelog has not seen: pages, pieces and their newest timestamps."""
        cdef Py_ssize_t starts[PAGES + 1]
        cdef Py_ssize_t i, page, count = self._mets.count + self._news.count
        cdef Row **rows = <Row **> malloc((count + 1) * sizeof(Row *))
        cdef Row *row
        cdef list found = []
        if rows == NULL:
            raise MemoryError
        try:
            for page in range(PAGES + 1):
                starts[page] = 0
            for i in range(count):
                starts[self._event(i).entry.page + 1] += 1
            for page in range(PAGES):
                starts[page + 1] += starts[page]
            for i in range(count):
                row = self._event(i)
                rows[starts[row.entry.page]] = row
                starts[row.entry.page] += 1
            i = 0
            for page in range(PAGES):
                if starts[page] > i:
                    packed(found, page, rows + i, starts[page] - i, bytes_max)
                i = starts[page]
            for i in range(self._news.count):
                self._news.rows[i].flags |= LOGGED
        finally:
            free(rows)
        emptied(&self._mets)
        emptied(&self._news)
        return found

    cdef Row *_event(self, Py_ssize_t i) noexcept:
        """The rows that met come before the new ones."""
        if i < self._mets.count:
            return self._mets.rows[i]
        return self._news.rows[i - self._mets.count]

    cdef Row *_first(self, key) except? NULL:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(checked(key))
        cdef const char *data = PyBytes_AS_STRING(key)
        cdef Entry *entry = self.find(data, size, hashed(data, size))
        return NULL if entry == NULL else entry.first


cdef object checked(object data):
    if type(data) is not bytes:
        raise TypeError(f"bytes expected, got {type(data).__name__}")
    return data


cdef object value_of(const Row *row):
    return PyBytes_FromStringAndSize(value_bytes(row), row.size)


cdef void emptied(Listed *some) noexcept:
    free(some.rows)
    some.rows, some.count, some.room = NULL, 0, 0


# Pieces, as msgpack writes them: [version, keys, timestamps, values, kinds]


cdef int packed(
    list found, Py_ssize_t page, Row **rows, Py_ssize_t count, Py_ssize_t bytes_max
) except -1:
    """Adds the events of a page as pieces, none larger than it may be unless it is of one row."""
    cdef Py_ssize_t i, size = 32, half = count // 2
    cdef int64_t newest = 0
    cdef uint8_t *at
    cdef uint8_t *begin
    for i in range(count):
        size += rows[i].entry.size + rows[i].size + 32
        newest = max(newest, rows[i].stamp)
    begin = at = <uint8_t *> malloc(size)
    if begin == NULL:
        raise MemoryError
    try:
        at = head(at, 0x90, 15, 0xDC, 5)
        at = number(at, VERSION)
        at = head(at, 0x90, 15, 0xDC, count)
        for i in range(count):
            at = content(at, key_bytes(rows[i].entry), rows[i].entry.size)
        at = head(at, 0x90, 15, 0xDC, count)
        for i in range(count):
            at = number(at, rows[i].stamp)
        at = head(at, 0x90, 15, 0xDC, count)
        for i in range(count):
            if rows[i].flags & LOGGED:
                at[0] = 0xC0
                at += 1
            else:
                at = content(at, value_bytes(rows[i]), rows[i].size)
        at = head(at, 0x90, 15, 0xDC, count)
        for i in range(count):
            at[0] = KIND_MET if rows[i].flags & LOGGED else rows[i].flags & WAITS
            at += 1
        size = at - begin
        if size <= bytes_max or count == 1:
            piece = PyBytes_FromStringAndSize(<const char *> begin, size)
            found.append((page, piece, newest))
            return 0
    finally:
        free(begin)
    packed(found, page, rows, half, bytes_max)
    packed(found, page, rows + half, count - half, bytes_max)
    return 0


cdef uint8_t *big_endian(uint8_t *at, uint64_t value, int size) noexcept:
    cdef int i
    for i in range(size):
        at[i] = <uint8_t> (value >> (8 * (size - 1 - i)))
    return at + size


cdef uint8_t *head(uint8_t *at, uint8_t few, int few_max, uint8_t mark, Py_ssize_t count) noexcept:
    """Of an array."""
    if count <= few_max:
        at[0] = few | <uint8_t> count
        return at + 1
    at[0] = mark if count <= 0xFFFF else mark + 1
    return big_endian(at + 1, count, 2 if count <= 0xFFFF else 4)


cdef uint8_t *number(uint8_t *at, uint64_t value) noexcept:
    """A number that is not negative."""
    if value < 0x80:
        at[0] = <uint8_t> value
        return at + 1
    if value <= 0xFF:
        at[0] = 0xCC
        return big_endian(at + 1, value, 1)
    if value <= 0xFFFF:
        at[0] = 0xCD
        return big_endian(at + 1, value, 2)
    at[0] = 0xCE if value <= 0xFFFFFFFF else 0xCF
    return big_endian(at + 1, value, 4 if value <= 0xFFFFFFFF else 8)


cdef uint8_t *content(uint8_t *at, const char *data, uint32_t size) noexcept:
    """Bytes."""
    if size <= 0xFF:
        at[0] = 0xC4
        at = big_endian(at + 1, size, 1)
    elif size <= 0xFFFF:
        at[0] = 0xC5
        at = big_endian(at + 1, size, 2)
    else:
        at[0] = 0xC6
        at = big_endian(at + 1, size, 4)
    memcpy(at, data, size)
    return at + size
