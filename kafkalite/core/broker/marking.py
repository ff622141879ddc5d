"""Markers that this broker's transaction coordinators have other brokers write.             [IO]

    coordinator ──write──> MarkerQueues ──> here: LocalMarkers
                                 │     └──> another broker: WriteTxnMarkers, a lane of its own
    put_in_force ──look──────────┘

Owns   the requests under way and their tasks; the timer of what is tried again.
Never  decides: `MarkerQueues` does.
Fails  by trying again, as often as a marker is wanted; the operator gets one line.
Source apache/kafka `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from kafkalite.core.broker.reaching import Host, OtherBrokers
from kafkalite.core.protocol.transactions import (
    MarkerSender,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkalite.core.transactions.marker_queues import (
    NO_PARTITION,
    Effect,
    Errors,
    Job,
    Marker,
    MarkerQueues,
    SendMarkers,
    WriteHere,
    always,
)
from kafkalite.core.transactions.markers import MarkerWriter
from kafkalite.core.types import NO_EPOCH, TopicPartition
from kafkalite.errors import ErrorCode, KafkaliteError

log: Final = logging.getLogger(__name__)

LANE: Final = "markers"
TIMEOUT_MS: Final = 5_000  # then it is sent again, to the leaders by then


class ClusterMarkers:
    """The `MarkerWriter` of a broker in a cluster. `local` writes what this broker leads."""

    def __init__(self, host: Host, local: MarkerWriter, others: OtherBrokers) -> None:
        self._host = host
        self._local = local
        self._others = others
        self._queues = MarkerQueues(host.node_id, self._leader_of)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def write(
        self,
        marker: Marker,
        partitions: Collection[TopicPartition],
        done: Callable[[Errors], None],
        is_wanted: Callable[[], bool] = always,
    ) -> None:
        """See `MarkerWriter`: `done` is called once nothing is left to be tried again."""
        self._carry_out(self._queues.add(marker, partitions, done, is_wanted))

    def look(self) -> None:
        """The image is another."""
        self._carry_out(self._queues.leaders_changed())

    async def close(self) -> None:
        """Sends nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leader_of(self, where: TopicPartition) -> int:
        partition = self._host.image.partition(*where)
        return NO_PARTITION if partition is None else partition.leader

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        if self._is_closed:
            return
        for effect in effects:
            if isinstance(effect, WriteHere):
                done = partial(self._written_here, effect.job)
                self._local.write(effect.job.marker, effect.partitions, done)
            else:
                task = asyncio.get_running_loop().create_task(self._send(effect))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._set_timer()

    def _written_here(self, job: Job, errors: Errors) -> None:
        now_ms = self._host.monotonic_ms()
        self._carry_out(self._queues.written_here(job, errors, now_ms))

    async def _send(self, sending: SendMarkers) -> None:
        errors: dict[tuple[int, TopicPartition], ErrorCode] | ErrorCode
        errors = ErrorCode.BROKER_NOT_AVAILABLE
        try:
            if (channel := self._others.channel(sending.node_id, LANE)) is not None:
                errors = _errors(await channel.ask(self._request(sending), TIMEOUT_MS))
        except KafkaliteError as error:
            self._host.note(f"broker {sending.node_id} gets no markers: {error}")
            errors = ErrorCode.NETWORK_EXCEPTION
        except Exception:
            log.exception("markers for broker %d", sending.node_id)
            errors = ErrorCode.UNKNOWN_SERVER_ERROR
        now_ms = self._host.monotonic_ms()
        self._carry_out(self._queues.answered(sending, errors, now_ms))

    def _request(self, sending: SendMarkers) -> WriteTxnMarkersRequest:
        markers = []
        for job, partitions in sending.by_job().items():
            topics: dict[tuple[str, int], list[int]] = {}
            for where in partitions:
                known = self._host.image.partition(*where)
                epoch = NO_EPOCH if known is None else known.leader_epoch
                topics.setdefault((where.topic, epoch), []).append(where.partition)
            marker = job.marker
            markers.append(
                WritableTxnMarker(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.commit,
                    tuple(
                        WritableTxnMarkerTopic(name, tuple(numbers), epoch)
                        for (name, epoch), numbers in topics.items()
                    ),
                    marker.coordinator_epoch,
                )
            )
        sender = MarkerSender(self._host.node_id, self._host.broker_epoch, sending.number)
        return WriteTxnMarkersRequest(tuple(markers), sender)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._queues.next_deadline_ms()
        if deadline_ms is not None:
            delay_s = max(1, deadline_ms - self._host.monotonic_ms()) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self._queues.tick(self._host.monotonic_ms()))


def _errors(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, each.partition_index)): each.error_code
        for marker in response.markers
        for topic in marker.topics
        for each in topic.partitions
    }
