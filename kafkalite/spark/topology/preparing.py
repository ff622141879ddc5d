"""Before a topology runs on Spark: its topics are there, and its claim to its state.        [IO]

Owns   nothing. It makes the internal topics of the application, as the local engine does: the
       changelogs stay empty here, and take the state when the application moves back.
Fails  with TopologyError where a topic is missing or has another number of partitions, or where the
       state is of another topology.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.core.types import TopicPartition
from kafkalite.spark.topology.stages import Layout, Stages
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.holder import Holder
from kafkalite.streams.local.settings import DEFAULTS
from kafkalite.streams.local.topics import resolve_topics
from kafkalite.streams.local.upkeep import Upkeep


def prepare(
    servers: str,
    stages: Stages,
    *,
    idle_ms: int = DEFAULTS.idle_ms,
    starting: Mapping[TopicPartition, int] | None = None,
    holder: Holder | None = None,
) -> Layout:
    """The layout of stages on a cluster, claimed for `holder`. Not to be called in a coroutine."""
    layout = asyncio.run(_prepare(servers, stages, holder))
    return replace(layout, idle_ms=idle_ms, starting=starting or {})


async def _prepare(servers: str, stages: Stages, holder: Holder | None) -> Layout:
    plan, subs = stages.plan, stages.subs
    async with Client(servers, client_id=f"{plan.application_id}-spark") as client:
        interval_ms = DEFAULTS.purge_interval_ms
        upkeep = Upkeep(client, plan, subs, interval_ms, Drops(), servers, holder)
        await upkeep.check()
        async with Admin(client) as admin:
            sources, partitions_of = await resolve_topics(admin, subs, servers)
            of_tables = [topic for table in plan.global_tables for topic in table.topics]
            found = await admin.describe_topics(of_tables) if of_tables else []
        await upkeep.begin()
        limits = dict(upkeep.limits)
        await upkeep.close(finish=False)
    tables = {topic.name: topic.partition_count for topic in found}
    return Layout(stages, sources, partitions_of, limits, tables=tables)
