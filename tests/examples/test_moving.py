"""There and back: the example's application on the local engine, on Spark, and here again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from kafkalite.clients.cluster import Client
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.deep, pytest.mark.timeout(400)]

ORDERS = 400  # of a third of the day


def run_on_spark(
    spark: SparkSession, app: Streams[Any, Any], servers: str, checkpoint: str, module: ModuleType
) -> None:
    """What `run --engine spark --from local --until-caught-up` does, in the tests' session."""
    from kafkalite.spark.topology.moving import hold_state, initial_state, seeds
    from kafkalite.spark.topology.preparing import prepare
    from kafkalite.spark.topology.query import QuerySettings, TopologyQuery
    from kafkalite.spark.topology.shipping import Shipment
    from kafkalite.spark.topology.stages import stages_of

    plan = app.plan()
    stay = hold_state(servers, plan, checkpoint, from_local=True)
    assert stay.seeds
    layout = prepare(servers, stages_of(plan), starting=stay.offsets, holder=stay.holder)
    first = initial_state(spark, seeds(servers, plan, stay))
    settings = QuerySettings(checkpoint, initial_state=first, holder=stay.holder)
    query = TopologyQuery(spark, layout, Shipment.of(layout, servers, module), settings)
    query.run(lambda: False, until_caught_up=True)


def export(spark: SparkSession, app: Streams[Any, Any], servers: str, location: str) -> int:
    """What `export-state` does, in the tests' session; how many tasks have moved."""
    from kafkalite.spark.topology.checkpoint import Checkpoint
    from kafkalite.spark.topology.exporting import export_state
    from kafkalite.spark.topology.statestore import read_blobs

    async def main() -> int:
        async with Client(servers) as client:
            found = await export_state(
                client, servers, app.plan(), Checkpoint(location),
                lambda batch: read_blobs(spark, location, batch),
            )  # fmt: skip
            assert found is not None
            return found.tasks

    return asyncio.run(main())


def test_an_application_moves_to_spark_and_back(
    spark: SparkSession,
    example: Callable[..., ModuleType],
    broker: EmbeddedBroker,
    load: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, module, checkpoint = broker.bootstrap_servers, example("moving", "app"), tmp_path / "c"
    monkeypatch.setitem(sys.modules, module.__name__, module)  # as the command has it
    load("moving", "--orders", str(ORDERS), "--third", "1")
    run("moving")
    load("moving", "--orders", str(ORDERS), "--third", "2")
    run_on_spark(spark, module.app, servers, str(checkpoint), module)
    with pytest.raises((TopologyError, AssertionError), match="Spark holds the state"):
        run("moving")
    assert export(spark, module.app, servers, str(checkpoint)) > 0
    load("moving", "--orders", str(ORDERS), "--third", "3")
    run("moving")
    example("moving", "move").compare(servers, ORDERS)
