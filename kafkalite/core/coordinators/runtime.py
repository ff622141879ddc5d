"""The coordinators of this broker, one machine for each partition of their topic.          [D]

A coordinator is a fold of its partition: made on first need by replaying the log, then kept in
step by replaying each record that it asked to append. A step's records are appended, replayed once
they are committed, and only then are its replies sent and its effects run.

    (none) ──first need──> LOADING ──all of the log is committed──> READY ──leadership lost──> gone
                              └──records that make no sense──────> gone, and not tried again

A new leader's log may end in records that are not committed yet. They will be, as soon as its
followers have them, so they are replayed; but nobody is answered before, as another leader might
know nothing of them. A coordinator acts in the leader epoch in which it began, and in no other.

Groups and transactions are both kept so; they differ in their machines (`Machine`), in their
topics, and in the effects that their machines ask for.

Owns   the partition of each name, and the execution of the machines' outcomes.
Never  looks into a machine; never blocks for long: loading goes on in slices on the host's loop.
Fails  with ApiError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS. A record that does not read is
       counted and skipped; a coordinator whose log cannot be read, or loses records, resigns.
Source KIP-98; apache/kafka `CoordinatorRuntime`, `GroupMetadataManager`, `TransactionStateManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.coordinators.machine import AppendInTransaction, Machine, Record
from kafkalite.core.coordinators.unanswered import Unanswered
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import records
from kafkalite.core.protocol.records import BatchHeader, ControlType
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.replicas.replication import ACKS_ALL
from kafkalite.core.types import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Columns,
    Now,
    Outcome,
    Reply,
    RequestContext,
)
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, WireError

LOAD_SLICE_BYTES: Final = 262_144
LOAD_SLICES_AT_ONCE: Final = 4  # on first need; a longer log is loaded while others get their turn
PART_BYTES_MAX: Final = 262_144  # of records that answer nobody, such as those of offsets forgotten
INT_MIN_AS_UNSIGNED: Final = 1 << 31
REPLIES_AT_ONCE: Final = 100  # some 40 us each: they are encoded and sent
FIRST_SEQUENCE: Final = 0  # of offsets in a transaction: brokers do not number what they write

NOTHING_CERTAIN: Final[Mapping[type, Callable[[Any], bool]]] = MappingProxyType({})
COMMIT_WAIT_MS: Final = 5_000  # for the replicas, before a request is answered with an error

M = TypeVar("M", bound=Machine)


class Host(Protocol):
    """The coordinators' interface to their broker."""

    node_id: int

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""

    def now(self) -> Now:
        """This moment."""

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker holds; ApiError if it does not."""

    def appended(self, partition: Partition, byte_count: int) -> None:
        """Wakes readers that wait for records of `partition`."""

    def when_committed(
        self,
        partition: Partition,
        offset: int,
        then: Callable[[], None],
        otherwise: Callable[[], None],
    ) -> None:
        """Calls `then` once the high watermark has reached `offset`, in the log's order, or
        `otherwise` where it never will: at once, if nothing before it is still to be called."""

    def wake_at(self, deadline_ms: int | None) -> None:
        """Makes sure that `tick` is called then, or before."""

    def run_slices(self, slices: Iterator[Any], name: str) -> None:
        """Goes on with `slices` on the loop, one at a time; after one that yields something to
        wait for, once that is done."""

    def note(self, message: str) -> None:
        """Logs a line for the operator."""


def partition_for(name: str, partition_count: int) -> int:
    """The partition of a coordinators' topic that keeps a group or a transactional id.

    As the JVM has it: abs(String.hashCode) modulo the number of partitions, where the one int
    without abs counts 0.
    """
    code = 0
    utf_16 = name.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(utf_16), 2):
        code = (31 * code + (utf_16[position] << 8 | utf_16[position + 1])) & 0xFFFFFFFF
    if code == INT_MIN_AS_UNSIGNED:
        return 0
    return min(code, (1 << 32) - code) % partition_count


@dataclass(slots=True, eq=False)
class Coordinator(Generic[M]):
    """A machine and how far it is."""

    machine: M
    partition: Partition
    leader_epoch: int  # in which this broker began to coordinate
    is_ready: bool = False
    is_gone: bool = False
    awaits_commit: bool = False  # it has replayed all of its log, some of which is not committed

    @property
    def is_loading(self) -> bool:
        """Whether it is not ready yet, and may come to be."""
        return not (self.is_ready or self.is_gone)

    @property
    def is_led(self) -> bool:
        """Whether its broker leads the partition still, in the same epoch."""
        replication = self.partition.replication
        return replication.leader is not None and replication.leader_epoch == self.leader_epoch

    @property
    def is_active(self) -> bool:
        """Whether it may act."""
        return not self.is_gone and self.is_led


class Coordinators(Generic[M]):
    """All coordinators of one topic that this broker runs, by partition.

    `make` makes the machine of a partition, empty; `run` carries out an effect that only the kind
    of machine knows, once the records of its step are committed. Requests of the types `certain`
    may be answered from memory, and must not be by a coordinator that has a successor: its replicas
    confirm that it has none, all of them where the function says so. For those `certain_at_once`
    all of them do so only where nothing is appended, as a record is committed by them anyway.
    """

    def __init__(
        self,
        host: Host,
        topic: str,
        make: Callable[[], M],
        run: Callable[[Coordinator[M], object], None] | None = None,
        commit_wait_ms: int = COMMIT_WAIT_MS,
        certain: Mapping[type, Callable[[Any], bool]] = NOTHING_CERTAIN,
        certain_at_once: Collection[type] = (),
    ) -> None:
        self.topic: Final = topic
        self._certain: Final = certain
        self._certain_at_once: Final = certain_at_once
        self._commit_wait_ms = commit_wait_ms
        self._unanswered = Unanswered()
        self._host = host
        self._make = make
        self._run = run
        self._coordinators: dict[int, Coordinator[M]] = {}

    # -- where names are kept

    @property
    def exists(self) -> bool:
        """Whether the topic has been made."""
        return self.topic in self._host.image.topics

    def index_of(self, name: str) -> int:
        """The partition that keeps a name; NOT_COORDINATOR before the topic exists."""
        topic = self._host.image.topics.get(self.topic)
        if topic is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{name}: {self.topic} does not exist")
        return partition_for(name, len(topic.partitions))

    def broker_of(self, name: str) -> int | None:
        """The id of the broker that coordinates a name, None while there is none."""
        if not self.exists:
            return None
        index = self.index_of(name)
        leader = self._host.image.topics[self.topic].partitions[index].leader
        if leader == self._host.node_id and self._partition(index) is None:
            return None
        return leader if leader in self._host.image.brokers else None

    def led_here(self) -> list[int]:
        """The partitions that this broker leads."""
        topic = self._host.image.topics.get(self.topic)
        partitions = () if topic is None else topic.partitions
        return [i for i, each in enumerate(partitions) if each.leader == self._host.node_id]

    def machines(self) -> list[M]:
        """The machines that are loaded."""
        return [each.machine for each in self._coordinators.values() if each.is_ready]

    # -- requests

    def handle(self, index: int, request: Any, context: RequestContext) -> Any:
        """The coordinator's response, or a `Pending` one. ApiError: not here, or not yet.

        Where replicas do not confirm this coordinator, clients look for another one after
        NOT_COORDINATOR. COORDINATOR_NOT_AVAILABLE in an answer about offsets ends consumers of
        aiokafka, of sarama and of older Java clients.
        """
        coordinator = self.ready(index)
        if (must_be_by_all := self._certain.get(type(request))) is not None:
            self._check_confirmed(coordinator.partition, by_all=must_be_by_all(request))
        pending: Pending[Any] = Pending()
        self.step(coordinator, request, replace(context, token=pending))
        if pending.response is not None:
            if type(request) in self._certain_at_once:
                self._check_confirmed(coordinator.partition, by_all=True)
            return pending.response
        self._host.wake_at(coordinator.machine.next_deadline_ms())  # for those who wait
        return pending

    def _check_confirmed(self, partition: Partition, *, by_all: bool) -> None:
        if not partition.is_confirmed(self._host.now().monotonic_ms, by_all=by_all):
            words = f"{partition.topic_partition}: replicas do not confirm who leads"
            raise ApiError(ErrorCode.NOT_COORDINATOR, words)

    def step(self, coordinator: Coordinator[M], request: Any, context: RequestContext) -> None:
        """One step of a machine; `context` has the token of its caller."""
        outcome = coordinator.machine.handle(request, context, self._host.now())
        self.carry_out(coordinator, outcome)

    def topics_deleted(self, names: Collection[str]) -> None:
        """Topics are gone; the coordinators' own may be one of them."""
        if self.topic in names:
            for coordinator in tuple(self._coordinators.values()):
                self._resign(coordinator)
        for coordinator in tuple(self._coordinators.values()):
            if coordinator.is_ready:
                outcome = coordinator.machine.topics_deleted(names, self._host.now())
                self.carry_out(coordinator, outcome)

    def leaders_changed(self) -> None:
        """The image has other leaders or epochs. A coordinator whose partition is led elsewhere
        resigns; its waiting clients are sent to the new one. So does one whose partition is led
        here in another epoch: it is made anew from the log, as what it had asked for may be lost.
        """
        for index, coordinator in tuple(self._coordinators.items()):
            is_held = self._partition(index) is coordinator.partition
            if not (is_held and coordinator.is_led):
                self._resign(coordinator)

    def complete_transaction(
        self, index: int, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """A transaction's marker in a partition of the topic is committed.

        A coordinator that is still being loaded comes upon it in the log.
        """
        coordinator = self._coordinators.get(index)
        if coordinator is not None and coordinator.is_ready:
            coordinator.machine.complete_transaction(producer_id, producer_epoch, commit=commit)

    def tick(self, monotonic_ms: int) -> int | None:
        """Does all that is due; returns when something is due next."""
        self._reply(self._unanswered.overdue(monotonic_ms))
        overdue_ms = self._unanswered.next_deadline_ms()
        deadlines = [] if overdue_ms is None else [overdue_ms]
        for coordinator in tuple(self._coordinators.values()):
            is_ready = coordinator.is_ready and coordinator.is_active
            deadline_ms = coordinator.machine.next_deadline_ms() if is_ready else None
            if deadline_ms is not None and deadline_ms <= monotonic_ms:
                try:
                    self.carry_out(coordinator, coordinator.machine.tick(self._host.now()))
                except Exception:  # a fault of ours: made anew from its log, and others have time
                    self._resign(coordinator)
                    raise
                deadline_ms = coordinator.machine.next_deadline_ms()
            if deadline_ms is not None:
                deadlines.append(deadline_ms)
        return min(deadlines, default=None)

    # -- beginning and end

    def load_all(self) -> Iterator[None]:
        """Loads every partition that holds records and has no coordinator, one after the other:
        silent members of groups and open transactions have deadlines too. Followers that have to
        fetch the end of one log keep nobody from loading the next.
        """
        for index in self.led_here():
            if self._is_to_be_loaded(index):
                coordinator = self._begin_loading(index)
                yield
                while coordinator.is_loading and not coordinator.awaits_commit:
                    yield

    def _is_to_be_loaded(self, index: int) -> bool:
        partition = None if index in self._coordinators else self._partition(index)
        if partition is None:
            return False
        log = partition.log
        is_led = partition.replication.leader is not None  # in force here, not in the image alone
        return is_led and log.failure is None and log.log_end_offset > log.log_start_offset

    def _partition(self, index: int) -> Partition | None:
        """A partition of the topic; None while it is offline, which is logged."""
        try:
            return self._host.partition(self.topic, index)
        except ApiError:
            return None

    def _resign(self, coordinator: Coordinator[M]) -> None:
        """Drops a coordinator: its waiting clients are sent to another."""
        index = coordinator.partition.topic_partition.partition
        if self._coordinators.get(index) is coordinator:
            del self._coordinators[index]
            coordinator.is_gone = True
            self._reply(coordinator.machine.resign(self._host.now()).replies)

    def ready(self, index: int) -> Coordinator[M]:
        """The coordinator of a partition, loaded. ApiError: not here, or not yet."""
        coordinator = self._coordinators.get(index)
        if coordinator is not None and not coordinator.is_led:
            self._resign(coordinator)  # `leaders_changed` will follow
            coordinator = None
        if coordinator is None:
            coordinator = self._begin_loading(index)
        if coordinator.is_gone:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} cannot be loaded")
        if not coordinator.is_ready:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{index}")
        return coordinator

    def all_ready(self) -> list[Coordinator[M]]:
        """The coordinators of all partitions led here, but those that cannot be loaded.

        ApiError COORDINATOR_LOAD_IN_PROGRESS: not yet.
        """
        found: list[Coordinator[M]] = []
        for index in self.led_here():
            try:
                found.append(self.ready(index))
            except ApiError as error:
                if error.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
        return found

    def _begin_loading(self, index: int) -> Coordinator[M]:
        """A new coordinator: ready when this returns, or given up, where the log is short."""
        try:
            partition = self._host.partition(self.topic, index)
            partition.replication.check_leader()
        except ApiError as error:
            raise ApiError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        coordinator = Coordinator(self._make(), partition, partition.replication.leader_epoch)
        self._coordinators[index] = coordinator
        self._host.run_slices(self._load(coordinator), f"loading {self.topic}-{index}")
        return coordinator

    def _load(self, coordinator: Coordinator[M]) -> Iterator[Any]:
        """Makes a coordinator ready, if its log can be read and it does not resign meanwhile."""
        try:
            yield from self._replay_all(coordinator)
        except (ApiError, OSError) as error:
            self._host.note(f"{coordinator.partition.topic_partition} cannot be loaded: {error}")
            self._resign(coordinator)
        except Exception:
            coordinator.is_gone = True  # it stays: what does not read now never will
            raise
        if not coordinator.is_gone:
            coordinator.is_ready = True
            self.carry_out(coordinator, coordinator.machine.loaded(self._host.now()))

    def _replay_all(self, coordinator: Coordinator[M]) -> Iterator[Any]:
        """Replays the partition's log to its end, and until all of that is committed; markers may
        be added meanwhile. ApiError where leadership or the log is lost before.

        A replica without others waits for nothing: after a kill its log may await a flush, and no
        other broker could have another end of it.
        """
        partition = coordinator.partition
        offset = partition.log.log_start_offset
        while not coordinator.is_gone:
            offset = yield from self._replay_log(coordinator, offset)
            log = partition.log
            is_alone = partition.replication.is_alone
            if coordinator.is_gone or is_alone or offset <= log.high_watermark:
                return
            partition.replication.check_led_in(coordinator.leader_epoch)
            if log.failure is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, log.failure)
            coordinator.awaits_commit = True
            yield _Committed(self._host, partition, offset)

    def _replay_log(self, coordinator: Coordinator[M], offset: int) -> Generator[None, None, int]:
        """Replays the partition's log from `offset` on, LOAD_SLICE_BYTES at a time. Returns where
        it ends. It yields only after LOAD_SLICES_AT_ONCE: most logs are shorter."""
        partition, skipped, slices = coordinator.partition, 0, 0
        while offset < (end_offset := _end_to_load(partition.log)) and not coordinator.is_gone:
            found = partition.log.read(offset, LOAD_SLICE_BYTES, end_offset)
            data = b"" if found is None else found.read()
            headers = list(records.batches(data))
            if not headers:
                break
            skipped += self._replay(coordinator.machine, data, headers)
            offset = max(offset, headers[-1][1].next_offset)
            slices += 1
            if slices >= LOAD_SLICES_AT_ONCE:
                yield
        if skipped:
            self._host.note(f"{partition.topic_partition}: {skipped} records do not read, skipped")
        return offset

    def _replay(self, machine: M, data: bytes, batches: list[tuple[int, BatchHeader]]) -> int:
        """Replays batches; returns how many of their records do not read."""
        skipped = 0
        last: dict[bytes, bytes | None] = {}
        for position, header in batches:
            try:
                columns = records.decode(data, position)
                if header.is_control:
                    self._replay_marker(machine, header, columns)
                elif machine.only_last_counts:
                    last.update(zip(columns.keys, columns.values, strict=True))
                else:
                    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
                    pairs = zip(columns.keys, columns.values, strict=True)
                    skipped += self._replay_records(machine, pairs, producer_id)
            except CorruptBatchError:
                skipped += header.record_count
        return skipped + self._replay_records(machine, last.items(), NO_PRODUCER_ID)

    def _replay_records(
        self, machine: M, pairs: Iterable[tuple[bytes, bytes | None]], producer_id: int
    ) -> int:
        now, skipped = self._host.now(), 0
        for key, value in pairs:
            try:
                machine.replay(key or b"", value, now, producer_id=producer_id)
            except WireError:
                skipped += 1
        return skipped

    @staticmethod
    def _replay_marker(machine: M, header: BatchHeader, columns: Columns) -> None:
        for key, value in zip(columns.keys, columns.values, strict=True):
            marker = records.parse_end_transaction_marker(key, value)
            if marker is not None:
                commit = marker.control_type is ControlType.COMMIT
                machine.complete_transaction(
                    header.producer_id, header.producer_epoch, commit=commit
                )

    # -- what the machines ask for

    def carry_out(self, coordinator: Coordinator[M], outcome: Outcome[Record]) -> None:
        """Appends a step's records; once committed, replays them, replies and runs the effects."""
        host, partition, machine = self._host, coordinator.partition, coordinator.machine
        if not outcome.records:
            self._finish(coordinator, outcome)
            return
        if not (outcome.replies or outcome.effects) and len(parts := _parts(outcome.records)) > 1:
            for part in parts:
                self.carry_out(coordinator, Outcome(part))
            return
        now = host.now()
        transaction = _transaction_of(outcome)
        batch = _encode(outcome.records, transaction, now.wall_ms)
        try:
            if not partition.replication.is_alone:
                partition.replication.check_led_in(coordinator.leader_epoch)
            appended = partition.append(batch, ACKS_ALL, now.wall_ms, from_client=False)
        except ApiError as error:
            host.note(
                f"{partition.topic_partition}: {len(outcome.records)} records refused: {error}"
            )
            instead = machine.append_failed(outcome, error.error_code, now)
            assert not instead.records, f"{self.topic}: {instead.records}"
            self._finish(coordinator, instead)
            return
        waiting = None
        if not partition.replication.is_alone:
            deadline_ms = now.monotonic_ms + self._commit_wait_ms
            waiting = self._unanswered.wait(outcome.replies, deadline_ms)
            host.wake_at(deadline_ms)
        host.appended(partition, len(batch))
        producer_id = NO_PRODUCER_ID if transaction is None else transaction.producer_id

        def committed() -> None:
            if not coordinator.is_gone:
                for key, value in outcome.records:
                    machine.replay(key, value, now, producer_id=producer_id)
            self._finish(coordinator, left())

        def left() -> Outcome[Record]:
            return outcome if waiting is None else replace(outcome, replies=waiting.take())

        def lost() -> None:
            instead = machine.append_failed(left(), ErrorCode.KAFKA_STORAGE_ERROR, host.now())
            self._reply(instead.replies)
            self._resign(coordinator)

        host.when_committed(partition, appended.last_offset + 1, committed, lost)

    def _finish(self, coordinator: Coordinator[M], outcome: Outcome[Record]) -> None:
        """Replies and effects of a step whose records, if any, are in force."""
        self._reply(outcome.replies)
        if not coordinator.is_active:
            return
        for effect in outcome.effects:
            if not isinstance(effect, AppendInTransaction):
                assert self._run is not None, f"{self.topic}: nobody runs {effect}"
                self._run(coordinator, effect)
        self._host.wake_at(coordinator.machine.next_deadline_ms())

    def _reply(self, replies: tuple[Reply, ...]) -> None:
        """Answers the waiting requests: at once, or very many in turns of their own."""
        if len(replies) > REPLIES_AT_ONCE:
            self._host.run_slices(self._reply_in_slices(replies), f"answers of {self.topic}")
            return
        for reply in replies:
            reply.token.complete(reply.response)

    @staticmethod
    def _reply_in_slices(replies: tuple[Reply, ...]) -> Iterator[None]:
        for place, reply in enumerate(replies):
            if place % REPLIES_AT_ONCE == 0:
                yield
            reply.token.complete(reply.response)


