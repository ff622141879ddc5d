"""The benchmark of topologies runs, ours alone, and computes what Kafka Streams' cases do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.streams import throughput
from bench.streams.report import OURS, PEER, Report

ROOT = Path(__file__).parents[2]
RECORDS = 3_000


def run(*arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "bench.streams", "--ours", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_every_topology_reads_its_input_to_the_end() -> None:
    figures = run("--records", str(RECORDS), "--only", ",".join([*throughput.CASES, "bytes-eos"]))
    out = {str(line["case"]): line["records_out"] for line in figures}
    kept = out["bytes"]
    assert isinstance(kept, int)
    assert 0 < kept < RECORDS
    # The same filter, by whatever serde, guarantee and kind of function.
    assert out["json"] == out["json-expressions"] == out["bytes-eos"] == kept
    assert out["avro"] == out["avro-expressions"]
    assert out["count-every-update"] == RECORDS


def test_of_several_rounds_the_best_counts(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    for rate, seconds in ((2_000, 3.0), (3_000, 4.0), (1_000, 2.0)):
        report.add("json", OURS, {"records_per_second": rate, "worker_cpu_s_per_million": seconds})
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
