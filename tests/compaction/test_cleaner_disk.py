"""What the disk may do to a cleaning: lose its power, run full, refuse a name; no key is lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kafkalite.core.protocol.records import ControlType
from kafkalite.errors import StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage, PowerLoss

MakeModel = Callable[..., Any]
ABORT = ControlType.ABORT


def keys_of(model: Any) -> list[tuple[int, bytes]]:
    return [(record.offset, record.key) for record in model.records()]


def test_a_directory_that_cannot_be_synced_costs_no_record(loops: str, model: MakeModel) -> None:
    log = model.filled()
    log.storage.fail("sync_directory")
    with pytest.raises(StorageError, match="state-0: directory: .*ENOSPC"):
        log.clean()
    assert keys_of(log) == [(24, b"a"), (25, b"b"), (26, b"c"), (27, b"a")]
    for remove in log.log.tick(at(1 << 50)):
        remove()
    assert keys_of(log) == [(24, b"a"), (25, b"b"), (26, b"c"), (27, b"a")]


@pytest.mark.slow
def test_a_crash_anywhere_in_a_cleaning_loses_no_key(loops: str, model: MakeModel) -> None:
    """At every change of the disk, with several choices of what it kept."""
    change, lengths = 0, set()
    while True:
        change += 1
        log = model(settings={"file_delete_delay_ms": 0, "segment_bytes": 600})
        for i in range(24):
            log.append([(b"%d" % (i % 7), b"%d" % i), (b"%d" % (i % 5), b"x")])
        log.append([(b"3", None)])
        log.append([(b"6", b"lie")], producer_id=7, transactional=True)
        log.end(7, ABORT)
        log.roll()
        log.log.flush()
        log.storage.sync_directory("state-0")
        wanted = {k: r.value for k, r in log.state().items()}
        log.storage.crash_after(change)
        try:
            log.clean()
            for remove in log.log.tick(at(log.now_ms)):
                remove()
            break
        except PowerLoss:
            pass
        for seed in range(6):
            survivor: MemoryStorage = log.storage.after_crash(Random(seed))
            lost, log.storage = log.storage, survivor
            again = log.open(since=log.log.log_end_offset)
            log.storage = lost
            found = log.committed(again)
            assert {r.key: r.value for r in found} == wanted, (change, seed)
            offsets = [record.offset for record in log.records(again)]
            assert offsets == sorted(set(offsets)), (change, seed)
            assert again.log_end_offset == log.log.log_end_offset
            left = [n for n in survivor.files("state-0") if n.endswith((".swap", ".cleaned"))]
            assert left == []
            lengths.add(len(offsets))
    assert change > 30
    assert len(lengths) >= 3, "nothing, some and all of the groups were replaced"


def test_a_full_disk_leaves_the_log_as_it_was(loops: str, model: MakeModel) -> None:
    log = model.filled()
    before = log.records()
    log.storage.fail("append")
    with pytest.raises(OSError, match="ENOSPC"):
        log.clean()
    assert log.records() == before
    assert not [name for name in log.storage.files("state-0") if "cleaned" in name]
    log.clean()
    assert len(log.records()) == 4


def test_a_swap_that_the_disk_refuses_halfway_is_completed_or_undone_at_the_next_opening(
    loops: str, model: MakeModel
) -> None:
    for refused in range(1, 12):
        log = model.filled()
        wanted = {key: record.value for key, record in log.state().items()}
        rename, seen = log.storage.rename, 0

        def failing(old: str, new: str, rename: Any = rename, refused: int = refused) -> None:
            nonlocal seen
            seen += 1
            if seen == refused:
                raise OSError(5, "EIO")
            rename(old, new)

        log.storage.rename = failing
        with pytest.raises(StorageError, match="replacement of segments from"):
            log.clean()
        assert log.log.failure is not None, "it takes no more records"
        log.storage.rename = rename
        log.log.abandon()
        again = log.open()
        assert {r.key: r.value for r in log.committed(again)} == wanted, refused
        assert again.log_end_offset == 28
