# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The cleaner's inner loops in native code: the twin of cleaning_pure.py.                 [P]

All that grows with the records runs here without the GIL, so that the broker's event loop goes on
while another thread cleans: a run of batches is read, hashed, looked up, filtered and written with
one call. A batch that needs more than that (compressed, aborted, a marker, the last of a producer,
or damaged) ends the call: its turn comes in Python, through the same primitives.

Bytes are read through raw pointers; `parse_record` is the only reader of records and never passes
the end that it is given. What it cannot parse is left to the strict decoder in Python, which says
what is wrong.
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
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from kafkalite.compaction.cleaning_pure import (
    ENTRY_BYTES,
    LIKELY_TIME_MAX,
    Stop,
    refuse_full,
    refuse_records,
)
from kafkalite.core.log.segment import Mark

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__GNUC__) || defined(__clang__)
    #define clean_unlikely(condition) __builtin_expect(!!(condition), 0)
    #define clean_swap32(number) __builtin_bswap32(number)
    #define clean_swap64(number) __builtin_bswap64(number)
    #define clean_prefetch(address) __builtin_prefetch(address)
    #else
    #include <stdlib.h>
    #define clean_unlikely(condition) (condition)
    #define clean_swap32(number) _byteswap_ulong(number)
    #define clean_swap64(number) _byteswap_uint64(number)
    #define clean_prefetch(address) ((void)(address))
    #endif

    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define clean_big32(number) (number)
    #define clean_big64(number) (number)
    #define clean_little64(number) clean_swap64(number)
    #else
    #define clean_big32(number) clean_swap32(number)
    #define clean_big64(number) clean_swap64(number)
    #define clean_little64(number) (number)
    #endif

    static uint32_t clean_get32(const uint8_t *at) {
        uint32_t n;
        memcpy(&n, at, 4);
        return clean_big32(n);
    }
    static uint64_t clean_get64(const uint8_t *at) {
        uint64_t n;
        memcpy(&n, at, 8);
        return clean_big64(n);
    }
    static uint64_t clean_word(const uint8_t *at) {
        uint64_t n;
        memcpy(&n, at, 8);
        return clean_little64(n);
    }
    static void clean_put32(uint8_t *at, uint32_t n) {
        n = clean_big32(n);
        memcpy(at, &n, 4);
    }
    static void clean_put64(uint8_t *at, uint64_t n) {
        n = clean_big64(n);
        memcpy(at, &n, 8);
    }

    /* Where in a table a hash belongs: the upper bits of their product, which take no division. */
    #ifdef __SIZEOF_INT128__
    #define clean_slot(hash, slots) \\
        ((int64_t) (((unsigned __int128) (hash) * (uint64_t) (slots)) >> 64))
    #else
    #define clean_slot(hash, slots) ((int64_t) ((hash) % (uint64_t) (slots)))
    #endif

    /* CRC-32C: eight bytes at a time by tables, or by the processor's own instruction. That takes
       three cycles and may begin in each, so three stretches are summed at once; a sum is moved on
       by a stretch of zeros with a table, as a CRC is linear. */
    #define CLEAN_STRETCH 512
    static uint32_t clean_crc_tables[8][256];
    static uint32_t clean_crc_moves[4][256];
    static int clean_crc_native;

    static uint32_t clean_crc_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
        while (size >= 8) {
            uint64_t word = clean_word(at) ^ crc;
            crc = 0;
            for (int i = 0; i < 8; i++)
                crc ^= clean_crc_tables[7 - i][(word >> (8 * i)) & 0xFF];
            at += 8;
            size -= 8;
        }
        while (size--)
            crc = clean_crc_tables[0][(crc ^ *at++) & 0xFF] ^ (crc >> 8);
        return crc;
    }

    static uint32_t clean_crc_moved(uint32_t crc) {
        return clean_crc_moves[0][crc & 0xFF] ^ clean_crc_moves[1][crc >> 8 & 0xFF]
            ^ clean_crc_moves[2][crc >> 16 & 0xFF] ^ clean_crc_moves[3][crc >> 24];
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __attribute__((target("sse4.2")))
    static uint32_t clean_crc_by_processor(uint32_t start, const uint8_t *at, size_t size) {
        uint64_t crc = start;
        while (size >= 3 * CLEAN_STRETCH) {
            uint64_t second = 0, third = 0;
            for (const uint8_t *end = at + CLEAN_STRETCH; at != end; at += 8) {
                crc = __builtin_ia32_crc32di(crc, clean_word(at));
                second = __builtin_ia32_crc32di(second, clean_word(at + CLEAN_STRETCH));
                third = __builtin_ia32_crc32di(third, clean_word(at + 2 * CLEAN_STRETCH));
            }
            crc = clean_crc_moved((uint32_t) crc) ^ second;
            crc = clean_crc_moved((uint32_t) crc) ^ third;
            at += 2 * CLEAN_STRETCH;
            size -= 3 * CLEAN_STRETCH;
        }
        while (size >= 8) {
            crc = __builtin_ia32_crc32di(crc, clean_word(at));
            at += 8;
            size -= 8;
        }
        while (size--)
            crc = __builtin_ia32_crc32qi((uint32_t) crc, *at++);
        return (uint32_t) crc;
    }
    #define clean_crc_detect() __builtin_cpu_supports("sse4.2")
    #else
    #define clean_crc_by_processor clean_crc_by_tables
    #define clean_crc_detect() 0
    #endif

    static void clean_crc_begin(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
            clean_crc_tables[0][byte] = crc;
        }
        for (int i = 1; i < 8; i++)
            for (uint32_t byte = 0; byte < 256; byte++) {
                uint32_t before = clean_crc_tables[i - 1][byte];
                clean_crc_tables[i][byte] = clean_crc_tables[0][before & 0xFF] ^ (before >> 8);
            }
        static const uint8_t zeros[CLEAN_STRETCH];
        for (int i = 0; i < 4; i++)
            for (uint32_t byte = 0; byte < 256; byte++)
                clean_crc_moves[i][byte] =
                    clean_crc_by_tables(byte << (8 * i), zeros, CLEAN_STRETCH);
        clean_crc_native = clean_crc_detect();
    }

    static uint32_t clean_crc(const uint8_t *at, size_t size) {
        if (clean_crc_native)
            return ~clean_crc_by_processor(~0u, at, size);
        return ~clean_crc_by_tables(~0u, at, size);
    }

    /* SipHash-2-4 with 128 bits of result (Aumasson, Bernstein), as its reference computes it. */
    #define clean_rotate(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))
    #define clean_round() do { \\
        v0 += v1; v1 = clean_rotate(v1, 13); v1 ^= v0; v0 = clean_rotate(v0, 32); \\
        v2 += v3; v3 = clean_rotate(v3, 16); v3 ^= v2; \\
        v0 += v3; v3 = clean_rotate(v3, 21); v3 ^= v0; \\
        v2 += v1; v1 = clean_rotate(v1, 17); v1 ^= v2; v2 = clean_rotate(v2, 32); \\
    } while (0)

    static void clean_hash(
        const uint64_t *secret, const uint8_t *key, size_t size, uint64_t *hash
    ) {
        uint64_t v0 = secret[0] ^ 0x736f6d6570736575ull;
        uint64_t v1 = secret[1] ^ 0x646f72616e646f6dull ^ 0xee;
        uint64_t v2 = secret[0] ^ 0x6c7967656e657261ull;
        uint64_t v3 = secret[1] ^ 0x7465646279746573ull;
        uint64_t word, last = (uint64_t) size << 56;
        const uint8_t *whole = key + (size & ~(size_t) 7);
        for (; key != whole; key += 8) {
            word = clean_word(key);
            v3 ^= word;
            clean_round(); clean_round();
            v0 ^= word;
        }
        for (size_t i = 0; i < (size & 7); i++)
            last |= (uint64_t) key[i] << (8 * i);
        v3 ^= last;
        clean_round(); clean_round();
        v0 ^= last;
        v2 ^= 0xee;
        clean_round(); clean_round(); clean_round(); clean_round();
        hash[0] = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd;
        clean_round(); clean_round(); clean_round(); clean_round();
        hash[1] = v0 ^ v1 ^ v2 ^ v3;
    }
    """
    bint clean_unlikely(bint condition) noexcept nogil
    void clean_prefetch(const void *address) noexcept nogil
    int64_t clean_slot(uint64_t hash, int64_t slots) noexcept nogil
    uint32_t clean_get32(const uint8_t *at) noexcept nogil
    uint64_t clean_get64(const uint8_t *at) noexcept nogil
    void clean_put32(uint8_t *at, uint32_t number) noexcept nogil
    void clean_put64(uint8_t *at, uint64_t number) noexcept nogil
    void clean_crc_begin() noexcept nogil
    uint32_t clean_crc(const uint8_t *at, size_t size) noexcept nogil
    void clean_hash(
        const uint64_t *secret, const uint8_t *key, size_t size, uint64_t *hash
    ) noexcept nogil

clean_crc_begin()

cdef enum:
    HEADER_SIZE = 61
    LENGTH_AT = 8
    OVERHEAD = 12  # base offset and length, which the length does not count
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    COUNT_AT = 57
    RECORD_BYTES_MIN = 7
    GROWTH_MAX = 14  # of a record with another base timestamp: 10 bytes of delta, 4 of length

cdef enum:
    CODEC = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40


# ---- records ---------------------------------------------------------------------------------


cdef struct Record:
    const uint8_t *attributes  # after its length
    const uint8_t *offset_delta  # after its timestamp delta
    const uint8_t *end
    const uint8_t *key
    int64_t timestamp_delta
    int64_t delta
    int64_t key_size  # -1: null
    int64_t value_size  # -1: null


cdef inline const uint8_t *read_varint(
    const uint8_t *at, const uint8_t *end, int64_t *number
) noexcept nogil:
    """A zigzag varint; NULL where it is not whole or too long."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    while at != end and shift < 70:
        raw |= <uint64_t> (at[0] & 0x7F) << shift
        if at[0] < 0x80:
            number[0] = <int64_t> ((raw >> 1) ^ (0 - (raw & 1)))
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline int varint_size(int64_t number) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    cdef int size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *output, int64_t number) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)
    while raw > 0x7F:
        output[0] = <uint8_t> (raw | 0x80)
        output += 1
        raw >>= 7
    output[0] = <uint8_t> raw
    return output + 1


