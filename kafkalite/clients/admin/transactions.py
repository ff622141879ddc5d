"""The admin client's calls about transactions and producers.                               [IO]

A transaction hangs when its coordinator knows nothing of it while a partition waits for its end.
`describe_producers` shows such transactions, and `abort_transaction` writes the missing marker;
`fence_producer` ends any other transaction.

Owns   nothing.
Fails  with ApiError for the first transactional id or partition refused; ConfigError for a state
       that brokers do not know.
Source KIP-664, KIP-994 (durations), KIP-360; apache/kafka `FenceProducersHandler`,
       `AbortTransactionHandler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafkalite.clients.admin.calls import NO_COORDINATOR, AdminCalls, raise_for
from kafkalite.clients.cluster import TRANSACTION_KEY
from kafkalite.core.protocol.transactions import (
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ProducerState,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkalite.core.types import NO_OFFSET, TopicPartition
from kafkalite.errors import ConfigError, ErrorCode

ANY_DURATION: Final = -1
FENCING_TIMEOUT_MS: Final = 60_000  # of the transactions that the id's new epoch will never begin
STILL_ENDING: Final = NO_COORDINATOR | {ErrorCode.CONCURRENT_TRANSACTIONS}


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """How a transactional id stands; `started_ms` (epoch ms) is −1 without a transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer as a partition's leader knows it; −1 where there is nothing to tell."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int  # epoch ms
    coordinator_epoch: int
    transaction_start_offset: int

    @property
    def in_transaction(self) -> bool:
        """Whether records of a transaction wait here for its end."""
        return self.transaction_start_offset != NO_OFFSET


class TransactionCalls(AdminCalls):
    """Transactions, and the producers that partitions know."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = ANY_DURATION,
    ) -> list[TransactionListing]:
        """The transactional ids that brokers know, narrowed down; sorted."""
        request = ListTransactionsRequest(tuple(states), tuple(producer_ids), longer_than_ms)
        answers = await self._ask_all(
            request, lambda r: [("the list of transactions", r.error_code, None)]
        )
        for answer in answers.values():
            for state in answer.unknown_state_filters:
                raise ConfigError(f"the broker knows no transaction state {state!r}")
        return sorted(
            (
                TransactionListing(t.transactional_id, t.producer_id, t.transaction_state, node_id)
                for node_id, answer in answers.items()
                for t in answer.transaction_states
            ),
            key=lambda listing: listing.transactional_id,
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> list[TransactionInfo]:
        """The states of these transactional ids. TRANSACTIONAL_ID_NOT_FOUND for an unknown id."""
        described: list[TransactionInfo] = []
        for transactional_id in transactional_ids:
            response = await self._ask_coordinator(
                transactional_id,
                DescribeTransactionsRequest((transactional_id,)),
                lambda r: [
                    (f"transactional id {t.transactional_id}", t.error_code, None)
                    for t in r.transaction_states
                ],
                kind=TRANSACTION_KEY,
            )
            described += [
                TransactionInfo(
                    told.transactional_id,
                    told.transaction_state,
                    told.producer_id,
                    told.producer_epoch,
                    told.transaction_timeout_ms,
                    told.transaction_start_time_ms,
                    tuple(TopicPartition(t.topic, p) for t in told.topics for p in t.partitions),
                )
                for told in response.transaction_states
            ]
        return described

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerInfo, ...]]:
        """The idempotent producers that each partition's leader remembers."""

        def request(topics: Mapping[str, Sequence[int]]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                tuple(DescribeProducersTopic(t, tuple(ps)) for t, ps in topics.items())
            )

        return await self._ask_leaders(
            partitions,
            request,
            lambda r: (
                (
                    TopicPartition(t.name, p.partition_index),
                    p.error_code,
                    p.error_message,
                    tuple(map(_producer, p.active_producers)),
                )
                for t in r.topics
                for p in t.partitions
            ),
        )

    async def fence_producer(self, transactional_id: str) -> tuple[int, int]:
        """Aborts the transaction of an id, if one is open, and fences its producer.

        Returns the id's producer id and new epoch, once the transaction has ended.
        """
        request = InitProducerIdRequest(transactional_id, FENCING_TIMEOUT_MS)

        async def attempt() -> tuple[int, int]:
            answer = await self._client.ask_coordinator(request, transactional_id, TRANSACTION_KEY)
            raise_for([(f"transactional id {transactional_id}", answer.error_code, None)])
            return answer.producer_id, answer.producer_epoch

        return await self._at_coordinator(
            transactional_id, attempt, kind=TRANSACTION_KEY, codes=STILL_ENDING
        )

    async def abort_transaction(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> None:
        """Writes an abort marker into one partition, past the coordinator: for hanging ones only.

        INVALID_PRODUCER_EPOCH when the producer has gone on, TRANSACTION_COORDINATOR_FENCED when
        the coordinator epoch is not the latest.
        """

        def request(topics: Mapping[str, Sequence[int]]) -> WriteTxnMarkersRequest:
            markers = tuple(WritableTxnMarkerTopic(t, tuple(ps)) for t, ps in topics.items())
            marker = WritableTxnMarker(
                producer_id, producer_epoch, False, markers, coordinator_epoch
            )
            return WriteTxnMarkersRequest((marker,))

        await self._ask_leaders(
            [partition],
            request,
            lambda r: (
                (TopicPartition(t.name, p.partition_index), p.error_code, None, None)
                for marker in r.markers
                for t in marker.topics
                for p in t.partitions
            ),
        )


def _producer(state: ProducerState) -> ProducerInfo:
    return ProducerInfo(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )
