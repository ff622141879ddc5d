"""Transactions, from the first id to the fenced producer."""

from __future__ import annotations

from typing import Any

from asking import Talk
from questions_records import batch, fetch, part, produce

from kafkalite.core.protocol.fetch import FetchTopic
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from kafkalite.core.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkalite.errors import ErrorCode


class Producer:
    """A transactional producer by hand."""

    def __init__(self, talk: Talk, word: str = "p") -> None:
        self.talk = talk
        self.transactional_id = talk.coordinator(talk.name(word), 1)
        answer = talk.producer_id(self.transactional_id)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, topic: str, *indexes: int, **how: Any) -> AddPartitionsToTxnRequest:
        who = {"id": self.id, "epoch": self.epoch, "of": self.transactional_id} | how
        topics = (AddPartitionsToTxnTopic(topic, indexes),)
        return AddPartitionsToTxnRequest(who["of"], who["id"], who["epoch"], topics)

    def end(self, committed: bool, **how: Any) -> EndTxnRequest:
        who = {"id": self.id, "epoch": self.epoch, "of": self.transactional_id} | how
        return EndTxnRequest(who["of"], who["id"], who["epoch"], committed)

    def produce(self, topic: str, sequence: int, n: int = 2, **how: Any) -> Any:
        records = batch(
            n,
            producer_id=self.id,
            producer_epoch=how.get("epoch", self.epoch),
            base_sequence=sequence,
            transactional=how.get("transactional", True),
        )
        return produce(topic, records, how.get("index", 0), -1, self.transactional_id)

    def begin(self, topic: str, *indexes: int) -> None:
        """Adds partitions, once the last transaction is over."""

        def added(answer: Any) -> bool:
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            return results[0].partition_error_code is ErrorCode.NONE

        self.talk.until(lambda: self.talk.say(self.add(topic, *indexes), 3), added)

    def finish(self, committed: bool) -> None:
        """Ends the transaction and waits until it has ended."""
        self.talk.say(self.end(committed), 3)
        state = DescribeTransactionsRequest((self.transactional_id,))

        def is_complete(answer: Any) -> bool:
            return bool(answer.transaction_states[0].transaction_state.startswith("Complete"))

        self.talk.until(lambda: self.talk.say(state, 0), is_complete)


def seen(talk: Talk, topic: str, committed: bool) -> None:
    """Writes down what a reader sees."""
    word = "committed" if committed else "all"
    count = sum(label.startswith(f"read {word}") for label in talk.answers)
    wanted = fetch((FetchTopic(topic, partitions=(part(0, 0),)),), isolation_level=int(committed))
    talk.ask(f"read {word} ({count})", wanted, 11)
    latest = (ListOffsetsTopic(topic, (ListOffsetsPartition(0, -1, -1),)),)
    talk.ask(f"the end of {word} ({count})", ListOffsetsRequest(-1, int(committed), latest), 5)


def beginning(talk: Talk) -> None:
    name = talk.coordinator(talk.name("p"), 1)
    talk.producer_id(name)
    for version in range(1, 5):
        keys = (name,) if version >= 4 else ()
        talk.ask(f"find, v{version}", FindCoordinatorRequest(name, 1, keys), version)
    for version in range(5):
        talk.ask(f"an id, v{version}", InitProducerIdRequest(name, 60_000), version)
    for timeout_ms in (0, -1, 10**9):
        request = InitProducerIdRequest(talk.name("q"), timeout_ms)
        talk.ask(f"a timeout of {timeout_ms}", request, 3)
    talk.ask("an empty name", InitProducerIdRequest("", 1_000), 3)
    states = (("an unknown one", talk.name("nowhere")), ("an empty one", name))
    for label, which in states:
        talk.ask(f"describe {label}", DescribeTransactionsRequest((which,)), 0)
    talk.ask("list those of no such state", ListTransactionsRequest(("Foo",), ()), 0)


def adding(talk: Talk) -> None:
    topic, producer = talk.topic("t", 2), Producer(talk)
    talk.ask("commit nothing", producer.end(True), 3)
    talk.ask("abort nothing", producer.end(False), 3)
    for label, how in (
        ("a foreign id", {"id": producer.id + 999}),
        ("an epoch before", {"epoch": producer.epoch - 1}),
        ("an epoch ahead", {"epoch": producer.epoch + 1}),
        ("an unknown name", {"of": talk.name("nowhere")}),
        ("an empty name", {"of": ""}),
    ):
        talk.ask(f"add under {label}", producer.add(topic, 0, **how), 3)
    talk.ask("add an unknown partition", producer.add(topic, 9), 3)
    talk.ask("add one known, one not", producer.add(topic, 0, 9), 3)
    for version in range(4):
        talk.ask(f"add, v{version}", producer.add(topic, 0), version)
    talk.ask("describe", DescribeTransactionsRequest((producer.transactional_id,)), 0)
    for label, how in (
        ("a foreign id", {"id": producer.id + 999}),
        ("an epoch before", {"epoch": producer.epoch - 1}),
        ("an unknown name", {"of": talk.name("nowhere")}),
    ):
        talk.ask(f"commit under {label}", producer.end(True, **how), 3)


