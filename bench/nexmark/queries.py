"""Nexmark's queries as topologies.

`QUERIES[name].build(app, target)` builds one; its first line says what it answers. Values are Avro,
results JSON. An answer that changes is a table's updates, the last of a key is its answer; windows
give one record when they are over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from bench.nexmark.generator import AUCTIONS, BIDS, PERSONS
from kafkalite.streams import (
    Expression,
    Stream,
    Streams,
    Table,
    approx_distinct,
    avro,
    col,
    count,
    fold,
    hopping,
    int64,
    json,
    last,
    left,
    max_,
    mean,
    min_,
    right,
    session,
    string,
    struct,
    sum_,
    top_k,
    tumbling,
    when,
)

SIDE: Final = "side"  # q13: what 10,000 numbers stand for
SIDE_ROWS: Final = 10_000
EURO: Final = 0.908
SMALL, LARGE = 10_000, 1_000_000  # prices
LG_K: Final = 14  # of sketches: exact up to some thousand different values

Row = dict[str, Any]
Aggregates = dict[str, Any]


def schema(name: str, texts: str, numbers: str) -> Row:
    """Of Avro: fields of text and whole numbers."""
    fields = dict.fromkeys(texts.split(), "string") | dict.fromkeys(numbers.split(), "long")
    described = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": described}


SCHEMAS: Final = {
    PERSONS: schema("Person", "name emailAddress creditCard city state extra", "id dateTime"),
    AUCTIONS: schema(
        "Auction", "itemName description extra",
        "id initialBid reserve dateTime expires seller category",
    ),
    BIDS: schema("Bid", "channel url extra", "auction bidder price dateTime"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """A topology, and the topics that it reads."""

    build: Callable[[Streams, str], None]
    topics: tuple[str, ...] = (BIDS,)


def bids_of(app: Streams) -> Stream[str, Any]:
    """Bids; the key is the auction."""
    return app.stream(BIDS, value=avro(schema=SCHEMAS[BIDS]))


def auctions_of(app: Streams) -> Table[str, Any]:
    """Auctions; the key is their number."""
    return app.table(AUCTIONS, value=avro(schema=SCHEMAS[AUCTIONS]))


def answer(result: Stream[Any, Any] | Table[Any, Any], target: str) -> None:
    """Writes it; a table's updates."""
    stream = result.to_stream() if isinstance(result, Table) else result
    stream.to(target, value=json())


# ---- each event by itself ----------------------------------------------------------------------


def q0(app: Streams, target: str) -> None:
    """All bids as they are."""
    bids_of(app).to(target)


def q1(app: Streams, target: str) -> None:
    """All bids, their prices in euros."""
    answer(bids_of(app).assign(price=col("price") * EURO), target)


def q2(app: Streams, target: str) -> None:
    """The prices bid for some auctions: those whose number is a multiple of 123."""
    answer(bids_of(app).filter(col("auction") % 123 == 0).select("auction", "price"), target)


def q14(app: Streams, target: str) -> None:
    """Bids of some price, with the time of day, and how many letters c they have."""
    hour, price = col("dateTime").dt.hour(), col("price") * EURO
    time_of_day = (
        when(hour.between(8, 18)).then("day").when((hour <= 6) | (hour >= 20)).then("night")
    ).otherwise("other")
    bids = bids_of(app).filter((price > 1_000_000) & (price < 50_000_000))
    chosen = bids.select(
        "auction", "bidder", "dateTime", "extra", price=price, bidTimeType=time_of_day,
        c_counts=col("extra").str.split("c").list.len() - 1,
    )  # fmt: skip
    answer(chosen, target)


def q22(app: Streams, target: str) -> None:
    """The folders in a bid's URL."""
    parts = col("url").str.split("/").list
    folders = {"dir1": parts.get(3), "dir2": parts.get(4), "dir3": parts.get(5)}
    kept = {name: col(name) for name in ("auction", "bidder", "price", "channel")}
    answer(bids_of(app).map(struct(**kept, **folders)), target)


# ---- joins -------------------------------------------------------------------------------------


