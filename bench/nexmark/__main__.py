"""Nexmark through a broker and one worker: records a second, and CPU a record, of each query.

    python -m bench.nexmark [--only q5,q7] [--records 1000000] [--rounds 1]

`--records` counts events. A query reads one or two of the topics of persons, auctions and bids, and
its rates count the records of these. Flink's published figures are events for each second of CPU,
and count events that a query does not read: `events/CPU-s` is that.

Topics have four partitions, the guarantee is at least once, state is in memory, the worker is one
process. A JSON line is printed for each run, and at the end a table, of several rounds with the
best of each. `generator` and `queries` say what is read and computed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench.streams.inputs import BATCH_BYTES, CHUNK, create
from bench.streams.rates import rate
from bench.streams.sides import Ours, last_line, our_streams, started
from kafkalite.clients.sync import Producer
from kafkalite.core.types import Columns
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry

from .generator import Generator, Parameters
from .queries import QUERIES, SCHEMAS, SIDE, SIDE_ROWS

MAKER: Final = "bench.nexmark.queries"
FIGURES: Final = {
    "records_per_second": "records/s",
    "worker_us_per_record": "CPU µs a record, worker",
    "broker_us_per_record": "broker",
    "events_per_cpu_second": "events/CPU-s",
    "records_out": "records out",
    "rss_mb": "MB",
}


def fill(side: Ours, parameters: Parameters, count: int) -> dict[str, int]:
    """Writes all topics; how many records each has."""
    create(side.address, *SCHEMAS, SIDE)
    registry = LogRegistry(side.address)
    try:
        context = SerdeContext(registry)
        codecs = {topic: avro(schema=schema).open(context) for topic, schema in SCHEMAS.items()}
        sizes = dict.fromkeys(SCHEMAS, 0)
        with Producer(side.address, batch_bytes=BATCH_BYTES) as producer:
            numbers = [b"%d" % number for number in range(SIDE_ROWS)]
            words = [b"side-" + number for number in numbers]
            producer.send_columns(SIDE, Columns(numbers, words, [parameters.start_ms] * SIDE_ROWS))
            generated = Generator(parameters).events(count)
            while events := list(islice(generated, CHUNK)):
                for topic, codec in codecs.items():
                    some = [event for event in events if event.topic == topic]
                    values = codec.serialize(topic, [event.value for event in some])
                    keys = [event.key.encode() for event in some]
                    times = [event.timestamp for event in some]
                    producer.send_columns(topic, Columns(keys, values, times))
                    sizes[topic] += len(some)
            producer.flush()
    finally:
        registry.close()
    return sizes


def measured(side: Ours, name: str, records: int, events: int) -> dict[str, Any]:
    """One worker over a query's topics."""
    with side.target() as target:
        job = side.job("", target, name, maker=MAKER, processing_guarantee="at_least_once")
        broker = side.broker_cpu_s()
        said = last_line(job.command())
        broker = side.broker_cpu_s() - broker
    return {
        "query": name,
        "records": records,
        "records_per_second": round(rate(said["seen"], records) or 0),
        "second_half_records_per_second": round(rate(said["seen"], records, 0.5) or 0),
        "start_to_close_s": round(said["start_to_close_s"], 2),
        "worker_us_per_record": round(said["worker_cpu_s"] / records * 1e6, 3),
        "broker_us_per_record": round(broker / records * 1e6, 3),
        "events_per_cpu_second": round(events / said["worker_cpu_s"]),
        "records_out": said["records_out"],
        "rss_mb": round(said["peak_rss_mb"]),
    }


def table(best: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    yield f"| query | records | {' | '.join(FIGURES.values())} |"
    yield "|---" * (len(FIGURES) + 2) + "|"
    for name, figures in best.items():
        cells = (f"{figures[figure]:,}" for figure in ("records", *FIGURES))
        yield f"| {name} | {' | '.join(cells)} |"


def run(side: Ours, names: list[str], options: argparse.Namespace) -> None:
    """All queries, round by round."""
    span_ms = 1_000 * options.records // options.rate
    begin = time.time_ns() // 1_000_000 - span_ms
    sizes = fill(side, Parameters(begin - begin % 60_000, options.rate), options.records)
    best: dict[str, dict[str, Any]] = {}
    for _ in range(options.rounds):
        for name in names:
            records = sum(sizes[topic] for topic in QUERIES[name].topics)
            figures = measured(side, name, records, options.records)
            print(json.dumps(figures), flush=True)
            known = best.setdefault(name, figures)
            if figures["worker_us_per_record"] < known["worker_us_per_record"]:
                best[name] = figures
    print("\n".join(table(best)))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.nexmark", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(QUERIES), help="queries, with commas between")
    parser.add_argument("--records", type=int, default=1_000_000, help="events of all three kinds")
    parser.add_argument("--rate", type=int, default=10_000, help="events a second of event time")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scratch", help="where the broker keeps its data meanwhile")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - QUERIES.keys():
        parser.error(f"there is no query {', '.join(sorted(unknown))}")
    scratch = Path(tempfile.mkdtemp(prefix="bench-nexmark-", dir=options.scratch))
    try:
        side = our_streams(scratch, options.records)
        with started(side):
            run(side, names, options)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
