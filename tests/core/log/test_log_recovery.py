"""A log that comes up again: after a shutdown, a kill, a power cut at any moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from logs import LARGE, ORDERS, MakeBatch, OpenLog

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Storage
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    batches,
    decode,
    encode_end_transaction_marker,
    verify_crc,
)
from kafkalite.errors import StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage, PowerLoss

Few = Callable[[int], int]  # of so many examples, those that this tier tries
LOG = "orders-0/00000000000000000000.log"


def values(log: PartitionLog) -> list[bytes]:
    """What is in the log, with every CRC and offset looked at."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while (records := log.read(offset, LARGE, log.log_end_offset)) is not None:
        data = records.read()
        for position, header in batches(data):
            verify_crc(data, position, header)
            columns = decode(data, position)
            assert list(columns.offsets or ()) == list(range(offset, header.next_offset))
            found += columns.values
            offset = header.next_offset
    assert offset == log.log_end_offset
    return found


def write(log: PartitionLog, batch: MakeBatch, first: int, count: int, size: int = 1) -> None:
    """Batches of `size` records whose values are their offsets."""
    for i in range(first, first + count):
        log.append_as_leader(batch(size, value=b"%d" % i, timestamp=1_000 + i), 0, 1_000)


# ---- clean and not -----------------------------------------------------------------------------


def test_a_closed_log_comes_up_as_it_was(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=500, index_interval_bytes=100)
    write(log, batch, 0, 40)
    log.append_as_leader(batch(3, producer_id=7, producer_epoch=2, base_sequence=0), 5, 1_000)
    expected = values(log)
    log.close()
    again = open_log(storage, clean=True, segment_bytes=500)
    assert values(again) == expected
    assert (again.log_end_offset, again.recovery_point) == (43, 43)
    assert again.epochs.entries == log.epochs.entries == [(0, 0), (5, 40)]
    assert again.append_as_leader(
        batch(3, producer_id=7, producer_epoch=2, base_sequence=0), 5, 1_000
    ).duplicate
    assert again.offset_for_timestamp(1_020).offset == 20  # type: ignore[union-attr]
    write(again, batch, 43, 5)
    assert len(values(again)) == 48


