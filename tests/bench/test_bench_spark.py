"""What `bench.spark` says where the official connector is missing, and its table."""

from __future__ import annotations

from pathlib import Path

from bench.spark import FLIGHTS, OURS, PEER, RECORDS, Bench, cases, peer_of, table
from bench.spark_driver import cpu_between


def test_a_missing_connector_is_named(tmp_path: Path) -> None:
    assert peer_of(None, "", tmp_path) == (
        None,
        "without --lab there is no official connector: ours alone",
    )
    peer, why = peer_of(tmp_path, "", tmp_path)
    assert peer is None
    assert why.startswith(f"{tmp_path}/venv-spark/bin/python does not exist; `setup.sh spark`")
    python, jars = tmp_path / "venv-spark" / "bin" / "python", tmp_path / "spark-jars"
    for folder in (python.parent, jars):
        folder.mkdir(parents=True)
    python.touch()
    for name in ("kafka-clients-3.9.0", "commons-pool2-2.12.0", "spark-sql-kafka-0-10_2.13-4.0.0"):
        (jars / f"{name}.jar").touch()
    peer, why = peer_of(tmp_path, "", tmp_path)
    assert peer is None
    assert why.startswith(f"{jars} has no spark-token-provider-kafka*.jar; ")


def test_the_table_has_ratios_beside_the_goals() -> None:
    read, *others = cases(RECORDS | {FLIGHTS: 336_776}, 1_000)
    flights = others[-1]
    bench = Bench("", 0, {}, (), 1, 0.0)
    bench.best[read.name] = {
        OURS: {"rows_per_second": 1_500_000.0, "cpu_s_per_million": 1.0},
        PEER: {"rows_per_second": 750_000.0, "cpu_s_per_million": 2.0},
    }
    bench.best[flights.name] = {OURS: {"s": 2.5, "again_s": 0.1, "files": 4.0}}
    lines = list(table(bench, [read, flights]))
    assert lines[2] == (
        "| 100 B batch -> noop | 1,500,000 | 750,000 | 2.00 | ≥ 1.5 | 1.00 | 2.00 | 0.50 | ≤ 0.7 |"
    )
    assert lines[4:] == [
        "flights, load: s 2.50 (goal ≤ 3)",
        "flights, load: again_s 0.10 (goal ≤ 2)",
        "flights, load: files 4.00 (goal ≤ 24)",
    ]


def test_processes_that_ended_take_nothing_from_the_others() -> None:
    assert cpu_between({1: 10.0, 2: 5.0}, {1: 12.0, 3: 0.5}) == 2.5
