"""Many partitions on three brokers: made, at rest, and after a broker's death.

    python -m bench.cluster_partitions [--partitions 1000]
    python -m bench.cluster_partitions --kit DIR --lab DIR --kafka 4,39    Apache Kafka's after ours

Kit and lab are those of `bench/cluster.py`. Prints one JSON line a cluster. Times are as an admin
client sees them that asks without a pause.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster import Side, kafka_cluster, our_cluster

TOPIC = "many"
KILLED = 2  # not the controller, most of the time
REST_SECONDS = 20.0
PATIENCE_SECONDS = 120.0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--kit", type=Path)
    parser.add_argument("--lab", type=Path)
    parser.add_argument("--kafka", default="", help="versions: 4, 39, or both with a comma")
    args = parser.parse_args()
    versions = [version for version in args.kafka.split(",") if version]
    if versions and not (args.kit and args.lab):
        parser.error("--kafka needs --kit and --lab")
    with TemporaryDirectory(prefix="kafkalite-bench-") as scratch:
        with our_cluster(Path(scratch)) as side:
            print(json.dumps(measured(side, args.partitions)), flush=True)
        for version in versions:
            with kafka_cluster(args.kit, args.lab, version, Path(scratch)) as side:
                print(json.dumps(measured(side, args.partitions)), flush=True)


def measured(side: Side, count: int) -> dict[str, Any]:
    """All figures, in seconds, per cent of a core and MiB."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})

    def partitions() -> list[Any]:
        return list(admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions.values())

    def is_whole() -> bool:
        found = partitions()
        return len(found) == count and all(p.leader >= 0 and len(p.isrs) == 3 for p in found)

    began = time.monotonic()
    admin.create_topics([NewTopic(TOPIC, count, 3)])[TOPIC].result(PATIENCE_SECONDS)
    made = seconds_until(is_whole, began)
    time.sleep(REST_SECONDS / 2)
    pids = side.pids()
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(REST_SECONDS)
    used = [cpu_seconds(pid) - since for pid, since in zip(pids, before, strict=True)]
    memory = [resident_mib(pid) for pid in pids]
    killed = time.monotonic()
    os.kill(pids[KILLED], signal.SIGKILL)
    led = seconds_until(lambda: all(p.leader not in (KILLED, -1) for p in partitions()), killed)
    restarted = time.monotonic()
    subprocess.run(shlex.split(side.start_one.format(i=KILLED)), check=True)
    return {
        "name": side.name,
        "partitions": count,
        "made_s": made,
        "idle_cpu_percent": [round(100 * each / REST_SECONDS, 1) for each in used],
        "memory_mib": memory,
        "others_lead_s": led,
        "restart_to_all_in_sync_s": seconds_until(is_whole, restarted),
    }


def seconds_until(is_so: Callable[[], bool], since: float) -> float:
    """How long it takes; the client may be refused meanwhile."""
    while time.monotonic() < since + PATIENCE_SECONDS:
        try:
            if is_so():
                return round(time.monotonic() - since, 2)
        except KafkaException:
            pass
    raise TimeoutError(f"not so after {PATIENCE_SECONDS:g} s")


def cpu_seconds(pid: int) -> float:
    """What a process has used, by the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> int:
    """The memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) // 1024


if __name__ == "__main__":
    main()
