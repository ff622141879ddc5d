"""An application moves to Spark and back: nothing is lost, nothing counts twice.

Here a stand-in of Spark runs the tasks in this process and writes the files of a checkpoint. The
example in examples/moving moves with Spark itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients import Admin, Consumer, NewTopic, Producer
from kafkalite.clients.cluster import Client
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.spark.topology.checkpoint import Checkpoint
from kafkalite.spark.topology.exporting import Exported, differences, export_state
from kafkalite.spark.topology.moving import Seeds, Stay, check_stay, hold, seeds, sink_name
from kafkalite.spark.topology.state import Tasks
from kafkalite.streams import Streams, int64, string, tumbling
from kafkalite.streams.local.assignor import TaskId, tasks_of
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.worker import Worker
from kafkalite.testing.blobs import MemoryBlobs

pytestmark = pytest.mark.slow

PARTITIONS = 2
KEPT = {"retention.ms": "-1"}
INPUTS = ("orders", "payments", "prices")
FAILED = 1
STEPS = count()  # so that each application has a name of its own


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


class Application:
    """Windows that wait for their end, a join of streams, a table, on one engine or the other."""

    def __init__(self, address: str, tmp_path: Path) -> None:
        self.address, self.name = address, f"moves-{next(STEPS)}"
        self.location = str(tmp_path / self.name)
        self.checkpoint = Checkpoint(self.location)
        self.states: dict[str, MemoryBlobs] = {}
        self.batch = -1
        self.tasks = Tasks(lambda: os.urandom(16))

    def topic(self, name: str) -> str:
        return f"{self.name}-{name}"

    def app(self) -> Streams:
        app = Streams(self.name, key=string(), value=string())
        orders, payments = (app.stream(self.topic(t)) for t in ("orders", "payments"))
        prices = app.table(self.topic("prices"), name="prices")
        paid = orders.join(payments, str.__add__, within="10ms", grace="5ms", name="paid")
        paid.to(self.topic("paid"))
        orders.join(prices, str.__add__, name="priced").to(self.topic("priced"))
        windows = orders.group_by_key().window(tumbling("20ms", grace="5ms"))
        windows.count(name="windows").final().to(self.topic("windows"), value=int64())
        return app

    async def create(self) -> None:
        names = (*INPUTS, "paid", "priced", "windows")
        async with Admin(self.address) as admin:
            await admin.create_topics(
                [NewTopic(self.topic(n), PARTITIONS, configs=KEPT) for n in names]
            )

    async def send(self, first: int, last: int) -> None:
        """Records of some moments, a key in each partition and more."""
        async with Producer(self.address) as producer:
            for topic in INPUTS:
                for partition in range(PARTITIONS):
                    some = [i for i in range(first, last) if topic != "prices" or i % 3 == 0]
                    columns = Columns(
                        [b"k%d-%d" % (partition, i % 3) for i in some],
                        [b"%s%d." % (topic[:3].encode(), i) for i in some],
                        [7 * i + partition for i in some],
                    )
                    await producer.send_columns(self.topic(topic), columns, partition=partition)

    async def local(self) -> int:
        worker = Worker(self.app().plan(), self.address, MemoryRegistry())
        return (await asyncio.wait_for(worker.run(until_caught_up=True), 60)).records

    async def hold(self, *, from_local: bool = True) -> Stay:
        async with Client(self.address) as client:
            plan = self.app().plan()
            return await hold(client, self.address, plan, self.checkpoint, from_local=from_local)

    async def export(self) -> Exported | None:
        async with Client(self.address) as client:
            plan = self.app().plan()
            return await export_state(
                client, self.address, plan, self.checkpoint, lambda _: self.blobs()
            )

    def blobs(self) -> dict[str, list[bytes]]:
        return {name: blobs.blobs for name, blobs in self.states.items()}

    async def spark(self, stay: Stay, *, completes: bool = True) -> None:
        """A micro-batch of all that there is, and its files."""
        plan = self.app().plan()
        subs = {sub.id: sub for sub in compile_topology(plan)}
        if stay.is_new and self.batch < 0:
            await self.seed(seeds(self.address, plan, stay))
        begin = stay.offsets if self.batch < 0 else self.checkpoint.offsets(self.batch)
        self.batch += 1
        offsets: dict[TopicPartition, int] = {}
        outputs = []
        for task_id, partitions in tasks_of(stay.sources, stay.partitions_of).items():
            blobs = self.states.setdefault(str(task_id), MemoryBlobs())
            task = self.tasks.take("run", str(task_id), blobs, lambda t=task_id: self.make(subs, t))
            for tp in partitions:
                columns, offsets[tp] = await self.read(tp, begin.get(tp, 0))
                if len(columns):
                    task.enqueue(tp.topic, columns)
            while task.process(10_000, 0):
                pass
            commit = task.commit()
            self.tasks.commit("run", str(task_id), blobs, task, commit.changelog)
            outputs += commit.outputs
        self.write("metadata", {"id": "query"})
        self.write(f"offsets/{self.batch}", {"offsets": _nested(offsets), "now": 7}, lines=True)
        epochs = f"{sink_name(self.name)}-epochs"
        async with Admin(self.address) as admin:
            await admin.create_missing_topics([NewTopic(epochs, 1)])
        async with TransactionalProducer(self.address, sink_name(self.name)) as producer:
            await check_stay(self.address, self.name, stay.holder)
            async with producer.transaction():
                for output in outputs:
                    await producer.send_columns(output.topic, output.columns)
                epoch = json.dumps({"query": "query", "epoch": self.batch}).encode()
                await producer.send(epochs, epoch, key=b"k")
        if completes:
            self.write(f"commits/{self.batch}", {}, lines=True)

    def make(self, subs: Any, task_id: TaskId) -> Task:
        return Task(subs[task_id.sub_topology], task_id.partition)

    async def seed(self, first: Seeds) -> None:
        self.states.clear()

        def rows() -> list[Any]:
            numbers = [_numbers(range(len(first.tasks)))]
            return [row for batch in first(numbers) for row in batch.to_pylist()]

        for row in await asyncio.to_thread(rows):
            self.states.setdefault(row["to"], MemoryBlobs()).append([row["blob"]], row["head"])

    def write(self, name: str, document: Any, *, lines: bool = False) -> None:
        path = Path(self.location) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(("v1\n{}\n" if lines else "") + json.dumps(document))

    async def read(self, tp: TopicPartition, first: int) -> tuple[Columns, int]:
        """The committed records from an offset on, and the end."""
        found: list[Columns] = []
        async with Consumer(self.address, isolation_level="read_committed") as consumer:
            end = (await consumer.end_offsets([tp]))[tp]
            consumer.assign([tp])
            consumer.seek(tp, first)
            while (consumer.position(tp) or 0) < end:
                found += (await consumer.poll(1_000)).values()
        return concat(found), end

    async def results(self) -> dict[str, list[tuple[bytes, bytes, int]]]:
        """All results, sorted: engines write partitions at different times."""
        found: dict[str, list[tuple[bytes, bytes, int]]] = {}
        for name in ("paid", "priced", "windows"):
            for number in range(PARTITIONS):
                columns, _ = await self.read(TopicPartition(self.topic(name), number), 0)
                rows = zip(columns.keys, columns.values, columns.timestamps, strict=True)
                found.setdefault(name, []).extend(rows)  # type: ignore[arg-type]
        return {name: sorted(rows) for name, rows in found.items()}


def _nested(offsets: dict[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for tp, offset in offsets.items():
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return nested


def _numbers(numbers: Sequence[int]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"id": pa.array(list(numbers), pa.int64())})


@pytest.fixture(scope="module")
def alone(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a run on the local engine alone."""

    async def scenario() -> dict[str, Any]:
        app = Application(address, tmp_path_factory.mktemp("alone"))
        await app.create()
        await app.send(0, 36)
        await app.local()
        return await app.results()

    return asyncio.run(scenario())


