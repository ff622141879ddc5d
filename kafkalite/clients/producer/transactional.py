"""The transactional producer: consumers read its transactions whole or not at all.         [IO]

    async with TransactionalProducer("127.0.0.1:9092", "billing-1") as producer:
        async with producer.transaction():
            await producer.send_columns("invoices", columns)
            await producer.send_offsets({partition: 17}, consumer.group_metadata())

This holds for consumers with `isolation_level="read_committed"`. Of all producers with the same
transactional id only the last one may write: the others get PRODUCER_FENCED.

Owns   the order at a transaction's end: all records are acknowledged before a commit, and none is
       sent once an abort begins.
Fails  with ApiError: at `commit` with the transaction's first error, after which the caller must
       abort (`transaction()` does); with PRODUCER_FENCED for good.
Source KIP-98, KIP-360, KIP-447; apache/kafka `KafkaProducer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypedDict, Unpack

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.member import OffsetAndMetadata, offsets_to_commit
from kafkalite.clients.consumer.membership import GroupMetadata
from kafkalite.clients.producer.accumulator import Accumulator, Settled
from kafkalite.clients.producer.producer import FLUSH_AFTER_ERROR_SECONDS, Producer
from kafkalite.clients.producer.transaction import (
    ABORTABLE,
    ABORTING,
    COMMITTING,
    FENCED,
    IN_TRANSACTION,
)
from kafkalite.clients.producer.transaction_requests import Transactional
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ConfigError, ErrorCode, KafkaliteError

log = logging.getLogger(__name__)

UNFINISHED: Final = frozenset({IN_TRANSACTION, ABORTABLE, ABORTING})


class TransactionalSettings(TypedDict, total=False):
    """The settings of a transactional producer: see `Producer`."""

    client_id: str
    linger_ms: float
    batch_bytes: int
    max_request_bytes: int
    compression: Compression | str
    max_in_flight: int
    buffer_bytes_max: int
    delivery_timeout_ms: int


class TransactionalProducer(Producer):
    """Sends records in transactions. Use it as an async context manager.

    `transactional_id` names the producer over restarts. A transaction that takes longer than
    `transaction_timeout_ms` is aborted by its coordinator, and the producer fenced. `settings` are
    those of `Producer`, without acks and idempotence, which transactions need.

        import asyncio
        from kafkalite.clients import TransactionalProducer

        async def main() -> None:
            async with TransactionalProducer("127.0.0.1:9092", "billing-1") as producer:
                async with producer.transaction():
                    await producer.send("invoices", b"12.50", key=b"7")
                    await producer.send("orders", b"shipped", key=b"7")

        asyncio.run(main())
    """

    def __init__(
        self,
        client: Client | str | Sequence[str],
        transactional_id: str,
        *,
        transaction_timeout_ms: int = 60_000,
        **settings: Unpack[TransactionalSettings],
    ) -> None:
        given: Mapping[str, object] = settings
        for name in ("acks", "enable_idempotence"):
            if name in given:
                raise ConfigError(f"{name} is {given[name]!r}; transactions leave no choice")
        if not transactional_id:
            raise ConfigError("the transactional id is empty")
        super().__init__(client, **settings)
        self._settings = replace(self._settings, transactional=True)
        self._accumulator = Accumulator(self._settings, self._random)
        self._coordination = Transactional(self._client, transactional_id, transaction_timeout_ms)
        self._transaction = self._coordination.transaction
        self._transactional_id = transactional_id
        self._adding = False

    # ---- transactions ----

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that is committed at the end of the block, aborted if that raises."""
        await self.begin_block()
        try:
            yield
            await self.commit_block()
        except BaseException:
            await self.abort_unfinished()  # the first error is the one to raise
            raise

    async def begin_block(self) -> None:
        """Begins a transaction, after what `commit_block` has left to do."""
        if self._transaction.is_committed:
            await self.commit()
        self.begin()

    async def commit_block(self) -> None:
        """Commits. There is no error once the coordinator has decided so: `begin_block` asks for
        the next epoch if the coordinator is silent about that."""
        try:
            await self.commit()
        except KafkaliteError as error:
            if not self._transaction.is_committed:
                raise
            log.warning(
                "%s is committed, and waits for an epoch: %s", self._transactional_id, error
            )

    def begin(self) -> None:
        """Begins a transaction; brokers learn of it with the first records."""
        self._check_running()
        self._transaction.begin()

    async def commit(self) -> None:
        """Sends buffered records and commits.

        ApiError that `is_retriable`: the coordinator was silent, and the caller calls again. Any
        other ApiError is the transaction's first error, and the caller must abort now.
        """
        self._check_running()
        if self._transaction.state is not COMMITTING:
            self._transaction.check_in_transaction()
            await self.flush()
            self._transaction.committing()
        try:
            await self._coordination.end(commit=True)
        except ApiError as error:
            if not error.error_code.is_retriable:
                self._transaction.failed(error)
            raise
        try:
            await self._begin_epoch()
        except ApiError:
            if self._transaction.state is FENCED:
                return  # it is committed all the same; the next `begin` tells
            raise
        self._transaction.ended()

    async def abort(self) -> None:
        """Drops unsent records and aborts. May be called again if that failed."""
        self._check_running()
        self._transaction.aborting()
        last = self._accumulator.close_open()
        self._pump()
        while not self._accumulator.has_settled(last):
            await self._wait_for_progress()
        self._first_error = None
        await self._coordination.end(commit=False)
        await self._begin_epoch()
        self._transaction.ended()

    async def _begin_epoch(self) -> None:
        """The next epoch, where what was sent in this one must not count for later transactions."""
        if self._transaction.needs_epoch:
            self._accumulator.restart(*await self._coordination.identify())

    async def abort_unfinished(self) -> None:
        """Aborts a transaction that is under way or has failed; an error is only logged."""
        if self._transaction.state in UNFINISHED:
            try:
                await self.abort()
            except KafkaliteError as late:
                log.warning("%s", late)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group: GroupMetadata | str,
    ) -> None:
        """Commits a group's offsets with the transaction: `consumer.group_metadata()` names the
        member, so that the group refuses a member it no longer has."""
        self._check_running()
        wanted = offsets_to_commit(offsets)
        group = GroupMetadata(group) if isinstance(group, str) else group
        try:
            await self._coordination.send_offsets(wanted, group)
        except ApiError as error:
            self._transaction.failed(error)
            raise

    async def close(self, *, flush: bool = True) -> None:
        """Ends an interrupted commit, aborts an open transaction, and disconnects."""
        try:
            if not self._closed:
                async with asyncio.timeout(FLUSH_AFTER_ERROR_SECONDS):
                    await self._end_transaction()
        except (KafkaliteError, TimeoutError) as error:
            log.warning("the transaction is left to time out: %s", error)
        finally:
            await super().close(flush=False)

    async def _end_transaction(self) -> None:
        if self._transaction.state is COMMITTING:
            await self.commit()
        elif self._transaction.state in UNFINISHED:
            await self.abort()

    # ---- the producer's steps ----

    async def _identify(self) -> None:
        self._accumulator.identify(*await self._coordination.identify())

    def _check_open(self) -> None:
        super()._check_open()
        self._transaction.check_in_transaction()

    def _may_send(self, topic_partition: TopicPartition) -> bool:
        return self._transaction.may_send(topic_partition)

    def _send_ready(self) -> None:
        if self._transaction.state in (ABORTABLE, ABORTING, FENCED):
            aborted = ApiError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction is aborted")
            self._finish(self._accumulator.drop_waiting(self._transaction.error or aborted))
        super()._send_ready()
        if self._transaction.waiting and not self._adding:
            self._adding = True
            self._background.run(self._add_waiting())

    async def _add_waiting(self) -> None:
        """Makes partitions a part of the transaction, until none waits to be."""
        try:
            while waiting := self._transaction.waiting:
                await self._coordination.add(waiting)
        except ApiError as error:
            self._transaction.failed(error)
            self._finish(self._accumulator.drop_waiting(error))
        finally:
            self._adding = False
        self._pump()

    def _finish(self, settled: list[Settled]) -> None:
        for result in settled:
            if result.error is not None:
                self._transaction.needs_epoch = True
                self._transaction.failed(result.error)
        super()._finish(settled)
