"""Which offset a time has: found by both indexes, in steps, whatever became of the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from logs import MakeBatch, OpenLog, commit

from kafkalite.core.log.port import Storage
from kafkalite.core.log.values import GoOn, TimestampAndOffset
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage


def test_records_are_found_by_time(storage: Storage, open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(storage, segment_bytes=700, index_interval_bytes=100)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() == -1
    times = [10, 10, 40, 30, 30, 90, 20, 90, 100, 50, 60, 70]
    for time in times:
        log.append_as_leader(batch(3, timestamp=time, step=1), 3, 1_000)
    every = [time + i for time in times for i in range(3)]
    for wanted in range(120):
        expected = next((i for i, time in enumerate(every) if time >= wanted), None)
        found = log.offset_for_timestamp(wanted)
        assert (found and found.offset) == expected, wanted
        if found:
            assert (found.timestamp, found.leader_epoch) == (every[found.offset], 3)
    assert log.max_timestamp() == 102


def test_a_plateau_of_equal_times_is_not_walked_through(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, index_interval_bytes=400)
    for time in (*[100] * 500, 300, *[200] * 500):
        log.append_as_leader(batch(timestamp=time), 0, 1_000)
    few = 400 // 70 + 2  # what lies between two entries of the index
    for wanted, offset in ((100, 0), (101, 500), (300, 500)):
        found = log.offset_for_timestamp(wanted, batches_max=few)
        assert isinstance(found, TimestampAndOffset), found
        assert found.offset == offset
    log.roll(1_000)
    log.append_as_leader(batch(timestamp=400), 0, 1_000)
    assert log.offset_for_timestamp(300, batches_max=few) == (300, 500, 0)
    assert log.offset_for_timestamp(301, batches_max=few) == (400, 1_001, 0)


def test_a_search_by_time_goes_on_where_it_has_left_off(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=2_000)
    for time in (900, *[100] * 100, 500):
        log.append_as_leader(batch(timestamp=time), 0, 1_000)
    steps, found = [], log.offset_for_timestamp(500, 1, 7)
    while isinstance(found, GoOn):
        steps.append(found.offset)
        found = log.offset_for_timestamp(500, found.offset, 7)
    assert found == (500, 101, 0)
    assert steps == [8, 15, 22, 85, 92, 99]  # no segment in between has a time as late


@given(
    times=st.lists(st.tuples(st.sampled_from([5, 5, 5, 10, 20, 30, 40]), st.integers(1, 3))),
    change=st.sampled_from(["nothing", "clean", "crash", "truncate", "delete"]),
    share=st.floats(0, 1),
    more=st.lists(st.sampled_from([4, 15, 25, 45]), max_size=9),
    steps=st.integers(1, 4),
)
def test_records_are_found_by_time_whatever_became_of_the_log(
    open_log: OpenLog,
    batch: MakeBatch,
    times: list[tuple[int, int]],
    change: str,
    share: float,
    more: list[int],
    steps: int,
) -> None:
    settings = {"segment_bytes": 900, "index_interval_bytes": 200}
    log = open_log(memory := MemoryStorage(), **settings)
    for time, count in times:
        log.append_as_leader(batch(count, timestamp=time), 0, 1_000)
    every = [time for time, count in times for _ in range(count)]
    log.high_watermark, place = log.log_end_offset, int(share * len(every))
    first = 0
    if change == "clean":
        log.close()
        log = open_log(memory, clean=True, **settings)
    elif change == "crash":
        log = open_log(memory, at=place, **settings)
    elif change == "truncate":
        log.truncate_to(place)
        del every[log.log_end_offset :]
    elif change == "delete":
        log.increment_log_start_offset(first := place)
        log.delete_old_segments(at(1_000))
    for time in more:
        log.append_as_leader(batch(timestamp=time), 0, 1_000)
    every += more
    for wanted in range(46):
        found = log.offset_for_timestamp(wanted, 0, steps)
        while isinstance(found, GoOn):
            found = log.offset_for_timestamp(wanted, found.offset, steps)
        expected = (i for i in range(first, len(every)) if every[i] >= wanted)
        assert (found and found.offset) == next(expected, None), wanted


def test_a_search_by_time_begins_at_the_log_start(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    commit(log, batch(10, timestamp=100, step=10))
    log.increment_log_start_offset(4)
    found = log.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == 4
