"""An application runs here, moves to Spark, and comes back: nothing is lost or counted twice.

    python examples/moving/move.py [-b HOST:PORT] [--checkpoint DIR] [--orders 3000]

Every step is a command that you can run by yourself; the script prints each before it runs it.
Without -b it starts a broker of its own, over a folder that it removes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from load import (
    CITIES,
    PARTITIONS,
    third,
)

from kafkalite.clients import TopicPartition
from kafkalite.clients.sync import Consumer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import SerdeContext, string, windowed

HERE = Path(__file__).parent
HOUR_MS = 3_600_000
STREAMS = ("-m", "kafkalite.cli.streams")
APP = str(HERE / "app.py")


def run(*command: str) -> None:
    """Runs a command before the user's eyes."""
    shown = " ".join(command).replace(" ".join(STREAMS), "kafkalite-streams")
    print(f"\n$ {'' if command[0] == '-m' else 'python '}{shown}", flush=True)
    if status := subprocess.run([sys.executable, *command], check=False).returncode:
        sys.exit(f"the move stops: that command ended with {status}")


def expected(orders: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Paid orders and their euros by city and hour, counted in plain Python."""
    found: dict[tuple[str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number in (1, 2, 3):
        made = third(number, orders)
        ordered = {key: value for key, value, _ in made["orders"]}
        for key, value, _ in made["payments"]:
            place = ordered[key]["city"], max(value["at"], ordered[key]["at"]) // HOUR_MS * HOUR_MS
            many, euros = found[place]
            found[place] = many + 1, euros + value["euros"]
    return dict(found)


def turnover(servers: str) -> list[tuple[tuple[str, int], tuple[int, int]]]:
    """All results that the application has written: city and hour, orders and euros."""
    codec = windowed(string(), "1h").open(SerdeContext(None, is_key=True))
    found = []
    with Consumer(servers, isolation_level="read_committed", enable_auto_commit=False) as consumer:
        partitions = [TopicPartition("turnover", number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
            for columns in consumer.poll(1_000).values():
                keys = codec.deserialize("turnover", columns.keys)
                for key, value in zip(keys, map(json.loads, columns.values), strict=True):
                    assert key is not None
                    found.append(((key.key, key.start), (value["orders"], int(value["euros"]))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers")
    parser.add_argument("--checkpoint")
    parser.add_argument("--orders", type=int, default=3_000)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        servers = (
            given.bootstrap_servers
            or stack.enter_context(EmbeddedBroker(folder / "log")).bootstrap_servers
        )
        checkpoint = given.checkpoint or str(folder / "checkpoint")
        at = ("-b", servers)
        spark = ("--engine", "spark", "--checkpoint", checkpoint)
        load = (str(HERE / "load.py"), *at, "--orders", str(given.orders), "--third")
        run(*load, "1")
        run(*STREAMS, "run", APP, *at, "--until-caught-up")
        run(*load, "2")
        run(*STREAMS, "run", APP, *at, *spark, "--from", "local", "--until-caught-up")
        run(*STREAMS, "export-state", APP, *at, "--checkpoint", checkpoint)
        run(*load, "3")
        run(*STREAMS, "run", APP, *at, "--until-caught-up")
        compare(servers, given.orders)


def compare(servers: str, orders: int) -> None:
    """Exits with the difference, if there is one, between the results and plain Python."""
    found, wanted = dict(turnover(servers)), expected(orders)  # the last count of each hour
    wrong = [place for place in {*found, *wanted} if found.get(place) != wanted.get(place)]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(wanted)} hours are wrong, such as {min(wrong)}")
    print(
        f"\n{len(found)} hours of {len(CITIES)} cities: all have the orders and euros that plain "
        "Python counts"
    )


if __name__ == "__main__":
    main()
