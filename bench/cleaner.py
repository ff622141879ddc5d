"""The log cleaner: MB/s over 1 GB of 1 KB records on 100,000 keys, beside Apache Kafka's.

    python -m bench.cleaner                          ours alone, on a log made here
    python -m bench.cleaner --kit DIR --lab DIR      both brokers, written to by the same client

Alone it shows what the cleaner costs: wall time, CPU and memory, for the codec and size of batch
that is asked for. The kit is that of bench/broker.py; its case `compact` writes 1 GB through a real
client and reads the rate from Kafka's own log, and ours is read from ours. Both count the bytes
that were cleaned once, from the first byte read to the last segment in its place, with all syncs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from bench.broker import Side, kafka_side, our_side
from kafkalite.compaction.cleaner import CleanerSettings, Cleaning, DirtyRange
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.testing.clock import at

KAFKA_MB_S: Final = 816  # Apache Kafka 4.3.1 on a quiet machine of this kind
SEGMENT_BYTES: Final = 100 << 20
VALUE_BYTES: Final = 1_000
BATCH_RECORDS: Final = 100
OUR_LINE: Final = re.compile(
    r"bb-compact-0: compacted .*?: ([\d.]+) MB to .*?, ([\d.]+) s, (\d+) MB/s"
)


def make_log(directory: Path, options: argparse.Namespace) -> PartitionLog:
    """A log with all its records dirty, in the page cache and on the disk."""
    storage = FileStorage(directory)
    storage.make_directory("bench-0")
    config = LogConfig(cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES)
    where = TopicPartition("bench", 0)
    log = PartitionLog.open(
        storage, "bench-0", where, config, at(0), clean_shutdown=True, is_new=True
    )
    random, count = Random(1), options.batch_records
    codec = Compression[options.codec.upper()]
    values = [random.randbytes(VALUE_BYTES // 2) * 2 for _ in range(100)]
    for _ in range(options.records // count):
        keys = [b"key-%08d" % random.randrange(options.keys) for _ in range(count)]
        batch = encode(
            Columns(keys, random.choices(values, k=count), [1] * count), compression=codec
        )
        log.append_as_leader(bytearray(batch), 0, 1, from_client=False)
    log.roll(1)
    log.high_watermark = log.log_end_offset
    log.flush()
    return log


def clean(log: PartitionLog) -> tuple[float, float, Cleaning]:
    """Cleans all of it: wall seconds, CPU seconds, the cleaning."""
    dirty = DirtyRange(0, log.segments[-1].base_offset)
    wall, cpu = time.perf_counter(), time.process_time()
    cleaning = Cleaning(log, dirty, CleanerSettings(), os.urandom(16), at(1))
    for work in cleaning.steps():
        work()
    return time.perf_counter() - wall, time.process_time() - cpu, cleaning


def ours_alone(options: argparse.Namespace) -> None:
    """Rounds on fresh logs; the best counts."""
    best = 0.0
    for _ in range(options.rounds):
        directory = Path(tempfile.mkdtemp(prefix="bench-cleaner-", dir=options.scratch))
        try:
            log = make_log(directory, options)
            wall, cpu, cleaning = clean(log)
            log.close()
        finally:
            shutil.rmtree(directory)
        stats = cleaning.stats
        rate = stats.read_bytes / 1e6 / wall
        best = max(best, rate)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{stats.read_bytes / 1e6:,.0f} MB to {stats.written_bytes / 1e6:,.0f} MB, "
            f"{stats.keys:,} keys: {wall:.2f} s, {rate:,.0f} MB/s; CPU {cpu:.2f} s, "
            f"{stats.read_bytes / 1e6 / cpu:,.0f} MB per CPU-second; peak {peak_mb:.0f} MB"
        )
    if options.codec == "none" and options.batch_records == BATCH_RECORDS:
        ratio = best / KAFKA_MB_S
        print(f"{best:,.0f} MB/s, {ratio:.2f} of the {KAFKA_MB_S} MB/s of Apache Kafka 4.3.1")


def both_in_turn(options: argparse.Namespace) -> None:
    """The kit's case against each broker, and the ratio."""
    kit, lab = Path(options.kit).resolve(), Path(options.lab).resolve()
    scratch = Path(tempfile.mkdtemp(prefix="bench-cleaner-", dir=options.scratch))
    both = (our_side(scratch), kafka_side(kit, lab, options.kafka, scratch))
    found: list[list[float]] = [[], []]
    try:
        for _ in range(options.rounds):
            for place, side in enumerate(both):
                rate, told = compact(side, kit, lab)
                found[place].append(rate)
                print(f"{side.name}: {rate:,.0f} MB/s; {told}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    ours, theirs = (max(rates) for rates in found)
    print(f"kafkalite {ours:,.0f} MB/s, Kafka {theirs:,.0f} MB/s, ratio {ours / theirs:.2f}")


def compact(side: Side, kit: Path, lab: Path) -> tuple[float, str]:
    """One broker from its start to its end; the cleaner's MB/s, and what else the kit says."""
    log, data = side.directory / "log", side.directory / "data"
    try:
        side.up()
        (result,) = side.run(
            kit, lab, "--cases", "compact", "--data-dir", str(data), "--log", str(log)
        )
    finally:
        side.down()
    rate = result.get("cleaner_mb_s") or max(our_rates(log), default=0.0)
    shutil.rmtree(side.directory)
    told = {k: result.get(k) for k in ("size_before", "size_after", "broker_cpu_s", "runs")}
    return float(rate), json.dumps(told)


def our_rates(log: Path) -> Iterator[float]:
    """What our broker told of cleanings of more than a few MB."""
    for found in OUR_LINE.finditer(log.read_text()):
        if float(found[1]) > 100:
            yield float(found[3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", help="folder of the kit: both brokers are measured")
    parser.add_argument("--lab", help="where the kit's setup.sh put jars and client")
    parser.add_argument("--kafka", default="4", help="Apache Kafka's version, as the kit says it")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batch-records", type=int, default=BATCH_RECORDS)
    parser.add_argument("--codec", default="none", choices=[c.name.lower() for c in Compression])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", default=None, help="where logs are made")
    options = parser.parse_args()
    if options.kit:
        both_in_turn(options)
    else:
        ours_alone(options)


if __name__ == "__main__":
    main()
