"""kafka-python's integration tests, out of its sdist, in a virtual environment of their own."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from suite import Outcome, Result, Run, Suite, call, record

VERSION = "3.0.12"
LIBRARIES = ["crc32c", "lz4", "python-snappy", "zstandard", "py"]
PYTEST = ["pytest==8.4.2", "pytest-timeout==2.4.0", "pytest-mock==3.15.1"]
SECONDS_MAX = 600

# The sdist leaves this module out. Nothing of it is used with a broker that runs already.
SERVICE = '''
class ExternalService:
    """A broker that somebody else starts and stops."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    """A broker of the suite's own, which it does not start here."""
'''

ADMIN = "test/integration/test_admin_integration.py::"
CONSUMER = "test/integration/test_consumer_integration.py::"
SSL = "test/integration/test_ssl_integration.py::TestSSLConnection::"
OWN_BROKER = "starts a broker of its own with TLS"

EXCLUDED = {
    f"{SSL}test_ssl_handshake": OWN_BROKER,
    f"{SSL}test_legacy_kafka_client_ssl": OWN_BROKER,
    f"{ADMIN}test_create_describe_delete_acls": "wants an authorizer; fails on Apache Kafka too",
    f"{ADMIN}test_alter_replica_log_dirs": "AlterReplicaLogDirs is not served: one log directory",
    f"{CONSUMER}test_group": "misses its own time limit on Apache Kafka too",
    f"{ADMIN}test_describe_configs_broker_resource_returns_configs": (
        "wants advertised.listeners unset, and changeable at run time as before Apache Kafka 4"
    ),
}
EXCLUDED_IN_CLUSTER = {
    f"{ADMIN}test_create_partitions": "assigns partitions to broker 0, and to no other",
    f"{ADMIN}test_delete_records": "takes one poll to bring the records of all brokers",
    f"{ADMIN}test_delete_records_with_errors": "pytest leaves it out with its namesake",
}


def fetch(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    sdist = ["--no-deps", "--no-binary", ":all:", f"kafka-python=={VERSION}"]
    call([*pip, "download", "-d", folder, *sdist])
    (archive,) = folder.glob("*.tar.gz")
    call(["tar", "-xzf", archive, "-C", folder])
    test = source_of(folder) / "test"
    (test / "__init__.py").touch()
    (test / "service.py").write_text(SERVICE)
    call([sys.executable, "-m", "venv", folder / "venv"])
    call([folder / "venv" / "bin" / "pip", "-q", "install", *LIBRARIES, *PYTEST])


def source_of(folder: Path) -> Path:
    return folder / f"kafka_python-{VERSION}"


def run(run: Run) -> Iterator[Result]:
    report = run.scratch / "report.xml"
    command: list[str | Path] = [run.source / "venv" / "bin" / "python", "-m", "pytest"]
    command += ["test/integration", "-o", "addopts=", "-o", "log_level=ERROR", "-rA"]
    command += ["-p", "no:cacheprovider", "--timeout=60", "--timeout-method=signal"]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]
    command += [f"--deselect={name}" for name in run.excluded]
    environment = {
        "KAFKA_VERSION": run.target.version,
        "KAFKA_URI": f"kafka://{run.target.bootstrap}",
        "KAFKA_ROOT": os.fspath(run.scratch),  # must be a folder, and is not looked into
        "PYTHONPATH": "",
    }
    record(command, run, source_of(run.source), environment, SECONDS_MAX)
    if report.exists():
        yield from read(report)


def read(report: Path) -> Iterator[Result]:
    """The results in a JUnit file, by pytest's node ids."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file, name = case.get("file", ""), case.get("name", "")
        module = file.removesuffix(".py").replace("/", ".")
        classes = case.get("classname", "").removeprefix(module).split(".")[1:]
        outcome = Outcome.PASSED
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = Outcome.FAILED
        elif case.find("skipped") is not None:
            outcome = Outcome.SKIPPED
        yield Result("::".join([file, *classes, name]), outcome)


SUITE = Suite(
    name="kafka-python",
    version=VERSION,
    programs=(),
    fetch=fetch,
    run=run,
    passing_min=47,
    excluded=EXCLUDED,
    excluded_in_cluster=EXCLUDED_IN_CLUSTER,
    settings={"num.partitions": "4", "node.id": "0"},  # as in the brokers that the suite starts
)