class _Committed:
    """Lets slices wait, as for a future, until a log is committed up to `offset`, or may never be
    in this leader epoch."""

    def __init__(self, host: Host, partition: Partition, offset: int) -> None:
        self._wait = partial(host.when_committed, partition, offset)

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        """Calls `call` then."""
        go_on = partial(call, None)
        self._wait(go_on, go_on)


def _end_to_load(log: PartitionLog) -> int:
    """The end of a log for a new coordinator; the end of a failed log is unknown."""
    return log.log_end_offset if log.failure is None else log.high_watermark


def _parts(steps: tuple[Record, ...]) -> list[tuple[Record, ...]]:
    """Records of PART_BYTES_MAX and a little more each: nobody waits for all of them to be written
    or none, and a batch that is too large would be refused again and again."""
    first, size, parts = 0, 0, []
    for number, (key, value) in enumerate(steps, start=1):
        size += len(key) + len(value or b"")
        if size >= PART_BYTES_MAX or number == len(steps):
            parts.append(steps[first:number])
            first, size = number, 0
    return parts


def _transaction_of(outcome: Outcome[Record]) -> AppendInTransaction | None:
    return next((e for e in outcome.effects if isinstance(e, AppendInTransaction)), None)


def _encode(
    steps: tuple[Record, ...], transaction: AppendInTransaction | None, wall_ms: int
) -> bytearray:
    """One batch of a step's records, in the transaction to which they belong."""
    keys, values = zip(*steps, strict=True)
    columns = Columns(keys, values, [wall_ms] * len(keys))
    return bytearray(
        records.encode(
            columns,
            producer_id=NO_PRODUCER_ID if transaction is None else transaction.producer_id,
            producer_epoch=NO_EPOCH if transaction is None else transaction.producer_epoch,
            base_sequence=-1 if transaction is None else FIRST_SEQUENCE,
            transactional=transaction is not None,
        )
    )
