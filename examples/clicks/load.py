"""Writes impressions and clicks of a day, made up, into topics of these names.

    python examples/clicks/load.py [-b HOST:PORT] [--impressions 20000]

Phones send clicks when they have a network: most at once, some an hour later. One click in a
hundred names an impression that nobody has seen.
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
CAMPAIGNS = {"tea": 0.08, "pots": 0.03, "kettles": 0.01}  # and how many are clicked

Rows = list[tuple[str, dict[str, Any], int]]  # key, value, when it arrives


def day(impressions: int, seed: int = 1) -> dict[str, Rows]:
    """Both topics, each in the order in which its records arrive."""
    random = Random(seed)
    seen: Rows = []
    clicked: Rows = []
    for number in range(impressions):
        key, at = f"i-{number}", DAY_MS + number * 86_400_000 // impressions
        campaign = random.choice(list(CAMPAIGNS))
        seen.append((key, {"campaign": campaign, "at": at}, at))
        if random.random() < CAMPAIGNS[campaign]:
            click = at + random.randrange(1_000, 300_000)
            delay = random.randrange(3_600_000) if random.random() < 0.05 else 0
            key = f"x-{number}" if random.random() < 0.01 else key
            clicked.append((key, {"impression": key, "at": click}, click + delay))
    return {"impressions": seen, "clicks": sorted(clicked, key=lambda row: row[2])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--impressions", type=int, default=20_000)
    given = parser.parse_args()
    tables = day(given.impressions)
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
