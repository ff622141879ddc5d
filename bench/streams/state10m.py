"""State of ten million keys in RocksDB: steady updates, a restart from the checkpoint, memory.

    python -m bench.streams.state10m [--keys 10000000] [--updates 3000000]

One worker counts records by key, in four tasks. `fill` meets every key for the first time.
`updates` is a new process over the same state: records of random keys, all of them as likely, each
of which reads a row and changes it. `skewed` is another, with keys by Zipf's law: the key in place
n comes 1/n as often as the first. `restart_s` is from the start of the application to its first
record, `process_s` that with the start of the interpreter and its imports. Rates are from there to
the worker's end: records may wait to be folded in, so the last commit and the closing of RocksDB
count. Memory is the worker's.

`alone` is what RocksDB takes through rocksdict by itself, in one process without a broker: a
quarter of the keys, as one task has them, are read and written in batches of so many.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kafkalite.clients.sync import Producer
from kafkalite.core.types import Columns
from kafkalite.streams.local.state.rocks import RocksBackend

from .inputs import BATCH_BYTES, CHUNK, create
from .sides import Ours, last_line, our_streams, started

TOPIC: Final = "many-keys"
TOPOLOGY: Final = "count-all"
PRIME: Final = 982_451_653  # no divisor of it divides the number of keys
VALUE: Final = b"x"
TASKS: Final = 4
ALONE_BATCHES: Final = (1_000, 65_536)  # rows that are read, then written, at a time
ROW: Final = bytes(9) + b"%08d"  # as long as a count with its timestamp

Numbers = Callable[[range], list[int]]  # of the keys of some records


def append(address: str, records: int, numbers: Numbers) -> None:
    """Writes records of these keys."""
    with Producer(address, batch_bytes=BATCH_BYTES) as producer:
        for first in range(0, records, CHUNK):
            rows = range(first, min(first + CHUNK, records))
            keys = [b"k%08d" % number for number in numbers(rows)]
            times = [time.time_ns() // 1_000_000] * len(rows)
            producer.send_columns(TOPIC, Columns(keys, [VALUE] * len(rows), times))
        producer.flush()


def measured(side: Ours, target: str, what: str, records: int, state: Path) -> None:
    """One worker process to the end of the topic."""
    job = side.job(
        TOPIC, target, TOPOLOGY, processing_guarantee="at_least_once", state_dir=str(state)
    )
    began = time.monotonic()
    said = last_line(job.command())
    start = said["seen"][0][0]
    first = next(at for at, done in said["seen"] if done)
    end = start + said["start_to_close_s"]
    figures: dict[str, Any] = {
        "what": what,
        "records": said["records"],
        "records_per_second": round(records / (end - first)),
        "restart_s": first - start,
        "process_s": first - began,
        "start_to_close_s": said["start_to_close_s"],
        "worker_cpu_s_per_million": said["worker_cpu_s"] / records * 1e6,
        "rss_mb": said["rss_mb"],
        "peak_rss_mb": said["peak_rss_mb"],
        "restored": said["records_restored"],
        "commits": said["commits"],
    }
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(rounded), flush=True)


def skewed(rng: random.Random, keys: int) -> int:
    """A key by Zipf's law; those that come often stand anywhere among the others."""
    place = int(keys ** rng.random())  # as likely as 1 / place
    return place * PRIME % keys


def alone(path: Path, keys: int, updates: int) -> None:
    """What a row costs to read and to write, with nothing else around RocksDB."""
    backend, rng = RocksBackend(path), random.Random(7)
    for first in range(0, keys, CHUNK):
        numbers = range(first, min(first + CHUNK, keys))
        backend.put_many({b"k%08d" % number: ROW % 1 for number in numbers})
    for size in ALONE_BATCHES:
        spent = dict.fromkeys(("read", "write"), 0.0)
        began = time.monotonic()
        for _ in range(0, updates, size):
            wanted = sorted(b"k%08d" % number for number in rng.choices(range(keys), k=size))
            at = time.thread_time()
            found = backend.get_many(wanted)
            read = time.thread_time()
            assert None not in found
            rows: dict[bytes, bytes | None] = dict.fromkeys(wanted, ROW % 2)
            written = time.thread_time()
            backend.put_many(rows)
            spent["read"] += read - at
            spent["write"] += time.thread_time() - written
        count = -(-updates // size) * size
        figures = {f"{what}_cpu_us": round(s / count * 1e6, 2) for what, s in spent.items()}
        rate_alone = round(count / (time.monotonic() - began))
        said = {"what": "alone", "batch": size, "updates_per_second": rate_alone}
        print(json.dumps(said | figures), flush=True)
    backend.close()


def run(side: Ours, keys: int, updates: int, state: Path) -> None:
    """Both parts."""
    rng = random.Random(7)
    create(side.address, TOPIC)
    with side.target() as target:
        append(side.address, keys, lambda rows: [row * PRIME % keys for row in rows])
        measured(side, target, "fill", keys, state)
        append(side.address, updates, lambda rows: rng.choices(range(keys), k=len(rows)))
        measured(side, target, "updates", updates, state)
        append(side.address, updates, lambda rows: [skewed(rng, keys) for _ in rows])
        measured(side, target, "skewed", updates, state)
    size = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    print(json.dumps({"what": "disk", "mb": round(size / 1e6)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--updates", type=int, default=3_000_000)
    parser.add_argument("--scratch", help="where the broker and the state are meanwhile")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bench-state-", dir=options.scratch))
    try:
        side = our_streams(scratch, 0)
        with started(side):
            run(side, options.keys, options.updates, scratch / "state")
        alone(scratch / "alone", options.keys // TASKS, options.updates)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
