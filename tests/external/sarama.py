"""sarama's functional tests, one broker in the place of five, behind Toxiproxy as they want it.

The broker tells clients the address of the proxy, so that a test which slows or breaks the proxy
has hold of every connection. Another broker must do so too to pass these tests: with
`advertised.listeners=PLAINTEXT://127.0.0.1:29091`.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite, call, change, kill_group, program_path

MODULE, VERSION = "github.com/IBM/sarama", "v1.61.1"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"
BROKER = "127.0.0.1:29090"  # where ours listens
PROXY = "127.0.0.1:29091"  # what it tells, and the first of the ports that the suite's proxies have
TEST = re.compile(r"^func (Test\w+)\(", re.MULTILINE)

# (file, what to replace, by what)
CHANGES = [
    ("functional_test.go", r'fmt\.Sprintf\("127\.0\.0\.1:%d", 29090\+i\)', f'"{PROXY}"'),
    ("functional_test.go", r"0\.0\.0\.0:%d", "127.0.0.1:%d"),
    (
        "functional_test.go",
        r'fmt\.Sprintf\("kafka-%d:%d", i, 29090\+i\)',
        'os.Getenv("ONE_BROKER")',
    ),
    ("functional_*_test.go", r"ReplicationFactor:( +)[23],", r"ReplicationFactor:\g<1>1,"),
    ("functional_test.go", r"ReplicationFactor:( +)[23],", r"ReplicationFactor:\g<1>1,"),
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
DOCKER_LOG = "reads a broker's log through Docker"
FIVE = "wants five brokers"
EXCLUDED = {
    "TestConsumerFetchFollowerFailover": FIVE,
    "TestFuncAdminAlterPartitionReassignments": FIVE,
    "TestFuncAdminDescribeLogDirs": FIVE,
    "TestFuncAdminListConsumerGroupOffsets": DOCKER,
    "TestFuncAdminQuotas": "quotas are not served",
    "TestFuncAdminUpdateFeatures": "UpdateFeatures is not served",
    "TestFuncIdempotentBufferedSequence": DOCKER_LOG,
    "TestFuncTxnProduceWithBrokerFailure": DOCKER,
}


def fetch(folder: Path) -> None:
    go = program_path("go")
    assert go is not None
    call(["env", f"GOBIN={folder}", go, "install", TOXIPROXY])
    fetch_module(folder, MODULE, VERSION)
    for pattern, old, new in CHANGES:
        for path in (folder / "source").glob(pattern):
            change(path, old, new, may_be_absent="*" in pattern)


def run(run: Run) -> Iterator[Result]:
    files = sorted((run.source / "source").glob("functional_*test.go"))
    names = [
        name for file in files for name in TEST.findall(file.read_text()) if name != "TestMain"
    ]
    with toxiproxy(run) as address:
        environment = {
            "ONE_BROKER": BROKER if run.target.is_ours else run.target.bootstrap,
            "TOXIPROXY_ADDR": address,
            # Ours dropped message formats before 2 and the requests for them, as 4.0 did.
            "KAFKA_VERSION": "4.0.0" if run.target.is_ours else f"{run.target.version}.0",
        }
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
    settings={
        "advertised.listeners": f"PLAINTEXT://{PROXY}",
        "auto.create.topics.enable": "false",  # as in the brokers that the suite starts
    },
    listen=BROKER,
    recipe=2,
)
