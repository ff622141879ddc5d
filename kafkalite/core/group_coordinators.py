"""The group coordinators of this broker, one for each partition of `__consumer_offsets`.    [D]

A coordinator is a fold of its partition: made on first need by replaying the log, then kept in
step by replaying each record that it asked to append. A step's records are appended, replayed once
they are committed, and only then are its replies sent.

    (none) ──first need──> LOADING ──end of the log──> READY ──leadership or topic lost──> gone

Owns   which group belongs to which partition, and the carrying out of what the machines ask for.
Never  looks into a group; never blocks for long: loading goes on in slices on the host's loop.
Fails  with ApiError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS. A record that does not read is
       counted and skipped; a coordinator whose records the log refuses again and again resigns.
Source KIP-98 (transactional offsets); apache/kafka `GroupMetadataManager`, `CoordinatorRuntime`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol

from kafkalite.core.config import BrokerConfig
from kafkalite.core.consumer_offsets import Record
from kafkalite.core.coordinator import GroupCoordinator
from kafkalite.core.groups import GroupConfig
from kafkalite.core.image import ClusterImage
from kafkalite.core.offsets import OffsetsConfig
from kafkalite.core.partition import Partition
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import records
from kafkalite.core.protocol.records import BatchHeader, ControlType
from kafkalite.core.replication import ACKS_ALL
from kafkalite.core.types import (
    NO_PRODUCER_ID,
    Columns,
    Node,
    Outcome,
    Reply,
    RequestContext,
)
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, WireError

TOPIC: Final = "__consumer_offsets"
LOAD_SLICE_BYTES: Final = 262_144
LOAD_SLICES_AT_ONCE: Final = 4  # on first need; a longer log is loaded while others get their turn
APPEND_ATTEMPTS: Final = 3
INT_MIN_AS_UNSIGNED: Final = 1 << 31


class Host(Protocol):
    """What the coordinators ask of their broker."""

    node_id: int

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""

    def now_ms(self) -> int:
        """The time, epoch ms."""

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker holds; ApiError if it does not."""

    def appended(self, partition: Partition, byte_count: int) -> None:
        """Wakes whoever waits for records of `partition`."""

    def when_committed(self, partition: Partition, offset: int, then: Callable[[], None]) -> None:
        """Calls `then` once the high watermark has reached `offset`: at once if it has."""

    def wake_at(self, deadline_ms: int | None) -> None:
        """Makes sure that `tick` is called then, or before."""

    def run_slices(self, slices: Iterator[None], name: str) -> None:
        """Goes on with `slices` on the loop, one at a time."""

    def note(self, message: str) -> None:
        """Tells the operator."""


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that keeps a group, as the JVM has it:

    abs(String.hashCode) modulo the number of partitions, where the one int without abs counts 0.
    """
    code = 0
    utf_16 = group_id.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(utf_16), 2):
        code = (31 * code + (utf_16[position] << 8 | utf_16[position + 1])) & 0xFFFFFFFF
    if code == INT_MIN_AS_UNSIGNED:
        return 0
    return min(code, (1 << 32) - code) % partition_count


@dataclass(slots=True, eq=False)
class _Coordinator:
    """A machine and how far it is."""

    machine: GroupCoordinator
    partition: Partition
    is_ready: bool = False
    is_gone: bool = False


class GroupCoordinators:
    """All coordinators that this broker runs, by partition."""

    def __init__(self, host: Host, config: BrokerConfig, random: Random) -> None:
        self._host = host
        self._config = config
        self._random = random
        self._coordinators: dict[int, _Coordinator] = {}

    # -- where groups are

    @property
    def exists(self) -> bool:
        """Whether `__consumer_offsets` has been made."""
        return TOPIC in self._host.image.topics

    def index_of(self, group_id: str) -> int:
        """The partition that keeps a group; NOT_COORDINATOR before the topic exists."""
        topic = self._host.image.topics.get(TOPIC)
        if topic is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"group {group_id}: {TOPIC} does not exist")
        return partition_for(group_id, len(topic.partitions))

    def node_of(self, group_id: str) -> Node | None:
        """The broker that coordinates a group, None while there is none."""
        if not self.exists:
            return None
        partition = self._host.image.topics[TOPIC].partitions[self.index_of(group_id)]
        return self._host.image.brokers.get(partition.leader)

    def led_here(self) -> list[int]:
        """The partitions that this broker leads."""
        topic = self._host.image.topics.get(TOPIC)
        partitions = () if topic is None else topic.partitions
        return [i for i, each in enumerate(partitions) if each.leader == self._host.node_id]

    # -- requests

    def handle(self, index: int, request: Any, context: RequestContext) -> Any:
        """The coordinator's response, or a `Pending` one. ApiError: not here, or not yet."""
        coordinator = self._ready(index)
        pending: Pending[Any] = Pending()
        host = self._host
        context = replace(context, token=pending)
        outcome = coordinator.machine.handle(request, context, host.now_ms())
        self._carry_out(coordinator, outcome)
        host.wake_at(coordinator.machine.next_deadline_ms())
        return pending if pending.response is None else pending.response

    def topics_deleted(self, names: Collection[str]) -> None:
        """Forgets what groups committed in topics that are gone; TOPIC may be one of them."""
        if TOPIC in names:
            for index in tuple(self._coordinators):
                self.resign(index)
        for coordinator in tuple(self._coordinators.values()):
            if coordinator.is_ready:
                outcome = coordinator.machine.topics_deleted(names, self._host.now_ms())
                self._carry_out(coordinator, outcome)

    def tick(self, now_ms: int) -> int | None:
        """Does all that is due; returns when something is due next."""
        deadlines = []
        for coordinator in tuple(self._coordinators.values()):
            deadline_ms = coordinator.machine.next_deadline_ms() if coordinator.is_ready else None
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._carry_out(coordinator, coordinator.machine.tick(now_ms))
                deadline_ms = coordinator.machine.next_deadline_ms()
            if deadline_ms is not None:
                deadlines.append(deadline_ms)
        return min(deadlines, default=None)

    # -- beginning and end

    def load_all(self) -> Iterator[None]:
        """Loads every partition that holds records, in slices: what a broker does at its start."""
        for index in self.led_here():
            if index not in self._coordinators:
                partition = self._host.partition(TOPIC, index)
                if partition.log.log_end_offset > partition.log.log_start_offset:
                    yield from self._load(self._begin(index))

    def resign(self, index: int) -> None:
        """Drops a coordinator: whoever waits there is sent to look for another."""
        coordinator = self._coordinators.pop(index, None)
        if coordinator is not None:
            coordinator.is_gone = True
            self._reply(coordinator.machine.resign(self._host.now_ms()).replies)

    def _ready(self, index: int) -> _Coordinator:
        coordinator = self._coordinators.get(index)
        if coordinator is None:
            coordinator = self._begin(index)
            slices = self._load(coordinator)
            for _ in range(LOAD_SLICES_AT_ONCE):
                if next(slices, self) is self:
                    break
            else:
                self._host.run_slices(slices, f"loading {TOPIC}-{index}")
        if not coordinator.is_ready:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{TOPIC}-{index}")
        coordinator.partition.replication.check_leader()
        return coordinator

    def _begin(self, index: int) -> _Coordinator:
        try:
            partition = self._host.partition(TOPIC, index)
        except ApiError as error:
            raise ApiError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        config = self._config
        group_config = GroupConfig(
            group_min_session_timeout_ms=config["group.min.session.timeout.ms"],
            group_max_session_timeout_ms=config["group.max.session.timeout.ms"],
            group_initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
            group_max_size=config["group.max.size"],
        )
        offsets_config = OffsetsConfig(
            offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
            offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
            offsets_retention_check_interval_ms=config["offsets.retention.check.interval.ms"],
        )
        machine = GroupCoordinator(self._random, group_config, offsets_config)
        self._coordinators[index] = coordinator = _Coordinator(machine, partition)
        return coordinator

    def _load(self, coordinator: _Coordinator) -> Iterator[None]:
        """Replays the partition's log, LOAD_SLICE_BYTES at a time."""
        partition, skipped = coordinator.partition, 0
        offset, end = partition.log.log_start_offset, partition.log.high_watermark
        while offset < end and not coordinator.is_gone:
            found = partition.read(offset, LOAD_SLICE_BYTES)
            if found is None:
                break
            data = found.read()
            for position, header in records.batches(data):
                skipped += self._replay_batch(coordinator.machine, data, position, header)
                offset = max(offset, header.next_offset)
            yield
        if skipped:
            self._host.note(f"{partition.topic_partition}: {skipped} records do not read, skipped")
        now_ms = self._host.now_ms()
        coordinator.machine.loaded(now_ms)
        coordinator.is_ready = True
        self._host.wake_at(coordinator.machine.next_deadline_ms())

    def _replay_batch(
        self, machine: GroupCoordinator, data: bytes, position: int, header: BatchHeader
    ) -> int:
        """Replays one batch; returns how many of its records do not read."""
        now_ms, skipped = self._host.now_ms(), 0
        try:
            columns = records.decode(data, position)
            if header.is_control:
                self._replay_marker(machine, header, columns)
                return 0
        except CorruptBatchError:
            return header.record_count
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for key, value in zip(columns.keys, columns.values, strict=True):
            try:
                machine.replay(key or b"", value, now_ms, producer_id=producer_id)
            except WireError:
                skipped += 1
        return skipped

    @staticmethod
    def _replay_marker(machine: GroupCoordinator, header: BatchHeader, columns: Columns) -> None:
        for key, value in zip(columns.keys, columns.values, strict=True):
            marker = records.parse_end_transaction_marker(key, value)
            if marker is not None:
                commit = marker.control_type is ControlType.COMMIT
                machine.complete_transaction(
                    header.producer_id, header.producer_epoch, commit=commit
                )

    # -- what the machines ask for

    def _carry_out(
        self, coordinator: _Coordinator, outcome: Outcome[Record], attempts: int = APPEND_ATTEMPTS
    ) -> None:
        """Appends a step's records; once they are committed, replays them and replies."""
        if not outcome.records:
            self._reply(outcome.replies)
            return
        host, partition, machine = self._host, coordinator.partition, coordinator.machine
        now_ms = host.now_ms()
        keys, values = zip(*outcome.records, strict=True)
        batch = bytearray(records.encode(Columns(keys, values, [now_ms] * len(keys))))
        try:
            appended = partition.append(batch, ACKS_ALL, now_ms, from_client=False)
        except ApiError as error:
            host.note(f"{partition.topic_partition}: {len(keys)} records refused: {error}")
            instead = machine.append_failed(outcome, error.error_code, now_ms)
            if attempts > 1:
                self._carry_out(coordinator, instead, attempts - 1)
            else:
                self._reply(instead.replies)
                self.resign(partition.topic_partition.partition)
            return
        host.appended(partition, len(batch))

        def committed() -> None:
            if not coordinator.is_gone:
                for key, value in outcome.records:
                    machine.replay(key, value, now_ms)
            self._reply(outcome.replies)

        host.when_committed(partition, appended.last_offset + 1, committed)

    @staticmethod
    def _reply(replies: Iterable[Reply]) -> None:
        for reply in replies:
            reply.token.complete(reply.response)
