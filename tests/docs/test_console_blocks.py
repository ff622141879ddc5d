"""The commands of the pages run as they stand, and print the output that the pages show."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count, islice
from pathlib import Path

import pytest
from console import SECONDS_MAX, commands, shell, write_files

from kafkalite import EmbeddedBroker
from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
EXTRAS = re.compile(r"kafkalite\[(\w+(?:,\w+)*)\]'")
INSTALLS = re.compile(r"^(pip install|python3 -m venv)")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker.bootstrap_servers


PORTS = count(20_000 + os.getpid() % 10_000)  # below those that the system gives to connections


def free_ports(number: int = 1) -> int:
    """The first of so many free ports in a row."""
    for _ in range(100):
        ports = list(islice(PORTS, number))
        with ExitStack() as held, suppress(OSError):
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports[0]
    raise AssertionError("no free ports")


def without_numbers(lines: list[str]) -> list[str]:
    return [re.sub(r"\d+", "N", line) for line in lines]


def follow(page: Path, folder: Path, places: dict[str, str], begin: int = 0) -> int:
    """Runs the commands of a page from the given one on, and returns their number."""
    todo = [(c, out) for c, out in commands(page.read_text()) if not INSTALLS.match(c)][begin:]
    with shell(folder, places) as ours:
        for command, expected in todo:
            deadline = time.monotonic() + SECONDS_MAX
            printed = ours.run(command)
            while expected and without_numbers(printed) != without_numbers(expected):
                assert time.monotonic() < deadline, f"$ {command}\n{printed}\n{ours.said()}"
                printed = ours.run(command)  # results of workers come a moment later
    return len(todo)


def produce(address: str, topic: str, values: list[str], partitions: int = 1) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(topic, partitions)])
    with Producer(address) as producer:
        for value in values:
            producer.send(topic, value.encode(), key=value[:1].encode())


def test_the_quickstart(tmp_path: Path) -> None:
    page = GUIDE / "quickstart.md"
    write_files(page.read_text(), tmp_path)
    broker, http = free_ports(), free_ports(2)
    places = {
        "9092": str(broker),
        "127.0.0.1:8080": f"127.0.0.1:{http}",
        "localhost:8080": f"localhost:{http}",
    }
    places["127.0.0.1:9092"] = f"127.0.0.1:{broker}"
    assert follow(page, tmp_path, places) == 11


def test_dead_letters(tmp_path: Path, address: str) -> None:
    page = GUIDE / "errors.md"
    write_files(page.read_text(), tmp_path)
    produce(address, "numbers", ["5", "0"])
    with shell(tmp_path, {"127.0.0.1:9092": address}) as ours:
        ours.run("kafkalite topics create quotients divide-dead")
        ours.run("kafkalite-streams run app.py -b 127.0.0.1:9092 --until-caught-up")
    assert follow(page, tmp_path, {"127.0.0.1:9092": address}) == 4


def test_the_reset_of_an_application(tmp_path: Path, address: str) -> None:
    page = GUIDE / "changing.md"
    write_files(page.read_text(), tmp_path)
    produce(address, "orders", [f'{{"n": {n}}}' for n in range(40)], partitions=2)
    with shell(tmp_path, {"127.0.0.1:9092": address}) as ours:
        ours.run("kafkalite-streams run app.py -b 127.0.0.1:9092 --until-caught-up")
    assert follow(page, tmp_path, {"kafka-1:9092": address}) == 1


def test_queries_over_http(tmp_path: Path, address: str) -> None:
    page = GUIDE / "queries.md"
    write_files(page.read_text(), tmp_path)
    produce(address, "words-in", ["apple", "bean", "apple"])
    port = free_ports()
    places = {
        "127.0.0.1:9092": address,
        "127.0.0.1:8080": f"127.0.0.1:{port}",
        "localhost:8080": f"localhost:{port}",
    }
    assert follow(page, tmp_path, places) >= 4


def test_running_by_command(tmp_path: Path, address: str) -> None:
    page = GUIDE / "running.md"
    write_files(page.read_text(), tmp_path)
    produce(address, "lines", ["To be", "or not to be"])
    assert follow(page, tmp_path, {"kafka-1:9092": address, "127.0.0.1:9092": address}) == 3


def test_the_broker_of_the_readme(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    first = [command for command, _ in commands(page.read_text())].index(
        "kafkalite server start --data-dir data --listen 127.0.0.1:9092 --registry 127.0.0.1:8081 &"
    )
    broker = f"127.0.0.1:{free_ports()}"
    places = {"127.0.0.1:9092": broker, "127.0.0.1:8081": "127.0.0.1:0"}
    assert follow(page, tmp_path, places, begin=first) == 6


def test_the_commands_of_the_service_and_the_container(tmp_path: Path, address: str) -> None:
    text = (GUIDE / "deploying.md").read_text()
    write_files(text, tmp_path)
    write_files((GUIDE / "quickstart.md").read_text(), tmp_path)
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(tmp_path / "shop.service")
    docker = dict(re.findall(r"^([A-Z]+) (.*)$", (tmp_path / "Dockerfile").read_text(), re.M))
    container = shlex.join(json.loads(docker["ENTRYPOINT"]) + json.loads(docker["CMD"]))
    check = shlex.join(json.loads(docker["HEALTHCHECK"].partition(" CMD ")[2]))
    with Admin(address) as admin:
        admin.create_topics([NewTopic("orders", 2)])
    for command in (unit["Service"]["ExecStart"], container):
        http = f"127.0.0.1:{free_ports(2)}"
        places = {"/opt/shop/venv/bin/": "", "/var/lib/shop": str(tmp_path / "state")}
        places |= dict.fromkeys(["kafka-1:9092,kafka-2:9092", "kafka:9092"], address)
        places |= dict.fromkeys(["0.0.0.0:8080", "127.0.0.1:8080"], http)
        with shell(tmp_path, places) as ours:
            ours.run(command)
            ours.run(f"for turn in {{1..200}}; do {check} && exit; sleep 0.1; done; exit 1")


def test_a_cluster_on_a_laptop_and_on_three_machines(
    tmp_path: Path, zookeeper_address: str
) -> None:
    page = GUIDE / "cluster.md"
    every = list(commands(page.read_text()))
    servers = [f"127.0.0.1:{free_ports(3)}", *(f"127.0.0.1:{free_ports()}" for _ in range(4))]
    places = {f"kafka-{n}:9092": at for n, at in enumerate(servers) if n}
    places["127.0.0.1:9092"] = servers[0]
    write_files(page.read_text(), tmp_path)
    config = tmp_path / "server.properties"
    text = config.read_text().replace("zk-1:2181,zk-2:2181,zk-3:2181", zookeeper_address)
    config.write_text(text)
    assert follow(page, tmp_path, places) == len(every) - 1 == 14


def test_the_extras_that_pages_install_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wanted = {word for page in pages for word in EXTRAS.findall(page.read_text())}
    assert wanted
    assert {name for names in wanted for name in names.split(",")} <= set(
        project["optional-dependencies"]
    )


def test_the_registry(tmp_path: Path) -> None:
    broker = f"127.0.0.1:{free_ports()}"
    places = {
        "127.0.0.1:9092": broker,
        "127.0.0.1:8081": "127.0.0.1:0",
        "127.0.0.1:8082": "127.0.0.1:0",
    }
    assert follow(ROOT / "docs" / "registry.md", tmp_path, places) == 2
