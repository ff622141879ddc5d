"""Log-to-log topologies over 5 M records of 8 B key (1,000 keys) and 100 B value, broker included.

    python bench/streams.py [--records 5000000] [--partitions 4] [--only filter-map,count]
                            [--bootstrap-servers HOST:PORT]

(a) filter dropping 20 % and map; (b) 60 s tumbling count with changelog. One worker process, one
broker process. Prints a JSON line a case; `--baseline N` adds the ratio to N records/s, for
example what Kafka Streams reached on the same machine in the same hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.streams import Streams, tumbling

KEYS = [b"key-%04d" % i for i in range(1000)]
SPAN_MS = 600_000
CHUNK = 100_000
VALUES = [b'{"amount":%02d,"note":"%s"}' % (i, b"x" * 80) for i in range(100)]


def filter_map(app: Streams) -> None:
    (
        app.stream("bench-in")
        .filter(lambda v: v[10:12] >= b"20")
        .map(lambda v: v[:-1] + b',"kept":1}')
        .to("bench-out")
    )


def tumbling_count(app: Streams) -> None:
    (
        app.stream("bench-in")
        .group_by_key()
        .window(tumbling("60s"))
        .count()
        .to_stream()
        .to("bench-out")
    )


CASES = {"filter-map": filter_map, "count": tumbling_count}


async def prepare(address: str, records: int, partitions: int) -> None:
    """The input, written once: timestamps ascend over ten minutes, keys and values go round."""
    async with Admin(address) as admin:
        names = [NewTopic("bench-in", partitions, configs={"retention.ms": "-1"})]
        names += [NewTopic(f"bench-out-{case}", partitions) for case in CASES]
        await admin.create_topics(names)
    async with Producer(address) as producer:
        for start in range(0, records, CHUNK):
            rows = range(start, min(start + CHUNK, records))
            columns = Columns(
                [KEYS[i * 7919 % 1000] for i in rows],
                [VALUES[i * 31 % 100] for i in rows],
                [1_700_000_000_000 + i * SPAN_MS // records for i in rows],
            )
            await producer.send_columns("bench-in", columns)
        await producer.flush()


@contextmanager
def broker(address: str | None) -> Iterator[tuple[str, int | None]]:
    """A broker of our own over a scratch folder, or the one at `address`."""
    if address:
        yield address, None
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(folder) as own:
        yield own.bootstrap_servers, own.pid


def cpu_seconds(pid: int | None) -> float:
    """User and system time of a process; of this one without `pid`."""
    if pid is None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_case(name: str, address: str, pid: int | None, baseline: float | None) -> None:
    app = Streams(f"bench-{name}-{os.getpid()}")
    CASES[name](app)
    before = cpu_seconds(None), cpu_seconds(pid) if pid else 0.0
    started = time.monotonic()
    progress = app.run(address, until_caught_up=True)
    seconds = time.monotonic() - started
    rate = progress.records / seconds
    own = cpu_seconds(None) - before[0]
    result = {
        "case": name,
        "records": progress.records,
        "seconds": round(seconds, 2),
        "records_per_second": round(rate),
        "worker_cpu_s_per_million": round(own / progress.records * 1e6, 3),
    }
    if pid:
        spent = cpu_seconds(pid) - before[1]
        result["broker_cpu_s_per_million"] = round(spent / progress.records * 1e6, 3)
    if baseline:
        result["ratio"] = round(rate / baseline, 2)
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--baseline", type=float, help="records/s of a peer, for a ratio")
    arguments = parser.parse_args()
    with broker(arguments.bootstrap_servers) as (address, pid):
        asyncio.run(prepare(address, arguments.records, arguments.partitions))
        for name in arguments.only.split(","):
            run_case(name, address, pid, arguments.baseline)


if __name__ == "__main__":
    main()
