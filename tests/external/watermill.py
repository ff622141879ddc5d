"""Watermill's tests of its Kafka publisher and subscriber: the suite that all its brokers pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite

MODULE, VERSION = "github.com/ThreeDotsLabs/watermill-kafka/v3", "v3.0.6"
SECONDS_MAX = 900


def fetch(folder: Path) -> None:
    fetch_module(folder, MODULE, VERSION)


def run(run: Run) -> Iterator[Result]:
    environment = {"WATERMILL_TEST_KAFKA_BROKERS": run.target.bootstrap}
    return run_tests(run, "./pkg/kafka", environment, SECONDS_MAX)


SUITE = Suite(
    name="watermill",
    version=VERSION,
    programs=("go",),
    fetch=fetch,
    run=run,
    passing_min=118,
    excluded={},
)
