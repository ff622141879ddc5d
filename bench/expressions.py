"""Expressions against the same functions in Python: CPU nanoseconds a record.

    python bench/expressions.py [records]

Each line computes a filter's verdicts and a map's values over columns of dicts: by lambdas, by the
expressions' loops over Python objects, and by Arrow kernels over a record batch of the same fields.
Lines of Avro run a task from the bytes of six fields to those of the sink, in batches of 5,000.
The last line runs filter and map as a task does, from decoded values to those of the sink.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time_ns
from typing import Any

import pyarrow as pa

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SerdeContext, avro, msgpack, string
from kafkalite.streams import Expression, col, struct
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.expressions.arrow import compile_arrow
from kafkalite.streams.expressions.objects import compile_objects
from kafkalite.streams.local import arrows, inputs
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task

ROUNDS = 25
PAIRS: dict[str, tuple[Callable[[Any], Any], Expression]] = {
    "amount > 28": (lambda v: v["amount"] > 28, col("amount") > 28),
    "amount * 1.19 > 28 and n % 2 == 1": (
        lambda v: v["amount"] * 1.19 > 28 and v["n"] % 2 == 1,
        (col("amount") * 1.19 > 28) & (col("n") % 2 == 1),
    ),
    "the same, null as null": (
        lambda v: (
            v["amount"] is not None
            and v["amount"] * 1.19 > 28
            and v["n"] is not None
            and v["n"] % 2 == 1
        ),
        (col("amount") * 1.19 > 28) & (col("n") % 2 == 1),
    ),
    "user in lower case starts with a": (
        lambda v: v["user"].lower().startswith("a"),
        col("user").str.lower().str.starts_with("a"),
    ),
    "hour of a timestamp": (lambda v: v["at"] // 3_600_000 % 24, col("at").dt.hour()),
    "{n, gross = amount * 1.19}": (
        lambda v: {"n": v["n"], "gross": v["amount"] * 1.19},
        struct("n", gross=col("amount") * 1.19),
    ),
}


def best(run: Callable[[], object], records: int) -> float:
    """Nanoseconds a record in the best of several rounds."""
    times = []
    for _ in range(ROUNDS):
        start = process_time_ns()
        run()
        times.append(process_time_ns() - start)
    return min(times) / records


def task_of(by_expressions: bool) -> Task:
    app = StreamsBuilder("bench", key=string(), value=msgpack())
    stream = app.stream("in")
    (keeps, amount), (makes, gross) = PAIRS["amount > 28"], PAIRS["{n, gross = amount * 1.19}"]
    kept = stream.filter(amount if by_expressions else keeps)
    kept.map(gross if by_expressions else makes).filter(lambda v: False).to("out")
    (sub,) = compile_topology(app.plan())
    return Task(sub, 0)


def main(records: int) -> None:
    values = [
        {"amount": float(i % 57), "n": i, "user": f"Ann{i % 99}", "at": 1_357_000_000_000 + i * 977}
        for i in range(records)
    ]
    batch = pa.RecordBatch.from_pylist(values)
    print(f"{'':36}{'lambda':>9}{'objects':>9}{'arrow':>9}   ns a record")
    for name, (function, expression) in PAIRS.items():
        objects, arrow = compile_objects(expression.tree), compile_arrow(expression.tree)
        runs = (
            lambda f=function: list(map(f, values)),
            lambda o=objects: o.column(values),
            lambda a=arrow: a.column(batch),
        )
        print(f"{name:36}" + "".join(f"{best(run, records):9.1f}" for run in runs))
    data = Columns(
        [b"k"] * records,
        msgpack_of(values),
        list(range(records)),
        range(records),
    )
    figures = []
    for by_expressions in (False, True):
        task = task_of(by_expressions)

        def run(task: Task = task) -> None:
            task.enqueue("in", data)
            task.process(records, 0)

        figures.append(best(run, records))
    print(f"{'a task: decode, filter, map':36}{figures[0]:9.1f}{figures[1]:9.1f}")
    avro_lines()


EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": name, "type": of}
        for name, of in (
            ("id", "long"), ("kind", "int"), ("amount", "double"), ("ok", "boolean"),
            ("user", "string"), ("page", "string"),
        )
    ],
}  # fmt: skip
AVRO: dict[str, Callable[[Any], Any]] = {
    "filter": lambda s: s.filter(col("kind") < 32),
    "filter, assign": lambda s: s.filter(col("kind") < 32).assign(amount=col("amount") * 1.19),
    "filter, assign by lambdas": lambda s: s.filter(lambda v: v["kind"] < 32).map(
        lambda v: {**v, "amount": v["amount"] * 1.19}
    ),
}


def avro_lines(records: int = 5_000) -> None:
    """Tasks from Avro to Avro: by objects, and with Arrow."""
    registry, serde = MemoryRegistry(), avro(schema=EVENT)
    events = [
        {"id": i * 7919, "kind": i % 40, "amount": i / 7, "ok": i % 10 > 0,
         "user": f"user-{i:06d}", "page": f"/page/{i % 100:02d}"}
        for i in range(records)
    ]  # fmt: skip
    values = serde.open(SerdeContext(registry)).serialize("in", events)
    data = Columns([b"k"] * records, values, list(range(records)), range(records))
    for name, build in AVRO.items():
        figures = []
        for has_arrow in (False, True):
            for module in (arrows, inputs):
                vars(module)["HAS_ARROW"] = has_arrow
            app = StreamsBuilder("bench", key=string(), value=serde)
            build(app.stream("in")).to("out")
            (sub,) = compile_topology(app.plan())
            task = Task(sub, 0, registry=registry)

            def run(task: Task = task) -> None:
                task.enqueue("in", data)
                task.process(records, 0)
                task.drain()

            figures.append(best(run, records))
        print(f"{'Avro: ' + name:36}{'':9}{figures[0]:9.1f}{figures[1]:9.1f}")


def msgpack_of(values: list[Any]) -> list[bytes | None]:
    codec = msgpack().open(SerdeContext(None, False))
    return list(codec.serialize("in", values))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
