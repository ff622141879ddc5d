"""Transactions at random, over a log that refuses and markers that get lost: what must hold always.

Producers ask whatever comes to their minds, the coordinator is replaced by one that reads the log
again, records are refused, markers are not written or are written twice. At the end the partitions
are compared with what producers were told.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.protocol import transactions as t
from kafkalite.core.transactions.coordinator import (
    AddPartitions,
    MarkersWritten,
    ProducerIdTaken,
    TakeProducerId,
    TransactionConfig,
    TransactionCoordinator,
    WriteMarkers,
)
from kafkalite.core.transactions.partitions import Partitions
from kafkalite.core.transactions.transaction import DECIDED, ONGOING, ProducerIdentity
from kafkalite.core.types import Outcome, RequestContext, TopicPartition
from kafkalite.errors import ErrorCode
from kafkalite.testing.clock import at

PLACES = [TopicPartition("t", n) for n in range(3)]
TIMEOUT_MS = 50


class World:
    """A coordinator, its log, partitions that know epochs, and two producers of one id."""

    def __init__(self) -> None:
        self.machine = TransactionCoordinator(TransactionConfig())
        self.log: list[Record] = []
        self.now_ms = 0
        self.next_id = 0
        self.known: dict[str, ProducerIdentity] = {}
        self.given: list[ProducerIdentity] = []
        self.open: dict[TopicPartition, set[tuple[ProducerIdentity, int]]] = defaultdict(set)
        self.ended: dict[tuple[ProducerIdentity, int], set[bool]] = defaultdict(set)
        self.told: dict[tuple[ProducerIdentity, int], bool] = {}
        self.number: dict[ProducerIdentity, int] = defaultdict(int)  # of its transactions
        self.refuses = False
        self.loses: set[TopicPartition] = set()

    def ask(self, request: Any, who: str = "") -> Any:
        answers: list[Any] = []
        context = RequestContext(4, token=answers)
        self.settle(self.machine.handle(request, context, at(self.now_ms)))
        return answers[0] if answers else None

    def settle(self, outcome: Outcome[Record]) -> None:
        if outcome.records and self.refuses:
            self.refuses = False
            error = ErrorCode.NOT_ENOUGH_REPLICAS
            self.settle(self.machine.append_failed(outcome, error, at(self.now_ms)))
            return
        for record in outcome.records:
            self.log.append(record)
            self.machine.replay(*record, at(self.now_ms))
        for reply in outcome.replies:
            reply.token.append(reply.response)
        for effect in outcome.effects:
            self.run(effect)

    def run(self, effect: Any) -> None:
        if isinstance(effect, TakeProducerId):
            self.next_id += 1
            taken = ProducerIdTaken(effect.request, self.next_id)
            self.settle(self.machine.handle(taken, effect.context, at(self.now_ms)))
            return
        assert isinstance(effect, WriteMarkers)
        errors = {}
        for place in effect.partitions:
            errors[place] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if place not in self.loses:
                errors[place] = ErrorCode.NONE
                self.mark(place, effect)
        written = MarkersWritten(effect.transactional_id, effect.attempt, errors)
        self.settle(self.machine.handle(written, RequestContext(0), at(self.now_ms)))

    def mark(self, place: TopicPartition, effect: WriteMarkers) -> None:
        """A marker ends what its producer has open there, in its epoch or one before."""
        for identity, number in list(self.open[place]):
            if identity.producer_id == effect.identity.producer_id:
                assert identity.producer_epoch <= effect.identity.producer_epoch
                self.open[place].discard((identity, number))
                self.ended[identity, number].add(effect.commit)

    # -- what may happen

    def init(self, who: str) -> None:
        answer = self.ask(t.InitProducerIdRequest("tx", TIMEOUT_MS))
        if not answer.error_code:
            identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            assert identity not in self.given, "nobody else ever had this epoch"
            self.given.append(identity)
            self.known[who] = identity
            assert not any(self.open.values()), "nothing of the one before is open"

    def add(self, who: str, place: TopicPartition) -> None:
        identity = self.known.get(who, ProducerIdentity(99, 0))
        code = self.ask(AddPartitions("tx", *identity, Partitions((place,))))
        if not code:
            assert identity == self.given[-1], "only the last one may"

    def write(self, who: str, place: TopicPartition) -> None:
        identity = self.known.get(who, ProducerIdentity(99, 0))
        here = (identity, self.number[identity])
        if here in self.open[place] or not self.machine.verify("tx", identity, place):
            self.open[place].add(here)

    def end(self, who: str, commit: bool) -> None:
        identity = self.known.get(who, ProducerIdentity(99, 0))
        before = self.number[identity]
        self.number[identity] += 1  # markers that follow at once belong to the one that ends
        for place in PLACES:
            if (identity, before + 1) in self.open[place]:
                raise AssertionError("a transaction that has not begun is open")
        code = self.ask(t.EndTxnRequest("tx", *identity, commit)).error_code
        if code:
            self.number[identity] = before
        else:
            said = self.told.setdefault((identity, before), commit)
            entry = self.machine.entries["tx"].transaction
            is_new = said is commit
            assert is_new or entry.state not in DECIDED
            if not is_new:
                self.number[identity] = before

    def restart(self) -> None:
        self.machine = TransactionCoordinator(TransactionConfig())
        for record in self.log:
            self.machine.replay(*record, at(self.now_ms))
        self.settle(self.machine.loaded(at(self.now_ms)))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.settle(self.machine.tick(at(self.now_ms)))


WHO = st.sampled_from(["x", "y"])
PLACE = st.sampled_from(PLACES)
STEP = st.one_of(
    st.tuples(st.just("init"), WHO),
    st.tuples(st.just("add"), WHO, PLACE),
    st.tuples(st.just("write"), WHO, PLACE),
    st.tuples(st.just("add and write"), WHO, PLACE),
    st.tuples(st.just("end"), WHO, st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("refuse")),
    st.tuples(st.just("lose"), st.sets(PLACE)),
    st.tuples(st.just("pass"), st.integers(0, 600)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_every_transaction_ends_one_way_everywhere(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    world.init("x")
    for name, *arguments in steps:
        match name:
            case "refuse":
                world.refuses = True
            case "lose":
                world.loses = set(arguments[0])
            case "pass":
                world.pass_time(*arguments)
            case "add and write":
                world.add(*arguments)
                world.write(*arguments)
            case _:
                getattr(world, name)(*arguments)
    world.loses, world.refuses = set(), False
    for _ in range(4):  # all that is due comes to be
        world.pass_time(20_000)
    entry = world.machine.entries.get("tx")
    if entry is not None:
        assert entry.transaction.state not in (*DECIDED, ONGOING)
        assert entry.pending is None
        assert not entry.markers_missing
    assert not any(world.open.values()), "nothing holds readers up"
    for transaction, ends in world.ended.items():
        assert len(ends) == 1, f"{transaction} ended both ways"
        if transaction in world.told:
            assert ends == {world.told[transaction]}
        else:
            assert ends == {False}, "nobody asked for a commit"
