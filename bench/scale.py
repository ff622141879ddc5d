"""Many partitions, much data: how long it takes to make them, to stop, and to come back.

    python -m bench.scale                        ours alone
    python -m bench.scale --kit DIR --lab DIR    Apache Kafka's broker too, and ratios
    python -m bench.scale --cases partitions --partitions 1000,10000

    partitions   topics of 100 partitions each are made, one batch is written to every partition,
                 the broker is stopped, started, written to again, killed with kill -9 and started
    crash        --gb GB are written in batches of 128 KB to 6 partitions; kill -9; start

"first" is the time from the command to the first record that is acknowledged. Every start must find
every record that was acknowledged; a run that does not find them fails. Kit and lab are those of
bench/broker.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.broker import Client, Side, cpu_s, kafka_side, our_side, rss_mb
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

PER_TOPIC: Final = 100
LATEST: Final = -1
SECONDS_MAX: Final = 300
POLL_S: Final = 0.005
FIGURES: Final = {  # figure -> the ratio to reach
    "create_s": 0.5, "created_mb": 0.5, "write_s": None, "stop_s": 0.5, "start_first_s": 0.5,
    "started_mb": 0.5, "kill_first_s": 0.5, "load_s": None, "crash_first_s": 0.125,
    "crash_cpu_s": None,
}  # fmt: skip


class Peer:
    """One connection that asks one thing at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = ClientConnection("bench")

    def ask(self, request: Any, version: int) -> Any:
        """The answer to one request; EOFError where the broker hangs up."""
        for part in self._frames.send(request, version)[1]:
            self._socket.sendall(part)  # type: ignore[arg-type]
        while (event := self._frames.next_event()) is None:
            data = self._socket.recv(1 << 20)
            if not data:
                raise EOFError("the broker hung up")
            self._frames.receive_data(data)
        return event.message

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()


def produce(topic: str, partitions: Iterable[int], batch: bytes) -> ProduceRequest:
    """The batch to each of the partitions, for all replicas to have."""
    data = tuple(PartitionProduceData(index, batch) for index in partitions)
    return ProduceRequest(None, -1, 60_000, (TopicProduceData(topic, data),))


def first(port: int, topic: str) -> None:
    """Returns when a record is acknowledged."""
    batch, began, why = encode(Columns([None], [b"first"], [1])), time.monotonic(), "nothing"
    while time.monotonic() < began + SECONDS_MAX:
        try:
            peer = Peer(port)
            answer = peer.ask(produce(topic, (0,), batch), 9)
            peer.close()
        except (OSError, EOFError) as error:
            why = str(error)
        else:
            code = answer.responses[0].partition_responses[0].error_code
            if code is ErrorCode.NONE:
                return
            why = code.name
        time.sleep(POLL_S)
    raise SystemExit(f"port {port}: no record acknowledged in {SECONDS_MAX} s: {why}")


def create(port: int, names: list[str], partitions: int) -> None:
    """Makes topics, and returns when every partition has a leader."""
    peer, began = Peer(port), time.monotonic()
    for name in names:
        answer = peer.ask(CreateTopicsRequest((CreatableTopic(name, partitions, 1, (), ()),)), 5)
        assert answer.topics[0].error_code is ErrorCode.NONE, answer
    wanted = MetadataRequest(tuple(MetadataRequestTopic(name=name) for name in names))
    while True:
        topics = peer.ask(wanted, 7).topics
        led = sum(p.leader_id >= 0 and not p.error_code for t in topics for p in t.partitions)
        if led == len(names) * partitions:
            break
        assert time.monotonic() < began + SECONDS_MAX, f"{led} partitions are led"
        time.sleep(POLL_S)
    peer.close()


def ends(port: int, names: list[str], partitions: int) -> int:
    """How many records all partitions have; waits until all are led."""
    peer, began = Peer(port), time.monotonic()
    total = 0
    for name in names:
        wanted = tuple(ListOffsetsPartition(index, timestamp=LATEST) for index in range(partitions))
        while True:
            request = ListOffsetsRequest(-1, topics=(ListOffsetsTopic(name, wanted),))
            found = peer.ask(request, 5).topics[0].partitions
            if all(partition.error_code is ErrorCode.NONE for partition in found):
                break
            assert time.monotonic() < began + SECONDS_MAX, found
            time.sleep(POLL_S)
        total += sum(partition.offset for partition in found)
    peer.close()
    return total


def start_and_first(side: Side, topic: str) -> float:
    """Starts the broker; seconds until the first acknowledged record."""
    began = time.monotonic()
    subprocess.run(shlex.split(side.start), check=True, stdout=subprocess.DEVNULL)
    first(side.port, topic)
    return time.monotonic() - began


def pid_of(side: Side) -> int:
    """The broker's process."""
    return int((side.directory / "pid").read_text())


def timed(command: str) -> float:
    """Seconds that a command takes."""
    began = time.monotonic()
    subprocess.run(shlex.split(command), check=True)
    return time.monotonic() - began


# ---- cases -------------------------------------------------------------------------------------


