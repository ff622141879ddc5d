"""Reads one offset range of the log, for a program without an event loop.                 [IO]

    for rows in read_range(ReadSettings("127.0.0.1:9092"), OffsetRange("flights", 0, 0, 1_000)):
        rows.to_arrow()

One fetch is in flight while the caller works on the records of the one before.

Owns   an event loop and a client, from the first record until the iterator ends or is closed.
Never  gives a record outside the range, or one twice.
Fails  with StorageError where records of the range were deleted or the log became shorter, with
       BrokerUnavailable and ApiError when a leader has not answered for `request_timeout_ms`.
Source apache/kafka `Fetcher`; KIP-74, KIP-98, KIP-320.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.positions import (
    CONSUMER_REPLICA_ID,
    EARLIEST,
    READ_COMMITTED,
    SESSIONLESS_EPOCH,
    Fetched,
)
from kafkalite.columnar.connecting import connected
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.rows import Rows, rows_of
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, StorageError

EMPTY_ANSWERS_MAX: Final = 60  # in a row: at half a second each


def read_range(
    settings: ReadSettings, wanted: OffsetRange, *, fail_on_data_loss: bool = True
) -> Iterator[Rows]:
    """The records of `wanted` in order, in parts of a bounded size.

    Without `fail_on_data_loss` deleted records are a gap. Not to be called in a coroutine: it runs
    an event loop of its own.
    """
    loop = asyncio.new_event_loop()
    reader = _RangeReader(settings, wanted, fail_on_data_loss=fail_on_data_loss)
    run = loop.run_until_complete  # not asyncio.Runner: it makes the repr of what a task returns
    try:
        while (found := run(reader.next())) is not None:
            fetched, start = found
            try:
                yield from rows_of(
                    fetched,
                    wanted.topic,
                    wanted.partition,
                    start,
                    wanted.end,
                    check_crcs=settings.check_crcs,
                )
            except CorruptBatchError as error:
                raise CorruptBatchError(f"{wanted}: after offset {start}: {error}") from error
    finally:
        run(reader.close())
        loop.close()


class _RangeReader:
    """The responses that hold a range, one after the other. `position` is the next to ask for."""

    def __init__(
        self, settings: ReadSettings, wanted: OffsetRange, *, fail_on_data_loss: bool
    ) -> None:
        self._settings, self._wanted = settings, wanted
        self._fail_on_data_loss = fail_on_data_loss
        self._position = wanted.start
        self._next: asyncio.Task[PartitionData] | None = None
        self._client: Client | None = None
        self._knows_leader = False

    async def close(self) -> None:
        """Disconnects."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def next(self) -> tuple[Fetched, int] | None:
        """A response with records, and the first offset that is wanted of it; None at the end."""
        empty = 0
        while self._position < self._wanted.end:
            try:
                answer = await (self._next or self._ask())
            except ApiError as error:
                self._next = None
                if error.error_code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                await self._skip_what_is_gone(error)
                continue
            self._next = None
            if fetched := self._fetched(answer):
                start, self._position = self._position, fetched.next_offset
                await self._ask_ahead()
                return fetched, start
            empty += 1
            if empty >= EMPTY_ANSWERS_MAX:
                raise StorageError(
                    f"{self._wanted}: the log has no records from offset {self._position} on"
                )
        return None

    def _fetched(self, answer: PartitionData) -> Fetched | None:
        data = answer.records
        if not isinstance(data, bytes | bytearray | memoryview) or not data:
            return None
        try:
            fetched = Fetched(memoryview(data), answer.aborted_transactions or ())
            if not fetched:
                raise CorruptBatchError(f"{len(data):,} bytes that are no whole batch")
        except CorruptBatchError as error:
            raise CorruptBatchError(
                f"{self._wanted}: from offset {self._position}: {error}"
            ) from error
        return fetched

    async def _ask_ahead(self) -> None:
        """Sends the next request, so that the broker works while the caller does."""
        if self._position < self._wanted.end:
            self._next = asyncio.ensure_future(self._ask())
            await asyncio.sleep(0)  # the task sends it

    async def _ask(self) -> PartitionData:
        client = await self._connected()
        return await client.retrying(str(self._wanted), partial(self._fetch, client))

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await connected(self._settings)
        return self._client

    async def _fetch(self, client: Client) -> PartitionData:
        """One question to the leader. ApiError with its refusal."""
        settings, tp = self._settings, self._wanted.topic_partition
        leader = await self._leader(client)
        partition = FetchPartition(
            partition=tp.partition,
            current_leader_epoch=client.cluster.leader_epoch(tp),
            fetch_offset=self._position,
            partition_max_bytes=settings.max_partition_fetch_bytes,
        )
        request = FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=READ_COMMITTED if settings.read_committed else 0,
            session_epoch=SESSIONLESS_EPOCH,
            topics=(FetchTopic(topic=tp.topic, partitions=(partition,)),),
        )
        timeout_ms = settings.fetch_max_wait_ms + settings.request_timeout_ms
        response = await client.request(request, leader, timeout_ms=timeout_ms)
        _check(response.error_code, str(tp))
        ((answer,),) = (topic.partitions for topic in response.responses)
        _check(answer.error_code, f"{tp} from offset {self._position}")
        self._knows_leader = True
        return answer

    async def _leader(self, client: Client) -> int:
        """The leader, looked up anew unless it answered the last time."""
        tp = self._wanted.topic_partition
        if not self._knows_leader:
            await client.refresh([tp.topic])
        self._knows_leader = False
        leader = client.cluster.leader_id(tp)
        if leader is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        return leader

    async def _skip_what_is_gone(self, error: ApiError) -> None:
        """Goes on at the first record there is; StorageError where that would be a loss."""
        if self._fail_on_data_loss:
            raise StorageError(
                f"{self._wanted}: the records from offset {self._position} are gone; with "
                "failOnDataLoss=false they are a gap"
            ) from error
        client = await self._connected()
        first = await client.retrying(str(self._wanted), partial(self._first_offset, client))
        # A log that has become shorter has nothing for us; its records are not those we are after.
        self._position = first if first > self._position else self._wanted.end

    async def _first_offset(self, client: Client) -> int:
        tp = self._wanted.topic_partition
        asked = ListOffsetsPartition(tp.partition, timestamp=EARLIEST)
        request = ListOffsetsRequest(
            CONSUMER_REPLICA_ID, topics=(ListOffsetsTopic(tp.topic, (asked,)),)
        )
        response = await client.request(request, await self._leader(client))
        ((found,),) = (topic.partitions for topic in response.topics)
        _check(found.error_code, str(tp))
        return found.offset


def _check(code: ErrorCode, what: str) -> None:
    if code is not ErrorCode.NONE:
        raise ApiError(code, what)
