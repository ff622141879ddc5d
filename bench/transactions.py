"""Transactions per second of brokers that run already, asked in turn by the same client.

    python bench/transactions.py 127.0.0.1:9092 127.0.0.1:29092 [--count 1500] [--rounds 2]

Each transaction writes one record of 100 bytes to each of three partitions and commits; the client
is confluent-kafka. Prints one line of JSON for each broker and round: the rate, how long a
transaction took, and the CPU time that the broker's process spent on each (Linux, by its port).
Only brokers of one run may be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import uuid
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SECONDS_MAX = 30.0
PARTITIONS = 3
LISTENS = "0A"


def pid_of(address: str) -> int | None:
    """The process that listens at a port of this machine; None where the kernel does not say."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[1].endswith(f":{port}") and words[3] == LISTENS:
                inodes.add(f"socket:[{words[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) in inodes:
                return int(link.parts[2])
        except OSError:
            continue  # gone, or another user's
    return None


def cpu_ms(pid: int | None) -> float:
    """The CPU time that a process has taken so far; NaN where it is not known."""
    if pid is None:
        return float("nan")
    stat = re.sub(r"\(.*\)", "()", Path(f"/proc/{pid}/stat").read_text()).split()
    return (int(stat[13]) + int(stat[14])) * 1_000 / os.sysconf("SC_CLK_TCK")


def run(address: str, count: int) -> dict[str, object]:
    """One round against one broker."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(SECONDS_MAX)
    pid, took = pid_of(address), []
    before = cpu_ms(pid)
    for _ in range(count):
        started = time.perf_counter()
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(name, b"x" * 100, partition=partition)
        producer.commit_transaction(SECONDS_MAX)
        took.append((time.perf_counter() - started) * 1_000)
    spent = cpu_ms(pid) - before
    took.sort()
    admin.delete_topics([name])[name].result(SECONDS_MAX)
    return {
        "broker": address,
        "transactions_s": round(count / sum(took) * 1_000),
        "p50_ms": round(took[count // 2], 2),
        "p99_ms": round(took[count * 99 // 100], 2),
        "broker_cpu_ms": round(spent / count, 3),
    }


def main() -> None:
    """Rounds of all brokers, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("brokers", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--count", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    for _ in range(chosen.rounds):
        for address in chosen.brokers:
            print(json.dumps(run(address, chosen.count)), flush=True)


if __name__ == "__main__":
    main()
