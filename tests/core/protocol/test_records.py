"""Record batches: the layout byte by byte, the checks of a leader, patching, markers."""

from __future__ import annotations

import struct

import pytest

from kafkalite.core.protocol import records
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

HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = {name: i for i, name in enumerate(records.BatchHeader._fields)}
codecs = pytest.mark.parametrize("codec", list(Compression))


def columns(count=3):
    rows = range(count)
    return Columns(
        [None if i % 3 == 1 else b"key-%d" % i for i in rows],
        [None if i % 5 == 4 else b"value-%d" % i for i in rows],
        [1_700_000_000_000 + i for i in rows],
    )


def keyed(count=3):
    rows = range(count)
    return Columns([b"k%d" % i for i in rows], [b"v"] * count, [5] * count)


def altered(batch, *, body=None, seal=True, **fields):
    """`batch` with header fields or records replaced, its length and CRC made true again."""
    batch = bytearray(batch) if body is None else bytearray(batch[:BATCH_HEADER_BYTES] + body)
    header = list(HEADER.unpack_from(batch))
    header[FIELDS["batch_length"]] = len(batch) - 12
    for name, value in fields.items():
        header[FIELDS[name]] = value
    HEADER.pack_into(batch, 0, *header)
    if seal:
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def refused(batch, **options):
    with pytest.raises(ApiError) as caught:
        check_produced(batch, **options)
    return caught.value.error_code, str(caught.value)


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


# ---- what a leader checks ----------------------------------------------------------------------


@codecs
@pytest.mark.parametrize("count", [1, 3, 500])
def test_a_true_batch_is_accepted(codec, count):
    batch = encode(keyed(count), compression=codec, producer_id=3, base_sequence=0)
    assert check_produced(batch, keys_required=True).header == read_header(batch)
    assert check_produced(memoryview(bytearray(batch))).header == read_header(batch)


@codecs
def test_one_batch_and_nothing_else(codec):
    batch = encode(columns(), compression=codec)
    for wrong in (b"", batch[:11], batch[:16], batch[:-1], batch + b"x", batch + batch):
        assert refused(wrong)[0] is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"base_offset": 1}, ErrorCode.INVALID_RECORD, "base offset 1, expected 0"),
        ({"last_offset_delta": 3}, ErrorCode.INVALID_RECORD, "last offset delta 3 of 3 records"),
        ({"last_offset_delta": -1}, ErrorCode.INVALID_RECORD, "last offset delta -1 of 3 records"),
        ({"record_count": 4}, ErrorCode.INVALID_RECORD, "last offset delta 2 of 4 records"),
        (
            {"record_count": 2, "last_offset_delta": 1},
            ErrorCode.INVALID_RECORD,
            "bytes after the last of 2 records",
        ),
        (
            {"record_count": 4, "last_offset_delta": 3},
            ErrorCode.INVALID_RECORD,
            "record 3, byte 30 of the records: length runs past byte 30",
        ),
        (
            {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
            ErrorCode.INVALID_RECORD,
            "2147483647 records in 30 bytes",
        ),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD, "30 bytes after"),
        ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD, "-1 records"),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD, "control batches are written by brokers"),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "unknown codec 5"),
        ({"attributes": 1}, ErrorCode.INVALID_RECORD, "gzip"),
        ({"producer_id": 4}, ErrorCode.INVALID_RECORD, "producer id 4 with sequence -1"),
    ],
)
def test_a_header_that_lies(fields, code, message):
    got, text = refused(altered(encode(keyed()), **fields))
    assert got is code
    assert message in text


def test_a_bad_crc_is_a_corrupt_message():
    code, text = refused(altered(encode(keyed()), crc=0, seal=False))
    assert code is ErrorCode.CORRUPT_MESSAGE
    assert "its header says 0x00000000" in text


def test_an_empty_batch_is_not_produced():
    batch = altered(encode(keyed()), body=b"", record_count=0, last_offset_delta=-1)
    code, text = refused(batch)
    assert code is ErrorCode.INVALID_RECORD
    assert "no records" in text


@codecs
def test_the_oldest_and_the_newest_time_of_what_is_produced_are_known(codec):
    times = Columns([b"k"] * 4, [b"v"] * 4, [1_000, 1_700, 400, 900])
    produced = check_produced(encode(times, compression=codec))
    assert (produced.oldest, produced.newest) == (400, 1_700)


@codecs
def test_keys_where_they_are_required(codec):
    batch = encode(columns(), compression=codec)
    assert check_produced(batch)
    code, text = refused(batch, keys_required=True)
    assert code is ErrorCode.INVALID_RECORD
    assert "record 1" in text
    assert "key is null where every record needs one" in text


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_a_bomb_is_refused_by_its_limit(codec):
    batch = encode(Columns([b"k"], [bytes(1_000_000)], [0]), compression=codec)
    code, text = refused(batch, decompressed_bytes_max=999_999)
    assert code is ErrorCode.INVALID_RECORD
    assert "999999" in text
    with pytest.raises(CorruptBatchError, match="999999"):
        decode(batch, decompressed_bytes_max=999_999)


