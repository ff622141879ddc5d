"""Record batches: the layout byte by byte, the checks of a leader, patching, markers."""

from __future__ import annotations

import struct

import pytest
from true_and_false_batches import HEADER, altered, codecs, columns, keyed, refused

from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import (
    BATCH_HEADER_BYTES,
    ControlType,
    EndTransactionMarker,
    TimestampType,
    batches,
    check_produced,
    decode,
    decode_all,
    encode,
    encode_end_transaction_marker,
    parse_end_transaction_marker,
    patch,
    read_header,
    skim,
    verify_crc,
)
from kafkalite.core.types import EMPTY_COLUMNS, Columns
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode

# ---- layout ------------------------------------------------------------------------------------


def test_a_batch_byte_by_byte():
    batch = encode(
        Columns(
            [b"k", None],
            [b"hello", b""],
            [1000, 998],
            headers=[(), (("h", b"x"), ("n", None))],
        ),
        base_offset=7,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        transactional=True,
        leader_epoch=3,
    )
    body = bytes.fromhex(
        "18 00 00 00 02 6b 0a 68 65 6c 6c 6f 00"  # length, attributes, deltas, key, value, headers
        "1a 00 03 02 01 00 04 02 68 02 78 02 6e 01"
    )
    assert batch[BATCH_HEADER_BYTES:] == body
    assert HEADER.unpack_from(batch) == (
        7, 49 + len(body), 3, 2, crc32c(batch[21:]), 0x10, 1, 1000, 1000, 9, 2, 40, 2,
    )  # fmt: skip


def test_header_properties():
    header = read_header(encode(columns(), base_offset=7, base_sequence=2**31 - 2, producer_id=5))
    assert header.size_bytes == header.batch_length + 12
    assert (header.last_offset, header.next_offset) == (9, 10)
    assert header.last_sequence == 0  # wraps
    assert header.has_producer_id
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_transactional
    assert not header.is_control
    assert header.delete_horizon_ms is None
    flagged = header._replace(attributes=0x78 | Compression.LZ4, base_timestamp=77)
    assert flagged.compression is Compression.LZ4
    assert flagged.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert flagged.is_transactional
    assert flagged.is_control
    assert flagged.delete_horizon_ms == 77
    assert header._replace(base_sequence=-1).last_sequence == -1


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec):
    batch = altered(encode(columns()), attributes=codec)
    with pytest.raises(CorruptBatchError, match=f"unknown codec {codec}"):
        decode(batch)
    with pytest.raises(ApiError) as caught:
        skim(batch, 0, read_header(batch))
    assert caught.value.error_code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# ---- there and back ----------------------------------------------------------------------------


@codecs
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_round_trip(codec, count):
    batch = encode(columns(count), base_offset=50, compression=codec)
    assert read_header(batch).compression is codec
    expected = columns(count)
    assert decode(batch) == Columns(
        expected.keys, expected.values, expected.timestamps, range(50, 50 + count)
    )
    assert isinstance(decode(batch).offsets, range)


@pytest.mark.parametrize("position", [0, 1, 100])
def test_decode_reads_where_it_is_told(position):
    batch = encode(columns())
    for buffer in (bytes(position) + batch + b"tail", bytearray(position) + batch):
        assert decode(memoryview(buffer), position).values == columns().values


@codecs
def test_offsets_of_the_columns_win(codec):
    kept = Columns([b"a", b"b", b"c"], [b""] * 3, [0] * 3, [10, 12, 2**31 + 9])
    batch = encode(kept, base_offset=3, compression=codec)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset) == (10, 2**31 + 9)
    assert decode(batch).offsets == [10, 12, 2**31 + 9]


def test_dense_offsets_that_do_not_begin_at_the_base_are_a_range():
    """Compaction drops the first records and leaves the base offset."""
    batch = bytearray(encode(Columns([b"a"] * 3, [b""] * 3, [0] * 3, [10, 11, 12])))
    batch = altered(batch, base_offset=5)
    assert decode(batch).offsets == range(5, 8)
    first_delta = batch.index(b"\x02a") - 1
    batch = bytearray(encode(Columns([b"a"], [b""], [0])))
    batch[first_delta] = 6
    assert decode(altered(batch, base_offset=5)).offsets == range(8, 9)


def test_headers_are_none_when_no_record_has_any():
    some = Columns([b"a"] * 3, [b""] * 3, [0] * 3, headers=[(), (("a", None), ("é", b"1")), ()])
    assert decode(encode(some)).headers == [(), (("a", None), ("é", b"1")), ()]
    none = Columns([b"a"] * 3, [b""] * 3, [0] * 3, headers=[(), [], ()])
    assert decode(encode(none)).headers is None


