"""Flights into three kinds of table, twice, with a new schema in between: all readers agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafkalite.embedded import EmbeddedBroker

PROGRAM = Path(__file__).parents[2] / "examples" / "flights" / "warehouse.py"
SECONDS_MAX = 300  # six commands, of which each starts an interpreter and imports a library


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 50)
def test_every_reader_sees_the_same_rows_in_every_table(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    command = [sys.executable, PROGRAM, "--limit", "1000", "--warehouse", tmp_path]
    done = subprocess.run(
        [*command, "-b", broker.bootstrap_servers],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    out = done.stdout
    assert done.returncode == 0, out + done.stderr
    assert out.count("500 new rows in ") == 6
    assert out.count("column dep_delay is now departure_delay") == 3
    assert out.count("column distance is now double, and was int32") == 3
    for kind in ("parquet", "delta", "iceberg"):
        for reader in ("pyarrow", "pandas", "DuckDB", "polars"):
            assert f"{kind:8} {reader:8} 1,000 rows" in out
    assert "distance_km in 500" in out
