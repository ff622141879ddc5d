"""Scenarios of transactions as text: what producers send, and below it what comes of it.

How they are played is told in `player`. A step comes to, in this order, the records that it appends
(+), the answers, and the markers that are to be written (>). Producers `x`, `y` share the
transactional id `tx` unless `id=` says otherwise, and keep the producer id and epoch that they were
last told. New producer ids are 1000, 1001, …

Markers are written at once. After `hold markers` they are not, until `markers <partition>=<error>…`
says what became of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from player import Player, check, scenarios

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.protocol import transactions as t
from kafkalite.core.transactions.admin import described, filter_of, listed
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
from kafkalite.core.transactions.records import decode_key, decode_value
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.types import Outcome, RequestContext, TopicPartition
from kafkalite.errors import ErrorCode
from kafkalite.testing.clock import wall_of


def where(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def names(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(str(each) for each in sorted(partitions))


class Coordination(Player):
    """A coordinator, its log, and the producers that ask it."""

    def __init__(self) -> None:
        self.producers: dict[str, ProducerIdentity] = {}
        self.next_id = 1_000
        self.held_markers: list[WriteMarkers] | None = None
        self.no_ids = ""
        super().__init__()

    def make(self) -> TransactionCoordinator:
        return TransactionCoordinator(TransactionConfig(**self.settings))

    # -- the rim

    def ask(self, request: Any, who: str) -> Iterator[str]:
        context = RequestContext(4, who, "/10.0.0.1", who)
        yield from self.settle(self.machine.handle(request, context, self.now))

    def show_records(self, outcome: Outcome[Record]) -> Iterator[str]:
        for record in outcome.records:
            yield "+ " + self.show_record(record)

    def land(self, outcome: Outcome[Record]) -> Iterator[str]:
        for record in outcome.records:
            self.log.append(record)
            self.machine.replay(*record, self.now)
        for reply in outcome.replies:
            yield f"{reply.token}: {self.show(reply.token, reply.response)}"
        for effect in outcome.effects:
            yield from self.carry_out(effect)

    def replay_log(self) -> None:
        self.held_markers = None
        for key, value in self.log:
            self.machine.replay(key, value, self.now)

    def carry_out(self, effect: object) -> Iterator[str]:
        if isinstance(effect, TakeProducerId):
            taken: int | ErrorCode = self.next_id
            if self.no_ids:
                taken = ErrorCode[self.no_ids]
            else:
                self.next_id += 1
            yield from self.ask(ProducerIdTaken(effect.request, taken), effect.context.token)
            return
        assert isinstance(effect, WriteMarkers)
        end = "commit" if effect.commit else "abort"
        yield f"> {end} {effect.identity[0]}/{effect.identity[1]} {names(effect.partitions)}"
        if self.held_markers is not None:
            self.held_markers.append(effect)
        else:
            yield from self.written(effect, {})

    def written(self, effect: WriteMarkers, errors: dict[str, str]) -> Iterator[str]:
        codes = {p: ErrorCode[errors.get(str(p), "NONE")] for p in effect.partitions}
        done = MarkersWritten(effect.transactional_id, effect.attempt, codes)
        yield from self.ask(done, "nobody")

    # -- what is shown

    def show(self, who: str, response: Any) -> str:
        if isinstance(response, t.InitProducerIdResponse):
            if response.error_code:
                return response.error_code.name
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            self.producers[who] = identity
            return f"NONE {identity.producer_id}/{identity.producer_epoch}"
        if isinstance(response, t.EndTxnResponse):
            return response.error_code.name
        assert isinstance(response, ErrorCode)
        return response.name

    def show_record(self, record: Record) -> str:
        key, value = record
        name = decode_key(key)
        assert name is not None
        if value is None:
            return f"{name} tombstone"
        found = decode_value(name, value)
        shown = f"{name} {found.state.label} {found.producer_id}/{found.producer_epoch}"
        return f"{shown} {names(found.partitions)}".rstrip()

    # -- verbs

    def do_init(
        self,
        who: str,
        id: str = "tx",  # noqa: A002
        timeout: str = "60000",
        producer: str = "-1",
        epoch: str = "-1",
    ) -> Iterator[str]:
        own = producer == "own"
        expected = self.producers[who] if own else ProducerIdentity(int(producer), int(epoch))
        yield from self.ask(t.InitProducerIdRequest(id.strip("-"), int(timeout), *expected), who)

    def identity(self, who: str, producer: str | None, epoch: str | None) -> ProducerIdentity:
        own = self.producers.get(who, ProducerIdentity(-1, -1))
        return ProducerIdentity(int(producer or own.producer_id), int(epoch or own.producer_epoch))

    def do_add(
        self,
        who: str,
        *partitions: str,
        id: str = "tx",  # noqa: A002
        producer: str | None = None,
        epoch: str | None = None,
    ) -> Iterator[str]:
        wanted = Partitions(where(name) for name in partitions)
        identity = self.identity(who, producer, epoch)
        yield from self.ask(AddPartitions(id, *identity, wanted), who)

    def do_end(
        self,
        who: str,
        how: str,
        id: str = "tx",  # noqa: A002
        producer: str | None = None,
        epoch: str | None = None,
    ) -> Iterator[str]:
        identity = self.identity(who, producer, epoch)
        yield from self.ask(t.EndTxnRequest(id, *identity, how == "commit"), who)

    def do_verify(
        self,
        who: str,
        partition: str,
        id: str = "tx",  # noqa: A002
        epoch: str | None = None,
        producer: str | None = None,
    ) -> Iterator[str]:
        identity = self.identity(who, producer, epoch)
        yield self.machine.verify(id, identity, where(partition)).name

    def do_describe(self, name: str = "tx") -> Iterator[str]:
        found, partitions = described(self.machine.entries, name)
        if found.error_code:
            yield found.error_code.name
            return
        yield (
            f"{found.transaction_state} {found.producer_id}/{found.producer_epoch} "
            f"since {found.transaction_start_time_ms} {names(partitions)}"
        ).rstrip()

    def do_list(self, *states: str, producer: str = "", longer: str = "-1") -> Iterator[str]:
        ids = tuple(int(each) for each in producer.split(",") if each)
        request = t.ListTransactionsRequest(states, ids, int(longer))
        passes = filter_of(request, self.now_ms)
        found = [listed(name, e) for name, e in self.machine.entries.items() if passes(e)]
        yield " ".join(f"{e.transactional_id}:{e.transaction_state}" for e in found) or "nothing"

    def do_epoch(self, epoch: str) -> Iterator[str]:
        """Makes the id as old as that, as the log would."""
        (entry,) = self.machine.entries.values()
        object.__setattr__(entry.transaction, "producer_epoch", int(epoch))
        yield from ()

    def do_no_ids(self, error: str = "") -> Iterator[str]:
        self.no_ids = error
        yield from ()

    def do_due(self) -> Iterator[str]:
        yield str(wall_of(self.machine.next_deadline_ms()))

    def do_hold(self, what: str = "") -> Iterator[str]:
        if what == "markers":
            self.held_markers = []
        else:
            yield from super().do_hold()

    def do_markers(self, *which: str, **errors: str) -> Iterator[str]:
        """All that are held, or the `first` alone; it is heard of again with the next."""
        held = self.held_markers or []
        self.held_markers = held[:1] if which else []
        for effect in held[:1] if which else held:
            yield from self.written(effect, errors)


@pytest.mark.parametrize("path", scenarios("transaction"), ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_it_is_written(path: Path) -> None:
    check(path, Coordination)
