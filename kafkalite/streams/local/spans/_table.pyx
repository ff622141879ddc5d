# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The windows of a store: who hears of them, when they close, how they come back.            [P]

    log        rows on their way out: those that have changed, those that are final, those that the
               changelog keeps
    closed     sliding windows that are closed stay a while, because others are made of them
    cold       windows whose rows are bytes in the store, after a restart or where memory is scarce

Owns   the windows of one store. The native folds put records into them.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, qsort
from libc.string cimport memcmp, memmove

from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.streams.local._times cimport later
from kafkalite.streams.local.operators._cells cimport MEAN
from kafkalite.streams.local.spans._log cimport (
    NUMBER_BYTES,
    SpanLog,
    get_number,
    longer,
    put_number,
)
from kafkalite.streams.local.spans._parts cimport Part, keep, pack_part
from kafkalite.streams.local.spans._windows cimport (
    CHANGED,
    COLD,
    GONE,
    UNLOGGED,
    WAITS,
    Ending,
    Key,
    Window,
    Windows,
    append,
)

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 1  # raised whenever the modules of this folder agree on something else

cdef struct Change:
    int64_t stamp
    int32_t number, window  # the first one that changed has the lowest number


cdef int by_stamp(const void *one, const void *other) noexcept nogil:
    cdef const Change *a = <const Change *> one
    cdef const Change *b = <const Change *> other
    if a.stamp != b.stamp:
        return -1 if a.stamp < b.stamp else 1
    return -1 if a.number < b.number else a.number > b.number


cdef struct Closing:
    int64_t end, start
    const unsigned char *key
    Py_ssize_t length
    int32_t window


# In the order in which they close: by end, then by their keys in topics


cdef inline int byte_of(const Closing *one, Py_ssize_t at) noexcept nogil:
    """A byte of its key in topics, where the start stands behind the key, or behind the end, which
    all that are compared share; -1: behind it."""
    if at < one.length:
        return one.key[at]
    at -= one.length
    return -1 if at >= NUMBER_BYTES else <int> (<uint64_t> one.start >> 8 * (7 - at) & 0xFF)


cdef int by_place(const void *one, const void *other) noexcept nogil:
    cdef const Closing *a = <const Closing *> one
    cdef const Closing *b = <const Closing *> other
    cdef Py_ssize_t i, shared = min(a.length, b.length)
    cdef int order
    if a.end != b.end:
        return -1 if a.end < b.end else 1
    order = memcmp(a.key, b.key, shared)
    if order:
        return order
    for i in range(shared, max(a.length, b.length) + NUMBER_BYTES):
        order = byte_of(a, i) - byte_of(b, i)
        if order:
            return order
    return 0


cdef int by_place_of_sessions(const void *one, const void *other) noexcept nogil:
    cdef const Closing *a = <const Closing *> one
    cdef const Closing *b = <const Closing *> other
    cdef Py_ssize_t i, shared = min(a.length, b.length), longest = max(a.length, b.length)
    cdef unsigned char end[NUMBER_BYTES]
    cdef int order, x, y
    if a.end != b.end:
        return -1 if a.end < b.end else 1
    order = memcmp(a.key, b.key, shared)
    if order:
        return order
    put_number(end, <uint64_t> a.end)
    for i in range(shared, longest + 2 * NUMBER_BYTES):
        x = session_byte(a, i, end)
        y = session_byte(b, i, end)
        if x != y:
            return x - y
    return 0


cdef inline int session_byte(
    const Closing *one, Py_ssize_t at, const unsigned char *end
) noexcept nogil:
    if one.length <= at < one.length + NUMBER_BYTES:
        return end[at - one.length]
    return byte_of(one, at if at < one.length else at - NUMBER_BYTES)


