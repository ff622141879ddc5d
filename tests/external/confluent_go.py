"""confluent-kafka-go's tests, those of integration too; librdkafka comes with it, built."""

from __future__ import annotations

import json
from pathlib import Path

from go_tests import go_suite

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


def configure(source: Path) -> None:
    (source / "kafka" / "testconf.json").write_text(json.dumps(CONFIGURATION))


SUITE = go_suite(
    "confluent-kafka-go",
    "github.com/confluentinc/confluent-kafka-go/v2",
    "v2.11.1",
    "./kafka",
    environment=lambda target: {"KAFKA_BROKERS": target.bootstrap},
    passing_min=70,
    excluded=EXCLUDED,
    programs=("go", "cc"),
    prepare=configure,
)
