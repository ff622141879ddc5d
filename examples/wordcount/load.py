"""Writes the Python language reference into the topic `lines`, a record for each line.

    python examples/wordcount/load.py [-b HOST:PORT]

The text is that of Python's `help()` and comes with every Python.
"""

from __future__ import annotations

import argparse
import sys
import time
from pydoc_data.topics import topics

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError


def lines() -> list[str]:
    """The lines of the reference that have any text."""
    text = "\n".join(topics[name] for name in sorted(topics))
    return [line for line in text.splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    servers = parser.parse_args().bootstrap_servers
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_missing_topics([NewTopic("lines", 4)])
        values = [line.encode() for line in lines()]
        now = int(time.time() * 1000)
        producer.send_columns("lines", Columns([None] * len(values), values, [now] * len(values)))
    print(f"{len(values):,} lines")


if __name__ == "__main__":
    try:
        main()
    except KafkaliteError as error:
        sys.exit(f"load.py: {error}")
