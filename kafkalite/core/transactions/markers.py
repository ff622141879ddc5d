"""Markers: the ends of producers' transactions, written into the partitions' logs.          [D]

    coordinator ──> write ──> the partitions held here: one control batch each ──> done(errors)

A marker takes one offset. Once it is committed, the last stable offset may pass it; in a partition
of `__consumer_offsets` it also decides the offsets that groups committed in the transaction.

Owns   the number of each broker's last request, of SENDERS_MAX brokers.
Never  asks whose transaction it is: the partition's log checks the epochs.
Fails  with an error code per partition.
Source KIP-98; apache/kafka `KafkaApis.handleWriteTxnMarkersRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC
from kafkalite.core.coordinators.runtime import Host
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode_end_transaction_marker,
)
from kafkalite.core.replicas.replication import ACKS_ALL
from kafkalite.core.transactions.marker_queues import Errors, Marker, always
from kafkalite.core.transactions.verification import Verifications
from kafkalite.core.types import NO_EPOCH, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

NO_EPOCHS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})
MARKERS_PER_SLICE: Final = 16  # some 0.2 ms each where the log has to be opened
SLICE_MS: Final = 4  # a slice ends then, too: where a marker makes its log's first file
# A marker makes the whole transaction before it readable, not only its own bytes. Readers that wait
# look again, and wait on if that is not enough.
ALL_THERE_IS: Final = 1 << 40
SENDERS_MAX: Final = 1_000  # brokers whose last request is known


class MarkerWriter(Protocol):
    """The sender of markers to the leaders of partitions."""

    def write(
        self,
        marker: Marker,
        partitions: Collection[TopicPartition],
        done: Callable[[Errors], None],
        is_wanted: Callable[[], bool] = always,
    ) -> None:
        """Calls `done`, at once or later, with what became of each partition's marker; not if it
        is no longer wanted by then."""


class Groups(Protocol):
    """The group coordinators, which act on markers in their log."""

    def complete_transaction(
        self, index: int, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """A transaction's marker in partition `index` of `__consumer_offsets` is committed."""


class LocalMarkers:
    """Writes markers to partitions that this broker leads."""

    def __init__(self, host: Host, groups: Groups, verifications: Verifications) -> None:
        self._host: Final = host
        self._verifications: Final = verifications
        self._groups: Final = groups
        # By broker, the one that was silent longest first: epoch and number, see `admits`.
        self._senders: dict[int, tuple[int, int]] = {}

    def admits(self, broker_id: int, broker_epoch: int, number: int) -> bool:
        """Whether to carry out a broker's request: not if a later one of that broker came before.

        A request that its sender has given up may arrive late. Its transaction has ended since, and
        its marker would end the producer's next one.
        """
        if broker_id < 0:
            return True
        last, this = self._senders.pop(broker_id, (NO_EPOCH, 0)), (broker_epoch, number)
        self._senders[broker_id] = max(last, this)
        if len(self._senders) > SENDERS_MAX:  # any client can say that it is a broker
            del self._senders[next(iter(self._senders))]
        return this >= last

    def write(
        self,
        marker: Marker,
        partitions: Collection[TopicPartition],
        done: Callable[[Errors], None],
        is_wanted: Callable[[], bool] = always,
        leader_epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    ) -> None:
        """See `MarkerWriter`. A partition that does not exist: UNKNOWN_TOPIC_OR_PARTITION.

        Where the sender says a leader epoch, the marker is written in no other.
        """
        errors: dict[TopicPartition, ErrorCode] = {}

        def learned(where: TopicPartition, error: ErrorCode) -> None:
            errors[where] = error
            if len(errors) == len(partitions):
                done(errors)

        def write_all() -> Iterator[None]:
            batch = _encode(marker, self._host.now().wall_ms)
            began_ms, written = self._host.now().monotonic_ms, 0
            for where in partitions:
                self._write_one(marker, batch, where, leader_epochs.get(where, NO_EPOCH), learned)
                written += 1
                took_ms = self._host.now().monotonic_ms - began_ms
                if written == MARKERS_PER_SLICE or took_ms >= SLICE_MS:
                    yield
                    began_ms, written = self._host.now().monotonic_ms, 0

        if not partitions:
            done(errors)
        self._host.run_slices(write_all(), f"markers of producer {marker.producer_id}")

    def _write_one(
        self,
        marker: Marker,
        batch: bytes,
        where: TopicPartition,
        leader_epoch: int,
        learned: Callable[[TopicPartition, ErrorCode], None],
    ) -> None:
        host = self._host
        try:
            partition = host.partition(*where)
            if leader_epoch != NO_EPOCH:
                partition.replication.check_leader(leader_epoch)
            appended = partition.append(batch, ACKS_ALL, host.now().wall_ms, from_client=False)
        except ApiError as error:
            if error.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                host.note(f"{where}: the marker of producer {marker.producer_id}: {error}")
            learned(where, error.error_code)
            return
        self._verifications.marker_appended(where, marker.producer_id)
        host.appended(partition, ALL_THERE_IS)

        def committed() -> None:
            if where.topic == OFFSETS_TOPIC:
                self._groups.complete_transaction(
                    where.partition,
                    marker.producer_id,
                    marker.producer_epoch,
                    commit=marker.commit,
                )
            learned(where, ErrorCode.NONE)

        def lost() -> None:
            learned(where, ErrorCode.KAFKA_STORAGE_ERROR)

        host.when_committed(partition, appended.last_offset + 1, committed, lost)


def _encode(marker: Marker, now_ms: int) -> bytes:
    """The control batch, the same for every partition until its log sets the offset."""
    kind = ControlType.COMMIT if marker.commit else ControlType.ABORT
    return encode_end_transaction_marker(
        EndTransactionMarker(kind, marker.coordinator_epoch),
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        timestamp_ms=now_ms,
    )