def test_records_before_between_and_after_two_moves(
    address: str, tmp_path: Path, alone: dict[str, Any]
) -> None:
    async def scenario() -> None:
        app = Application(address, tmp_path)
        await app.create()
        await app.send(0, 12)
        await app.local()
        stay = await app.hold()
        assert stay.is_new
        await app.send(12, 20)
        await app.spark(stay)
        await app.send(20, 24)
        assert not (await app.hold(from_local=False)).is_new
        await app.spark(stay)
        exported = await app.export()
        assert exported is not None
        assert exported.batch == 1
        assert exported.rows > 0
        await app.send(24, 36)
        assert await app.local() == PARTITIONS * (12 + 12 + 4)
        assert await app.results() == alone
        assert all(alone.values())

    asyncio.run(scenario())


class TestGuard:
    def test_each_engine_is_refused_while_the_other_has_the_state(
        self, address: str, tmp_path: Path
    ) -> None:
        async def scenario() -> None:
            app = Application(address, tmp_path)
            await app.create()
            await app.send(0, 3)
            await app.local()
            with pytest.raises(TopologyError, match="the local engine holds the state: .*--from"):
                await app.hold(from_local=False)
            with pytest.raises(TopologyError, match="is no checkpoint of this application"):
                await app.export()
            stay = await app.hold()
            with pytest.raises(TopologyError, match=f"export-state FILE.py .*{app.location}"):
                await app.local()
            other = Checkpoint(f"{app.location}-other")
            async with Client(address) as client:
                with pytest.raises(TopologyError, match="in another checkpoint than"):
                    await hold(client, address, app.app().plan(), other, from_local=True)
            await app.spark(stay)
            await app.export()
            assert await app.export() is None
            with pytest.raises(TopologyError, match="give --checkpoint a new folder"):
                await app.hold()
            with pytest.raises(TopologyError, match="was moved away from Spark"):
                await app.spark(stay)

        asyncio.run(scenario())

    def test_a_new_application_may_begin_on_spark_and_move_to_the_local_engine(
        self, address: str, tmp_path: Path, alone: dict[str, Any]
    ) -> None:
        async def scenario() -> None:
            app = Application(address, tmp_path)
            await app.create()
            await app.send(0, 12)
            await app.spark(await app.hold(from_local=False))
            await app.export()
            await app.send(12, 36)
            await app.local()
            assert await app.results() == alone

        asyncio.run(scenario())

    def test_a_batch_that_is_only_in_the_log_is_completed_first(
        self, address: str, tmp_path: Path
    ) -> None:
        async def scenario() -> None:
            app = Application(address, tmp_path)
            await app.create()
            await app.send(0, 3)
            stay = await app.hold()
            await app.spark(stay, completes=False)
            with pytest.raises(TopologyError, match="batch 0 is in the log, but .*caught-up` comp"):
                await app.export()
            app.write("commits/0", {}, lines=True)
            assert (await app.hold(from_local=False)).holder == stay.holder
            await app.export()

        asyncio.run(scenario())

    def test_records_between_tasks_are_read_before_a_move(
        self, address: str, tmp_path: Path
    ) -> None:
        async def scenario() -> None:
            app = Application(address, tmp_path)
            await app.create()
            regrouped = Streams(app.name, key=string(), value=string())
            orders = regrouped.stream(app.topic("orders"))
            orders.group_by(str.upper, name="by").count(name="n", value=int64())
            app.app = lambda: regrouped  # type: ignore[method-assign]
            await app.local()
            async with Producer(address) as producer:
                rest = Columns([b"k"], [b"v"], [0])
                await producer.send_columns(f"{app.name}-by-repartition", rest, partition=1)
            for _ in range(2):  # the first leaves the claim as it was
                with pytest.raises(TopologyError, match=r"1 records of .*-1 wait to be read: run"):
                    await app.hold()
            await app.local()
            await app.hold()

        asyncio.run(scenario())

    def test_a_checkpoint_of_another_application_is_refused(
        self, address: str, tmp_path: Path
    ) -> None:
        async def scenario() -> None:
            app = Application(address, tmp_path)
            await app.create()
            app.checkpoint.begin("another", "a1")
            with pytest.raises(TopologyError, match="is the checkpoint of another"):
                await app.hold()

        asyncio.run(scenario())


