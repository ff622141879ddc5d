"""Upkeep: what a worker does for its application beside running tasks.                     [IO]

    check       before internal topics are made: is this the topology that the state belongs to?
    begin       once they are there
    committed   after each commit
    sends       with each output
    turn        in each turn of the worker's loop
    close       at the end of a run

Owns   the order of these; each job has a module of its own.
Fails  with TopologyError from `check` and `begin`: see topology_log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.compile import SubTopology
from kafkalite.streams.local.drops import Drops
from kafkalite.streams.local.holder import Holder
from kafkalite.streams.local.outputs import Outputs
from kafkalite.streams.local.purge import Purge
from kafkalite.streams.local.sizes import Limits
from kafkalite.streams.local.topology_log import TopologyLog
from kafkalite.streams.plan import Plan

log = logging.getLogger(__name__)


class Upkeep:
    """The upkeep of one worker, or of another engine that has the state: `holder`."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        subs: Sequence[SubTopology],
        purge_interval_ms: int,
        drops: Drops,
        servers: str,
        holder: Holder | None = None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._subs = subs
        self._drops = drops
        self._admin = Admin(client)
        self._log = TopologyLog(client, self._admin, plan, subs, holder)
        self._outputs = Outputs(self._admin, plan.application_id, servers, plan.dead_letter_topic)
        self._looking: asyncio.Task[None] | None = None
        repartitions = {topic.name for sub in subs for topic in sub.repartition_sources}
        self._purge = Purge(self._admin, repartitions, purge_interval_ms)

    async def check(self) -> None:
        """Whether this topology may go on from the state that there is."""
        await self._log.check()

    async def begin(self) -> None:
        """Every topic is there: the application runs this topology now."""
        await self._log.claim()
        topics = {topic for sub in self._subs for topic in sub.sink_topics}
        topics |= {topic.name for sub in self._subs for topic in sub.changelogs}
        if self._plan.dead_letter_topic is not None:
            topics.add(self._plan.dead_letter_topic)
        await self._outputs.look_up(topics)

    @property
    def limits(self) -> Limits:
        """The bytes of a record, by topic."""
        return self._outputs.limits

    def sends(self, output: Output) -> None:
        """These records go out."""
        self._outputs.note(output, self._client.now_ms())

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These offsets went through, and all that they stand for."""
        self._purge.committed(offsets)

    def turn(self) -> None:
        """Warns about records that were left out; looks topics up that were not known before."""
        if words := self._drops.warning(asyncio.get_running_loop().time()):
            log.warning("%s: %s", self._plan.application_id, words)
        if self._outputs.has_new and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._outputs.look_up_new())

    async def close(self, *, finish: bool) -> None:
        """The run is over; `finish`: as it should be, with all committed."""
        if self._looking is not None:
            self._looking.cancel()
        await self._purge.close(finish=finish)
