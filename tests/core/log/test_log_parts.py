"""Indexes, leader epochs, checkpoints and the index of aborted transactions, each on its own."""

from __future__ import annotations

from bisect import bisect_right
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.log import checkpoints
from kafkalite.core.log.epochs import CHECKPOINT_NAME, EpochEntry, LeaderEpochs
from kafkalite.core.log.index import IndexCache, OffsetIndex, TimeIndex
from kafkalite.core.log.port import Storage
from kafkalite.core.log.transaction_index import TransactionIndex
from kafkalite.core.log.values import AbortedTransaction
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError
from kafkalite.testing.storage import MemoryStorage

# ---- indexes -----------------------------------------------------------------------------------


def offset_index(storage: Storage, *entries: tuple[int, int], base: int = 100) -> OffsetIndex:
    index = OffsetIndex(storage.open("x.index"), base, IndexCache())
    index.pin()
    for offset, position in entries:
        index.append(offset, position)
    return index


ascending = st.lists(st.tuples(st.integers(1, 1_000), st.integers(1, 100_000)), max_size=40).map(
    lambda steps: [
        (sum(s[0] for s in steps[: i + 1]), sum(s[1] for s in steps[: i + 1]))
        for i in range(len(steps))
    ]
)


@given(ascending, st.integers(0, 50_000))
def test_an_offset_leads_to_the_last_indexed_place_before_it(
    entries: list[tuple[int, int]], wanted: int
) -> None:
    index = offset_index(MemoryStorage(), *entries, base=0)
    before = [position for offset, position in entries if offset <= wanted]
    assert index.floor(wanted).position == (before[-1] if before else 0)
    at = bisect_right([position for _, position in entries], wanted)
    assert index.floor_position(wanted).position == (entries[at - 1][1] if at else 0)


def test_an_index_is_kept_as_kafka_keeps_it(storage: Storage) -> None:
    index = offset_index(storage, (105, 4_200), (300, 9_000))
    assert storage.files("") == {}, "an append writes nothing"
    index.write()
    assert storage.read_small("x.index") == bytes.fromhex("00000005 00001068 000000c8 00002328")
    index.append(301, 9_100)
    index.close()
    again = OffsetIndex(storage.open("x.index"), 100, IndexCache())
    assert again.size_bytes == 24
    assert [again.floor(offset).position for offset in (104, 105, 300, 999)] == [
        0,
        4_200,
        9_000,
        9_100,
    ]


def test_a_cut_index_forgets_on_disk_too(storage: Storage) -> None:
    index = offset_index(storage, (105, 4_200), (300, 9_000))
    index.write()
    index.append(400, 10_000)
    index.truncate(9_000)
    assert index.floor(999).position == 4_200
    index.append(310, 9_500)
    index.write()
    again = OffsetIndex(storage.open("x.index"), 100, IndexCache())
    assert again.floor(999).position == 9_500
    assert again.size_bytes == 16


def test_entries_that_were_half_written_are_written_again(memory: MemoryStorage) -> None:
    index = offset_index(memory, (105, 4_200), (300, 9_000))
    memory.fail("append")
    with pytest.raises(OSError, match="ENOSPC"):
        index.write()
    index.write()
    assert memory.read_small("x.index") == bytes.fromhex("00000005 00001068 000000c8 00002328")


def test_time_leads_to_the_batch_that_first_was_as_late(storage: Storage) -> None:
    index = TimeIndex(storage.open("x.timeindex"), 100, IndexCache())
    index.pin()
    assert index.last() == (-1, 100)
    for timestamp, offset in ((1_000, 110), (1_000, 120), (900, 125), (2_000, 130)):
        index.append(timestamp, offset)
    index.write()
    assert storage.read_small("x.timeindex") == bytes.fromhex(
        "00000000000003e8 0000000a 00000000000007d0 0000001e"
    )
    first, last = (1_000, 110), (2_000, 130)
    found = [index.around(t) for t in (0, 1_000, 1_001, 2_000, 9_999)]
    assert found == [(None, first), (None, first), (first, last), (first, last), (last, None)]
    assert index.last() == (2_000, 130)
    index.truncate(130)
    assert index.last() == (1_000, 110)


