"""Apache Kafka's own DumpLogSegments reads what the cleaner wrote.

It runs where Java is and Kafka's jars are: in the folder KAFKALITE_KAFKA_JARS, or in the cache that
the tests with Java clients fill.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.log.storage import FileStorage
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import ControlType

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jvm")]
MakeModel = Callable[..., Any]


@pytest.fixture(scope="module")
def jars() -> Path:
    if shutil.which("java") is None:
        pytest.skip("java is not in PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalite"
    given = os.environ.get("KAFKALITE_KAFKA_JARS")
    for place in [Path(given)] if given else sorted(cache.glob("kafka-[0-9]*")):
        if any(place.glob("kafka-tools-*.jar")):
            return place
    pytest.skip(f"Kafka's jars are neither in KAFKALITE_KAFKA_JARS nor in {cache}")


def dump(jars: Path, *arguments: str) -> str:
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{jars}/*"]
    command += ["org.apache.kafka.tools.DumpLogSegments", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kafka_reads_the_cleaned_files(jars: Path, tmp_path: Path, model: MakeModel) -> None:
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

    files = sorted(str(path) for path in (tmp_path / "state-0").iterdir())
    logs = [name for name in files if name.endswith(".log")]
    told = dump(jars, "--deep-iteration", "--print-data-log", "--files", ",".join(logs))
    found = {
        int(offset): (int(time), value)
        for offset, time, value in re.findall(
            r"\| offset: (\d+) CreateTime: (\d+) .*? key: \S.*?(?: payload: (.*))?$", told, re.M
        )
    }
    assert found == {r.offset: (r.timestamp, (r.value or b"").decode()) for r in wanted}
    assert "isvalid: false" not in told
    assert "deleteHorizonMs: OptionalLong[6000]" in told
    assert "endTxnMarker: ABORT" in told

    others = [n for n in files if n.endswith((".index", ".timeindex", ".txnindex", ".snapshot"))]
    assert {Path(name).suffix for name in others} == {
        ".index", ".timeindex", ".txnindex", ".snapshot",
    }  # fmt: skip
    told = dump(jars, "--files", ",".join(others))
    assert "producerId: 7" in told
    for complaint in ("ismatch", "out of order", "corrupt", "Exception", "did not find"):
        assert complaint not in told, told