@cython.final
cdef class SpanTable(Windows):
    """The windows of one store."""

    cdef int32_t *_closed  # windows that have left the heap, by their ends
    cdef int32_t _closed_first, _closed_count, _closed_room
    cdef int32_t *_closing  # windows that are about to close
    cdef int32_t _closing_count, _closing_room

    def __dealloc__(self):
        free(self._closed)
        free(self._closing)

    def __len__(self):
        return self.count

    # Changes

    def listen(self, *, bint merges, bint tells):
        """Whether somebody below hears of changes, and only of the last of several."""
        self.merges_updates, self.tells = merges, tells

    def log(self):
        """An empty one."""
        return SpanLog(self._parts_each, self._of_sessions)

    def gone(self):
        """The windows of which those below have yet to hear that they are gone."""
        found, self._gone = self._gone, SpanLog(0, self._of_sessions)
        return found

    def changes(self):
        """What those below have yet to hear of windows that are there, by timestamp."""
        cdef SpanLog log = self.log()
        cdef int32_t i, count = 0
        cdef bint is_sorted = True
        cdef Change *order = <Change *> longer(NULL, self._changed_count + 1, sizeof(Change))
        for i in range(self._changed_count):
            if not self._windows[self._changed[i]].flags & CHANGED:
                continue
            self._windows[self._changed[i]].flags &= ~CHANGED
            order[count].stamp = self._windows[self._changed[i]].stamp
            order[count].number, order[count].window = i, self._changed[i]
            is_sorted = is_sorted and (not count or order[count - 1].stamp <= order[count].stamp)
            count += 1
        self._changed_count = self.waiting = 0
        try:
            if not is_sorted:
                qsort(order, count, sizeof(Change), by_stamp)
            for i in range(count):
                self.log_change(log, order[i].window)
        finally:
            free(order)
        return log

    # Closing

    def is_due(self, int64_t limit):
        """Whether a window may end before `limit`."""
        return self._heap_count > 0 and self._heap[0].end < limit

    def close(self, int64_t limit):
        """How many windows end before `limit`, and close now."""
        cdef int32_t at, i
        cdef Closing *closing
        cdef Window *window
        self._closing_count = 0
        while self._heap_count and self._heap[0].end < limit:
            at = self.pop()
            if self._windows[at].flags & GONE:
                self.free_window(at)
            elif self._windows[at].end >= limit:
                self.push(self._windows[at].end, at)
            else:
                append(&self._closing, &self._closing_count, &self._closing_room, at)
        closing = <Closing *> longer(NULL, self._closing_count + 1, sizeof(Closing))
        for i in range(self._closing_count):
            window = &self._windows[self._closing[i]]
            key = <object> self._keys[window.key].bytes
            closing[i].end, closing[i].start, closing[i].window = (
                window.end, window.start, self._closing[i]
            )
            closing[i].key = <const unsigned char *> PyBytes_AS_STRING(key)
            closing[i].length = PyBytes_GET_SIZE(key)
        qsort(
            closing, self._closing_count, sizeof(Closing),
            by_place_of_sessions if self._of_sessions else by_place,
        )
        for i in range(self._closing_count):
            self._closing[i] = closing[i].window
        free(closing)
        return self._closing_count

    def closing_end(self, int32_t i):
        """The end of the window that closes as the i-th."""
        if not 0 <= i < self._closing_count:
            raise IndexError(i)
        return self._windows[self._closing[i]].end

    def closing_changes(self, int32_t first, int32_t stop):
        """What those below have yet to hear of some windows that close."""
        cdef SpanLog log = self.log()
        cdef int32_t i
        for i in range(max(0, first), min(stop, self._closing_count)):
            if self._windows[self._closing[i]].flags & CHANGED:
                self.log_change(log, self._closing[i])
        return log

    def closing_rows(self, int32_t first, int32_t stop):
        """The rows of some windows that close."""
        cdef SpanLog log = self.log()
        cdef int32_t i
        for i in range(max(0, first), min(stop, self._closing_count)):
            self.log_row(log, self._closing[i], 0)
        return log

    def end_closing(self, int64_t time):
        """Their rows are out. Sessions leave; others may still be made of sliding windows."""
        cdef int32_t i, at
        for i in range(self._closing_count):
            at = self._closing[i]
            if self._of_sessions:
                self.remove(at, time)
            else:
                self._windows[at].flags |= WAITS
                append(&self._closed, &self._closed_count, &self._closed_room, at)
        self._closing_count = 0

    def forget(self, int64_t oldest, int64_t time):
        """Closed windows that begin before `oldest` leave, one after the other."""
        cdef int32_t at
        while self._closed_first < self._closed_count:
            at = self._closed[self._closed_first]
            if self._windows[at].start >= oldest:
                break
            self._closed_first += 1
            self._windows[at].flags &= ~WAITS
            if self._windows[at].flags & GONE:
                self.free_window(at)
            else:
                self.remove(at, time)
        if 2 * self._closed_first >= self._closed_count:
            self._closed_count -= self._closed_first
            memmove(
                self._closed, self._closed + self._closed_first,
                self._closed_count * sizeof(int32_t),
            )
            self._closed_first = 0

    def newest_end(self):
        """The end of the last window that is open; None: there is none."""
        cdef int32_t i
        cdef int64_t newest = -1
        for i in range(self._heap_count):
            if not self._windows[self._heap[i].window].flags & GONE:
                newest = max(newest, self._windows[self._heap[i].window].end)
        return None if newest < 0 else newest

    # The changelog

    def unlogged(self, place, note, int64_t stamp, pack):
        """Of what the changelog has yet to hear, which it now has: windows that are gone, a `note`
        if there is one, rows. Those are packed as the changelog keeps them, unless results tell
        partials; `pack` writes objects."""
        cdef SpanLog log = self._tombstones
        cdef int32_t i, part, at
        cdef Window *window
        cdef Part *found
        cdef bint is_plain = MEAN not in self._kinds
        if note is not None:
            log.add_place(place, note, stamp)
        for i in range(self._unlogged_count):
            at = self._unlogged[i]
            window = &self._windows[at]
            if window.flags & UNLOGGED:
                self.log_gone_place(log, window)
        for i in range(self._unlogged_count):
            at = self._unlogged[i]
            window = &self._windows[at]
            if not window.flags & UNLOGGED:
                continue
            window.flags &= ~UNLOGGED
            window.logged_start, window.logged_end = window.start, window.end
            if is_plain:
                self.log_row(log, at, 0)
                continue
            log.add(
                <object> self._keys[window.key].bytes, window.start, window.end, window.stamp, 0,
                True, self.headers.get(at, ()) if self.headers else (),
            )
            log.pack_array(self._parts_each)
            for part in range(self._parts_each):
                found = &self._parts[at * <Py_ssize_t> self._parts_each + part]
                pack_part(log, self._kinds[part], found, pack)
            log.end_packing()
        self._unlogged_count = 0
        self._tombstones = SpanLog(self._parts_each, self._of_sessions)
        return log

    cdef int log_gone_place(self, SpanLog log, Window *window) except -1:
        """The key under which the changelog knows a window that has moved."""
        if window.logged_start < 0 or (
            window.logged_start == window.start and window.logged_end == window.end
        ):
            return 0
        return log.add(
            <object> self._keys[window.key].bytes, window.logged_start, window.logged_end,
            window.stamp, 0, False, (),
        )

    def take_orphans(self):
        """Keys of rows that were kept as bytes alone, and are gone."""
        found, self.orphans = self.orphans, []
        return found

    # Restoring

    cdef int32_t at_place(self, bytes place, bint is_made) except -2:
        """The window of a key in topics; -1: there is none, unless it `is_made`."""
        cdef Py_ssize_t tail = 2 * NUMBER_BYTES if self._of_sessions else NUMBER_BYTES
        cdef Py_ssize_t length = PyBytes_GET_SIZE(place) - tail
        cdef const unsigned char *data = <const unsigned char *> PyBytes_AS_STRING(place)
        cdef int64_t start, end
        cdef int32_t key, at, i
        if length < 0:
            raise ValueError(f"no window in the key {place!r:.80}")
        start = get_number(data + length + tail - NUMBER_BYTES)
        end = get_number(data + length) if self._of_sessions else later(start, self._length)
        key = self.find_key(<const char *> data, length)
        if key >= 0:
            for i in range(self.place_of(key, start), self._keys[key].count):
                at = self._keys[key].its[self._keys[key].first + i]
                if self._windows[at].start != start:
                    break
                if self._windows[at].end == end:
                    return at
        if not is_made:
            return -1
        if key < 0:
            key = self.make_key(<const char *> data, length, None)
        at = self.new_window(key, start, end)
        self.insert(at)
        return at

    def settle(self, places):
        """Windows whose rows are kept as bytes alone, by their keys in topics; some are there."""
        cdef int32_t at
        cdef Window *window
        cdef Py_ssize_t before
        for place in places:
            before = self.count
            at = self.at_place(place, True)
            if self.count > before:
                window = &self._windows[at]
                window.logged_start, window.logged_end = window.start, window.end
                window.told_start, window.told_end = window.start, window.end
                window.flags = COLD
                self.cold += 1

    def unsettle(self, bytes place):
        """Lets go of a window that the changelog tells of again."""
        cdef int32_t at = self.at_place(place, False)
        if at >= 0:
            self._windows[at].logged_start = -1
            self.remove(at, 0)

    def resume(self, int64_t limit):
        """After a restart: windows that end before `limit` are closed, others will close."""
        cdef int32_t i, j
        self._closing_count = 0
        for i in range(self._keys_made):
            if self._keys[i].bytes == NULL:
                continue
            for j in range(self._keys[i].first, self._keys[i].first + self._keys[i].count):
                at = self._keys[i].its[j]
                self.newest_start = max(self.newest_start, self._windows[at].start)
                self.push(self._windows[at].end, at)
        return self.close(limit)

    def all_of(self, keys):
        """The windows of some keys."""
        cdef int32_t key, i
        cdef list found = []
        for each in keys:
            key = self.find_key(PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each))
            if key >= 0:
                for i in range(self._keys[key].count):
                    found.append(self._keys[key].its[self._keys[key].first + i])
        return found

    def every_key(self):
        """The keys that have windows."""
        cdef int32_t i
        return [
            <object> self._keys[i].bytes for i in range(self._keys_made)
            if self._keys[i].bytes != NULL
        ]

    def closing(self):
        """The windows that are about to close."""
        cdef int32_t i
        return [self._closing[i] for i in range(self._closing_count)]

    def cold_ones(self, windows):
        """Those of some windows whose rows are kept as bytes alone, by their keys in topics."""
        cdef int32_t at
        cdef Window *window
        cdef dict found = {}
        for at in windows:
            window = &self._windows[self.checked(at)]
            if window.flags & COLD:
                key = <object> self._keys[window.key].bytes
                found[self.place(key, window.start, window.end)] = at
        return found

    def load(self, list windows, list stamps, tuple partials):
        """Puts rows back: the partials of each aggregate, by window."""
        cdef int32_t at
        cdef int i
        cdef Part *part
        for at, stamp in zip(windows, stamps, strict=True):
            self._windows[self.checked(at)].stamp = stamp
            for i in range(self._parts_each):
                found = (<dict> partials[i]).get(at)
                if found is None:
                    continue
                part = &self._parts[at * <Py_ssize_t> self._parts_each + i]
                if self._kinds[i] == MEAN:
                    found, part.count = found
                keep(part, found)
            if self._windows[at].flags & COLD:
                self._windows[at].flags &= ~COLD
                self.cold -= 1

    cdef int32_t checked(self, int32_t at) except -1:
        if not 0 <= at < self._windows_made:
            raise IndexError(at)
        return at

    def cool(self, Py_ssize_t count):
        """Lets go of up to so many rows that are kept as bytes, too, and of which everyone has
        heard."""
        cdef int32_t i
        cdef Window *window
        for i in range(self._windows_made):
            if not count:
                break
            window = &self._windows[i]
            if (
                window.logged_start >= 0
                and not window.flags & (CHANGED | UNLOGGED | COLD | GONE)
            ):
                self.release(i)
                self.headers.pop(i, None)
                window.flags |= COLD
                self.cold += 1
                count -= 1

    def described(self, windows):
        """The key, start, end and number of each of some windows."""
        cdef int32_t at
        return [
            (
                <object> self._keys[self._windows[self.checked(at)].key].bytes,
                self._windows[at].start, self._windows[at].end, at,
            )
            for at in windows
        ]

    def rows(self, windows):
        """The rows of some windows."""
        cdef SpanLog log = self.log()
        cdef int32_t at
        for at in windows:
            self.log_row(log, self.checked(at), 0)
        return log