def q3(app: Streams, target: str) -> None:
    """Who sells things of category 10 in three states: a join by foreign key."""
    people = app.table(PERSONS, value=avro(schema=SCHEMAS[PERSONS]))
    near = people.filter(col("state").is_in(["OR", "ID", "CA"]))
    chosen = auctions_of(app).filter(col("category") == 10)
    offer = struct(id=left("id"), **{name: right(name) for name in ("name", "city", "state")})
    answer(chosen.join(near, offer, foreign_key=col("seller").cast("string")), target)


def in_time(app: Streams) -> Stream[str, Any]:
    """Bids with their auction's category, seller and reserve; late ones are left out."""
    of_bid = {name: left(name) for name in ("auction", "bidder", "price", "dateTime")}
    of_auction = {name: right(name) for name in ("category", "seller", "reserve", "expires")}
    both = bids_of(app).join(auctions_of(app), struct(**of_bid, **of_auction))
    return both.filter(col("dateTime") <= col("expires"))


def q4(app: Streams, target: str) -> None:
    """The mean of the highest bids of all auctions of a category."""
    best = in_time(app).group_by_key().aggregate(category=last("category"), price=max_("price"))
    by_category = best.group_by("category", value="price", key=int64())
    answer(by_category.aggregate(mean()), target)


def q9(app: Streams, target: str) -> None:
    """The winning bid of each auction: the highest, of equal ones the earliest."""
    winning = in_time(app).group_by_key().reduce(lambda old, new: better(old, new))
    answer(winning, target)


def better(old: Any, new: Any) -> Any:
    return new if (new["price"], -new["dateTime"]) > (old["price"], -old["dateTime"]) else old


def q13(app: Streams, target: str) -> None:
    """Bids with what a fixed table says of the auction's number: a global table."""
    kept = {name: left(name) for name in ("auction", "bidder", "price", "dateTime")}
    side = app.global_table(SIDE, value=string())
    number = (col("auction") % SIDE_ROWS).cast("string")
    answer(bids_of(app).join(side, struct(**kept, value=right()), key=number), target)


def q20(app: Streams, target: str) -> None:
    """Bids for auctions of category 10, with all that is known of the auction."""
    of_bid = {name: left(name) for name in fields(BIDS)}
    of_auction = {f"auction_{name}": right(name) for name in fields(AUCTIONS)}
    chosen = auctions_of(app).filter(col("category") == 10)
    answer(bids_of(app).join(chosen, struct(**of_bid, **of_auction)), target)


def fields(topic: str) -> list[str]:
    return [field["name"] for field in SCHEMAS[topic]["fields"]]


# ---- windows -----------------------------------------------------------------------------------


def highest(records: Iterable[Any], of: str) -> list[Any]:
    """Those with the greatest value of a field."""
    kept = list(records)
    top = max(record[of] for record in kept)
    return [record for record in kept if record[of] == top]


def q5(app: Streams, target: str) -> None:
    """The auctions with most bids in the last 10 s, every 2 s: windows, then the most of each."""
    counts = bids_of(app).group_by_key().window(hopping("10s", "2s")).count().final()
    ended = counts.map_pairs(lambda w, n: (str(w.end), {"auction": w.key, "num": n}))
    most = ended.group_by_key().aggregate(
        fold(list, lambda best, row: highest([*best, row], "num"))
    )
    answer(most, target)


def q7(app: Streams, target: str) -> None:
    """The highest bids of every 10 s: of each auction first, then of all."""

    def bid(record: Any) -> Row:
        return {name: record[name] for name in ("auction", "bidder", "price", "dateTime")}

    window = tumbling("10s")
    of_auction = bids_of(app).map(bid).group_by_key().window(window)
    best = of_auction.aggregate(fold(list, lambda best, bid: highest([*best, bid], "price")))
    everywhere = best.final().group_by(lambda _: "all").window(window)
    answer(
        everywhere.aggregate(
            fold(list, lambda best, more: highest([*best, *more], "price"))
        ).final(),
        target,
    )


def q8(app: Streams, target: str) -> None:
    """Who has registered and sold something within the same 10 s: two windowed tables joined."""
    window = tumbling("10s")
    people = app.stream(PERSONS, value=avro(schema=SCHEMAS[PERSONS]))
    auctions = app.stream(AUCTIONS, value=avro(schema=SCHEMAS[AUCTIONS]))
    new = people.group_by_key().window(window).aggregate(last("name"))
    sold = auctions.group_by(col("seller").cast("string")).window(window).count()
    answer(new.join(sold, lambda name, _: name).final(), target)


