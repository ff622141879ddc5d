# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The cleaner's two loops over records in native code: the twin of cleaning_pure.py.         [P]

All that grows with the records runs here without the GIL, so that the broker's event loop goes on
while another thread cleans: a run of batches is read, hashed, looked up, filtered and written with
one call. A batch that needs more than that (compressed, aborted, a marker, the last of a producer,
or damaged) ends the call: its turn comes in Python, through the same primitives.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kafkalite.compaction._batch cimport (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    COUNT_AT,
    DELETE_HORIZON,
    END_OF_RUN,
    FULL_MAP,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    NO_MEMORY,
    ON,
    OTHER_BATCH,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
    Batch,
    Held,
    Record,
    Run,
    Walked,
    check_record_count,
    copy_kept,
    get_int64,
    kept_bytes_max,
    next_batch,
    parse_record,
    pass_over,
    put_int32,
    put_int64,
    run_of,
    seal,
    stopped,
)
from kafkalite.compaction._offset_map cimport OffsetMap, Table, hash_in, latest, set_latest
from kafkalite.compaction._output cimport Output
from kafkalite.core.protocol._interface cimport check_interface
from kafkalite.core.protocol._varint cimport unlikely

from kafkalite.compaction.cleaning_pure import LIKELY_TIME_MAX, refuse_records
from kafkalite.core.protocol.records_pure import INTERFACE

check_interface(INTERFACE)

cdef enum:
    SOME = 16  # records that are parsed ahead: as many cache misses at once as processors have
    ALL_IN = -1  # of `put_body`: every record is in the map
    NO_RECORD = -2

cdef int64_t LIKELY_TIME = LIKELY_TIME_MAX


cdef struct Keyed:
    Record record
    uint64_t[2] hash  # of its key, if it has one


cdef inline int parse_some(
    const Table *table, const uint8_t **at, const uint8_t *end, int64_t count, Keyed *some
) noexcept nogil:
    """Parses the next records, at most SOME, and asks for the memory that their keys' entries are
    in: by the time that they are looked up it is there. How many; -1 for no record."""
    cdef int i, wanted = <int> min(count, SOME)
    cdef Record *record
    for i in range(wanted):
        record = &some[i].record
        if unlikely(not parse_record(at[0], end, record)):
            return -1
        at[0] = record.end
        if record.key_size >= 0:
            hash_in(table, record.key, record.key_size, some[i].hash)
    return wanted


# ---- first pass --------------------------------------------------------------------------------


cdef int64_t put_body(
    Table *table,
    const uint8_t *at,
    const uint8_t *end,
    int64_t count,
    int64_t base_offset,
    int64_t first_offset,
    int64_t entries_max,
) noexcept nogil:
    """The first offset that the map did not take; or ALL_IN, or NO_RECORD where one should be."""
    cdef Keyed[SOME] some
    cdef int64_t offset
    cdef int i, parsed
    while count > 0:
        parsed = parse_some(table, &at, end, count, some)
        if unlikely(parsed < 0):
            return NO_RECORD
        for i in range(parsed):
            offset = base_offset + some[i].record.delta
            if some[i].record.key_size < 0 or offset < first_offset:
                continue
            if unlikely(table.size >= entries_max):
                return offset
            if unlikely(not set_latest(table, some[i].hash, offset)):
                return offset
        count -= parsed
    return ALL_IN if at == end else NO_RECORD


def put_records(
    OffsetMap offsets,
    body,
    int64_t count,
    int64_t base_offset,
    int64_t first_offset,
    int64_t entries_max,
):
    """Puts a batch's records; the first offset left out, None if all are in. See the twin."""
    cdef Held held = Held(body)
    cdef const uint8_t *at = <const uint8_t *> held.view.buf
    cdef int64_t left_out
    with nogil:
        left_out = put_body(
            &offsets.table, at, at + held.view.len, count, base_offset, first_offset, entries_max
        )
    if left_out == NO_RECORD:
        refuse_records(count, base_offset)
    return None if left_out == ALL_IN else left_out


