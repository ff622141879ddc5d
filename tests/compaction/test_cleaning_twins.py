"""The native loops by themselves: the map, the hash, the CRC, and bytes that are not records."""

from __future__ import annotations

import subprocess
import sys
from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.compaction import cleaning_pure as pure
from kafkalite.compaction import loops as native
from kafkalite.compaction.cleaning_pure import Stop
from kafkalite.compaction.offset_map import slots_for
from kafkalite.compaction.retain import Cleaned, LastBatch
from kafkalite.core.log.values import Mark
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import BATCH_HEADER_BYTES, encode
from kafkalite.core.types import Columns
from kafkalite.errors import CorruptBatchError

if not native.NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

from kafkalite.compaction._offset_map import hash_key

SECRET = bytes(range(16))
FAR = 1 << 60
NONE = array("q")
blobs = st.none() | st.binary(max_size=40)


@pytest.fixture(params=[native, pure], ids=["native", "pure"])
def loops(request: pytest.FixtureRequest) -> Any:
    return request.param


def body_of(rows: list[tuple[bytes | None, bytes | None]], times: list[int] | None = None) -> bytes:
    keys, values = zip(*rows, strict=True)
    columns = Columns(list(keys), list(values), times or [0] * len(rows))
    return encode(columns)[BATCH_HEADER_BYTES:]


def cleaned(mapped_until: int, *needed: int) -> Cleaned:
    producers = {offset: LastBatch(offset, 0) for offset in needed}
    return Cleaned(FAR, mapped_until, producers, 0, 0)


def test_the_hash_is_siphash_2_4_with_128_bits() -> None:
    """The first, second and last vector of the authors' reference."""
    for size, wanted in (
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ):
        assert hash_key(SECRET, bytes(range(size))).hex() == wanted


def test_the_map_knows_the_latest_offset_of_a_key(loops: Any) -> None:
    offsets = loops.OffsetMap(5, SECRET)
    for i, key in enumerate([b"", b"a", b"b", b"a", b"k" * 1_000]):
        offsets.put(key, i)
    assert [offsets.get(key) for key in (b"", b"a", b"b", b"c", b"k" * 1_000)] == [0, 3, 2, -1, 4]
    assert offsets.size == 4
    offsets.put(b"c", 5)
    with pytest.raises(ValueError, match="room for 5 keys"):
        offsets.put(b"d", 6)
    offsets.put(b"c", 7)
    assert [offsets.get(b"c"), offsets.get(b"d")] == [7, -1], "a full map still answers"
    offsets.release()
    assert [offsets.get(b"c"), offsets.size] == [-1, 0]


def test_a_map_at_its_load_forgets_nothing(loops: Any) -> None:
    offsets = loops.OffsetMap(1_000, SECRET)
    wanted = {b"%d" % i: i for i in range(1_000)}
    for key, offset in wanted.items():
        offsets.put(key, offset)
    assert {key: offsets.get(key) for key in wanted} == wanted
    assert offsets.get(b"1000") == -1


def test_a_secret_of_another_size_is_refused(loops: Any) -> None:
    with pytest.raises(ValueError, match="a secret of 3 bytes"):
        loops.OffsetMap(1, b"abc")
    with pytest.raises(ValueError, match="0 slots"):
        loops.OffsetMap(0, SECRET)


def test_as_many_slots_as_there_may_be_keys_and_the_buffer_holds() -> None:
    assert slots_for(900, 0.9, 1 << 30) == 1_001
    assert slots_for(1 << 40, 0.9, 24_000) in (1_000, 120)
    assert slots_for(1, 0.9, 1) == 1


def test_records_from_an_offset_on_go_into_the_map_until_it_is_full(loops: Any) -> None:
    body = body_of([(b"a", b"1"), (b"b", b"1"), (None, b"1"), (b"a", b"2"), (b"c", b"1")])
    offsets = loops.OffsetMap(10, SECRET)
    assert loops.put_records(offsets, body, 5, 100, 101, 10) is None
    assert [offsets.get(key) for key in (b"a", b"b", b"c")] == [103, 101, 104]
    offsets = loops.OffsetMap(10, SECRET)
    assert loops.put_records(offsets, body, 5, 100, 0, 2) == 103
    assert [offsets.get(key) for key in (b"a", b"b", b"c")] == [100, 101, -1]


