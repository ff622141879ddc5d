"""Writes views of pages, made up, into the topic `views` until Ctrl-C.

    python examples/dashboard/load.py [-b HOST:PORT] [--rate 500] [--seconds S]

Which pages are popular changes every ten seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from contextlib import suppress
from random import Random

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

PAGES = [
    f"/{drink}/{leaf}"
    for drink in ("tea", "mate", "coffee", "cocoa")
    for leaf in ("oolong", "sencha", "assam", "mint", "rooibos", "ginger")
]
ROUNDS_PER_SECOND = 10


def views(count: int, at: int, random: Random) -> list[str]:
    """The pages that were seen at a time, epoch milliseconds."""
    popular = Random(at // 10_000).sample(PAGES, len(PAGES))
    weights = [1 / rank for rank in range(1, len(popular) + 1)]
    return random.choices(popular, weights, k=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--rate", type=int, default=500, help="views a second")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop")
    given = parser.parse_args()
    with Admin(given.bootstrap_servers) as admin, Producer(given.bootstrap_servers) as producer:
        admin.create_missing_topics([NewTopic("views", 4)])
        print(f"{given.rate} views a second, until Ctrl-C")
        random, end = Random(1), time.monotonic() + given.seconds
        while time.monotonic() < end:
            now = int(time.time() * 1000)
            pages = views(given.rate // ROUNDS_PER_SECOND, now, random)
            values = [json.dumps({"page": page, "at": now}).encode() for page in pages]
            keys = [None] * len(values)
            producer.send_columns("views", Columns(keys, values, [now] * len(values)))
            time.sleep(1 / ROUNDS_PER_SECOND)


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt):
            main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