def test_a_clean_start_looks_only_at_the_ends(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(memory, segment_bytes=100_000, index_interval_bytes=1_000)
    write(log, batch, 0, 400, size=20)
    assert log.size_bytes > 100_000
    log.close()
    read = 0
    reader = type(memory.open("x").reader()).read

    def counted(self: object, position: int, size: int) -> bytes:
        nonlocal read
        data = reader(self, position, size)  # type: ignore[arg-type]
        read += len(data)
        return data

    monkeypatch.setattr("kafkalite.testing.storage.MemoryReader.read", counted)
    again = open_log(memory, clean=True)
    assert again.log_end_offset == 8_000
    assert read < 10_000


def test_after_a_kill_nothing_is_lost(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=500, index_interval_bytes=100)
    write(log, batch, 0, 40)
    expected = values(log)
    again = open_log(memory.after_kill(), segment_bytes=500, index_interval_bytes=100)
    assert values(again) == expected
    assert again.epochs.entries == [(0, 0)]
    for n in (0, 17, 39):
        found = again.offset_for_timestamp(1_000 + n)
        assert found is not None
        assert found.offset == n


@pytest.mark.parametrize("damage", ["cut", "flip", "zeros", "junk", "length", "lost", "header"])
def test_a_torn_end_is_cut(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, damage: str
) -> None:
    log = open_log(memory)
    write(log, batch, 0, 10)
    data = memory.names[LOG].data
    size = len(data) // 10
    start = 7 * size
    match damage:
        case "cut":
            del data[start + 30 :]
        case "flip":
            data[start + 65] ^= 1
        case "zeros":
            data[start : start + size] = bytes(size)
        case "junk":
            data[start:] = b"\xff" * 40
        case "length":
            data[start + 8 : start + 12] = b"\x7f\xff\xff\xff"
        case "lost":
            del data[start : start + size], data[start:]
        case "header":
            data[start : start + 8] = (3).to_bytes(8, "big")
    again = open_log(memory.after_kill())
    assert values(again) == [b"%d" % i for i in range(7)]
    write(again, batch, 7, 1)
    assert again.log_end_offset == 8


def test_recovery_begins_at_the_recovery_point(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """Damage below it is not looked for: it was synced."""
    log = open_log(memory, segment_bytes=500)
    write(log, batch, 0, 40)
    log.flush()
    memory.names[LOG].data[65] ^= 1
    again = open_log(memory.after_kill(), at=log.recovery_point, segment_bytes=500)
    assert again.log_end_offset == 40
    other = open_log(memory.after_kill(), at=0, segment_bytes=500)
    assert other.log_end_offset == 0


def test_segments_behind_a_torn_one_go(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=500)
    write(log, batch, 0, 40)
    second = log.segments[1]
    del memory.names[second.log.path].data[100:]
    again = open_log(memory.after_kill(), segment_bytes=500)
    assert len(again.segments) == 2
    assert second.base_offset < again.log_end_offset < log.segments[2].base_offset
    values(again)


def test_a_segment_that_lost_whole_batches_ends_the_log(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """Its end is whole, yet the next segment does not follow it."""
    log = open_log(memory, segment_bytes=500)
    write(log, batch, 0, 40)
    second = log.segments[1]
    first_batch = next(iter(second.headers(0)))[1]
    del memory.names[second.log.path].data[first_batch.size_bytes :]
    again = open_log(memory.after_kill(), segment_bytes=500)
    assert again.log_end_offset == second.base_offset + 1
    compacted = open_log(memory.after_kill(), segment_bytes=500, cleanup_policy=("compact",))
    assert compacted.log_end_offset == 40, "where gaps are to be expected it goes on"


def test_indexes_that_are_missing_or_wrong_are_made_anew(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=1_000, index_interval_bytes=100)
    write(log, batch, 0, 60)
    log.close()
    good = {path: bytes(c.data) for path, c in memory.names.items() if path.endswith("index")}
    assert any(good.values())
    for damage in (lambda d: d.clear(), lambda d: d.append(1), None):
        for path in good:
            if damage is None:
                del memory.names[path]
            else:
                damage(memory.names[path].data)
        for clean in (True, False):
            again = open_log(memory.after_kill(), clean=clean, at=60, segment_bytes=1_000)
            assert len(values(again)) == 60
            found = again.offset_for_timestamp(1_031)
            assert found is not None
            assert found.offset == 31
        if damage is None:
            survivor = memory.after_kill()
            open_log(survivor, clean=True, segment_bytes=1_000, index_interval_bytes=100).close()
            made = {p: bytes(c.data) for p, c in survivor.names.items() if p.endswith("index")}
            assert made == good


def test_files_that_are_none_of_ours_are_left_alone(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    write(log, batch, 0, 3)
    log.close()
    memory.open("orders-0/notes.log").append(b"mine")
    memory.open("orders-0/00000000000000000007.index").append(b"12345678")
    again = open_log(memory, clean=True)
    assert len(values(again)) == 3
    assert memory.read_small("orders-0/notes.log") == b"mine"
    assert memory.read_small("orders-0/00000000000000000007.index") is None, "it has no log"


def test_a_start_offset_beyond_the_end_begins_the_log_anew(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    write(log, batch, 0, 10)
    again = open_log(memory.after_kill(), log_start_offset=100)
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)
    assert values(again) == []


@pytest.mark.parametrize("clean", [True, False])
def test_messages_of_an_old_kafka_are_refused_and_not_cut(
    memory: MemoryStorage, open_log: OpenLog, clean: bool
) -> None:
    body = b"\x01\x00" + (1_000).to_bytes(8, "big") + b"\xff\xff\xff\xff" + b"\0\0\0\5value"
    size = (len(body) + 4).to_bytes(4, "big")
    message = bytes(8) + size + crc32(body).to_bytes(4, "big") + body
    memory.make_directory("orders-0")
    memory.open(LOG).append(message * 3)
    with pytest.raises(StorageError, match=r"0000\.log: byte 0: a message of magic 1"):
        open_log(memory, clean=clean)
    assert memory.files("orders-0")["00000000000000000000.log"] == 3 * len(message)
    memory.names[LOG].data[-1] ^= 1
    memory.names[LOG].data[: -len(message)] = b""
    assert open_log(memory).log_end_offset == 0, "what is damaged counts as torn"


def test_a_log_that_cannot_be_read_is_named(
    memory: MemoryStorage, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> bytes:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(memory, "read_small", fail)
    with pytest.raises(StorageError, match=r"orders-0: cannot be opened: .*leader-epoch"):
        open_log(memory)


# ---- producers ---------------------------------------------------------------------------------


def marker(kind: ControlType) -> bytes:
    return encode_end_transaction_marker(
        EndTransactionMarker(kind, 0), producer_id=7, producer_epoch=0, timestamp_ms=1_000
    )


@pytest.mark.parametrize("how", ["close", "kill", "no snapshots", "torn snapshots"])
def test_producers_and_transactions_are_known_again(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, how: str
) -> None:
    log = open_log(memory, segment_bytes=400)
    ids = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for i in range(12):
        log.append_as_leader(batch(1, base_sequence=i, **ids), 0, 1_000)
        log.append_as_leader(batch(1, producer_id=8, producer_epoch=i, base_sequence=0), 0, 1_000)
        if i == 5:
            log.append_as_leader(marker(ControlType.ABORT), 0, 1_000, from_client=False)
    log.high_watermark = log.log_end_offset
    if how == "close":
        log.close()
    survivor = memory.after_kill()
    for path in [path for path in survivor.names if path.endswith(".snapshot")]:
        if how == "no snapshots":
            survivor.delete(path)
        if how == "torn snapshots":
            survivor.names[path].data[-3:] = b"???"
    again = open_log(survivor, clean=how == "close", segment_bytes=400)
    again.high_watermark = again.log_end_offset
    assert again.last_stable_offset == log.last_stable_offset == 13
    assert again.aborted_transactions(0, 99) == log.aborted_transactions(0, 99)
    assert len(again.aborted_transactions(0, 99)) == 1
    assert again.producers.to_snapshot() == log.producers.to_snapshot()
    again.append_as_leader(batch(1, base_sequence=12, **ids), 0, 1_000)


def test_what_was_known_of_records_that_are_lost_is_forgotten(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """A snapshot or an epoch from beyond the end must not come true when the log grows again."""
    log = open_log(memory, segment_bytes=400)
    for i in range(20):
        log.append_as_leader(
            batch(1, producer_id=i, producer_epoch=0, base_sequence=0), i // 4, 1_000
        )
    log.begin_flush()
    assert log.epochs.latest == 4
    del memory.names[LOG].data[-10:]
    survivor = memory.after_kill()
    again = open_log(survivor)
    end = again.log_end_offset
    assert end < 5
    assert again.epochs.latest == (end - 1) // 4
    stale = log.segments[-1].base_offset  # where the last snapshot was taken
    for _ in range(end, stale):
        again.append_as_leader(batch(), again.epochs.latest, 1_000)
    assert sorted(again.producers.entries) == list(range(end))
    again.close()
    last = open_log(survivor, clean=True)
    assert sorted(last.producers.entries) == list(range(end))


def test_a_flush_makes_names_safe_too(batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStorage()
    synced: list[str] = []
    sync_directory = memory.sync_directory
    monkeypatch.setattr(
        memory, "sync_directory", lambda path: (synced.append(path), sync_directory(path))
    )
    log = LogStore(memory).open(ORDERS, UUID(int=7), LogConfig(segment_bytes=400), at(1_000))
    write(log, batch, 0, 1)
    log.flush()
    assert synced == [""], "its directory; the files in it became safe with the leader epochs"
    write(log, batch, 1, 1)
    log.flush()
    assert synced == [""], "nothing was made"
    write(log, batch, 2, 8)
    log.flush()
    assert synced[1:] == ["orders-0"]
    for seed in range(20):
        store = LogStore(memory.after_crash(Random(seed)))
        again = store.open(ORDERS, UUID(int=7), LogConfig(), at(1_000))
        assert len(values(again)) == 10


# ---- power cuts --------------------------------------------------------------------------------


def test_a_kill_during_a_recovery_leaves_no_gap(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """In a compacted log a gap tells nothing: what lies behind a tear must go before the tear."""
    settings = {"segment_bytes": 500, "cleanup_policy": ("compact",)}
    log = open_log(memory, **settings)
    write(log, batch, 0, 20)
    torn, ends, change = log.segments[0], set(), 0
    end_offset = log.segments[1].base_offset - 1
    memory.names[f"{torn.stem}.log"].data[-1] ^= 1
    while len(ends) < 2:
        change += 1
        survivor = memory.after_kill()
        survivor.crash_after(change)
        with suppress(PowerLoss):
            open_log(survivor, **settings)
            ends.add("whole")
        again = open_log(survivor.after_kill(), **settings)
        assert again.log_end_offset == end_offset
        assert len(values(again)) == end_offset
        ends.add("killed")
    assert change > 3


@pytest.mark.parametrize("how", ["flush", "close"])
def test_what_a_roll_adds_to_the_indexes_is_flushed(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, how: str
) -> None:
    """A segment that was synced before it was closed has index entries that are not. Without them
    it would be of no known age, and retention by time would take it."""
    log = open_log(memory, flush_messages=1)
    for i in range(5):
        log.append_as_leader(batch(timestamp=1_000 + i), 0, 1_000)
        log.flush()
    log.roll(1_000)
    assert log.recovery_point == log.log_end_offset
    if how == "flush":
        log.append_as_leader(batch(timestamp=2_000), 0, 1_000)
        log.flush()
    else:
        log.close()
    index = f"orders-0/{0:020d}.timeindex"
    written = memory.read_small(index)
    for seed in range(10):
        survivor = memory.after_crash(Random(seed))
        assert survivor.read_small(index) == written
        again = open_log(survivor, clean=how == "close", at=log.recovery_point)
        assert again.segments[0].max_timestamp == 1_004


def run_until_crash(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, done: dict[str, int]
) -> None:
    """Some of everything. `done` says what was promised when the power went."""
    log = open_log(memory, segment_bytes=420, index_interval_bytes=120)
    for i in range(14):
        log.append_as_leader(batch(2, value=b"%d" % i, timestamp=1_000 + i), i // 5, 1_000)
        done["appended"] = i + 1
        if i in (4, 9):
            log.flush()
            done["synced"] = log.recovery_point
        if i == 11:
            done["truncated"] = 1
            log.truncate_to(18)
    log.close()
    done["synced"] = log.recovery_point


def test_a_power_cut_at_any_moment_leaves_a_prefix(
    open_log: OpenLog, batch: MakeBatch, few: Few
) -> None:
    change, ends = 0, set()
    while True:
        change += 1
        memory, done = MemoryStorage(), {"appended": 0, "synced": 0, "truncated": 0}
        memory.crash_after(change, share=(change % 4) / 3)
        try:
            run_until_crash(memory, open_log, batch, done)
            break
        except PowerLoss:
            pass
        for seed in range(few(12)):
            survivor = memory.after_kill() if seed == 0 else memory.after_crash(Random(seed))
            recovery_point = min(done["synced"], 18) if done["truncated"] else done["synced"]
            again = open_log(survivor, at=recovery_point, segment_bytes=420)
            found = values(again)
            assert len(found) >= min(done["synced"], 18)
            assert len(found) % 2 == 0
            expected = [b"%d" % (i // 2) for i in range(18)]
            assert found[:18] == expected[: len(found)]
            if seed == 0 and not done["truncated"]:
                assert len(found) >= 2 * done["appended"], "a kill loses nothing"
            assert again.epochs.latest <= 2
            write(again, batch, again.log_end_offset, 3)
            values(again)
            again.close()
            last = open_log(survivor, clean=True, segment_bytes=420)
            assert len(values(last)) == len(found) + 3
            ends.add(len(found))
    assert change > 40
    assert len(ends) > 8, "the crashes were of many kinds"


def test_a_power_cut_during_a_recovery_is_survived(
    open_log: OpenLog, batch: MakeBatch, few: Few
) -> None:
    first = MemoryStorage()
    log = open_log(first, segment_bytes=420, index_interval_bytes=120)
    write(log, batch, 0, 6)
    log.flush()
    write(log, batch, 6, 14)
    for seed in range(few(30)):
        torn = first.after_crash(Random(seed))
        change = 0
        while True:
            change += 1
            memory = torn.after_kill()
            memory.crash_after(change)
            try:
                open_log(memory, at=6, segment_bytes=420, index_interval_bytes=120)
                break
            except PowerLoss:
                again = open_log(memory.after_crash(Random(change)), at=6, segment_bytes=420)
                found = values(again)
                assert found == [b"%d" % i for i in range(len(found))]
                assert len(found) >= 6


# ---- against a list ----------------------------------------------------------------------------

step = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 9)),
    st.tuples(st.just("append"), st.integers(1, 9)),
    st.tuples(st.just("roll"), st.just(0)),
    st.tuples(st.just("truncate"), st.integers(0, 60)),
    st.tuples(st.just("give up"), st.integers(0, 60)),
    st.tuples(st.just("retain"), st.just(0)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("power cut"), st.integers(0, 1_000)),
)


@settings(max_examples=150, deadline=None)
@example(steps=[("append", 2), ("give up", 1), ("truncate", 1)], segment_bytes=200)
@example(
    steps=[("append", 1)] * 3 + [("flush", 0), ("truncate", 2), ("power cut", 0)],
    segment_bytes=200,
)
@given(steps=st.lists(step, max_size=40), segment_bytes=st.integers(200, 900))
def test_it_is_a_list_whatever_happens(
    open_log: OpenLog,
    batch: MakeBatch,
    steps: list[tuple[str, int]],
    segment_bytes: int,
) -> None:
    """The model: values by offset, where batches begin, where the log starts, what is synced."""
    memory = MemoryStorage()
    sizes = {"segment_bytes": segment_bytes, "index_interval_bytes": 100, "file_delete_delay_ms": 0}
    log = open_log(memory, **sizes)
    model: list[bytes] = []
    ends = [0]
    start, counter = 0, 0
    for what, number in steps:
        match what:
            case "append":
                counter += 1
                value = b"%d" % counter
                appended = log.append_as_leader(batch(number, value=value), 0, 1_000)
                assert appended.base_offset == len(model)
                model += [value] * number
                ends.append(len(model))
                log.high_watermark = len(model)
            case "roll":
                log.roll(1_000)
            case "truncate" if start <= number < len(model):
                log.truncate_to(number)
                while ends[-1] > number:
                    ends.pop()
                ends.append(max(ends[-1], start))
                del model[ends[-1] :]
            case "give up" if number <= len(model):
                log.increment_log_start_offset(number)
                start = max(start, number)
            case "retain":
                log.delete_old_segments(at(1_000))
                for remove in log.tick(at(1_000)):
                    remove()
            case "flush":
                log.flush()
            case "reopen":
                point = log.recovery_point
                if number:
                    log.close()
                else:
                    memory = memory.after_kill()
                log = open_log(
                    memory, clean=bool(number), at=point, log_start_offset=start, **sizes
                )
            case "power cut":
                point = log.recovery_point
                memory = memory.after_crash(Random(number))
                log = open_log(memory, at=point, log_start_offset=start, **sizes)
                assert log.log_end_offset >= min(point, len(model))
                if log.log_end_offset <= len(model):
                    while ends[-1] > log.log_end_offset:
                        ends.pop()
                    assert log.log_end_offset == max(ends[-1], start)
                    del model[log.log_end_offset :]
                    ends.append(len(model))
        log.high_watermark = log.log_end_offset
        assert (log.log_start_offset, log.log_end_offset) == (start, len(model)), what
        found = log.read(start, LARGE, len(model))
        assert (found is None) == (start == len(model))
    assert values_from(log, start) == model[start:]


def values_from(log: PartitionLog, start: int) -> list[bytes]:
    found: list[bytes] = []
    offset = start
    while (records := log.read(offset, LARGE, log.log_end_offset)) is not None:
        data = records.read()
        for position, header in batches(data):
            verify_crc(data, position, header)
            columns = decode(data, position)
            pairs = zip(columns.offsets or (), columns.values, strict=True)
            found += [value for at, value in pairs if at >= offset]
            offset = header.next_offset
    return found
