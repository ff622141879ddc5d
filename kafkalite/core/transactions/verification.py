"""Whether a producer may begin its transaction in a partition, as its coordinator says.      [P]

    leader ──asks──> the coordinator, on another broker ──> yes, or why not
       └── appends the batch, unless a marker of the producer came in between

A marker that is appended while the question is under way, or before the batch is, takes a yes back:
it was about a transaction that has ended. The batch would open it again, and nobody would end it.

Owns   `Verifications`: those under way and those not used yet, as long as their requests live.
Source KIP-890 (verification guards); apache/kafka `AddPartitionsToTxnManager`,
       `VerificationStateEntry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

from kafkalite.core.pending import Pending
from kafkalite.core.replicas.replication import PartitionReplication
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode

# Answers that say nothing about the transaction: the coordinator was not asked, or cannot know yet.
TRANSIENT: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Verification:
    """One question to a coordinator, and what becomes of it."""

    transactional_id: str
    identity: ProducerIdentity
    replication: PartitionReplication
    leader_epoch: int  # in which this broker asks
    answer: Pending[ErrorCode]
    is_overtaken: bool = False  # by a marker

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the producer is about to write."""
        return self.replication.topic_partition

    def check(self, try_again: ErrorCode) -> None:
        """ApiError where the producer may not write: the coordinator's reason; `try_again` where
        it could not say, or its answer has become old."""
        code = self.answer.response
        is_old = self.leader_epoch != self.replication.leader_epoch
        if code is None or code in TRANSIENT or is_old or self.is_overtaken:
            code = try_again
        if code:
            identity = self.identity
            raise ApiError(
                code,
                f"{self.topic_partition}: producer {identity.producer_id} epoch "
                f"{identity.producer_epoch} of {self.transactional_id} is not known to have a "
                "transaction there",
            )


class Verifications:
    """The questions of one broker that markers may overtake."""

    def __init__(self) -> None:
        self._known: WeakSet[Verification] = WeakSet()

    def begin(
        self, transactional_id: str, identity: ProducerIdentity, replication: PartitionReplication
    ) -> Verification:
        """A question about a partition that is about to be asked."""
        epoch = replication.leader_epoch
        made = Verification(transactional_id, identity, replication, epoch, Pending())
        self._known.add(made)
        return made

    def marker_appended(self, where: TopicPartition, producer_id: int) -> None:
        """A transaction of the producer has ended in a partition."""
        for each in tuple(self._known):
            if each.identity.producer_id == producer_id and each.topic_partition == where:
                each.is_overtaken = True
