"""An index with a flipped bit: no record is passed over, and none looks older than it is."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from logs import ORDERS, MakeBatch, commit, read_all

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.values import TimestampAndOffset
from kafkalite.core.protocol.records import batches
from kafkalite.errors import ApiError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

FIRST = "orders-0/00000000000000000000"
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=150)
# Not in order: so the time index has fewer entries than the other one. No two are the same, as
# an entry that leads to another batch of its timestamp looks sound.
TIMES = [1_000 + 10 * i - (400 if i % 7 > 2 else 0) for i in range(33)]
END = 2 * len(TIMES)


def reopened(memory: MemoryStorage, told: list[str], *, clean: bool = True) -> PartitionLog:
    log = PartitionLog.open(
        memory, "orders-0", ORDERS, CONFIG, at(1_000),
        clean_shutdown=clean, recovery_point=END, report=told.append,
    )  # fmt: skip
    log.high_watermark = log.log_end_offset
    return log


def answers(log: PartitionLog) -> list[object]:
    """What readers, searches by time and retention get of a log."""
    found: list[object] = [segment.retention_timestamp() for segment in log.segments]
    for time in sorted({*TIMES, *(time + 1 for time in TIMES)}):
        first = log.offset_for_timestamp(time)
        assert first is None or isinstance(first, TimestampAndOffset)
        found.append(first)
    for offset in range(END):
        for bytes_max in (1, 300, 1 << 20):
            part = log.read(offset, bytes_max, END)
            assert part is not None
            headers = [header for _, header in batches(part.read())]
            assert headers[0].base_offset <= offset < headers[0].next_offset
            found.append((headers[0].base_offset, headers[-1].next_offset))
    return found


@pytest.fixture
def written(memory: MemoryStorage, batch: MakeBatch) -> MemoryStorage:
    memory.make_directory("orders-0")
    log = reopened(memory, [])
    commit(log, *(batch(2, timestamp=time, value=b"v" * 20) for time in TIMES))
    assert len(log.segments) == 3
    log.close()
    return memory


@pytest.mark.parametrize(
    "segment", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2]
)
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_flipped_bit_passes_nothing_over(written: MemoryStorage, kind: str, segment: int) -> None:
    path = sorted(path for path in written.names if path.endswith("." + kind))[segment]
    good = answers(reopened(written.after_kill(), []))
    data = bytes(written.names[path].data)
    assert len(data) > 3 * 12 or segment == 2, "there are entries to damage"
    reported = 0
    for number, bit in product(range(len(data)), (0, 3, 7)):
        survivor, told = written.after_kill(), []
        survivor.names[path].data[number] ^= 1 << bit
        assert answers(reopened(survivor, told)) == good, f"byte {number}, bit {bit}"
        assert len(told) <= 1, f"byte {number}, bit {bit}: {told}"
        assert all(FIRST[:20] in line for line in told)
        reported += len(told)
    assert reported >= len(data), "most damage shows"


def test_what_was_made_anew_is_on_the_disk(written: MemoryStorage) -> None:
    path = f"{FIRST}.index"
    data = bytes(written.names[path].data)
    written.names[path].data[7] ^= 1
    told: list[str] = []
    answers(log := reopened(written, told))
    log.close()
    assert bytes(written.names[path].data) == data
    assert told == [f"{FIRST}.log: an index does not fit the log, and is made anew from it"]


def test_an_index_is_kept_where_the_log_itself_is_damaged(written: MemoryStorage) -> None:
    data = bytes(written.names[f"{FIRST}.index"].data)
    place = int.from_bytes(data[4:8], "big")
    written.names[f"{FIRST}.log"].data[place + 16] ^= 1  # the magic of an indexed batch
    log = reopened(written, [])
    for offset in range(END):
        with suppress(ApiError):
            log.read(offset, 1, END)
    log.close()
    assert bytes(written.names[f"{FIRST}.index"].data) == data


def test_an_index_that_is_missing_is_reported(written: MemoryStorage) -> None:
    good = answers(reopened(written.after_kill(), []))
    written.delete(f"{FIRST}.index")
    told: list[str] = []
    assert answers(log := reopened(written, told)) == good
    assert len(read_all(log)) == sum(segment.size_bytes for segment in log.segments)
    assert told == [f"{FIRST}.log: its indexes are missing or damaged, and are made anew"]
