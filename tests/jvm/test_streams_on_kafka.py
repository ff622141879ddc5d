"""Our workers on Apache Kafka: topologies of all kinds, exactly once, whoever is killed.

Three of them share their topics with an application of Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from many_apps import BESIDE_JAVA, JAVA_TOPICS, TOPOLOGIES
from many_runs import Run, until

ALL = {**TOPOLOGIES, **BESIDE_JAVA}


@pytest.fixture(scope="module")
def done(kafka: str, jvm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two processes, each killed once while it works, beside Kafka Streams; then all is done."""
    folder = tmp_path_factory.mktemp("state")
    run = Run(kafka, folder / "ours", ALL)
    run.begin(JAVA_TOPICS)
    try:
        with jvm.running("Mixed", kafka, str(folder / "java")):
            run.send()
            run.start("first")
            run.start("second")
            for instance in ("first", "second"):
                before = {name: len(run.read(name)) for name in ALL}
                run.send()
                until(lambda before=before: run.went_on(before), "no output")
                run.send()
                run.kill(instance)
                run.start(instance)
            run.send()
            run.finish()
            until(lambda: java_is_done(run), "Kafka Streams is not done")
        yield run
    finally:
        for worker in run.workers.values():
            worker.kill()
            worker.wait()


def java_is_done(run: Run) -> bool:
    """Whether the last of what Kafka Streams writes has come back."""
    run.catch_up("last", BESIDE_JAVA)
    try:
        for name in BESIDE_JAVA:
            run.check(name)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", ALL)
def test_every_result_is_there_exactly_once(done: Run, name: str) -> None:
    done.check(name)
