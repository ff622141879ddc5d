"""What a type checker refuses of topologies: one error at each line marked with its text."""

from __future__ import annotations

from typing import TypedDict

from kafkalite.streams import (
    Processor,
    ProcessorContext,
    Record,
    Serde,
    Stream,
    Streams,
    Table,
    col,
    count,
    fold,
    int64,
    json,
    store,
    string,
    sum_,
    tumbling,
    windowed,
)


class Order(TypedDict):
    id: int
    user: str


orders_serde: Serde[Order] = json()
app = Streams("wrong", key=string())
texts = app.stream("texts", value=string())
ints = app.stream("ints", value=int64())
orders = app.stream("orders", value=orders_serde)

# What functions do with a value, a key, a record
texts.filter(lambda v: v.amount > 3)  # E: "str" has no attribute "amount"
orders.filter(lambda v: v["usr"])  # E: TypedDict "Order" has no key "usr"
orders.map(lambda v: v["id"].upper())  # E: "int" has no attribute "upper"
orders.map(lambda v: v["id"]).map(lambda n: n.upper())  # E: "int" has no attribute "upper"
ints.map(lambda k, v: k + v, with_key=True)  # E: No overload variant of "map"
ints.filter(lambda r: r.value.upper(), with_record=True)  # E: No overload variant of "filter"
ints.peek(lambda r: r.stamp, with_record=True)  # E: No overload variant of "peek"
ints.map(lambda k, v: v)  # E: expected "Callable[[int], Any] | str | Expression"
ints.flat_map(lambda v: v)  # E: expected "Iterable[
ints.map_async(lambda v: v)  # E: Awaitable[Any]
ints.select_key(lambda v: v.upper())  # E: "int" has no attribute "upper"
ints.map_pairs(lambda k, v: v)  # E: expected "tuple[
ints.branch(lambda v: v > 1, lambda v: v.upper())  # E: "int" has no attribute "upper"
ints.peek("field")  # E: No overload variant of "peek"
ints.for_each(col("x"))  # E: No overload variant of "for_each"
ints.filter(lambda v: v, nme="small")  # E: Unexpected keyword argument "nme"

# Serdes that cannot write what the stream has
ints.to("out", value=string())  # E: expected "Serializer[int] | None"
ints.to("out", key=int64())  # E: expected "Serializer[str] | None"
ints.repartition(value=string())  # E: expected "Serializer[int] | None"
ints.to_table(key=int64())  # E: expected "Serializer[str] | None"
ints.group_by_key(value=string())  # E: expected "Serializer[int] | None"
app.stream("more", value=string)  # E: No overload variant of "stream"

# Streams of different types
ints.merge(texts)  # E: expected "Stream[str, int]"
wrong: Stream[str, int] = texts  # E: variable has type "Stream[str, int]"

# Joins
ints.join(texts, lambda n, t: n + t, within=5)  # E: Unsupported operand types for +
ints.join(ints, max, within=5, how="full")  # E: No overload variant of "join"

# Groups, aggregates, tables
groups = orders.group_by(lambda v: v["user"])
orders.group_by(lambda v: v["usr"])  # E: TypedDict "Order" has no key "usr"
groups.aggregate(n=sum_(lambda v: v["usr"]))  # E: TypedDict "Order" has no key "usr"
groups.aggregate(fold(0, lambda n, v: n + v["user"]))  # E: Unsupported operand types for +
groups.aggregate(n=3)  # E: No overload variant of "aggregate"
groups.reduce(lambda a, v: v["id"])  # E: incompatible type "Callable[
ints.group_by_key().reduce(lambda a, v: str(a + v))  # E: expected "int"
groups.count(value=string())  # E: expected "Serializer[int] | None"
groups.count().final()  # E: Invalid self argument "Table[str, int]"
groups.cogroup(lambda n, v: n + v["usr"])  # E: TypedDict "Order" has no key "usr"
groups.count().suppress(name=3)  # E: Missing positional argument "limit"
windows = groups.window(tumbling("1m"))
windows.count().filter(lambda k, n: k.upper(), with_key=True)  # E: No overload variant of "filter"
windows.count().to_stream().to("out", key=int64())  # E: expected "Serializer[Windowed[str]]
windows.count().to_stream().to("out", key=windowed(int64()))  # E: expected "Serde[str]"
groups.count().map(lambda n: n.user)  # E: "int" has no attribute "user"
groups.count().join(groups.count(), lambda a, b: a.x)  # E: "int" has no attribute "x"
table: Table[int, int] = groups.count()  # E: variable has type "Table[int, int]"
app.table("t", value=string()).group_by(lambda v: v.x)  # E: "str" has no attribute "x"
groups.aggregate(count()).to_stream().map(lambda n: n.x)  # E: "int" has no attribute "x"
orders.match(a="x", b=lambda o: o["usr"], within=1)  # E: TypedDict "Order" has no key "usr"
orders.match(a="x", b=lambda o, m: o, within=1)  # E: incompatible type "Callable[[Any, Any]

# Processors
COUNTS = store("counts", key=string(), value=int64())


class Lengths(Processor[str, str, str, int]):
    """Forwards the lengths of texts."""

    def init(self, context: ProcessorContext[str, int]) -> None:
        self.context = context
        context.store(COUNTS).put(1, 1)  # E: incompatible type "int"; expected "str"
        context.schedule("1s", "event_time", print)  # E: incompatible type "Literal['event_time']"

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)  # E: incompatible type "Record[str, str]"
        record.value.bit_length()  # E: "str" has no attribute "bit_length"


ints.process(Lengths)  # E: incompatible type "type[Lengths]"
texts.process(Lengths).map(lambda n: n.upper())  # E: "int" has no attribute "upper"