def test_what_cannot_be_an_index_is_found_out(storage: Storage) -> None:
    storage.open("x.index").append(b"1234567")
    assert not OffsetIndex(storage.open("x.index"), 0, IndexCache()).is_whole
    index = offset_index(MemoryStorage(), (105, 4_200))
    assert index.is_whole
    index.write()
    assert index.is_sane(4_201)
    assert not index.is_sane(4_200), "it points behind the log's end"
    zeros = MemoryStorage()
    zeros.open("x.timeindex").append(bytes(24))
    assert TimeIndex(zeros.open("x.timeindex"), 0, IndexCache()).is_sane()
    fallen = TimeIndex(zeros.open("z.timeindex"), 0, IndexCache())
    fallen.file.append(bytes.fromhex("00000000000003e8 0000000a") + bytes(12))
    fallen.pin()
    assert not TimeIndex(fallen.file, 0, IndexCache()).is_sane(), "its end was never written"
    zeros.open("y.index").append(bytes(16))
    assert not OffsetIndex(zeros.open("y.index"), 0, IndexCache()).is_sane(9_999), "preallocated"


def test_old_indexes_give_way_when_there_are_many(memory: MemoryStorage) -> None:
    cache = IndexCache(bytes_max=64)
    indexes = []
    for name in "abcd":
        memory.open(name).append(bytes.fromhex("00000005 00001068 000000c8 00002328"))
        indexes.append(OffsetIndex(memory.open(name), 0, cache))
    for index in [*indexes, indexes[0]]:
        assert index.floor(5).position == 4_200
        assert cache.bytes_now <= 64
    indexes[0].pin()
    assert cache.bytes_now == 48, "what is pinned does not count"
    indexes[0].append(999, 99_999)
    indexes[0].unpin()
    assert memory.files("")["a"] == 24


# ---- leader epochs -----------------------------------------------------------------------------


def epochs(storage: Storage, *entries: tuple[int, int]) -> LeaderEpochs:
    storage.make_directory("t-0")
    made = LeaderEpochs(storage, "t-0")
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def test_where_an_epoch_ends() -> None:
    found = epochs(MemoryStorage(), (1, 0), (3, 50), (7, 90))
    table = {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 50),
        2: (1, 50),
        3: (3, 90),
        6: (3, 90),
        7: (7, 120),
        8: (-1, -1),
    }
    assert {epoch: found.end_offset(epoch, 120) for epoch in table} == table
    assert epochs(MemoryStorage()).end_offset(0, 5) == (-1, -1)


def test_an_epoch_that_has_not_written_begins_at_the_end() -> None:
    """As in Apache Kafka, whose epoch begins with the leadership. A consumer that knows the epoch
    from ListOffsets would otherwise be told that its log was cut, and lose its place."""
    found = epochs(MemoryStorage(), (1, 0), (3, 50))
    table = {2: (1, 50), 3: (3, 120), 4: (3, 120), 6: (6, 120), 7: (-1, -1)}
    assert {epoch: found.end_offset(epoch, 120, 6) for epoch in table} == table
    empty = {-1: (-1, -1), 0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (-1, -1)}
    assert {epoch: epochs(MemoryStorage()).end_offset(epoch, 0, 2) for epoch in empty} == empty


def test_a_new_epoch_outdoes_what_it_contradicts() -> None:
    found = epochs(MemoryStorage(), (1, 0), (2, 50), (3, 70), (2, 80), (5, 60))
    assert found.entries == [(1, 0), (2, 50), (5, 60)]
    assert found.latest == 5
    assert [found.epoch_of(offset) for offset in (0, 49, 50, 60, 999)] == [1, 1, 2, 5, 5]
    assert epochs(MemoryStorage()).epoch_of(5) == -1


