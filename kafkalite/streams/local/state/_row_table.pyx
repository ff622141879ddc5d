# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Rows as bytes in one table, without an object for each; see row_table.py.                   [P]

    chunk      memory that records are laid into, one behind the other
    record     Head, key, row; a dead one is replaced or deleted
    slot       open addressing: the first 28 bits of the key's hash, and where the record lies
               (0: never used, 1: deleted). The hash's first bits are the slot, so a table that
               grows is copied from front to end, without a look at its records

A row that fits where the old one was goes there. Else the old record is dead. Once half of all
memory is of dead ones, each call moves what is live in the emptiest chunks, and frees them.

Owns   its memory. Nothing here lets another thread run, so no lock is needed.
"""

cimport cython
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport INT32_MAX, UINT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from kafkalite.core.protocol._int64s cimport Int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._spans cimport Spans
from kafkalite.streams.local._key_hash cimport hash_of
from kafkalite.streams.local.state._row_order cimport (
    DEAD,
    Head,
    Order,
    Sorting,
    Text,
    behind,
    is_dead,
    key_of,
    prefetched,
    row_of,
    sort_on,
    stride_of,
    text_of,
)

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 2  # raised whenever this module and row_table.py agree on something else

cdef enum:
    CHUNK_BITS = 18
    CHUNK_BYTES = 1 << CHUNK_BITS
    PLACE_BITS = CHUNK_BITS - 2  # records begin at multiples of four
    REF_BITS = 36
    HASH_BITS = 64
    TAG_BITS = HASH_BITS - REF_BITS
    CHUNKS_MAX = 1 << (REF_BITS - PLACE_BITS)  # 256 GiB
    DELETED = 1
    SLOT_BITS_MIN = 6
    GONE = -1  # the size of a row that is kept as a deletion
    GARBAGE_MIN = 1 << 20  # less is not collected
    AHEAD = 16  # records whose memory is asked for before they are looked at
    AT_ONCE = 10000  # fewer are sorted in one go
    START_BYTES = 8  # of a window
    STAMP_BYTES = 9  # of what stands before a value: see forms.py

cdef uint64_t SEED = <uint64_t> hash(b"kafkalite") | 1  # of its own in each process
cdef uint64_t REF_MASK = (<uint64_t> 1 << REF_BITS) - 1

cdef struct Chunk:
    char *bytes
    uint64_t used
    uint64_t size
    uint64_t live

@cython.final
cdef class RowTable:
    """Rows by key. With `keeps_deletions` a row that is deleted stays as a deletion."""

    cdef uint64_t *_slots
    cdef int _bits  # of a slot's number
    cdef uint64_t _used_slots  # deleted ones, too
    cdef Py_ssize_t _entries, _deletions
    cdef Chunk *_chunks
    cdef Py_ssize_t _chunk_count, _chunk_room
    cdef Py_ssize_t _current  # the chunk that records go to, -1: none yet
    cdef uint64_t _held, _live  # bytes of chunks, of records that are not dead
    cdef bint _keeps
    cdef readonly Py_ssize_t version  # another one after each change
    cdef char *_turned  # room for a key
    cdef Py_ssize_t _turned_room

    def __cinit__(self, *, keeps_deletions=False):
        self._keeps = keeps_deletions
        self._current = -1

    def __dealloc__(self):
        self._free()

    cdef void _free(self) noexcept:
        cdef Py_ssize_t i
        for i in range(self._chunk_count):
            free(self._chunks[i].bytes)
        free(self._chunks)
        free(self._slots)
        free(self._turned)

    def clear(self):
        """Deletes everything."""
        self._free()
        self._chunks, self._slots, self._turned = NULL, NULL, NULL
        self._used_slots = self._held = self._live = self._bits = 0
        self._entries = self._deletions = self._chunk_count = self._chunk_room = 0
        self._turned_room = 0
        self._current, self.version = -1, self.version + 1

    def __len__(self):
        """How many rows there are, with the deletions."""
        return self._entries

    @property
    def rows(self):
        """How many rows there are."""
        return self._entries - self._deletions

    @property
    def bytes_held(self):
        """The memory of all of it."""
        return self._held + self._slot_count() * sizeof(uint64_t)

    # Memory

    cdef inline uint64_t _slot_count(self) noexcept nogil:
        return 0 if self._slots == NULL else <uint64_t> 1 << self._bits

    cdef inline Head *_at(self, uint64_t slot) noexcept nogil:
        cdef uint64_t ref = slot & REF_MASK
        return <Head *> (
            self._chunks[(ref >> PLACE_BITS) - 1].bytes + ((ref << 2) & (CHUNK_BYTES - 1))
        )

    cdef Head *_new_record(self, uint64_t stride, uint64_t *ref) except NULL:
        """Room for a record; `ref` becomes its place."""
        cdef Chunk *chunk
        cdef Head *record
        cdef Py_ssize_t at = self._current
        if stride > UINT32_MAX:
            raise MemoryError(f"a row of {stride} bytes")
        if at < 0 or self._chunks[at].used + stride > self._chunks[at].size:
            at = self._new_chunk(max(stride, <uint64_t> CHUNK_BYTES))
            if stride <= CHUNK_BYTES:
                self._current = at
        chunk = &self._chunks[at]
        record = <Head *> (chunk.bytes + chunk.used)
        ref[0] = (<uint64_t> at + 1) << PLACE_BITS | chunk.used >> 2
        chunk.used += stride
        chunk.live += stride
        self._live += stride
        record.stride = <uint32_t> stride
        return record

    cdef Py_ssize_t _new_chunk(self, uint64_t size) except -1:
        cdef Py_ssize_t at
        cdef char *made
        for at in range(self._chunk_count):
            if self._chunks[at].bytes == NULL:
                break
        else:
            at = self._chunk_count
        if at + 1 >= CHUNKS_MAX:
            raise MemoryError(f"{at} chunks of rows")
        if at == self._chunk_room:
            room = max(8, self._chunk_room * 2)
            chunks = <Chunk *> realloc(self._chunks, room * sizeof(Chunk))
            if chunks == NULL:
                raise MemoryError
            self._chunks, self._chunk_room = chunks, room
        made = <char *> malloc(size)
        if made == NULL:
            raise MemoryError
        self._chunks[at].bytes, self._chunks[at].size = made, size
        self._chunks[at].used = self._chunks[at].live = 0
        self._chunk_count = max(self._chunk_count, at + 1)
        self._held += size
        return at

    cdef void _free_chunk(self, Py_ssize_t at) noexcept:
        self._held -= self._chunks[at].size
        free(self._chunks[at].bytes)
        memset(&self._chunks[at], 0, sizeof(Chunk))

    cdef void _bury(self, uint64_t slot) noexcept:
        """The record is dead."""
        cdef Head *record = self._at(slot)
        cdef Py_ssize_t at = ((slot & REF_MASK) >> PLACE_BITS) - 1
        self._live -= record.stride
        self._chunks[at].live -= record.stride
        record.stride |= DEAD
        if not self._chunks[at].live and at != self._current:
            self._free_chunk(at)

    cdef int _collect(self) except -1:
        """Moves records together while more than half of the memory is of dead ones."""
        cdef Py_ssize_t at, emptiest, left = self._chunk_count
        while left and self._held > 2 * self._live + GARBAGE_MIN:
            left -= 1
            emptiest = -1
            for at in range(self._chunk_count):
                if at == self._current or self._chunks[at].bytes == NULL:
                    continue
                if emptiest < 0 or self._chunks[at].live < self._chunks[emptiest].live:
                    emptiest = at
            if emptiest < 0:
                return 0
            self._evacuate(emptiest)
        return 0

    cdef int _evacuate(self, Py_ssize_t at) except -1:
        cdef Head *record = <Head *> self._chunks[at].bytes
        cdef char *end = self._chunks[at].bytes + self._chunks[at].used
        cdef Head *moved
        cdef uint64_t ref, place, size
        while <char *> record < end:
            if not is_dead(record):
                place = self._slot_of(record)
                size = record.stride
                moved = self._new_record(size, &ref)
                memcpy(moved, record, size)
                self._slots[place] = (self._slots[place] & ~REF_MASK) | ref
                self._live -= size
            record = behind(record)
        self._free_chunk(at)
        return 0

    # Slots

    cdef uint64_t _slot_of(self, const Head *record) noexcept nogil:
        """The slot of a record that is not dead."""
        cdef uint64_t mask = self._slot_count() - 1
        cdef uint64_t i = hash_of(key_of(record), record.key_size, 0, SEED) >> (HASH_BITS - self._bits)
        while self._slots[i] <= DELETED or self._at(self._slots[i]) != record:
            i = (i + 1) & mask
        return i

    cdef int64_t _find(self, const char *key, Py_ssize_t size, uint64_t h) noexcept nogil:
        """The slot of a key; -1: there is none."""
        cdef uint64_t i = h >> (HASH_BITS - self._bits), mask = self._slot_count() - 1
        cdef uint64_t tag = h >> REF_BITS, slot
        cdef const Head *record
        if self._slots == NULL:
            return -1
        while True:
            slot = self._slots[i]
            if slot == 0:
                return -1
            if slot != DELETED and slot >> REF_BITS == tag:
                record = self._at(slot)
                if record.key_size == <uint32_t> size and memcmp(key_of(record), key, size) == 0:
                    return i
            i = (i + 1) & mask

    cdef int _make_room(self) except -1:
        """A slot for one more record: two thirds are used at most."""
        cdef uint64_t i, slot, at, mask, count = self._slot_count()
        cdef uint64_t *slots
        cdef const Head *record
        cdef int bits = SLOT_BITS_MIN
        if (self._used_slots + 1) * 3 <= count * 2:
            return 0
        while <uint64_t> 1 << bits < 2 * <uint64_t> (self._entries + 1):
            bits += 1
        slots = <uint64_t *> calloc(<uint64_t> 1 << bits, sizeof(uint64_t))
        if slots == NULL:
            raise MemoryError
        mask = (<uint64_t> 1 << bits) - 1
        for i in range(count):
            slot = self._slots[i]
            if slot <= DELETED:
                continue
            if bits <= TAG_BITS:
                at = slot >> (HASH_BITS - bits)
            else:
                record = self._at(slot)
                at = hash_of(key_of(record), record.key_size, 0, SEED) >> (HASH_BITS - bits)
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = slot
        free(self._slots)
        self._slots, self._bits, self._used_slots = slots, bits, <uint64_t> self._entries
        return 0

    cdef int _set(
        self, const char *key, Py_ssize_t size, uint64_t h, Text row, bint is_row
    ) except -1:
        """Puts a row of a key, or deletes it."""
        cdef int64_t found = self._find(key, size, h)
        cdef Py_ssize_t row_size = row.first_size + row.second_size if is_row else 0
        cdef uint64_t stride = stride_of(size, row_size), ref, i
        cdef Head *record
        if row_size > INT32_MAX or size > INT32_MAX:
            raise MemoryError(f"a row of {row_size} bytes, with a key of {size}")
        if found >= 0:
            record = self._at(self._slots[found])
            self._deletions -= record.row_size == GONE
            if not is_row and not self._keeps:
                self._bury(self._slots[found])
                self._slots[found] = DELETED
                self._entries -= 1
                return 0
            if record.stride < stride or record.stride > 2 * stride:
                i = self._slots[found]
                record = self._new_record(stride, &ref)
                self._slots[found] = (i & ~REF_MASK) | ref
                self._bury(i)
        elif not is_row and not self._keeps:
            return 0
        else:
            self._make_room()
            record = self._new_record(stride, &ref)
            i = h >> (HASH_BITS - self._bits)
            while self._slots[i] > DELETED:
                i = (i + 1) & (self._slot_count() - 1)
            self._used_slots += self._slots[i] == 0
            self._slots[i] = h >> REF_BITS << REF_BITS | ref
            self._entries += 1
        self._deletions += not is_row
        record.key_size = <uint32_t> size
        memcpy(<char *> (record + 1), key, size)
        record.row_size = <int32_t> row_size if is_row else GONE
        if row_size:
            memcpy(row_of(record), row.first, row.first_size)
            memcpy(row_of(record) + row.first_size, row.second, row.second_size)
        return 0

    cdef const char *_with_start_first(self, const char *key, Py_ssize_t size) except NULL:
        """A window's start stands behind the key in the changelog, and before it here."""
        if size > self._turned_room:
            room = max(256, 2 * size)
            turned = <char *> realloc(self._turned, room)
            if turned == NULL:
                raise MemoryError
            self._turned, self._turned_room = turned, room
        memcpy(self._turned, key + size - START_BYTES, START_BYTES)
        memcpy(self._turned + START_BYTES, key, size - START_BYTES)
        return self._turned

    # What callers do

    def update(self, keys, rows):
        """Puts rows, the later of one key over the earlier; None deletes."""
        cdef Py_ssize_t i, count = len(keys)
        cdef const char *data
        cdef Py_ssize_t size
        cdef Text nothing = text_of(NULL, 0)
        if len(rows) != count:
            raise ValueError(f"{count} keys and {len(rows)} rows")
        for i in range(count):
            key, row = keys[i], rows[i]
            if not PyBytes_CheckExact(key) or not (row is None or PyBytes_CheckExact(row)):
                raise TypeError(f"expected bytes: {key!r}, {row!r}")
            data, size = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if row is None:
                self._set(data, size, hash_of(data, size, 0, SEED), nothing, False)
            else:
                self._set(
                    data, size, hash_of(data, size, 0, SEED),
                    text_of(PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row)), True,
                )
        self.version += 1
        self._collect()

    def load(self, Spans keys not None, Spans values not None, Int64s stamps not None, note_key):
        """Puts records of a changelog without headers, as `update` their rows.

        `note_key` is None in a store without windows. Gives the newest stamp, -1 where no record
        is a row, and the index of the last note, -1; None, and nothing is put, where a record is
        neither row nor note.
        """
        cdef Py_ssize_t i, k, count = keys.size, note = -1
        cdef bint has_windows = note_key is not None
        cdef int64_t newest = -1
        cdef uint64_t[AHEAD] hashes
        cdef const char *key
        cdef Py_ssize_t size
        cdef char[STAMP_BYTES] head
        cdef Text row = text_of(head, STAMP_BYTES)
        cdef uint64_t stamp
        if values.size != count or stamps.size != count:
            raise ValueError("columns of different lengths")
        if not are_rows(keys, note_key):
            return None
        for i in range(count):
            if i % AHEAD == 0:
                self._ask_ahead(keys, i, has_windows, hashes)
            key, size = keys.bytes + keys.first[i], keys.last[i] - keys.first[i]
            if has_windows:
                if size < START_BYTES:
                    note = i
                    continue
                key = self._with_start_first(key, size)
            newest = max(newest, stamps.numbers[i])
            stamp = <uint64_t> stamps.numbers[i]
            for k in range(8):
                head[k] = <char> (stamp >> (56 - 8 * k))
            head[8] = 0
            row.second = values.bytes + values.first[i]
            row.second_size = values.last[i] - values.first[i]
            self._set(key, size, hashes[i % AHEAD], row, values.first[i] >= 0)
        self.version += 1
        self._collect()
        return newest, note

    cdef int _ask_ahead(
        self, Spans keys, Py_ssize_t first, bint has_windows, uint64_t *hashes
    ) except -1:
        """Hashes of the next keys; what they lie at is on its way into the caches."""
        cdef Py_ssize_t i, size, count = min(<Py_ssize_t> AHEAD, keys.size - first)
        cdef const char *key
        cdef uint64_t slot
        for i in range(count):
            key = keys.bytes + keys.first[first + i]
            size = keys.last[first + i] - keys.first[first + i]
            if has_windows and size >= START_BYTES:
                key = self._with_start_first(key, size)
            hashes[i] = hash_of(key, size, 0, SEED)
            if self._slots != NULL:
                prefetched(&self._slots[hashes[i] >> (HASH_BITS - self._bits)])
        for i in range(count if self._slots != NULL else 0):
            slot = self._slots[hashes[i] >> (HASH_BITS - self._bits)]
            if slot > DELETED:
                prefetched(self._at(slot))
        return 0

    def get(self, keys):
        """The row of each key, None where there is none."""
        cdef Py_ssize_t i, count = len(keys)
        cdef list found = [None] * count
        cdef const Head *record
        cdef const char *data
        cdef Py_ssize_t size
        cdef int64_t at
        for i in range(count):
            key = keys[i]
            if not PyBytes_CheckExact(key):
                raise TypeError(f"expected bytes: {key!r}")
            data, size = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            at = self._find(data, size, hash_of(data, size, 0, SEED))
            if at < 0:
                continue
            record = self._at(self._slots[at])
            if record.row_size != GONE:
                found[i] = row_of(record)[: record.row_size]
        return found

    def keys(self):
        """The keys of rows, in any order."""
        cdef list found = []
        cdef _Records records = _Records(self)
        cdef const Head *record
        while (record := records.following()) != NULL:
            if record.row_size != GONE:
                found.append(key_of(record)[: record.key_size])
        return found

    def prefixes(self, Py_ssize_t length):
        """The different first `length` bytes of the keys of rows."""
        cdef set found = set()
        cdef _Records records = _Records(self)
        cdef const Head *record
        cdef bytes last = None
        cdef Py_ssize_t size
        while (record := records.following()) != NULL:
            if record.row_size == GONE:
                continue
            size = min(length, <Py_ssize_t> record.key_size)
            if last is not None and PyBytes_GET_SIZE(last) == size:
                if memcmp(PyBytes_AS_STRING(last), key_of(record), size) == 0:
                    continue
            last = key_of(record)[:size]
            found.add(last)
        return found

    def in_order(self, bytes prefix not None, Py_ssize_t count):
        """The rows and deletions by their keys, ascending, so many at a time: keys behind `prefix`,
        and rows. RuntimeError from it where the table has changed.

        Many rows are sorted step by step: at first no rows come.
        """
        return _Ordered(self, prefix, max(count, 1))


