"""franz-go's client tests: production, groups and transactions of many partitions, chained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite

MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.2"
RECORDS = 100_000  # of 500,000 by default; each goes through four chains of three consumers
SECONDS_MAX = 900


def fetch(folder: Path) -> None:
    fetch_module(folder, MODULE, VERSION)


def run(run: Run) -> Iterator[Result]:
    environment = {
        "KGO_SEEDS": run.target.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    return run_tests(run, "./pkg/kgo", environment, SECONDS_MAX)


SUITE = Suite(
    name="franz-go",
    version=VERSION,
    programs=("go",),
    fetch=fetch,
    run=run,
    passing_min=440,
    excluded={},
)
