"""What is in a log after it was cleaned, held to a dictionary and to the rules of retain.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkalite.compaction import passes
from kafkalite.compaction.cleaner import (
    GROUP_SEGMENTS_MAX,
    CleanerSettings,
    Cleaning,
    CleaningAborted,
    DirtyRange,
    grouped,
)
from kafkalite.compaction.loops import NATIVE
from kafkalite.compaction.offset_map import SLOT_BYTES
from kafkalite.core.log.index import OFFSET_ENTRY
from kafkalite.core.log.producer_state import marker_of
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import (
    BATCH_HEADER_BYTES,
    ControlType,
    TimestampType,
    read_header,
)
from kafkalite.errors import CorruptBatchError, StorageError
from kafkalite.testing.clock import at

MakeModel = Callable[..., Any]
COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT
SECRET = bytes(16)


def keys_of(model: Any) -> list[tuple[int, bytes]]:
    return [(record.offset, record.key) for record in model.records()]


def test_the_latest_record_of_a_key_stays_where_it_is(loops: str, model: MakeModel) -> None:
    log = model.filled()
    log.clean()
    assert keys_of(log) == [(24, b"a"), (25, b"b"), (26, b"c"), (27, b"a")]
    assert [record.value for record in log.records()] == [b"8", b"8", b"8", b"active"]
    assert [segment.base_offset for segment in log.log.segments] == [0, 27]
    assert log.log.read(0, 1 << 20, 100).read()[:8] == (24).to_bytes(8, "big")


def test_what_the_map_has_not_seen_stays(loops: str, model: MakeModel) -> None:
    log = model.filled()
    cleaning = log.clean(buffer_bytes=3 * SLOT_BYTES)
    assert cleaning.mapped_until == 2, "room for two keys at 0.9; the third record is left"
    assert len(log.records()) == 28
    for _ in range(40):
        if log.clean(buffer_bytes=5 * SLOT_BYTES) is None:
            break
    assert keys_of(log) == [(24, b"a"), (25, b"b"), (26, b"c"), (27, b"a")]


def test_a_log_of_which_all_stays_is_not_written_anew(loops: str, model: MakeModel) -> None:
    log = model()
    for i in range(20):
        log.append([(b"%d" % i, b"value")])
    log.roll()
    before = log.log.segments[0]
    cleaning = log.clean()
    assert log.log.segments[0] is before
    assert cleaning.stats.written_bytes == cleaning.stats.read_bytes
    assert not [name for name in log.storage.files("state-0") if "cleaned" in name]


def test_small_segments_become_one_up_to_the_size_of_a_segment(
    loops: str, model: MakeModel
) -> None:
    log = model(settings={"segment_bytes": 400})
    for i in range(30):
        log.append([(b"%d" % i, b"v" * 50)])
    log.roll()
    old = len(log.log.segments)
    log.clean()
    assert len(log.log.segments) == old, "each holds as much as it may"
    for i in range(20):
        log.append([(b"%d" % i, b"w" * 50)])
    log.roll()
    log.clean()
    log.append([(b"x", b"")])
    log.roll()
    old = len(log.log.segments)
    log.clean()
    assert len(log.log.segments) < old, "the cleaning before made some of them small"
    assert all(segment.size_bytes <= 400 for segment in log.log.segments)
    assert {r.key: r.value for r in log.records()} == {
        **{b"%d" % i: (b"w" if i < 20 else b"v") * 50 for i in range(30)},
        b"x": b"",
    }


def test_a_cleaning_begins_to_read_where_the_one_before_ended(loops: str, model: MakeModel) -> None:
    log = model.filled()
    log.clean(buffer_bytes=3 * SLOT_BYTES)
    log.clean_until = 12
    (_, after, *_) = (segment.size_bytes for segment in log.log.segments)
    (first,) = (s for s in log.log.segments if s.base_offset <= 12 < s.base_offset + 9)
    skipped = first.position_of(12)
    assert 0 < skipped < after
    size = sum(segment.size_bytes for segment in log.log.segments[:-1])
    before = sum(s.size_bytes for s in log.log.segments if s.base_offset + 9 <= 12)
    assert log.clean().stats.mapped_bytes == size - before - skipped


def test_the_pace_is_told_of_all_that_is_read_and_written(loops: str, model: MakeModel) -> None:
    log, told = model.filled(), []
    dirty = log.dirty()
    cleaning = Cleaning(log.log, dirty, CleanerSettings(), SECRET, at(log.now_ms), told.append)
    for work in cleaning.steps():
        work()
    stats = cleaning.stats
    assert sum(told) == stats.mapped_bytes + stats.read_bytes + stats.written_bytes


class Sized(NamedTuple):
    """As much of a segment as groups are made by."""

    base_offset: int
    size_bytes: int
    index: Any
    time_index: Any


def sizes_of_groups(
    rows: list[tuple[int, int, int]], bytes_max: int = 100, index_bytes_max: int = 100
) -> list[int]:
    """Of segments with base offset, size and size of their time index, and the end of the last."""
    ends = [base for base, _, _ in rows[1:]]
    segments = [
        (Sized(base, size, SimpleNamespace(size_bytes=0), SimpleNamespace(size_bytes=index)), end)
        for (base, size, index), end in zip(rows, ends, strict=False)
    ]
    return [len(group) for group in grouped(segments, bytes_max, index_bytes_max)]


def test_a_group_is_what_one_segment_can_hold() -> None:
    end = (10_000, 0, 0)
    assert sizes_of_groups([(0, 50, 0), (1, 50, 0), (2, 1, 0), end]) == [2, 1]
    assert sizes_of_groups([(0, 0, 60), (1, 0, 40), (2, 0, 1), end]) == [2, 1]
    assert sizes_of_groups([(0, 500, 0), (1, 500, 0), end]) == [1, 1]
    many = [(i, 0, 0) for i in range(GROUP_SEGMENTS_MAX + 3)]
    assert sizes_of_groups([*many, end]) == [GROUP_SEGMENTS_MAX, 3]
    far = 1 << 31
    assert sizes_of_groups([(0, 1, 0), (5, 1, 0), (far, 0, 0)]) == [2]
    assert sizes_of_groups([(0, 1, 0), (5, 1, 0), (far + 1, 0, 0)]) == [1, 1]


def test_what_needs_more_than_a_file_may_have_is_named(loops: str, model: MakeModel) -> None:
    log = model.filled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "SEGMENT_BYTES_MAX", 50)
        with pytest.raises(StorageError, match="the kept records need more than 2 GiB"):
            log.clean()
    assert len(log.log.segments) == 4


def test_a_tombstone_stays_until_its_horizon_has_passed(loops: str, model: MakeModel) -> None:
    log = model(settings={"delete_retention_ms": 100})
    log.append([(b"a", b"1"), (b"b", b"1")], timestamps=[500, 600])
    log.append([(b"a", None), (b"c", b"1")], timestamps=[700, 900])
    log.roll()
    log.clean()
    assert keys_of(log) == [(1, b"b"), (2, b"a"), (3, b"c")]
    assert [record.timestamp for record in log.records()] == [600, 700, 900]
    headers = [header for header, _ in log.batches()]
    assert [header.delete_horizon_ms for header in headers] == [None, 1_100]
    assert [header.max_timestamp for header in headers] == [600, 900]
    for now_ms, there in ((1_099, True), (1_100, False)):
        log.now_ms = now_ms
        log.append([(b"d", b"1")])
        log.roll()
        log.clean()
        assert ((2, b"a") in keys_of(log)) is there
    assert [record.timestamp for record in log.records()][:2] == [600, 900]
    assert log.log.offset_for_timestamp(700).offset == 3


def test_tombstones_keep_the_time_of_their_append(loops: str, model: MakeModel) -> None:
    log = model(settings={"message_timestamp_type": "LogAppendTime"})
    log.append([(b"a", None), (b"b", b"1"), (b"b", b"2")])
    log.roll()
    log.clean()
    (header, columns), *_ = log.batches()
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.max_timestamp, list(columns.timestamps)) == (1_000, [1_000, 1_000])
    assert header.delete_horizon_ms == 1_100


@pytest.mark.parametrize("absurd", [-(2**63) + 2_000, -(2**62)])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_absurd_times_survive_and_get_no_delete_horizon(
    loops: str, model: MakeModel, absurd: int, codec: Compression
) -> None:
    """A client may write them. No other base timestamp can stand for them in 64 bits."""
    log = model()
    for gone, times in ((b"b", [absurd] * 3), (b"d", [0, absurd, 0])):
        log.append([(b"x", b"1")], timestamps=[5], compression=codec)
        log.append([(b"a", b"1"), (gone, None), (b"c", b"1")], timestamps=times, compression=codec)
        log.append([(b"a", b"2"), (b"x", b"2")], timestamps=[5, 6], compression=codec)
    log.roll()
    log.clean()
    check(log)
    tombstones = [header for header, columns in log.batches() if None in columns.values]
    assert [header.delete_horizon_ms for header in tombstones] == [None, None]
    assert len(log.records()) == 5


def test_aborted_records_go_and_hide_nothing(loops: str, model: MakeModel) -> None:
    log = model()
    log.append([(b"a", b"true")])
    log.append([(b"a", b"lie"), (b"b", b"lie")], producer_id=7, transactional=True)
    log.end(7, ABORT)
    log.append([(b"c", b"1")], producer_id=7)
    log.roll()
    log.clean()
    assert keys_of(log) == [(0, b"a"), (4, b"c")]
    log.append([(b"d", b"1")])
    log.roll()
    log.clean()
    assert keys_of(log) == [(0, b"a"), (4, b"c"), (5, b"d")]
    assert log.log.aborted_transactions(0, 100) == [], "no record is left of it"


def test_the_index_of_aborts_lives_as_long_as_a_batch_of_theirs(
    loops: str, model: MakeModel
) -> None:
    """The last batch of a producer stays as an empty one, and its marker and abort with it."""
    log = model()
    log.append([(b"a", b"lie")], producer_id=7, transactional=True)
    log.end(7, ABORT)
    log.append([(b"c", b"1")])
    log.roll()
    log.clean()
    assert [h.record_count for h, _ in log.batches()] == [0, 1, 1]
    assert [a.producer_id for a in log.log.aborted_transactions(0, 100)] == [7]
    log.append([(b"a", b"now")], producer_id=7)
    log.roll()
    log.clean()
    assert [a.producer_id for a in log.log.aborted_transactions(0, 100)] == [7], "it was met"
    log.append([(b"d", b"now")])
    log.roll()
    log.clean()
    assert log.log.aborted_transactions(0, 100) == []


def test_a_marker_outlives_its_transaction_by_the_delete_retention(
    loops: str, model: MakeModel
) -> None:
    log = model(settings={"delete_retention_ms": 100})
    log.append([(b"a", b"1")], producer_id=7, transactional=True)
    log.end(7, COMMIT)
    markers = []
    for now_ms in (1_000, 1_001, 1_002, 1_101, 1_102):
        log.now_ms = now_ms
        log.append([(b"a", b"%d" % now_ms)], producer_id=7)
        log.roll()
        log.clean()
        markers.append([h.delete_horizon_ms for h, _ in log.batches() if h.is_control])
    assert markers == [[None], [1_101], [1_101], [], []]


def test_a_producer_is_known_by_its_last_batch(loops: str, model: MakeModel) -> None:
    log = model()
    log.append([(b"a", b"1"), (b"a", b"2")], producer_id=7)
    log.append([(b"a", b"3"), (b"a", b"4")], producer_id=7)
    log.append([(b"a", b"5")])
    log.roll()
    log.clean()
    log.log.flush()
    for name in [n for n in log.storage.files("state-0") if n.endswith(".snapshot")]:
        log.storage.delete(f"state-0/{name}")
    again = log.open(clean=True)
    assert [b.last_sequence for b in again.producers.entries[7].batches] == [3]
    assert [h.record_count for h, _ in log.batches(again)] == [0, 1]


def test_the_last_batch_of_the_part_tells_where_it_ends(loops: str, model: MakeModel) -> None:
    log = model()
    log.append([(b"a", b"1")])
    log.append([(b"a", b"2")], producer_id=7, transactional=True)
    log.end(7, ABORT)
    log.append([(b"b", b"2")], producer_id=7, transactional=True)
    log.append([(b"b", b"3")], producer_id=8, transactional=True)
    log.end(7, ABORT)
    log.end(8, ABORT)
    log.roll()
    log.clean()
    assert max(header.last_offset for header, _ in log.batches()) == 6


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_keep_their_codec(loops: str, model: MakeModel, compression: Compression) -> None:
    log = model()
    rows = [(b"%d" % (i % 20), b"value %d" % i) for i in range(100)]
    log.append(rows, compression=compression, headers=(("trace", b"1"),))
    log.append([(b"0", None)], compression=compression)
    log.roll()
    log.clean()
    assert [h.compression for h, _ in log.batches()] == [compression] * 2
    assert [r.offset for r in log.records()] == [*range(81, 101)]
    assert all(r.headers == (("trace", b"1"),) for r in log.records()[:-1])


def test_a_batch_larger_than_the_buffer_is_read_whole(loops: str, model: MakeModel) -> None:
    log = model(io_buffer_bytes=100)
    for _ in range(2):
        log.append([(b"a", b"v" * 5_000), (b"b", b"w" * 5_000)])
    log.roll()
    log.clean()
    assert keys_of(log) == [(2, b"a"), (3, b"b")]


def test_a_log_that_was_cut_meanwhile_is_left_alone(loops: str, model: MakeModel) -> None:
    log = model.filled()
    steps = log.cleaning(log.dirty()).steps()
    next(steps)()
    log.log.truncate_fully(50)
    with pytest.raises(CleaningAborted):
        for work in steps:
            work()
    assert not [name for name in log.storage.files("state-0") if "cleaned" in name]


def test_a_cleaning_that_is_broken_off_leaves_nothing(loops: str, model: MakeModel) -> None:
    for count in range(1, 12):
        log = model.filled(segment_bytes=300)  # two of the segments are not one
        before = log.records()
        steps = log.cleaning(log.dirty()).steps()
        for _ in range(count):
            next(steps)()
        steps.close()
        found = log.records()
        assert found[-4:] == before[-4:], count
        assert (found == before) is (count <= 5), "after the sixth step a segment takes its place"
        for remove in log.log.tick(at(1 << 50)):
            remove()
        assert log.records() == found
        assert not [name for name in log.storage.files("state-0") if "cleaned" in name]


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_damaged_batch_stops_the_cleaning_before_anything_is_lost(
    loops: str, model: MakeModel, place: str
) -> None:
    log = model.filled()
    segment = log.log.segments[1]
    at = 75 if place == "first" else segment.size_bytes - 2
    segment.log._storage.names[segment.log.path].data[at] ^= 1
    with pytest.raises(CorruptBatchError):
        log.clean()
    assert len(log.log.segments) == 4, "the first pass reads all before the second begins"


@pytest.mark.parametrize("at", [3, 7])
def test_offsets_that_cannot_be_stop_the_cleaning(loops: str, model: MakeModel, at: int) -> None:
    """They lie outside of the CRC."""
    log = model.filled()
    segment = log.log.segments[1]
    log.storage.names[segment.log.path].data[at] ^= 1
    with pytest.raises(CorruptBatchError, match=r"are expected"):
        log.clean()


def test_half_a_batch_at_a_segments_end_is_named(loops: str, model: MakeModel) -> None:
    log = model.filled()
    segment = log.log.segments[1]
    segment.log.truncate(segment.size_bytes - 3)
    with pytest.raises(CorruptBatchError, match="no whole batch in"):
        log.clean()


def test_a_map_that_holds_no_key_is_refused(model: MakeModel) -> None:
    log = model.filled()
    with pytest.raises(StorageError, match="log.cleaner.dedupe.buffer.size 10 holds no key"):
        Cleaning(log.log, DirtyRange(0, 9), CleanerSettings(10, 0.5, 100), SECRET, 0)


def test_a_marker_is_one_of_the_two_kinds(model: MakeModel) -> None:
    log = model()
    log.end(7, COMMIT)
    segment = log.log.segments[0]
    assert marker_of(segment.log.read(0, segment.size_bytes)).control_type is COMMIT


# ---- any history -------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c", b"dd", b"", b"k" * 40])
VALUES = st.none() | st.sampled_from([b"", b"1", b"v" * 60])
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4)
PLAIN = st.tuples(
    st.just("append"),
    ROWS,
    st.sampled_from([-1, -1, 1, 2]),
    st.booleans(),
    st.sampled_from([Compression.NONE] * 4 + list(Compression)),
    st.sampled_from([(), (("h", b"1"), ("h", None))]),
)
END = st.tuples(st.just("end"), st.sampled_from([1, 2]), st.sampled_from([COMMIT, ABORT]))
ROLL = st.just(("roll",))
CLEAN = st.tuples(st.just("clean"), st.sampled_from([3, 5, 1_000]))
WAIT = st.tuples(st.just("wait"), st.sampled_from([1, 60, 150]))
HISTORY = st.lists(PLAIN | END | ROLL | CLEAN | WAIT, min_size=5, max_size=40)


def act(log: Any, step: tuple[Any, ...]) -> None:
    match step:
        case ("append", rows, producer_id, transactional, compression, headers):
            transactional = producer_id >= 0 and (transactional or producer_id in log.current)
            log.append(
                rows, producer_id=producer_id, transactional=transactional,
                compression=compression, headers=headers,
            )  # fmt: skip
        case ("end", producer_id, kind):
            log.end(producer_id, kind)
        case ("roll",):
            log.roll()
        case ("wait", time_ms):
            log.now_ms += time_ms
        case ("clean", slots):
            if log.clean(buffer_bytes=slots * SLOT_BYTES) is not None:
                check(log)


def check(log: Any) -> None:
    """What must be true of a log that was just cleaned up to `clean_until`."""
    records, until = log.records(), log.clean_until
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(log.written[record.offset] == record for record in records), "nothing was changed"
    assert not [o for o in offsets if o < until and log.is_aborted(o)]
    cleaned = [record for record in records if record.offset < until]
    assert len({record.key for record in cleaned}) == len(cleaned), "one record of each key"
    there = set(offsets)
    for record in log.state(until).values():
        due_ms = log.met_ms.get(record.offset, 1 << 60) + log.config.delete_retention_ms
        if record.value is not None or log.now_ms < due_ms:
            assert record.offset in there, f"the latest of its key: {record}"
    for offset in log.written:
        assert offset < until or offset in there or log.is_aborted(offset)
    check_readers(log)
    check_transactions(log)
    check_producers(log)


def check_readers(log: Any) -> None:
    """Whoever reads committed records ends with the dictionary."""
    state = {record.key: record.value for record in log.committed()}
    stable = log.log.last_stable_offset
    wanted = {key: record.value for key, record in log.state(stable).items()}
    assert {k: v for k, v in state.items() if v is not None} == {
        k: v for k, v in wanted.items() if v is not None
    }
    for segment in log.log.segments:
        for relative, position in OFFSET_ENTRY.iter_unpack(bytes(segment.index.data())):
            header = read_header(segment.log.read(position, BATCH_HEADER_BYTES))
            assert header.last_offset == segment.base_offset + relative
    for record in log.records():
        found = log.log.read(record.offset, 1, log.log.log_end_offset).read()
        assert int.from_bytes(found[:8], "big") <= record.offset


def check_transactions(log: Any) -> None:
    """No batch of a transaction is without its marker, and of no abort readers stay untold."""
    markers = {header.base_offset for header, _ in log.batches() if header.is_control}
    aborted = log.log.aborted_transactions(0, log.log.log_end_offset)
    for header, _ in log.batches():
        transaction = log.owner.get(header.last_offset)
        if header.is_control or transaction not in log.ended:
            continue
        kind, marker_offset = log.ended[transaction]
        assert marker_offset in markers
        if kind is ABORT:
            assert (transaction[0], marker_offset) in [
                (a.producer_id, a.last_offset) for a in aborted
            ]
    for header, columns in log.batches():
        if header.is_control and header.record_count:
            assert columns.keys[0] is not None


def check_producers(log: Any) -> None:
    """A log that has lost its snapshots knows its producers all the same."""
    survivor = log.storage.after_kill()
    for name in [n for n in survivor.files("state-0") if n.endswith(".snapshot")]:
        survivor.delete(f"state-0/{name}")
    original, log.storage = log.storage, survivor
    try:
        again = log.open()
    finally:
        log.storage = original
    assert again.log_end_offset == log.log.log_end_offset
    for producer_id, entry in log.log.producers.entries.items():
        found = again.producers.entries[producer_id]
        assert found.producer_epoch == entry.producer_epoch
        assert found.last_sequence == entry.last_sequence
    assert again.last_stable_offset <= again.log_end_offset
    assert log.records(again) == log.records()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=HISTORY, io_buffer_bytes=st.sampled_from([70, 300, 4_096]))
def test_any_history_reads_as_the_dictionary_that_it_stands_for(
    loops: str, model: MakeModel, history: list[tuple[Any, ...]], io_buffer_bytes: int
) -> None:
    log = model(io_buffer_bytes=io_buffer_bytes)
    for step in history:
        act(log, step)
    log.roll()
    log.clean()
    check(log)


@settings(max_examples=100, deadline=None)
@given(history=HISTORY)
def test_the_native_loops_and_their_twins_write_the_same_files(
    model: MakeModel, twins: Callable[..., None], history: list[tuple[Any, ...]]
) -> None:
    if not NATIVE:
        pytest.skip("built without a compiler, or from other sources")
    files = []
    for pure in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if pure:
                twins(patch)
            log = model()
            for step in history:
                act(log, step)
            log.roll()
            log.clean()
            names = sorted(log.storage.files("state-0"))
            files.append({name: log.storage.read_small(f"state-0/{name}") for name in names})
    assert files[0] == files[1]