def test_header_names_that_are_not_utf_8_get_replacement_characters():
    batch = encode(Columns([b"a"], [b""], [0], headers=[(("??", b""),)]))
    batch = altered(batch.replace(b"??", b"\xff\xfe"))
    assert decode(batch).headers == [(("\ufffd\ufffd", b""),)]
    assert check_produced(batch)


@codecs
def test_log_append_time_is_everyones_timestamp(codec):
    batch = bytearray(encode(columns(), compression=codec))
    patch(batch, 0, 100, 4, max_timestamp=1234)
    header = read_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert decode(batch).timestamps == [1234] * 3
    assert decode(batch).offsets == range(100, 103)


def test_timestamps_may_fall_and_be_negative():
    times = [5, -1, 2**62, -(2**62), 0]
    batch = encode(Columns([None] * 5, [b""] * 5, times))
    assert decode(batch).timestamps == times
    assert read_header(batch).base_timestamp == 5
    assert read_header(batch).max_timestamp == 2**62


def test_a_batch_that_compaction_emptied():
    empty = altered(encode(columns()), body=b"", record_count=0)
    for codec in Compression:
        batch = altered(empty, attributes=int(codec), last_offset_delta=9)
        assert decode(batch) == Columns([], [], [], range(0))
    assert read_header(batch).next_offset == 10
    following = encode(keyed(), base_offset=10)
    assert decode_all(batch + following) == decode(following)


# ---- what cannot be encoded --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (Columns([], [], []), ValueError, "no records"),
        (Columns([b""], [b"", b""], [0]), ValueError, "different lengths.*'values': 2"),
        (Columns([b""], [b""], [0], [1, 2]), ValueError, "different lengths"),
        (Columns([b""], [b""], [0], headers=[]), ValueError, "different lengths"),
        (Columns(["k"], [b""], [0]), TypeError, "key of record 0 is str"),
        (Columns([b""] * 2, [b"", 3], [0] * 2), TypeError, "value of record 1 is int"),
        (Columns([b""], [bytearray()], [0]), TypeError, "value of record 0 is bytearray"),
        (Columns([b""], [b""], [0.5]), TypeError, "timestamp of record 0 is float"),
        (
            Columns([b""], [b""], [2**63]),
            ValueError,
            "timestamp of record 0 is 9223372036854775808",
        ),
        (Columns([b""] * 2, [b""] * 2, [-(2**63), 0]), ValueError, "record 1 is more than 64 bits"),
        (Columns([b""], [b""], [0], ["1"]), TypeError, "offset of record 0 is str"),
        (
            Columns([b""] * 2, [b""] * 2, [0] * 2, [4, 4]),
            ValueError,
            "offset 4 of record 1 after 4",
        ),
        (Columns([b""] * 2, [b""] * 2, [0] * 2, [0, 2**31]), ValueError, "offset 2147483648"),
        (Columns([b""], [b""], [0], headers=[None]), TypeError, "headers of record 0: None"),
        (Columns([b""], [b""], [0], headers=[[("a",)]]), TypeError, "headers of record 0"),
        (Columns([b""], [b""], [0], headers=[[(b"a", b"")]]), TypeError, "headers of record 0"),
        (Columns([b""], [b""], [0], headers=[[("a", "b")]]), TypeError, "header value of record 0"),
        (Columns([b""], [b""], [0], headers=[[("\ud800", b"")]]), UnicodeEncodeError, "surrogate"),
    ],
)
def test_what_cannot_be_encoded_is_named(wrong, error, message):
    with pytest.raises(error, match=message):
        encode(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"base_offset": 2**63},
        {"base_offset": 2**63 - 1},
        {"producer_id": 2**63},
        {"producer_epoch": 2**15},
        {"base_sequence": 2**31},
        {"leader_epoch": -(2**31) - 1},
    ],
)
def test_numbers_that_do_not_fit_the_header_are_named(options):
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        encode(columns(), **options)


def test_numbers_of_other_types_are_taken_by_their_index():
    class Number:
        def __index__(self):
            return 17

    batch = encode(Columns([b""] * 2, [b""] * 2, [True, Number()], [Number(), 18]))
    assert decode(batch).timestamps == [1, 17]
    assert decode(batch).offsets == range(17, 19)


# ---- reading headers ---------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_sets_are_refused_by_name(magic):
    old = struct.pack(">qiIbb", 0, 22, 0, magic, 0) + bytes(16)
    for read in (read_header, decode, decode_all):
        with pytest.raises(CorruptBatchError, match=f"message set of magic {magic}"):
            read(old)
    assert refused(old) == (
        ErrorCode.INVALID_RECORD,
        f"magic {magic} where one batch of magic 2 is expected: INVALID_RECORD",
    )


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_unknown_magic(magic):
    batch = altered(encode(columns()), magic=magic, seal=False)
    with pytest.raises(CorruptBatchError, match=f"magic {magic & 0xFF}, expected 2"):
        read_header(batch)
    assert refused(batch)[0] is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_batch_length_no_batch_can_have(length):
    batch = altered(encode(columns()), batch_length=length, seal=False)
    with pytest.raises(CorruptBatchError, match=f"batch length {length}, expected 49 or more"):
        list(batches(batch))
    assert refused(batch)[0] is ErrorCode.CORRUPT_MESSAGE


