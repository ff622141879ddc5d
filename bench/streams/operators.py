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


def limited(row: Json, user: Json) -> Json:
    return {"id": row["id"], "amount": row["amount"], "limit": user["amount"]}


LIMITED: Final = struct(id=left("id"), amount=left("amount"), limit=right("amount"))  # the same


def _table_join(app: Streams, source: str, target: str, function: Any) -> None:
    visits, users = source.split(",")
    known = app.table(users, value=json())
    app.stream(visits, value=json()).join(known, function).to(target, value=json())


def table_join(app: Streams, source: str, target: str) -> None:
    _table_join(app, source, target, limited)


def table_join_expressions(app: Streams, source: str, target: str) -> None:
    _table_join(app, source, target, LIMITED)


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


def _foreign_join(app: Streams, source: str, target: str, function: Any, user: Any) -> None:
    purchases, users = (app.table(topic, value=json()) for topic in source.split(","))
    bills = purchases.join(users, function, foreign_key=user)
    bills.to_stream().to(target, value=json())


def foreign_join(app: Streams, source: str, target: str) -> None:
    _foreign_join(app, source, target, limited, lambda purchase: purchase["user"])


def foreign_join_expressions(app: Streams, source: str, target: str) -> None:
    _foreign_join(app, source, target, LIMITED, "user")


MAKERS: Final[dict[str, Callable[[Streams, str, str], None]]] = {
    "stream-join": stream_join,
    "stream-join-expressions": stream_join_expressions,
    "table-join": table_join,
    "table-join-expressions": table_join_expressions,
    "session-count": session_count,
    "sliding-mean": sliding_mean,
    "sliding-mean-expressions": sliding_mean_expressions,
    "foreign-join": foreign_join,
    "foreign-join-expressions": foreign_join_expressions,
}