def partitions(side: Side, count: int) -> dict[str, float]:
    """Makes, fills, stops, starts, kills and starts `count` partitions."""
    assert not count % PER_TOPIC, f"{count} is no multiple of {PER_TOPIC}"
    names = [f"many-{number}" for number in range(count // PER_TOPIC)]
    batch = encode(Columns([None] * 10, [os.urandom(100)] * 10, [1] * 10))
    side.up()
    first_topic, port = names[0], side.port
    figures = {"base_mb": rss_mb(pid_of(side))}
    began = time.monotonic()
    create(port, names, PER_TOPIC)
    figures["create_s"] = time.monotonic() - began
    figures["created_mb"] = rss_mb(pid_of(side))
    began = time.monotonic()
    write(port, names, batch)
    figures["write_s"] = time.monotonic() - began
    figures["stop_s"] = timed(side.stop)
    figures["start_first_s"] = start_and_first(side, first_topic)
    check(ends(port, names, PER_TOPIC), 10 * count + 1)
    figures["started_mb"] = rss_mb(pid_of(side))
    write(port, names, batch)
    subprocess.run(shlex.split(side.kill), check=True)
    figures["kill_first_s"] = start_and_first(side, first_topic)
    check(ends(port, names, PER_TOPIC), 20 * count + 2)
    figures["kill_cpu_s"] = cpu_s(pid_of(side))
    return figures


def write(port: int, names: list[str], batch: bytes, partitions: int = PER_TOPIC) -> None:
    """The batch to every partition of the topics, again where a new leader is not ready yet."""
    peer, began = Peer(port), time.monotonic()
    for name in names:
        left = list(range(partitions))
        while left:
            answers = peer.ask(produce(name, left, batch), 9).responses[0].partition_responses
            left = [answer.index for answer in answers if answer.error_code is not ErrorCode.NONE]
            assert time.monotonic() < began + SECONDS_MAX, answers
    peer.close()


def crash(side: Side, gigabytes: float) -> dict[str, float]:
    """Writes, kills, starts."""
    side.up()
    port, name = side.port, "crash"
    create(port, [name], 6)
    records = 128
    batch = encode(Columns([None] * records, [os.urandom(1_000)] * records, [1] * records))
    count = int(gigabytes * 1e9) // len(batch)
    write(port, [name], batch, 6)
    client = Client(port)
    frames = [client.frame(produce(name, (index,), batch), 9) for index in range(6)]
    began = time.monotonic()
    client.ask_all(frames[number % 6] for number in range(count))
    figures = {"load_s": time.monotonic() - began}
    subprocess.run(shlex.split(side.kill), check=True)
    figures["crash_first_s"] = start_and_first(side, name)
    figures["crash_cpu_s"] = cpu_s(pid_of(side))
    check(ends(port, [name], 6), (6 + count) * records + 1)
    return figures


def check(found: int, expected: int) -> None:
    """Nothing that was acknowledged may be missing, nothing be there twice."""
    if found != expected:
        raise SystemExit(f"{found} records are there, {expected} were acknowledged")


# ---- both --------------------------------------------------------------------------------------


def run(case: str, side: Side, options: argparse.Namespace) -> dict[str, float]:
    """One case on a fresh folder."""
    shutil.rmtree(side.directory, ignore_errors=True)
    try:
        name, _, number = case.partition(" ")
        figures = partitions(side, int(number)) if name == "partitions" else crash(side, options.gb)
    finally:
        side.down()
        shutil.rmtree(side.directory, ignore_errors=True)
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({"case": case, "broker": side.name, **rounded}), file=sys.stderr, flush=True)
    return figures


def table(found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| case | figure | kafkalite | Kafka | ratio | goal |"
    yield "|---|---|---|---|---|---|"
    for case, (ours, *rest) in found.items():
        for name, goal in FIGURES.items():
            if name not in ours:
                continue
            theirs = rest[0][name] if rest else None
            ratio = "-" if not theirs else f"{ours[name] / theirs:.2f}"
            shown = "-" if theirs is None else f"{theirs:.2f}"
            wanted = "" if goal is None else f"≤ {goal}"
            yield f"| {case} | {name} | {ours[name]:.2f} | {shown} | {ratio} | {wanted} |"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kit", help="the folder with broker.sh; without it ours runs alone")
    parser.add_argument("--lab", help="where the kit's setup.sh put the jars")
    parser.add_argument("--kafka", default="4", help="4 or 39")
    parser.add_argument("--cases", default="partitions,crash")
    parser.add_argument("--partitions", default="1000,10000", help="how many, one run for each")
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--scratch", help="where the data goes")
    options = parser.parse_args()
    if options.kit and not options.lab:
        parser.error("--kit needs --lab")
    scratch = Path(tempfile.mkdtemp(prefix="bench-scale-", dir=options.scratch))
    sides = [our_side(scratch)]
    if options.kit:
        kit, lab = Path(options.kit).resolve(), Path(options.lab).resolve()
        sides.append(kafka_side(kit, lab, options.kafka, scratch))
    cases = [
        case
        for name in options.cases.split(",")
        for case in ([f"{name} {n}" for n in options.partitions.split(",")]
                     if name == "partitions" else [name])
    ]  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {}
    try:
        for case in cases:
            found[case] = [run(case, side, options) for side in sides]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
