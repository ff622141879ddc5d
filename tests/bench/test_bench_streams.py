"""The benchmark of topologies runs, ours alone, and computes what Kafka Streams' cases do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.streams import operators, throughput
from bench.streams.rates import rate, together
from bench.streams.report import OURS, PEER, Report
from bench.streams.scaling import scaling_figures

ROOT = Path(__file__).parents[2]
RECORDS = 3_000


def run(*arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "bench.streams", "--ours", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def records_out(names: list[str]) -> dict[str, int]:
    """Of each case, over one input."""
    figures = run("--records", str(RECORDS), "--only", ",".join(names))
    return {str(line["case"]): int(str(line["records_out"])) for line in figures}


@pytest.mark.slow
@pytest.mark.deep
def test_every_topology_reads_its_input_to_the_end() -> None:
    others = [*operators.MAKERS, "flights", "flights-expressions"]
    names = [name for name in throughput.CASES if name not in others]
    out = records_out([*names, "bytes-eos"])
    kept = out["bytes"]
    assert 0 < kept < RECORDS
    # The same filter, by whatever serde, guarantee and kind of function.
    assert out["json"] == out["json-expressions"] == out["bytes-eos"] == kept
    assert out["avro"] == out["avro-expressions"]
    assert out["count-every-update"] == RECORDS


@pytest.mark.slow
@pytest.mark.deep
def test_joins_and_moving_windows_read_their_inputs_to_the_end() -> None:
    out = records_out(list(operators.MAKERS))
    assert out["stream-join"] == out["stream-join-expressions"] == RECORDS  # each order is paid
    assert out["table-join"] == out["table-join-expressions"] == RECORDS
    assert 0 < out["session-count"] < RECORDS
    assert out["sliding-mean"] > RECORDS
    # Each purchase goes to the user's task, and an answer comes back unless it was changed again.
    assert out["foreign-join"] > 2 * RECORDS


@pytest.mark.slow
@pytest.mark.deep
def test_a_restore_reads_the_changelog_or_starts_from_the_checkpoint() -> None:
    figures = run("--records", str(RECORDS), "--only", "restore,scaling-json,one-record")
    restored = {str(line["case"]): line["restored"] for line in figures if "restored" in line}
    assert restored["restore-memory"] == restored["restore-disk"]
    assert restored["restore-memory"] != 0
    assert restored["restore-checkpoint"] == 0
    assert {"scaling-json", "one-record"} <= {str(line["case"]) for line in figures}


def test_rates_of_several_workers_count_what_they_did_together() -> None:
    seen = together([[(0.0, 0), (1.0, 100), (3.0, 300)], [(0.0, 0), (2.0, 100), (4.0, 300)]])
    assert list(seen[-4:]) == [(1.0, 100), (2.0, 200), (3.0, 400), (4.0, 600)]
    # From the first look at which some were done; of a stage that counts twice, a half each.
    assert rate(seen, 600) == 500 / 3
    assert rate(seen, 300) == 250 / 3
    assert rate(seen, 600, 0.5) == 200


def test_of_several_rounds_the_best_counts(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    for per_second, seconds in ((2_000, 3.0), (3_000, 4.0), (1_000, 2.0)):
        report.add(
            "json", OURS, {"records_per_second": per_second, "worker_cpu_s_per_million": seconds}
        )
    report.add(
        "json",
        PEER,
        {
            "records_per_second": 1_000,
            "second_half_records_per_second": 1_500,
            "worker_cpu_s_per_million": 4.0,
        },
    )
    report.ratios("json")
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["ratio"] == {
        "records_per_second": 3.0,
        "worker_cpu_s_per_million": 0.5,
        "records_per_second, the peer's second half": 2.0,
    }


def test_records_that_all_come_within_one_look_have_no_speedup() -> None:
    assert scaling_figures(100.0, 150.0)["speedup"] == 1.5
    assert scaling_figures(100.0, None) == {"one": 100.0, "two": None, "speedup": None}
