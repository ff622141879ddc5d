"""Compares the Delta table with the shop's own table.

python examples/cdc/compare.py [--database shop.db] [--table warehouse/customers]
"""

from __future__ import annotations

import argparse
import sqlite3
import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

ROWS = "SELECT id, city, orders FROM customers ORDER BY id"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", default="shop.db")
    parser.add_argument("--table", default="warehouse/customers")
    given = parser.parse_args()
    delta = QueryBuilder().register("customers", DeltaTable(given.table)).execute(ROWS)
    found = [tuple(row.values()) for row in pa.table(delta.read_all()).to_pylist()]
    with sqlite3.connect(given.database) as database:
        expected = database.execute(ROWS).fetchall()
    if found != expected:
        sys.exit(f"compare.py: {given.table} differs from the table of {given.database}")
    print(f"{len(found):,} customers, the same in both")


if __name__ == "__main__":
    main()
