"""The embedded coordination on a disk that fills up, breaks, or loses power at any moment."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from kafkalite.core.cluster import local
from kafkalite.core.cluster.coordination import Create, Operation, Set
from kafkalite.core.cluster.local import JOURNAL, LocalCoordination
from kafkalite.errors import StorageError
from kafkalite.testing.storage import MemoryStorage, PowerLoss


def transact(coordination: LocalCoordination, *operations: Operation) -> None:
    asyncio.run(coordination.transact(operations))


def value(coordination: LocalCoordination, path: str) -> bytes:
    return asyncio.run(coordination.get(path)).value


@pytest.fixture
def memory() -> MemoryStorage:
    return MemoryStorage()


def test_a_full_disk_refuses_and_recovers(memory: MemoryStorage) -> None:
    coordination = LocalCoordination(memory)
    transact(coordination, Create("/a", b"1"))
    memory.fail("append", errno.ENOSPC)
    with pytest.raises(StorageError, match=r"coordination\.journal: .*ENOSPC"):
        transact(coordination, Set("/a", b"refused"))
    assert value(coordination, "/a") == b"1"
    transact(coordination, Set("/a", b"2"))
    assert value(LocalCoordination(memory.after_kill()), "/a") == b"2"


def test_a_failed_sync_is_never_taken_back(memory: MemoryStorage) -> None:
    coordination = LocalCoordination(memory)
    transact(coordination, Create("/a", b"1"))
    memory.fail("sync", errno.EIO)
    for _ in range(2):  # the next sync would succeed
        with pytest.raises(StorageError, match="takes no more changes: .*EIO"):
            transact(coordination, Set("/a", b"2"))
    assert value(coordination, "/a") == b"1", "what is known is still told"
    assert value(LocalCoordination(memory.after_crash(Random(1))), "/a") in (b"1", b"2")


def test_a_journal_that_cannot_be_replaced_goes_on_as_it_is(
    memory: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is durable already: it must not be refused."""
    monkeypatch.setattr(local, "HISTORY_BYTES_MIN", 500)
    coordination = LocalCoordination(memory)
    transact(coordination, Create("/a", b"0"))
    memory.fail("replace", errno.ENOSPC)
    sizes = []
    for number in range(100):
        transact(coordination, Set("/a", b"%d" % number))
        sizes.append(memory.files("")[JOURNAL])
        assert value(LocalCoordination(memory.after_kill()), "/a") == b"%d" % number
    assert 900 < max(sizes) < 2_000, "it was replaced in the end"
    assert sizes[-1] < max(sizes)


@pytest.mark.slow
def test_a_power_cut_at_any_moment_keeps_what_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "HISTORY_BYTES_MIN", 200)
    change = 0
    while True:
        change += 1
        memory, acknowledged = MemoryStorage(), -1
        memory.crash_after(change, share=(change % 4) / 3)
        try:
            coordination = LocalCoordination(memory)
            transact(coordination, Create("/a", b"0"), Create("/a/b", b"0"))
            for acknowledged in range(25):
                both = b"%d" % (acknowledged + 1)
                transact(coordination, Set("/a", both), Set("/a/b", both))
            break
        except PowerLoss:
            pass
        for seed in range(6):
            survivor = memory.after_kill() if seed == 0 else memory.after_crash(Random(seed))
            again = LocalCoordination(survivor)
            if acknowledged < 0 and not asyncio.run(again.children("/")):
                continue
            assert value(again, "/a") == value(again, "/a/b"), "all of it or nothing"
            assert int(value(again, "/a")) >= max(acknowledged, 0)
            transact(again, Set("/a", b"on"))
            assert value(LocalCoordination(survivor.after_kill()), "/a") == b"on"
    assert change > 50
