"""What is measured: each topology computes what the case of the same name of Kafka Streams does.

`make(name, source, target)` gives the application, not yet run. Keys are text; windows are 60 s.
Joins, sessions and sliding windows are in `operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from kafkalite.serde import Serde
from kafkalite.streams import (
    Streams,
    avro,
    bytes_,
    col,
    count,
    int64,
    json,
    lit,
    max_,
    string,
    sum_,
    tumbling,
)
from kafkalite.streams import struct as fields

from . import flights, operators

STORE: Final = "st"
HASHES: Final = 20  # some 10 us


def record(name: str, **kinds: str) -> dict[str, Any]:
    """An Avro schema without nulls."""
    described = [{"name": field, "type": kind} for field, kind in kinds.items()]
    return {"type": "record", "name": name, "fields": described}


EVENT: Final = record(
    "Event", id="long", kind="int", amount="double", ok="boolean", user="string", page="string"
)
PRICED: Final = record("Priced", id="long", user="string", page="string", gross="double")
TOTAL: Final = record("Total", n="long", sum="double", top="double")


def bytes_functions(app: Streams, source: str, target: str) -> None:
    """The two digits behind `{"amount":` decide; the rest is not looked at."""
    kept = app.stream(source, value=bytes_()).filter(lambda v: v[10:12] >= b"28")
    kept.map(lambda v: v[:-1] + b',"kept":true}').to(target, value=bytes_())


def json_functions(app: Streams, source: str, target: str) -> None:
    kept = app.stream(source, value=json()).filter(lambda v: v["amount"] >= 28)
    kept.map(lambda v: {**v, "kept": True}).to(target, value=json())


def json_expressions(app: Streams, source: str, target: str) -> None:
    kept = app.stream(source, value=json()).filter(col("amount") >= 28)
    kept.assign(kept=lit(True)).to(target, value=json())


def avro_functions(app: Streams, source: str, target: str) -> None:
    def priced(event: Any) -> dict[str, Any]:
        user, page, gross = event["user"], event["page"], event["amount"] * 1.19
        return {"id": event["id"], "user": user, "page": page, "gross": gross}

    kept = app.stream(source, value=avro(schema=EVENT)).filter(lambda v: v["amount"] >= 28.0)
    kept.map(priced).to(target, value=avro(schema=PRICED))


def avro_expressions(app: Streams, source: str, target: str) -> None:
    kept = app.stream(source, value=avro(schema=EVENT)).filter(col("amount") >= 28.0)
    priced = kept.map(fields("id", "user", "page", gross=col("amount") * 1.19))
    priced.to(target, value=avro(schema=PRICED))


def avro_aggregate(app: Streams, source: str, target: str) -> None:
    """By a field that is not the key: through a repartition topic."""
    grouped = app.stream(source, value=avro(schema=EVENT)).group_by("page")
    totals = grouped.window(tumbling("60s", grace="600s")).aggregate(
        n=count(), sum=sum_("amount"), top=max_("amount"), name=STORE, value=avro(schema=TOTAL)
    )
    totals.to_stream().to(target, value=avro(schema=TOTAL))


def _count(app: Streams, source: str, target: str, *, cached: bool) -> None:
    windows = app.stream(source, value=bytes_()).group_by_key().window(tumbling("60s"))
    windows.count(name=STORE, cached=cached).to_stream().to(target, value=int64())


def count_cached(app: Streams, source: str, target: str) -> None:
    """Updates of a row merge until the commit."""
    _count(app, source, target, cached=True)


def count_every_update(app: Streams, source: str, target: str) -> None:
    """Every record makes one that goes out."""
    _count(app, source, target, cached=False)


def hashes(app: Streams, source: str, target: str) -> None:
    """A function that keeps a core busy."""

    def busy(value: bytes) -> bytes:
        for _ in range(HASHES):
            value = sha256(value).digest()
        return value

    app.stream(source, value=bytes_()).map(busy).to(target, value=bytes_())


def latest(app: Streams, source: str, target: str) -> None:
    """The last value of each key, as a table; nothing goes out."""
    del target
    app.stream(source, value=bytes_()).group_by_key().reduce(lambda old, new: new, name=STORE)


def latest_every_update(app: Streams, source: str, target: str) -> None:
    """The same, and every update goes out."""
    grouped = app.stream(source, value=bytes_()).group_by_key()
    updates = grouped.reduce(lambda old, new: new, name=STORE, cached=False).to_stream()
    updates.to(target, value=bytes_())


def count_all(app: Streams, source: str, target: str) -> None:
    """How many records each key has had, as a table; nothing goes out."""
    del target
    app.stream(source, value=bytes_()).group_by_key().count(name=STORE)


MAKERS: Final[dict[str, Callable[[Streams, str, str], None]]] = {
    "bytes": bytes_functions,
    "json": json_functions,
    "json-expressions": json_expressions,
    "avro": avro_functions,
    "avro-expressions": avro_expressions,
    "avro-aggregate": avro_aggregate,
    "count": count_cached,
    "count-every-update": count_every_update,
    "count-all": count_all,
    "latest": latest,
    "latest-every-update": latest_every_update,
    "hashes": hashes,
    **operators.MAKERS,
    "flights": flights.functions,
    "flights-expressions": flights.expressions,
}


def make(application_id: str, name: str, source: str, target: str) -> Streams:
    """The application of a name."""
    key: Serde = string()
    app = Streams(application_id, key=key)
    MAKERS[name](app, source, target)
    return app
