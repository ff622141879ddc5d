"""sarama's functional tests behind Toxiproxy, as they want it, on five brokers or a single one.

Brokers tell clients the address of a proxy, so that a test which slows or breaks the proxy has hold
of every connection. Of five brokers (`--brokers 5`) each has a proxy, and a listener more, by which
brokers reach each other; the tests stop and start them by the stand-in for Docker. A single broker
stands for all five. Another broker than ours must tell the proxy's address, too, to pass these
tests: `advertised.listeners=PLAINTEXT://127.0.0.1:29091`.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from docker_stand_in import docker_stand_in, jars
from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite, call, change, kill_group, program_path

MODULE, VERSION = "github.com/IBM/sarama", "v1.61.1"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"
BROKERS = 5  # that the tests want
BROKER = "127.0.0.1:29090"  # where a single one listens
PROXY = "127.0.0.1:29091"  # what it tells, and the first of the ports that the suite's proxies have
TEST = re.compile(r"^func (Test\w+)\(", re.MULTILINE)

# Appended to the tests.
BY_ENVIRONMENT = """
func ofBroker(name string, i int) string { return strings.Split(os.Getenv(name), ",")[i-1] }

func replicas(wanted int16) int16 {
	if os.Getenv("ONE_BROKER") != "" {
		return 1
	}
	return wanted
}
"""
REPLICAS = (r"ReplicationFactor:( +)([23]),", r"ReplicationFactor:\g<1>replicas(\g<2>),")
# (file, what to replace, by what)
CHANGES = [
    (
        "functional_test.go",
        r'fmt\.Sprintf\("127\.0\.0\.1:%d", 29090\+i\)',
        'ofBroker("PROXIES", i)',
    ),
    ("functional_test.go", r"0\.0\.0\.0:%d", "127.0.0.1:%d"),
    (
        "functional_test.go",
        r'fmt\.Sprintf\("kafka-%d:%d", i, 29090\+i\)',
        'ofBroker("UPSTREAMS", i)',
    ),
    (
        "functional_test.go",
        r"UsingExisting = usingExisting",
        'UsingExisting = ofBroker("DOCKER", 1) == ""',
    ),
    ("functional_*_test.go", *REPLICAS),
    ("functional_test.go", *REPLICAS),
    # The test looks for a word of Kafka's in the broker's log. Ours logs no mistakes of producers,
    # so whatever is not acknowledged fails.
    (
        "functional_producer_test.go",
        r't\.Logf\("producer error: %v"',
        't.Errorf("producer error: %v"',
    ),
]


@contextmanager
def toxiproxy(run: Run) -> Iterator[str]:
    """Toxiproxy, in which the suite makes its proxies; the address of its API."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (run.scratch / "toxiproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [run.source / "server", "-host=127.0.0.1", f"-port={port}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for_listener(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_group(process)


def wait_for_listener(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Toxiproxy does not listen at port {port} after 10 s")


DOCKER = "stops a broker through Docker"
EXCLUDED = {
    "TestFuncAdminQuotas": "quotas are not served",
    "TestFuncAdminUpdateFeatures": "UpdateFeatures is not served",
}
EXCLUDED_ALONE = {
    "TestConsumerFetchFollowerFailover": DOCKER,
    "TestFuncAdminAlterPartitionReassignments": "wants two brokers",
    "TestFuncAdminDescribeLogDirs": "wants five brokers",
    "TestFuncAdminListConsumerGroupOffsets": DOCKER,
    "TestFuncIdempotentBufferedSequence": "reads a broker's log through Docker",
    "TestFuncTxnProduceWithBrokerFailure": DOCKER,
}


def listeners(node_id: int, inner: str, outer: str) -> str:
    return f"INNER://127.0.0.1:{inner}{node_id},OUTER://127.0.0.1:{outer}{node_id}"


def settings_of(node_id: int) -> Mapping[str, str]:
    """Of one of five brokers: as in the suite's docker-compose.yml."""
    return {
        "listeners": listeners(node_id, "2907", "2908"),
        "advertised.listeners": listeners(node_id, "2907", "2909"),
        "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "default.replication.factor": "2",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
        "min.insync.replicas": "1",
        "transaction.state.log.min.isr": "1",
    }


def fetch(folder: Path) -> None:
    go = program_path("go")
    assert go is not None
    call(["env", f"GOBIN={folder}", go, "install", TOXIPROXY])
    fetch_module(folder, MODULE, VERSION)
    for pattern, old, new in CHANGES:
        for path in (folder / "source").glob(pattern):
            change(path, old, new, may_be_absent="*" in pattern)
    with (folder / "source" / "functional_test.go").open("a") as tests:
        tests.write(BY_ENVIRONMENT)


def run(run: Run) -> Iterator[Result]:
    files = sorted((run.source / "source").glob("functional_*test.go"))
    names = [
        name for file in files for name in TEST.findall(file.read_text()) if name != "TestMain"
    ]
    # Ours dropped message formats before 2 and the requests for them, as 4.0 did.
    version = "4.0.0" if run.target.is_ours else f"{run.target.version}.0"
    with ExitStack() as stack:
        environment = {"TOXIPROXY_ADDR": stack.enter_context(toxiproxy(run))}
        environment |= {"KAFKA_VERSION": version, "DOCKER": ""}
        if run.cluster is None:
            upstream = BROKER if run.target.is_ours else run.target.bootstrap
            environment |= {"PROXIES": ",".join([PROXY] * BROKERS), "ONE_BROKER": "1"}
            environment |= {"UPSTREAMS": ",".join([upstream] * BROKERS)}
        else:
            numbers = range(1, BROKERS + 1)
            environment |= {"PROXIES": ",".join(f"127.0.0.1:2909{n}" for n in numbers)}
            environment |= {"UPSTREAMS": ",".join(f"127.0.0.1:2908{n}" for n in numbers)}
            environment |= stack.enter_context(docker_stand_in(run, version, "127.0.0.1:29071"))
            environment |= {"DOCKER": "a stand-in" if jars() else ""}
        chosen = ("-tags=functional", f"-run=^({'|'.join(names)})$")
        yield from run_tests(run, ".", environment, chosen)


SUITE = Suite(
    name="sarama",
    version=VERSION,
    programs=("go",),
    fetch=fetch,
    run=run,
    passing_min=77,
    excluded=EXCLUDED,
    excluded_alone=EXCLUDED_ALONE,
    settings={
        "advertised.listeners": f"PLAINTEXT://{PROXY}",
        "auto.create.topics.enable": "false",  # as in the brokers that the suite starts
    },
    settings_of=settings_of,
    listen=BROKER,
    recipe=3,
)
