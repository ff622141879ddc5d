"""Every operator with typed functions: `mypy --strict` finds no error, and the topology runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict, assert_type

from kafkalite.streams import (
    Aggregate,
    Cogrouped,
    Columns,
    GlobalTable,
    Grouped,
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    Serde,
    Stream,
    Streams,
    Table,
    TopologyTestDriver,
    Windowed,
    WindowStore,
    approx_distinct,
    avro,
    col,
    collect,
    count,
    first,
    fold,
    int64,
    json,
    left,
    max_,
    mean,
    quantiles,
    reduce_,
    repeated,
    right,
    session,
    sliding,
    store,
    string,
    sum_,
    top_k,
    tumbling,
    windowed,
)


class Order(TypedDict):
    id: int
    user: str
    amount: float
    note: str | None


orders_serde: Serde[Order] = json()

# The application's serdes stand where a topic has none of its own.
app = Streams("typed", key=string(), value=json())
assert_type(app, Streams[str, Any])
orders = app.stream("orders", value=orders_serde, timestamp=lambda o: o["id"])
assert_type(orders, Stream[str, Order])
assert_type(app.stream("plain"), Stream[str, Any])
assert_type(app.stream("numbers", key=int64()), Stream[int, Any])
assert_type(app.stream(["a", "b"], key=int64(), value=string()), Stream[int, str])
annotated: Stream[str, Order] = app.stream("annotated", value=avro())
assert_type(app.table("users", value=string()), Table[str, str])


# Joins with a global table
customers = app.global_table("customers", value=string())
assert_type(customers, GlobalTable[str, str])
assert_type(
    orders.join(customers, lambda o, c: c + o["user"], key=lambda o: o["user"]), Stream[str, str]
)
assert_type(
    orders.join(customers, lambda o, c: c is None, key="user", how="left"), Stream[str, bool]
)
assert_type(orders.join(customers, lambda k, o, c: (k, o["id"]), key=lambda k, o: k, with_key=True),
            Stream[str, tuple[str, int]])  # fmt: skip


# Tables by a foreign key
sales, buyers = app.table("sales", value=orders_serde), app.table("buyers", value=string())
assert_type(
    sales.join(buyers, lambda o, b: o["id"], foreign_key=lambda o: o["user"]), Table[str, int]
)
assert_type(
    sales.join(buyers, lambda o, b: b is None, foreign_key="user", how="left"), Table[str, bool]
)
assert_type(
    sales.join(buyers, lambda k, o, b: (k, b), foreign_key=lambda k, o: k, with_key=True),
    Table[str, tuple[str, Any]],
)


def untyped(stream: Stream, application: Streams) -> Table:
    """Parameters that are not given are Any."""
    return stream.group_by("x").aggregate(n=count())


# Operators that keep the value
large = orders.filter(lambda o: o["amount"] > 3).filter_not(lambda o: o["user"] == "eve")
assert_type(large, Stream[str, Order])
assert_type(orders.filter("note"), Stream[str, Order])
assert_type(orders.filter(col("amount") > 3), Stream[str, Order])
assert_type(orders.filter(lambda k, o: k == o["user"], with_key=True), Stream[str, Order])
assert_type(orders.filter(lambda r: r.timestamp > r.value["id"], with_record=True, name="late"),
            Stream[str, Order])  # fmt: skip
seen: list[str] = []
assert_type(orders.peek(lambda o: seen.append(o["user"])), Stream[str, Order])
assert_type(orders.peek(lambda k, o: seen.append(k), with_key=True), Stream[str, Order])
orders.for_each(lambda o: seen.append(o["user"]))
orders.for_each(lambda r: seen.append(r.key + r.value["user"]), with_record=True)
small, rest = orders.branch(lambda o: o["amount"] < 1, default=True)
assert_type(small, Stream[str, Order])
orders.branch(lambda k, o: k == o["user"], lambda k, o: not o["id"], with_key=True)
assert_type(small.merge(rest), Stream[str, Order])

# Joins: a side that may have no partner is None
numbers = orders.map(lambda o: o["id"])
assert_type(orders.join(numbers, lambda o, n: o["id"] + n, within="1m"), Stream[str, int])
assert_type(
    orders.join(
        numbers, lambda o, n: o["id"] if n is None else n, within=("1m", "-1s"), how="left"
    ),
    Stream[str, int],
)
assert_type(
    orders.join(numbers, lambda o, n: (o is None, n is None), within=5, how="outer", grace="1s"),
    Stream[str, tuple[bool, bool]],
)
assert_type(orders.join(numbers, left("id") + right(), within=5), Stream[str, Any])
assert_type(
    orders.join_as_of(numbers, lambda o, n: o["id"] + n, tolerance="1m", name="as-of"),
    Stream[str, int],
)
assert_type(
    orders.join(numbers, lambda k, o, n: k.upper(), within=5, with_key=True, right_serde=int64()),
    Stream[str, str],
)


def together(a: Stream[str, int | str], b: Stream[str, int | str]) -> Stream[str, int | str]:
    """Streams of different values are one where both are taken as the wider type."""
    return a.merge(b)


ids = orders.map(lambda o: o["id"])
together(ids, orders.map(lambda o: o["user"])).to("mixed", value=json())
assert_type(orders.repartition(partitioner=lambda k, o, n: len(k) % n), Stream[str, Order])

# Operators that make another value, or another key
amounts = orders.map(lambda o: o["amount"])
assert_type(amounts, Stream[str, float])
assert_type(amounts.map(round).map(lambda n: n.bit_length()), Stream[str, int])
assert_type(orders.map(lambda k, o: (k, o["id"]), with_key=True), Stream[str, tuple[str, int]])
assert_type(orders.map(lambda r: r.timestamp, with_record=True), Stream[str, int])
assert_type(orders.map("amount"), Stream[str, Any])
assert_type(orders.map(col("amount") * 2), Stream[str, Any])
assert_type(orders.flat_map(lambda o: o["user"].split()), Stream[str, str])
assert_type(orders.select_key(lambda o: o["id"]), Stream[int, Order])
assert_type(orders.select_key(lambda k, o: k.encode(), with_key=True), Stream[bytes, Order])
assert_type(orders.select_key("user"), Stream[Any, Order])
assert_type(orders.map_pairs(lambda k, o: (o["id"], k)), Stream[int, str])
assert_type(orders.flat_map_pairs(lambda k, o: [(o["id"], k)]), Stream[int, str])
assert_type(orders.select("id", twice=col("amount") * 2), Stream[str, dict[str, Any]])
assert_type(orders.assign(big=col("amount") > 9).drop("note"), Stream[str, dict[str, Any]])


def halved(batch: Columns[str, Order]) -> Columns[str, float]:
    return Columns(batch.keys, [o["amount"] / 2 for o in batch.values], batch.timestamps)


assert_type(orders.map_batch(halved), Stream[str, float])


def words(record: Record[str, Order]) -> Iterator[str]:
    yield record.key + (record.value["note"] or "")


assert_type(orders.flat_map(words, with_record=True), Stream[str, str])


async def looked_up(order: Order) -> int:
    return order["id"]


async def paired(key: str, order: Order) -> tuple[str, int]:
    return key, order["id"]


async def stamped(record: Record[str, Order]) -> int:
    return record.timestamp


assert_type(orders.map_async(looked_up, concurrency=5, timeout="1s"), Stream[str, int])
assert_type(orders.map_async(lambda o: looked_up(o), ordered=False), Stream[str, int])
assert_type(orders.map_async(paired, with_key=True), Stream[str, tuple[str, int]])
assert_type(orders.map_async(stamped, with_record=True, retries=3), Stream[str, int])

# A function may give None; serdes write it as the null record.
notes = orders.map(lambda o: o["note"])
assert_type(notes, Stream[str, str | None])
notes.to("notes", value=string())
orders.to(lambda r: f"orders-{r.value['id']}", value=avro(), key=string())
amounts.to("amounts", create={"partitions": 3}, partitioner=lambda k, amount, n: int(amount) % n)

# Groups and windows
by_user = orders.group_by(lambda o: o["user"])
assert_type(by_user, Grouped[str, Order])
by_note = orders.group_by(lambda o: o["note"])  # None is left out
assert_type(by_note, Grouped[str, Order])
assert_type(orders.group_by("user", key=string()), Grouped[str, Order])
assert_type(orders.group_by(lambda k, o: (k, o["id"]), with_key=True),
            Grouped[tuple[str, int], Order])  # fmt: skip
assert_type(by_user.count(), Table[str, int])
assert_type(by_user.count().suppress("1m", max_records=9), Table[str, int])


def add_order(total: float, order: Order) -> float:
    return total + order["amount"]


bills = by_user.cogroup(add_order).cogroup(amounts.group_by_key(), lambda total, x: total - x)
assert_type(bills, Cogrouped[str, float])
assert_type(bills.aggregate(0.0), Table[str, float])
assert_type(bills.window(session("1m")).aggregate(float, merge=max),
            Table[Windowed[str], float])  # fmt: skip
assert_type(by_user.aggregate(approx_distinct(lambda o: o["id"])), Table[str, int])
assert_type(by_user.aggregate(quantiles(lambda o: o["amount"])), Table[str, list[float]])
per_minute = by_user.window(tumbling("1m", grace="5s"))
assert_type(per_minute, Grouped[Windowed[str], Order])
assert_type(by_user.window(session("30m", grace="1m")), Grouped[Windowed[str], Order])
assert_type(by_user.window(sliding("1m")).count(), Table[Windowed[str], int])

# Aggregates: a dict of the named ones, the bare value of one without a name
assert_type(
    per_minute.aggregate(
        n=count(),
        total=sum_(lambda o: o["amount"]),
        mean=mean(lambda o: o["amount"]),
        most=max_("amount"),
        note=first(lambda o: o["note"]),
        spread=fold(0.0, lambda a, o: a + o["amount"]),
    ),
    Table[Windowed[str], dict[str, Any]],
)
assert_type(by_user.aggregate(max_(lambda o: o["amount"])), Table[str, float])
assert_type(by_user.aggregate(mean("amount")), Table[str, float])
assert_type(by_user.aggregate(count(), value=int64()), Table[str, int])
assert_type(by_user.aggregate(first(lambda o: o["note"])), Table[str, str])
assert_type(by_user.aggregate(collect(lambda o: o["id"])), Table[str, list[int]])
assert_type(by_user.aggregate(collect()), Table[str, list[Order]])
assert_type(by_user.aggregate(top_k(3, lambda o: o["amount"])), Table[str, list[float]])
assert_type(by_user.aggregate(fold(lambda: 0, lambda n, o: n + o["id"])), Table[str, int])
assert_type(by_user.aggregate(fold(0, lambda n, o: n + o["id"])), Table[str, int])
assert_type(amounts.group_by_key().aggregate(reduce_(lambda a, b: a + b)), Table[str, float])
assert_type(amounts.group_by_key().reduce(lambda a, b: max(a, b)), Table[str, float])
spent: Aggregate[Order, float] = sum_(lambda o: o["amount"])
assert_type(by_user.aggregate(spent), Table[str, float])

# Tables
counts = per_minute.count(key=string(), name="counts")
assert_type(counts, Table[Windowed[str], int])
many = counts.filter(lambda n: n > 1).filter_not(lambda k, n: n > k.end, with_key=True)
assert_type(many, Table[Windowed[str], int])
assert_type(counts.map(lambda n: str(n) if n else None), Table[Windowed[str], str])  # None deletes
assert_type(counts.to_stream(), Stream[Windowed[str], int])
assert_type(many.final(), Stream[Windowed[str], int])
counts.final(name="last").to("counts", key=windowed(string(), "1m"), value=int64())
counts.to_stream().to("updates", key=string(), value=int64())  # the serde of the key in the window
counts.to_stream().map(lambda k, n: f"{k.key}: {n}", with_key=True).to("lines", value=string())
counts.late().to("late")
users = orders.to_table(value=orders_serde)
assert_type(users, Table[str, Order])
assert_type(orders.join(users, lambda o, u: o["id"] + u["id"]), Stream[str, int])
assert_type(orders.join(users, lambda o, u: u and u["id"], how="left"), Stream[str, int | None])
assert_type(users.join(users, lambda a, b: a["user"]), Table[str, str])
assert_type(users.join(users, lambda a, b: b and b["id"], how="left"), Table[str, int | None])
assert_type(users.join(users, lambda a, b: a or b, how="outer"), Table[str, Order | None])
assert_type(users.join(users, lambda k, a, b: k, with_key=True, how="left"), Table[str, str])
assert_type(users.group_by(lambda o: o["user"]), Grouped[str, Order])
assert_type(users.group_by(lambda o: o["user"], lambda o: o["amount"]), Grouped[str, float])
by_id = users.group_by(lambda k, o: o["id"], with_key=True, key=int64())
assert_type(by_id, Grouped[int, Order])
assert_type(users.group_by(lambda o: o["id"], "amount", key=int64()).count(), Table[int, int])
assert_type(users.select("id"), Table[str, dict[str, Any]])

assert_type(
    orders.match(first="user", then=lambda o: o["id"] > 3, not_between=col("id") < 0, within="1m"),
    Stream[str, dict[str, Any]],
)
MATCHES = orders.match(
    first=repeated("id", at_least=2),
    then=lambda order, so_far: order["id"] > so_far["first"][-1]["id"],
    with_matched=True,
    within="1m",
)
assert_type(MATCHES.unfinished(), Stream[str, dict[str, Any]])

# Processors
TOTALS = store("totals", key=string(), value=int64())
RECENT = store("recent", key=string(), value=int64(), retention="1h")


class Totals(Processor[str, Order, str, int]):
    """Counts ids by user."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        self.context = context
        self.totals = context.store(TOTALS)
        self.recent = context.store(RECENT)
        assert_type(self.totals, KeyValueStore[str, int])
        assert_type(self.recent, WindowStore[str, int])
        context.schedule("1m", "stream_time", self.report).cancel()

    def process(self, record: Record[str, Order]) -> None:
        total = (self.totals.get(record.key) or 0) + record.value["id"]
        self.totals.put(record.key, total)
        self.recent.put(record.key, total, record.timestamp)
        self.context.forward(Record(record.key, total, record.timestamp))

    def report(self, time: int) -> None:
        for key, total in self.totals.all():
            self.context.forward(Record(key, total, time))


class Plain:
    """Of no base class."""

    def init(self, context: ProcessorContext[int, str]) -> None: ...
    def process(self, record: Record[str, Order]) -> None: ...
    def close(self) -> None: ...


assert_type(orders.process(Totals, [TOTALS, RECENT]), Stream[str, int])
assert_type(orders.process_values(Totals, [TOTALS, "recent"]), Stream[str, int])
assert_type(orders.process(Plain), Stream[int, str])

driver = TopologyTestDriver(app)
driver.pipe("orders", Order(id=1, user="ann", amount=2.5, note=None), key="k")
assert [record.value for record in driver.read("lines")] == ["ann: 1"]
assert [record.value for record in driver.read("notes")] == [None]
