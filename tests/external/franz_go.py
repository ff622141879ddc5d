"""franz-go's client tests: production, groups and transactions of many partitions, chained."""

from __future__ import annotations

from go_tests import go_suite

RECORDS = 100_000  # of 500,000 by default; each goes through four chains of three consumers

SUITE = go_suite(
    "franz-go",
    "github.com/twmb/franz-go",
    "v1.22.2",
    "./pkg/kgo",
    environment=lambda target: {
        "KGO_SEEDS": target.all_brokers,
        "KGO_TEST_RF": str(target.replication_factor),
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    },
    passing_min=440,
)
