# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Records into sessions and sliding windows, one after the other: see operator.py.           [P]

What a record does to the windows of its key is drawn in operators/sessions.py and
operators/sliding.py, the twins. A log gets every update; without one, the table notes what has
changed.

Fails  with what Python raises where arguments cannot be added or compared; `at` is the record.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kafkalite.core.protocol._int64s cimport Int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._spans cimport Spans
from kafkalite.streams.local._times cimport later
from kafkalite.streams.local.operators._cells cimport Column, open_column
from kafkalite.streams.local.spans._log cimport SpanLog
from kafkalite.streams.local.spans._windows cimport Key, Window, Windows

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS
from kafkalite.streams.local.operators.folding import TIME_MAX as TIMES

check_interface(RECORDS)
INTERFACE = 1  # as in _table.pyx

cdef int64_t TIME_MAX = TIMES  # of a length: sums of several have 64 bits

cdef enum:
    NEVER = -1  # the time before the first record

cdef struct Numbers:
    int32_t *items
    int32_t count, room


cdef int append(Numbers *numbers, int32_t number) except -1:
    cdef void *longer
    if numbers.count == numbers.room:
        longer = realloc(numbers.items, (2 * numbers.room + 16) * sizeof(int32_t))
        if longer == NULL:
            raise MemoryError
        numbers.items, numbers.room = <int32_t *> longer, 2 * numbers.room + 16
    numbers.items[numbers.count] = number
    numbers.count += 1
    return 0


cdef class SpanFold:
    """Folds batches into the windows of a table. `late`, `missed`: of the last batch."""

    cdef Windows _table
    cdef SpanLog _log
    cdef int64_t _length  # the gap of sessions, the difference of sliding windows
    cdef int64_t _held  # how long windows stay open behind their ends
    cdef int64_t _before  # the stream time before the batch
    cdef bint _is_timed
    cdef Column *_columns
    cdef object _headers
    cdef readonly list late
    cdef readonly int64_t missed
    cdef readonly int64_t newest  # the stream time behind the batch
    cdef readonly Py_ssize_t at

    def __cinit__(self, Windows table not None, int64_t length, int64_t held, bint is_timed):
        self._table, self._is_timed = table, is_timed
        if not 0 <= length <= TIME_MAX >= held >= 0:
            raise ValueError(f"windows of {length} ms are held open for {held} ms")
        self._length, self._held = length, held

    def fold(
        self, keys, timestamps, times, int64_t before, list columns, headers, SpanLog log
    ):
        """Takes a batch in. `times` judge its records; None: the newest timestamp so far does, from
        `before` on."""
        cdef Py_ssize_t i, count = len(timestamps)
        cdef int64_t *stamps = NULL
        cdef int64_t *judges = NULL
        if len(keys) != count or (headers is not None and len(headers) != count):
            raise ValueError("columns of different lengths")
        if len(columns) != self._table._parts_each:
            raise ValueError(f"{len(columns)} columns for {self._table._parts_each} aggregates")
        self._log, self._headers, self._before = log, headers, before
        self.late, self.missed, self.at, self.newest = [], 0, 0, before
        try:
            self._columns = <Column *> malloc((len(columns) + 1) * sizeof(Column))
            if self._columns == NULL:
                raise MemoryError
            for i in range(len(columns)):
                open_column(columns[i], count, &self._columns[i])
            stamps = self.numbers(timestamps, count)
            if times is not None:
                judges = self.numbers(times, count)
            self.run(keys, stamps, judges, count)
        finally:
            free(stamps)
            free(judges)
            free(self._columns)
            self._columns = NULL
            self._log = self._headers = None

    cdef int64_t *numbers(self, column, Py_ssize_t count) except NULL:
        cdef int64_t *found = <int64_t *> malloc((count + 1) * sizeof(int64_t))
        cdef Py_ssize_t i
        if found == NULL:
            raise MemoryError
        try:
            if len(column) != count:
                raise ValueError("columns of different lengths")
            if type(column) is Int64s:
                memcpy(found, (<Int64s> column).numbers, count * sizeof(int64_t))
            else:
                for i, number in enumerate(column):
                    found[i] = number
            for i in range(count):
                if found[i] < NEVER:
                    raise ValueError(f"the time {found[i]} is negative")
        except BaseException:
            free(found)
            raise
        return found

    cdef int run(
        self, keys, const int64_t *stamps, const int64_t *judges, Py_ssize_t count
    ) except -1:
        cdef Py_ssize_t i
        cdef int64_t time = self._before
        cdef Spans spans = keys if type(keys) is Spans else None
        cdef list objects = None
        if spans is None:
            objects = keys if type(keys) is list else list(keys)
        for i in range(count):
            self.at = i
            if judges != NULL:
                time = max(judges[i], self._before)
            elif stamps[i] > time:
                time = stamps[i]
            if spans is not None:
                self.take(
                    spans.bytes + spans.first[i], spans.last[i] - spans.first[i], None, stamps[i],
                    time,
                )
            else:
                key = objects[i]
                if not PyBytes_CheckExact(key):
                    raise TypeError(f"a key is no bytes: {key!r:.80}")
                self.take(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), key, stamps[i], time)
        if judges == NULL:
            self.newest = time
        return 0

    cdef int take(
        self, const char *data, Py_ssize_t length, object key, int64_t stamp, int64_t time
    ) except -1:
        """Takes in the record at `at`, whose key is `data`; `time` judges it."""
        raise TypeError(f"{type(self).__name__} has no windows: SessionFold, SlidingFold have")

    cdef int add(self, int32_t window) except -1:
        """Adds the record to a window."""
        cdef int part
        for part in range(self._table._parts_each):
            self._table.add(part, window, &self._columns[part], self.at)
        return 0

    cdef int open(self, int32_t at) except -1:
        """Takes a new window in, if it has a row."""
        if self._table.has_row(at):
            return self._table.open(at)
        self._table.headers.pop(at, None)
        return self._table.free_window(at)


