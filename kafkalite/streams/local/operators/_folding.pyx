# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Batches into groups of records by window and key, and these into partials: see folding.py.  [P]

    entry      a record in one of its windows; in tumbling windows, or without any, each record is
               one, unless it is late
    group      the entries of one key in one window, in the order in which its first one came
    cell       the partial of one group for one aggregate while a batch is folded

`Groups` looks at keys and timestamps, `fold` at arguments and at the partials so far. Both change
nothing, and refuse a batch that holds what they do not know. `write` puts the partials and the
rows' timestamps into a bucket.

Keys and objects are read through borrowed references: the columns are held, and nobody else has
them.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_DelItem, PyDict_GetItem, PyDict_SetItem
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from kafkalite.core.protocol._int64s cimport Int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._spans cimport Spans
from kafkalite.streams.local._key_hash cimport hash_of
from kafkalite.streams.local.operators._cells cimport (
    COUNT,
    COUNT_OF,
    FIRST,
    INT,
    LAST,
    MEAN,
    MIN,
    OTHER,
    Cell,
    Column,
    add_argument,
    is_none,
    object_at,
    open_column,
    read_number,
    read_object,
    value_of,
)

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 8  # raised whenever this module and folding.py agree on something else

cdef extern from "Python.h":
    bint PyLong_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    PyObject *PyList_GET_ITEM(object, Py_ssize_t)

cdef int64_t TIME_MAX = INT64_MAX >> 2
cdef Py_ssize_t ENTRIES_MAX = 1 << 22  # of a batch in windows that overlap
cdef uint64_t SEED = <uint64_t> hash(b"kafkalite") | 1  # of its own in each process

cdef struct Place:
    int64_t start
    int32_t group


cdef int by_window(const void *one, const void *other) noexcept nogil:
    cdef const Place *a = <const Place *> one
    cdef const Place *b = <const Place *> other
    if a.start != b.start:
        return -1 if a.start < b.start else 1
    return -1 if a.group < b.group else a.group > b.group


cdef void *room(Py_ssize_t count, Py_ssize_t size) except NULL:
    """Zeroed memory for `count` things."""
    cdef void *found = calloc(count + 1, size)
    if found == NULL:
        raise MemoryError
    return found


cdef bint read_times(column, int64_t *times, Py_ssize_t count) except -1:
    """Timestamps; False where one is none."""
    cdef Py_ssize_t i
    cdef int overflow = 0
    cdef list items
    if len(column) != count:
        raise ValueError("columns of different lengths")
    if type(column) is Int64s:
        memcpy(times, (<Int64s> column).numbers, count * sizeof(int64_t))
        for i in range(count):
            if times[i] < 0 or times[i] > TIME_MAX:
                return False
        return True
    items = column if type(column) is list else list(column)
    for i in range(count):
        item = <object> PyList_GET_ITEM(items, i)
        if not PyLong_CheckExact(item):
            return False
        times[i] = PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow or times[i] < 0 or times[i] > TIME_MAX:
            return False
    return True