RECORD = bytes.fromhex("10000000026b027600")  # length to headers


def varint(number):
    raw, output = (number << 1) ^ (number >> 63), b""
    while raw > 0x7F:
        output, raw = output + bytes([raw & 0x7F | 0x80]), raw >> 7
    return output + bytes([raw])


def record(fields):
    return varint(len(fields)) + fields


@codecs
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x01" + RECORD[1:], "record 0, byte 0 of the records: length is -1"),
        (
            b"\x12" + RECORD[1:],
            "record 0, byte 0 of the records: length is 9, but 8 bytes are left",
        ),
        (b"\x80" * 9, "record 0, byte 0 of the records: length is not a varint of 5 bytes at most"),
        (b"\xff\xff\xff\xff\x1f" + bytes(9), "length is not a varint of 5 bytes at most"),
        (b"\x00" + bytes(8), "byte 1 of the records: attributes runs past byte 1"),
        (record(b"\0" + b"\x80" * 10 + b"\0\0\0\0"), "timestamp delta is not a varint of 10 bytes"),
        (record(b"\0" + b"\xff" * 9 + b"\x02" + bytes(4)), "timestamp delta is not a varint of 10"),
        (record(b"\0\0" + b"\x80" * 5 + b"\0\0\0\0"), "offset delta is not a varint of 5 bytes"),
        (record(b"\0\0\x02\x01\x01\0\0"), "offset delta 1, expected 0"),
        (record(b"\0\0\x01\x01\x01\0\0"), "offset delta -1, expected 0"),
        (record(b"\0\0\0\x03\0\0\0"), "key length is -2"),
        (
            record(b"\0\0\0\x08\0\0\0"),
            "byte 4 of the records: key length is 4, but 3 bytes are left",
        ),
        (record(b"\0\0\0\x01\x03\0\0"), "value length is -2"),
        (record(b"\0\0\0\x01\x06\0\0"), "value length is 3, but 2 bytes are left"),
        (record(b"\0\0\0\x01\x01\x01\0"), "header count is -1"),
        (record(b"\0\0\0\x01\x01\x04\0\0\0"), "header count is 2, but 3 bytes are left"),
        (record(b"\0\0\0\x01\x01\x02\x01\0"), "header key length is -1"),
        (record(b"\0\0\0\x01\x01\x02\x02\0"), "value length runs past byte 9"),
        (record(b"\0\0\0\x01\x01\x02\x00\x03"), "header value length is -2"),
        (record(b"\0\0\0\x01\x01\x00\x00"), "byte 7 of the records: 1 bytes after its last field"),
        (record(b"\0\0\0\x01\x81\0"), "header count runs past byte 7"),
        (record(b"\0\0\0\x01\x01\0") + b"\0", "1 bytes after the last of 1 records"),
        (b"\x0c", "1 records in 1 bytes"),
    ],
)
def test_a_record_that_lies(codec, body, message):
    packed = records.compress(body, codec)
    batch = altered(encode(keyed(1), compression=codec), body=bytes(packed))
    code, text = refused(batch)
    assert code is ErrorCode.INVALID_RECORD
    assert message in text
    if "expected 0" not in message:  # compacted batches may begin later
        with pytest.raises(CorruptBatchError) as caught:
            decode(batch)
        assert message in str(caught.value)


def test_offset_deltas_rise():
    def skimmed(*deltas, last=None):
        body = b"".join(record(b"\0\0" + varint(delta) + b"\x01\x01\0") for delta in deltas)
        last = deltas[-1] if last is None else last
        batch = altered(
            encode(keyed(1)), body=body, record_count=len(deltas), last_offset_delta=last
        )
        skim(batch, 0, read_header(batch))

    skimmed(0, 1, 2)
    skimmed(0, 2, 9)
    with pytest.raises(ApiError, match="offset delta 1, expected 2 or more"):
        skimmed(0, 1, 1)
    with pytest.raises(ApiError, match="offset delta 0, expected 2 or more"):
        skimmed(0, 1, 0)
    with pytest.raises(ApiError, match="last record's offset delta is 2, the header's 3"):
        skimmed(0, 1, 2, last=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"base_timestamp": 2**63 - 1},
            "timestamp delta 1 from 9223372036854775807 leaves 64 bits",
        ),
        ({"base_offset": 2**63 - 1}, "offset delta 1 from 9223372036854775807 leaves 64 bits"),
    ],
)
def test_sums_that_leave_64_bits(fields, message):
    batch = altered(encode(Columns([b"k"] * 2, [b""] * 2, [0, 1])), **fields)
    with pytest.raises(CorruptBatchError, match=message):
        decode(batch)


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