@cython.final
cdef class SessionFold(SpanFold):
    """Into sessions, which records extend and merge."""

    cdef int take(
        self, const char *data, Py_ssize_t length, object known, int64_t stamp, int64_t time
    ) except -1:
        cdef Windows table = self._table
        cdef int64_t limit = (self._before if self._is_timed else time) - self._held
        cdef int64_t start = stamp, end = stamp
        cdef int32_t at, low = 0, high = 0, key = table.find_key(data, length)
        if key >= 0:
            high = self.last_near(key, later(stamp, self._length), limit)
            low = self.first_near(key, high, max(stamp - self._length, limit))
        if low < high:
            start = min(stamp, self.window(key, low).start)
            end = max(stamp, self.window(key, high - 1).end)
        if end < time - self._held:
            self.late.append(self.at)
            return 0
        if self._log is not None:
            self.log_found(key, low, high, start, end)
        if low == high:
            if key < 0:
                key = table.make_key(data, length, known)
            at = table.new_window(key, start, end)
        else:
            at = table._keys[key].its[table._keys[key].first + low]
            for _ in range(high - low - 1):
                self.merge_next(at, key, low + 1, time)
            table._windows[at].start, table._windows[at].end = start, end
        self.add(at)
        table._windows[at].stamp = end
        if self._log is not None:
            table.log_row(self._log, at, self.at)
        if low == high:
            self.open(at)
            if not table._keys[key].count:
                return table.free_key(key)
        if table.has_row(at):
            table.change(at)
        elif low < high:
            table.drop(at, time)
        return 0

    cdef Window *window(self, int32_t key, int32_t place) noexcept:
        cdef Key *found = &self._table._keys[key]
        return &self._table._windows[found.its[found.first + place]]

    cdef int32_t last_near(self, int32_t key, int64_t last, int64_t limit) noexcept:
        """How many sessions of a key begin at `last` or earlier, those included that are closed
        though they have not left. Mostly all."""
        cdef int32_t low = 0, high = self._table._keys[key].count, middle
        cdef Window *found
        if high and self.window(key, high - 1).start <= last:
            return high
        while low < high:
            middle = (low + high) >> 1
            found = self.window(key, middle)
            if found.start <= last or found.end < limit:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int32_t first_near(self, int32_t key, int32_t high, int64_t first) noexcept:
        """The first of the sessions before `high` that end at `first` or later."""
        while high and self.window(key, high - 1).end >= first:
            high -= 1
        return high

    cdef int merge_next(self, int32_t at, int32_t key, int32_t place, int64_t time) except -1:
        """Makes one of a session and the one behind it, at `place`."""
        cdef Key *found = &self._table._keys[key]
        cdef int32_t other = found.its[found.first + place]
        self._table.merge(at, other)
        return self._table.drop(other, time)

    cdef int log_found(
        self, int32_t key, int32_t low, int32_t high, int64_t start, int64_t end
    ) except -1:
        """The sessions that the record touches are gone; but for one of a single timestamp that the
        record has, too."""
        cdef Window *found
        cdef int32_t place
        if start == end and high - low == 1:
            return 0
        for place in range(low, high):
            found = self.window(key, place)
            self._log.add(
                <object> self._table._keys[key].bytes, found.start, found.end, found.end, self.at,
                False, (),
            )
        return 0


