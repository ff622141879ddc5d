"""Writes readings of thermometers, made up, into the topic `readings` until Ctrl-C.

    python examples/sensors/load.py [-b HOST:PORT] [--sensors 20] [--seconds S]

Each sensor sends a reading a second. Every fifth one falls silent for forty-five seconds of each
minute and a half.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from contextlib import suppress
from typing import Any

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

ROUND_SECONDS, SILENT_SECONDS = 90, 45


def readings(sensors: int, second: int, at: int) -> list[tuple[str, dict[str, Any]]]:
    """Keys and values of a second, counted from the start; `at` is the time in epoch ms."""
    rest = second % ROUND_SECONDS >= ROUND_SECONDS - SILENT_SECONDS
    return [
        (f"sensor-{n}", {"celsius": round(20 + n / 10 + math.sin(second / 60 + n), 2), "at": at})
        for n in range(sensors)
        if not (rest and n % 5 == 4)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--sensors", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=sys.maxsize, help="when to stop")
    given = parser.parse_args()
    with Admin(given.bootstrap_servers) as admin, Producer(given.bootstrap_servers) as producer:
        admin.create_missing_topics([NewTopic("readings", 4)])
        print(f"{given.sensors} readings a second, until Ctrl-C")
        for second in range(given.seconds):
            now = int(time.time() * 1000)
            keys, values = zip(*readings(given.sensors, second, now), strict=True)
            texts = [json.dumps(value).encode() for value in values]
            times = [now] * len(texts)
            producer.send_columns("readings", Columns([k.encode() for k in keys], texts, times))
            time.sleep(1)


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt):
            main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
