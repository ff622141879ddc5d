# cython: language_level=3
"""What the native modules of sessions and sliding windows share: see `_windows.pyx`.         [P]"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t

from kafkalite.streams.local.operators._cells cimport Column
from kafkalite.streams.local.spans._log cimport SpanLog, longer
from kafkalite.streams.local.spans._parts cimport Part

cdef enum:  # flags of a window
    CHANGED = 1  # those below have yet to hear of it
    UNLOGGED = 2  # the changelog has yet to hear of it
    COLD = 4  # its row is kept as bytes alone
    GONE = 8  # it was removed, but waits for its end
    WAITS = 16  # for its end, or closed until no window can be made of it

cdef struct Window:
    int64_t start, end
    int64_t stamp
    int64_t logged_start, logged_end  # under which the changelog knows it; -1: it does not
    int64_t told_start, told_end  # the same of those below
    int32_t key
    int32_t flags

cdef struct Key:
    uint64_t hash
    PyObject *bytes  # held; NULL: free
    int32_t *its  # windows, by their starts
    int32_t first, count, room

cdef struct Ending:  # of a heap
    int64_t end  # the window may end later by now
    int32_t window

cdef class Windows:
    cdef readonly Py_ssize_t count  # of windows that are there
    cdef readonly Py_ssize_t cold  # of those whose rows are kept as bytes alone
    cdef readonly Py_ssize_t waiting  # of changes that those below have yet to hear of
    cdef readonly int64_t newest_start
    cdef SpanLog _tombstones  # keys that the changelog has to delete
    cdef readonly list orphans  # keys of rows that were kept as bytes alone, and are gone
    cdef readonly dict headers  # of rows, by window
    cdef bytes _kinds
    cdef int _parts_each
    cdef bint _of_sessions
    cdef int64_t _length  # of all windows that are no sessions
    cdef bint deletes  # whether a row of the one aggregate may be None, which is no row
    cdef bint merges_updates  # those below hear of what changed later, if at all
    cdef bint tells
    cdef Window *_windows
    cdef Part *_parts
    cdef int32_t _windows_made, _windows_room
    cdef int32_t *_free_windows
    cdef int32_t _free_windows_count, _free_windows_room
    cdef Key *_keys
    cdef int32_t _keys_made, _keys_room, _keys_count
    cdef int32_t _free_key  # a list through `first`; -1: none
    cdef int32_t *_slots  # a hash table: keys, counted from 1
    cdef uint64_t _mask
    cdef Ending *_heap
    cdef int32_t _heap_count, _heap_room
    cdef int32_t *_changed
    cdef int32_t _changed_count, _changed_room
    cdef int32_t *_unlogged
    cdef int32_t _unlogged_count, _unlogged_room
    cdef SpanLog _gone  # windows of which those below have yet to hear that they are gone

    cdef int32_t find_key(self, const char *data, Py_ssize_t length) noexcept
    cdef int32_t make_key(self, const char *data, Py_ssize_t length, object key) except -1
    cdef uint64_t free_slot(self, uint64_t h) noexcept
    cdef int more_keys(self) except -1
    cdef int free_key(self, int32_t key) except -1
    cdef int32_t new_window(self, int32_t key, int64_t start, int64_t end) except -1
    cdef int free_window(self, int32_t window) except -1
    cdef int insert(self, int32_t window) except -1
    cdef int open(self, int32_t window) except -1
    cdef int remove(self, int32_t window, int64_t stamp) except -1
    cdef int drop(self, int32_t window, int64_t time) except -1
    cdef int change(self, int32_t window) except -1
    cdef int32_t place_of(self, int32_t key, int64_t start) noexcept
    cdef bytes place(self, object key, int64_t start, int64_t end)
    cdef int push(self, int64_t end, int32_t window) except -1
    cdef int32_t pop(self) noexcept
    cdef int release(self, int32_t window) except -1
    cdef int add(
        self, int part, int32_t window, Column *column, Py_ssize_t record
    ) except -1
    cdef int merge(self, int32_t older, int32_t newer) except -1
    cdef int copy(self, int32_t source, int32_t target) except -1
    cdef bint has_row(self, int32_t window) noexcept
    cdef int log_row(self, SpanLog log, int32_t window, Py_ssize_t record) except -1
    cdef int log_change(self, SpanLog log, int32_t window) except -1


cdef inline int append(int32_t **numbers, int32_t *count, int32_t *room, int32_t number) except -1:
    """One more number at the end of a list."""
    if count[0] == room[0]:
        numbers[0] = <int32_t *> longer(numbers[0], 2 * room[0] + 16, sizeof(int32_t))
        room[0] = 2 * room[0] + 16
    numbers[0][count[0]] = number
    count[0] += 1
    return 0
