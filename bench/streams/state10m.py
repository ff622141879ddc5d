"""State of ten million keys in RocksDB: steady updates, a restart from the checkpoint, memory.

    python -m bench.streams.state10m [--keys 10000000] [--updates 3000000]

One worker counts records by key, in four tasks. `fill` meets every key for the first time.
`updates` is a new process over the same state: records of random keys, each of which reads a row
and changes it. `restart_s` is from the start of the application to its first record, `process_s`
that with the start of the interpreter and its imports. Memory is the worker's.
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

from .inputs import BATCH_BYTES, CHUNK, create
from .rates import rate
from .sides import Ours, last_line, our_streams, started

TOPIC: Final = "many-keys"
TOPOLOGY: Final = "count-all"
PRIME: Final = 982_451_653  # no divisor of it divides the number of keys
VALUE: Final = b"x"

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
    first = next(at for at, done in said["seen"] if done)
    seen = said["seen"]
    figures: dict[str, Any] = {
        "what": what,
        "records": said["records"],
        "records_per_second": rate(seen, records),
        "second_half_records_per_second": rate(seen, records, 0.5),
        "restart_s": first - seen[0][0],
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


def run(side: Ours, keys: int, updates: int, state: Path) -> None:
    """Both parts."""
    rng = random.Random(7)
    create(side.address, TOPIC)
    with side.target() as target:
        append(side.address, keys, lambda rows: [row * PRIME % keys for row in rows])
        measured(side, target, "fill", keys, state)
        append(side.address, updates, lambda rows: rng.choices(range(keys), k=len(rows)))
        measured(side, target, "updates", updates, state)
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
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
