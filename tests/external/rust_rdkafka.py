"""The integration tests of rdkafka, Rust's client on librdkafka, out of its crate.

Most topics are made by asking for them: the tests want three partitions, led by broker 0.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from suite import Outcome, Result, Run, Suite, call, change, record

CRATE, VERSION = "rdkafka", "0.39.0"
SECONDS_MAX = 600
MANIFEST = f"""[package]
name = "rdkafka-source"
version = "0.0.0"
edition = "2021"

[dependencies]
{CRATE} = "={VERSION}"
"""
TESTS = ("cargo", "test", "--test", "test_*")
STARTED = re.compile(r"^ +Running tests/(\w+)\.rs")
TOLD = re.compile(r"^test (\S+) \.\.\. (ok|FAILED|ignored)$")
OUTCOMES = {"ok": Outcome.PASSED, "FAILED": Outcome.FAILED, "ignored": Outcome.SKIPPED}

EXCLUDED = {
    "test_high_producers::test_future_producer_send": (
        "wants a key in partition 1 that librdkafka puts into 0, with Apache Kafka too"
    ),
    "test_high_producers::test_future_producer_send_fail": "looks for its broker at localhost:9092",
    "test_low_producers::test_base_producer_timeout": (
        "wants a topic that its records make to take more than 100 ms; here it is there at once"
    ),
}


def fetch(folder: Path) -> None:
    wanted = folder / "wanted"
    (wanted / "src").mkdir(parents=True)
    (wanted / "src" / "lib.rs").touch()
    (wanted / "Cargo.toml").write_text(MANIFEST)
    call(["cargo", "vendor", "--quiet", "--versioned-dirs"], cwd=wanted)
    crate = folder / "crate"
    shutil.copytree(wanted / "vendor" / f"{CRATE}-{VERSION}", crate)
    shutil.rmtree(wanted)
    change(crate / "tests" / "test_metadata.rs", r"\.port\(\), 9092", ".port() > 0, true")
    call([*TESTS, "--quiet", "--no-run"], cwd=crate)


def run(run: Run) -> Iterator[Result]:
    environment = {
        "KAFKA_HOST": run.target.bootstrap,
        "KAFKA_VERSION": run.target.version,
        "RUST_LOG": "off",
        "RUST_BACKTRACE": "0",
    }
    skipped = [word for name in run.excluded for word in ("--skip", name.partition("::")[2])]
    options = ["--no-fail-fast", "--", "--test-threads=2", "--exact", *skipped]
    record([*TESTS, *options], run, run.source / "crate", environment, SECONDS_MAX)
    yield from told(run.log.read_text(errors="replace"))


def told(text: str) -> Iterator[Result]:
    """Cargo says which file runs; the same helper's test runs in each of them."""
    file = ""
    for line in text.splitlines():
        if started := STARTED.match(line):
            file = started[1]
        elif said := TOLD.match(line):
            yield Result(f"{file}::{said[1]}", OUTCOMES[said[2]])


SUITE = Suite(
    name="rust-rdkafka",
    version=VERSION,
    programs=("cargo", "cc", "c++", "make"),
    fetch=fetch,
    run=run,
    passing_min=46,
    excluded=EXCLUDED,
    settings={"broker.id": "0", "num.partitions": "3"},
)
