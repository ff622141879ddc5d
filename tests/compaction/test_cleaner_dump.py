"""Apache Kafka's own DumpLogSegments reads what the cleaner wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.log.storage import FileStorage
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import ControlType

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jvm")]
MakeModel = Callable[..., Any]


def test_kafka_reads_the_cleaned_files(
    dump_log: Callable[..., str], tmp_path: Path, model: MakeModel
) -> None:
    storage = FileStorage(tmp_path)
    log = model(storage=storage, settings={"delete_retention_ms": 5_000, "segment_bytes": 30_000})
    codecs = list(Compression)
    for i in range(300):
        rows = [(b"%d" % (i * j % 40), b"value %d" % i) for j in range(1, 8)]
        log.append(rows, compression=codecs[i % 5], headers=(("h", b"1"),) if i % 3 else ())
        if i % 50 == 20:
            log.append([(b"gone %d" % i, None), (b"kept", b"%d" % i)], compression=codecs[i % 5])
        if i % 100 == 30:
            log.append([(b"1", b"lie")], producer_id=7, transactional=True)
            log.end(7, ControlType.ABORT)
            log.append([(b"1", b"true")], producer_id=8, transactional=True)
            log.end(8, ControlType.COMMIT)
            log.roll()
            log.clean()
    log.roll()
    log.clean()
    log.append([(b"last", b"1")])
    log.log.flush()
    wanted = log.records()
    log.log.close()

    files = sorted((tmp_path / "state-0").iterdir())
    logs = [path for path in files if path.suffix == ".log"]
    told = dump_log(logs, "--deep-iteration", "--print-data-log")
    found = {
        int(offset): (int(time), value)
        for offset, time, value in re.findall(
            r"\| offset: (\d+) CreateTime: (\d+) .*? key: \S.*?(?: payload: (.*))?$", told, re.M
        )
    }
    assert found == {r.offset: (r.timestamp, (r.value or b"").decode()) for r in wanted}
    assert "deleteHorizonMs: OptionalLong[6000]" in told
    assert "endTxnMarker: ABORT" in told

    kinds = {".index", ".timeindex", ".txnindex", ".snapshot"}
    others = [path for path in files if path.suffix in kinds]
    assert {path.suffix for path in others} == kinds
    assert "producerId: 7" in dump_log(others)
