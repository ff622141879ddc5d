"""A shop that keeps its customers in SQLite and writes each change of the table into a topic.

    python examples/cdc/shop.py [-b HOST:PORT] [--database shop.db] [--changes 20000]

The topic `customers` is compacted. A record's key is the customer's number, its value the row as
JSON, or null where the customer was deleted. Run it again for more changes.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterator
from random import Random

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.errors import KafkaliteError

TOPIC = "customers"
CITIES = ("Aachen", "Bergen", "Cork", "Delft")
TABLE = "CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, city TEXT, orders INTEGER)"


def change(database: sqlite3.Connection, random: Random) -> int:
    """A customer comes, orders, moves or goes; returns the customer's number."""
    (last,) = database.execute("SELECT coalesce(max(id), 0) FROM customers").fetchone()
    known = random.randint(1, last + 1)
    match random.choices(("comes", "orders", "moves", "goes"), (4, 10, 2, 1))[0]:
        case "comes":
            known = last + 1
            database.execute("INSERT INTO customers VALUES (?, ?, 0)", (known, CITIES[0]))
        case "orders":
            database.execute("UPDATE customers SET orders = orders + 1 WHERE id = ?", (known,))
        case "moves":
            city = random.choice(CITIES)
            database.execute("UPDATE customers SET city = ? WHERE id = ?", (city, known))
        case "goes":
            database.execute("DELETE FROM customers WHERE id = ?", (known,))
    return known


def record(database: sqlite3.Connection, number: int) -> tuple[bytes, bytes | None]:
    """The key and the value of a customer's row as it is now."""
    row = database.execute("SELECT id, city, orders FROM customers WHERE id = ?", (number,))
    found = row.fetchone()
    value = None if found is None else dict(zip(("id", "city", "orders"), found, strict=True))
    return str(number).encode(), None if value is None else json.dumps(value).encode()


def changes(path: str, count: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Changes the table; the record of each change."""
    with sqlite3.connect(path) as database:
        database.execute(TABLE)
        (rows,) = database.execute("SELECT count(*) FROM customers").fetchone()
        random = Random(rows)
        for _ in range(count):
            yield record(database, change(database, random))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--database", default="shop.db")
    parser.add_argument("--changes", type=int, default=20_000)
    given = parser.parse_args()
    compacted = NewTopic(TOPIC, 4, configs={"cleanup.policy": "compact"})
    with Admin(given.bootstrap_servers) as admin:
        admin.create_missing_topics([compacted])
    with Producer(given.bootstrap_servers) as producer:
        for key, value in changes(given.database, given.changes):
            producer.send(TOPIC, value, key=key)
    print(f"{TOPIC}: {given.changes:,} changes")


if __name__ == "__main__":
    try:
        main()
    except KafkaliteError as error:
        sys.exit(f"shop.py: {error}")