def put_batches(
    OffsetMap offsets,
    data,
    int64_t position,
    int64_t next_offset,
    int64_t end_offset,
    int64_t first_offset,
    int64_t entries_max,
    aborted,
):
    """Puts the records of plain batches from `position` on; see the twin."""
    cdef Held held = Held(data), ranges = Held(aborted)
    cdef Run run = run_of(held, position, next_offset, end_offset, ranges)
    cdef Walked walked = ON
    with nogil:
        while walked == ON:
            walked = put_next(&offsets.table, &run, first_offset, entries_max)
    return stopped(&run, walked)


cdef Walked put_next(
    Table *table, Run *run, int64_t first_offset, int64_t entries_max
) noexcept nogil:
    cdef Batch batch
    cdef Walked walked = next_batch(run, &batch)
    if walked != ON:
        return walked
    cdef int64_t left_out = put_body(
        table, batch.records, batch.end, batch.count, batch.base_offset, first_offset, entries_max
    )
    if left_out == NO_RECORD:
        return OTHER_BATCH
    if left_out != ALL_IN:
        run.next_offset = left_out
        return FULL_MAP
    pass_over(run, &batch)
    return ON


# ---- second pass -------------------------------------------------------------------------------


cdef struct Rule:
    int64_t mapped_until
    int64_t now_ms
    int64_t delete_horizon_ms  # of tombstones that get one now
    const int64_t *needed  # ascending
    int64_t needed_count


cdef struct Selection:
    uint8_t *mask  # a byte each, 1 or 0
    int64_t mask_size
    int64_t kept
    int64_t tombstones  # of the kept
    int64_t min_delta  # the least and the largest timestamp delta of the kept
    int64_t max_delta


cdef inline bint is_likely_time(int64_t number) noexcept nogil:
    """Whether sums and differences of such times and deltas are within 64 bits."""
    return -LIKELY_TIME <= number <= LIKELY_TIME


cdef inline bint has_likely_times(const Selection *selection) noexcept nogil:
    return is_likely_time(selection.min_delta) and is_likely_time(selection.max_delta)


cdef bint judge_body(
    const Table *table,
    const uint8_t *at,
    const uint8_t *end,
    int64_t count,
    int64_t base_offset,
    int64_t mapped_until,
    bint tombstones_go,
    Selection *selection,
) noexcept nogil:
    """Fills the mask: the native words of `retain.keeps`. False where there is no record."""
    cdef Keyed[SOME] some
    cdef Record *record
    cdef int64_t done = 0, offset
    cdef int i, parsed
    cdef bint keep
    selection.kept = selection.tombstones = 0
    selection.min_delta = INT64_MAX
    selection.max_delta = INT64_MIN
    while done < count:
        parsed = parse_some(table, &at, end, count - done, some)
        if unlikely(parsed < 0):
            return False
        for i in range(parsed):
            record = &some[i].record
            offset = base_offset + record.delta
            if offset >= mapped_until:
                keep = True
            elif record.key_size < 0 or (record.value_size < 0 and tombstones_go):
                keep = False
            else:
                keep = offset >= latest(table, some[i].hash)
            selection.mask[done + i] = keep
            if keep:
                selection.kept += 1
                selection.tombstones += record.value_size < 0
                selection.min_delta = min(selection.min_delta, record.timestamp_delta)
                selection.max_delta = max(selection.max_delta, record.timestamp_delta)
        done += parsed
    return at == end


def judge_records(
    OffsetMap offsets,
    body,
    int64_t count,
    int64_t base_offset,
    int64_t mapped_until,
    bint tombstones_go,
):
    """Which records stay, and whether tombstones are among them; see the twin."""
    cdef Held held = Held(body)
    cdef const uint8_t *at = <const uint8_t *> held.view.buf
    cdef Selection selection
    cdef bint parsed
    check_record_count(count, held.view.len)
    mask = PyBytes_FromStringAndSize(NULL, count)
    selection.mask = <uint8_t *> PyBytes_AS_STRING(mask)
    with nogil:
        parsed = judge_body(
            &offsets.table, at, at + held.view.len, count, base_offset, mapped_until,
            tombstones_go, &selection,
        )
    if not parsed:
        refuse_records(count, base_offset)
    return mask, selection.tombstones > 0 and has_likely_times(&selection)


