"""Timestamps of produced records: bounds hold for every record that has a time."""

from __future__ import annotations

import pytest

from kafkalite.core.config import LogConfig
from kafkalite.core.log.validation import validated
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import ATTRIBUTES_POSITION, CRC_POSITION, crc32c, encode
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

NOW_MS = 10_000_000
CONFIG = LogConfig(message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=500)
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


def test_a_time_that_64_bits_cannot_hold_is_refused() -> None:
    batch = bytearray(encode(Columns([None] * 2, [b"v"] * 2, [0, 100])))
    batch[27:35] = ((1 << 63) - 50).to_bytes(8, "big")  # the time that the deltas count from
    crc = crc32c(bytes(batch[ATTRIBUTES_POSITION:]))
    batch[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    with pytest.raises(ApiError) as caught:
        validated(batch, LogConfig(), TopicPartition("t", 0), NOW_MS, True)
    assert caught.value.error_code is ErrorCode.INVALID_TIMESTAMP