cdef inline bint parse_record(const uint8_t *at, const uint8_t *end, Record *record) noexcept nogil:
    """The record at `at`, its headers unread; false where it is not one."""
    cdef int64_t length
    at = read_varint(at, end, &length)
    if clean_unlikely(at == NULL or length < 1 or length > end - at):
        return False
    end = record.end = at + length
    record.attributes = at
    at = read_varint(at + 1, end, &record.timestamp_delta)
    if clean_unlikely(at == NULL):
        return False
    record.offset_delta = at
    at = read_varint(at, end, &record.delta)
    if clean_unlikely(at == NULL or record.delta < 0 or record.delta > INT32_MAX):
        return False
    at = read_varint(at, end, &record.key_size)
    if clean_unlikely(at == NULL or record.key_size < -1 or record.key_size > end - at):
        return False
    record.key = at
    if record.key_size > 0:
        at += record.key_size
    at = read_varint(at, end, &record.value_size)
    return at != NULL and -1 <= record.value_size <= end - at


cdef enum:
    SOME = 16  # records that are parsed ahead: as many cache misses at once as processors have


cdef struct Keyed:
    Record record
    uint64_t[2] hash  # of its key, if it has one


cdef struct Selection:
    int64_t kept
    int64_t tombstones  # of the kept
    int64_t min_delta  # the least and the largest timestamp delta of the kept
    int64_t max_delta


