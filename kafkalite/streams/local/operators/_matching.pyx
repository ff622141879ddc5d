# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The records of a run with the rows of the other side: see matching.py.                     [P]

Rows are looked up, added and ended here. Segments begin, are read from disk and end through the
methods of the store. What a run makes refers to bytes where they lie until the run is over, so
segments that end meanwhile are held.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy

from kafkalite.core.protocol._int64s cimport Block, Int64s, new_block, new_int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._spans cimport Held, Spans, new_spans
from kafkalite.streams.local._times cimport later
from kafkalite.streams.local.state._segment_rows cimport (
    WAITS,
    Entry,
    Row,
    SegmentRows,
    hashed,
    key_bytes,
    value_bytes,
)

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 3

cdef enum:
    LEFT = 0  # as pairs.py counts the sides
    ABSENT = -1

cdef struct Text:
    const char *data
    int64_t size  # ABSENT: none

cdef struct Pair:
    int64_t at  # the record that led to it
    int64_t stamp
    bint made  # of a row that waited
    Text key
    Text left
    Text right

cdef struct Piece:  # a segment
    int64_t start
    int64_t number
    void *rows
    bint is_missing  # a part of it, in memory


cdef inline Text text_at(Spans column, Py_ssize_t at) noexcept:
    cdef Text text
    text.data = column.bytes + column.first[at]
    text.size = ABSENT if column.first[at] < 0 else column.last[at] - column.first[at]
    return text


cdef inline Text value_of(const Row *row) noexcept:
    cdef Text text
    text.data, text.size = value_bytes(row), row.size
    return text


cdef int by_age(const void *one, const void *other) noexcept nogil:
    """Rows by timestamp, then as they came: those of one time are in one segment."""
    cdef const Row *a = (<Row **> one)[0]
    cdef const Row *b = (<Row **> other)[0]
    if a.stamp != b.stamp:
        return -1 if a.stamp < b.stamp else 1
    return -1 if a.number < b.number else a.number > b.number


