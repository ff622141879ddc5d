"""The native codec and its pure twin: the same results and the same errors, on any bytes."""

from __future__ import annotations

import gc
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.clients.metadata import PartitionInfo, TopicInfo
from kafkalite.clients.producer import routing
from kafkalite.core.protocol import record_codec as native
from kafkalite.core.protocol import records, records_pure
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import Compression, compress
from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.core.types import Columns

if not native.NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)

MODULES = ("_int64s", "_partitions", "_records_forms", "_records_read", "_records_write", "_spans")

SMALL = st.integers(0, 1000)
INT64 = SMALL | st.integers(-(2**63), 2**63 - 1)
blobs = st.none() | st.binary(max_size=80)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)
timestamps = st.integers(1_700_000_000_000, 1_700_000_000_100) | st.integers(-5, 5) | INT64
interesting = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF])


def outcome(function, *arguments):
    """What a call gives: its result, or its error with every word of it."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), str(error)


@st.composite
def batches_of_columns(draw, times=timestamps, starts=INT64):
    rows = draw(st.lists(st.tuples(blobs, blobs, times, headers), min_size=1, max_size=12))
    keys, values, when, named = zip(*rows, strict=True)
    offsets = None
    if draw(st.booleans()):
        steps = draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
        start = draw(starts)
        offsets = [min(start + sum(steps[:i]), 2**63 - 1) for i in range(len(rows))]
    return Columns(
        list(keys), values, list(when), offsets, list(named) if draw(st.booleans()) else None
    )


@st.composite
def damaged(draw):
    """The records of a true batch, then hurt: flipped, cut, grown, or not at all."""
    columns = draw(batches_of_columns(SMALL, SMALL))
    body = bytearray(records.encode(columns)[records.BATCH_HEADER_BYTES :])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(["set", "cut", "insert", "delete"])):
            case "set" if at < len(body):
                body[at] = draw(interesting | st.integers(0, 255))
            case "cut":
                del body[at:]
            case "insert":
                body[at:at] = bytes(draw(st.lists(interesting, max_size=11)))
            case "delete":
                del body[at : at + draw(st.integers(1, 3))]
    return bytes(body)


bodies = damaged() | st.binary(max_size=60) | st.lists(interesting, max_size=60).map(bytes)


def encode_with(twin, columns, codec, base_offset=0):
    packed = None if codec is Compression.NONE else lambda data: compress(data, codec)
    return twin.encode_batch(columns, int(codec), base_offset, -1, (-1, -1, -1), packed, crc32c)


@settings(deadline=None)
@given(columns=batches_of_columns(), codec=st.sampled_from(Compression), base=INT64)
def test_encode(columns, codec, base):
    expected = outcome(encode_with, records_pure, columns, codec, base)
    assert outcome(encode_with, native, columns, codec, base) == expected


def as_forms(columns, which):
    """Columns with forms in the place of some lists, as far as there are such."""
    kinds = (Spans, Spans, Int64s, Int64s)
    names = ("keys", "values", "timestamps", "offsets")
    forms = {}
    for name, kind, is_chosen in zip(names, kinds, which, strict=True):
        column = getattr(columns, name)
        form = kind.gathered(column) if is_chosen and column is not None else None
        forms[name] = column if form is None else form
    return Columns(**forms, headers=columns.headers)


some = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans())


@settings(deadline=None)
@given(columns=batches_of_columns(), codec=st.sampled_from(Compression), which=some)
def test_encode_of_forms(columns, codec, which):
    expected = outcome(encode_with, records_pure, columns, codec)
    assert outcome(encode_with, native, as_forms(columns, which), codec) == expected
    assert outcome(encode_with, records_pure, as_forms(columns, which), codec) == expected


@settings(deadline=None)
@given(columns=batches_of_columns(), count=st.integers(1, 5), which=some, data=st.data())
def test_partitions_and_split_of_forms(columns, count, which, data):
    forms = as_forms(columns, which)
    expected = records_pure.partition_column(columns.keys, count)
    found = native.partition_column(forms.keys, count)
    assert list(found) == expected
    assert type(found) is (Int64s if type(forms.keys) is Spans else list)
    of_each = data.draw(st.lists(st.integers(0, 4), min_size=len(columns), max_size=len(columns)))
    expected = outcome(records_pure.split, columns, of_each, count)
    for given_as in (of_each, Int64s(of_each)):
        parts = outcome(native.split, forms, given_as, count)
        if isinstance(parts, list):
            assert [type(part.keys) for part in parts] == [type(forms.keys)] * count
            parts = [as_lists(part) for part in parts]
            expected = [as_lists(part) for part in expected]
        assert parts == expected


wrong = st.sampled_from(
    [
        "text",
        5,
        2.5,
        bytearray(b"x"),
        2**63,
        -(2**63) - 1,
        [],
        (),
        ("a",),
        [("a", 1)],
        [(b"a", b"")],
    ]
)


@settings(deadline=None)
@given(columns=batches_of_columns(), data=st.data())
def test_encode_of_what_cannot_be_encoded(columns, data):
    """Errors come in the same order, too: of two wrong entries both twins name the same one."""
    fields = {name: getattr(columns, name) for name in Columns.__slots__}
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted(fields)))
        column = list(fields[name]) if fields[name] is not None else [0] * len(columns)
        if column and data.draw(st.integers(0, 9)):
            column[data.draw(st.integers(0, len(column) - 1))] = data.draw(wrong | st.none())
        else:
            del column[-1:]
        fields[name] = column
    columns = Columns(**fields)
    expected = outcome(encode_with, records_pure, columns, Compression.NONE)
    assert outcome(encode_with, native, columns, Compression.NONE) == expected


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    data=bodies,
    count=st.integers(0, 12) | st.integers(-(2**31), 2**31 - 1),
    base_offset=INT64,
    base_timestamp=INT64,
    log_append_time=st.none() | INT64,
)
def test_decode(data, count, base_offset, base_timestamp, log_append_time):
    arguments = (count, base_offset, base_timestamp, log_append_time)
    expected = outcome(records_pure.decode_records, data, *arguments)
    assert outcome(native.decode_records, data, *arguments) == expected
    assert outcome(native.decode_records, memoryview(bytearray(data)), *arguments) == expected
    for held in (data, memoryview(b"before" + data + b"behind")[6 : 6 + len(data)]):
        assert as_lists(outcome(native.decode_forms, held, *arguments)) == expected


def as_lists(columns):
    """Columns of forms as columns of lists; an error as it is."""
    if not isinstance(columns, Columns):
        return columns
    offsets = columns.offsets
    if not isinstance(offsets, range | None):
        offsets = list(offsets)
    lists = map(list, (columns.keys, columns.values, columns.timestamps))
    return Columns(*lists, offsets, columns.headers)


@settings(deadline=None)
@given(
    columns=batches_of_columns(st.integers(-(2**61), 2**61), SMALL),
    log_append_time=st.none() | INT64,
)
def test_decode_to_forms(columns, log_append_time):
    body = records.encode(columns)[records.BATCH_HEADER_BYTES :]
    arguments = (body, len(columns), 5, 7, log_append_time)
    expected = native.decode_records(*arguments)
    forms = native.decode_forms(*arguments)
    assert as_lists(forms) == expected
    assert forms.keys.data is forms.values.data is body
    assert isinstance(forms.offsets, range) == isinstance(expected.offsets, range)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    data=bodies,
    count=st.integers(0, 12) | st.integers(-(2**31), 2**31 - 1),
    last=st.integers(-1, 30),
    keys_required=st.booleans(),
)
def test_skim(data, count, last, keys_required):
    expected = outcome(records_pure.skim_records, data, count, last, keys_required)
    assert outcome(native.skim_records, data, count, last, keys_required) == expected
    assert outcome(native.skim_records, memoryview(data), count, last, keys_required) == expected


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    data=bodies,
    count=st.integers(0, 12) | st.integers(-(2**31), 2**31 - 1),
    base_timestamp=SMALL | INT64,
    times=st.none() | st.tuples(st.integers(-100, 500) | INT64, SMALL | INT64),
    most=st.integers(0, 4),
)
def test_unfit(data, count, base_timestamp, times, most):
    arguments = (count, base_timestamp, times, most)
    expected = outcome(records_pure.unfit_records, data, *arguments)
    assert outcome(native.unfit_records, data, *arguments) == expected
    assert outcome(native.unfit_records, memoryview(data), *arguments) == expected


@settings(deadline=None)
@given(
    columns=batches_of_columns(st.integers(-(2**61), 2**61), SMALL),
    codec=st.sampled_from(Compression),
)
def test_what_is_encoded_is_decoded(columns, codec):
    got = records.decode(records.encode(columns, compression=codec))
    assert got.keys == columns.keys
    assert tuple(got.values) == columns.values
    assert got.timestamps == columns.timestamps
    assert list(got.offsets) == list(columns.offsets or range(len(columns)))
    if columns.headers is None or not any(columns.headers):
        assert got.headers is None
    else:
        assert got.headers == columns.headers


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(columns=batches_of_columns(SMALL, SMALL), data=st.data())
def test_a_damaged_batch_with_a_true_crc_is_refused_or_read(columns, data):
    """Whatever a peer sends ends in one of our errors or in columns, by way of the whole API."""
    batch = bytearray(records.encode(columns, compression=data.draw(st.sampled_from(Compression))))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    del batch[data.draw(st.integers(61, len(batch))) :]
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    for check in (records.decode, records.decode_all, records.check_produced):
        got = outcome(check, batch)
        assert isinstance(got, Columns | records.Produced) or got[0] in (
            records.CorruptBatchError,
            records.ApiError,
        )


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    columns=batches_of_columns(SMALL, st.just(0)),
    codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4]),
    keys_required=st.booleans(),
    true_crc=st.booleans(),
    data=st.data(),
)
def test_one_glance_sees_what_a_close_look_sees(columns, codec, keys_required, true_crc, data):
    batch = bytearray(records.encode(columns, compression=codec, producer_id=data.draw(SMALL) - 1))
    batch[53:57] = bytes(4)  # base sequence
    for _ in range(data.draw(st.integers(0, 2))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(interesting)
    if true_crc:
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    glance = native.check_batch(batch, keys_required, crc32c, records.BatchHeader)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "check_batch", records_pure.check_batch)
        closely = outcome(lambda: records.check_produced(batch, keys_required=keys_required))
    assert outcome(lambda: records.check_produced(batch, keys_required=keys_required)) == closely
    if glance is None:
        assert not isinstance(closely, records.Produced)
    elif codec is Compression.NONE and not batch[22] & 7:
        assert isinstance(closely, records.Produced)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data):
    for check in (records.decode, records.decode_all, records.check_produced):
        got = outcome(check, data)
        assert isinstance(got, Columns | records.Produced) or got[0] in (
            records.CorruptBatchError,
            records.ApiError,
        )


def test_total_size_is_bounded_before_anything_is_allocated():
    value = bytes(2**20)
    columns = Columns([None] * 2048, [value] * 2048, [0] * 2048)
    with pytest.raises(ValueError, match="a batch holds at most 2147483647"):
        encode_with(native, columns, Compression.NONE)


@pytest.mark.parametrize("column", ["keys", "values", "timestamps", "offsets", "headers"])
def test_columns_that_change_while_they_are_encoded_are_refused(column):
    """The index of a timestamp runs Python code, which may empty what is being read."""
    fields = {"keys": [b"k"], "values": [b"v"], "offsets": [0], "headers": [()]}
    lists = {name: entries * 1000 for name, entries in fields.items()}
    lists["offsets"] = list(range(1000))

    class Empties:
        def __index__(self):
            lists[column].clear()
            return 0

    lists["timestamps"] = [Empties()] * 1000
    with pytest.raises(ValueError, match=r"columns changed|different lengths"):
        encode_with(native, Columns(**lists), Compression.NONE)


def test_references_are_neither_lost_nor_kept():
    columns = Columns(
        [b"key-%d" % i for i in range(100)],
        [b"value-%d" % i for i in range(100)],
        [2**40 + i // 10 for i in range(100)],
        headers=[(("name", b"header"),)] * 100,
    )
    batch = encode_with(native, columns, Compression.NONE)
    held = [columns.keys[7], columns.values[7], columns.timestamps[7], batch, None]
    gc.collect()  # what other tests left holds None, too
    before = [sys.getrefcount(thing) for thing in held]
    for _ in range(100):
        encode_with(native, columns, Compression.NONE)
        native.decode_records(memoryview(batch)[61:], 100, 0, 0, None)
        outcome(native.decode_records, memoryview(batch)[61:-1], 100, 0, 0, None)
        native.decode_forms(memoryview(batch)[61:], 100, 0, 0, None)
        outcome(native.decode_forms, memoryview(batch)[61:-1], 100, 0, 0, None)
        native.skim_records(memoryview(batch)[61:], 100, 99, True)
        native.split(columns, native.partition_column(columns.keys, 3), 3)
    after = [sys.getrefcount(thing) for thing in held]
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True)), (before, after)


TWINS_SERVE = """
from kafkalite.core.protocol import checksum, partitioner, record_codec, records
from kafkalite.core.types import Columns
batch = records.encode(Columns([b"k"], [b"v"], [1]))
assert records.check_produced(memoryview(batch)).header.record_count == 1
assert records.decode(batch).keys == [b"k"]
chosen = [getattr(record_codec, name) for name in record_codec.__all__ if name != "NATIVE"]
print(record_codec.NATIVE, *sorted({thing.__module__.rpartition(".")[2] for thing in chosen}))
"""


LATER_SOURCES = "from kafkalite.core.protocol import records_pure; records_pure.INTERFACE += 1"


def python(program: str) -> tuple[str, str]:
    """What another interpreter prints: extension modules are loaded once in each."""
    command = [sys.executable, "-W", "error", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.rstrip(), ran.stderr


def codec_after(first: str) -> str:
    """Whether a process that ran `first` has the native codec, and the modules that serve it."""
    said, complaint = python(first + TWINS_SERVE)
    assert complaint == ""
    return said


def test_the_native_modules_are_chosen_where_all_of_them_load():
    assert codec_after("") == f"True {' '.join(MODULES)}"


@pytest.mark.slow
@pytest.mark.parametrize("missing", MODULES)
def test_the_twins_run_where_one_native_module_does_not_load(missing):
    without = f"import sys; sys.modules['kafkalite.core.protocol.{missing}'] = None"
    assert codec_after(without) == "False builtins records_pure spans_pure"


@pytest.mark.slow
def test_the_twins_run_where_the_native_modules_are_of_other_sources():
    assert codec_after(LATER_SOURCES) == "False builtins records_pure spans_pure"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_every_native_module_looks_whether_it_belongs_to_these_sources(name):
    _, complaint = python(f"{LATER_SOURCES}\nimport kafkalite.core.protocol.{name}")
    assert "ImportError: built for interface" in complaint


def test_keys_in_the_bytes_of_a_fetch_are_routed_without_an_object_each(monkeypatch):
    """Neither an int of its partition nor bytes of its key is made of a record."""
    columns = Columns(
        Spans.gathered([b"%d" % i for i in range(1_000)]), [b"v"] * 1_000, [0] * 1_000
    )
    given_to_split = []

    def noted(columns, partitions, count):
        given_to_split.append(partitions)
        return native.split(columns, partitions, count)

    monkeypatch.setattr(routing, "split", noted)
    infos = tuple(PartitionInfo(p, 0, 0) for p in range(4))
    router = routing.Router(1 << 20, Random(1))
    pieces = list(router.columns(TopicInfo("t", infos), columns, None, None))
    assert [type(partitions) for partitions in given_to_split] == [Int64s]
    for (_, number), piece, _ in pieces:
        assert set(records_pure.partition_column(piece.keys, 4)) == {number}
    assert sum(len(piece) for _, piece, _ in pieces) == 1_000


def test_records_without_a_key_stick_together_among_those_with_one():
    keys = Spans.gathered([b"a", None, b"b", None] * 100)
    router = routing.Router(1 << 20, Random(1))
    infos = tuple(PartitionInfo(p, 0, 0) for p in range(4))
    columns = Columns(keys, [b"v"] * 400, [0] * 400)
    pieces = list(router.columns(TopicInfo("t", infos), columns, None, None))
    with_null = [number for (_, number), piece, _ in pieces if None in piece.keys]
    assert len(with_null) == 1
    assert sum(len(piece) for _, piece, _ in pieces) == 400
