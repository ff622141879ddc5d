"""Purging: records of repartition topics go once they are processed for good.              [IO]

A repartition topic is kept for ever by its settings, because nobody knows how long its readers may
be down. So those who read it delete what they have committed: at most once in an interval, in the
background, and once more at the end of a run.

Owns   the offsets below which records may go, and the one request under way.
Never  deletes what is not committed, or holds a commit up.
Fails  not at all: a refusal is logged, and the next interval tries again.
Source Kafka Streams' TaskManager.maybePurgeCommittedRecords (repartition.purge.interval.ms).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import TopicPartition
from kafkalite.errors import KafkaliteError

INTERVAL_MS: Final = 30_000
END_SECONDS_MAX: Final = 5.0  # a run that ends does not wait longer for its last purge

log = logging.getLogger(__name__)


class Purge:
    """Purges the repartition `topics` by what this worker commits."""

    def __init__(
        self, admin: Admin, topics: Collection[str], interval_ms: int = INTERVAL_MS
    ) -> None:
        self._admin = admin
        self._topics = frozenset(topics)
        self._interval_s = interval_ms / 1000
        self._done: dict[TopicPartition, int] = {}  # below these offsets nothing is left
        self._wanted: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._next_at = 0.0  # in the loop's time; 0: with the first commit the interval begins

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Notes what went through, and purges if it is time."""
        self._wanted |= {
            tp: entry.offset
            for tp, entry in offsets.items()
            if tp.topic in self._topics and entry.offset > self._done.get(tp, 0)
        }
        now = asyncio.get_running_loop().time()
        if not self._next_at:
            self._next_at = now + self._interval_s
        if self._wanted and now >= self._next_at and (self._task is None or self._task.done()):
            self._next_at = now + self._interval_s
            self._task = asyncio.create_task(self._purge())

    async def close(self, *, finish: bool) -> None:
        """Ends the request under way; with `finish` the last records go as well."""
        if not finish:
            if self._task is not None:
                self._task.cancel()
            return
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                if self._task is not None:
                    await self._task
                await self._purge()
        except TimeoutError:
            log.info("the last purge of repartition topics was given up: brokers do not answer")

    async def _purge(self) -> None:
        wanted, self._wanted = self._wanted, {}
        if not wanted:
            return
        try:
            self._done |= await self._admin.delete_records(wanted)
        except KafkaliteError as error:
            log.warning("repartition topics are not purged, and tried again: %s", error)
            self._wanted = wanted | self._wanted