cdef inline bint is_likely_time(int64_t number) noexcept nogil:
    """Whether sums and differences of such times and deltas are within 64 bits."""
    return -LIKELY_TIME <= number <= LIKELY_TIME


cdef inline bint has_likely_times(const Selection *selection) noexcept nogil:
    return is_likely_time(selection.min_delta) and is_likely_time(selection.max_delta)


cdef struct Filter:
    int64_t mapped_until
    int64_t now_ms
    int64_t delete_retention_ms
    const int64_t *needed  # ascending
    int64_t needed_count
    Py_buffer *aborted


cdef enum:
    END_OF_RUN, OTHER_BATCH, FULL_MAP, NO_MEMORY

STOPS = (Stop.END, Stop.OTHER, Stop.FULL)

cdef char *UNSIGNED_BYTES = b"B"


# ---- the map ---------------------------------------------------------------------------------


cdef struct Entry:
    uint64_t high
    uint64_t low
    int64_t next  # the offset after the key's latest record; 0: no entry

assert sizeof(Entry) == ENTRY_BYTES
cdef int64_t LIKELY_TIME = LIKELY_TIME_MAX


@cython.final
@cython.no_gc
cdef class OffsetMap:
    """From a key to the offset of its latest record; see the twin."""

    cdef Entry *entries
    cdef uint64_t[2] secret
    cdef uint8_t *mask  # one byte a record of the batch at hand
    cdef int64_t mask_size
    cdef readonly int64_t slots
    cdef readonly int64_t size

    def __cinit__(self, int64_t slots, bytes secret):
        if slots < 1 or len(secret) != 16:
            raise ValueError(f"{slots} slots, a secret of {len(secret)} bytes")
        self.entries = <Entry *> calloc(slots, sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError
        self.slots = slots
        memcpy(self.secret, PyBytes_AS_STRING(secret), 16)

    def __dealloc__(self):
        free(self.entries)
        free(self.mask)

    cdef Entry *find(self, const uint64_t *hash) noexcept nogil:
        """The entry of a key, or the free one where it would be; NULL when there is neither."""
        cdef Entry *entry = self.entries + clean_slot(hash[0], self.slots)
        cdef Entry *end = self.entries + self.slots
        cdef int64_t left = self.slots
        while left:
            if not entry.next or (entry.high == hash[0] and entry.low == hash[1]):
                return entry
            entry += 1
            if entry == end:
                entry = self.entries
            left -= 1
        return NULL

    cdef bint set_latest(self, const uint64_t *hash, int64_t offset) noexcept nogil:
        """The key's latest record has `offset`; false where there is no room for it."""
        cdef Entry *entry = self.find(hash)
        if clean_unlikely(entry == NULL):
            return False
        if not entry.next:
            entry.high = hash[0]
            entry.low = hash[1]
            self.size += 1
        entry.next = offset + 1
        return True

    cdef int64_t latest(self, const uint64_t *hash) noexcept nogil:
        """The offset of the key's latest record, -1 when it is not known."""
        cdef Entry *entry = self.find(hash)
        return -1 if entry == NULL else entry.next - 1

    cdef int parse_some(
        self, const uint8_t **at, const uint8_t *end, int64_t count, Keyed *some
    ) noexcept nogil:
        """Parses the next records, at most SOME, and asks for the memory that their keys' entries
        are in: by the time that they are looked up it is there. How many; -1 for no record."""
        cdef int i, wanted = <int> min(count, SOME)
        cdef Record *record
        for i in range(wanted):
            record = &some[i].record
            if clean_unlikely(not parse_record(at[0], end, record)):
                return -1
            at[0] = record.end
            if record.key_size >= 0:
                clean_hash(self.secret, record.key, record.key_size, some[i].hash)
                clean_prefetch(self.entries + clean_slot(some[i].hash[0], self.slots))
        return wanted

    def release(self):
        """Gives the memory back; it knows nothing any more, and takes nothing."""
        cdef Entry *entries = self.entries
        self.entries = NULL
        self.slots = self.size = 0  # no search takes a step
        with nogil:
            free(entries)

    def put(self, bytes key, int64_t offset):
        """The key's latest record has `offset`."""
        cdef uint64_t[2] hash
        clean_hash(self.secret, <const uint8_t *> PyBytes_AS_STRING(key), len(key), hash)
        if not self.set_latest(hash, offset):
            refuse_full(self.slots)

    def get(self, bytes key):
        """The offset of the key's latest record, -1 when it is not known."""
        cdef uint64_t[2] hash
        clean_hash(self.secret, <const uint8_t *> PyBytes_AS_STRING(key), len(key), hash)
        return self.latest(hash)

    # -- first pass

    cdef int64_t put_body(
        self,
        const uint8_t *at,
        const uint8_t *end,
        int64_t count,
        int64_t base_offset,
        int64_t first_offset,
        int64_t entries_max,
    ) noexcept nogil:
        """-1: all are in the map; -2: no record where one should be; else the first left out."""
        cdef Keyed[SOME] some
        cdef int64_t offset
        cdef int i, parsed
        while count > 0:
            parsed = self.parse_some(&at, end, count, some)
            if clean_unlikely(parsed < 0):
                return -2
            for i in range(parsed):
                offset = base_offset + some[i].record.delta
                if some[i].record.key_size < 0 or offset < first_offset:
                    continue
                if clean_unlikely(self.size >= entries_max):
                    return offset
                if clean_unlikely(not self.set_latest(some[i].hash, offset)):
                    return offset
            count -= parsed
        return -1 if at == end else -2

    def put_records(
        self, body, int64_t count, int64_t base_offset, int64_t first_offset, int64_t entries_max
    ):
        """Puts a batch's records; the first offset left out, None if all are in. See the twin."""
        cdef Py_buffer view
        cdef int64_t left_out
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                left_out = self.put_body(
                    <const uint8_t *> view.buf, <const uint8_t *> view.buf + view.len,
                    count, base_offset, first_offset, entries_max,
                )
        finally:
            PyBuffer_Release(&view)
        if left_out == -2:
            refuse_records(count, base_offset)
        return None if left_out == -1 else left_out

    def put_batches(
        self,
        run,
        int64_t position,
        int64_t next_offset,
        int64_t end_offset,
        int64_t first_offset,
        int64_t entries_max,
        aborted,
    ):
        """Puts the records of plain batches from `position` on; see the twin."""
        cdef Py_buffer view, ranges
        cdef int stop = END_OF_RUN
        PyObject_GetBuffer(aborted, &ranges, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(run, &view, PyBUF_SIMPLE)
            try:
                with nogil:
                    stop = self.put_run(
                        &view, &position, &next_offset, end_offset, first_offset, entries_max,
                        &ranges,
                    )
            finally:
                PyBuffer_Release(&view)
        finally:
            PyBuffer_Release(&ranges)
        return position, STOPS[stop], next_offset

    cdef int put_run(
        self,
        Py_buffer *view,
        int64_t *position,
        int64_t *next_offset,
        int64_t end_offset,
        int64_t first_offset,
        int64_t entries_max,
        Py_buffer *aborted,
    ) noexcept nogil:
        cdef const uint8_t *start = <const uint8_t *> view.buf
        cdef const uint8_t *batch
        cdef int64_t size, base_offset, left_out
        while True:
            batch = start + position[0]
            size = plain_size(batch, view.len - position[0], next_offset[0], end_offset)
            if size <= 0:
                return END_OF_RUN if size == 0 else OTHER_BATCH
            if is_aborted(batch, aborted):
                return OTHER_BATCH
            base_offset = <int64_t> clean_get64(batch)
            left_out = self.put_body(
                batch + HEADER_SIZE, batch + size, <int32_t> clean_get32(batch + COUNT_AT),
                base_offset, first_offset, entries_max,
            )
            if left_out == -2:
                return OTHER_BATCH
            if left_out >= 0:
                next_offset[0] = left_out
                return FULL_MAP
            next_offset[0] = end_of(batch)
            position[0] += size

    # -- second pass

    cdef bint judge_body(
        self,
        const uint8_t *at,
        const uint8_t *end,
        int64_t count,
        int64_t base_offset,
        int64_t mapped_until,
        bint tombstones_go,
        Selection *selection,
    ) noexcept nogil:
        """Fills the mask: the native words of `retain.keeps`. False where there is no record."""
        cdef Keyed[SOME] some
        cdef Record *record
        cdef int64_t done = 0, offset
        cdef int i, parsed
        cdef bint keep
        selection.kept = selection.tombstones = 0
        selection.min_delta = INT64_MAX
        selection.max_delta = INT64_MIN
        if count > self.mask_size:
            self.mask = <uint8_t *> realloc(self.mask, count)
            self.mask_size = count if self.mask != NULL else 0
            if self.mask == NULL:
                return False
        while done < count:
            parsed = self.parse_some(&at, end, count - done, some)
            if clean_unlikely(parsed < 0):
                return False
            for i in range(parsed):
                record = &some[i].record
                offset = base_offset + record.delta
                if offset >= mapped_until:
                    keep = True
                elif record.key_size < 0 or (record.value_size < 0 and tombstones_go):
                    keep = False
                else:
                    keep = offset >= self.latest(some[i].hash)
                self.mask[done + i] = keep
                if keep:
                    selection.kept += 1
                    selection.tombstones += record.value_size < 0
                    selection.min_delta = min(selection.min_delta, record.timestamp_delta)
                    selection.max_delta = max(selection.max_delta, record.timestamp_delta)
            done += parsed
        return at == end

    def judge_records(
        self, body, int64_t count, int64_t base_offset, int64_t mapped_until, bint tombstones_go
    ):
        """Which records stay, and whether tombstones are among them; see the twin."""
        cdef Py_buffer view
        cdef Selection selection
        cdef bint parsed
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            check_record_count(count, view.len)
            with nogil:
                parsed = self.judge_body(
                    <const uint8_t *> view.buf, <const uint8_t *> view.buf + view.len,
                    count, base_offset, mapped_until, tombstones_go, &selection,
                )
        finally:
            PyBuffer_Release(&view)
        if not parsed:
            refuse_records(count, base_offset)
        mask = PyBytes_FromStringAndSize(<char *> self.mask, count)
        return mask, selection.tombstones > 0 and has_likely_times(&selection)

    def filter_batches(
        self,
        run,
        int64_t position,
        int64_t next_offset,
        int64_t end_offset,
        Output output,
        int64_t mapped_until,
        int64_t now_ms,
        int64_t delete_retention_ms,
        needed,
        aborted,
    ):
        """Appends to `output` what stays of plain batches from `position` on; see the twin."""
        cdef Py_buffer view, offsets, ranges
        cdef int stop = END_OF_RUN
        cdef Filter rule
        rule.aborted = &ranges
        rule.mapped_until = mapped_until
        rule.now_ms = now_ms
        rule.delete_retention_ms = delete_retention_ms
        PyObject_GetBuffer(needed, &offsets, PyBUF_SIMPLE)
        try:
            rule.needed = <const int64_t *> offsets.buf
            rule.needed_count = offsets.len // 8
            PyObject_GetBuffer(aborted, &ranges, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(run, &view, PyBUF_SIMPLE)
                try:
                    with nogil:
                        stop = self.filter_run(
                            &view, &position, &next_offset, end_offset, output, &rule
                        )
                finally:
                    PyBuffer_Release(&view)
            finally:
                PyBuffer_Release(&ranges)
        finally:
            PyBuffer_Release(&offsets)
        if stop == NO_MEMORY:
            raise MemoryError
        return position, STOPS[stop], next_offset

    cdef int filter_run(
        self,
        Py_buffer *view,
        int64_t *position,
        int64_t *next_offset,
        int64_t end_offset,
        Output output,
        Filter *rule,
    ) noexcept nogil:
        cdef const uint8_t *start = <const uint8_t *> view.buf
        cdef const uint8_t *batch
        cdef int64_t size
        cdef int stop
        while True:
            batch = start + position[0]
            size = plain_size(batch, view.len - position[0], next_offset[0], end_offset)
            if size <= 0:
                return END_OF_RUN if size == 0 else OTHER_BATCH
            stop = self.filter_batch(batch, size, output, rule)
            if stop:
                return stop
            next_offset[0] = end_of(batch)
            position[0] += size

    cdef int filter_batch(
        self, const uint8_t *batch, int64_t size, Output output, Filter *rule
    ) noexcept nogil:
        cdef int64_t base_offset = <int64_t> clean_get64(batch)
        cdef int64_t last_offset = base_offset + <int32_t> clean_get32(batch + DELTA_AT)
        cdef int64_t count = <int32_t> clean_get32(batch + COUNT_AT)
        cdef int64_t base_timestamp = <int64_t> clean_get64(batch + BASE_TIMESTAMP_AT)
        cdef int64_t max_timestamp = <int64_t> clean_get64(batch + MAX_TIMESTAMP_AT)
        cdef int64_t new_base = base_timestamp
        cdef int attributes = batch[ATTRIBUTES_AT + 1]
        cdef bint has_horizon = attributes & DELETE_HORIZON
        cdef Selection selection
        if is_among(last_offset, rule.needed, rule.needed_count):
            return OTHER_BATCH
        if is_aborted(batch, rule.aborted):
            return OTHER_BATCH
        if attributes & TRANSACTIONAL and not output.saw(
            <int64_t> clean_get64(batch + PRODUCER_ID_AT)
        ):
            return NO_MEMORY
        if not self.judge_body(
            batch + HEADER_SIZE, batch + size, count, base_offset, rule.mapped_until,
            has_horizon and base_timestamp <= rule.now_ms, &selection,
        ):
            return OTHER_BATCH
        if not selection.kept:
            return END_OF_RUN
        cdef bint is_likely = is_likely_time(base_timestamp) and has_likely_times(&selection)
        if selection.tombstones and not has_horizon and is_likely:
            attributes |= DELETE_HORIZON
            new_base = rule.now_ms + rule.delete_retention_ms
        elif selection.kept == count:
            return output.add(batch, size, last_offset, max_timestamp)
        if is_likely and not attributes & LOG_APPEND_TIME:
            max_timestamp = base_timestamp + selection.max_delta
        if not output.reserve(size + selection.kept * GROWTH_MAX):
            return NO_MEMORY
        cdef uint8_t *written = output.data + output.used
        cdef uint8_t *end = copy_kept(
            batch + HEADER_SIZE, batch + size, count, self.mask, base_timestamp - new_base,
            written + HEADER_SIZE,
        )
        memcpy(written, batch, HEADER_SIZE)
        clean_put32(written + LENGTH_AT, <uint32_t> (end - written - OVERHEAD))
        written[ATTRIBUTES_AT + 1] = <uint8_t> attributes
        clean_put64(written + BASE_TIMESTAMP_AT, <uint64_t> new_base)
        clean_put64(written + MAX_TIMESTAMP_AT, <uint64_t> max_timestamp)
        clean_put32(written + COUNT_AT, <uint32_t> selection.kept)
        clean_put32(
            written + CRC_AT, clean_crc(written + ATTRIBUTES_AT, end - written - ATTRIBUTES_AT)
        )
        return output.grown(end - written, last_offset, max_timestamp)


cdef inline bint is_among(int64_t number, const int64_t *numbers, int64_t count) noexcept nogil:
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low < count and numbers[low] == number


cdef bint is_aborted(const uint8_t *batch, Py_buffer *aborted) noexcept nogil:
    """Whether it lies in one of the ranges: producer id, first and last offset, ascending."""
    if not batch[ATTRIBUTES_AT + 1] & TRANSACTIONAL:
        return False
    cdef const int64_t *ranges = <const int64_t *> aborted.buf
    cdef int64_t producer_id = <int64_t> clean_get64(batch + PRODUCER_ID_AT)
    cdef int64_t offset = <int64_t> clean_get64(batch)
    cdef int64_t low = 0, high = aborted.len // 24, middle
    while low < high:  # to the first range that begins after the batch
        middle = (low + high) >> 1
        if ranges[3 * middle] < producer_id or (
            ranges[3 * middle] == producer_id and ranges[3 * middle + 1] <= offset
        ):
            low = middle + 1
        else:
            high = middle
    low = 3 * (low - 1)
    return low >= 0 and ranges[low] == producer_id and offset <= ranges[low + 2]


cdef inline int64_t end_of(const uint8_t *batch) noexcept nogil:
    """The offset after the batch."""
    return <int64_t> clean_get64(batch) + <int32_t> clean_get32(batch + DELTA_AT) + 1


cdef int64_t plain_size(
    const uint8_t *batch, int64_t left, int64_t next_offset, int64_t end_offset
) noexcept nogil:
    """Bytes of the batch if it is plain and true; 0: it is not whole; -1: Python is to look."""
    if left < HEADER_SIZE:
        return 0
    cdef int64_t size = <int64_t> <int32_t> clean_get32(batch + LENGTH_AT) + OVERHEAD
    cdef int64_t count = <int32_t> clean_get32(batch + COUNT_AT)
    if batch[MAGIC_AT] != 2 or size < HEADER_SIZE:
        return -1
    if size > left:
        return 0
    if batch[ATTRIBUTES_AT + 1] & (CODEC | CONTROL):
        return -1
    if not 0 <= count <= (size - HEADER_SIZE) // RECORD_BYTES_MIN:
        return -1
    if not next_offset <= <int64_t> clean_get64(batch) < end_of(batch) <= end_offset:
        return -1
    if clean_crc(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != clean_get32(batch + CRC_AT):
        return -1
    return size


cdef uint8_t *copy_kept(
    const uint8_t *at,
    const uint8_t *end,
    int64_t count,
    const uint8_t *mask,
    int64_t shift,
    uint8_t *output,
) noexcept nogil:
    """Copies the records that `mask` keeps, each `shift` added to its timestamp delta. The
    records were parsed before, and `output` has room."""
    cdef Record record
    cdef int64_t i, delta
    for i in range(count):
        if not parse_record(at, end, &record):
            return output  # never: they were parsed to make the mask
        if mask[i]:
            if shift:
                delta = record.timestamp_delta + shift
                output = write_varint(
                    output, 1 + varint_size(delta) + (record.end - record.offset_delta)
                )
                output[0] = record.attributes[0]
                output = write_varint(output + 1, delta)
                at = record.offset_delta
            memcpy(output, at, record.end - at)
            output += record.end - at
        at = record.end
    return output


def copy_records(body, bytes mask, int64_t shift):
    """The records that `mask` keeps, and the range of their timestamp deltas; see the twin."""
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *kept = <const uint8_t *> PyBytes_AS_STRING(mask)
    cdef int64_t count = len(mask), i, least = INT64_MAX, largest = INT64_MIN
    cdef Record record
    cdef bint parsed = True
    cdef uint8_t *output = NULL
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        check_record_count(count, view.len)
        with nogil:
            at = <const uint8_t *> view.buf
            end = at + view.len
            for i in range(count):
                parsed = parse_record(at, end, &record)
                if not parsed:
                    break
                if kept[i]:
                    least = min(least, record.timestamp_delta)
                    largest = max(largest, record.timestamp_delta)
                at = record.end
            parsed = parsed and at == end
            if parsed:
                output = <uint8_t *> realloc(NULL, view.len + count * GROWTH_MAX + 1)
                if output != NULL:
                    at = <const uint8_t *> view.buf
                    end = copy_kept(at, end, count, kept, shift, output)
        if not parsed:
            refuse_records(count, 0)
        if output == NULL:
            raise MemoryError
        try:
            return PyBytes_FromStringAndSize(<char *> output, end - output), least, largest
        finally:
            free(output)
    finally:
        PyBuffer_Release(&view)


cdef int check_record_count(int64_t count, int64_t size) except -1:
    if not 0 <= count <= size // RECORD_BYTES_MIN:
        refuse_records(count, 0)
    return 0


def hash_key(bytes secret, bytes key):
    """SipHash-2-4-128, for a test to compare."""
    cdef uint64_t[2] words
    cdef uint64_t[2] hash
    assert len(secret) == 16
    memcpy(words, PyBytes_AS_STRING(secret), 16)
    clean_hash(words, <const uint8_t *> PyBytes_AS_STRING(key), len(key), hash)
    return (<object> hash[0]).to_bytes(8, "little") + (<object> hash[1]).to_bytes(8, "little")


# ---- what is kept ----------------------------------------------------------------------------


cdef struct Place:
    int64_t position
    int64_t last_offset
    int64_t max_timestamp
    int64_t max_timestamp_offset


@cython.final
@cython.no_gc
cdef class Output:
    """What stays for one segment, a run of batches at a time; see the twin."""

    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t size
    cdef Place *places
    cdef int64_t place_count
    cdef int64_t places_size
    cdef int64_t interval
    cdef int64_t bytes_since
    cdef int64_t max_timestamp
    cdef int64_t max_timestamp_offset
    cdef int64_t *producers
    cdef int64_t producer_count
    cdef int64_t producers_size
    cdef int lent

    def __cinit__(self, int64_t index_interval_bytes):
        self.interval = index_interval_bytes
        self.max_timestamp = self.max_timestamp_offset = -1

    def __dealloc__(self):
        free(self.data)
        free(self.places)
        free(self.producers)

    def __len__(self):
        return self.used

    def view(self):
        """The bytes, to be released before the next batch comes."""
        return memoryview(self)

    @property
    def latest(self):
        """The largest timestamp of all, and the last offset of the batch that bears it."""
        return self.max_timestamp, self.max_timestamp_offset

    cdef bint saw(self, int64_t producer_id) noexcept nogil:
        """Notes that a batch of the producer's transaction was met; false when memory is short."""
        cdef int64_t *producers
        if self.producer_count and self.producers[self.producer_count - 1] == producer_id:
            return True
        if self.producer_count == self.producers_size:
            producers = <int64_t *> realloc(
                self.producers, (2 * self.producers_size + 16) * sizeof(int64_t)
            )
            if producers == NULL:
                return False
            self.producers = producers
            self.producers_size = 2 * self.producers_size + 16
        self.producers[self.producer_count] = producer_id
        self.producer_count += 1
        return True

    def take_producers(self):
        """Producers of whose transactions batches were met since this was last asked."""
        cdef list taken = [self.producers[i] for i in range(self.producer_count)]
        self.producer_count = 0
        return taken

    cdef bint reserve(self, int64_t more) noexcept nogil:
        """Room for `more` bytes; false when memory is short, or lent out."""
        if self.used + more <= self.size:
            return True
        if self.lent:
            return False
        cdef int64_t size = max(self.used + more, self.size + self.size // 2)
        cdef uint8_t *data = <uint8_t *> realloc(self.data, size)
        if data == NULL:
            return False
        self.data = data
        self.size = size
        return True

    cdef int grown(self, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept nogil:
        """A batch of `size` bytes was written at the end; a stop."""
        cdef Place *places
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since > self.interval:
            if self.place_count == self.places_size:
                places = <Place *> realloc(
                    self.places, (2 * self.places_size + 16) * sizeof(Place)
                )
                if places == NULL:
                    return NO_MEMORY
                self.places = places
                self.places_size = 2 * self.places_size + 16
            self.places[self.place_count] = Place(
                self.used, last_offset, self.max_timestamp, self.max_timestamp_offset
            )
            self.place_count += 1
            self.bytes_since = 0
        self.bytes_since += size
        self.used += size
        return END_OF_RUN

    cdef int add(
        self, const uint8_t *batch, int64_t size, int64_t last_offset, int64_t max_timestamp
    ) noexcept nogil:
        if not self.reserve(size):
            return NO_MEMORY
        memcpy(self.data + self.used, batch, size)
        return self.grown(size, last_offset, max_timestamp)

    def append(self, batch, int64_t last_offset, int64_t max_timestamp):
        """Adds a batch as it is."""
        cdef Py_buffer view
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            if self.add(<const uint8_t *> view.buf, view.len, last_offset, max_timestamp):
                raise MemoryError
        finally:
            PyBuffer_Release(&view)

    def marks(self):
        """The batches of this run that get an index entry."""
        return [
            Mark(
                self.places[i].position,
                self.places[i].last_offset,
                self.places[i].max_timestamp,
                self.places[i].max_timestamp_offset,
            )
            for i in range(self.place_count)
        ]

    def clear(self):
        """Begins the next run; not while its bytes are lent."""
        assert not self.lent, self.lent
        self.used = self.place_count = 0

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        # Field by field: PyBuffer_FillInfo would lose the reference that Cython put in `obj`.
        if flags & PyBUF_WRITABLE:
            raise BufferError("what is kept is read-only")
        buffer.obj = self
        buffer.buf = self.data if self.data != NULL else <void *> UNSIGNED_BYTES
        buffer.len = self.used
        buffer.readonly = 1
        buffer.itemsize = 1
        buffer.format = UNSIGNED_BYTES if flags & PyBUF_FORMAT else NULL
        buffer.ndim = 1
        buffer.shape = &self.used if flags & PyBUF_ND else NULL
        buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL
        self.lent += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.lent -= 1
