"""Writes a third of a day's orders and payments, made up, into topics of these names.

    python examples/moving/load.py [-b HOST:PORT] [--third 1] [--orders 3000]

One order in ten is never paid.
"""

from __future__ import annotations

import argparse
import json
import sys
from random import Random
from typing import Any

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

DAY_MS = 1_767_571_200_000  # 2026-01-05
THIRD_MS = 8 * 3_600_000
PARTITIONS = 3
CITIES = {"Graz": "AT", "Linz": "AT", "Basel": "CH", "Jena": "DE", "Ulm": "DE"}

Rows = list[tuple[str, dict[str, Any], int]]  # key, value, when it arrives


def third(number: int, orders: int) -> dict[str, Rows]:
    """Each topic's records of a third of the day, in the order in which they arrive."""
    random = Random(number)
    made: dict[str, Rows] = {"orders": [], "payments": [], "cities": []}
    begin = DAY_MS + (number - 1) * THIRD_MS
    if number == 1:
        made["cities"] = [(city, {"country": c}, DAY_MS) for city, c in CITIES.items()]
    for at in sorted(random.randrange(THIRD_MS) for _ in range(orders)):
        key, city = f"o-{number}-{len(made['orders'])}", random.choice(list(CITIES))
        made["orders"].append((key, {"city": city, "at": begin + at}, begin + at))
        if random.random() < 0.9:
            paid_at = begin + at + random.randrange(300_000)
            euros = random.randrange(5, 200)
            made["payments"].append((key, {"euros": euros, "at": paid_at}, paid_at))
    made["payments"].sort(key=lambda row: row[2])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--third", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--orders", type=int, default=3_000)
    given = parser.parse_args()
    made = third(given.third, given.orders)
    kept = {"retention.ms": "-1"}  # the records are of a day in the past
    with Admin(given.bootstrap_servers) as admin, Producer(given.bootstrap_servers) as producer:
        admin.create_missing_topics([NewTopic(topic, PARTITIONS, configs=kept) for topic in made])
        for topic, rows in made.items():
            if rows:
                keys, values, times = zip(*rows, strict=True)
                texts = [json.dumps(value).encode() for value in values]
                producer.send_columns(topic, Columns([key.encode() for key in keys], texts, times))
                print(f"{topic}: {len(rows):,} records")


if __name__ == "__main__":
    try:
        main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
