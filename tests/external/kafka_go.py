"""segmentio/kafka-go's tests, which want a broker at localhost:9092: a copy is told the real port.

About half of them need no broker.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite

MODULE, VERSION = "github.com/segmentio/kafka-go", "v0.4.51"

CONN, GROUP = "TestConn/", "TestReaderConsumerGroup/"
ACLS = "ACLs, quotas and SCRAM credentials are not served"
PORT = "wants the broker at localhost:9092 itself"
SASL = "wants a broker with SASL at localhost:9093"
AT_ONCE = "its look at the deleted topic makes it anew, and ours answers with the new one at once"
NULL = "the test itself follows a null pointer, whatever the broker"
EXCLUDED = {
    "TestAlterUserScramCredentials": ACLS,
    "TestClientAlterClientQuotas": ACLS,
    "TestClientCreateACLs": ACLS,
    "TestClientDeleteACLs": ACLS,
    "TestClientDescribeACLs": ACLS,
    "TestDescribeUserScramCredentials": ACLS,
    "TestClientFindCoordinator": PORT,
    f"{CONN}test_retrieve_controller": PORT,
    f"{CONN}the_connection_advertises_the_broker_that_it_is_connected_to": PORT,
    "TestDialer": PORT,
    "TestDialerTLS": PORT,
    "TestDialerResolver": PORT,
    "TestUnsupportedSASLMechanism": SASL,
    "TestWriter/writing_a_message_with_SASL_Plain_authentication": SASL,
    f"{CONN}test_delete_topics": AT_ONCE,
    f"{CONN}test_delete_topics_with_an_invalid_topic": AT_ONCE,
    f"{GROUP}consumer_group_commits_on_close": NULL,
    f"{GROUP}consumer_group_rebalance": NULL,
    f"{GROUP}verify_offset_committed": NULL,
    f"{GROUP}verify_offset_committed_when_using_interval_committer": NULL,
}


def fetch(folder: Path) -> None:
    fetch_module(folder, MODULE, VERSION)


def run(run: Run) -> Iterator[Result]:
    source = run.scratch / "source"
    shutil.copytree(run.source / "source", source)
    for path in set(source.glob("*_test.go")) - {source / "address_test.go"}:
        text = path.read_text()
        for address in ("localhost:9092", "127.0.0.1:9092"):
            text = text.replace(address, run.target.bootstrap)
        text = text.replace('TCP("localhost")', f'TCP("{run.target.bootstrap}")')
        path.write_text(text)
    environment = {"KAFKA_VERSION": f"{run.target.version}.0"}
    return run_tests(run, ".", environment, ("-mod=mod",), source)


SUITE = Suite(
    name="kafka-go",
    version=VERSION,
    programs=("go",),
    fetch=fetch,
    run=run,
    passing_min=480,
    excluded=EXCLUDED,
)
