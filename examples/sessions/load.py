"""Writes a day of a web server's log, made up, into the topic `web-log`.

    python examples/sessions/load.py [-b HOST:PORT] [--visits 5000]

The same lines come of the same number of visits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

DAY = datetime(2026, 1, 5, tzinfo=UTC)
PATHS = ["/", "/shop", "/shop/tea", "/shop/pots", "/cart", "/checkout", "/blog", "/blog/oolong"]
WEIGHTS = [30, 20, 15, 8, 6, 3, 10, 8]
BROWSER, ROBOT = "Mozilla/5.0 (X11; Linux x86_64)", "Teabot/1.2 (+https://tea.example/bot)"


def log(visits: int, seed: int = 1) -> list[str]:
    """The lines of a day in the order in which the server wrote them.

    A server writes a line when it has sent the answer, so the times are out of order by seconds.
    Two lines in a thousand come three hours later. One in a thousand is cut off.
    """
    random = Random(seed)
    requests = sorted(
        (at + delay(random), at, host, path, agent)
        for host, agent, pages in hosts(visits, random)
        for at, path in pages
    )
    lines = [line(at, host, path, agent, random) for _, at, host, path, agent in requests]
    return [text[:40] if random.random() < 0.001 else text for text in lines]


def delay(random: Random) -> timedelta:
    """How much later than its request a line is written."""
    hours = 3 if random.random() < 0.002 else 0
    return timedelta(hours=hours, seconds=random.expovariate(1))


def hosts(visits: int, random: Random) -> Iterator[tuple[str, str, list[tuple[datetime, str]]]]:
    """Visits: a host, its agent, and the pages that it asks for one after the other."""
    for _ in range(visits):
        host = f"203.0.{random.randrange(16)}.{random.randrange(256)}"
        is_robot = random.random() < 0.05
        at = DAY + timedelta(seconds=random.uniform(0, 86_400))
        pages = []
        for _ in range(min(40, 1 + int(random.expovariate(0.3)))):
            pages.append((at, random.choices(PATHS, WEIGHTS)[0]))
            at += timedelta(seconds=2 if is_robot else random.expovariate(1 / 60))
        yield host, ROBOT if is_robot else BROWSER, pages


def line(at: datetime, host: str, path: str, agent: str, random: Random) -> str:
    """A line in the combined log format."""
    status, size = (404, 512) if random.random() < 0.02 else (200, random.randrange(2_000, 60_000))
    time = at.strftime("%d/%b/%Y:%H:%M:%S %z")
    return f'{host} - - [{time}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--visits", type=int, default=5_000)
    given = parser.parse_args()
    with Admin(given.bootstrap_servers) as admin, Producer(given.bootstrap_servers) as producer:
        admin.create_missing_topics([NewTopic("web-log", 4)])
        values = [text.encode() for text in log(given.visits)]
        now = int(time.time() * 1000)
        producer.send_columns("web-log", Columns([None] * len(values), values, [now] * len(values)))
    print(f"{len(values):,} lines")


if __name__ == "__main__":
    try:
        main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
