"""Changes of a database: the Delta table equals the service's own, load after load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kafkalite.embedded import EmbeddedBroker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_the_delta_table_follows_the_table(broker: EmbeddedBroker, tmp_path: Path) -> None:
    bootstrap = broker.bootstrap_servers

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    load = ["-m", "kafkalite.cli.spark", "load", "customers", "-b", bootstrap, "--engine", "local"]
    load += ["--key", "customers=string", "--value", "customers=json"]
    new: tuple[str, ...] = ("--format", "delta", "--upsert")
    for _ in range(2):
        run(str(EXAMPLES / "cdc" / "shop.py"), "-b", bootstrap, "--changes", "800")
        assert "800 changes" in run(*load, *new)
        assert "the same in both" in run(str(EXAMPLES / "cdc" / "compare.py"))
        new = ()
    rows = DeltaTable(str(tmp_path / "warehouse" / "customers")).to_pyarrow_table()
    assert len(set(rows["key"].to_pylist())) == rows.num_rows > 100
