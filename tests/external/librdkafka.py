"""librdkafka's own test program, built from the source in the crate rdkafka-sys.

Tests marked local need no broker and are left out, and so are those that librdkafka itself lists
as known issues, and those that break connections through a socket layer of their own (sockem): on a
busy machine the program has ended without a report in one of them. The tests of the scenario
"default" run, in quick mode, two at a time.
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
    tests = run.source / "librdkafka" / "tests"
    config, report = run.scratch / "test.conf", run.scratch / "report.json"
    lines = [f"bootstrap.servers={run.target.bootstrap}", "test.topic.random=true"]
    config.write_text("\n".join(lines) + "\n")
    environment = {
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": f"{run.target.version}.0",
        "TEST_REPORT": str(report),
        "TEST_LEVEL": "2",
        "TESTS_SKIP": ",".join(name.partition("_")[0] for name in run.excluded),
    }
    options = ["-p2", "-Q", "-L", "-K", "-D", "-E"]
    record([tests / "test-runner", *options], run, tests, environment, SECONDS_MAX)
    if report.exists():
        for name, told in json.loads(report.read_text())["tests"].items():
            if name != "<MAIN>" and told["state"] in OUTCOMES:
                yield Result(name, OUTCOMES[told["state"]])


SUITE = Suite(
    name="librdkafka",
    version="2.12.1",
    programs=("cargo", "cc", "c++", "make"),
    fetch=fetch,
    run=run,
    passing_min=75,
    excluded=EXCLUDED,
    settings={"num.partitions": "4", "group.initial.rebalance.delay.ms": "3000"},  # as Kafka
)