def _dies(after: int, run: Coroutine[Any, Any, object]) -> bool:
    """Whether a process that runs this is dead before it ends, killed at so many requests."""
    child = os.fork()
    if not child:
        status, sent, send = FAILED, 0, BrokerConnection._send

        def limited(self: BrokerConnection, *args: Any) -> Any:
            nonlocal sent
            sent += 1
            if sent > after:
                os.kill(os.getpid(), signal.SIGKILL)
            return send(self, *args)

        BrokerConnection._send = limited  # type: ignore[method-assign]
        try:
            asyncio.run(run)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    run.close()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_move_that_is_killed_at_any_step_is_repeated(
    address: str, tmp_path: Path, alone: dict[str, Any]
) -> None:
    app, step = Application(address, tmp_path), 3
    asyncio.run(app.create())
    asyncio.run(app.send(0, 12))
    asyncio.run(app.local())
    deaths = 0
    while _dies(step * deaths, app.hold()):
        deaths += 1
    assert deaths > 5
    stay = asyncio.run(app.hold())
    asyncio.run(app.send(12, 24))
    asyncio.run(app.spark(stay))
    deaths = 0
    while _dies(step * deaths, app.export()):
        deaths += 1
    assert deaths > 5
    asyncio.run(app.send(24, 36))
    asyncio.run(app.local())
    assert asyncio.run(app.results()) == alone


def test_differences_turn_one_table_into_another() -> None:
    there = Columns([b"a", b"b", b"c"], [b"1", b"2", b"3"], [1, 2, 3])
    wanted = Columns([b"a", b"c", b"d"], [b"1", b"4", b"5"], [1, 4, 5])
    ((store, found),) = differences({"s": there}, {"s": wanted})
    assert store == "s"
    assert list(zip(found.keys, found.values, found.timestamps, strict=True)) == [
        (b"b", None, 2),
        (b"c", b"4", 4),
        (b"d", b"5", 5),
    ]
    assert list(differences({"s": there}, {"s": there})) == []
    ((_, gone),) = differences({"s": there}, {})
    assert list(gone.values) == [None] * 3
