"""What tests of logs share: how to fill one, and what is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Storage
from kafkalite.core.protocol.records import batches, decode_all
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError

MakeBatch = Callable[..., bytearray]
OpenLog = Callable[..., PartitionLog]
LARGE: Final = 1 << 30
ORDERS: Final = TopicPartition("orders", 0)


def commit(log: PartitionLog, *batches_: bytearray, now_ms: int = 1_000) -> None:
    """Appends batches; all of the log is committed then."""
    for one in batches_:
        log.append_as_leader(one, 0, now_ms)
    log.high_watermark = log.log_end_offset


def fill(log: PartitionLog, batch: MakeBatch, count: int = 1) -> None:
    """Commits `count` batches of one record each."""
    commit(log, *(batch() for _ in range(count)))


def read_all(log: PartitionLog, offset: int | None = None, bytes_max: int = LARGE) -> bytes:
    """All committed bytes from `offset` on, as a consumer fetches them."""
    parts, offset = [], log.log_start_offset if offset is None else offset
    while (found := log.read(offset, bytes_max, log.high_watermark)) is not None:
        parts.append(found.read())
        assert len(parts[-1]) == found.size_bytes
        offset = [header for _, header in batches(parts[-1])][-1].next_offset
    return b"".join(parts)


def offsets(data: bytes) -> list[int]:
    """The offsets of all records in `data`."""
    return list(decode_all(data).offsets or ())


def refusal(act: Callable[[], object]) -> tuple[str, str]:
    """The name of the code with which `act` is refused, and what the error says."""
    with pytest.raises(ApiError) as error:
        act()
    return error.value.error_code.name, str(error.value)


def patched(batch: bytearray, position: int, value: bytes) -> bytearray:
    """The batch, with other bytes at `position`."""
    batch[position : position + len(value)] = value
    return batch


def segment_names(storage: Storage) -> list[str]:
    """The base offsets by which the files of `ORDERS` are named."""
    logs = [name for name in storage.files("orders-0") if name.endswith(".log")]
    return sorted(name[:20].lstrip("0") or "0" for name in logs)