@pytest.mark.parametrize("size", [1, 300, 1_400, 1_536, 1_537, 3_100, 100_000])
def test_a_batch_of_any_size_is_told_from_a_damaged_one(size: int) -> None:
    """The CRC in stretches is the CRC."""
    batch = bytearray(encode(Columns([b"k"], [Random(size).randbytes(size)], [0])))
    offsets = native.OffsetMap(10, SECRET)
    assert native.put_batches(offsets, batch, 0, 0, FAR, 0, 10, NONE) == (len(batch), Stop.END, 1)
    for at in {22, 60, len(batch) // 2, len(batch) - 1}:
        batch[at] ^= 4
        assert native.put_batches(offsets, batch, 0, 0, FAR, 0, 10, NONE) == (0, Stop.OTHER, 0)
        batch[at] ^= 4


def test_what_is_not_plain_is_left_to_the_caller() -> None:
    columns = Columns([b"k", b"l"], [b"v", b"v"], [0, 0])
    plain = encode(columns)
    others = {
        "compressed": encode(columns, compression=Compression.LZ4),
        "aborted": encode(columns, producer_id=1, producer_epoch=0, transactional=True),
        "control": encode(columns, control=True),
        "not before": encode(columns, base_offset=1),
        "beyond the end": encode(columns, base_offset=FAR),
        "old": plain[:16] + b"\1" + plain[17:],
    }
    aborted = array("q", [0, 0, 9, 1, 0, 0, 1, 3, 9, 2, 0, 9])
    for what, other in others.items():
        offsets, output = native.OffsetMap(10, SECRET), native.Output(100)
        first = 2 if what == "not before" else 0
        found = native.put_batches(offsets, other, 0, first, FAR, 0, 10, aborted)
        assert found == (0, Stop.OTHER, first), what
        kept = native.filter_batches(offsets, other, 0, first, FAR, output, cleaned(9), aborted)
        assert kept == (0, Stop.OTHER, first), what
    offsets, output = native.OffsetMap(10, SECRET), native.Output(100)
    needed = cleaned(9, -5, 1, 99)
    found = native.filter_batches(offsets, plain, 0, 0, FAR, output, needed, NONE)
    assert found[1] is Stop.OTHER
    assert native.put_batches(offsets, plain[:-1], 0, 0, FAR, 0, 10, NONE) == (0, Stop.END, 0)


def test_batches_of_transactions_are_plain_unless_they_are_aborted() -> None:
    aborted = array("q", [5, 10, 20, 7, 0, 3, 7, 10, 20, 7, 30, 40])
    for producer_id, offset, is_plain in (
        (5, 9, True), (5, 10, False), (5, 20, False), (5, 21, True), (6, 15, True), (4, 0, True),
        (7, 0, False), (7, 3, False), (7, 4, True), (7, 29, True), (7, 30, False), (8, 35, True),
    ):  # fmt: skip
        columns = Columns([b"k"], [b"v"], [0])
        named = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        for transactional in (True, False):
            batch = encode(columns, base_offset=offset, transactional=transactional, **named)
            wanted = Stop.END if is_plain or not transactional else Stop.OTHER
            offsets, output = native.OffsetMap(10, SECRET), native.Output(100)
            assert native.put_batches(offsets, batch, 0, 0, FAR, 0, 10, aborted)[1] is wanted
            found = native.filter_batches(offsets, batch, 0, 0, FAR, output, cleaned(0), aborted)
            assert found[1] is wanted
            seen = [producer_id] if is_plain and transactional else []
            assert output.take_producers() == seen
            assert output.take_producers() == []


def test_the_first_batch_after_every_stretch_gets_a_mark(loops: Any) -> None:
    output = loops.Output(10)
    for last_offset, batch in ((3, b"a" * 6), (5, b"b" * 6), (9, b"c" * 6), (12, b"d" * 30)):
        output.append(batch, last_offset, 100 + (last_offset == 5))
    assert output.marks() == [Mark(12, 9, 101, 5)]
    assert output.latest == (101, 5)
    with output.view() as view:
        assert bytes(view) == b"a" * 6 + b"b" * 6 + b"c" * 6 + b"d" * 30
        assert view.readonly
    output.clear()
    output.append(b"e", 20, 102)
    assert output.marks() == [Mark(0, 20, 102, 20)], "what came before the run counts"
    output.clear()
    assert (len(output), output.marks(), bytes(output.view())) == (0, [], b"")


rows = st.lists(st.tuples(blobs, blobs), min_size=1, max_size=40)


@given(
    rows=rows,
    times=st.integers(-(2**40), 2**40),
    shift=st.integers(-(2**50), 2**50),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_the_primitives_do_the_same(
    rows: list[Any], times: int, shift: int, data: st.DataObject
) -> None:
    body = body_of(rows, [0, *[times] * (len(rows) - 1)])
    mask = bytes(
        data.draw(st.lists(st.sampled_from([0, 1]), min_size=len(rows), max_size=len(rows)))
    )
    assert native.copy_records(body, mask, shift) == pure.copy_records(body, mask, shift)
    until, go = data.draw(st.integers(0, 50)), data.draw(st.booleans())
    found = []
    for loops in (native, pure):
        offsets = loops.OffsetMap(100, SECRET)
        loops.put_records(offsets, body, len(rows), 0, 0, 100)
        found.append(loops.judge_records(offsets, body, len(rows), 0, until, go))
    assert found[0] == found[1]


@given(body=st.binary(max_size=200), count=st.integers(0, 30))
@settings(max_examples=300, deadline=None)
def test_bytes_that_are_no_records_are_refused_by_both(body: bytes, count: int) -> None:
    for call in (
        lambda loops: loops.put_records(loops.OffsetMap(100, SECRET), body, count, 0, 0, 100),
        lambda loops: loops.judge_records(loops.OffsetMap(100, SECRET), body, count, 0, 50, False),
        lambda loops: loops.copy_records(body, bytes([1]) * count, 5),
    ):
        refused = []
        for loops in (native, pure):
            try:
                call(loops)
            except CorruptBatchError:
                refused.append(True)
            else:
                refused.append(False)
        assert refused[0] <= refused[1], "the native one does not read headers, and refuses less"


@given(data=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_bytes_take_the_walk_beyond_its_run(data: bytes) -> None:
    run = encode(Columns([b"k"], [b"v"], [0])) + data
    offsets, output = native.OffsetMap(100, SECRET), native.Output(10)
    at, _, _ = native.put_batches(offsets, run, 0, 0, FAR, 0, 100, NONE)
    assert 0 <= at <= len(run)
    at, _, _ = native.filter_batches(offsets, run, 0, 0, FAR, output, cleaned(50), NONE)
    assert 0 <= at <= len(run)


# ---- which of the twins cleans -----------------------------------------------------------------

MODULES = ("_batch", "_offset_map", "_output", "_loops")  # the last one loads the others
LATER_SOURCES = """
from kafkalite.core.protocol import records_pure
records_pure.INTERFACE += 1
"""
WHO_CLEANS = """
from kafkalite.compaction import loops
chosen = [getattr(loops, name) for name in loops.__all__ if name != "NATIVE"]
print(loops.NATIVE, *sorted({thing.__module__.rpartition(".")[2] for thing in chosen}))
"""


def python(program: str) -> tuple[str, str]:
    """What another interpreter prints: extension modules are loaded once in each."""
    command = [sys.executable, "-W", "error", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.rstrip(), ran.stderr


def test_the_native_modules_clean_where_all_of_them_load() -> None:
    assert python(WHO_CLEANS) == ("True _batch _loops _offset_map _output", "")


@pytest.mark.slow
@pytest.mark.parametrize("missing", MODULES)
def test_the_twins_clean_where_one_native_module_does_not_load(missing: str) -> None:
    without = f"import sys; sys.modules['kafkalite.compaction.{missing}'] = None"
    assert python(without + WHO_CLEANS) == ("False cleaning_pure", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_native_module_of_other_sources_is_not_used(name: str) -> None:
    others = [each for each in MODULES[:3] if each != name]
    first = "\n".join(f"import kafkalite.compaction.{each}" for each in others) + LATER_SOURCES
    assert python(first + WHO_CLEANS) == ("False cleaning_pure", "")
    _, complaint = python(f"{first}import kafkalite.compaction.{name}")
    assert "ImportError: built for interface" in complaint
