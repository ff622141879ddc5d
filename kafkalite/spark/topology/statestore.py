"""The state of a query's tasks, read from its checkpoint by Spark.                          [IO]

Spark's data source `statestore` reads the state as any completed batch left it. Blobs of a task
come in their order, all of them from one partition.

Owns   nothing.
Fails  with StorageError where Spark cannot read the state.
Source Spark's state data source (`statestore`, `state-metadata`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalite.spark.failures import our_failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKS: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OURS: Final = "transformWithState"  # begins the names of operators with tasks
BLOBS: Final = "blobs"  # the name of the list state


def read_blobs(session: SparkSession, location: str, batch: int) -> dict[str, list[bytes]]:
    """The blobs of each task, as a completed batch left them."""
    session.conf.set(PROVIDER, ROCKS)
    found: dict[str, list[bytes]] = {}
    with our_failures(location):
        operators = session.read.format("state-metadata").load(location).collect()
        for operator in operators:
            if not operator["operatorName"].startswith(OURS):
                continue
            rows = (
                session.read.format("statestore")
                .option("operatorId", operator["operatorId"])
                .option("batchId", batch)
                .option("stateVarName", BLOBS)
                .option("flattenCollectionTypes", "true")
                .load(location)
                .selectExpr("key.to AS name", "list_element.blob AS blob")
            )
            for name, blob in rows.toLocalIterator():
                found.setdefault(name, []).append(bytes(blob))
    return found
