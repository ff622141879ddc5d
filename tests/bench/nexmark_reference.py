"""What Nexmark's queries answer, from a list of all events: plain Python, no engine.

Each function gives the answers as {key: value}, or a list where an answer has no key. Windows are
those that are over at the newest event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from statistics import mean
from typing import Any

from bench.nexmark.generator import AUCTIONS, BIDS, PERSONS, Event

Row = dict[str, Any]
DAY = 86_400_000


def values(events: Iterable[Event], topic: str) -> list[Row]:
    return [event.value for event in events if event.topic == topic]


def only(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def starts(at: int, size: int, advance: int) -> list[int]:
    """Of the windows that hold a time."""
    return [start for start in range(at // advance * advance, at - size, -advance) if start >= 0]


def q0(events: list[Event]) -> list[Row]:
    return values(events, BIDS)


def q1(events: list[Event]) -> list[Row]:
    return [{**bid, "price": bid["price"] * 0.908} for bid in values(events, BIDS)]


def q2(events: list[Event]) -> list[Row]:
    bids = values(events, BIDS)
    return [only(bid, "auction", "price") for bid in bids if bid["auction"] % 123 == 0]


def q3(events: list[Event]) -> dict[str, Row]:
    people = {person["id"]: person for person in values(events, PERSONS)}
    found = {}
    for auction in values(events, AUCTIONS):
        seller = people[auction["seller"]]
        if auction["category"] == 10 and seller["state"] in ("OR", "ID", "CA"):
            row = only(seller, "name", "city", "state") | {"id": auction["id"]}
            found[str(auction["id"])] = row
    return found


def winners(events: list[Event]) -> dict[int, Row]:
    """The best bid of each auction, with what q4 and q9 want of the auction."""
    auctions = {auction["id"]: auction for auction in values(events, AUCTIONS)}
    offers: dict[int, list[Row]] = defaultdict(list)
    for bid in values(events, BIDS):
        auction = auctions[bid["auction"]]
        if auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            row = only(bid, "auction", "bidder", "price", "dateTime")
            row |= only(auction, "category", "seller", "reserve", "expires")
            offers[bid["auction"]].append(row)
    return {
        number: min(rows, key=lambda row: (-row["price"], row["dateTime"]))
        for number, rows in offers.items()
    }


def q4(events: list[Event]) -> dict[int, float]:
    prices = defaultdict(list)
    for best in winners(events).values():
        prices[best["category"]].append(best["price"])
    return {category: mean(found) for category, found in prices.items()}


def q5(events: list[Event]) -> dict[str, list[Row]]:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for bid in values(events, BIDS):
        for start in starts(bid["dateTime"], 10_000, 2_000):
            counts[start + 10_000][str(bid["auction"])] += 1
    newest = max(bid["dateTime"] for bid in values(events, BIDS))
    return {
        str(end): [
            {"auction": auction, "num": n}
            for auction, n in found.items()
            if n == max(found.values())
        ]
        for end, found in counts.items()
        if end <= newest
    }


def q7(events: list[Event]) -> dict[tuple[str, int], list[Row]]:
    """Windows of windows: the second is over when the first one of a later time is."""
    windows: dict[int, list[Row]] = defaultdict(list)
    bids = values(events, BIDS)
    for bid in bids:
        windows[bid["dateTime"] // 10_000 * 10_000].append(bid)
    newest = max(bid["dateTime"] for bid in bids)
    over = sorted(start for start in windows if start + 10_000 <= newest)
    return {
        ("all", start): [
            only(bid, "auction", "bidder", "price", "dateTime")
            for bid in found
            if bid["price"] == max(b["price"] for b in found)
        ]
        for start, found in windows.items()
        if start in over[:-1]
    }


def q8(events: list[Event]) -> dict[tuple[str, int], str]:
    """A window is over when a later one has somebody."""
    new = {(p["id"], p["dateTime"] // 10_000): p["name"] for p in values(events, PERSONS)}
    sold = {(a["seller"], a["dateTime"] // 10_000) for a in values(events, AUCTIONS)}
    found = sold & new.keys()
    newest = max(window for _, window in found)
    return {
        (str(seller), window * 10_000): new[seller, window]
        for seller, window in found
        if window < newest
    }


def q9(events: list[Event]) -> dict[str, Row]:
    return {str(number): row for number, row in winners(events).items()}


def q11(events: list[Event]) -> list[tuple[str, int, int, int]]:
    times = defaultdict(list)
    bids = values(events, BIDS)
    for bid in bids:
        times[str(bid["bidder"])].append(bid["dateTime"])
    newest = max(bid["dateTime"] for bid in bids)
    found = []
    for bidder, at in times.items():
        session: list[int] = []
        for time in sorted(at):
            if session and time - session[-1] > 10_000:
                found.append((bidder, session[0], session[-1], len(session)))
                session = []
            session.append(time)
        if session[-1] + 10_000 < newest:
            found.append((bidder, session[0], session[-1], len(session)))
    return found


def q12(events: list[Event]) -> Counter[str]:
    """Without windows, which depend on the clock."""
    return Counter(str(bid["bidder"]) for bid in values(events, BIDS))


def q13(events: list[Event]) -> list[Row]:
    return [
        only(bid, "auction", "bidder", "price", "dateTime")
        | {"value": side_value(bid["auction"] % 10_000)}
        for bid in values(events, BIDS)
    ]


def side_value(number: int) -> str:
    return f"side-{number}"


def time_of_day(at: int) -> str:
    hour = datetime.fromtimestamp(at / 1_000, UTC).hour
    if 8 <= hour <= 18:
        return "day"
    return "night" if hour <= 6 or hour >= 20 else "other"


def q14(events: list[Event]) -> list[Row]:
    return [
        only(bid, "auction", "bidder", "dateTime", "extra")
        | {
            "price": bid["price"] * 0.908,
            "bidTimeType": time_of_day(bid["dateTime"]),
            "c_counts": bid["extra"].count("c"),
        }
        for bid in values(events, BIDS)
        if 1_000_000 < bid["price"] * 0.908 < 50_000_000
    ]


def by_rank(bids: list[Row]) -> dict[str, list[Row]]:
    return {
        "total": bids,
        "rank1": [bid for bid in bids if bid["price"] < 10_000],
        "rank2": [bid for bid in bids if 10_000 <= bid["price"] < 1_000_000],
        "rank3": [bid for bid in bids if bid["price"] >= 1_000_000],
    }


def statistics(bids: list[Row]) -> Row:
    row: Row = {}
    for rank, found in by_rank(bids).items():
        row[f"{rank}_bids"] = len(found)
        row[f"{rank}_bidders"] = len({bid["bidder"] for bid in found})
        row[f"{rank}_auctions"] = len({bid["auction"] for bid in found})
    return row


def by_day(
    events: list[Event], name: Callable[[Row], str], of: Callable[[list[Row]], Row]
) -> dict[tuple[str, int], Row]:
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for bid in values(events, BIDS):
        found[name(bid), bid["dateTime"] // DAY * DAY].append(bid)
    return {place: of(bids) for place, bids in found.items()}


def q15(events: list[Event]) -> dict[tuple[str, int], Row]:
    return by_day(events, lambda _: "all", statistics)


def q16(events: list[Event]) -> dict[tuple[str, int], Row]:
    def of(bids: list[Row]) -> Row:
        newest = max(bid["dateTime"] for bid in bids)
        return {"minute": newest // 60_000 * 60_000, **statistics(bids)}

    return by_day(events, lambda bid: str(bid["channel"]), of)


def q17(events: list[Event]) -> dict[tuple[str, int], Row]:
    def of(bids: list[Row]) -> Row:
        prices = [bid["price"] for bid in bids]
        least, greatest = min(prices), max(prices)
        counts = {f"{rank}_bids": len(found) for rank, found in by_rank(bids).items()}
        sums = {"avg_price": mean(prices), "sum_price": sum(prices)}
        return {**counts, "min_price": least, "max_price": greatest, **sums}

    return by_day(events, lambda bid: str(bid["auction"]), of)


def q18(events: list[Event]) -> dict[str, Row]:
    return {f"{bid['bidder']}-{bid['auction']}": bid for bid in values(events, BIDS)}


def q19(events: list[Event]) -> dict[str, list[list[int]]]:
    found = defaultdict(list)
    for bid in values(events, BIDS):
        found[str(bid["auction"])].append([bid["price"], bid["bidder"], bid["dateTime"]])
    return {auction: sorted(rows, reverse=True)[:10] for auction, rows in found.items()}


def q20(events: list[Event]) -> list[Row]:
    chosen = {a["id"]: a for a in values(events, AUCTIONS) if a["category"] == 10}
    return [
        {**bid, **{f"auction_{name}": found for name, found in chosen[bid["auction"]].items()}}
        for bid in values(events, BIDS)
        if bid["auction"] in chosen
    ]


def q22(events: list[Event]) -> list[Row]:
    return [
        only(bid, "auction", "bidder", "price", "channel")
        | {f"dir{i}": part for i, part in enumerate(bid["url"].split("/")[3:6], 1)}
        for bid in values(events, BIDS)
    ]
