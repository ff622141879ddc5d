"""Holdings: what state a worker has, and how far it is behind with it, for the leader.    [IO]

    on disk       the offsets beside each task's directory, and where the changelogs end by now
    followed      what the standbys say
    owned         not told: a task that runs has all of its state

What is told may be some seconds old. The leader compares with 10,000 records, so that is fine; a
task that moves restores up to the end of its changelog in any case.

Owns   where the changelogs begin and end, as of the last look.
Fails  not at all: while no broker answers it goes by what it knew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable
from kafkalite.streams.local.assignor import Knowledge
from kafkalite.streams.local.placement import TaskId
from kafkalite.streams.local.state.directory import Places

LOOK_SECONDS: Final = 5.0

log = logging.getLogger(__name__)

Changelogs = Mapping[TaskId, Mapping[str, TopicPartition]]  # by task and store


class Holdings:
    """The state of one worker. `changelogs`: those of all tasks of the application."""

    def __init__(
        self,
        client: Client,
        places: Places,
        changelogs: Changelogs,
        followed: Callable[[], Mapping[TaskId, int]],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._places = places
        self._changelogs = changelogs
        self._followed = followed
        self._clock = clock
        self._beginnings: Mapping[TopicPartition, int] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = clock()

    def knowledge(self) -> Knowledge:
        """What a leader needs to know of this worker."""
        sizes = {
            task: sum(self._ends[tp] - self._beginnings[tp] for tp in stores.values())
            for task, stores in self._changelogs.items()
            if all(tp in self._ends for tp in stores.values())
        }
        here = {TaskId.parse(name): offsets for name, offsets in self._places.offsets().items()}
        lags = {
            task: self._lag(self._changelogs[task], here[task]) for task in sizes if task in here
        }
        followed = self._followed()
        return Knowledge(lags | {t: n for t, n in followed.items() if t in sizes}, sizes)

    def _lag(self, stores: Mapping[str, TopicPartition], offsets: Mapping[str, int]) -> int:
        return sum(
            max(0, self._ends[tp] - max(self._beginnings[tp], offsets.get(store, 0)))
            for store, tp in stores.items()
        )

    async def look(self) -> None:
        """Asks where the changelogs begin and end."""
        partitions = [tp for stores in self._changelogs.values() for tp in stores.values()]
        self._looked_at = self._clock()
        if not partitions:
            return
        try:
            async with Consumer(self._client, allow_auto_create_topics=False) as consumer:
                self._beginnings = await consumer.beginning_offsets(partitions)
                self._ends = await consumer.end_offsets(partitions)
        except (ApiError, BrokerUnavailable) as error:
            log.debug("where the changelogs end is not known: %s", error)

    def turn(self) -> None:
        """Looks again now and then, in the background."""
        if self._looking is not None and not self._looking.done():
            return
        if self._clock() - self._looked_at >= LOOK_SECONDS:
            self._looking = asyncio.create_task(self.look())

    async def close(self) -> None:
        """Looks no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
