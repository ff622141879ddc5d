"""A broker reports replicas whose logs have failed, so that others lead.                   [IO]

    a log fails, is well again ─────────┬──look──> differences ──ReportReplicas──> controller
    each second, and with every image ──┘               └── asked again while there are some

A disk that is full takes no records, though the log is whole. Others lead for REFUSAL_MS then, and
again if it is full still.

Owns   the one report on its way; the logs that took no records a moment ago.
Fails  by trying again: the controller may be away, or another by then.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, Final, Protocol

from kafkalite.core.broker import reaching
from kafkalite.core.cluster.failures import differences
from kafkalite.core.duties import Duty, Slices
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.peers import ReportedReplicas, ReportReplicasRequest
from kafkalite.core.replicas.manager import Partitions
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import NO_EPOCH, TopicPartition

LOOK_MS: Final = 1_000
REST_MS: Final = 200
REFUSAL_MS: Final = 30_000


class Host(reaching.Host, Protocol):
    """The reports' interface to their broker."""

    partitions: Partitions

    def add_duty(self, duty: Duty) -> None:
        """Takes on work that is to be done now and then."""

    def control(self, request: ReportReplicasRequest) -> Pending[Any]:
        """Hands a request to the controller."""


class FailureReports:
    """The reports of one broker of a cluster."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self._is_asking = False
        self._rests_until_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused: dict[TopicPartition, int] = {}  # until when they count as failed
        broker.add_duty(Duty("failed replicas", LOOK_MS, self._look_now_and_then))

    def look(self) -> None:
        """Reports what the image does not have as it is here; REST_MS after the last look at the
        earliest."""
        broker = self._broker
        now_ms, epoch = broker.monotonic_ms(), broker.broker_epoch
        if self._is_asking or epoch == NO_EPOCH or self._timer is not None:
            return
        if (rest_ms := self._rests_until_ms - now_ms) > 0:
            later = asyncio.get_running_loop().call_later
            self._timer = later(rest_ms / 1_000, self._look_after_rest)
            return
        self._rests_until_ms = now_ms + REST_MS
        self._note_refusals(now_ms)
        if topics := self._differences():
            self._is_asking = True
            request = ReportReplicasRequest(broker.node_id, epoch, topics)
            broker.control(request).when_done(self._answered)

    @property
    def are_told(self) -> bool:
        """Whether the image in force has all that failed here."""
        return not self._is_asking and not self._differences()

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_after_rest(self) -> None:
        self._timer = None
        self.look()

    def _note_refusals(self, now_ms: int) -> None:
        for partition in chain.from_iterable(self._broker.partitions.by_topic()):
            if _refuses(partition):
                partition.log.health.refuses = False
                self._refused[partition.topic_partition] = now_ms + REFUSAL_MS
        self._refused = {tp: until for tp, until in self._refused.items() if until > now_ms}

    def _differences(self) -> tuple[ReportedReplicas, ...]:
        broker = self._broker
        failed, lost = {*broker.partitions.offline, *self._refused}, set()
        for partition in chain.from_iterable(broker.partitions.by_topic()):
            health = partition.log.health
            if health.failure is not None or _refuses(partition):
                failed.add(partition.topic_partition)
            if health.is_final:
                lost.add(partition.topic_partition)
        return differences(broker.node_id, broker.image, failed, lost)

    def _answered(self, answer: Any) -> None:
        """An answer without error is followed by an image."""
        self._is_asking = False
        if answer.error_code:
            words = f"failed replicas could not be reported: {answer.error_code.name}"
            self._broker.note(words)

    def _look_now_and_then(self, monotonic_ms: int) -> Slices:
        self.look()
        yield None


def _refuses(partition: Partition) -> bool:
    """Whether the disk took no records a moment ago, and others could lead."""
    return partition.log.health.refuses and partition.replication.replica_count > 1
