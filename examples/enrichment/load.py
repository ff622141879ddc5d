"""Writes orders, made up, into the topic `orders`.

    python examples/enrichment/load.py [-b HOST:PORT] [--orders 1000]

One order in a hundred has a postal code that no town has, and one in five hundred has 6666,
at which the service fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from random import Random
from typing import Any

from service import TOWNS

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

DAY_MS = 1_767_571_200_000  # 2026-01-05


def orders(count: int, seed: int = 1) -> list[tuple[str, dict[str, Any], int]]:
    """Key, value and timestamp of so many orders."""
    random = Random(seed)
    rows = []
    for number in range(count):
        at = DAY_MS + number * 1_000
        code = random.choice(list(TOWNS))
        code = "0000" if number % 100 == 99 else "6666" if number % 500 == 250 else code
        customer = f"customer-{random.randrange(200)}"
        rows.append((customer, {"number": number, "postal_code": code, "at": at}, at))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--orders", type=int, default=1_000)
    given = parser.parse_args()
    kept = {"retention.ms": "-1"}  # the records are of a day in the past
    with Admin(given.bootstrap_servers) as admin, Producer(given.bootstrap_servers) as producer:
        admin.create_missing_topics([NewTopic("orders", 4, configs=kept)])
        rows = orders(given.orders)
        keys, values, times = zip(*rows, strict=True)
        texts = [json.dumps(value).encode() for value in values]
        producer.send_columns("orders", Columns([key.encode() for key in keys], texts, times))
    print(f"{len(rows):,} orders")


if __name__ == "__main__":
    try:
        main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
