"""The `docker compose` that sarama's tests call, for a cluster of ours: no container, no Docker.

    docker compose stop kafka-2               that broker stops, as by SIGTERM
    docker compose start kafka-2              it starts again
    docker compose logs --since T kafka-2     what it has logged, before T as well
    docker compose exec -T kafka-1 WORDS…     a program of Apache Kafka's, or bash, on this machine

Owns   the program `docker`, which asks this process by a socket; the scripts for Kafka's programs.
Fails  with exit code 1 and the error on stderr.
"""

from __future__ import annotations

import os
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from suite import Run, cache_dir

IN_CONTAINERS = "/opt/kafka-{version}/bin"  # where the tests look for Kafka's programs
PROGRAMS = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-verifiable-consumer.sh": "org.apache.kafka.tools.VerifiableConsumer",
}
PROGRAM = """#!/bin/sh
exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m -cp '{jars}/*' {name} "$@"
"""
DOCKER = """#!{python}
import os, socket, sys
compose, verb, *words = sys.argv[1:]
assert compose == "compose", sys.argv
if verb == "exec":
    for old, new in {replacements!r}:
        words = [word.replace(old, new) for word in words]
    os.execvp(words[2], words[2:])  # after -T and the container's name
with socket.socket(socket.AF_UNIX) as host:
    host.connect({address!r})
    host.sendall(f"{{verb}} {{words[-1]}}\\n".encode())
    code, _, said = b"".join(iter(lambda: host.recv(65536), b"")).partition(b"\\n")
(sys.stdout if code == b"0" else sys.stderr).buffer.write(said)
sys.exit(int(code))
"""


def jars() -> Path | None:
    """Apache Kafka's jars, where the JVM's tests have fetched them."""
    found = sorted(cache_dir().glob("kafka-4.*/kafka-tools-*.jar"))
    return found[-1].parent if found else None


@contextmanager
def docker_stand_in(run: Run, kafka_version: str, inner: str) -> Iterator[Mapping[str, str]]:
    """The environment in which `docker` is the stand-in. `inner` is the address of broker 1."""
    bin_folder = run.scratch / "bin"
    bin_folder.mkdir()
    address = str(run.scratch / "docker.sock")
    replacements = [(IN_CONTAINERS.format(version=kafka_version), str(bin_folder))]
    replacements += [("kafka-1:9091", inner)]
    words = {"python": sys.executable, "replacements": replacements, "address": address}
    write_program(bin_folder / "docker", DOCKER.format(**words))
    for program, name in PROGRAMS.items():
        write_program(bin_folder / program, PROGRAM.format(jars=jars(), name=name))

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            verb, service = self.rfile.readline().decode().split()
            try:
                said, code = carried_out(run, verb, int(service.removeprefix("kafka-"))), 0
            except Exception as error:  # the test that asked is told, and fails
                said, code = f"{error}\n", 1
            self.wfile.write(f"{code}\n{said}".encode())

    with socketserver.ThreadingUnixStreamServer(address, Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
        finally:
            server.shutdown()


def carried_out(run: Run, verb: str, node_id: int) -> str:
    """What the command prints."""
    assert run.cluster is not None
    assert run.brokers_log is not None
    if verb == "logs":
        lines = run.brokers_log.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith(f"broker {node_id}: "))
    is_running = run.cluster.is_running(node_id)
    if verb == "stop":
        run.cluster.stop(node_id)
    elif verb == "start" and not is_running:  # Docker does nothing for one that runs
        run.cluster.start(node_id)
    elif verb != "start":
        raise ValueError(f"docker compose {verb}: not known here")
    return ""


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
