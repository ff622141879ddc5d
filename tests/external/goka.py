"""goka's system tests: processors, views, emitters whose connections break, topics.

In a cluster, topics have several replicas, and goka's producers wait for all of them. They wait for
the leader alone otherwise, and a test then asks for the end of a topic before a follower has its
record: consumers see no record that the followers lack, so the test finds none.
"""

from __future__ import annotations

from pathlib import Path

from go_tests import go_suite
from suite import change

# Appended to the tests.
REPLICAS = """
func replicas() int {
	replicas, err := strconv.Atoi(os.Getenv("GOKA_REPLICAS"))
	if err != nil {
		panic(err)
	}
	return replicas
}
"""


def prepare(source: Path) -> None:
    environment = source / "systemtest" / "env.go"
    change(environment, r'"os"\n', r'"os"\n\t"strconv"\n')
    environment.write_text(environment.read_text() + REPLICAS)
    for path in (source / "systemtest").glob("*_test.go"):
        change(path, r"Replication = 1\b", "Replication = replicas()", may_be_absent=True)
    change(source / "config.go", r"sarama\.WaitForLocal", "sarama.WaitForAll")


SUITE = go_suite(
    "goka",
    "github.com/lovoo/goka",
    "v1.1.16",
    "./systemtest",
    environment=lambda target: {
        "GOKA_SYSTEMTEST": "y",
        "GOKA_SYSTEMTEST_BROKERS": target.all_brokers,
        "GOKA_REPLICAS": str(target.replication_factor),
    },
    passing_min=29,
    programs=("go", "java"),
    prepare=prepare,
    brokers_min=3,  # it asks for topics of two replicas
)