cdef bint are_rows(Spans keys, note_key) except -1:
    """Whether each key is that of a row; in windows, with a start that is not negative, or it is
    the note's."""
    cdef bytes note = note_key or b""
    cdef Py_ssize_t i, size
    for i in range(keys.size):
        size = keys.last[i] - keys.first[i]
        if keys.first[i] < 0:
            return False
        if note_key is None:
            continue
        if size >= START_BYTES and not keys.bytes[keys.last[i] - START_BYTES] & 0x80:
            continue
        if size != len(note) or memcmp(keys.bytes + keys.first[i], <char *> note, size) != 0:
            return False
    return True


@cython.final
cdef class _Records:
    """All records of a table that are not dead, as they lie."""

    cdef RowTable _table
    cdef Py_ssize_t _chunk
    cdef uint64_t _at

    def __cinit__(self, RowTable table):
        self._table = table

    cdef Head *following(self) noexcept:
        cdef Head *record
        cdef Chunk *chunk
        while self._chunk < self._table._chunk_count:
            chunk = &self._table._chunks[self._chunk]
            if chunk.bytes == NULL or self._at >= chunk.used:
                self._chunk += 1
                self._at = 0
                continue
            record = <Head *> (chunk.bytes + self._at)
            self._at += record.stride & ~<uint32_t> DEAD
            if not is_dead(record):
                return record
        return NULL


