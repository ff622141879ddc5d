"""Topics over the wire: metadata, creation, deletion, settings; and what a restart keeps."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kafkalite.core.cluster.local import JOURNAL
from kafkalite.core.handlers import ROUTES
from kafkalite.core.protocol.api_versions import ApiVersionsRequest
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.cluster import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from kafkalite.core.protocol.configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kafkalite.errors import ConfigError, DataDirectoryInUse, ErrorCode, StorageError

Start = Any


def named(*names: str) -> tuple[MetadataRequestTopic, ...]:
    return tuple(MetadataRequestTopic(name=name) for name in names)


@pytest.mark.parametrize("version", range(5))
def test_what_is_advertised_is_what_is_handled(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            answer = await (await running.connect()).ask(ApiVersionsRequest("a", "1"), version)
            told = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
            public = {int(k): r.versions for k, r in ROUTES.items() if not k.is_private}
            assert told == public

    asyncio.run(story())


@pytest.mark.parametrize("software", [("", "1"), ("a", ""), ("a b", "1"), ("a", "1_0")])
def test_software_without_a_proper_name_is_told_so(start: Start, software: tuple[str, str]) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            answer = await peer.ask(ApiVersionsRequest(*software), 3)
            assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, ())
            answer = await peer.ask(ApiVersionsRequest("apache-kafka-java", "4.3.1"), 3)
            assert answer.error_code is ErrorCode.NONE

    asyncio.run(story())


def test_an_unknown_version_of_api_versions_is_answered_in_v0(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            peer.writer.write(b"\0\0\0\x0d\0\x12\0\x09\0\0\0\x07\xff\xff\0\0\0")
            frame = await peer.reader.readexactly(4 + 4 + 2 + 4 + 6)
            assert frame[8:] == b"\0\x23\0\0\0\x01\0\x12\0\0\0\x04"
            await peer.ask(ApiVersionsRequest(), 0)  # the connection lives on

    asyncio.run(story())


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.WRITE_TXN_MARKERS, ApiKey.LIST_OFFSETS])
def test_a_version_or_api_that_is_not_advertised_hangs_up(start: Start, key: ApiKey) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            size_and_key = b"\0\0\0\x0a\0" + bytes([key])
            peer.writer.write(size_and_key + b"\0\x63\0\0\0\x07\xff\xff")
            assert await peer.is_hung_up_on()

    asyncio.run(story())


@pytest.mark.parametrize("version", range(13))
def test_metadata_of_everything(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a", 2)
            answer = await peer.ask(MetadataRequest(None if version else ()), version)
            (broker,) = answer.brokers
            assert (broker.host, broker.port) == tuple(running.node.address)
            (topic,) = answer.topics
            assert (topic.name, topic.error_code, len(topic.partitions)) == ("a", 0, 2)
            assert {p.leader_id for p in topic.partitions} == {broker.node_id}
            if version >= 10:
                assert topic.topic_id == running.broker.image.topics["a"].topic_id
                by_id = (MetadataRequestTopic(topic.topic_id, None),)
                again = await peer.ask(MetadataRequest(by_id), 12)
                assert again.topics[0].name == "a"

    asyncio.run(story())


@pytest.mark.parametrize("version", [9, 10, 11, 12])
def test_what_librdkafka_says_beyond_a_requests_end_is_ignored(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a")
            body = b"\0\0\0\0\1\0\0" + b"\0" * (version < 11)
            head = b"\0\3\0" + bytes([version]) + b"\0\0\0\5\xff\xff\0"
            peer.writer.write((len(head) + len(body)).to_bytes(4, "big") + head + body)
            size = int.from_bytes(await peer.reader.readexactly(4), "big")
            assert b"\2a" in await peer.reader.readexactly(size)

    asyncio.run(story())


def test_asking_for_a_topic_makes_it_if_both_agree(start: Start) -> None:
    async def story() -> None:
        async with start(num_partitions="3") as running:
            one, two = await running.connect(), await running.connect()
            answer = await one.ask(MetadataRequest(named("a"), False), 12)
            assert answer.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for peer in (one, two):  # at once: both hear of the same topic
                peer.send(MetadataRequest(named("b", "c/c", "b"), True), 12)
            for peer in (one, two):
                made, refused = (await peer.receive()).topics
                assert (made.name, made.error_code, len(made.partitions)) == ("b", 0, 3)
                assert refused.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
            old = await one.ask(MetadataRequest(named("d")), 1)  # had no choice yet
            assert old.topics[0].error_code is ErrorCode.NONE
            assert (await one.produce("b", b"v")).error_code is ErrorCode.NONE

    asyncio.run(story())


def test_nothing_is_made_where_the_broker_forbids_it(start: Start) -> None:
    async def story() -> None:
        async with start(auto_create_topics_enable="false") as running:
            peer = await running.connect()
            answer = await peer.ask(MetadataRequest(named("a"), True), 12)
            assert answer.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown = (MetadataRequestTopic(UUID(int=5), None),)
            answer = await peer.ask(MetadataRequest(unknown, True), 12)
            assert answer.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(story())


def test_an_internal_topic_is_made_as_the_broker_makes_it(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            (topic,) = (
                await peer.ask(MetadataRequest(named("__consumer_offsets"), True), 12)
            ).topics
            assert (topic.is_internal, len(topic.partitions)) == (True, 4)
            configs = running.broker.image.topics["__consumer_offsets"].configs
            assert configs["cleanup.policy"] == "compact"

    asyncio.run(story())


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_in_every_version(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            request = CreateTopicsRequest(
                (CreatableTopic("a", 2, 1, (), ()), CreatableTopic("b", 0, 1, (), ()))
            )
            made, refused = (await peer.ask(request, version)).topics
            assert (made.error_code, refused.error_code) == (0, ErrorCode.INVALID_PARTITIONS)
            if version >= 5:
                sources = {c.name: c.config_source for c in made.configs}
                assert sources["retention.ms"] == 5
                assert made.num_partitions == 2
            if version >= 7:
                assert made.topic_id == running.broker.image.topics["a"].topic_id

    asyncio.run(story())


@pytest.mark.parametrize("version", range(7))
def test_topics_are_deleted_in_every_version(start: Start, version: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a")
            await peer.produce("a", b"old")
            request = DeleteTopicsRequest((), ("a", "b"))
            if version >= 6:
                by_id = DeleteTopicState(None, running.broker.image.topics["a"].topic_id)
                request = DeleteTopicsRequest((by_id, DeleteTopicState("b")))
            gone, unknown = (await peer.ask(request, version)).responses
            codes = (gone.error_code, unknown.error_code)
            assert codes == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answer = await peer.produce("a", b"late")
            assert answer.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await peer.create("a")
            assert await peer.values("a") == []

    asyncio.run(story())


def test_settings_are_described_with_their_sources(start: Start) -> None:
    async def story() -> None:
        async with start(log_segment_bytes="5000") as running:
            peer = await running.connect()
            await peer.create("a", retention_ms="1000")

            async def describe(kind: int, name: str, keys: Any = None) -> Any:
                resource = DescribeConfigsResource(kind, name, keys)
                (result,) = (
                    await peer.ask(DescribeConfigsRequest((resource,), True, True))
                ).results
                return result

            topic = {c.name: c for c in (await describe(2, "a")).configs}
            assert (topic["retention.ms"].value, topic["retention.ms"].config_source) == ("1000", 1)
            assert [s.value for s in topic["retention.ms"].synonyms] == ["1000"]
            assert (topic["segment.bytes"].value, topic["segment.bytes"].config_source) == (
                "5000",
                4,
            )
            assert topic["cleanup.policy"].config_source == 5
            assert topic["cleanup.policy"].documentation
            only = await describe(2, "a", ("cleanup.policy", "nonsense"))
            assert [c.name for c in only.configs] == ["cleanup.policy"]
            broker = {c.name: c.value for c in (await describe(4, "1")).configs}
            assert broker["log.segment.bytes"] == "5000"
            assert (await describe(4, "")).configs == ()
            codes = [(await describe(*each)).error_code for each in ((2, "b"), (4, "9"), (8, "x"))]
            assert codes == [
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_REQUEST,
                ErrorCode.INVALID_REQUEST,
            ]

    asyncio.run(story())


def test_the_cluster_is_described(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            answer = await peer.ask(DescribeClusterRequest(True))
            assert [(b.host, b.port) for b in answer.brokers] == [tuple(running.node.address)]
            assert answer.cluster_id == running.broker.image.cluster_id
            assert answer.cluster_authorized_operations > 0
            controllers = await peer.ask(DescribeClusterRequest(False, 2), 1)
            assert controllers.error_code is ErrorCode.MISMATCHED_ENDPOINT_TYPE

    asyncio.run(story())


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_partitions_are_described_page_by_page(start: Start, limit: int) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a", 3)
            await peer.create("b", 2)
            wanted = tuple(DescribeTopicPartitionsTopic(name) for name in ("b", "no", "a"))
            found: list[tuple[str, int]] = []
            codes: dict[str, ErrorCode] = {}
            cursor: Cursor | None = None
            for _ in range(10):
                request = DescribeTopicPartitionsRequest(wanted, limit, cursor)
                page = await peer.ask(request)
                found += [(t.name, p.partition_index) for t in page.topics for p in t.partitions]
                codes |= {t.name: t.error_code for t in page.topics}
                lists = [p.eligible_leader_replicas for t in page.topics for p in t.partitions]
                assert None not in lists
                assert sum(len(t.partitions) for t in page.topics) <= limit
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
            assert codes == {"a": 0, "b": 0, "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    asyncio.run(story())


def test_a_page_may_begin_at_a_topic_that_was_deleted_meanwhile(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("b", 3)
            page = await peer.ask(DescribeTopicPartitionsRequest((), 10, Cursor("a", 2)))
            found = [(t.name, len(t.partitions)) for t in page.topics if t.name == "b"]
            assert found == [("b", 3)]
            wanted = tuple(map(DescribeTopicPartitionsTopic, "ab"))
            page = await peer.ask(DescribeTopicPartitionsRequest(wanted, 10, Cursor("a", 2)))
            assert [(t.name, len(t.partitions)) for t in page.topics] == [("a", 0), ("b", 3)]

    asyncio.run(story())


# ---- restarts ----------------------------------------------------------------------------------


def test_a_restart_keeps_topics_ids_and_records(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a", 2, retention_ms="123456789")
            await peer.produce("a", b"1", b"2")
            before = running.broker.image
        async with start() as running:
            peer = await running.connect()
            assert running.broker.image.topics == before.topics
            assert running.broker.image.cluster_id == before.cluster_id
            assert await peer.values("a") == [b"1", b"2"]
            assert (await peer.produce("a", b"3")).base_offset == 2
            assert running.broker.logs.was_clean_shutdown

    asyncio.run(story())


def test_producer_ids_are_not_given_out_again(start: Start) -> None:
    async def story() -> None:
        from kafkalite.core.protocol.transactions import InitProducerIdRequest

        seen: list[int] = []
        for _ in range(3):
            async with start() as running:
                peer = await running.connect()
                asked = [await peer.ask(InitProducerIdRequest(None, 0)) for _ in range(2)]
                seen += [answer.producer_id for answer in asked]
        assert len(set(seen)) == len(seen)

    asyncio.run(story())


def test_a_second_broker_in_the_same_directory_is_refused(start: Start, tmp_path: Path) -> None:
    async def story() -> None:
        async with start():
            with pytest.raises(DataDirectoryInUse, match=r"data: in use by process \d+"):
                async with start():
                    pass
        async with start():
            pass

    asyncio.run(story())


def test_a_log_that_cannot_be_opened_takes_one_partition_offline(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a")
            await peer.create("b")
            await peer.produce("a", b"1")
        spoil(tmp_path / "data" / "a-0" / "leader-epoch-checkpoint")
        async with start() as running:
            peer = await running.connect()
            answer = await peer.produce("a", b"2")
            assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "leader-epoch-checkpoint" in (answer.error_message or "")
            assert not (await peer.produce("b", b"2")).error_code
            node = running.node.broker.node_id
            leaders = {"a": (ErrorCode.LEADER_NOT_AVAILABLE, -1), "b": (ErrorCode.NONE, node)}
            away = {"a": (node,), "b": ()}
            asked = tuple(map(DescribeTopicPartitionsTopic, "ab"))
            for request in (MetadataRequest(None), DescribeTopicPartitionsRequest(asked)):
                if isinstance(request, DescribeTopicPartitionsRequest):
                    leaders["a"] = (ErrorCode.NONE, -1)  # no error there, as in Kafka
                told = (await peer.ask(request)).topics
                led = {t.name: t.partitions[0] for t in told}
                assert {n: (p.error_code, p.leader_id) for n, p in led.items()} == leaders
                assert {n: p.offline_replicas for n, p in led.items()} == away
                assert {p.replica_nodes for p in led.values()} == {(node,)}

    asyncio.run(story())
    assert "a-0 is offline: a-0: cannot be opened" in caplog.text


def test_a_start_that_fails_is_not_taken_for_a_crash(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("a")
        with pytest.raises(ConfigError):
            async with start(advertised_listeners="nonsense"):
                pass
        with pytest.raises(ConfigError):
            async with start(node_id="77"):
                pass
        async with start() as running:
            assert running.broker.logs.was_clean_shutdown

    asyncio.run(story())


@pytest.mark.parametrize("has_records", [True, False])
def test_a_journal_that_is_missing_is_not_taken_for_an_empty_cluster(
    start: Start, tmp_path: Path, has_records: bool
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a")
            if has_records:
                await peer.produce("a", b"v")
        (tmp_path / "data" / JOURNAL).unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match=JOURNAL):
                async with start():
                    pass
        assert (tmp_path / "data" / "a-0").is_dir() == has_records

    asyncio.run(story())


def test_another_brokers_directory_is_refused(start: Start) -> None:
    async def story() -> None:
        async with start(node_id="3"):
            pass
        with pytest.raises(ConfigError, match=r"node\.id is 3"):
            async with start(node_id="4"):
                pass
        async with start() as running:  # the directory knows
            assert running.broker.node_id == 3

    asyncio.run(story())


def test_files_of_a_topic_that_is_gone_are_removed(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a")
            await peer.create("b")
            await peer.produce("a", b"v")
        shutil.copytree(tmp_path / "data" / "a-0", tmp_path / "data" / "gone-0")
        with caplog.at_level(logging.WARNING):
            async with start() as running:
                assert not (tmp_path / "data" / "gone-0").exists()
        assert "gone-0 has no replica here" in caplog.text

    asyncio.run(story())


def test_every_route_has_messages_for_its_versions() -> None:
    for route in ROUTES.values():
        first, last = API[route.key].versions
        assert first <= route.versions[0] <= route.versions[1] <= last


def test_a_topics_id_is_refused_before_v12_and_counts_from_then_on(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            for version in (10, 11):
                for wanted in (
                    MetadataRequestTopic(UUID(int=7), "t"),
                    MetadataRequestTopic(name=None),
                ):
                    answer = await peer.ask(MetadataRequest(topics=(wanted,)), version)
                    assert answer.brokers == ()
                    assert [t.error_code for t in answer.topics] == [ErrorCode.INVALID_REQUEST]
            other = MetadataRequestTopic(UUID(int=7), "t")
            (told,) = (await peer.ask(MetadataRequest(topics=(other,)), 12)).topics
            assert (told.error_code, told.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
            new = MetadataRequestTopic(UUID(int=7), "new")
            await peer.ask(MetadataRequest(topics=(new,), allow_auto_topic_creation=True), 12)
            assert set(running.broker.image.topics) == {"t"}

    asyncio.run(story())


@pytest.mark.parametrize("cursor", [Cursor("t", -1), Cursor("u", 0), Cursor("s", 0)])
def test_a_cursor_that_no_answer_gave_is_refused(start: Start, cursor: Cursor) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            wanted = (DescribeTopicPartitionsTopic("t"),)
            answer = await peer.ask(DescribeTopicPartitionsRequest(wanted, 10, cursor))
            assert [(t.name, t.error_code) for t in answer.topics] == [
                ("t", ErrorCode.INVALID_REQUEST)
            ]

    asyncio.run(story())


def test_what_may_be_done_is_told_of_topics_that_are_not_there(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            wanted = named("no", "not/a/name")
            asking = MetadataRequest(wanted, False, include_topic_authorized_operations=True)
            told = (await peer.ask(asking)).topics
            assert [t.topic_authorized_operations for t in told] == [3576, 3576]
            silent = (await peer.ask(MetadataRequest(wanted, False))).topics
            assert {t.topic_authorized_operations for t in silent} == {-(2**31)}

    asyncio.run(story())


def test_others_get_their_turn_while_the_logs_of_a_large_topic_are_made(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            held: set[int] = set()

            async def watch() -> None:
                while len(held) < 10:
                    held.add(sum(map(len, running.broker.topics_held())))
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            await (await running.connect()).create("t", 200)
            await asyncio.wait_for(watching, 30)
            assert len(held - {0, 200}) >= 8

    asyncio.run(story())
