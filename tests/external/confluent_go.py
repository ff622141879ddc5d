"""confluent-kafka-go's tests, those of integration too; librdkafka comes with it, built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite

MODULE, VERSION = "github.com/confluentinc/confluent-kafka-go/v2", "v2.11.1"
SECONDS_MAX = 900
CONFIGURATION = {
    "Brokers": "$KAFKA_BROKERS",  # read from the environment
    "TopicName": "test",
    "GroupID": "testgroup",
    "Config": ["api.version.request=true"],
}
EXCLUDED = {
    "TestIntegration/TestAdminACLs": "ACLs are not served",
    "TestIntegration/TestAdminClient_UserScramCredentials": "SCRAM is not served",
    "TestTransactionalProducer": "asks for a flush that waits for nothing, and wants it complete",
}


def fetch(folder: Path) -> None:
    fetch_module(folder, MODULE, VERSION)
    path = folder / "source" / "kafka" / "testconf.json"
    path.write_text(json.dumps(CONFIGURATION))


def run(run: Run) -> Iterator[Result]:
    environment = {"KAFKA_BROKERS": run.target.bootstrap}
    return run_tests(run, "./kafka", environment, SECONDS_MAX)


SUITE = Suite(
    name="confluent-kafka-go",
    version=VERSION,
    programs=("go", "cc"),
    fetch=fetch,
    run=run,
    passing_min=70,
    excluded=EXCLUDED,
)
