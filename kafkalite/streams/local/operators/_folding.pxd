# cython: language_level=3
"""What the native modules that fold share: see `_folding.pyx`.                                [P]"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from kafkalite.streams.local.operators._cells cimport Cell, Column

cdef struct Group:
    uint64_t hash
    int64_t start
    const char *key
    Py_ssize_t length
    int64_t newest  # of its timestamps
    int64_t stamp  # of its row, where rows come and go
    int32_t last  # the record that came last
    bint was_row  # before this batch
    bint is_row


@cython.final
cdef class Groups:
    cdef readonly bint is_known, is_ascending
    cdef readonly int64_t newest  # of all timestamps, those of late records too
    cdef readonly int64_t missed  # how often a record missed a window
    cdef readonly list late  # the records that missed all of theirs
    cdef readonly list starts  # of windows, ascending
    cdef readonly list stamps  # by window: its keys, with their newest timestamps
    cdef list _bounds  # by window, where its groups begin in `_order`
    cdef list _objects  # the keys of groups
    cdef object _keys
    cdef Py_ssize_t _records, _entries, _entries_max, _count, _groups_max
    cdef int64_t *_times
    cdef int32_t *_group_of  # each entry
    cdef int32_t *_record_of  # each entry
    cdef Group *_groups
    cdef int32_t *_order  # groups, by window
    cdef int32_t *_slots  # a hash table: groups, counted from 1
    cdef uint64_t _mask
    cdef Cell *_cells
    cdef bytes _kinds
    cdef list _columns
    cdef bint _deletes

    cdef void measure(self) noexcept
    cdef void judge(self, int64_t *judges, bint by_records, int64_t before) noexcept
    cdef bint enter_all(
        self, const int64_t *judges, int64_t size, int64_t advance, int64_t held_open
    ) except -1
    cdef int enter(
        self, const char *data, Py_ssize_t length, int64_t start, Py_ssize_t record
    ) except -1
    cdef Py_ssize_t find(
        self, const char *data, Py_ssize_t length, int64_t start, Py_ssize_t record
    ) except -1
    cdef uint64_t free_slot(self, uint64_t h) noexcept
    cdef int grow(self) except -1
    cdef int lengthen(self) except -1
    cdef int sort(self) except -1
    cdef int list_windows(self) except -1
    cdef int begin(self, bytes kinds, list columns, list partials, bint deletes) except -1
    cdef bint load(self, Py_ssize_t part, list partials) except -1
    cdef bint add(self, Py_ssize_t part, Column *column) except -1
    cdef void follow_rows(self, Column *column) noexcept
    cdef int write_stamp(self, Group *group, key, dict stamps) except -1
    cdef object partial(self, Py_ssize_t part, Cell *cell)
