"""The transaction coordinators of this broker, one for each `__transaction_state` partition. [D]

Owns   the carrying out of what only their machines ask for: producer ids, markers.
Never  knows where a partition is led: `MarkerWriter` does.
Fails  with ApiError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
Source KIP-890 (verification); apache/kafka `TransactionCoordinator`,
       `TransactionMarkerChannelManager`, `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Final, Protocol

from kafkalite.core.cluster.image import NO_LEADER
from kafkalite.core.cluster.internal_topics import TRANSACTIONS_TOPIC
from kafkalite.core.cluster.producer_ids import ProducerIds
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.coordinators.runtime import Coordinator, Coordinators, Host
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.transactions.coordinator import (
    AddPartitions,
    MarkersWritten,
    ProducerIdTaken,
    TakeProducerId,
    TransactionConfig,
    TransactionCoordinator,
    WriteMarkers,
)
from kafkalite.core.transactions.marker_queues import Errors, Marker
from kafkalite.core.transactions.markers import MarkerWriter
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.transactions.verification import TRANSIENT, Verification, Verifications
from kafkalite.core.types import NO_EPOCH, RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

_IDENTITY: Final = Struct(">qh")  # of a record batch: producer_id, producer_epoch
IDENTITY_START: Final = 43
IDENTITY_END: Final = IDENTITY_START + _IDENTITY.size
CERTAIN_AT_ONCE: Final = frozenset({InitProducerIdRequest, AddPartitions})
NOBODY: Final = RequestContext(0)  # asks: the request comes from within


class Verifier(Protocol):
    """The way to the coordinators on other brokers."""

    def ask(self, verification: Verification, node_id: int) -> None:
        """Completes the verification's answer with what broker `node_id` says."""


class TransactionCoordinators(Coordinators[TransactionCoordinator]):
    """All coordinators of transactions that this broker runs, by partition."""

    def __init__(
        self,
        host: Host,
        config: BrokerConfig,
        producer_ids: ProducerIds,
        markers: MarkerWriter,
        verifications: Verifications,
    ) -> None:
        limits = _config(config)
        super().__init__(
            host,
            TRANSACTIONS_TOPIC,
            lambda: TransactionCoordinator(limits),
            self._run_effect,
            # An earlier transaction's end is no answer about the next, and who is shut out is so
            # by the last coordinator's word. But librdkafka, refused a partition of a transaction,
            # asks for its end all the same, and takes for fatal that there is none.
            certain={EndTxnRequest: lambda _: True},
            certain_at_once=CERTAIN_AT_ONCE,
        )
        self._producer_ids = producer_ids
        self.markers = markers  # in a cluster one that reaches other brokers, too
        self.verifier: Verifier | None = None  # in a cluster
        self._verifications = verifications

    def ask_about_batch(
        self, transactional_id: str, partition: Partition, batch: Buffer
    ) -> Verification | None:
        """Asks the coordinator on another broker what `check_batch` must know. None if the
        coordinator is here, or such a batch needs no question."""
        if self.verifier is None or len(batch) < IDENTITY_END:
            return None
        identity = ProducerIdentity(*_IDENTITY.unpack_from(batch, IDENTITY_START))
        return self.ask(transactional_id, identity, partition)

    def ask(
        self, transactional_id: str, identity: ProducerIdentity, partition: Partition
    ) -> Verification | None:
        """The same for `check`."""
        if self.verifier is None or partition.log.producers.is_in_transaction(*identity):
            return None
        topic = self._host.image.topics.get(self.topic)
        if topic is None:
            return None
        leader = topic.partitions[self.index_of(transactional_id)].leader
        if leader in (self._host.node_id, NO_LEADER):
            return None
        verification = self._verifications.begin(transactional_id, identity, partition.replication)
        self.verifier.ask(verification, leader)
        return verification

    def verify(
        self, transactional_id: str, identity: ProducerIdentity, where: TopicPartition
    ) -> ErrorCode:
        """What this broker knows of a transaction, for the leader of a partition."""
        try:
            machine = self.ready(self.index_of(transactional_id)).machine
        except ApiError as error:
            return error.error_code
        return machine.verify(transactional_id, identity, where)

    def check_batch(self, transactional_id: str, partition: Partition, batch: Buffer) -> None:
        """Refuses a batch that would open a transaction in a partition that was not added to it.

        A batch that comes late, after its transaction's end, would otherwise hold up readers of
        committed records for ever. ApiError: see `check`, and for what clients try again
        NOT_ENOUGH_REPLICAS. What is no batch at all is for the log to refuse.
        """
        if len(batch) >= IDENTITY_END:
            identity = ProducerIdentity(*_IDENTITY.unpack_from(batch, IDENTITY_START))
            self.check(transactional_id, identity, partition, ErrorCode.NOT_ENOUGH_REPLICAS)

    def check(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partition: Partition,
        try_again: ErrorCode,
    ) -> None:
        """Whether the producer may write to the partition within its transaction.

        ApiError: INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, and
        `try_again` where nobody can tell now.
        """
        if partition.log.producers.is_in_transaction(*identity):
            return
        code = self.verify(transactional_id, identity, partition.topic_partition)
        if code in TRANSIENT:
            code = try_again
        if code:
            raise ApiError(
                code,
                f"{partition.topic_partition}: producer {identity.producer_id} epoch "
                f"{identity.producer_epoch} of {transactional_id} has no transaction there",
            )

    def _run_effect(self, coordinator: Coordinator[TransactionCoordinator], effect: object) -> None:
        if isinstance(effect, TakeProducerId):
            self._producer_ids.take().when_done(
                partial(self._producer_id_taken, coordinator, effect)
            )
            return
        assert isinstance(effect, WriteMarkers), effect
        marker = Marker(*effect.identity, effect.commit, coordinator.leader_epoch)
        done = partial(self._written, coordinator, effect)
        self.markers.write(marker, effect.partitions, done, lambda: coordinator.is_active)

    def _producer_id_taken(
        self,
        coordinator: Coordinator[TransactionCoordinator],
        effect: TakeProducerId,
        producer_id: int | ApiError,
    ) -> None:
        if not coordinator.is_active:
            code = ErrorCode.NOT_COORDINATOR
            response = InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
            effect.context.token.complete(response)
            return
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # what clients wait for
        found = loading if isinstance(producer_id, ApiError) else producer_id
        self.step(coordinator, ProducerIdTaken(effect.request, found), effect.context)

    def _written(
        self,
        coordinator: Coordinator[TransactionCoordinator],
        effect: WriteMarkers,
        errors: Errors,
    ) -> None:
        if coordinator.is_active:
            written = MarkersWritten(effect.transactional_id, effect.attempt, errors)
            self.step(coordinator, written, NOBODY)


def _config(config: BrokerConfig) -> TransactionConfig:
    names = (
        "transaction.max.timeout.ms",
        "transactional.id.expiration.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
    )
    return TransactionConfig(**{name.replace(".", "_"): config[name] for name in names})
