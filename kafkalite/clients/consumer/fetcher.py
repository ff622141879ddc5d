"""Carries a consumer's positions to the brokers and back: fetches, offsets, ends of logs.   [IO]

One fetch is in flight to each leader. It is sent while the user processes the records of
the previous one, so broker and user work at the same time.

Owns   a lane of connections for fetches, which wait at the broker; the tasks that look up offsets.
Never  decides where to read (positions do) or which member reads a partition (the group does).
Fails  with the positions' errors, when the user takes records; a broker out of reach is waited
       for, with a warning in the log.
Source KIP-74 (fetch limits), KIP-79 and KIP-734 (offsets by time), KIP-320 (epochs), KIP-392
       (followers); apache/kafka `Fetcher`, `OffsetFetcher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeGuard

from kafkalite.clients.background import BackgroundTasks
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.positions import CONSUMER_REPLICA_ID, NO_LIMIT, NOBODY, Positions
from kafkalite.clients.metadata import Cluster
from kafkalite.clients.silence import SilentLeaders
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import FetchRequest, FetchResponse
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, KafkaliteError

log = logging.getLogger(__name__)

NOWHERE: Final = -1
EPOCHS_SINCE_V: Final = 2  # of OffsetForLeaderEpoch, which clients may ask since then
NO_VERSIONS: Final = (0, -1)


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record found by its time: its offset, its timestamp in epoch ms, its leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


class Fetcher:
    """Fetches for one consumer, from when it is made until `close`."""

    def __init__(self, client: Client, positions: Positions) -> None:
        self.settings = positions.settings
        self.positions = positions
        self._client = client
        self._lane = client.new_lane("fetch")
        self._loop = asyncio.get_running_loop()
        self._busy: set[int] = set()  # nodes with a fetch in flight, or being connected
        self._background = BackgroundTasks(client, self.pump)
        self._silent = SilentLeaders(client, self._background, self.settings.fetch_max_wait_ms)
        self._resetting = self._checking = self._closed = False
        self._grouped_for: tuple[Cluster | None, int] = (None, 0)
        self._grouped: dict[int, dict[TopicPartition, None]] = {}
        self._arrival: asyncio.Future[None] | None = None

    async def close(self) -> None:
        """Stops everything; buffered records are dropped."""
        self._closed = True
        self.positions.assign(())
        self._silent.close()
        await self._background.close()
        await self._client.close_lane(self._lane)

    def take(self, records_max: int | None) -> dict[TopicPartition, Columns]:
        """The fetched records as columns. The next fetches are sent before decoding begins."""
        if not self.positions.has_records():
            self.pump()
            return {}
        if records_max is None:
            self.pump(all_is_taken=True)
        try:
            taken = self.positions.take(records_max)
        except BaseException:
            self.pump()
            raise
        if records_max is not None:
            self.pump()
        return taken

    def wake(self) -> None:
        """Ends `wait` now."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Waits until records or an error may have come, or for so long."""
        self._arrival = self._loop.create_future()
        timer = self._loop.call_later(seconds, self.wake)
        try:
            await self._arrival
        finally:
            timer.cancel()
            self._arrival = None

    # ---- fetches ----

    def pump(self, *, all_is_taken: bool = False) -> None:
        """Sends the fetches that may be sent now, and looks up what positions wait for.

        With `all_is_taken` buffered records do not count: the user is about to take them.
        """
        if self._closed:
            return
        now_ms = self._loop.time() * 1000
        positions, cluster = self.positions, self._client.cluster
        positions.forget_old_preferences(now_ms)
        for node_id, partitions in self._sources().items():
            if node_id in self._busy:
                continue
            made = positions.fetch_request(
                partitions, cluster.leader_epoch, now_ms, all_is_taken=all_is_taken
            )
            if made is not None:
                self._fetch(node_id, *made)
        if not self._resetting and self._to_look_up():
            self._resetting = True
            self._background.run(self._reset())
        if not self._checking and positions.to_check(cluster.leader_epoch, now_ms):
            self._checking = True
            self._background.run(self._check())
        self._background.refresh(
            positions.stale_topics, lambda: {tp.topic for tp in positions.assigned}
        )
        self._background.wake_at(positions.next_retry_ms(now_ms))

    def _sources(self) -> Mapping[int, Mapping[TopicPartition, None]]:
        """The assigned partitions by the node to read from, worked out again when either has
        changed."""
        cluster, version = self._client.cluster, self.positions.version
        if self._grouped_for[0] is not cluster or self._grouped_for[1] != version:
            self._grouped_for = cluster, version
            preferred: dict[int, dict[TopicPartition, None]] = {}
            led = []
            for tp in self.positions.assigned:
                source = self.positions.source(tp)
                if source in cluster.nodes:
                    preferred.setdefault(source, {})[tp] = None
                else:
                    led.append(tp)
            self._grouped = self._by_leader(led)
            for source, partitions in preferred.items():
                self._grouped[source] = self._grouped.get(source, {}) | partitions
        return self._grouped

    def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, dict[TopicPartition, None]]:
        """Partitions by the node that leads them; those without a leader make metadata stale."""
        by_leader: dict[int, dict[TopicPartition, None]] = {}
        for tp in partitions:
            leader = self._client.cluster.leader_id(tp)
            if leader is None:
                self.positions.stale_topics.add(tp.topic)
            else:
                by_leader.setdefault(leader, {})[tp] = None
        return by_leader

    def _fetch(
        self, node_id: int, request: FetchRequest, asked: Mapping[TopicPartition, int]
    ) -> None:
        self._busy.add(node_id)
        connection = self._client.open_connection(node_id, self._lane)
        if connection is None:
            connecting = self._client.connecting(node_id, self._lane)
            connecting.add_done_callback(partial(self._connected, node_id, asked))
            self._silent.connecting(connecting, lambda: {tp.topic for tp in asked})
            return
        timeout_ms = self.settings.fetch_max_wait_ms + self._client.timing.request_timeout_ms
        try:
            answer = connection.submit(request, timeout_ms)
        except KafkaliteError as error:
            self._busy.discard(node_id)
            self._failed(node_id, asked, error)
        else:
            answer.add_done_callback(partial(self._fetched, node_id, asked))
            self._silent.watch(connection, node_id, answer, partial(iter, asked))

    def _connected(
        self,
        node_id: int,
        asked: Iterable[TopicPartition],
        connecting: asyncio.Task[BrokerConnection],
    ) -> None:
        self._busy.discard(node_id)
        if connecting.cancelled() or self._closed:
            return
        if (error := connecting.exception()) is not None:
            self._failed(node_id, asked, error)
        self.pump()

    def _fetched(
        self,
        node_id: int,
        asked: Mapping[TopicPartition, int],
        answer: asyncio.Future[FetchResponse],
    ) -> None:
        self._busy.discard(node_id)
        if answer.cancelled() or self._closed:
            return
        if (error := answer.exception()) is not None:
            self._failed(node_id, asked, error)
        else:
            self.positions.receive(answer.result(), asked, self._now_ms())
            if self.settings.client_rack:
                self._look_for_sources(asked)
            if self.positions.has_records():
                self.wake()
        self.pump()

    def _look_for_sources(self, asked: Iterable[TopicPartition]) -> None:
        """A leader may name a follower that the metadata here do not have yet."""
        for tp in asked:
            place = self.positions.get(tp)
            source = NOBODY if place is None else place.preferred
            if source != NOBODY and source not in self._client.cluster.nodes:
                self.positions.stale_topics.add(tp.topic)
                self.positions.put_off(tp, self._now_ms())

    def _failed(self, node_id: int, asked: Iterable[TopicPartition], error: BaseException) -> None:
        """A broker is gone, perhaps another one leads its partitions now; or it is of no use."""
        log.warning("fetching from broker %d: %s", node_id, error)
        for tp in asked:
            place = self.positions.get(tp)
            if place is not None:
                self.positions.prefer(place, NOBODY, self._loop.time() * 1000)
            if place is not None and _is_final(error):
                place.error = error
                self.wake()
            self.positions.put_off(tp, self._loop.time() * 1000)
            self.positions.stale_topics.add(tp.topic)

    # ---- offsets ----

    def _to_look_up(self) -> dict[TopicPartition, int]:
        """Partitions without a position. Those without a leader wait for metadata first, lest each
        is put off for a time of its own and the last ones miss the first fetch."""
        awaiting = self.positions.awaiting_offset(self._loop.time() * 1000)
        leader_id = self._client.cluster.leader_id
        return {tp: when for tp, when in awaiting.items() if leader_id(tp) is not None}

    async def _reset(self) -> None:
        """Looks up where partitions without a position begin."""
        try:
            while asked := self._to_look_up():
                found, refused = await self._list_offsets(asked)
                for tp, there in found.items():
                    self.positions.found(tp, asked[tp], there.offset, there.leader_epoch)
                for tp, error in refused.items():
                    self._not_reset(tp, error)
        finally:
            self._resetting = False
        self.pump()

    async def _check(self) -> None:
        """Asks new leaders whether they have what was fetched from their predecessors."""
        positions = self.positions
        try:
            while asked := positions.to_check(self._client.cluster.leader_epoch, self._now_ms()):
                by_leader = self._by_leader(asked)
                for node_id, partitions in by_leader.items():
                    try:
                        await self._check_at(node_id, {tp: asked[tp] for tp in partitions})
                    except KafkaliteError as error:
                        for tp in partitions:
                            self._not_reset(tp, error)
                for tp in asked.keys() - {tp for each in by_leader.values() for tp in each}:
                    positions.put_off(tp, self._now_ms())
                for words in positions.truncations:
                    log.warning("%s", words)
                positions.truncations.clear()
        finally:
            self._checking = False
        self.wake()
        self.pump()

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    async def _check_at(
        self, node_id: int, asked: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for tp, epochs in asked.items():
            topics.setdefault(tp.topic, []).append(OffsetForLeaderPartition(tp.partition, *epochs))
        request = OffsetForLeaderEpochRequest(
            CONSUMER_REPLICA_ID,
            tuple(OffsetForLeaderTopic(name, tuple(each)) for name, each in topics.items()),
        )
        connection = await self._client.connect(node_id)
        if connection.versions.get(ApiKey.OFFSET_FOR_LEADER_EPOCH, NO_VERSIONS)[1] < EPOCHS_SINCE_V:
            for tp, (epoch, last) in asked.items():  # an old broker: it is taken at its word
                self.positions.checked(tp, (epoch, last), last, NO_LIMIT)
            return
        response = await connection.submit(request)
        for topic in response.topics:
            for told in topic.partitions:
                tp = TopicPartition(topic.topic, told.partition)
                if told.error_code is ErrorCode.NONE:
                    self.positions.checked(tp, asked[tp], told.leader_epoch, told.end_offset)
                else:
                    self._not_reset(tp, ApiError(told.error_code, f"leader epoch of {tp}"))

    def _not_reset(self, tp: TopicPartition, error: KafkaliteError) -> None:
        place = self.positions.get(tp)
        if place is not None and _is_final(error):
            place.error = error
            self.wake()
        log.debug("offset of %s: %s", tp, error)
        self.positions.stale_topics.add(tp.topic)
        self.positions.put_off(tp, self._loop.time() * 1000)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (epoch ms, EARLIEST or LATEST).

        None where no record is so late. ApiError, naming the partition, once retries are over.
        """
        todo = dict(timestamps)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}

        async def attempt() -> None:
            there, refused = await self._list_offsets(todo)
            for tp, offset in there.items():
                found[tp] = offset if offset.offset != NOWHERE else None
                del todo[tp]
            if refused:
                await self._client.refresh({tp.topic for tp in refused})
                raise next(iter(refused.values()))

        for topic in {tp.topic for tp in todo}:
            await self._client.topic(topic, create=False)
        await self._client.retrying("offsets", attempt)
        return found

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, OffsetAndTimestamp], dict[TopicPartition, KafkaliteError]]:
        """Asks every leader once. Returns the offsets found, and the errors of the others."""
        by_leader = self._by_leader(timestamps)
        led = {tp for tps in by_leader.values() for tp in tps}
        refused: dict[TopicPartition, KafkaliteError] = {
            tp: ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
            for tp in timestamps
            if tp not in led
        }
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        for node_id, partitions in by_leader.items():
            asked = {tp: timestamps[tp] for tp in partitions}
            try:
                response = await self._client.request(self._offsets_request(asked), node_id)
            except KafkaliteError as error:
                refused.update(dict.fromkeys(asked, error))
                continue
            for topic in response.topics:
                for told in topic.partitions:
                    tp = TopicPartition(topic.name, told.partition_index)
                    if told.error_code is ErrorCode.NONE:
                        found[tp] = OffsetAndTimestamp(
                            told.offset, told.timestamp, told.leader_epoch
                        )
                    else:
                        refused[tp] = ApiError(told.error_code, f"offset of {tp}")
        return found, refused

    def _offsets_request(self, asked: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for tp, timestamp in asked.items():
            epoch = self._client.cluster.leader_epoch(tp)
            topics.setdefault(tp.topic, []).append(
                ListOffsetsPartition(tp.partition, epoch, timestamp)
            )
        return ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=int(self.settings.read_committed),
            topics=tuple(ListOffsetsTopic(name, tuple(ps)) for name, ps in topics.items()),
        )


def _is_final(error: BaseException) -> TypeGuard[ApiError]:
    """Whether a retry is useless, so the user gets the error."""
    return isinstance(error, ApiError) and not error.error_code.is_retriable
