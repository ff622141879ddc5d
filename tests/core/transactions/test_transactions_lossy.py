"""Producers over a runtime of transactions that is lossy and slow: every transaction ends one way.

Real coordinators, markers and logs. Answers get lost, disks refuse, flushes are late or fail, and
memory is lost while the logs stay. Then nothing fails any more, nobody asks for anything, and only
the clock goes on: no partition may hold readers of committed records up, each transaction must have
ended the same way wherever it wrote, and as its producer was told.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from lossy import LossyHost

from kafkalite.core.cluster.internal_topics import TRANSACTIONS_TOPIC
from kafkalite.core.cluster.producer_ids import ProducerIds
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.coordinators.runtime import Coordinators
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.records import (
    ControlType,
    batches,
    decode,
    encode,
    parse_end_transaction_marker,
)
from kafkalite.core.replicas.replication import ACKS_ALL
from kafkalite.core.transactions.coordinator import AddPartitions
from kafkalite.core.transactions.markers import LocalMarkers
from kafkalite.core.transactions.partitions import Partitions
from kafkalite.core.transactions.shards import TransactionCoordinators
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.transactions.verification import Verifications
from kafkalite.core.types import Columns, RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

PLACES = [TopicPartition("t", number) for number in range(3)]
TIMEOUT_MS = 2_000
CONFIG = BrokerConfig.parse()
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR)


class Transaction(NamedTuple):
    """One transaction of one producer; its name is in its records."""

    identity: ProducerIdentity
    number: int

    @property
    def name(self) -> bytes:
        return f"{self.identity.producer_id}/{self.identity.producer_epoch}/{self.number}".encode()


class Broker(LossyHost):
    """The log of transactions and those of three partitions."""

    def __init__(self, random: Random, *, flushes: bool) -> None:
        self.next_id = 0
        super().__init__(random, {TRANSACTIONS_TOPIC: 1, "t": len(PLACES)}, flushes=flushes)

    def begin(self) -> list[Coordinators[Any]]:
        ids = ProducerIds(lambda: self.give(ids))
        verifications = Verifications()
        markers = LocalMarkers(self, self, verifications)
        self.transactions = TransactionCoordinators(self, CONFIG, ids, markers, verifications)
        return [self.transactions]

    def give(self, ids: ProducerIds) -> None:
        self.next_id += 10
        ids.add_block(self.next_id, 10)

    def complete_transaction(self, *_: Any, **__: Any) -> None:
        raise AssertionError("no group's offsets are kept here")


class Producer:
    """A transactional producer that gives up when it is told that it is none any more."""

    def __init__(self, broker: Broker, transactional_id: str) -> None:
        self.broker, self.id = broker, transactional_id
        self.pending: Pending[Any] | None = None
        self.identity: ProducerIdentity | None = None
        self.added: set[TopicPartition] = set()
        self.sequences: dict[TopicPartition, int] = defaultdict(int)
        self.number = 0
        self.end: bool | None = None  # what it asks for until it is told: a commit, or an abort
        self.told: dict[bytes, bool] = {}  # by transaction: committed or aborted

    def ask(self, request: Any) -> None:
        try:
            answer = self.broker.transactions.handle(0, request, RequestContext(4))
        except ApiError:  # not here, or not yet
            return
        if isinstance(answer, Pending):
            self.pending = answer
            answer.when_done(lambda response: self.hear(request, response))
        else:
            self.hear(request, answer)

    def hear(self, request: Any, response: Any) -> None:
        self.pending = None
        code = response if isinstance(response, ErrorCode) else response.error_code
        if isinstance(request, t.InitProducerIdRequest):
            if not code:
                self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
                self.added, self.sequences, self.end = set(), defaultdict(int), None
        elif not code and isinstance(request, AddPartitions):
            self.added |= request.partitions
        elif not code:
            self.told[self.transaction.name] = request.committed
            self.number += 1
            self.added, self.end = set(), None
        elif code not in RETRIABLE:
            self.identity = None

    @property
    def transaction(self) -> Transaction:
        assert self.identity is not None
        return Transaction(self.identity, self.number)

    def act(self, random: Random) -> None:
        if self.pending is not None:
            return
        if self.identity is None:
            self.ask(t.InitProducerIdRequest(self.id, TIMEOUT_MS))
            return
        place = random.choice(PLACES)
        if self.end is not None:
            self.ask(t.EndTxnRequest(self.id, *self.identity, self.end))
        elif place not in self.added and random.random() < 0.5:
            self.ask(AddPartitions(self.id, *self.identity, Partitions((place,))))
        elif (place in self.added or not self.number) and random.random() < 0.7:
            self.write(place)  # in its first transaction also where it must not
        elif self.added:
            self.end = random.random() < 0.5

    def write(self, place: TopicPartition) -> None:
        assert self.identity is not None
        columns = Columns([None], [self.transaction.name], [self.broker.clock_ms])
        sequence = self.sequences[place]
        batch = encode(
            columns,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = self.broker.partitions[place]
        try:
            self.broker.transactions.check_batch(self.id, partition, batch)
            partition.append(bytearray(batch), ACKS_ALL, self.broker.clock_ms)
        except ApiError:
            return
        self.sequences[place] += 1

    def lose_answer(self) -> None:
        """It does not know how its transaction stands, and begins anew."""
        if self.pending is not None:
            self.pending.abandon()
            self.pending, self.identity = None, None


class World:
    def __init__(self, seed: int, *, flushes: bool) -> None:
        self.random = Random(seed)
        self.broker = Broker(self.random, flushes=flushes)
        self.producers = [Producer(self.broker, name) for name in ("x", "x", "y")]

    def happen(self, what: str) -> None:
        broker, producer = self.broker, self.random.choice(self.producers)
        match what:
            case "act":
                producer.act(self.random)
            case "lose":
                producer.lose_answer()
            case "refuse":
                broker.refuse()
            case "flush":
                broker.flush()
            case "failed flush":
                broker.fail_what_waits()
            case "restart":
                for each in self.producers:
                    each.lose_answer()
                broker.start()
            case "time":
                broker.pass_time(self.random.choice([1, 100, 700, TIMEOUT_MS]))
        if self.random.random() < 0.7:
            broker.go_on()

    def come_to_rest(self) -> None:
        """Nothing fails any more, and nobody asks: the clock alone brings all to an end."""
        self.broker.heal()
        for each in self.broker.coordinators:  # as the broker does now and then
            self.broker.run_slices(each.load_all(), "loading")
        for _ in range(100):
            self.broker.settle()
            self.broker.pass_time(1_000)
        self.broker.settle()

    def check(self) -> None:
        told = {name: how for producer in self.producers for name, how in producer.told.items()}
        ends: dict[bytes, set[bool]] = defaultdict(set)
        for place in PLACES:
            log = self.broker.logs[place]
            assert log.last_stable_offset == log.log_end_offset, f"{place} holds readers up"
            for name, commit in ended(log):
                ends[name].add(commit)
        for name, how in ends.items():
            assert len(how) == 1, f"{name!r} ended both ways"
            assert how == {told.get(name, *how)}, f"{name!r} ended {how}, was told {told.get(name)}"


def ended(log: Any) -> list[tuple[bytes, bool]]:
    """The names in a log's records, and how the marker after each of them has decided."""
    found, open_names = [], defaultdict[int, list[bytes]](list)
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset).read()
        for position, header in batches(data):
            columns = decode(data, position)
            if not header.is_control:
                open_names[header.producer_id] += columns.values
                continue
            marker = parse_end_transaction_marker(columns.keys[0], columns.values[0])
            assert marker is not None
            commit = marker.control_type is ControlType.COMMIT
            found += [(bytes(name), commit) for name in open_names.pop(header.producer_id, ())]
        offset = header.next_offset
    assert not any(open_names.values())
    return found


EVENTS = [
    *["act"] * 24, *["flush"] * 4, *["time"] * 2, "lose", "refuse", "failed flush", "restart",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=150), st.integers(0, 1 << 32), st.booleans())
def test_every_transaction_ends_one_way_and_holds_nobody_up(
    events: list[str], seed: int, flushes: bool
) -> None:
    world = World(seed, flushes=flushes)
    for event in events:
        world.happen(event)
    world.come_to_rest()
    world.check()
