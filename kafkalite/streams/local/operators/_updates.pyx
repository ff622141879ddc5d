# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The rows of a batch after each of its records, for those who want every update.            [P]

    entry      a record in one of its windows, see _folding.pyx; it makes one update
    update     of a row: its key, what it is once the entry is folded in, its timestamp then

`Updates` folds as `Groups.fold` does and refuses what that refuses: nothing has changed then.
`Groups.write` puts the last row of each group into its bucket.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from kafkalite.core.protocol._int64s cimport Block, Int64s, new_block, new_int64s
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._spans cimport hold, new_spans
from kafkalite.streams.local.operators._cells cimport (
    COUNT,
    EMPTY,
    FIRST,
    INT,
    LAST,
    MEAN,
    SUM,
    Cell,
    Column,
    add_argument,
    is_none,
    object_at,
    open_column,
    value_of,
)
from kafkalite.streams.local.operators._folding cimport Group, Groups

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 8  # as in _folding.pyx

cdef enum:
    START_BYTES = 8


cdef inline object result_of(int kind, Cell *cell):
    """What an aggregate of numbers is so far."""
    if kind == MEAN:
        return value_of(cell) / cell.count if cell.count else None
    if cell.kind == EMPTY:
        return 0 if kind <= SUM else None
    return value_of(cell)


cdef inline void put_start(char *out, uint64_t start) noexcept nogil:
    """A window's start as keys have it: the highest byte first."""
    cdef int byte
    for byte in range(START_BYTES):
        out[byte] = <char> (start >> 8 * (START_BYTES - 1 - byte) & 0xFF)


