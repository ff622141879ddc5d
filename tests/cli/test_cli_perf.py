"""`kafkalite perf` measures what it says it does."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.cli.perf import _percentiles

Run = Callable[..., Any]


def test_what_is_sent_is_read(kafkalite: Run, make_topic: Run) -> None:
    topic = make_topic(2)
    sent = kafkalite(
        "perf", "produce", topic, "-n", "25000", "--record-size", "50", "--key-size", "4",
        "-z", "lz4", "--acks", "1", "--batch-size", "16Ki", "--json",
    ).json  # fmt: skip
    assert (sent["records"], sent["bytes"]) == (25_000, 25_000 * 54)
    assert sent["records_per_second"] > 0
    assert sent["latency_samples"] == 3  # one for each piece of 10,000
    latency = sent["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    read = kafkalite("perf", "consume", topic, "--json").json
    assert (read["records"], read["bytes"]) == (sent["records"], sent["bytes"])
    text = kafkalite("perf", "consume", topic, "--records", "10", "--no-check-crcs").lines
    assert text[0].endswith("MB/s")
    assert text[1].startswith("latency (")


def test_a_rate_is_kept(kafkalite: Run, make_topic: Run) -> None:
    told = kafkalite("perf", "produce", make_topic(1), "-n", "100", "--rate", "200", "--json").json
    assert told["records"] == 100
    assert told["seconds"] > 0.4


def test_an_empty_topic_and_one_that_is_not_there(
    kafkalite: Run, refused: Run, make_topic: Run
) -> None:
    told = kafkalite("perf", "consume", make_topic(1), "--json").json
    assert (told["records"], told["latency_ms"]["p50"]) == (0, None)
    for command in ("produce", "consume"):
        assert "topic 'no-such-topic' does not exist" in refused("perf", command, "no-such-topic")


@pytest.mark.slow
def test_ctrl_c_tells_what_was_measured(
    kafkalite: Run, start_command: Run, make_topic: Run
) -> None:
    topic = make_topic(1)
    running = start_command("perf", "produce", topic, "--rate", "1000", "-n", "1000000")
    while not kafkalite("topics", "describe", topic, "--json").json[0]["partitions"][0]["end"]:
        pass
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, b"")
    assert b"records/s" in out


def test_percentiles_go_by_nearest_rank() -> None:
    told = _percentiles([float(n) for n in range(1, 101)])
    assert (told["p50"], told["p95"], told["p99"], told["max"]) == (50, 95, 99, 100)
    assert _percentiles([7.0])["p99.9"] == 7.0