def test_epochs_are_cut_with_the_log() -> None:
    found = epochs(MemoryStorage(), (1, 0), (3, 50), (7, 90))
    found.truncate_to(90)
    assert found.entries == [(1, 0), (3, 50)]
    found.truncate_before(20)
    assert found.entries == [(1, 20), (3, 50)]
    found.truncate_before(60)
    assert found.entries == [EpochEntry(3, 60)]
    found.clear()
    assert found.latest == -1


def test_epochs_are_written_when_asked(storage: Storage) -> None:
    found = epochs(storage, (1, 0), (3, 50))
    assert storage.files("t-0") == {}
    found.write()
    assert storage.read_small(f"t-0/{CHECKPOINT_NAME}") == b"0\n2\n1 0\n3 50\n"
    assert LeaderEpochs(storage, "t-0").entries == [(1, 0), (3, 50)]


@pytest.mark.parametrize(
    "text", ["0\n", "0\n2\n1 0\n", "1\n0\n", "0\n1\n1 x\n", "0\n1\n1\n", "0\n2\n3 0\n2 9\n"]
)
def test_a_broken_epoch_checkpoint_is_named(memory: MemoryStorage, text: str) -> None:
    memory.make_directory("t-0")
    memory.replace(f"t-0/{CHECKPOINT_NAME}", text.encode())
    found = LeaderEpochs(memory, "t-0")
    assert found.entries == []
    assert (found.damage or "").startswith("t-0/leader-epoch-checkpoint")


# ---- checkpoints -------------------------------------------------------------------------------


def test_offsets_survive_their_checkpoint(storage: Storage) -> None:
    name = checkpoints.RECOVERY_POINTS
    assert checkpoints.read_offsets(storage, name) == {}
    offsets = {TopicPartition("orders", 3): 1_200, TopicPartition("a.b_c-d", 0): 0}
    checkpoints.write_offsets(storage, name, offsets)
    assert storage.read_small(name) == b"0\n2\norders 3 1200\na.b_c-d 0 0\n"
    assert checkpoints.read_offsets(storage, name) == offsets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "version ''"),
        ("0\n2\na 0 1\n", "1 entries where '2' are announced"),
        ("9\n1\na 0 1\n", "version '9'"),
        ("0\n1\na 0\n", "line 3 is no topic, partition, offset: a 0"),
        ("0\n1\na 0 x\n", "line 3 is no"),
    ],
)
def test_a_broken_checkpoint_is_named(memory: MemoryStorage, text: str, message: str) -> None:
    memory.replace("some-checkpoint", text.encode())
    with pytest.raises(StorageError, match=f"some-checkpoint: .*{message}"):
        checkpoints.read_offsets(memory, "some-checkpoint")


def test_a_clean_shutdown_is_known_once(storage: Storage) -> None:
    assert not checkpoints.take_clean_shutdown(storage)
    checkpoints.mark_clean_shutdown(storage)
    assert checkpoints.take_clean_shutdown(storage)
    assert not checkpoints.take_clean_shutdown(storage)


def test_the_directory_says_whose_it_is(storage: Storage) -> None:
    assert checkpoints.read_meta_properties(storage) == {}
    checkpoints.write_meta_properties(storage, {"cluster.id": "abc", "node.id": "1"})
    assert checkpoints.read_meta_properties(storage) == {
        "version": "1",
        "cluster.id": "abc",
        "node.id": "1",
    }


def test_a_disk_that_refuses_to_say_whose_it_is_is_named(memory: MemoryStorage) -> None:
    memory.break_down()
    with pytest.raises(StorageError, match="meta.properties: .*EIO"):
        checkpoints.write_meta_properties(memory, {"cluster.id": "abc", "node.id": "1"})


