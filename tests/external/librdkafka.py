"""librdkafka's own test program, built from the source in the crate rdkafka-sys.

Tests marked local need no broker and are left out, and so are those that librdkafka itself lists
as known issues. The tests of the scenario "default" run, in quick mode, two at a time. Those that
slow and break connections through a socket layer of their own (sockem) run after them, by
themselves and one at a time: they go by seconds, and one that passes its time limit ends the whole
program without a report, since its thread is sent a SIGKILL.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from suite import Outcome, Result, Run, Suite, call, change, record

CRATE, VERSION = "rdkafka-sys", "4.10.0+2.12.1"
SECONDS_MAX = 1_800
MANIFEST = f"""[package]
name = "librdkafka-source"
version = "0.0.0"
edition = "2021"

[dependencies]
{CRATE} = "={VERSION}"
"""
OUTCOMES = {"PASSED": Outcome.PASSED, "FAILED": Outcome.FAILED, "RUNNING": Outcome.FAILED}

SCRIPTS = "calls Kafka's own kafka-topics.sh or kafka-acls.sh"
EXCLUDED = {
    "0052_msg_timestamps": SCRIPTS,
    "0077_compaction": SCRIPTS,
    "0109_auto_create_topics": SCRIPTS,
    "0115_producer_auth": SCRIPTS,
    "0119_consumer_auth": SCRIPTS,
}

SOCKEM = (
    "0049_consume_conn_close",
    "0068_produce_timeout",
    "0075_retry",
    "0076_produce_retry",
    "0088_produce_metadata_timeout",
    "0094_idempotence_msg_timeout",
)

# (file, what to replace, by what): a cluster of one node without an authorizer; and a session of
# six seconds that is over when the test looks, after the six that it sleeps.
CHANGES = [
    ("test.c", r"(NewTopic_new\(topicname, partition_cnt, )replication_factor,", r"\g<1>1,"),
    ("0081-admin.c", r"\n +do_test_\w+Acls\([^;]*;", ""),
    ("0081-admin.c", r"rd_sleep\(6\)", "rd_sleep(8)"),
    ("0081-admin.c", r"\n +do_test_UserScramCredentials\([^;]*;", ""),
]


def fetch(folder: Path) -> None:
    crate = folder / "crate"
    (crate / "src").mkdir(parents=True)
    (crate / "src" / "lib.rs").touch()
    (crate / "Cargo.toml").write_text(MANIFEST)
    call(["cargo", "vendor", "--quiet", "--versioned-dirs"], cwd=crate)
    source = folder / "librdkafka"
    shutil.copytree(crate / "vendor" / f"{CRATE}-{VERSION}" / "librdkafka", source)
    shutil.rmtree(crate)
    for path in source.rglob("*"):
        path.chmod(0o755)
    for file, old, new in CHANGES:
        change(source / "tests" / file, old, new)
    call(["./configure", "--disable-gssapi", "--disable-curl"], cwd=source)
    call(["make", "-j2", "libs"], cwd=source)
    call(["make", "-j2", "build"], cwd=source / "tests")


def run(run: Run) -> Iterator[Result]:
    """Two runs of the program; a sockem test of which nothing is told has failed."""
    skipped = ",".join(map(number, run.excluded))
    for name, outcome in told(run, ["-p2", "-E"], {"TESTS_SKIP": skipped}).items():
        yield Result(name, outcome)
    sockem = [name for name in SOCKEM if name not in run.excluded]
    outcomes = told(run, ["-p1"], {"TESTS": ",".join(map(number, sockem))})
    for name in sockem:
        yield Result(name, outcomes.get(name, Outcome.FAILED))


def told(run: Run, options: list[str], chosen: dict[str, str]) -> dict[str, Outcome]:
    """What the program reports of the tests that `chosen` lets it run; nothing if it is killed."""
    tests = run.source / "librdkafka" / "tests"
    config, report = run.scratch / "test.conf", run.scratch / "report.json"
    report.unlink(missing_ok=True)
    lines = [f"bootstrap.servers={run.target.all_brokers}", "test.topic.random=true"]
    config.write_text("\n".join(lines) + "\n")
    environment = {
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": f"{run.target.version}.0",
        "TEST_REPORT": str(report),
        "TEST_LEVEL": "2",
        **chosen,
    }
    command = [tests / "test-runner", "-Q", "-L", "-K", "-D", *options]
    record(command, run, tests, environment, SECONDS_MAX)
    if not report.exists():
        return {}
    states = {name: test["state"] for name, test in json.loads(report.read_text())["tests"].items()}
    return {
        name: OUTCOMES[state]
        for name, state in states.items()
        if name != "<MAIN>" and state in OUTCOMES
    }


def number(name: str) -> str:
    """The part of a test's name by which the program chooses it."""
    return name.partition("_")[0]


SUITE = Suite(
    name="librdkafka",
    version="2.12.1",
    programs=("cargo", "cc", "c++", "make"),
    fetch=fetch,
    run=run,
    passing_min=81,
    excluded=EXCLUDED,
    settings={"num.partitions": "4", "group.initial.rebalance.delay.ms": "3000"},  # as Kafka
)