def filter_batches(
    OffsetMap offsets,
    data,
    int64_t position,
    int64_t next_offset,
    int64_t end_offset,
    Output output,
    cleaned,
    aborted,
):
    """Appends to `output` what stays of plain batches from `position` on; see the twin."""
    cdef Held held = Held(data), ranges = Held(aborted), needed = Held(cleaned.needed)
    cdef Run run = run_of(held, position, next_offset, end_offset, ranges)
    cdef Rule rule = Rule(
        cleaned.mapped_until, cleaned.now_ms, cleaned.delete_horizon_ms,
        <const int64_t *> needed.view.buf, needed.view.len // sizeof(int64_t),
    )
    cdef Selection selection
    cdef Walked walked = ON
    selection.mask = NULL
    selection.mask_size = 0
    with nogil:
        while walked == ON:
            walked = filter_next(&offsets.table, &run, &rule, &selection, output)
        free(selection.mask)
    return stopped(&run, walked)


cdef Walked filter_next(
    const Table *table, Run *run, const Rule *rule, Selection *selection, Output output
) noexcept nogil:
    cdef Batch batch
    cdef uint8_t *mask
    cdef Walked walked = next_batch(run, &batch)
    if walked != ON:
        return walked
    if is_among(batch.last_offset, rule.needed, rule.needed_count):
        return OTHER_BATCH
    if batch.count > selection.mask_size:
        mask = <uint8_t *> realloc(selection.mask, batch.count)
        if mask == NULL:
            return NO_MEMORY
        selection.mask = mask
        selection.mask_size = batch.count
    if not judge_body(
        table, batch.records, batch.end, batch.count, batch.base_offset, rule.mapped_until,
        batch.attributes & DELETE_HORIZON
        and get_int64(batch.data + BASE_TIMESTAMP_AT) <= rule.now_ms,
        selection,
    ):
        return OTHER_BATCH
    if batch.attributes & TRANSACTIONAL:
        if not output.saw(get_int64(batch.data + PRODUCER_ID_AT)):
            return NO_MEMORY
    if selection.kept and not keep_batch(&batch, rule, selection, output):
        return NO_MEMORY
    pass_over(run, &batch)
    return ON


cdef inline bint is_among(int64_t number, const int64_t *numbers, int64_t count) noexcept nogil:
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low < count and numbers[low] == number


cdef bint keep_batch(
    const Batch *batch, const Rule *rule, const Selection *selection, Output output
) noexcept nogil:
    """Writes what stays of the batch, which is some of it; false when memory is short. The native
    words of `rewrite.clean_batch`."""
    cdef int64_t base_timestamp = get_int64(batch.data + BASE_TIMESTAMP_AT)
    cdef int64_t max_timestamp = get_int64(batch.data + MAX_TIMESTAMP_AT)
    cdef int64_t new_base = base_timestamp, size = batch.end - batch.data
    cdef int attributes = batch.attributes
    cdef bint is_likely = is_likely_time(base_timestamp) and has_likely_times(selection)
    if selection.tombstones and not attributes & DELETE_HORIZON and is_likely:
        attributes |= DELETE_HORIZON
        new_base = rule.delete_horizon_ms
    elif selection.kept == batch.count:
        return output.add(batch.data, size, batch.last_offset, max_timestamp)
    if is_likely and not attributes & LOG_APPEND_TIME:
        max_timestamp = base_timestamp + selection.max_delta
    cdef uint8_t *written = output.reserve(kept_bytes_max(size, selection.kept))
    if written == NULL:
        return False
    memcpy(written, batch.data, HEADER_BYTES)
    written[ATTRIBUTES_AT + 1] = <uint8_t> attributes
    put_int64(written + BASE_TIMESTAMP_AT, new_base)
    put_int64(written + MAX_TIMESTAMP_AT, max_timestamp)
    put_int32(written + COUNT_AT, <int> selection.kept)
    size = copy_kept(
        batch.records, batch.end, batch.count, selection.mask, base_timestamp - new_base,
        written + HEADER_BYTES,
    ) - written
    seal(written, size)
    return output.grown(size, batch.last_offset, max_timestamp)