def committing_records(talk: Talk) -> None:
    topic, producer = talk.topic("t", 2), Producer(talk)
    producer.begin(topic, 0, 1)
    talk.ask("produce", producer.produce(topic, 0), 8)
    seen(talk, topic, True)
    seen(talk, topic, False)
    talk.ask("producers", DescribeProducersRequest((DescribeProducersTopic(topic, (0,)),)), 0)
    talk.ask("commit", producer.end(True), 3)
    producer.finish(True)
    talk.ask("commit again", producer.end(True), 3)
    talk.ask("abort what is committed", producer.end(False), 3)
    seen(talk, topic, True)
    producer.begin(topic, 0)
    talk.ask("produce more", producer.produce(topic, 2), 8)
    producer.finish(False)
    talk.ask("abort again", producer.end(False), 3)
    talk.ask("commit what is aborted", producer.end(True), 3)
    seen(talk, topic, True)
    seen(talk, topic, False)
    name = producer.transactional_id
    talk.ask("describe", DescribeTransactionsRequest((name,)), 0)
    plain = producer.produce(topic, 4, transactional=False)
    talk.ask("produce outside a transaction", plain, 8)
    marker = WritableTxnMarker(
        producer.id, producer.epoch, False, (WritableTxnMarkerTopic(topic, (9,)),), 0
    )
    talk.ask("a marker for an unknown partition", WriteTxnMarkersRequest((marker,)), 1)


def committing_offsets(talk: Talk) -> None:
    topic, producer = talk.topic("t", 2), Producer(talk)
    group = talk.coordinator(talk.name("g"))
    name, mine, epoch = producer.transactional_id, producer.id, producer.epoch
    talk.ask("add a group", AddOffsetsToTxnRequest(name, mine, epoch, group), 3)
    talk.ask("add it an epoch ago", AddOffsetsToTxnRequest(name, mine, epoch - 1, group), 3)
    talk.ask("add an empty group", AddOffsetsToTxnRequest(name, mine, epoch, ""), 3)

    def commit(
        label: str, version: int = 3, index: int = 0, generation: int = -1, member: str = ""
    ) -> None:
        topics = TxnOffsetCommitRequestTopic(topic, (TxnOffsetCommitRequestPartition(index, 7),))
        request = TxnOffsetCommitRequest(
            name, group, mine, epoch, generation, member, None, (topics,)
        )
        talk.ask(label, request, version)

    for version in range(4):
        commit(f"commit, v{version}", version)
    commit("commit for an unknown partition", index=9)
    commit("commit for an unknown member", generation=4, member="m")
    wanted = (OffsetFetchRequestTopic(topic, (0,)),)
    stable = OffsetFetchRequest(group, wanted, require_stable=True)
    talk.ask("fetch the stable", stable, 7)
    talk.ask("fetch any", OffsetFetchRequest(group, wanted), 7)
    producer.finish(True)

    def is_there(answer: Any) -> bool:
        return bool(answer.topics[0].partitions[0].committed_offset == 7)

    talk.until(lambda: talk.say(stable, 7), is_there)
    talk.ask("fetch the committed", stable, 7)


def fencing(talk: Talk) -> None:
    topic, producer = talk.topic("t"), Producer(talk)
    name = producer.transactional_id
    producer.begin(topic, 0)
    talk.say(producer.produce(topic, 0), 8)
    request = InitProducerIdRequest(name, 60_000)

    def is_over(answer: Any) -> bool:
        return answer.error_code is not ErrorCode.CONCURRENT_TRANSACTIONS

    newer = talk.until(lambda: talk.say(request, 3), is_over)
    talk.ask("add of the fenced", producer.add(topic, 0), 3)
    talk.ask("commit of the fenced", producer.end(True), 3)
    talk.ask("produce of the fenced", producer.produce(topic, 2), 8)
    seen(talk, topic, True)
    for label, epoch in (("its epoch", newer.producer_epoch), ("an old epoch", 0)):
        again = InitProducerIdRequest(name, 60_000, newer.producer_id, epoch)
        talk.ask(f"an id again under {label}", again, 3)
    foreign = InitProducerIdRequest(name, 60_000, newer.producer_id + 5, 0)
    talk.ask("an id again under a foreign one", foreign, 3)
