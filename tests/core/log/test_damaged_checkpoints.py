"""Checkpoints that were damaged: the store comes up, and no acknowledged record is lost."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import ORDERS, offsets, read_all

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log import checkpoints
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

ID = UUID(int=7)
CONFIG = LogConfig(segment_bytes=300)
SMALL = TopicPartition("small", 3)
EPOCHS = "orders-0/leader-epoch-checkpoint"
FILES = (
    checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS,
    checkpoints.CLEANED_OFFSETS, checkpoints.LOG_START_OFFSETS + checkpoints.GUARD_SUFFIX, EPOCHS,
)  # fmt: skip
START, END = 17, 30


def written(*, clean: bool) -> MemoryStorage:
    """Two logs in three epochs, the first 17 records of one deleted; closed, or killed."""
    memory = MemoryStorage()
    store = LogStore(memory)
    for where, count in ((ORDERS, END), (SMALL, 2)):
        log = store.open(where, ID, CONFIG, at(1_000))
        for number in range(count):
            log.append_as_leader(bytearray(encode(Columns([None], [b"v"], [1]))), number // 10, 1)
        log.high_watermark = count
        log.flush()
    store.cleaned_offsets[SMALL] = 1
    (store.cleaned_offsets_writer() or pytest.fail)()
    store.logs[ORDERS].increment_log_start_offset(START)
    store.logs[ORDERS].delete_old_segments(at(1_000))
    assert 0 < store.logs[ORDERS].segments[0].base_offset < START
    store.write_recovery_points()
    store.write_log_start_offsets()
    store.write_high_watermarks()
    store.logs[ORDERS].epochs.write()
    if clean:
        store.close(1_000)
    return memory.after_kill()


def check(memory: MemoryStorage) -> list[str]:
    """Opens the store: all is there. Returns what the operator is told, and is told once."""
    told: list[str] = []
    for attempt in range(2):
        store = LogStore(memory, report=told.append if attempt == 0 else pytest.fail)
        for where, start, end in ((ORDERS, START, END), (SMALL, 0, 2)):
            log = store.open(where, ID, CONFIG, at(1_000))
            log.high_watermark = log.log_end_offset
            assert (log.log_start_offset <= start, log.log_end_offset) == (True, end)
            found = offsets(read_all(log))
            assert found[0] <= start, "what a batch or a segment holds may be there again"
            assert found[-1] == end - 1
            assert found == list(range(found[0], end))
        (store.cleaned_offsets_writer() or (lambda: None))()
        store.close(1_000)
    return told


def broken(data: bytes, random: Random) -> bytes:
    """Another text: cut, with a flipped bit, a lost or doubled line, or something else."""
    lines = data.splitlines(keepends=True)
    place = random.randrange(len(data)) if data else 0
    match random.randrange(6):
        case 0:
            return data[:place]
        case 1:
            flipped = bytearray(data)
            flipped[place] ^= 1 << random.randrange(8)
            return bytes(flipped)
        case 2:
            return b"".join(line for line in lines if line != random.choice(lines))
        case 3:
            return b"".join([*lines, random.choice(lines)])
        case 4:
            return random.randbytes(random.randrange(40))
    return b"0\n1\norders 0 junk\n"


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 1 << 32), st.booleans(), st.sets(st.sampled_from(FILES), min_size=1))
def test_no_damage_stops_a_store_or_loses_a_record(seed: int, clean: bool, files: set[str]) -> None:
    memory, random = written(clean=clean), Random(seed)
    for name in sorted(files):
        if data := memory.read_small(name):
            memory.replace(name, broken(data, random))
    check(memory)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", [*FILES[:4], EPOCHS])
def test_a_damaged_line_is_reported_and_the_file_written_anew(name: str, clean: bool) -> None:
    memory = written(clean=clean)
    good = memory.read_small(name) or b""
    memory.replace(name, good[:-2] + b"x\n")
    assert [line for line in check(memory) if line.startswith(name)], "and not at the next start"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("offset", [b"29", b"99", b"18"])
def test_a_wrong_digit_in_a_log_start_offset_deletes_nothing(offset: bytes, clean: bool) -> None:
    memory = written(clean=clean)
    name = checkpoints.LOG_START_OFFSETS
    good = memory.read_small(name)
    assert good is not None
    memory.replace(name, good.replace(b"17", offset))
    assert [line for line in check(memory) if "CRC" in line]


def test_a_start_offset_beyond_the_end_of_a_closed_log_is_none() -> None:
    memory = written(clean=True)
    name = checkpoints.LOG_START_OFFSETS
    memory.replace(name, b"0\n1\norders 0 99\n")
    memory.delete(name + checkpoints.GUARD_SUFFIX)  # as in a directory that Kafka wrote
    (line,) = check(memory)
    assert line.startswith("orders-0: log start offset 99 is beyond its end 30")


def test_epochs_are_those_of_the_log() -> None:
    memory = written(clean=True)
    good = memory.read_small(EPOCHS)
    memory.replace(EPOCHS, b"0\n2\n1 0\n0 5\n")
    check(memory)
    assert good is not None
    starts = [line.split() for line in (memory.read_small(EPOCHS) or b"").splitlines()[2:]]
    assert [epoch for epoch, _ in starts] == [b"1", b"2"]
    assert starts[1:] == [line.split() for line in good.splitlines()[3:]]


def test_a_first_segment_that_is_gone_is_reported() -> None:
    memory = written(clean=True)
    first = min(name for name in memory.files("orders-0") if name.endswith(".log"))
    memory.delete(f"orders-0/{first}")
    told: list[str] = []
    log = LogStore(memory, report=told.append).open(ORDERS, ID, CONFIG, at(1_000))
    base_offset = log.segments[0].base_offset
    (line,) = told
    assert line.startswith("orders-0: it began at offset 17, and its first file begins at ")
    assert log.log_start_offset == base_offset > START
