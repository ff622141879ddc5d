"""The producer: records and whole columns in, acknowledged batches out.                    [IO]

    async with Producer("127.0.0.1:9092") as producer:
        await producer.send_columns("orders", Columns(keys, values, timestamps))
        await producer.flush()

`send_columns` encodes batch by batch while earlier ones are under way; up to five requests are in
flight to a broker, in order and without duplicates (idempotence is on by default).

Owns   the accumulator, one lane of connections, the tasks that keep metadata fresh.
Never  buffers more than `buffer_bytes_max`: `send` and `send_columns` wait instead.
Fails  at `flush`, and in a record's own future, with the ApiError of the first batch that failed,
       naming topic and partition; at once with ApiError for a topic that does not exist and with
       TypeError for entries that are no bytes.
Source KIP-98, KIP-91; apache/kafka `KafkaProducer`, `Sender`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter, index
from types import TracebackType
from typing import Final, Literal, NamedTuple

from kafkalite.clients.background import BackgroundTasks
from kafkalite.clients.cluster import Client, client_of
from kafkalite.clients.lifetime import Lifetime
from kafkalite.clients.metadata import TopicInfo
from kafkalite.clients.producer.accumulator import Accumulator, Answer, Batch, Settings, Settled
from kafkalite.clients.producer.batching import check_lengths, record_bytes
from kafkalite.clients.producer.routing import Router
from kafkalite.clients.silence import SilentLeaders
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafkalite.core.protocol.transactions import InitProducerIdRequest
from kafkalite.core.types import Columns, Headers, TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ConfigError, ErrorCode, KafkaliteError

log = logging.getLogger(__name__)

ALL: Final = -1
IN_FLIGHT_MAX: Final = 5  # as many batches of a producer a broker remembers, per partition
ACKS: Final = {"all": ALL, -1: ALL, 0: 0, 1: 1}
FLUSH_AFTER_ERROR_SECONDS: Final = 5.0
TIMESTAMP_MIN: Final = -(1 << 63)
TIMESTAMP_MAX: Final = (1 << 63) - 1
PLACE_OF: Final = attrgetter("topic_partition")  # of a batch
NO_TRANSACTION_TIMEOUT_MS: Final = 60_000  # brokers want one though there is no transaction


class RecordMetadata(NamedTuple):
    """A stored record's position; offset −1 with acks 0 or if the broker does not know it."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # epoch ms: the record's own, or the log's where the topic says so


