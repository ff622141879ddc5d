"""The stream engine alone: columns of bytes in, columns of bytes out, in one process.     [IO]

    python bench/streams_engine.py [--records 2000000] [--batch 5000] [--case count]

Keys of 8 bytes out of 1,000, values of 100 bytes, timestamps ascending over ten minutes. A case
feeds batches to one task as a worker would: enqueue, process, drain, and a commit every 100,000
records. Printed is one JSON line per case, with nanoseconds of wall and CPU time per input record;
making the input and decoding record batches are not in it.
"""

import argparse
import gc
import json
import random
import time
from collections.abc import Callable

from kafkalite.core.types import Columns
from kafkalite.streams import Streams, bytes_, count, max_, mean, string, tumbling
from kafkalite.streams import json as json_serde
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task

SPAN_MS = 600_000
COMMIT_RECORDS = 100_000
KEYS = 1_000


def make_batches(records: int, size: int) -> list[Columns]:
    rng = random.Random(7)
    keys = [f"k{number:07d}".encode() for number in range(KEYS)]
    values = [
        f'{{"amount":{10 + i % 90},"id":{100_000_000 + i},"user":"u{i % KEYS:06d}","pad":"'.encode()
        for i in range(4_096)
    ]
    values = [value + b"x" * (98 - len(value)) + b'"}' for value in values]
    return [
        Columns(
            rng.choices(keys, k=size),
            # Each record's value is an object of its own, as a decoder makes it.
            [bytes(bytearray(value)) for value in rng.choices(values, k=size)],
            [SPAN_MS * (first + i) // records for i in range(size)],
            range(first, first + size),
        )
        for first in range(0, records, size)
    ]


def keep(value: bytes) -> bool:
    return value[10] >= 51 or value[11] >= 56


def mark(value: bytes) -> bytes:
    return value[:-1] + b',"kept":true}'


def stateless(app: Streams) -> None:
    app.stream("in").filter(keep).map(mark).to("out")


def counting(app: Streams) -> None:
    app.stream("in").group_by_key().window(tumbling("60s")).count().to_stream().to("out")


def counting_final(app: Streams) -> None:
    app.stream("in").group_by_key().window(tumbling("60s")).count().final().to("out")


def aggregating(app: Streams) -> None:
    (
        app.stream("in", value=json_serde())
        .group_by_key()
        .window(tumbling("60s"))
        .aggregate(n=count(), average=mean("amount"), most=max_("amount"))
        .final()
        .to("out", value=json_serde())
    )


CASES: dict[str, Callable[[Streams], None]] = {
    "stateless": stateless,
    "count": counting,
    "count-final": counting_final,
    "json-aggregate-final": aggregating,
}


def run(case: str, batches: list[Columns]) -> dict[str, object]:
    app = Streams("bench", key=string(), value=bytes_())
    CASES[case](app)
    (sub,) = compile_topology(app.plan())
    task = Task(sub, 0)
    records = outputs = changes = waiting = 0
    gc.collect()
    begin, begin_cpu = time.perf_counter_ns(), time.process_time_ns()
    for batch in batches:
        task.enqueue("in", batch)
        while ran := task.process(10_000, 0):
            records += ran
            waiting += ran
        outputs += sum(len(output.columns) for output in task.drain())
        if waiting >= COMMIT_RECORDS:
            commit = task.commit()
            outputs += sum(len(output.columns) for output in commit.outputs)
            changes += sum(len(output.columns) for output in commit.changelog)
            waiting = 0
    commit = task.commit()
    elapsed, cpu = time.perf_counter_ns() - begin, time.process_time_ns() - begin_cpu
    outputs += sum(len(output.columns) for output in commit.outputs)
    changes += sum(len(output.columns) for output in commit.changelog)
    return {
        "case": case,
        "records": records,
        "ns_per_record": round(elapsed / records),
        "cpu_ns_per_record": round(cpu / records),
        "records_out": outputs,
        "changelog_records": changes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=5_000, help="records per fetched batch")
    parser.add_argument("--case", choices=CASES, action="append")
    options = parser.parse_args()
    batches = make_batches(options.records, options.batch)
    for case in options.case or CASES:
        print(json.dumps({"batch": options.batch, **run(case, batches)}), flush=True)


if __name__ == "__main__":
    main()
