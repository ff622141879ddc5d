# cython: language_level=3, binding=False
"""The records of a run with the rows of the other side: see matching.py.                     [P]

What is rare (rows that wait, segments that are new or over) goes through the methods of the store
and of the join, so that only lookups and new rows of segments that are there have a loop here.
"""

from libc.stdint cimport int64_t

INTERFACE = 1


def match(
    object join,
    bytes sides,
    list keys,
    list stamps,
    list values,
    list times,
    object pairs,
):
    """Joins records one after the other; `times` are those by which they are judged, if any."""
    cdef Py_ssize_t at, count = len(keys)
    cdef int side, other
    cdef int64_t stamp, time, low, high, visible, row_stamp, limit, number, last
    cdef int64_t keeps = join.keeps_ms, reached = join.time
    cdef int64_t newest[2]
    cdef int64_t due[2]
    cdef int64_t width[2]
    cdef int64_t before[2]
    cdef int64_t after[2]
    cdef bint waits[2]
    cdef bint is_timed = times is not None
    cdef list stores = list(join.sides)
    cdef list tables = []
    cdef dict segments, rows_of
    cdef list found = [], rows, events
    cdef object key, value, segment, row, store
    cdef list made_at = pairs.at, made = pairs.made, made_keys = pairs.keys
    cdef list made_stamps = pairs.stamps
    cdef list columns = list(pairs.values)
    cdef list own_column, other_column
    for side in range(2):
        store = stores[side]
        tables.append(store.segments)
        newest[side], due[side] = store.newest, min(store.due, (1 << 62))
        width[side], waits[side] = store.width_ms, store.waits
        before[side], after[side] = join.reach[side]
    for at in range(count):
        side = sides[at]
        other = 1 - side
        key, value, stamp = keys[at], values[at], stamps[at]
        if key is None or value is None:
            join.incomplete(pairs, side, at, key, stamp, value)
            continue
        store = stores[side]
        if not is_timed and stamp > newest[side]:
            newest[side] = stamp
            if stamp - keeps >= due[side]:
                join.expire(pairs, side, at, stamp)
                due[side] = min(store.due, (1 << 62))
        time = times[at] if is_timed else newest[other]
        low, high, visible = stamp - before[side], stamp + after[side], time - keeps + 1
        if low < visible:
            low = visible
        if found:
            found = []
        if low <= high:
            segments = tables[other]
            number, last = max(low, 0) // width[other], high // width[other]
            while number <= last:
                segment = segments.get(number)
                number += 1
                if segment is None:
                    continue
                rows_of = segment.rows
                rows = rows_of.get(key)
                if rows is not None:
                    for row in rows:
                        row_stamp = (<tuple>row)[0]
                        if low <= row_stamp <= high:
                            found.append(row)
        if found:
            if len(found) > 1:
                found.sort(key=first_of)
            own_column, other_column = columns[side], columns[other]
            for row in found:
                row_stamp = (<tuple>row)[0]
                made_at.append(at)
                made.append(False)
                made_keys.append(key)
                made_stamps.append(stamp if stamp > row_stamp else row_stamp)
                own_column.append(value)
                other_column.append((<tuple>row)[1])
            if waits[other]:
                stores[other].meet(key, low, high)
        limit = (reached if is_timed else newest[side]) - keeps
        if stamp <= limit:
            join.refuse(pairs, side, at, key, stamp, value, bool(found))
            continue
        segments = tables[side]
        segment = segments.get(stamp // width[side])
        if segment is None or (waits[side] and not found):
            store.put(key, stamp, value, waits=waits[side] and not found)
            due[side] = min(store.due, (1 << 62))
            continue
        rows_of = segment.rows
        rows = rows_of.get(key)
        row = (stamp, value)
        if rows is None:
            rows_of[key] = [row]
        else:
            rows.append(row)
        events = segment.events
        events.append((key, stamp, value, 0))
    for side in range(2):
        stores[side].newest = max(stores[side].newest, newest[side])


def first_of(tuple row):
    """The timestamp of a row."""
    return row[0]
