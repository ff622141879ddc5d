# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Windows that differ from key to key, packed: sessions and sliding windows.                 [P]

    key        its windows, by their starts
    window     bounds, timestamp, a part for each aggregate
    heap       windows by their ends; an end may have moved, and a window may have gone, until its
               entry comes up: then it goes in again, or its number becomes free

A window has a number as long as it is there.

Owns   keys, windows, parts, the heap. `_table.pyx` has what becomes of windows besides records.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.streams.local._key_hash cimport hash_of
from kafkalite.streams.local.operators._cells cimport (
    COUNT,
    COUNT_OF,
    EMPTY,
    FIRST,
    INT,
    LAST,
    MIN,
    OBJECT,
    SUM,
    Cell,
    Column,
    is_none,
    object_at,
    read_argument,
    read_object,
)
from kafkalite.streams.local.spans._log cimport NUMBER_BYTES, Entry, SpanLog, longer, put_place
from kafkalite.streams.local.spans._parts cimport (
    Part,
    add_cell,
    add_object,
    keep,
    let_go,
    merge_parts,
    result_of,
)

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 1  # as in _table.pyx

cdef uint64_t SEED = <uint64_t> hash(b"kafkalite") | 1  # of its own in each process


cdef class Windows:
    """Windows by key and by end."""

    def __cinit__(
        self, bytes kinds, bint of_sessions, int64_t length, bint deletes
    ):
        self._kinds, self._parts_each = kinds, len(kinds)
        self._of_sessions, self._length = of_sessions, length
        self.deletes = deletes
        self.orphans, self.headers = [], {}
        self.newest_start = -1
        self._free_key = -1
        self._mask = 255
        self._slots = <int32_t *> calloc(256, sizeof(int32_t))
        if self._slots == NULL:
            raise MemoryError
        self._gone = SpanLog(0, of_sessions)
        self._tombstones = SpanLog(self._parts_each, of_sessions)

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self._windows_made * self._parts_each):
            let_go(&self._parts[i])
        for i in range(self._keys_made):
            if self._keys[i].bytes != NULL:
                Py_DECREF(<object> self._keys[i].bytes)
                free(self._keys[i].its)
        free(self._windows)
        free(self._parts)
        free(self._keys)
        free(self._slots)
        free(self._free_windows)
        free(self._heap)
        free(self._changed)
        free(self._unlogged)

    # Keys

    cdef int32_t find_key(self, const char *data, Py_ssize_t length) noexcept:
        """The number of a key; -1: it has no windows."""
        cdef uint64_t h = hash_of(data, length, 0, SEED)
        cdef uint64_t slot = h & self._mask
        cdef Key *key
        while self._slots[slot]:
            key = &self._keys[self._slots[slot] - 1]
            if (
                key.hash == h and PyBytes_GET_SIZE(<object> key.bytes) == length
                and memcmp(PyBytes_AS_STRING(<object> key.bytes), data, length) == 0
            ):
                return self._slots[slot] - 1
            slot = (slot + 1) & self._mask
        return -1

    cdef int32_t make_key(self, const char *data, Py_ssize_t length, object known) except -1:
        """The number of a new key, of which `known` may be the object."""
        cdef int32_t at
        cdef Key *key
        if self._free_key < 0 and self._keys_made == self._keys_room:
            self.more_keys()
        if known is None:
            known = PyBytes_FromStringAndSize(data, length)
        at = self._free_key
        if at >= 0:
            self._free_key = self._keys[at].first
        else:
            at = self._keys_made
            self._keys_made += 1
        key = &self._keys[at]
        Py_INCREF(known)
        key.hash, key.bytes = hash_of(data, length, 0, SEED), <PyObject *> known
        key.its, key.first, key.count, key.room = NULL, 0, 0, 0
        self._slots[self.free_slot(key.hash)] = at + 1
        self._keys_count += 1
        return at

    cdef uint64_t free_slot(self, uint64_t h) noexcept:
        cdef uint64_t slot = h & self._mask
        while self._slots[slot]:
            slot = (slot + 1) & self._mask
        return slot

    cdef int more_keys(self) except -1:
        """Room for twice as many; half of the slots are free then."""
        cdef int32_t i, room = max(128, 2 * self._keys_room)
        cdef int32_t *slots
        self._keys = <Key *> longer(self._keys, room, sizeof(Key))
        self._keys_room = room
        slots = <int32_t *> calloc(2 * room, sizeof(int32_t))
        if slots == NULL:
            raise MemoryError
        free(self._slots)
        self._slots, self._mask = slots, 2 * room - 1
        for i in range(self._keys_made):
            if self._keys[i].bytes != NULL:
                self._slots[self.free_slot(self._keys[i].hash)] = i + 1
        return 0

    cdef int free_key(self, int32_t at) except -1:
        """A key whose windows have all gone leaves."""
        cdef Key *key = &self._keys[at]
        cdef uint64_t home, hole = key.hash & self._mask
        cdef uint64_t slot
        while self._slots[hole] != at + 1:
            hole = (hole + 1) & self._mask
        slot = hole
        while True:  # others move up, so that each is found from its home on
            slot = (slot + 1) & self._mask
            if not self._slots[slot]:
                break
            home = self._keys[self._slots[slot] - 1].hash & self._mask
            if ((slot - home) & self._mask) >= ((slot - hole) & self._mask):
                self._slots[hole] = self._slots[slot]
                hole = slot
        self._slots[hole] = 0
        free(key.its)
        Py_DECREF(<object> key.bytes)
        key.bytes, key.its, key.first = NULL, NULL, self._free_key
        self._free_key = at
        self._keys_count -= 1
        return 0

    # Windows

    cdef int32_t new_window(self, int32_t key, int64_t start, int64_t end) except -1:
        """The number of a window that is not there yet."""
        cdef int32_t at, room = self._windows_room
        cdef Window *window
        if self._free_windows_count:
            self._free_windows_count -= 1
            at = self._free_windows[self._free_windows_count]
        else:
            if self._windows_made == room:
                room += (room >> 1) + 256
                self._windows = <Window *> longer(self._windows, room, sizeof(Window))
                self._parts = <Part *> longer(
                    self._parts, room * <Py_ssize_t> self._parts_each, sizeof(Part)
                )
                self._windows_room = room
            at = self._windows_made
            memset(
                &self._parts[at * <Py_ssize_t> self._parts_each], 0,
                self._parts_each * sizeof(Part),
            )
            self._windows_made += 1
        window = &self._windows[at]
        window.start, window.end, window.key, window.stamp = start, end, key, -1
        window.logged_start = window.told_start = -1
        window.flags = 0
        return at

    cdef int free_window(self, int32_t at) except -1:
        self.release(at)
        append(
            &self._free_windows, &self._free_windows_count, &self._free_windows_room, at
        )
        return 0

    cdef int release(self, int32_t at) except -1:
        """Empties the parts of a window."""
        cdef Py_ssize_t i
        cdef Py_ssize_t first = at * <Py_ssize_t> self._parts_each
        for i in range(first, first + self._parts_each):
            let_go(&self._parts[i])
            self._parts[i].count = 0
        return 0

    cdef int32_t place_of(self, int32_t at, int64_t start) noexcept:
        """The first of a key's windows that begins at `start` or later."""
        cdef Key *key = &self._keys[at]
        cdef int32_t low = 0, high = key.count, middle
        if high and self._windows[key.its[key.first + high - 1]].start < start:
            return high
        while low < high:
            middle = (low + high) >> 1
            if self._windows[key.its[key.first + middle]].start < start:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int insert(self, int32_t at) except -1:
        """Puts a window among those of its key."""
        cdef Key *key = &self._keys[self._windows[at].key]
        cdef int32_t place = self.place_of(self._windows[at].key, self._windows[at].start)
        if key.first + key.count == key.room:
            if key.first and 2 * key.first >= key.room:
                memmove(key.its, key.its + key.first, key.count * sizeof(int32_t))
                key.first = 0
            else:
                key.its = <int32_t *> longer(key.its, 2 * key.room + 2, sizeof(int32_t))
                key.room = 2 * key.room + 2
        memmove(
            key.its + key.first + place + 1, key.its + key.first + place,
            (key.count - place) * sizeof(int32_t),
        )
        key.its[key.first + place] = at
        key.count += 1
        self.count += 1
        return 0

    cdef int open(self, int32_t at) except -1:
        """A new window: it will close."""
        self.insert(at)
        self.newest_start = max(self.newest_start, self._windows[at].start)
        self.push(self._windows[at].end, at)
        return 0

    cdef int remove(self, int32_t at, int64_t stamp) except -1:
        """A window leaves, at `stamp` for the changelog if that knows it."""
        cdef Window *window = &self._windows[at]
        cdef Key *key = &self._keys[window.key]
        cdef int32_t place = key.first, end = key.first + key.count
        if key.its[place] != at:
            place = end - 1
            while key.its[place] != at:
                place -= 1
        if window.logged_start >= 0:
            found = <object> key.bytes
            self._tombstones.add(
                found, window.logged_start, window.logged_end, stamp, 0, False, ()
            )
            if window.flags & COLD:
                self.orphans.append(self.place(found, window.logged_start, window.logged_end))
        if place == key.first:
            key.first += 1
        else:
            memmove(key.its + place, key.its + place + 1, (end - place - 1) * sizeof(int32_t))
        key.count -= 1
        if not key.count:
            self.free_key(window.key)
        self.count -= 1
        self.cold -= (window.flags & COLD) != 0
        window.flags = window.flags & WAITS | GONE
        if self.headers:
            self.headers.pop(at, None)
        if window.flags & WAITS:
            self.release(at)
        else:
            self.free_window(at)
        return 0

    cdef int drop(self, int32_t at, int64_t time) except -1:
        """The same, of a window of which those below may have to hear."""
        cdef Window *window = &self._windows[at]
        if self.merges_updates and self.tells and window.told_start >= 0:
            self._gone.add(
                <object> self._keys[window.key].bytes, window.told_start, window.told_end,
                min(window.stamp, window.told_end), 0, False, (),
            )
            self.waiting += 1
        return self.remove(at, time)

    cdef int change(self, int32_t at) except -1:
        """A window's row has changed."""
        cdef Window *window = &self._windows[at]
        if not window.flags & UNLOGGED:
            window.flags |= UNLOGGED
            append(&self._unlogged, &self._unlogged_count, &self._unlogged_room, at)
        if self.tells and self.merges_updates and not window.flags & CHANGED:
            window.flags |= CHANGED
            append(&self._changed, &self._changed_count, &self._changed_room, at)
            self.waiting += 1
        return 0

    cdef bytes place(self, object key, int64_t start, int64_t end):
        """The key of a row in topics."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(key)
        cdef Py_ssize_t tail = 2 * NUMBER_BYTES if self._of_sessions else NUMBER_BYTES
        cdef bytes made = PyBytes_FromStringAndSize(NULL, length + tail)
        cdef unsigned char *out = <unsigned char *> PyBytes_AS_STRING(made)
        cdef Entry entry
        entry.start, entry.end = start, end
        memcpy(out, PyBytes_AS_STRING(key), length)
        put_place(out + length, &entry, self._of_sessions)
        return made

    # The heap

    cdef int push(self, int64_t end, int32_t at) except -1:
        cdef int32_t hole = self._heap_count, above
        if self._heap_count == self._heap_room:
            self._heap_room += (self._heap_room >> 1) + 64
            self._heap = <Ending *> longer(self._heap, self._heap_room, sizeof(Ending))
        self._heap_count += 1
        self._windows[at].flags |= WAITS
        while hole:
            above = (hole - 1) >> 1
            if self._heap[above].end <= end:
                break
            self._heap[hole] = self._heap[above]
            hole = above
        self._heap[hole].end, self._heap[hole].window = end, at
        return 0

    cdef int32_t pop(self) noexcept:
        """The window that may end first; it waits no more."""
        cdef int32_t found = self._heap[0].window
        cdef Ending last
        cdef int32_t hole = 0, below
        self._heap_count -= 1
        self._windows[found].flags &= ~WAITS
        if not self._heap_count:
            return found
        last = self._heap[self._heap_count]
        while True:
            below = 2 * hole + 1
            if below >= self._heap_count:
                break
            if below + 1 < self._heap_count and self._heap[below + 1].end < self._heap[below].end:
                below += 1
            if self._heap[below].end >= last.end:
                break
            self._heap[hole] = self._heap[below]
            hole = below
        self._heap[hole] = last
        return found

    # Parts

    cdef int add(self, int number, int32_t at, Column *column, Py_ssize_t record) except -1:
        """Adds one argument to a part of a window."""
        cdef int kind = self._kinds[number]
        cdef Part *part = &self._parts[at * <Py_ssize_t> self._parts_each + number]
        cdef Cell x
        cdef bint is_number
        x.number, x.real, x.item = 0, 0.0, NULL
        if kind != COUNT and is_none(column, record):
            return 0
        if kind <= COUNT_OF:
            part.at.number = part.at.number + 1 if part.kind else 1
            part.kind = INT
            return 0
        if kind == FIRST and part.kind != EMPTY:
            return 0
        is_number = read_argument(column, record, &x)
        if kind >= FIRST:
            keep(part, object_at(column, record))
            return 0
        if not is_number and kind < MIN:
            is_number = read_object(kind, <object> column.objects[record], &x)
        if not (is_number and add_cell(kind, part, &x)):
            add_object(kind, part, object_at(column, record))
        part.count += 1
        return 0

    cdef int merge(self, int32_t older, int32_t newer) except -1:
        """Makes one partial of two, in the window `older`."""
        cdef int number, kind
        cdef Part *one
        cdef Part *other
        for number in range(self._parts_each):
            kind = self._kinds[number]
            one = &self._parts[older * <Py_ssize_t> self._parts_each + number]
            other = &self._parts[newer * <Py_ssize_t> self._parts_each + number]
            if other.kind == EMPTY or kind == FIRST and one.kind != EMPTY:
                continue
            if one.kind == EMPTY or kind == LAST:
                let_go(one)
                one[0] = other[0]
                other.kind = EMPTY
            else:
                merge_parts(kind if kind > COUNT_OF else SUM, one, other)
        return 0

    cdef int copy(self, int32_t source, int32_t target) except -1:
        """Copies the partials of a window to a new one."""
        cdef Py_ssize_t i
        cdef Part *old = &self._parts[source * <Py_ssize_t> self._parts_each]
        cdef Part *new = &self._parts[target * <Py_ssize_t> self._parts_each]
        for i in range(self._parts_each):
            if old[i].kind == OBJECT:
                Py_INCREF(<object> old[i].at.item)
            new[i] = old[i]
        return 0

    cdef bint has_row(self, int32_t at) noexcept:
        return not self.deletes or self._parts[at * <Py_ssize_t> self._parts_each].kind != EMPTY

    # Rows on their way

    cdef int log_row(self, SpanLog log, int32_t at, Py_ssize_t record) except -1:
        """The row of a window as it is now."""
        cdef Window *window = &self._windows[at]
        cdef int i
        for i in range(self._parts_each):
            (<list> log.results[i]).append(
                result_of(self._kinds[i], &self._parts[at * <Py_ssize_t> self._parts_each + i])
            )
        log.add(
            <object> self._keys[window.key].bytes, window.start, window.end, window.stamp, record,
            True, self.headers.get(at, ()) if self.headers else (),
        )
        return 0

    cdef int log_change(self, SpanLog log, int32_t at) except -1:
        """What those below have yet to hear of a window."""
        cdef Window *window = &self._windows[at]
        window.flags &= ~CHANGED
        if window.told_start >= 0 and (
            window.told_start != window.start or window.told_end != window.end
        ):
            log.add(
                <object> self._keys[window.key].bytes, window.told_start, window.told_end,
                min(window.stamp, window.told_end), 0, False, (),
            )
        self.log_row(log, at, 0)
        window.told_start, window.told_end = window.start, window.end
        return 0
