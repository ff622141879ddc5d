"""What output topics take and keep: sizes, retention, and topics that the application makes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.clients import Admin, Consumer, NewTopic, Producer
from kafkalite.clients.admin.client import ConfigEntry, ConfigResource, ResourceType
from kafkalite.core.protocol import records
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ApiError, ErrorCode, ProcessingError, TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, fold, json, string
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.outputs import Outputs
from kafkalite.streams.local.sizes import record_bytes, too_large
from kafkalite.streams.local.task import Task
from kafkalite.streams.local.worker import Progress, Worker
from kafkalite.streams.stream import Stream

DAY = 86_400_000
NOW = 1_700_000_000_000

some_bytes = st.one_of(st.none(), st.binary(max_size=200))


class TestSizes:
    @given(some_bytes, some_bytes, st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3))
    def test_a_record_is_as_large_as_a_batch_of_it(
        self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
    ) -> None:
        columns = Columns([key], [value], [0], None, [tuple(headers)] if headers else None)
        assert record_bytes(key, value, tuple(headers)) == len(records.encode(columns))

    @pytest.mark.parametrize("length", [63, 64, 8_191, 8_192, 1_048_575])
    def test_at_the_edges_of_lengths(self, length: int) -> None:
        columns = Columns([None], [b"x" * length], [0])
        assert record_bytes(None, b"x" * length) == len(records.encode(columns))

    def test_those_beyond_the_limit_by_their_index(self) -> None:
        columns = Columns([b"k", None, b"k"], [b"x" * 100, b"y" * 500, None], [0, 0, 0])
        size = record_bytes(None, b"y" * 500)
        assert too_large(columns, size) == []
        assert too_large(columns, size - 1) == [(1, size)]
        headers = [(), (), (("h", b"z" * 900),)]
        heavy = Columns(columns.keys, columns.values, columns.timestamps, None, headers)
        assert [index for index, _ in too_large(heavy, size)] == [2]

    @given(
        sizes=st.lists(st.one_of(st.none(), st.integers(0, 400)), min_size=1, max_size=600),
        limit=st.integers(80, 400),
    )
    def test_none_is_overlooked_whatever_is_beside_it(
        self, sizes: list[int | None], limit: int
    ) -> None:
        values = [None if size is None else b"x" * size for size in sizes]
        columns = Columns([b"k"] * len(values), values, [0] * len(values))
        expected = [i for i, value in enumerate(values) if record_bytes(b"k", value) > limit]
        assert [index for index, _ in too_large(columns, limit)] == expected


class FakeAdmin:
    """Topics by name with their settings."""

    def __init__(self, **topics: dict[str, str]) -> None:
        self.topics = topics
        self.asked: list[str] = []

    async def describe_configs(
        self, resources: Sequence[ConfigResource], names: Sequence[str]
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        (resource,) = resources
        self.asked.append(resource.name)
        if resource.name not in self.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, resource.name)
        found = self.topics[resource.name]
        return {resource: {name: ConfigEntry(name, value) for name, value in found.items()}}


def output(topic: str, *timestamps: int) -> Output:
    nothing = [None] * len(timestamps)
    return Output(topic, Columns(nothing, nothing, list(timestamps)), None)


class TestRetention:
    def outputs(self, admin: FakeAdmin) -> Outputs:
        return Outputs(admin, "app", "host:9092")  # type: ignore[arg-type]

    def test_records_that_a_topic_will_not_keep_are_named_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        admin = FakeAdmin(old={"retention.ms": str(7 * DAY), "cleanup.policy": "delete"})
        outputs = self.outputs(admin)
        asyncio.run(outputs.look_up(["old"]))
        outputs.note(output("old", NOW, NOW - 7 * DAY), NOW)
        assert caplog.text == ""
        for _ in range(2):
            outputs.note(output("old", NOW, 1_357_000_000_000), NOW)
        (record,) = caplog.records
        assert record.message == (
            "app: writes records of 2013-01-01 into topic 'old', which keeps them for 7d by their "
            "timestamps: brokers will soon delete them. To keep them: kafkalite configs alter old "
            "--set retention.ms=-1 -b host:9092, or let the application make the topic with "
            ".to(topic, create={})"
        )

    def test_the_topic_of_dead_letters_is_made_by_no_operator(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        admin = FakeAdmin(dead={"retention.ms": str(7 * DAY), "cleanup.policy": "delete"})
        outputs = Outputs(admin, "app", "host:9092", "dead")  # type: ignore[arg-type]
        asyncio.run(outputs.look_up(["dead"]))
        outputs.note(output("dead", 1_357_000_000_000), NOW)
        assert caplog.messages[0].endswith("configs alter dead --set retention.ms=-1 -b host:9092")

    @pytest.mark.parametrize(
        "settings",
        [
            {"retention.ms": "-1"},
            {"retention.ms": str(DAY), "cleanup.policy": "compact"},
            {"retention.ms": str(DAY), "message.timestamp.type": "LogAppendTime"},
            {},
        ],
    )
    def test_topics_that_keep_them_are_not(
        self, settings: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        outputs = self.outputs(FakeAdmin(kept=settings))
        asyncio.run(outputs.look_up(["kept"]))
        outputs.note(output("kept", 0), NOW)
        assert caplog.text == ""

    def test_a_topic_that_comes_up_later_is_looked_up_once(self) -> None:
        admin = FakeAdmin(late={"max.message.bytes": "1000"})
        outputs = self.outputs(admin)
        for topic in ("late", "nowhere", "late"):
            outputs.note(output(topic, NOW), NOW)
            asyncio.run(outputs.look_up_new())
        assert admin.asked == ["late", "nowhere"]
        assert outputs.limits == {"late": 1000}


def task_of(build: Callable[[Stream], Any], limits: dict[str, int], **options: Any) -> Task:
    app = Streams("app", key=string(), value=json(), dead_letter_topic="letters", **options)
    build(app.stream("in"))
    (sub,) = compile_topology(app.plan())
    return Task(sub, 2, limits=limits)


def enqueue(task: Task, *values: bytes) -> None:
    count = len(values)
    task.enqueue("in", Columns([b"k"] * count, list(values), [0] * count, range(7, 7 + count)))


def long(value: Any) -> Any:
    return "x" * value


class TestTooLarge:
    def test_a_record_for_a_topic_fails_with_its_place(self) -> None:
        task = task_of(lambda s: s.map(long).to("out", name="sink"), {"out": 1_000})
        enqueue(task, b"5", b"2000")
        with pytest.raises(ProcessingError) as caught:
            task.process(10, 0)
        assert "'sink': topic 'in', partition 2, offset 8: " in str(caught.value)
        assert "2,073 bytes are more than topic 'out' takes in a record" in str(caught.value)

    def test_or_goes_as_the_policy_says(self) -> None:
        limits = {"out": 1_000, "letters": 1_000_000}
        for policy in ("skip", "dlq"):
            task = task_of(lambda s: s.map(long).to("out"), limits, on_error=policy)
            enqueue(task, b"5", b"2000", b"6")
            task.process(10, 0)
            outputs = {o.topic: list(o.columns.values) for o in task.commit().outputs}
            assert outputs["out"] == [b'"xxxxx"', b'"xxxxxx"']
            assert ("letters" in outputs) == (policy == "dlq")

    def test_a_letter_that_does_not_fit_leaves_key_and_value_out(self) -> None:
        def fail(value: Any) -> Any:
            raise ValueError("y" * 50_000)

        task = task_of(lambda s: s.map(fail).to("out"), {"letters": 20_000}, on_error="dlq")
        enqueue(task, b'"%s"' % (b"x" * 30_000))
        task.process(10, 0)
        (letter,) = task.commit().outputs
        assert list(letter.columns.values) == [None]
        assert letter.columns.headers is not None
        story = dict(letter.columns.headers[0])
        assert story["__streams.errors.offset"] == b"7"
        assert len(story["__streams.errors.message"] or b"") == 1_000

    def rows(self, **options: Any) -> Task:
        grow = fold("", lambda text, value: text + "x" * value)
        return task_of(
            lambda s: s.group_by_key().aggregate(grow, name="texts").to_stream().to("out"),
            {"app-texts-changelog": 1_000},
            **options,
        )

    def test_a_row_fails_with_its_key_and_what_was_read(self) -> None:
        task = self.rows()
        enqueue(task, b"900", b"900")
        task.process(10, 0)
        with pytest.raises(ProcessingError) as caught:
            task.commit()
        message = str(caught.value)
        assert (
            "'texts': the row of key b'k', with 'in' up to offset 9 of partition 2 read" in message
        )
        assert "more than topic 'app-texts-changelog' takes" in message

    def test_a_row_that_may_be_skipped_is_deleted_in_the_changelog(self) -> None:
        task = self.rows(on_error="skip")
        enqueue(task, b"900", b"900")
        task.process(10, 0)
        (changelog,) = task.commit().changelog
        assert (
            dict(zip(changelog.columns.keys, changelog.columns.values, strict=True))[b"k"] is None
        )
        assert task.metrics["dropped-records-total"] == 1


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


async def run(app: Streams, address: str) -> Progress:
    worker = Worker(app.plan(), address, MemoryRegistry())
    return await asyncio.wait_for(worker.run(until_caught_up=True), 60)


async def read(address: str, topic: str) -> Columns:
    tp = TopicPartition(topic, 0)
    batches: list[Columns] = []
    async with Consumer(address, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        consumer.seek_to_beginning([tp])
        while (consumer.position(tp) or 0) < end:
            batches += (await consumer.poll(500)).values()
    return concat(batches)


@pytest.mark.slow
class TestOverABroker:
    def test_a_record_beyond_the_topics_limit_becomes_a_letter_and_the_worker_goes_on(
        self, address: str
    ) -> None:
        async def scenario() -> None:
            async with Admin(address) as admin:
                small = {"max.message.bytes": "1000"}
                await admin.create_topics([NewTopic("small-out", 1, configs=small)])
            values = [b"a", b"x" * 3_000, b"b"]
            async with Producer(address) as producer:
                await producer.send_columns("small-in", Columns([None] * 3, values, [0] * 3))
            app = Streams("small", on_error="dlq", dead_letter_topic="small-letters")
            app.stream("small-in").to("small-out")
            assert (await run(app, address)).records == 3
            assert list((await read(address, "small-out")).values) == [b"a", b"b"]
            assert list((await read(address, "small-letters")).values) == [values[1]]

        asyncio.run(scenario())

    def test_an_application_makes_topics_that_keep_its_records(
        self, address: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            async with Admin(address) as admin:
                await admin.create_topics([NewTopic("made-in", 3)])
            async with Producer(address) as producer:
                await producer.send_columns("made-in", Columns([b"k"], [b"v"], [1_357_000_000_000]))
            app = Streams("made")
            stream = app.stream("made-in")
            stream.to("made-kept", create={})
            stream.to("made-one", create={"partitions": 1, "cleanup.policy": "compact"})
            stream.to("made-plain")
            await run(app, address)
            async with Admin(address) as admin:
                infos = await admin.describe_topics(["made-kept", "made-one"])
                assert {i.name: i.partition_count for i in infos} == {"made-kept": 3, "made-one": 1}
                resource = ConfigResource(ResourceType.TOPIC, "made-kept")
                found = (await admin.describe_configs([resource], ["retention.ms"]))[resource]
                assert found["retention.ms"].value == "-1"
            app.stream("made-in")  # a second run leaves the topics as they are
            await run(app, address)

        with caplog.at_level(logging.WARNING):
            asyncio.run(scenario())
        warned = [r.message for r in caplog.records if "retention" in r.message]
        assert all("'made-plain'" in message for message in warned)


@pytest.mark.parametrize(
    ("topic", "create", "complaint"),
    [
        ("out", 3, "create= expected settings by name, got 3"),
        ("out", {"partitions": 0}, "partitions: expected 1 or more, got 0"),
        (lambda record: "out", {}, "create= makes one topic, and a function names many"),
    ],
)
def test_what_create_cannot_be(topic: Any, create: Any, complaint: str) -> None:
    with pytest.raises(TopologyError, match=complaint):
        Streams("app").stream("in").to(topic, create=create)


def test_two_sinks_make_a_topic_in_one_way(tmp_path: Path) -> None:
    app = Streams("app")
    stream = app.stream("in")
    stream.to("out", create={"partitions": 1})
    stream.to("out", create={"partitions": 2})
    (sub,) = compile_topology(app.plan())
    with pytest.raises(TopologyError, match="another sink makes topic 'out' in another way"):
        _ = sub.output_topics