@cython.final
cdef class _Ordered:
    """See `RowTable.in_order`."""

    cdef RowTable _table
    cdef Order _order
    cdef Sorting *_room
    cdef Py_ssize_t _at, _count, _version
    cdef bytes _prefix

    def __cinit__(self, RowTable table, bytes prefix, Py_ssize_t count):
        cdef _Records records = _Records(table)
        cdef Head *record
        cdef Py_ssize_t i = 0, size = table._entries
        self._table, self._prefix, self._count = table, prefix, count
        self._version = table.version
        self._room = <Sorting *> malloc((2 * size + 1) * sizeof(Sorting))
        if self._room == NULL:
            raise MemoryError
        while (record := records.following()) != NULL:
            self._room[i].record = record
            i += 1
        assert i == size
        self._order.items, self._order.other = self._room, self._room + size
        self._order.count = size
        while size < AT_ONCE and sort_on(&self._order):
            pass

    def __dealloc__(self):
        free(self._room)

    def __iter__(self):
        return self

    def __next__(self):
        cdef list keys = [], rows = []
        cdef const Head *record
        cdef Py_ssize_t i, end = min(self._order.count, self._at + self._count)
        if self._version != self._table.version:
            raise RuntimeError("the table has changed")
        if self._order.count >= AT_ONCE and self._order.stage < 10:
            sort_on(&self._order)
            return keys, rows
        if self._at >= self._order.count:
            raise StopIteration
        for i in range(self._at, end):
            if i + AHEAD < end:
                prefetched(self._order.items[i + AHEAD].record)
            record = self._order.items[i].record
            keys.append(self._whole_key(record))
            rows.append(None if record.row_size == GONE else row_of(record)[: record.row_size])
        self._at = end
        return keys, rows

    cdef bytes _whole_key(self, const Head *record):
        cdef Py_ssize_t before = PyBytes_GET_SIZE(self._prefix)
        cdef bytes key = PyBytes_FromStringAndSize(NULL, before + record.key_size)
        memcpy(PyBytes_AS_STRING(key), PyBytes_AS_STRING(self._prefix), before)
        memcpy(PyBytes_AS_STRING(key) + before, key_of(record), record.key_size)
        return key