def test_a_header_that_is_not_all_there():
    batch = encode(columns())
    for size in range(BATCH_HEADER_BYTES):
        with pytest.raises(CorruptBatchError, match=f"byte 3: {size} bytes, a batch header needs"):
            read_header(b"abc" + batch[:size], 3)


def test_batches_stop_at_an_incomplete_tail():
    first, second = encode(columns(3)), encode(columns(2), base_offset=3)
    buffer = first + second
    for size in range(len(buffer) + 1):
        found = list(batches(memoryview(buffer)[:size]))
        whole = (size >= len(first)) + (size == len(buffer))
        assert [position for position, _ in found] == [0, len(first)][:whole]
    assert [header.base_offset for _, header in found] == [0, 3]


def test_decode_all_leaves_control_batches_out():
    marker = encode_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 1),
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=3,
    )
    buffer = encode(keyed(3)) + marker + encode(keyed(2), base_offset=4) + b"tail"
    assert decode_all(buffer).offsets == [0, 1, 2, 4, 5]
    assert decode_all(b"") == EMPTY_COLUMNS


def test_verify_crc():
    batch = bytearray(encode(columns()))
    header = read_header(batch)
    verify_crc(batch, 0, header)
    for i in range(21, len(batch)):
        batch[i] ^= 1
        with pytest.raises(CorruptBatchError, match=r"byte 0: batch of \d+ bytes has CRC 0x"):
            verify_crc(batch, 0, header)
        batch[i] ^= 1
    with pytest.raises(CorruptBatchError, match=rf"batch of {len(batch)} bytes, {len(batch) - 1}"):
        verify_crc(batch[:-1], 0, header)


def test_decode_checks_the_crc_unless_told_not_to():
    batch = altered(encode(columns()), crc=1, seal=False)
    with pytest.raises(CorruptBatchError, match="CRC"):
        decode(batch)
    with pytest.raises(CorruptBatchError, match="CRC"):
        decode_all(batch)
    assert decode(batch, check_crc=False) == decode_all(batch, check_crc=False)


# ---- patch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bytearray, lambda batch: memoryview(bytearray(batch))])
def test_patch_writes_offset_and_epoch_outside_the_crc(make):
    batch = encode(columns())
    buffer = make(b"abc" + batch)
    patch(buffer, 3, 2**40, 6)
    header = read_header(buffer, 3)
    expected = read_header(batch)._replace(base_offset=2**40, partition_leader_epoch=6)
    assert header == expected
    verify_crc(buffer, 3, header)
    patch(buffer, 3, 8, 7, max_timestamp=99)
    header = read_header(buffer, 3)
    verify_crc(buffer, 3, header)
    assert (header.base_offset, header.max_timestamp, header.attributes) == (8, 99, 8)
    assert header.base_timestamp == expected.base_timestamp


# ---- markers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("control_type", list(ControlType))
def test_end_transaction_marker(control_type):
    marker = EndTransactionMarker(control_type, 12)
    batch = encode_end_transaction_marker(
        marker, producer_id=7, producer_epoch=1, timestamp_ms=99, base_offset=40, leader_epoch=2
    )
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.record_count, header.next_offset) == (40, 1, 41)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, -1)
    content = decode(batch)
    assert content.keys == [struct.pack(">hh", 0, control_type)]
    assert content.values == [struct.pack(">hi", 0, 12)]
    assert parse_end_transaction_marker(content.keys[0], content.values[0]) == marker


def test_other_control_records_end_no_transaction():
    assert parse_end_transaction_marker(struct.pack(">hh", 0, 2), b"") is None


def test_markers_of_later_versions_are_read():
    key, value = struct.pack(">hh", 1, 1) + b"more", struct.pack(">hi", 1, 5) + b"more"
    assert parse_end_transaction_marker(key, value) == EndTransactionMarker(ControlType.COMMIT, 5)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"", "key None"),
        (b"\0\0\0", b"", "expected 4 bytes"),
        (b"\xff\xff\0\0", b"", "key of version -1"),
        (b"\0\0\0\1", None, "COMMIT marker of value None"),
        (b"\0\0\0\0", b"\0\0\0\0\0", "ABORT marker of value"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0", "marker of version -1"),
    ],
)
def test_markers_that_are_none(key, value, message):
    with pytest.raises(CorruptBatchError, match=message):
        parse_end_transaction_marker(key, value)
