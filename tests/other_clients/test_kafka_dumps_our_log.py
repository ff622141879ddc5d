"""Apache Kafka's own DumpLogSegments reads every kind of file of a log that our broker wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode,
    encode_end_transaction_marker,
)
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.testing.clock import at

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jvm")]


def write(data: Path) -> None:
    """Several segments with every kind of batch."""
    store = LogStore(FileStorage(data))
    config = LogConfig(segment_bytes=2_500, index_interval_bytes=200)
    log = store.open(TopicPartition("orders", 0), UUID(int=7), config, at(1_000))
    for number in range(60):
        ids = {"producer_id": 7 + number % 2, "producer_epoch": 0}
        columns = Columns([b"key"] * 3, [b"value"] * 3, [1_000 + number] * 3)
        transactional = number % 2 == 0
        records = encode(
            columns, base_sequence=3 * (number // 2), transactional=transactional, **ids
        )
        log.append_as_leader(bytearray(records), number // 20, 1_000)
        if number % 10 == 4:
            kind = ControlType.ABORT if number % 20 == 4 else ControlType.COMMIT
            marker = encode_end_transaction_marker(
                EndTransactionMarker(kind, 3), producer_id=7, producer_epoch=0, timestamp_ms=2_000
            )
            log.append_as_leader(bytearray(marker), number // 20, 1_000, from_client=False)
    assert len(log.segments) > 2
    log.high_watermark = log.log_end_offset
    store.close(2_000)


def test_kafka_reads_every_kind_of_file(dump_log: Callable[..., str], tmp_path: Path) -> None:
    write(tmp_path)
    directory = tmp_path / "orders-0"
    kinds = {".log", ".index", ".timeindex", ".snapshot", ".txnindex"}
    files = sorted(path for path in directory.iterdir() if path.suffix in kinds)
    assert {path.suffix for path in files} == kinds
    found = dump_log(files, "--deep-iteration")
    offsets = [int(number) for number in re.findall(r"\| offset: (\d+) ", found)]
    assert offsets == list(range(186)), "180 records and 6 markers"
    assert found.count("endTxnMarker: ABORT") == 3
    assert found.count("coordinatorEpoch: 3") >= 6
    assert len(re.findall(r"version: \d+ producerId: 7 firstOffset: \d+ lastOffset", found)) == 3
    snapshot = [line for line in found.splitlines() if line.startswith("producerId: ")]
    assert any("producerId: 8 producerEpoch: 0" in line for line in snapshot)
