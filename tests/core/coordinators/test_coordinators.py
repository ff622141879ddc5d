"""The runtime of coordinators: loading, whatever the machine makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.broker import agenda
from kafkalite.core.cluster.image import (
    PartitionImage,
    broker_record,
    partition_record,
    topic_record,
)
from kafkalite.core.cluster.internal_topics import TRANSACTIONS_TOPIC
from kafkalite.core.coordinators import runtime
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.pending import Pending
from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.records import encode
from kafkalite.core.replicas import upkeep
from kafkalite.core.replicas.leader import FollowerFetch
from kafkalite.core.replicas.replication import ACKS_ALL
from kafkalite.core.transactions.coordinator import (
    AddPartitions,
    TransactionConfig,
    TransactionCoordinator,
)
from kafkalite.core.transactions.partitions import Partitions
from kafkalite.core.transactions.records import transaction_record
from kafkalite.core.transactions.transaction import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_COMMIT,
    Transaction,
)
from kafkalite.core.types import NOTHING, Columns, Now, RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.node import start_node
from kafkalite.testing.clock import at

SETTINGS = {"transaction.state.log.num.partitions": "1"}
ASKED = t.EndTxnRequest("tx0", 0, 0, True)


async def with_log(directory: Path, *batches: bytes, settings: Mapping[str, str] = SETTINGS) -> Any:
    """A broker whose log of transactions holds these batches, not loaded yet."""
    node = await start_node(directory, "127.0.0.1:0", settings)
    made = asyncio.Event()
    node.broker.create_topics((TRANSACTIONS_TOPIC,)).when_done(lambda _: made.set())
    await made.wait()
    partition = node.broker.partition(TRANSACTIONS_TOPIC, 0)
    for batch in batches:
        partition.append(bytearray(batch), ACKS_ALL, node.broker.wall_ms(), from_client=False)
    return node


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


def batch(*transactions: Transaction) -> bytes:
    keys, values = zip(*map(transaction_record, transactions), strict=True)
    return encode(Columns(keys, values, [1] * len(keys)))


def standing(number: int, epoch: int = 0, state: Any = COMPLETE_COMMIT) -> Transaction:
    return Transaction(f"tx{number}", number, 60_000, 1 << 50, epoch, state, start_ms=1 << 50)


def test_a_long_log_is_loaded_in_slices_and_the_last_record_of_each_id_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        older = [batch(standing(n, epoch), standing(n + 1)) for epoch in (1, 2) for n in range(40)]
        node = await with_log(tmp_path, *older, batch(standing(0, 7, ONGOING)))
        monkeypatch.setattr(runtime, "LOAD_SLICE_BYTES", 200)
        transactions = node.broker.transactions
        with pytest.raises(ApiError) as raised:
            transactions.handle(0, ASKED, RequestContext(3))
        assert raised.value.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        late = standing(3, 9)  # comes while the rest is loaded
        partition = node.broker.partition(TRANSACTIONS_TOPIC, 0)
        partition.append(bytearray(batch(late)), ACKS_ALL, 1, from_client=False)
        while True:
            await asyncio.sleep(0)
            try:
                entries = transactions.ready(0).machine.entries
            except ApiError:
                continue
            break
        found = {name: entry.transaction for name, entry in entries.items()}
        wanted = {standing(0, 7, ONGOING), *(standing(n, 2) for n in range(1, 40)), standing(40)}
        assert set(found.values()) == (wanted - {standing(3, 2)}) | {late}
        await node.close()

    asyncio.run(story())


def test_what_does_not_read_is_counted_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        odd = encode(Columns([b"\0\0\0\x02xy", b"\0\x09other", None], [b"?", b"?", b"?"], [1] * 3))
        node = await with_log(tmp_path, batch(standing(0)), odd)
        assert set(node.broker.transactions.ready(0).machine.entries) == {"tx0"}
        await node.close()

    asyncio.run(story())
    assert "__transaction_state-0: 2 records do not read, skipped" in caplog.text


def test_a_log_that_cannot_be_read_is_not_coordinated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        node = await with_log(tmp_path, batch(standing(0)))

        def broken(*_: Any) -> Any:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk")

        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "read", broken)
            for _ in range(2):
                with pytest.raises(ApiError) as raised:
                    node.broker.transactions.handle(0, ASKED, RequestContext(3))
                assert raised.value.error_code is ErrorCode.NOT_COORDINATOR
        answer = node.broker.transactions.handle(0, ASKED, RequestContext(3))
        assert answer.error_code is ErrorCode.NONE, "it was committed before"
        await node.close()

    asyncio.run(story())
    assert "__transaction_state-0 cannot be loaded: the disk" in caplog.text


def test_a_log_that_holds_what_nobody_expects_is_not_coordinated_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        settings = {"transaction.state.log.num.partitions": "2"}
        node = await with_log(tmp_path, batch(standing(0, state=PREPARE_COMMIT)), settings=settings)
        partition = node.broker.partition(TRANSACTIONS_TOPIC, 1)
        decided = bytearray(batch(standing(1, state=PREPARE_COMMIT)))
        partition.append(decided, ACKS_ALL, 1, from_client=False)
        await node.close()
        replay = TransactionCoordinator.replay

        def surprised(self: Any, key: bytes, *rest: Any, **more: Any) -> None:
            assert b"tx0" not in key, "surprise"
            replay(self, key, *rest, **more)

        monkeypatch.setattr(TransactionCoordinator, "replay", surprised)
        node = await start_node(tmp_path, "127.0.0.1:0", settings)
        transactions = node.broker.transactions
        await until(lambda: 1 in transactions._coordinators)
        assert transactions.ready(1).machine.entries["tx1"].transaction.state is COMPLETE_COMMIT
        for _ in range(2):
            with pytest.raises(ApiError) as raised:
                transactions.handle(0, ASKED, RequestContext(3))
            assert raised.value.error_code is ErrorCode.NOT_COORDINATOR
        assert transactions.all_ready() == [transactions.ready(1)], "the others can be listed"
        await node.close()

    asyncio.run(story())
    assert caplog.text.count("AssertionError: surprise") == 1, "it is told once"


def test_what_was_decided_is_finished_once_its_log_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any
) -> None:
    """Nobody asks for it any more, but readers of committed records wait for its markers."""
    monkeypatch.setattr(upkeep, "HOUSEKEEPING_MS", 20)

    async def story() -> None:
        node = await with_log(tmp_path, batch(standing(0, state=PREPARE_COMMIT)))
        await node.close()
        mend = spoil(tmp_path / f"{TRANSACTIONS_TOPIC}-0" / "leader-epoch-checkpoint")
        node = await start_node(tmp_path, "127.0.0.1:0", SETTINGS)
        transactions = node.broker.transactions
        assert TopicPartition(TRANSACTIONS_TOPIC, 0) in node.broker.partitions.offline
        mend()
        await until(lambda: transactions._coordinators)
        found = transactions._coordinators[0].machine.entries["tx0"].transaction
        assert found.state is COMPLETE_COMMIT
        await node.close()

    asyncio.run(story())


def test_a_machine_that_fails_at_its_time_is_made_anew_and_takes_none_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        settings = {"transaction.state.log.num.partitions": "2"}
        node = await with_log(tmp_path, batch(standing(0)), settings=settings)
        transactions = node.broker.transactions
        machines = [transactions.ready(index).machine for index in range(2)]
        ticked: list[int] = []

        def tick(machine: TransactionCoordinator, now: Now) -> Any:
            place = machines.index(machine)
            ticked.append(place)
            if place == 0:
                raise RuntimeError("a fault of ours")
            monkeypatch.setattr(TransactionCoordinator, "next_deadline_ms", lambda _: None)
            return NOTHING

        monkeypatch.setattr(agenda, "RETRY_MS", 10)
        monkeypatch.setattr(TransactionCoordinator, "next_deadline_ms", lambda _: 0)
        monkeypatch.setattr(TransactionCoordinator, "tick", tick)
        node.broker.wake_at(0)
        for _ in range(5_000):
            if 1 in ticked:
                break
            await asyncio.sleep(0.001)
        assert ticked == [0, 1]
        assert set(transactions.ready(0).machine.entries) == {"tx0"}
        assert transactions.ready(0).machine is not machines[0]
        await node.close()

    asyncio.run(story())
    assert caplog.text.count("RuntimeError: a fault of ours") == 1


@pytest.mark.slow
def test_many_transactions_that_time_out_at_once_do_not_make_one_batch() -> None:
    """A batch is refused as a whole: one that is too large would be so again and again."""
    machine = TransactionCoordinator(TransactionConfig())
    partitions = Partitions(TopicPartition("t" * 100, n) for n in range(5_000))
    for number in range(60):
        begun = Transaction(f"tx{number}", number, 1, 0, 0, ONGOING, partitions, 0)
        machine.replay(*transaction_record(begun), at(0))
    aborted: list[int] = []
    while not aborted or sum(aborted) < 60:
        outcome = machine.tick(at(10))
        assert outcome.records
        assert sum(len(value or b"") for _, value in outcome.records) < 300_000
        aborted.append(len(outcome.records))
        assert len(outcome.effects) == len(outcome.records)
        for record in outcome.records:
            machine.replay(*record, at(10))
    assert len(aborted) > 3


async def led_with_another(node: Any, epoch: int) -> Any:
    """The log of transactions has a replica on broker 2, too, which is in sync."""
    image = PartitionImage((1, 2), 1, epoch, (1, 2), epoch)
    known = node.broker.image.topics[TRANSACTIONS_TOPIC]
    topic = topic_record(replace(known, partitions=(image,)))
    other = broker_record(2, {"PLAINTEXT": ("127.0.0.1", 2)}, epoch=7)
    records = (other, topic, partition_record(TRANSACTIONS_TOPIC, 0, image))
    await node.broker.steering.apply(records)
    return node.broker.partition(TRANSACTIONS_TOPIC, 0)


def fetched_by_another(node: Any, partition: Any, offset: int) -> None:
    fetch = FollowerFetch(2, offset, confirmed_ms=node.broker.monotonic_ms())
    node.broker.settle(partition, partition.fetched(fetch, node.broker.monotonic_ms()))


def code_of(node: Any) -> ErrorCode:
    try:
        code: ErrorCode = node.broker.transactions.handle(0, ASKED, RequestContext(3)).error_code
    except ApiError as error:
        return error.error_code
    return code


def test_a_new_coordinator_answers_once_its_log_is_committed(tmp_path: Path) -> None:
    """Otherwise the next one, whose log may be shorter, would take its answers back."""

    async def story() -> None:
        node = await with_log(tmp_path, batch(standing(1)))
        partition = await led_with_another(node, 2)
        tail = bytearray(batch(standing(0)))
        partition.append(tail, ACKS_ALL, node.broker.wall_ms(), from_client=False)
        await led_with_another(node, 3)
        assert code_of(node) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        marker = bytearray(batch(standing(2)))  # what comes meanwhile is waited for, too
        partition.append(marker, ACKS_ALL, node.broker.wall_ms(), from_client=False)
        fetched_by_another(node, partition, 2)
        await asyncio.sleep(0.01)
        assert code_of(node) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fetched_by_another(node, partition, 3)
        await until(lambda: code_of(node) is ErrorCode.NONE)
        assert set(node.broker.transactions.ready(0).machine.entries) == {"tx0", "tx1", "tx2"}
        await node.close()

    asyncio.run(story())


def test_a_coordinator_acts_in_its_own_leader_epoch_alone(tmp_path: Path) -> None:
    """Its partition may be led in the next epoch a moment before it hears of that."""

    async def story() -> None:
        node = await with_log(tmp_path, batch(standing(0, state=ONGOING)))
        partition = await led_with_another(node, 2)
        transactions = node.broker.transactions
        old, end = transactions.ready(0), partition.log.log_end_offset
        image = PartitionImage((1, 2), 1, 3, (1, 2), 3)
        partition.replay(image, node.broker.monotonic_ms())
        assert not old.is_active
        added = AddPartitions("tx0", 0, 0, Partitions((TopicPartition("t", 1),)))
        answer: Pending[Any] = Pending()
        transactions.step(old, added, RequestContext(3, token=answer))
        assert answer.response is ErrorCode.NOT_COORDINATOR
        assert partition.log.log_end_offset == end
        assert transactions.tick(1 << 60) is None
        assert transactions.ready(0) is not old
        await node.close()

    asyncio.run(story())
