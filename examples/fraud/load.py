"""Writes cards, merchants and a day of payments, made up, into topics of these names.

    python examples/fraud/load.py [-b HOST:PORT] [--cards 2000]

Of a hundred cards one is tried out, and one pays in two places at once. Another one pays the same
amounts as a thief, but its owner confirms a payment; and one travels. Nobody should be alarmed by
these two.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

DAY_MS = 1_767_571_200_000  # 2026-01-05
MINUTE, HOUR = 60_000, 3_600_000
COUNTRIES = ["AT", "DE", "FR", "IT"]
MERCHANTS = 200  # the n-th is in the country n % 4
OWNERS = ["Ada", "Ben", "Cleo", "Dirk", "Eva", "Finn", "Gita", "Hugo", "Ines", "Jan"]

Rows = list[tuple[str, dict[str, Any], int]]  # key, value, timestamp


def cards(count: int) -> Rows:
    """Each card with its owner, its country and its limit."""
    return [
        (f"card-{n}", {"owner": OWNERS[n % 10], "country": COUNTRIES[n % 4], "limit": 500}, DAY_MS)
        for n in range(count)
    ]


def merchants() -> Rows:
    """Each merchant with its name and country."""
    return [
        (f"m-{n}", {"name": f"Merchant {n}", "country": COUNTRIES[n % 4]}, DAY_MS)
        for n in range(MERCHANTS)
    ]


def payments(count: int, seed: int = 1) -> Rows:
    """The payments of so many cards in the order of their times."""
    random = Random(seed)
    rows = [
        (f"card-{n}", {"merchant": merchant, "amount": amount, "pin": pin, "at": at}, at)
        for n in range(count)
        for at, merchant, amount, pin in scene(n, random)
    ]
    return sorted(rows, key=lambda row: row[2])


def scene(card: int, random: Random) -> Iterator[tuple[int, str, float, bool]]:
    """What happens with a card in a day: time, merchant, amount, and whether by PIN."""
    at = DAY_MS + random.randrange(HOUR, 18 * HOUR)
    home, abroad = (f"m-{random.randrange(MERCHANTS // 4) * 4 + (card + n) % 4}" for n in (0, 1))
    match card % 100:
        case 7:  # tried out
            yield at, home, 0.5, False
            yield at + 2 * MINUTE, home, 39.0, False
            yield at + 6 * MINUTE, home, 890.0, False
        case 28:  # in two places
            yield at, home, 25.0, True
            yield at + 9 * MINUTE, abroad, 310.0, False
        case 49:  # the owner confirms a payment
            yield at, home, 0.5, False
            yield at + 2 * MINUTE, home, 39.0, True
            yield at + 6 * MINUTE, home, 890.0, False
        case 70:  # the owner travels
            yield at, home, 25.0, True
            yield at + 3 * HOUR, abroad, 310.0, True
        case _:
            for _ in range(random.randrange(1, 9)):
                amount = round(random.uniform(3, 900 if random.random() < 0.05 else 450), 2)
                yield (
                    DAY_MS + random.randrange(HOUR, 24 * HOUR),
                    home,
                    amount,
                    random.random() < 0.5,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--cards", type=int, default=2_000)
    given = parser.parse_args()
    tables = {
        "cards": cards(given.cards),
        "merchants": merchants(),
        "payments": payments(given.cards),
    }
    kept = {"retention.ms": "-1"}  # the records are of a day in the past
    with Admin(given.bootstrap_servers) as admin, Producer(given.bootstrap_servers) as producer:
        admin.create_missing_topics([NewTopic(topic, 4, configs=kept) for topic in tables])
        for topic, rows in tables.items():
            keys, values, times = zip(*rows, strict=True)
            texts = [json.dumps(value).encode() for value in values]
            producer.send_columns(topic, Columns([key.encode() for key in keys], texts, times))
            print(f"{topic}: {len(rows):,} records")


if __name__ == "__main__":
    try:
        main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
