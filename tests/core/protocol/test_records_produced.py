"""What a leader checks of a batch that is produced: header, CRC, framing of every record."""

from __future__ import annotations

import pytest
from true_and_false_batches import altered, codecs, columns, keyed, refused

from kafkalite.core.protocol import records
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import check_produced, decode, encode, read_header, skim
from kafkalite.core.types import Columns
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode


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
def test_a_record_that_lies(body, message):
    for codec in Compression:
        packed = records.compress(body, codec)
        batch = altered(encode(keyed(1), compression=codec), body=bytes(packed))
        code, text = refused(batch)
        assert code is ErrorCode.INVALID_RECORD, codec
        assert message in text, codec
        if "expected 0" not in message:  # compacted batches may begin later
            with pytest.raises(CorruptBatchError) as caught:
                decode(batch)
            assert message in str(caught.value), codec


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
