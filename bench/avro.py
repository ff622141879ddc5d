"""Avro measured: native columns and rows against fastavro, in one run.

    python -m bench.avro [--records 5000] [--repeat 30]

Two records: an order of 6 fields, a flight of 19 (as `examples/flights`). Each figure is the best
of `repeat` runs, in nanoseconds of wall time a record; fastavro's stand beside, and how many times
ours go into them. The ratios hold on a busy machine, the figures do not. fastavro is used as the
serde uses it: it validates before it writes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from io import BytesIO
from typing import Any

from bench.fastest import fastest
from kafkalite.serde.avro_arrow import avro_to_arrow
from kafkalite.serde.avro_binary import binary
from kafkalite.serde.avro_columns import NATIVE, ValueEncoder, decoder, objects
from kafkalite.serde.avro_encode import arrow_to_avro
from kafkalite.serde.avro_plan import Plan, plan
from kafkalite.serde.avro_schema import Schema, parse_schema

INT = ["null", "int"]
ORDER = {
    "id": "long", "customer": "string", "amount": "double", "items": "int", "paid": "boolean",
    "at": {"type": "long", "logicalType": "timestamp-millis"},
}  # fmt: skip
FLIGHT = {
    "year": "int", "month": "int", "day": "int", "dep_time": INT, "sched_dep_time": "int",
    "dep_delay": INT, "arr_time": INT, "sched_arr_time": "int", "arr_delay": INT,
    "carrier": "string", "flight": "int", "tailnum": ["null", "string"], "origin": "string",
    "dest": "string", "air_time": INT, "distance": "int", "hour": "int", "minute": "int",
    "time_hour": "string",
}  # fmt: skip
RECORDS: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    ("order", ORDER, ("customer", "amount")),
    ("flight", FLIGHT, ("origin", "dep_delay")),
]


def a_value(kind: Any, rng: random.Random) -> Any:
    match kind:
        case ["null", inner]:
            return a_value(inner, rng) if rng.random() < 0.97 else None
        case "int" | "long":
            return rng.randrange(2_400)
        case "double":
            return rng.random()
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return rng.choice(["EWR", "N14228", "UA", "2013-01-01T05:00:00Z"])
    return 1_357_000_000_000 + rng.randrange(10**10)


def nanoseconds(call: Callable[[], object], records: int, repeat: int) -> float:
    """Of the fastest call, by record."""
    return fastest(call, repeat, seconds_max=2) / records * 1e9


def fast_plan(schema: Schema, wanted: set[str] | None = None) -> Plan:
    made = plan(schema, None, wanted)
    assert isinstance(made, Plan), made
    return made


def picked(rows: list[Any], first: str, second: str) -> list[Any]:
    """What a filter and a map of two fields do."""
    return [{first: r[first], second: r[second]} for r in rows if r[second] is not None]


def measure(name: str, fields: dict[str, Any], two: tuple[str, str], args: Any) -> None:
    described = [{"name": field, "type": kind} for field, kind in fields.items()]
    schema = parse_schema({"type": "record", "name": name, "fields": described})
    slow, rng = binary(schema.text), random.Random(7)
    values = [{f: a_value(kind, rng) for f, kind in fields.items()} for _ in range(args.records)]

    def written() -> list[bytes]:
        made = []
        for value in values:
            record = BytesIO()
            slow.encode(value, record)
            made.append(record.getvalue())
        return made

    records = written()
    whole = decoder(fast_plan(schema))
    some = decoder(fast_plan(schema, set(two)))
    array = avro_to_arrow(fast_plan(schema), records)

    def read() -> list[Any]:
        return [slow.decode(BytesIO(data), None) for data in records]

    values_encoder = ValueEncoder(fast_plan(schema))

    def encode_values(column: list[Any]) -> list[bytes | None]:
        out: list[bytes | None] = []
        assert values_encoder.encode(column, 0, b"", out) == len(column)
        return out

    assert arrow_to_avro(fast_plan(schema), array) == encode_values(values) == records
    assert objects(whole.decode(records), False)[0] == read()
    cases: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("decode, all fields to columns", lambda: whole.decode(records), read),
        ("decode, two fields to columns", lambda: some.decode(records), read),
        ("decode to dicts", lambda: objects(whole.decode(records), True), read),
        ("encode from dicts", lambda: encode_values(values), written),
        ("encode from columns", lambda: arrow_to_avro(fast_plan(schema), array), written),
        (
            "decode, functions on two fields",
            lambda: picked(objects(whole.decode(records), False)[0], *two),
            lambda: picked(read(), *two),
        ),
    ]
    for what, ours, theirs in cases:
        mine = nanoseconds(ours, args.records, args.repeat)
        other = nanoseconds(theirs, args.records, args.repeat)
        shown = f"{mine:9,.0f} ns   fastavro {other:9,.0f} ns   {other / mine:6.1f} times"
        print(f"{name:7} {len(fields):2} fields   {what:32} {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--repeat", type=int, default=30)
    args = parser.parse_args()
    if not NATIVE:
        parser.error("the native modules of Avro were not built")
    for name, fields, two in RECORDS:
        measure(name, fields, two, args)


if __name__ == "__main__":
    main()