@cython.final
cdef class Groups:
    """The records of a batch by window and key. `is_known`: whether all could be read."""

    def __cinit__(
        self, keys, timestamps, times, int64_t before, int64_t size, int64_t advance,
        int64_t held_open,
    ):
        """Windows of `size`, 0 for none, take records until `held_open` after their start by the
        time that judges a record: its entry in `times`, or else the newest before it; at least
        `before`."""
        cdef Py_ssize_t count = len(timestamps)
        if len(keys) != count:
            raise ValueError("columns of different lengths")
        self._records, self._keys = count, keys
        self.late, self.starts, self.stamps, self._bounds, self._objects = [], [], [], [], []
        self._times = <int64_t *> room(count, sizeof(int64_t))
        self._record_of = <int32_t *> room(count, sizeof(int32_t))
        self._group_of = <int32_t *> room(count, sizeof(int32_t))
        self._entries_max = count
        self.grow()
        if not read_times(timestamps, self._times, count):
            return
        self.measure()
        cdef int64_t *judges = <int64_t *> room(count, sizeof(int64_t))
        try:
            if times is not None and not read_times(times, judges, count):
                return
            self.judge(judges, times is None, before)
            if not self.enter_all(judges, size, advance, held_open):
                return
        finally:
            free(judges)
        self.sort()
        self.is_known = True

    def __dealloc__(self):
        free(self._times)
        free(self._group_of)
        free(self._record_of)
        free(self._groups)
        free(self._order)
        free(self._slots)
        free(self._cells)

    # Keys and timestamps

    cdef void measure(self) noexcept:
        cdef Py_ssize_t i
        self.is_ascending = True
        for i in range(self._records):
            if i and self._times[i] < self._times[i - 1]:
                self.is_ascending = False
            self.newest = max(self.newest, self._times[i])

    cdef void judge(self, int64_t *judges, bint by_records, int64_t before) noexcept:
        """The time that judges each record."""
        cdef Py_ssize_t i
        for i in range(self._records):
            if by_records:
                before = judges[i] = max(before, self._times[i])
            else:
                judges[i] = max(before, judges[i])

    cdef bint enter_all(
        self, const int64_t *judges, int64_t size, int64_t advance, int64_t held_open
    ) except -1:
        """Each record into its windows that are open; False for keys that are no bytes."""
        cdef Py_ssize_t i, length
        cdef int64_t time, start, first = 0, beyond = 0  # the windows of [first, beyond)
        cdef const char *data
        cdef Spans spans = None
        cdef list keys = None
        cdef bint is_late
        if type(self._keys) is Spans:
            spans = self._keys
        else:
            keys = self._keys = self._keys if type(self._keys) is list else list(self._keys)
        for i in range(self._records):
            if spans is not None:
                if spans.first[i] < 0:
                    return False
                data, length = spans.bytes + spans.first[i], spans.last[i] - spans.first[i]
            else:
                key = <object> PyList_GET_ITEM(keys, i)
                if not PyBytes_CheckExact(key):
                    return False
                data, length = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if not size:
                self.enter(data, length, 0, i)
                continue
            time = self._times[i]
            if size != advance or not first <= time < beyond:
                first = max(0, time - size + advance) // advance * advance
                beyond = first + size
            is_late = True
            start = first
            while start <= time:
                if start + held_open > judges[i]:
                    if self._entries == ENTRIES_MAX:
                        return False
                    self.enter(data, length, start, i)
                    is_late = False
                else:
                    self.missed += 1
                start += advance
            if is_late:
                self.late.append(i)
        return True

    cdef int enter(
        self, const char *data, Py_ssize_t length, int64_t start, Py_ssize_t record
    ) except -1:
        """One more entry."""
        cdef Py_ssize_t at = self.find(data, length, start, record)
        cdef Group *group = &self._groups[at]
        group.newest = max(group.newest, self._times[record])
        group.last = <int32_t> record
        if self._entries == self._entries_max:
            self.lengthen()
        self._group_of[self._entries] = <int32_t> at
        self._record_of[self._entries] = <int32_t> record
        self._entries += 1
        return 0

    cdef Py_ssize_t find(
        self, const char *data, Py_ssize_t length, int64_t start, Py_ssize_t record
    ) except -1:
        """The group of a key in a window, made when there is none."""
        cdef uint64_t h = hash_of(data, length, <uint64_t> start, SEED)
        cdef uint64_t slot = h & self._mask
        cdef Group *group
        while self._slots[slot]:
            group = &self._groups[self._slots[slot] - 1]
            if (
                group.hash == h and group.start == start and group.length == length
                and memcmp(group.key, data, length) == 0
            ):
                return self._slots[slot] - 1
            slot = (slot + 1) & self._mask
        if self._count == self._groups_max:
            self.grow()
            slot = self.free_slot(h)
        group = &self._groups[self._count]
        group.hash, group.start, group.key, group.length = h, start, data, length
        group.newest = -1
        group.was_row = group.is_row = False
        self._objects.append(self._keys[record])
        self._count += 1
        self._slots[slot] = <int32_t> self._count
        return self._count - 1

    cdef uint64_t free_slot(self, uint64_t h) noexcept:
        cdef uint64_t slot = h & self._mask
        while self._slots[slot]:
            slot = (slot + 1) & self._mask
        return slot

    cdef int grow(self) except -1:
        """Twice as many groups; half of the slots are free then."""
        cdef Py_ssize_t i, count = max(256, 2 * self._groups_max)
        cdef void *longer = realloc(self._groups, count * sizeof(Group))
        if longer == NULL:
            raise MemoryError
        self._groups, self._groups_max = <Group *> longer, count
        free(self._slots)
        self._slots = NULL
        self._slots = <int32_t *> room(2 * count, sizeof(int32_t))
        self._mask = 2 * count - 1
        for i in range(self._count):
            self._slots[self.free_slot(self._groups[i].hash)] = <int32_t> i + 1
        return 0

    cdef int lengthen(self) except -1:
        """Twice as many entries."""
        cdef Py_ssize_t count = 2 * self._entries_max
        cdef void *longer = realloc(self._group_of, count * sizeof(int32_t))
        if longer == NULL:
            raise MemoryError
        self._group_of = <int32_t *> longer
        longer = realloc(self._record_of, count * sizeof(int32_t))
        if longer == NULL:
            raise MemoryError
        self._record_of = <int32_t *> longer
        self._entries_max = count
        return 0

    cdef int sort(self) except -1:
        """Windows, ascending, and the groups of each as they came."""
        cdef Py_ssize_t i
        cdef bint is_sorted = True
        cdef Place *places
        self._order = <int32_t *> room(self._count, sizeof(int32_t))
        for i in range(self._count):
            self._order[i] = <int32_t> i
            if i and self._groups[i].start < self._groups[i - 1].start:
                is_sorted = False
        if not is_sorted:
            places = <Place *> room(self._count, sizeof(Place))
            for i in range(self._count):
                places[i].start, places[i].group = self._groups[i].start, <int32_t> i
            qsort(places, self._count, sizeof(Place), by_window)
            for i in range(self._count):
                self._order[i] = places[i].group
            free(places)
        self.list_windows()
        return 0

    cdef int list_windows(self) except -1:
        cdef Py_ssize_t i
        cdef int64_t start = -1
        cdef dict stamps = None
        cdef Group *group
        for i in range(self._count):
            group = &self._groups[self._order[i]]
            if group.start != start:
                start, stamps = group.start, {}
                self.starts.append(group.start)
                self.stamps.append(stamps)
                self._bounds.append(i)
            PyDict_SetItem(stamps, self._objects[self._order[i]], group.newest)
        self._bounds.append(self._count)
        return 0

    def last_records(self, Py_ssize_t window):
        """The record that came last for each key of a window."""
        cdef Py_ssize_t i
        return [
            self._groups[self._order[i]].last
            for i in range(self._bounds[window], self._bounds[window + 1])
        ]

    # Arguments

    def fold(self, bytes kinds, list columns, list partials, bint deletes):
        """Whether all arguments and partials could be read: `write` may follow.

        `partials` are those of each window. Where the one aggregate `deletes`, a row comes with
        its first argument that is not None.
        """
        cdef Py_ssize_t part
        cdef Column column
        self.begin(kinds, columns, partials, deletes)
        for part in range(len(kinds)):
            open_column(columns[part], self._records, &column)
            if not (self.load(part, partials) and self.add(part, &column)):
                return False
            if deletes:
                self.follow_rows(&column)
        return True

    cdef int begin(self, bytes kinds, list columns, list partials, bint deletes) except -1:
        """Empty cells for each aggregate."""
        if len(kinds) != len(columns) or len(partials) != len(self.starts):
            raise ValueError("columns of different lengths")
        self._kinds, self._columns, self._deletes = kinds, columns, deletes
        free(self._cells)
        self._cells = NULL
        self._cells = <Cell *> room(len(kinds) * self._count, sizeof(Cell))
        return 0

    cdef bint load(self, Py_ssize_t part, list partials) except -1:
        """The partials so far; False where one cannot be read."""
        cdef Py_ssize_t window, i, at
        cdef object found  # a dict, or a Counter
        cdef PyObject *partial
        cdef Cell *cell
        cdef int kind = self._kinds[part]
        if kind == LAST and not self._deletes:
            return True
        for window in range(len(partials)):
            found = (<tuple?> partials[window])[part]
            if not found:
                continue
            for i in range(self._bounds[window], self._bounds[window + 1]):
                at = self._order[i]
                partial = PyDict_GetItem(found, <object> PyList_GET_ITEM(self._objects, at))
                if partial == NULL:
                    continue
                cell = &self._cells[part * self._count + at]
                self._groups[at].was_row = self._groups[at].is_row = True
                if kind == FIRST or kind == LAST:
                    cell.kind = OTHER
                elif kind == MEAN:
                    total, cell.count = <tuple?> <object> partial
                    if not read_number(total, cell):
                        return False
                elif not read_number(<object> partial, cell):
                    if kind < MIN or not read_object(kind, <object> partial, cell):
                        return False
                elif kind <= COUNT_OF and cell.kind != INT:
                    return False
        return True

    cdef bint add(self, Py_ssize_t part, Column *column) except -1:
        """The arguments; False where one cannot be added."""
        cdef Py_ssize_t i, record
        cdef Cell *cells = &self._cells[part * self._count]
        cdef Cell *cell
        cdef int kind = self._kinds[part]
        for i in range(self._entries):
            cell = &cells[self._group_of[i]]
            record = self._record_of[i]
            if kind == COUNT or not is_none(column, record):
                if not add_argument(kind, cell, column, record):
                    return False
        return True

    cdef void follow_rows(self, Column *column) noexcept:
        """The timestamps of rows that come with this batch."""
        cdef Py_ssize_t i
        cdef Group *group
        for i in range(self._count):
            self._groups[i].stamp = -1
        for i in range(self._entries):
            group = &self._groups[self._group_of[i]]
            if group.is_row:
                group.stamp = max(group.stamp, self._times[self._record_of[i]])
            else:
                group.stamp = self._times[self._record_of[i]]
                group.is_row = not is_none(column, self._record_of[i])

    # Into a bucket

    def write(self, Py_ssize_t window, tuple partials, dict stamps):
        """Puts the rows of a window into the dicts of its bucket: the newest timestamp."""
        cdef Py_ssize_t i, at, part
        cdef int64_t newest = 0
        cdef Cell *cell
        for i in range(self._bounds[window], self._bounds[window + 1]):
            at = self._order[i]
            key = <object> PyList_GET_ITEM(self._objects, at)
            newest = max(newest, self._groups[at].newest)
            self.write_stamp(&self._groups[at], key, stamps)
            for part in range(len(partials)):
                cell = &self._cells[part * self._count + at]
                if cell.is_new:
                    PyDict_SetItem(partials[part], key, self.partial(part, cell))
        return newest

    def rows(self):
        """All groups by window, where nothing was there before: their keys, newest timestamps, the
        starts of their windows, and a column of partials for each aggregate, None for none."""
        cdef Py_ssize_t i, at, part
        cdef Cell *cell
        cdef list keys = [], stamps = [], starts = []
        cdef list columns = [[] for _ in range(len(self._kinds))]
        for i in range(self._count):
            at = self._order[i]
            keys.append(<object> PyList_GET_ITEM(self._objects, at))
            stamps.append(self._groups[at].newest)
            starts.append(self._groups[at].start)
        for part in range(len(columns)):
            column = <list> columns[part]
            for i in range(self._count):
                cell = &self._cells[part * self._count + self._order[i]]
                column.append(self.partial(part, cell) if cell.is_new else None)
        return keys, stamps, starts, columns

    cdef int write_stamp(self, Group *group, key, dict stamps) except -1:
        """A late record does not take a row's timestamp back; a new row has one of its own."""
        cdef PyObject *found = PyDict_GetItem(stamps, key)
        cdef int64_t stamp = group.newest
        if self._deletes and not group.was_row:
            stamp = group.stamp
            if found != NULL:
                PyDict_DelItem(stamps, key)
        elif found != NULL and <int64_t> <object> found >= stamp:
            return 0
        PyDict_SetItem(stamps, key, stamp)
        return 0

    cdef object partial(self, Py_ssize_t part, Cell *cell):
        cdef int kind = self._kinds[part]
        cdef Column column
        if kind == MEAN:
            return value_of(cell), cell.count
        if kind < FIRST:
            return value_of(cell)
        open_column(self._columns[part], self._records, &column)
        return object_at(&column, cell.count)