def q11(app: Streams, target: str) -> None:
    """How many bids a bidder makes before a pause of 10 s."""
    bidders = bids_of(app).group_by(col("bidder").cast("string"))
    answer(bidders.window(session("10s")).count().final(), target)


def q12(app: Streams, target: str) -> None:
    """How many bids of a bidder come in every 10 s of the worker's own clock."""
    bids = app.stream(
        BIDS, value=avro(schema=SCHEMAS[BIDS]), timestamp=lambda _: time.time_ns() // 1_000_000
    )
    bidders = bids.group_by(col("bidder").cast("string"))
    answer(bidders.window(tumbling("10s")).count(), target)


# ---- statistics --------------------------------------------------------------------------------


def ranks(what: str) -> dict[str, Expression]:
    """A field of all bids, and of the cheap, the usual and the dear ones."""
    price = col("price")
    return {
        f"total_{what}s": col(what),
        f"rank1_{what}s": when(price < SMALL).then(col(what)),
        f"rank2_{what}s": when((price >= SMALL) & (price < LARGE)).then(col(what)),
        f"rank3_{what}s": when(price >= LARGE).then(col(what)),
    }


def bids_by_rank() -> Aggregates:
    return {name.replace("auction", "bid"): count(of) for name, of in ranks("auction").items()}


def statistics() -> Aggregates:
    """Aggregates of q15 and q16."""
    different: Aggregates = {
        name: approx_distinct(of, lg_k=LG_K)
        for what in ("bidder", "auction")
        for name, of in ranks(what).items()
    }
    return bids_by_rank() | different


def q15(app: Streams, target: str) -> None:
    """Of each day: bids, and how many different bidders and auctions, by price."""
    days = bids_of(app).group_by(lambda _: "all").window(tumbling("1d"))
    answer(days.aggregate(**statistics()), target)


def q16(app: Streams, target: str) -> None:
    """The same of each channel and day, with the minute of the last bid."""
    days = bids_of(app).group_by("channel").window(tumbling("1d"))
    minute = max_(col("dateTime").dt.truncate("1m"))
    answer(days.aggregate(minute=minute, **statistics()), target)


def q17(app: Streams, target: str) -> None:
    """Of each auction and day: bids by price, the least, greatest, mean price and the sum."""
    days = bids_of(app).group_by_key().window(tumbling("1d"))
    prices: Aggregates = {"min_price": min_("price"), "max_price": max_("price")}
    sums: Aggregates = {"avg_price": mean("price"), "sum_price": sum_("price")}
    answer(days.aggregate(None, **bids_by_rank(), **prices, **sums), target)


def q18(app: Streams, target: str) -> None:
    """The last bid of each bidder for each auction."""
    pair = col("bidder").cast("string") + "-" + col("auction").cast("string")
    answer(bids_of(app).group_by(pair).aggregate(last()), target)


def q19(app: Streams, target: str) -> None:
    """The ten highest bids of each auction: price, bidder, time."""
    rows = top_k(10, lambda bid: [bid["price"], bid["bidder"], bid["dateTime"]])
    answer(bids_of(app).group_by_key().aggregate(rows), target)


QUERIES: Final = {
    "q0": Query(q0),
    "q1": Query(q1),
    "q2": Query(q2),
    "q3": Query(q3, (AUCTIONS, PERSONS)),
    "q4": Query(q4, (BIDS, AUCTIONS)),
    "q5": Query(q5),
    "q7": Query(q7),
    "q8": Query(q8, (PERSONS, AUCTIONS)),
    "q9": Query(q9, (BIDS, AUCTIONS)),
    "q11": Query(q11),
    "q12": Query(q12),
    "q13": Query(q13),
    "q14": Query(q14),
    "q15": Query(q15),
    "q16": Query(q16),
    "q17": Query(q17),
    "q18": Query(q18),
    "q19": Query(q19),
    "q20": Query(q20, (BIDS, AUCTIONS)),
    "q22": Query(q22),
}


def make(application_id: str, name: str, source: str, target: str) -> Streams:
    """The application of a query; it knows its sources itself."""
    del source
    app = Streams(application_id, key=string())
    QUERIES[name].build(app, target)
    return app
