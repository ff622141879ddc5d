"""Apache Kafka's Java clients and Kafka Streams against our broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRANSACTIONS = pytest.mark.needs("AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(
    jvm: Any, bootstrap: str, make_topic: Callable[[int], str], group: str, codec: str
) -> None:
    told = jvm.run("RoundTrip", bootstrap, make_topic(1), group, codec)
    assert told.splitlines()[-1] == "done"


@TRANSACTIONS
def test_transactions(
    jvm: Any, bootstrap: str, make_topic: Callable[[int], str], group: str
) -> None:
    told = jvm.run("Transactions", bootstrap, make_topic(1), group)
    assert told.splitlines()[-1] == "done"


@pytest.mark.parametrize(
    "guarantee",
    ["at_least_once", pytest.param("exactly_once_v2", marks=TRANSACTIONS)],
)
def test_words_are_counted_by_kafka_streams(
    jvm: Any, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path, guarantee: str
) -> None:
    topic = make_topic(2)
    output = f"{topic}-counts"
    tools = "org.apache.kafka.tools.TopicCommand"
    jvm.run(tools, "--bootstrap-server", bootstrap, "--create", "--topic", output)
    told = jvm.run("WordCount", bootstrap, topic, output, guarantee, str(tmp_path / "state"))
    assert told.splitlines()[-1] == "done"
