"""Joins, sessions and sliding windows: what `java/Operators.java` computes with Kafka Streams.

A source of two topics is `orders,payments`: the left one first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kafkalite.streams import (
    Stream,
    Streams,
    bytes_,
    float64,
    int64,
    json,
    left,
    mean,
    right,
    session,
    sliding,
    struct,
)

STORE: Final = "st"
JOINED_WITHIN: Final = "10s"
GAP: Final = "30s"
DIFFERENCE: Final = "10s"
GRACE: Final = "10s"

Json = dict[str, Any]


def streams(app: Streams, source: str) -> list[Stream[Any, Json]]:
    return [app.stream(topic, value=json()) for topic in source.split(",")]


def stream_join(app: Streams, source: str, target: str) -> None:
    def paid(order: Json, payment: Json) -> Json:
        kept = {"id": order["id"], "user": order["user"], "amount": order["amount"]}
        return {**kept, "paid": payment["amount"]}

    orders, payments = streams(app, source)
    orders.join(payments, paid, within=JOINED_WITHIN).to(target, value=json())


def stream_join_expressions(app: Streams, source: str, target: str) -> None:
    orders, payments = streams(app, source)
    kept = {name: left(name) for name in ("id", "user", "amount")}
    paid = struct(**kept, paid=right("amount"))
    orders.join(payments, paid, within=JOINED_WITHIN).to(target, value=json())


def table_join(app: Streams, source: str, target: str) -> None:
    def known(visit: Json, user: Json) -> Json:
        return {"id": visit["id"], "amount": visit["amount"], "limit": user["amount"]}

    visits, users = source.split(",")
    joined = app.stream(visits, value=json()).join(app.table(users, value=json()), known)
    joined.to(target, value=json())


def session_count(app: Streams, source: str, target: str) -> None:
    sessions = app.stream(source, value=bytes_()).group_by_key().window(session(GAP))
    sessions.count(name=STORE).to_stream().to(target, value=int64())


def _sliding_mean(app: Streams, source: str, target: str, amount: Any) -> None:
    visits = app.stream(source, value=json()).group_by_key()
    windows = visits.window(sliding(DIFFERENCE, grace=GRACE))
    windows.aggregate(mean(amount), name=STORE).to_stream().to(target, value=float64())


def sliding_mean(app: Streams, source: str, target: str) -> None:
    _sliding_mean(app, source, target, lambda visit: visit["amount"])


def sliding_mean_expressions(app: Streams, source: str, target: str) -> None:
    _sliding_mean(app, source, target, "amount")


def foreign_join(app: Streams, source: str, target: str) -> None:
    def billed(purchase: Json, user: Json) -> Json:
        return {"id": purchase["id"], "amount": purchase["amount"], "limit": user["amount"]}

    purchases, users = (app.table(topic, value=json()) for topic in source.split(","))
    bills = purchases.join(users, billed, foreign_key=lambda purchase: purchase["user"])
    bills.to_stream().to(target, value=json())


MAKERS: Final[dict[str, Callable[[Streams, str, str], None]]] = {
    "stream-join": stream_join,
    "stream-join-expressions": stream_join_expressions,
    "table-join": table_join,
    "session-count": session_count,
    "sliding-mean": sliding_mean,
    "sliding-mean-expressions": sliding_mean_expressions,
    "foreign-join": foreign_join,
}
