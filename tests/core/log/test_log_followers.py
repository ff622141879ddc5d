"""A follower's log: what it takes from its leader, and what it gives up."""

from __future__ import annotations

import pytest
from logs import LARGE, MakeBatch, OpenLog, commit, offsets, patched, read_all, segment_names

from kafkalite.core.log.port import Storage
from kafkalite.errors import CorruptBatchError
from kafkalite.testing.storage import MemoryStorage


def test_a_follower_stores_what_the_leader_sent(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    leader = open_log(MemoryStorage(), segment_bytes=500)
    for i in range(20):
        leader.append_as_leader(batch(2), i // 7, 1_000)
    leader.high_watermark = 40
    data = read_all(leader)
    follower = open_log(storage, segment_bytes=700)
    assert follower.append_as_follower(data[:10], 1_000) is None
    cut = len(data) - 5
    appended = follower.append_as_follower(data[:cut], 1_000)
    assert appended is not None
    assert (appended.base_offset, appended.last_offset) == (0, 37)
    rest = leader.read(follower.log_end_offset, LARGE, 40)
    assert rest is not None
    follower.append_as_follower(rest.read(), 1_000)
    follower.high_watermark = 40
    assert read_all(follower) == data
    assert follower.epochs.entries == leader.epochs.entries
    with pytest.raises(CorruptBatchError, match="batch at offset 38, the log ends at 40"):
        follower.append_as_follower(rest.read(), 1_000)
    with pytest.raises(CorruptBatchError, match="CRC"):
        follower.append_as_follower(bytes(patched(bytearray(rest.read()), 70, b"!")), 1_000)


def test_a_follower_keeps_the_gaps_of_compaction(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    log.append_as_follower(batch(2, base_offset=100, leader_epoch=4), 1_000)
    log.append_as_follower(batch(2, base_offset=200, leader_epoch=4), 1_000)
    log.high_watermark = log.log_end_offset
    assert log.log_end_offset == 202
    found = log.read(5, LARGE, 202)
    assert found is not None
    assert offsets(found.read()) == [100, 101, 200, 201]
    found = log.read(150, LARGE, 202)
    assert found is not None
    assert offsets(found.read()) == [200, 201]


@pytest.mark.parametrize("offset", [0, 1, 15, 17, 20, 39, 40, 41])
def test_truncation_cuts_whole_batches_and_all_that_knew_them(
    storage: Storage, open_log: OpenLog, batch: MakeBatch, offset: int
) -> None:
    log = open_log(storage, segment_bytes=300, index_interval_bytes=50)
    for i in range(8):
        ids = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 5 * i}
        log.append_as_leader(batch(5, timestamp=1_000 + i, **ids), i, 1_000)
    log.high_watermark = 40
    log.truncate_to(offset)
    end = offset // 5 * 5 if offset < 40 else 40
    assert log.log_end_offset == log.high_watermark == end
    assert offsets(read_all(log)) == list(range(end))
    assert log.epochs.latest == end // 5 - 1
    assert log.max_timestamp() == (1_000 + end // 5 - 1 if end else -1)
    appended = log.append_as_leader(
        batch(5, producer_id=7, producer_epoch=0, base_sequence=end), 9, 1_000
    )
    assert appended.base_offset == end
    assert not appended.duplicate
    log.high_watermark = log.log_end_offset
    assert offsets(read_all(log)) == list(range(end + 5))


def test_a_truncation_forgets_where_readers_were(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    commit(log, batch(5), batch(5))
    assert offsets(read_all(log)) == list(range(10))  # the next one goes on at offset 10
    log.truncate_to(5)
    commit(log, batch(5, value=b"longer than before"), batch(5))
    assert offsets(read_all(log, 10)) == list(range(10, 15))


def test_a_follower_too_far_behind_begins_anew(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=300)
    commit(log, *(batch(5) for _ in range(8)))
    log.truncate_fully(1_000)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1_000,) * 3
    assert segment_names(storage) == ["1000"]
    log.append_as_follower(batch(2, base_offset=1_000, leader_epoch=1), 1_000)
    assert log.log_end_offset == 1_002
    log.close()
    assert open_log(storage, clean=True).log_start_offset == 1_000