class Producer(Lifetime):
    """Sends records to topics. Use it as an async context manager; leaving it flushes.

    `client` is a Client to share, or bootstrap servers. `acks` is "all", 1 or 0 (no answer, so
    losses go unnoticed). Batches close at `batch_bytes`, or `linger_ms` after their first record.
    A batch is tried for `delivery_timeout_ms`. `enable_idempotence` needs acks="all".

        import asyncio
        from kafkalite.clients import Columns, Producer

        async def main() -> None:
            async with Producer("127.0.0.1:9092", linger_ms=5) as producer:
                stored = await producer.send("orders", b"packed", key=b"7")
                print((await stored).offset)
                columns = Columns([b"7", b"8"], [b"sent", b"shipped"], [1, 2])
                await producer.send_columns("orders", columns)
                await producer.flush()

        asyncio.run(main())
    """

    def __init__(
        self,
        client: Client | str | Sequence[str],
        *,
        client_id: str = "kafkalite-producer",
        acks: Literal["all", -1, 0, 1] = "all",
        linger_ms: float = 0,
        batch_bytes: int = 524_288,
        max_request_bytes: int = 1_048_576,
        compression: Compression | str = Compression.NONE,
        enable_idempotence: bool | None = None,
        max_in_flight: int = 5,
        buffer_bytes_max: int = 33_554_432,
        delivery_timeout_ms: int = 120_000,
    ) -> None:
        if acks not in ACKS:
            raise ConfigError(f"acks is {acks!r}; it may be 'all', 1 or 0")
        self._acks = ACKS[acks]
        idempotent = self._acks == ALL if enable_idempotence is None else enable_idempotence
        if idempotent and self._acks != ALL:
            raise ConfigError(f"enable_idempotence needs acks='all', acks is {acks!r}")
        if max_in_flight < 1 or (idempotent and max_in_flight > IN_FLIGHT_MAX):
            raise ConfigError(f"max_in_flight is {max_in_flight}; idempotence allows 1 to 5")
        self._settings = Settings(
            batch_bytes=min(batch_bytes, max_request_bytes),
            linger_ms=linger_ms,
            request_bytes_max=max_request_bytes,
            in_flight_max=max_in_flight,
            delivery_timeout_ms=delivery_timeout_ms,
            compression=_compression(compression),
            idempotent=idempotent,
        )
        self._buffer_bytes_max = buffer_bytes_max
        self._client, self._owns_client = client_of(client, client_id)
        self._random = self._client.random
        self._accumulator = Accumulator(self._settings, self._random)
        self._router = Router(self._settings.batch_bytes, self._random)
        self._lane = self._client.new_lane("produce")
        self._background = BackgroundTasks(self._client, self._pump)
        self._silent = SilentLeaders(self._client, self._background)
        self._connecting: set[int] = set()
        self._identifying = self._pump_is_due = self._started = self._closed = False
        self._progress: asyncio.Future[None] | None = None
        self._first_error: ApiError | None = None
        self._fault: Exception | None = None
        self._transactional_id: str | None = None  # of a transactional producer
        self._ends: dict[TopicPartition, int] = {}  # one number for each partition written to

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        try:  # the first error is the one to raise, and soon
            if isinstance(error, Exception):
                async with asyncio.timeout(FLUSH_AFTER_ERROR_SECONDS):
                    await self.flush()
        except (KafkaliteError, TimeoutError, RuntimeError) as late:
            log.warning("%d bytes may be lost: %s", self.buffered_bytes, late)
        finally:
            await self.close(flush=False)

    async def start(self) -> None:
        """Finds the cluster and, with idempotence, gets a producer id."""
        self._loop = asyncio.get_running_loop()
        self._refresh_at = self._loop.time() + self._client.timing.metadata_max_age_ms / 1000
        try:
            await self._client.start()
            if self._settings.idempotent:
                await self._client.retrying("producer id", self._identify)
        except BaseException:
            await self.close(flush=False)
            raise
        self._started = True

    async def close(self, *, flush: bool = True) -> None:
        """Sends buffered records unless `flush` is false, and closes the connections."""
        try:
            if flush and not self._closed:
                await self.flush()
        finally:
            self._closed = True
            self._silent.close()
            await self._background.close()
            gone = ApiError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
            self._finish(self._accumulator.abandon(gone))
            await self._client.close_lane(self._lane)
            if self._owns_client:
                await self._client.close()

    # ---- sending ----

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Hands in one record; the future gets its place in the log.

        Waits only for room in the buffer, and for the topic's metadata the first time.
        """
        for name, part in (("key", key), ("value", value)):
            if part is not None and not isinstance(part, bytes):
                raise TypeError(f"the {name} is {type(part).__name__}, not bytes or None")
        _check_headers(headers)
        timestamp_ms = self._client.now_ms() if timestamp_ms is None else timestamp_ms
        if not TIMESTAMP_MIN <= index(timestamp_ms) <= TIMESTAMP_MAX:
            raise ValueError(f"timestamp {timestamp_ms} does not fit 64 bits")
        size = record_bytes(key, value, headers)
        info = self._client.cluster.topics.get(topic) or await self._look_up(topic)
        if self._is_full(size):
            await self._room_for(size)
        target = self._router.one(info, key, partition, size)
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        self._accumulator.append(
            target, key, value, timestamp_ms, headers, future, self._loop.time() * 1000
        )
        self._pump_soon()
        return future

    async def send_columns(
        self,
        topic: str,
        columns: Columns,
        partition: int | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """Hands in whole columns of bytes, in order within each partition.

        Each record goes to `partition`, or to its entry in `partitions`, or by its key; records
        without a key stick to one partition per batch. Waits while the buffer is full.
        """
        self._check_open()
        check_lengths(columns)
        if partitions is not None and len(partitions) != len(columns):
            raise ValueError(f"{len(partitions):,} partitions for {len(columns):,} records")
        if not len(columns):
            return
        info = self._client.cluster.topics.get(topic) or await self._look_up(topic)
        since_yield = 0
        for target, chunk, size in self._router.columns(info, columns, partition, partitions):
            if self._is_full(size):
                await self._room_for(size)
            self._accumulator.append_columns(target, chunk, size, self._loop.time() * 1000)
            since_yield += size
            if since_yield < self._settings.batch_bytes // 2:
                self._pump_soon()
                continue
            since_yield = 0
            self._pump()
            await asyncio.sleep(0)  # lets the sockets take what was written

    async def _look_up(self, topic: str) -> TopicInfo:
        """A topic not met before. To ask may make it: not before the start, nor after the end."""
        self._check_open()
        return await self._client.topic(topic)

    async def flush(self) -> None:
        """Waits until all that was handed in is acknowledged. Raises the first error since."""
        last = self._accumulator.close_open()
        self._pump()
        while not self._accumulator.has_settled(last):
            await self._wait_for_progress()
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    def _check_open(self) -> None:
        self._check_running()
        if self._fault is not None:
            raise RuntimeError("the producer is closed") from self._fault

    def _check_running(self) -> None:
        """RuntimeError before the start and after the end."""
        if self._closed or not self._started:
            state = "closed" if self._closed else "not started"
            raise RuntimeError(f"the producer is {state}")

    def end_offset(self, partition: TopicPartition) -> int | None:
        """The offset behind the last record of this producer that a partition acknowledged.

        None where there is none, and where the broker no longer knew the offset.
        """
        return self._ends.get(partition)

    # ---- back pressure ----

    @property
    def buffered_bytes(self) -> int:
        """How many bytes are not acknowledged yet."""
        return self._accumulator.buffered_bytes

    def _is_full(self, size_bytes: int) -> bool:
        self._check_open()
        buffered = self._accumulator.buffered_bytes
        return buffered > 0 and buffered + size_bytes > self._buffer_bytes_max

    async def _room_for(self, size_bytes: int) -> None:
        while self._is_full(size_bytes):
            self._pump()
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        if self._progress is None:
            self._progress = self._loop.create_future()
        await asyncio.shield(self._progress)

    # ---- the pump ----

    def _pump_soon(self) -> None:
        """Pumps once this turn of the loop has ended, so that all its records go out together."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Sends whatever may be sent now. A fault of ours ends the producer, not its callers."""
        self._pump_is_due = False
        if self._closed or not self._started or self._fault is not None:
            return
        try:
            self._send_ready()
        except Exception as error:
            log.exception("the producer cannot go on")
            self._fault = error
            gone = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer failed: {error!r}")
            self._finish(self._accumulator.abandon(gone))

    def _send_ready(self) -> None:
        now_ms = self._loop.time() * 1000
        self._finish(self._accumulator.expire(now_ms))
        if now_ms / 1000 >= self._refresh_at:  # topics may have grown
            self._refresh_at = now_ms / 1000 + self._client.timing.metadata_max_age_ms / 1000
            self._accumulator.stale_topics |= self._accumulator.topics
        ready = self._accumulator.drain(self._leader_of, self._free(), now_ms, self._may_send)
        self._finish(self._accumulator.take_unencodable())
        for node_id, batches in ready:
            self._transmit(node_id, batches)
        self._background.refresh(self._accumulator.stale_topics, lambda: self._accumulator.topics)
        if self._accumulator.needs_producer_id and not self._identifying:
            self._identifying = True
            self._background.run(self._identify_again())
        self._background.wake_at(self._accumulator.next_deadline_ms(now_ms))

    def _may_send(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's records may leave now: outside of transactions, always."""
        return True

    def _free(self) -> dict[int, int]:
        """How many more requests each broker may get."""
        free: dict[int, int] = {}
        for node_id in self._client.cluster.nodes:
            connection = self._client.open_connection(node_id, self._lane)
            if connection is not None and connection.is_writable:
                free[node_id] = self._settings.in_flight_max - connection.in_flight
        return free

    def _leader_of(self, topic_partition: TopicPartition) -> int | None:
        """The partition's leader; connects to it if need be."""
        node_id = self._client.cluster.leader_id(topic_partition)
        if node_id is None or self._client.open_connection(node_id, self._lane) is not None:
            return node_id
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            connecting = self._client.connecting(node_id, self._lane)
            connecting.add_done_callback(partial(self._connected, node_id))
            self._silent.connecting(connecting, lambda: self._accumulator.topics)
        return node_id

    def _connected(self, node_id: int, connecting: asyncio.Task[BrokerConnection]) -> None:
        self._connecting.discard(node_id)
        if connecting.cancelled() or self._closed:
            return
        if (error := connecting.exception()) is not None:
            log.warning("%d bytes wait for broker %d: %s", self.buffered_bytes, node_id, error)
            self._accumulator.stale_topics |= self._accumulator.topics  # another may lead by now
        self._pump_soon()

    def _transmit(self, node_id: int, batches: list[Batch]) -> None:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            topic, partition = batch.topic_partition
            topics.setdefault(topic, []).append(PartitionProduceData(partition, batch.data))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._client.timing.request_timeout_ms,
            topic_data=tuple(TopicProduceData(t, tuple(parts)) for t, parts in topics.items()),
        )
        connection = self._client.open_connection(node_id, self._lane)
        try:
            if connection is None:
                raise BrokerUnavailable(f"broker {node_id} is not connected")
            if self._acks == 0:
                connection.send_unanswered(request)
                self._finish(self._accumulator.acknowledge_all(batches))
            else:
                answer = connection.submit(request)
                answer.add_done_callback(partial(self._answered, batches))
                places = partial(map, PLACE_OF, batches)
                self._silent.watch(connection, node_id, answer, places)
        except BrokerUnavailable as error:
            self._settle(batches, Answer(ErrorCode.NETWORK_EXCEPTION, message=str(error)))
        except ApiError as error:
            self._settle(batches, Answer(error.error_code, message=str(error)))

    def _answered(self, batches: list[Batch], future: asyncio.Future[ProduceResponse]) -> None:
        if self._closed:
            future.cancelled() or future.exception()
            return
        if (error := future.exception()) is not None:
            self._settle(batches, Answer(ErrorCode.NETWORK_EXCEPTION, message=str(error)))
        else:
            answers = {
                (topic.name, answer.index): answer
                for topic in future.result().responses
                for answer in topic.partition_responses
            }
            for batch in batches:
                self._settle([batch], _answer_in(answers.get(batch.topic_partition)))
        self._pump()

    def _settle(self, batches: list[Batch], answer: Answer) -> None:
        now_ms = self._loop.time() * 1000
        for batch in batches:
            self._finish(self._accumulator.settle(batch, answer, now_ms))

    def _finish(self, settled: list[Settled]) -> None:
        """Completes the futures of these batches."""
        for result in settled:
            self._first_error = self._first_error or result.error
            self._note_end(result)
            for place, timestamp, future in result.batch.waiters:
                if future.done():  # whoever asked was cancelled
                    continue
                if result.error is not None:
                    future.set_exception(result.error)
                    future.exception()  # flush raises it too: nobody need look at the future
                    continue
                offset = result.base_offset + place if result.base_offset >= 0 else -1
                if result.log_append_time_ms >= 0:
                    timestamp = result.log_append_time_ms
                future.set_result(RecordMetadata(*result.batch.topic_partition, offset, timestamp))
        if settled and self._progress is not None:
            progress, self._progress = self._progress, None
            progress.set_result(None)

    def _note_end(self, result: Settled) -> None:
        if result.error is not None:
            return
        if result.base_offset >= 0:
            end = result.base_offset + result.batch.record_count
            self._ends[result.batch.topic_partition] = end
        else:
            self._ends.pop(result.batch.topic_partition, None)

    # ---- who we are ----

    async def _identify(self) -> None:
        request = InitProducerIdRequest(None, NO_TRANSACTION_TIMEOUT_MS)
        response = await self._client.request(request)
        if response.error_code is not ErrorCode.NONE:
            raise ApiError(response.error_code, "producer id")
        self._accumulator.identify(response.producer_id, response.producer_epoch)

    async def _identify_again(self) -> None:
        try:
            await self._client.retrying("producer id", self._identify)
        except KafkaliteError as error:
            log.warning("%s; batches wait until they expire", error)
            await asyncio.sleep(1)
        finally:
            self._identifying = False
        self._pump()


def _check_headers(headers: Iterable[object]) -> None:
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(f"a header is {header!r:.80}, not a pair of str and bytes or None")
        name, content = header
        if not isinstance(name, str) or not isinstance(content, bytes | None):
            kinds = f"{type(name).__name__} and {type(content).__name__}"
            raise TypeError(f"a header is {kinds}, not str and bytes or None")


def _answer_in(response: PartitionProduceResponse | None) -> Answer:
    if response is None:
        return Answer(ErrorCode.UNKNOWN_SERVER_ERROR, message="the broker did not mention it")
    message = response.error_message or ""
    if response.record_errors:
        record = response.record_errors[0]
        message = f"record {record.batch_index}: {record.batch_index_error_message or message}"
    return Answer(response.error_code, response.base_offset, response.log_append_time_ms, message)


def _compression(wanted: Compression | str) -> Compression:
    if isinstance(wanted, Compression):
        return wanted
    try:
        return Compression[wanted.upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Compression)
        raise ConfigError(f"compression is {wanted!r}; it may be {known}") from None
