"""Timestamps of produced records: bounds hold for every record that has a time."""

from __future__ import annotations

from typing import NoReturn

import pytest

from kafkalite.core.config.keys import LONG_MAX
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.validation import validated
from kafkalite.core.protocol import record_codec, records
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    crc32c,
    decode,
    encode,
    read_header,
)
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, RecordsRefused

NOW_MS = 10_000_000
CONFIG = LogConfig(message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=500)
BASE_TIMESTAMP_POSITION, MAX_TIMESTAMP_POSITION = 27, 35
CODECS = [Compression.NONE, Compression.ZSTD]


def accepted(times: list[int], config: LogConfig, codec: Compression) -> bool:
    batch = encode(Columns([None] * len(times), [b"v"] * len(times), times), compression=codec)
    try:
        validated(batch, config, TopicPartition("t", 0), NOW_MS, True)
    except ApiError as error:
        if error.error_code is not ErrorCode.INVALID_TIMESTAMP:
            raise
        return False
    return True


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("offsets_ms", "fits"),
    [([0], True), ([-1_000, 500], True), ([0, -1_001], False), ([501, 0], False)],
)
def test_bounds_hold_for_every_record(
    offsets_ms: list[int], fits: bool, codec: Compression
) -> None:
    times = [NOW_MS + offset for offset in offsets_ms]
    assert accepted(times, CONFIG, codec) is fits
    assert accepted(times, LogConfig(), codec)
    assert accepted(times, LogConfig(message_timestamp_type="LogAppendTime"), codec)


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_without_a_time_is_not_too_old(codec: Compression) -> None:
    assert accepted([-1, NOW_MS], CONFIG, codec)
    assert accepted([-1, -1], CONFIG, codec)
    assert not accepted([-1, -2], CONFIG, codec)


def refused(batch: bytes, config: LogConfig) -> RecordsRefused:
    with pytest.raises(RecordsRefused) as caught:
        validated(batch, config, TopicPartition("t", 0), NOW_MS, True)
    return caught.value


@pytest.mark.parametrize("codec", CODECS)
def test_the_first_records_of_a_refused_batch_are_named(codec: Compression) -> None:
    old = [NOW_MS - 5_000] * 20
    times = [NOW_MS, -1, *old]
    batch = encode(Columns([b"k"] * 22, [b"v"] * 22, times), compression=codec)
    error = refused(batch, CONFIG)
    assert error.error_code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.records] == list(range(2, 12))
    keys = [b"k", *[None] * 20]
    batch = encode(Columns(keys, [b"v"] * 21, [NOW_MS] * 21), compression=codec)
    error = refused(batch, LogConfig(cleanup_policy="compact"))
    assert error.error_code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.records] == list(range(1, 11))


@pytest.mark.parametrize("times", [[NOW_MS], [0]])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_no_record_of_a_produced_batch_is_built(
    times: list[int], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the batch is stored, compressed anew or refused for its records."""

    def build(*arguments: object) -> NoReturn:
        raise AssertionError(f"{len(arguments)} records' worth of objects")

    for module in (records, record_codec):
        monkeypatch.setattr(module, "decode_records", build)
    batch = encode(Columns([None], [b"v"], times))
    config = LogConfig(
        cleanup_policy=policy,
        compression_type="gzip",
        message_timestamp_before_max_ms=1_000,
    )
    if policy == "compact" or times == [0]:
        refused(batch, config)
    else:
        validated(batch, config, TopicPartition("t", 0), NOW_MS, True)


def test_a_batch_compressed_anew_holds_the_same_records() -> None:
    columns = Columns([b"a", None], [b"v" * 500, None], [5, 3], headers=[(("h", b"1"),), ()])
    batch = encode(columns, producer_id=7, producer_epoch=1, base_sequence=9)
    for name in ("gzip", "snappy", "lz4", "zstd", "uncompressed"):
        config = LogConfig(compression_type=name)
        stored, header = validated(batch, config, TopicPartition("t", 0), NOW_MS, True)
        assert decode(stored) == decode(batch), "its CRC is right, too"
        assert header == read_header(stored)
        assert (header.producer_id, header.base_sequence) == (7, 9)
        batch = bytes(stored)


def with_time(data: bytes, position: int, time_ms: int) -> bytearray:
    """The batch with another time in its header, and a CRC that is right."""
    batch = bytearray(data)
    batch[position : position + 8] = time_ms.to_bytes(8, "big", signed=True)
    crc = crc32c(bytes(batch[ATTRIBUTES_POSITION:]))
    batch[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return batch


@pytest.mark.parametrize("after_ms", [LogConfig().message_timestamp_after_max_ms, LONG_MAX])
def test_a_time_that_64_bits_cannot_hold_is_refused(after_ms: int) -> None:
    batch = encode(Columns([None] * 2, [b"v"] * 2, [0, 100]))
    late = with_time(batch, BASE_TIMESTAMP_POSITION, LONG_MAX - 50)  # the deltas count from it
    config = LogConfig(message_timestamp_after_max_ms=after_ms)
    with pytest.raises(ApiError) as caught:
        validated(late, config, TopicPartition("t", 0), NOW_MS, True)
    assert caught.value.error_code is ErrorCode.INVALID_TIMESTAMP
    by_broker = LogConfig(message_timestamp_type="LogAppendTime")
    validated(late, by_broker, TopicPartition("t", 0), NOW_MS, True)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("told_ms", [0, -1, NOW_MS + 99, LONG_MAX])
def test_the_largest_time_is_what_the_records_say(told_ms: int, codec: Compression) -> None:
    times = [NOW_MS - 5, NOW_MS, NOW_MS - 9]
    honest = encode(Columns([None] * 3, [b"v"] * 3, times), compression=codec)
    lying = with_time(honest, MAX_TIMESTAMP_POSITION, told_ms)
    stored, header = validated(bytes(lying), LogConfig(), TopicPartition("t", 0), NOW_MS, True)
    assert bytes(stored) == honest
    assert header.max_timestamp == NOW_MS
    timeless = encode(Columns([None], [b"v"], [-1]), compression=codec)
    lying = with_time(timeless, MAX_TIMESTAMP_POSITION, told_ms)
    stored, header = validated(lying, LogConfig(), TopicPartition("t", 0), NOW_MS, True)
    assert (bytes(stored), header.max_timestamp) == (timeless, -1)