@cython.final
cdef class Updates:
    """An update for each entry of `groups`. `is_known`: whether all could be folded."""

    cdef readonly bint is_known
    cdef readonly list results  # for each aggregate its column: Int64s, or a list
    cdef readonly Int64s stamps
    cdef readonly Int64s records  # whose updates these are; None: one for each record, in order
    cdef Groups _groups

    def __cinit__(
        self, Groups groups not None, bytes kinds, list columns, list partials, list stamps,
        bint deletes,
    ):
        """`partials` and `stamps` are those of each window."""
        cdef Py_ssize_t part
        cdef Column column
        cdef object made
        self._groups, self.results = groups, []
        groups.begin(kinds, columns, partials, deletes)
        for part in range(len(kinds)):
            open_column(columns[part], groups._records, &column)
            if not groups.load(part, partials):
                return
            if kinds[part] < FIRST:
                made = self.follow_numbers(part, &column)
            else:
                made = self.follow_objects(part, &column, partials)
            if made is None:
                return
            self.results.append(made)
        self.stamps = self.follow_stamps(stamps, &column)
        self.find_records()
        self.is_known = True

    def __len__(self):
        return self._groups._entries

    cdef object follow_numbers(self, Py_ssize_t part, Column *column):
        """The results of an aggregate of numbers; None where an argument cannot be added."""
        cdef Groups groups = self._groups
        cdef Cell *cells = &groups._cells[part * groups._count]
        cdef Cell *cell
        cdef int kind = groups._kinds[part]
        cdef Block block = new_block(groups._entries)
        cdef list made = None
        cdef Py_ssize_t i, record
        for i in range(groups._entries):
            cell = &cells[groups._group_of[i]]
            record = groups._record_of[i]
            if kind == COUNT or not is_none(column, record):
                if not add_argument(kind, cell, column, record):
                    return None
            if made is None:
                if kind != MEAN and (cell.kind == INT or cell.kind == EMPTY and kind <= SUM):
                    block.numbers[i] = cell.number
                    continue
                made = new_int64s(block, block.numbers, i).tolist()
            made.append(result_of(kind, cell))
        return new_int64s(block, block.numbers, groups._entries) if made is None else made

    cdef list follow_objects(self, Py_ssize_t part, Column *column, list partials):
        """The results of an aggregate that keeps an argument: the first or the last."""
        cdef Groups groups = self._groups
        cdef Cell *cells = &groups._cells[part * groups._count]
        cdef int kind = groups._kinds[part]
        cdef list made = [], current = [None] * groups._count
        cdef Py_ssize_t window, i, at, record
        cdef PyObject *partial
        for window in range(len(partials)):
            found = (<tuple?> partials[window])[part]
            for i in range(groups._bounds[window], groups._bounds[window + 1]):
                at = groups._order[i]
                partial = PyDict_GetItem(found, groups._objects[at])
                if partial != NULL:
                    current[at] = <object> partial
        for i in range(groups._entries):
            at = groups._group_of[i]
            record = groups._record_of[i]
            if not is_none(column, record):
                add_argument(kind, &cells[at], column, record)
                if kind == LAST or current[at] is None:
                    current[at] = object_at(column, record)
            made.append(current[at])
        return made

    cdef Int64s follow_stamps(self, list stamps, Column *column):
        """The timestamps of rows, which begin anew where `column` makes them come and go."""
        cdef Groups groups = self._groups
        cdef Block block = new_block(groups._entries)
        cdef Py_ssize_t window, i
        cdef int64_t time
        cdef dict found
        cdef PyObject *stamp
        cdef Group *group
        for window in range(len(stamps)):
            found = stamps[window]
            for i in range(groups._bounds[window], groups._bounds[window + 1]):
                group = &groups._groups[groups._order[i]]
                group.stamp = -1
                if groups._deletes and not group.was_row:
                    continue
                stamp = PyDict_GetItem(found, groups._objects[groups._order[i]])
                if stamp != NULL:
                    group.stamp = <int64_t> <object> stamp
        for i in range(groups._entries):
            group = &groups._groups[groups._group_of[i]]
            time = groups._times[groups._record_of[i]]
            if groups._deletes and not group.is_row:
                group.stamp = time
                group.is_row = not is_none(column, groups._record_of[i])
            else:
                group.stamp = max(group.stamp, time)
            block.numbers[i] = group.stamp
        return new_int64s(block, block.numbers, groups._entries)

    cdef int find_records(self) except -1:
        """Sets `records`."""
        cdef Groups groups = self._groups
        cdef Block block
        cdef Py_ssize_t i
        cdef bint is_each = groups._entries == groups._records
        for i in range(groups._entries):
            if not is_each:
                break
            is_each = groups._record_of[i] == i
        if is_each:
            return 0
        block = new_block(groups._entries)
        for i in range(groups._entries):
            block.numbers[i] = groups._record_of[i]
        self.records = new_int64s(block, block.numbers, groups._entries)
        return 0

    def starts(self):
        """The starts of their windows."""
        cdef Groups groups = self._groups
        cdef Block block = new_block(groups._entries)
        cdef Py_ssize_t i
        for i in range(groups._entries):
            block.numbers[i] = groups._groups[groups._group_of[i]].start
        return new_int64s(block, block.numbers, groups._entries)

    def windowed_keys(self):
        """Their keys as topics have them, each followed by the start of its window."""
        cdef Groups groups = self._groups
        cdef Block block = new_block(2 * groups._entries)
        cdef int64_t *first = block.numbers
        cdef int64_t *last = first + groups._entries
        cdef Group *group
        cdef Py_ssize_t i, shift, total = 0, at = 0
        for i in range(groups._entries):
            total += groups._groups[groups._group_of[i]].length + START_BYTES
        cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
        cdef char *out = PyBytes_AS_STRING(data)
        for i in range(groups._entries):
            group = &groups._groups[groups._group_of[i]]
            first[i] = at
            memcpy(out + at, group.key, group.length)
            at += group.length
            put_start(out + at, group.start)
            at += START_BYTES
            last[i] = at
        return new_spans(hold(data, &shift), block, first, last, groups._entries)

    def olds(self, rows, list before):
        """The rows that they replace: `before` has each group's, window by window."""
        cdef Groups groups = self._groups
        cdef list made = [], current = [None] * groups._count
        cdef Py_ssize_t i, at
        if len(rows) != groups._entries or len(before) != groups._count:
            raise ValueError("columns of different lengths")
        for i in range(groups._count):
            current[groups._order[i]] = before[i]
        for i in range(groups._entries):
            at = groups._group_of[i]
            made.append(current[at])
            current[at] = rows[i]
        return made
