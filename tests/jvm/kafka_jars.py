"""Jars of Apache Kafka, from Maven's repository, for tests that run its programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

KAFKA, OLD_KAFKA, LOG4J = "4.3.1", "3.9.2", "2.25.1"
ARTIFACTS = [
    f"org.apache.kafka:kafka_2.13:{KAFKA}",
    f"org.apache.kafka:kafka-tools:{KAFKA}",
    f"org.apache.kafka:kafka-streams:{KAFKA}",
    f"org.apache.logging.log4j:log4j-core:{LOG4J}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J}",
]
TEST_DRIVER = [f"org.apache.kafka:kafka-streams-test-utils:{KAFKA}"]
MIRROR_MAKER = [f"org.apache.kafka:connect-mirror:{KAFKA}", *ARTIFACTS[3:]]
OLD_TOOLS = [f"org.apache.kafka:kafka-tools:{OLD_KAFKA}", *ARTIFACTS[3:]]
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def jars_of_kafka() -> Path:
    """A folder with Apache Kafka's jars: `KAFKALITE_KAFKA_JARS`, or fetched once with Maven."""
    require_java()
    if given := os.environ.get("KAFKALITE_KAFKA_JARS"):
        assert any(Path(given).glob("kafka-tools-*.jar")), f"no Apache Kafka in {given}"
    return Path(given) if given else jars_of(f"kafka-{KAFKA}", ARTIFACTS)


def require_java() -> None:
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not in PATH")


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalite"


def jars_of(name: str, artifacts: list[str]) -> Path:
    """A folder with these artifacts and what they need, fetched once with Maven."""
    place = cache_dir() / name
    if not place.exists():
        if shutil.which("mvn") is None:
            pytest.skip(f"neither KAFKALITE_KAFKA_JARS nor {place} nor mvn is there")
        fetch(place, artifacts)
    return place


def fetch(place: Path, artifacts: list[str]) -> None:
    unfinished = place.with_name(f"{place.name}.unfinished.{os.getpid()}")
    unfinished.mkdir(parents=True)
    (unfinished / "pom.xml").write_text(pom(artifacts))
    options = ["-q", "-B", COPY, "-DincludeScope=runtime", f"-DoutputDirectory={unfinished}"]
    done = subprocess.run(
        ["mvn", *options], cwd=unfinished, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        shutil.rmtree(unfinished)
        pytest.skip(f"Maven cannot fetch Apache Kafka: {done.stdout.strip()[-500:]}")
    unfinished.rename(place)


def pom(artifacts: list[str]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in (artifact.split(":") for artifact in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>jars</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
