"""sarama's functional tests, with one broker in the place of five and no proxy between.

They want Toxiproxy in front of the brokers and read its HTTP API. A server here says that the
proxies are there; the tests that make one fail or slow get an error from it and are excluded.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from go_tests import fetch_module, run_tests
from suite import Result, Run, Suite, change

MODULE, VERSION = "github.com/IBM/sarama", "v1.61.1"
SECONDS_MAX = 900
TEST = re.compile(r"^func (Test\w+)\(", re.MULTILINE)

# (file, what to replace, by what)
CHANGES = [
    (
        "functional_test.go",
        r'fmt\.Sprintf\("127\.0\.0\.1:%d", 29090\+i\)',
        'os.Getenv("ONE_BROKER")',
    ),
    ("functional_*_test.go", r"ReplicationFactor:( +)[23],", r"ReplicationFactor:\g<1>1,"),
    ("functional_test.go", r"ReplicationFactor:( +)[23],", r"ReplicationFactor:\g<1>1,"),
]


class NoToxiproxy(BaseHTTPRequestHandler):
    """As much of Toxiproxy's API as a test without toxics asks for."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self._answer(200, {"name": name, "listen": "", "upstream": "", "enabled": True})

    def do_POST(self) -> None:
        if self.path == "/reset":
            self._answer(204, None)
        else:
            self._answer(501, {"error": "there is no proxy"})

    def _answer(self, status: int, body: object) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def no_toxiproxy() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NoToxiproxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


TOXICS = "slows or breaks a connection through Toxiproxy"
DOCKER = "stops a broker through Docker"
FIVE = "wants five brokers"
EXCLUDED = {
    "TestConsumerFetchFollowerFailover": FIVE,
    "TestFuncAdminAlterPartitionReassignments": FIVE,
    "TestFuncAdminDescribeLogDirs": FIVE,
    "TestFuncAdminListConsumerGroupOffsets": DOCKER,
    "TestFuncAdminNetworkErrorClosesControllerConnection": TOXICS,
    "TestFuncAdminQuotas": "quotas are not served",
    "TestFuncAdminUpdateFeatures": "UpdateFeatures is not served",
    "TestFuncConnectionFailure": TOXICS,
    "TestFuncIdempotentBufferedSequence": TOXICS,
    "TestFuncProducing": TOXICS,
    "TestFuncProducingFlushing": TOXICS,
    "TestFuncProducingGzip": TOXICS,
    "TestFuncProducingIdempotentWithBrokerFailure": TOXICS,
    "TestFuncProducingNoResponse": TOXICS,
    "TestFuncProducingSnappy": TOXICS,
    "TestFuncProducingZstd": TOXICS,
    "TestFuncTxnProduceWithBrokerFailure": DOCKER,
}


def fetch(folder: Path) -> None:
    fetch_module(folder, MODULE, VERSION)
    for pattern, old, new in CHANGES:
        for path in (folder / "source").glob(pattern):
            change(path, old, new, may_be_absent="*" in pattern)


def run(run: Run) -> Iterator[Result]:
    files = sorted((run.source / "source").glob("functional_*test.go"))
    names = [
        name for file in files for name in TEST.findall(file.read_text()) if name != "TestMain"
    ]
    with no_toxiproxy() as toxiproxy:
        environment = {
            "ONE_BROKER": run.target.bootstrap,
            "TOXIPROXY_ADDR": toxiproxy,
            # Ours dropped message formats before 2 and the requests for them, as 4.0 did.
            "KAFKA_VERSION": "4.0.0" if run.target.is_ours else f"{run.target.version}.0",
        }
        chosen = ("-tags=functional", f"-run=^({'|'.join(names)})$")
        yield from run_tests(run, ".", environment, SECONDS_MAX, chosen)


SUITE = Suite(
    name="sarama",
    version=VERSION,
    programs=("go",),
    fetch=fetch,
    run=run,
    passing_min=57,
    excluded=EXCLUDED,
    settings={"auto.create.topics.enable": "false"},  # as in the brokers that the suite starts
)