def test_a_partition_knows_its_topics_id(storage: Storage) -> None:
    storage.make_directory("t-0")
    assert checkpoints.read_topic_id(storage, "t-0") is None
    topic_id = UUID("c0ffee00-0000-4000-8000-0000000000ff")
    for _ in range(2):
        checkpoints.write_topic_id(storage, "t-0", topic_id)
    text = storage.read_small("t-0/partition.metadata")
    assert text == b"version: 0\ntopic_id: wP_uAAAAQACAAAAAAAAA_w\n"
    assert checkpoints.read_topic_id(storage, "t-0") == topic_id
    storage.replace("t-0/partition.metadata", b"version: 1\ntopic_id: x\n")
    with pytest.raises(StorageError, match=r"t-0/partition\.metadata: version 1, expected 0"):
        checkpoints.read_topic_id(storage, "t-0")
    for length in range(len(text)):
        for torn in (text[:length], text[:length] + bytes(len(text) - length)):
            storage.replace("t-0/partition.metadata", torn)
            found = checkpoints.read_topic_id(storage, "t-0")
            assert found is None or length == len(text) - 1, torn


# ---- aborted transactions ----------------------------------------------------------------------


def test_aborted_transactions_are_kept_in_kafkas_format(storage: Storage) -> None:
    index = TransactionIndex(storage.open("x.txnindex"))
    assert list(index.since(0)) == []
    first, second = AbortedTransaction(7, 10, 19, 12), AbortedTransaction(8, 12, 30, 31)
    index.append(first)
    index.append(second)
    data = storage.read_small("x.txnindex")
    assert data is not None
    assert data[:34] == bytes.fromhex(
        "0000 0000000000000007 000000000000000a 0000000000000013 000000000000000c"
    )
    again = TransactionIndex(storage.open("x.txnindex"))
    assert list(again.since(0)) == [first, second]
    again.truncate(30)
    assert list(again.since(0)) == [first]
    again.clear()
    assert list(again.since(0)) == []


@pytest.mark.parametrize("cut", [19, 0])
def test_an_abort_that_the_disk_refused_is_dropped_like_others(
    memory: MemoryStorage, cut: int
) -> None:
    index = TransactionIndex(memory.open("x.txnindex"))
    kept, refused = AbortedTransaction(7, 0, 9, 0), AbortedTransaction(7, 10, 19, 10)
    index.append(kept)
    memory.fail("append")  # half of the entry is there
    with pytest.raises(OSError, match="ENOSPC"):
        index.append(refused)
    assert list(index.since(0)) == [kept, refused]
    assert list(index.since(10)) == [refused]
    index.truncate(20)
    assert list(index.since(0)) == [kept, refused]
    if cut:
        index.truncate(cut)
    else:
        index.clear()
    assert list(index.since(0)) == ([kept] if cut else [])


def test_a_search_reads_few_of_very_many_aborts(memory: MemoryStorage) -> None:
    index, size = TransactionIndex(memory.open("x.txnindex")), 34
    for number in range(20_000):
        index.append(AbortedTransaction(7, 10 * number, 10 * number + 9, 10 * number + 10))
    bytes_read: list[int] = []

    class Counting:
        path, size_bytes = index.file.path, index.file.size_bytes

        def read(self, position: int, size: int) -> bytes:
            bytes_read.append(size)
            return index.file.read(position, size)

    for offset in (0, 9, 10, 99_995, 199_999):
        found = next(TransactionIndex(Counting()).since(offset))  # type: ignore[arg-type]
        assert found.first_offset == offset // 10 * 10
    assert list(TransactionIndex(Counting()).since(200_000)) == []  # type: ignore[arg-type]
    assert sum(bytes_read) < 6 * size * 200


def test_a_broken_transaction_index_is_named(memory: MemoryStorage) -> None:
    memory.open("x.txnindex").append(bytes(33))
    with pytest.raises(StorageError, match=r"x\.txnindex: 33 bytes"):
        list(TransactionIndex(memory.open("x.txnindex")).since(0))
    memory.open("y.txnindex").append(b"\x00\x05" + bytes(32))
    with pytest.raises(StorageError, match=r"y\.txnindex: entry of version 5"):
        list(TransactionIndex(memory.open("y.txnindex")).since(0))
