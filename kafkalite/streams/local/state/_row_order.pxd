# cython: language_level=3
"""A record of the table of rows, and how records are sorted.                                 [P]

All there is to it is here: no module belongs to this file. `_row_table.pyx` says what a record is.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #define row_prefetched(place) __builtin_prefetch(place)
    static uint64_t row_big_endian(uint64_t word) { return __builtin_bswap64(word); }
    static int row_is_little(void) { const uint16_t one = 1; return *(const uint8_t *) &one; }
    """
    void prefetched "row_prefetched"(const void *) noexcept nogil
    uint64_t swapped "row_big_endian"(uint64_t word) noexcept nogil
    bint is_little "row_is_little"() noexcept nogil


cdef enum:
    TIES = 20000  # records that are sorted by their whole keys in a step
    DEAD = 1  # in a record's stride, which is even


cdef struct Head:
    uint32_t stride  # to the next record of the chunk
    uint32_t key_size
    int32_t row_size


cdef struct Sorting:
    uint64_t word  # of the key, behind what all keys begin with
    Head *record


cdef inline const char *key_of(const Head *record) noexcept nogil:
    return <const char *> (record + 1)


cdef inline char *row_of(const Head *record) noexcept nogil:
    return <char *> (record + 1) + record.key_size


cdef struct Order:
    Sorting *items
    Sorting *other  # room for as many
    Py_ssize_t count
    int stage
    Py_ssize_t done  # of those that are alike
    Py_ssize_t[8][256] places  # in each byte of the words: where those of a value go


cdef struct Text:  # one of two parts
    const char *first
    Py_ssize_t first_size
    const char *second
    Py_ssize_t second_size


cdef inline Text text_of(const char *data, Py_ssize_t size) noexcept nogil:
    cdef Text made
    made.first, made.first_size, made.second, made.second_size = data, size, data, 0
    return made


cdef inline uint64_t stride_of(Py_ssize_t key_size, Py_ssize_t row_size) noexcept nogil:
    return (sizeof(Head) + key_size + row_size + 3) & ~<uint64_t> 3


cdef inline bint is_dead(const Head *record) noexcept nogil:
    return record.stride & DEAD


cdef inline Head *behind(const Head *record) noexcept nogil:
    return <Head *> (<char *> record + (record.stride & ~<uint32_t> DEAD))


cdef inline int compared(const char *a, Py_ssize_t n, const char *b, Py_ssize_t m) noexcept nogil:
    cdef int order = memcmp(a, b, min(n, m))
    return order if order else (n > m) - (n < m)


cdef inline int by_key(const void *one, const void *other) noexcept nogil:
    cdef const Head *a = (<const Sorting *> one).record
    cdef const Head *b = (<const Sorting *> other).record
    return compared(key_of(a), a.key_size, key_of(b), b.key_size)


cdef inline Py_ssize_t common_size(const Sorting *items, Py_ssize_t count) noexcept nogil:
    """How many bytes all keys begin with."""
    cdef const Head *one = items[0].record
    cdef const Head *record
    cdef Py_ssize_t i, k, common = one.key_size
    for i in range(1, count):
        record = items[i].record
        common = min(common, <Py_ssize_t> record.key_size)
        if memcmp(key_of(one), key_of(record), common) == 0:
            continue
        k = 0
        while key_of(one)[k] == key_of(record)[k]:
            k += 1
        common = k
    return common


cdef inline uint64_t word_of(const Head *record, Py_ssize_t at) noexcept nogil:
    """Eight bytes of a key from `at` on, with zeros behind its end, as a number in their order."""
    cdef uint64_t word = 0
    memcpy(&word, key_of(record) + at, min(<Py_ssize_t> 8, <Py_ssize_t> record.key_size - at))
    return swapped(word) if is_little() else word


cdef inline void read_words(Order *order) noexcept nogil:
    """Eight bytes of each key, behind what all keys begin with; how often there is which byte."""
    cdef Py_ssize_t i, k, common
    memset(order.places, 0, sizeof(order.places))
    if not order.count:
        return
    common = common_size(order.items, order.count)
    for i in range(order.count):
        order.items[i].word = word_of(order.items[i].record, common)
        for k in range(8):
            order.places[k][order.items[i].word >> 8 * k & 255] += 1


cdef inline bint by_byte(Order *order, int k) noexcept nogil:
    """Sorts by one byte of the words; False where all have the same, and there is nothing to do."""
    cdef Py_ssize_t *places = order.places[k]
    cdef Py_ssize_t i, digit, size, at = 0
    if not order.count or places[order.items[0].word >> 8 * k & 255] == order.count:
        return False
    for digit in range(256):
        size = places[digit]
        places[digit] = at
        at += size
    for i in range(order.count):
        digit = order.items[i].word >> 8 * k & 255
        order.other[places[digit]] = order.items[i]
        places[digit] += 1
    order.items, order.other = order.other, order.items
    return True


cdef inline bint by_rest(Order *order) noexcept nogil:
    """Sorts some of the records whose words are alike; whether there are more."""
    cdef Py_ssize_t first, i = order.done, end = min(order.count, order.done + TIES)
    while i < end:
        first = i
        i += 1
        while i < order.count and order.items[i].word == order.items[first].word:
            i += 1
        if i - first > 1:
            qsort(order.items + first, i - first, sizeof(Sorting), by_key)
    order.done = i
    return i < order.count


cdef inline bint sort_on(Order *order) noexcept nogil:
    """A step of the sorting of records by their keys: by words, a byte at a time from the last one;
    then those that are alike there. Whether there is more to do."""
    cdef bint is_done = False
    if order.stage == 0:
        read_words(order)
        is_done = True
    while not is_done and 1 <= order.stage <= 8:
        is_done = by_byte(order, order.stage - 1)
        order.stage += not is_done
    if not is_done and order.stage == 9:
        if by_rest(order):
            return True
    order.stage += 1
    return order.stage < 10
