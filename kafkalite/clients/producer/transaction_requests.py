"""The requests of a transactional producer to its coordinators.                            [IO]

    InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn    the transactional id's
    TxnOffsetCommit                                                the group's

Requests to the transaction coordinator go one at a time, so that nothing is added to a transaction
whose end is on its way.

A request without an answer may be carried out later, by a coordinator that was cut off and comes
back: it would end the producer's next transaction, or commit offsets of the one before. So the next
transaction has another epoch, in which such a request is refused.

Owns   the current coordinator, and how long requests are retried.
Never  sends records: the producer does, once `ProducerTransaction` says that it may.
Fails  with ApiError, also noted in the transaction: fenced, or to be aborted.
Source KIP-98, KIP-447 (the group's member), KIP-588; apache/kafka `TransactionManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from kafkalite.clients.cluster import GROUP_KEY, TRANSACTION_KEY, Client
from kafkalite.clients.consumer.member import OffsetAndMetadata
from kafkalite.clients.consumer.membership import GroupMetadata
from kafkalite.clients.producer.transaction import FENCING, IN_TRANSACTION, ProducerTransaction
from kafkalite.core.backoff import Backoff
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kafkalite.core.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition, by_topic
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, WireError

R = TypeVar("R")

RETRY_MS: Final = 5  # the end of the last transaction takes a coordinator no longer, mostly
RETRY_MAX_MS: Final = 500
MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
ALREADY_ABORTED: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE})
ENDED: Final = frozenset({ErrorCode.NONE})

Identity = tuple[int, int]  # producer id and epoch
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Transactional:
    """The coordinators' side of one producer's transactions."""

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int) -> None:
        self.transaction = ProducerTransaction(transactional_id)
        self._client = client
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._identity: Identity = (NO_PRODUCER_ID, NO_EPOCH)
        self._in_turn = asyncio.Lock()

    async def identify(self) -> Identity:
        """The producer id and epoch. At the start this fences the previous owner of the
        transactional id; later it begins the next epoch."""

        async def ask() -> ErrorCode:
            request = InitProducerIdRequest(self._id, self._timeout_ms, *self._identity)
            answer = await self._ask(request)
            if not answer.error_code:
                self._identity = (answer.producer_id, answer.producer_epoch)
            return answer.error_code

        async with self._in_turn:
            await self._until_done("producer id", ask)
        self.transaction.identified()
        return self._identity

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """Makes partitions a part of the transaction."""
        topics = by_topic(partitions).items()
        wanted = tuple(AddPartitionsToTxnTopic(name, tuple(numbers)) for name, numbers in topics)

        async def ask() -> ErrorCode:
            request = AddPartitionsToTxnRequest(self._id, *self._identity, wanted)
            answer = await self._ask(request)
            codes = [
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            attempted = (c for c in codes if c not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED))
            return next(attempted, ErrorCode.NONE)

        async with self._in_turn:
            if self.transaction.state is not IN_TRANSACTION:
                return  # it is being aborted meanwhile
            self.transaction.announced()
            await self._until_done(f"{len(partitions)} partitions", ask)
            self.transaction.added(partitions)

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Makes a group's offsets a part of the transaction."""

        async def add() -> ErrorCode:
            request = AddOffsetsToTxnRequest(self._id, *self._identity, group.group_id)
            return (await self._ask(request)).error_code

        async def commit() -> ErrorCode:
            request = self._commit_request(offsets, group)
            answer = await self._client.ask_coordinator(request, group.group_id)
            codes = (p.error_code for topic in answer.topics for p in topic.partitions)
            code = next((c for c in codes if c), ErrorCode.NONE)
            if code in MOVED:
                self._client.forget_coordinator(group.group_id, GROUP_KEY)
            return code

        async with self._in_turn:
            self.transaction.check_in_transaction()
            self.transaction.announced()
            await self._client.coordinator(group.group_id)  # so that its topic is there
            await self._until_done(f"offsets of {group.group_id}", add)
            await self._until_done(f"offsets of {group.group_id}", commit)

    def _commit_request(self, offsets: Offsets, group: GroupMetadata) -> TxnOffsetCommitRequest:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, number), at in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(number, at.offset, at.leader_epoch, at.metadata)
            )
        return TxnOffsetCommitRequest(
            self._id,
            group.group_id,
            *self._identity,
            group.generation_id,
            group.member_id,
            group.group_instance_id,
            tuple(TxnOffsetCommitRequestTopic(name, tuple(ps)) for name, ps in topics.items()),
        )

    async def end(self, *, commit: bool) -> None:
        """Has the transaction's end decided."""

        async def ask() -> ErrorCode:
            request = EndTxnRequest(self._id, *self._identity, commit)
            code = (await self._ask(request)).error_code
            return ErrorCode.NONE if code in (ENDED if commit else ALREADY_ABORTED) else code

        async with self._in_turn:
            self.transaction.check_not_fenced()
            if self.transaction.was_announced:
                await self._until_done("commit" if commit else "abort", ask)
                self.transaction.decided()

    # -- asking

    async def _ask(self, request: Request[R]) -> R:
        return await self._client.ask_coordinator(request, self._id, TRANSACTION_KEY)

    async def _until_done(self, what: str, ask: Callable[[], Awaitable[ErrorCode]]) -> None:
        """Asks again while that may help. ApiError says what did not."""
        timing = self._client.timing
        backoff = Backoff(self._client.random, RETRY_MS, RETRY_MAX_MS)
        until = asyncio.get_running_loop().time() + timing.request_timeout_ms / 1000
        while True:
            try:
                code, why = await ask(), ""
            except (BrokerUnavailable, WireError) as error:
                # As for batches: the connection is gone.
                code, why = ErrorCode.NETWORK_EXCEPTION, f", {error}"
                self.transaction.needs_epoch = True  # it may still be carried out
            except asyncio.CancelledError:
                self.transaction.needs_epoch = True  # likewise
                raise
            if not code:
                return
            if code in MOVED:
                self._client.forget_coordinator(self._id, TRANSACTION_KEY)
            pause = backoff.failed() / 1000
            if code in FENCING:
                fenced = ApiError(ErrorCode.PRODUCER_FENCED, f"{self._id}: {what}")
                self.transaction.fenced(fenced)
                raise fenced
            if not code.is_retriable or asyncio.get_running_loop().time() + pause > until:
                raise ApiError(code, f"{self._id}: {what}{why}")
            await asyncio.sleep(pause)