@cython.final
cdef class Side:
    """The segments of one side, the oldest first, as the store has them."""

    cdef object store
    cdef Piece *pieces
    cdef Py_ssize_t count
    cdef int64_t newest, width, before, after
    cdef bint waits

    def __cinit__(self, store, reach):
        self.store, self.width, self.waits = store, store.width_ms, store.waits
        self.newest = store.newest
        self.before, self.after = reach
        self.refresh()

    def __dealloc__(self):
        free(self.pieces)

    cdef int refresh(self) except -1:
        """The store has other segments now."""
        cdef Piece *piece
        segments = self.store.segments
        pieces = <Piece *> realloc(self.pieces, (len(segments) + 1) * sizeof(Piece))
        if pieces == NULL:
            raise MemoryError
        self.pieces, self.count = pieces, 0
        for number in sorted(segments):
            segment = segments[number]
            piece = &pieces[self.count]
            piece.number, piece.start = number, number * self.width
            piece.rows = <void *> <SegmentRows?> segment.rows
            piece.is_missing = bool(segment.missing)
            self.count += 1
        return 0

    cdef Py_ssize_t first_from(self, int64_t time) noexcept:
        """The first segment that is not over before a time."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) >> 1
            if time - self.pieces[middle].start >= self.width:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int read_page(self, Py_ssize_t at, Text key) except -1:
        """Rows of a key may be on disk alone."""
        self.store.load_page(self.pieces[at].number, PyBytes_FromStringAndSize(key.data, key.size))
        return self.refresh()


@cython.final
cdef class Run:
    """What a run has made so far."""

    cdef Pair *pairs
    cdef Py_ssize_t count, room
    cdef Row **found  # the rows that a record meets
    cdef Py_ssize_t found_count, found_room
    cdef list held  # rows of segments that are over

    def __cinit__(self):
        self.held = []

    def __dealloc__(self):
        free(self.pairs)
        free(self.found)

    cdef Pair *add(self, int64_t at, int64_t stamp, Text key, bint made) except NULL:
        cdef Pair *pair
        if self.count == self.room:
            room = max(1024, self.room * 2)
            pairs = <Pair *> realloc(self.pairs, room * sizeof(Pair))
            if pairs == NULL:
                raise MemoryError
            self.pairs, self.room = pairs, room
        pair = &self.pairs[self.count]
        self.count += 1
        pair.at, pair.stamp, pair.key, pair.made = at, stamp, key, made
        return pair

    cdef int alone(
        self, int side, int64_t at, int64_t stamp, Text key, Text value, bint made
    ) except -1:
        """The null result of a record of one side."""
        cdef Pair *pair = self.add(at, stamp, key, made)
        cdef Text none
        none.data, none.size = NULL, ABSENT
        pair.left = value if side == LEFT else none
        pair.right = none if side == LEFT else value
        return 0

    cdef int note(self, Row *row) except -1:
        if self.found_count == self.found_room:
            room = max(64, self.found_room * 2)
            found = <Row **> realloc(self.found, room * sizeof(Row *))
            if found == NULL:
                raise MemoryError
            self.found, self.found_room = found, room
        self.found[self.found_count] = row
        self.found_count += 1
        return 0

    cdef int look_up(self, Side other, Text key, uint64_t h, int64_t low, int64_t high) except -1:
        """Finds the rows of a key from `low` to `high`, the oldest first."""
        cdef Py_ssize_t at, i
        cdef Entry *entry
        cdef Row *row
        cdef bint is_sorted = True
        self.found_count = 0
        if low > high:
            return 0
        at = other.first_from(low)
        while at < other.count and other.pieces[at].start <= high:
            if other.pieces[at].is_missing:
                other.read_page(at, key)
            entry = (<SegmentRows> other.pieces[at].rows).find(key.data, key.size, h)
            row = NULL if entry == NULL else entry.first
            while row != NULL:
                if low <= row.stamp <= high:
                    i = self.found_count
                    is_sorted = is_sorted and (i == 0 or self.found[i - 1].stamp <= row.stamp)
                    self.note(row)
                row = row.next
            if other.waits:
                for i in range(self.found_count):
                    if self.found[i].flags & WAITS:
                        (<SegmentRows> other.pieces[at].rows).met(self.found[i])
            at += 1
        if not is_sorted:
            qsort(self.found, self.found_count, sizeof(Row *), by_age)
        return 0

    cdef int expire(self, Side own, int side, int64_t at, int64_t limit) except -1:
        """The rows up to `limit` are over."""
        cdef SegmentRows rows
        cdef Row *row
        cdef Text key
        cdef int64_t number
        while own.count and own.pieces[0].start <= limit:
            number = own.pieces[0].number
            if own.waits:
                if own.pieces[0].is_missing:
                    own.store.load(number)
                    own.refresh()
                rows = <SegmentRows> own.pieces[0].rows
                row = rows.overdue(limit)
                while row != NULL:
                    key.data, key.size = key_bytes(row.entry), row.entry.size
                    self.alone(side, at, row.stamp, key, value_of(row), True)
                    row = rows.overdue(limit)
            if limit - own.pieces[0].start < own.width - 1:
                break
            self.held.append(<object> own.pieces[0].rows)
            own.store.drop(number)
            own.refresh()
        return 0

    cdef int keep(
        self, Side own, Text key, uint64_t h, int64_t stamp, Text value, bint waits
    ) except -1:
        """A record becomes a row."""
        cdef Py_ssize_t at = own.first_from(stamp)
        if at == own.count or own.pieces[at].start > stamp:
            own.store.add(stamp // own.width)
            own.refresh()
            at = own.first_from(stamp)
        if own.pieces[at].is_missing:
            own.read_page(at, key)
        (<SegmentRows> own.pieces[at].rows).add(
            key.data, key.size, h, stamp, value.data, value.size, WAITS if waits else 0
        )
        return 0

    cdef Spans column(self, Py_ssize_t offset):
        """One text of each pair, in a buffer of its own."""
        cdef Py_ssize_t i
        cdef int64_t total = 0, at = 0
        cdef Text *text
        cdef Block block = new_block(2 * self.count)
        cdef int64_t *first = block.numbers
        cdef int64_t *last = block.numbers + self.count
        for i in range(self.count):
            total += max(0, (<Text *> (<char *> &self.pairs[i] + offset)).size)
        data = PyBytes_FromStringAndSize(NULL, total)
        for i in range(self.count):
            text = <Text *> (<char *> &self.pairs[i] + offset)
            if text.size < 0:
                first[i] = last[i] = -1
                continue
            memcpy(PyBytes_AS_STRING(data) + at, text.data, text.size)
            first[i] = at
            at += text.size
            last[i] = at
        return new_spans(Held(data), block, first, last, self.count)

    cdef tuple columns(self):
        """All pairs: records, whether rows had waited, timestamps, keys, both values."""
        cdef Block at = new_block(self.count), stamps = new_block(self.count)
        cdef bytes made = PyBytes_FromStringAndSize(NULL, self.count)
        cdef Py_ssize_t i
        cdef Pair *pair
        cdef Pair one
        for i in range(self.count):
            pair = &self.pairs[i]
            at.numbers[i], stamps.numbers[i] = pair.at, pair.stamp
            PyBytes_AS_STRING(made)[i] = pair.made
        return (
            new_int64s(at, at.numbers, self.count),
            made,
            new_int64s(stamps, stamps.numbers, self.count),
            self.column(<char *> &one.key - <char *> &one),
            self.column(<char *> &one.left - <char *> &one),
            self.column(<char *> &one.right - <char *> &one),
        )


def match(
    object join, bytes sides, Spans keys not None, Int64s stamps not None,
    Spans values not None, Int64s times, Py_ssize_t start, Py_ssize_t pairs_max,
):
    """Joins records one after the other; `times` are those by which they are judged, if any. It
    begins with record `start`, and ends behind the one with which there are so many pairs.

    Gives where it ended, the columns of all pairs, and how many records had no key, no value, or
    came too late.
    """
    cdef Py_ssize_t at, i, count = stamps.size, end = stamps.size
    cdef int side
    cdef int64_t stamp, time, low, limit, keeps = join.keeps_ms, reached = join.time
    cdef bint is_timed = times is not None
    cdef int64_t no_key = 0, no_value = 0, too_late = 0
    cdef uint64_t h
    cdef Text key, value
    cdef Row *row
    cdef Pair *pair
    cdef Run run = Run()
    cdef Side own, other, left, right
    left = Side(join.sides[0], join.reach[0])
    right = Side(join.sides[1], join.reach[1])
    if not len(sides) == keys.size == values.size == count or (is_timed and times.size != count):
        raise ValueError("columns of different lengths")
    if not 0 <= start <= count:
        raise IndexError(f"record {start} of {count}")
    for at in range(start, count):
        if run.count >= pairs_max and at > start:
            end = at
            break
        side = PyBytes_AS_STRING(sides)[at]
        own, other = (left, right) if side == LEFT else (right, left)
        key, value, stamp = text_at(keys, at), text_at(values, at), stamps.numbers[at]
        if key.size < 0 or value.size < 0:
            if value.size >= 0 and own.waits:
                run.alone(side, at, stamp, key, value, False)
            elif key.size < 0:
                no_key += 1
            else:
                no_value += 1
            continue
        if not is_timed and stamp > own.newest:
            own.newest = stamp
            run.expire(own, side, at, stamp - keeps)
        h = hashed(key.data, key.size)
        time = times.numbers[at] if is_timed else other.newest
        low = max(0, later(stamp, -own.before), time - keeps + 1)
        run.look_up(other, key, h, low, later(stamp, own.after))
        for i in range(run.found_count):
            row = run.found[i]
            pair = run.add(at, max(stamp, row.stamp), key, False)
            pair.left = value if side == LEFT else value_of(row)
            pair.right = value_of(row) if side == LEFT else value
        limit = (reached if is_timed else own.newest) - keeps
        if stamp > limit:
            run.keep(own, key, h, stamp, value, own.waits and run.found_count == 0)
            continue
        too_late += 1
        if own.waits and run.found_count == 0:
            run.alone(side, at, stamp, key, value, False)
    for own in (left, right):
        own.store.newest = max(own.store.newest, own.newest)
        own.store.reckon()
    return (end, *run.columns(), (no_key, no_value, too_late))