@cython.final
cdef class SlidingFold(SpanFold):
    """Into sliding windows, which begin and end at records."""

    cdef Numbers _held_ones  # windows that are there and take the record
    cdef Numbers _told  # windows in the order of their updates
    cdef int32_t _made[2]  # new windows that take it
    cdef int _made_count
    cdef int32_t _behind  # a new window that begins behind it; -1: none
    cdef int32_t _left_source, _behind_source  # of which new windows are copies; -1: none

    def __dealloc__(self):
        free(self._held_ones.items)
        free(self._told.items)

    cdef int take(
        self, const char *data, Py_ssize_t length, object known, int64_t stamp, int64_t time
    ) except -1:
        cdef int64_t limit = time - self._held
        cdef int32_t key
        if later(stamp, self._length) < limit:
            self.late.append(self.at)
            return 0
        key = self._table.find_key(data, length)
        if key < 0:
            key = self._table.make_key(data, length, known)
        self._held_ones.count = self._told.count = 0
        self._made_count = 0
        self._behind = self._left_source = self._behind_source = -1
        if stamp < self._length:
            self.place_early(key, stamp, limit)
        else:
            self.place(key, stamp, limit)
        self.fill(stamp)
        if self._headers is not None or self._table.headers:
            self.mark()
        return self.settle(key)

    # Which windows

    cdef int hold(self, int32_t at, int64_t limit) except -1:
        """The record goes into a window that is there, unless that is closed."""
        if self._table._windows[at].end < limit:
            self.missed += 1
            return 0
        append(&self._held_ones, at)
        append(&self._told, at)
        return 0

    cdef bint make(self, int32_t key, int64_t start, int64_t limit) except -1:
        """The record goes into a new window; False: that is closed."""
        cdef int64_t end = later(start, self._length)
        cdef int32_t at
        if end < limit:
            self.missed += 1
            return False
        at = self._table.new_window(key, start, end)
        self._made[self._made_count] = at
        self._made_count += 1
        append(&self._told, at)
        return True

    cdef bint has(self, int32_t key, int64_t start) noexcept:
        """Whether a window of the key begins at `start`."""
        cdef Key *found = &self._table._keys[key]
        cdef int32_t place = self._table.place_of(key, start)
        return (
            place < found.count
            and self._table._windows[found.its[found.first + place]].start == start
        )

    cdef int32_t last_up_to(self, int32_t key, int64_t start) noexcept:
        """The place of the last window of the key that begins at `start` or earlier; -1: none."""
        if later(start, 1) == start:
            return self._table._keys[key].count - 1
        return self._table.place_of(key, start + 1) - 1

    cdef int place(self, int32_t key, int64_t stamp, int64_t limit) except -1:
        """A record that has a left window of its own."""
        cdef Key *its = &self._table._keys[key]
        cdef Window *windows = self._table._windows
        cdef int32_t at, place = self.last_up_to(key, later(stamp, 1))
        cdef int32_t before = -1, right = -1
        cdef bint has_right, has_left = False
        cdef int64_t behind, previous = -1, oldest = max(stamp - 2 * self._length, self.oldest(limit))
        has_right = place >= 0 and windows[its.its[its.first + place]].start > stamp
        place -= has_right
        while place >= 0:
            at = its.its[its.first + place]
            if windows[at].start < oldest:
                break
            place -= 1
            behind = stamp - windows[at].start - self._length  # its end, however late that is
            if behind > 0:
                before, previous = at, windows[at].stamp
                break
            self.hold(at, limit)
            if behind < 0:
                if right < 0:
                    right = at
                continue
            has_left, previous = True, windows[at].stamp
            if previous >= stamp:  # a record of this time has made all windows
                return 0
        if (
            previous >= 0 and stamp - previous - 1 <= self._length
            and not self.has(key, previous + 1)
        ):
            self.make(key, previous + 1, limit)
        if not has_left:
            self.make_left(key, before, stamp, limit)
        if right >= 0 and not has_right:
            self.make_right(key, right, stamp)
        return 0

    cdef int make_left(self, int32_t key, int32_t before, int64_t stamp, int64_t limit) except -1:
        """The record's left window, with what is in the one before it."""
        cdef int64_t start = stamp - self._length
        if self._made_count and self._table._windows[self._made[0]].start == start:
            append(&self._told, self._made[0])  # the right one of the record before
        elif self.make(key, start, limit):
            if before >= 0 and self._table._windows[before].stamp >= start:
                self._left_source = before
        return 0

    cdef int make_right(self, int32_t key, int32_t source, int64_t stamp) except -1:
        """The record's right window, if records are behind it in `source`, which holds it now."""
        if self._table._windows[source].stamp <= stamp:
            return 0
        self._behind = self._table.new_window(key, stamp + 1, later(stamp + 1, self._length))
        self._behind_source = source
        append(&self._told, self._behind)
        return 0

    cdef int place_early(self, int32_t key, int64_t stamp, int64_t limit) except -1:
        """A record whose left window would begin before 0."""
        cdef Key *its = &self._table._keys[key]
        cdef Window *window
        cdef int32_t at, place, first = -1, right = -1
        cdef int64_t previous = -1
        cdef bint has_right = False
        for place in range(its.count):
            at = its.its[its.first + place]
            window = &self._table._windows[at]
            if window.start > stamp:
                has_right = window.start == stamp + 1
                break
            if window.start == 0:
                first = at
                previous = window.stamp if window.stamp < stamp else -1
            else:
                right = at
                self.hold(at, limit)
        if right < 0:
            right = first
        if right >= 0 and not has_right:
            self.make_right(key, right, stamp)
        if previous >= 0 and not self.has(key, previous + 1):
            self.make(key, previous + 1, limit)
        if first < 0:
            self.make(key, 0, limit)
        else:
            self.hold(first, limit)
        return 0

    cpdef int64_t oldest(self, int64_t limit) noexcept:
        """The start of the oldest windows that are looked at."""
        cdef int64_t kept = self._table.newest_start - 2 * self._length - self._held + 1
        return min(kept, limit - 2 * self._length - 1)

    # What happens to them

    cdef int fill(self, int64_t stamp) except -1:
        """Copies windows as they were, then adds the record."""
        cdef Windows table = self._table
        cdef int32_t i, at
        if self._left_source >= 0:
            table.copy(self._left_source, self._made[self._made_count - 1])
        if self._behind >= 0:
            table.copy(self._behind_source, self._behind)
            table._windows[self._behind].stamp = table._windows[self._behind_source].stamp
        for i in range(self._held_ones.count):
            at = self._held_ones.items[i]
            self.add(at)
            table._windows[at].stamp = max(table._windows[at].stamp, stamp)
        for i in range(self._made_count):
            self.add(self._made[i])
            table._windows[self._made[i]].stamp = stamp
        return 0

    cdef int mark(self) except -1:
        """The record's headers are those of what it has changed."""
        cdef int32_t i
        headers = self._headers[self.at] if self._headers is not None else ()
        for i in range(self._told.count):
            if headers:
                self._table.headers[self._told.items[i]] = headers
            else:
                self._table.headers.pop(self._told.items[i], None)
        return 0

    cdef int settle(self, int32_t key) except -1:
        """Tells of windows, takes new ones in, lets those go that have no row any more."""
        cdef Windows table = self._table
        cdef int32_t i, at
        if self._log is not None:
            for i in range(self._told.count):
                table.log_row(self._log, self._told.items[i], self.at)
        for i in range(self._made_count):
            self.open(self._made[i])
        if self._behind >= 0:
            self.open(self._behind)
        if not table._keys[key].count:
            return table.free_key(key)
        for i in range(self._told.count):
            if table.has_row(self._told.items[i]):
                table.change(self._told.items[i])
        for i in range(self._held_ones.count):
            at = self._held_ones.items[i]
            if not table.has_row(at):
                table.drop(at, self._before)
        return 0
