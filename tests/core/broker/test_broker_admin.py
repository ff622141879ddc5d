"""What operators change over the wire: partitions, records, settings; and what a restart keeps."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.config.settings import parse_properties, split_known
from kafkalite.core.log import checkpoints
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafkalite.core.protocol.groups import OffsetDeleteRequest
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkalite.errors import ErrorCode
from kafkalite.node import start_node

Start = Any
TOPIC, BROKER, LOGGERS = 2, 4, 8


async def grow(
    peer: Any, *topics: CreatePartitionsTopic, only: bool = False
) -> list[tuple[Any, ...]]:
    answer = await peer.ask(CreatePartitionsRequest(topics, 1_000, only))
    return [(r.name, r.error_code.name, r.error_message) for r in answer.results]


async def delete_records(peer: Any, topic: str, *offsets: int) -> list[tuple[int, str]]:
    partitions = tuple(DeleteRecordsPartition(i, offset) for i, offset in enumerate(offsets))
    answer = await peer.ask(DeleteRecordsRequest((DeleteRecordsTopic(topic, partitions),), 1_000))
    return [
        (r.low_watermark, r.error_code.name)
        for told in answer.topics
        for r in sorted(told.partitions, key=lambda r: r.partition_index)
    ]


async def alter(
    peer: Any, kind: int, name: str, *changes: tuple[str, int, str | None], only: bool = False
) -> tuple[str, str | None]:
    configs = tuple(IncrementalAlterableConfig(*change) for change in changes)
    resource = IncrementalAlterConfigsResource(kind, name, configs)
    (told,) = (await peer.ask(IncrementalAlterConfigsRequest((resource,), only))).responses
    assert (told.resource_type, told.resource_name) == (kind, name)
    return told.error_code.name, told.error_message


async def describe(peer: Any, kind: int, name: str, *keys: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(kind, name, keys or None)
    answer = await peer.ask(DescribeConfigsRequest((resource,), include_synonyms=True))
    (told,) = answer.results
    assert not told.error_code, told
    return {config.name: config for config in told.configs}


def values(configs: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {name: (config.value, config.config_source) for name, config in configs.items()}


# ---- partitions ----------------------------------------------------------------------------------


def test_new_partitions_are_served_at_once_and_after_a_restart(start: Start) -> None:
    async def count(peer: Any) -> int:
        request = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
        return len((await peer.ask(request)).topics[0].partitions)

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.produce("t", b"kept")
            before = running.broker.image.topics["t"]
            assigned = (CreatePartitionsAssignment((1,)),)
            assert await grow(peer, CreatePartitionsTopic("t", 4, None)) == [("t", "NONE", None)]
            assert await grow(peer, CreatePartitionsTopic("t", 5, assigned)) == [
                ("t", "NONE", None)
            ]
            assert await count(peer) == 5
            assert running.broker.image.topics["t"].topic_id == before.topic_id
            assert running.broker.partition("t", 4).log.log_end_offset == 0
            assert await peer.values("t") == [b"kept"]
        async with start() as running:
            assert await count(await running.connect()) == 5
            assert running.broker.partition("t", 4).log.log_end_offset == 0

    asyncio.run(story())


GROWN_WRONG = [
    (
        CreatePartitionsTopic("t", 2, None),
        "INVALID_PARTITIONS",
        "Topic already has 2 partition(s).",
    ),
    (
        CreatePartitionsTopic("t", 1, None),
        "INVALID_PARTITIONS",
        "The topic t currently has 2 partition(s); 1 would not be an increase.",
    ),
    (
        CreatePartitionsTopic("t", 10_001, None),
        "INVALID_PARTITIONS",
        "Number of partitions is 10001, at most 10000 are allowed.",
    ),
    (CreatePartitionsTopic("no", 1, None), "UNKNOWN_TOPIC_OR_PARTITION", None),
    (
        CreatePartitionsTopic("t", 4, (CreatePartitionsAssignment((1,)),)),
        "INVALID_REPLICA_ASSIGNMENT",
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    ),
    (
        CreatePartitionsTopic("t", 3, (CreatePartitionsAssignment((9,)),)),
        "INVALID_REPLICA_ASSIGNMENT",
        "The manual partition assignment includes broker 9, but no such broker is registered.",
    ),
    (
        CreatePartitionsTopic("t", 3, (CreatePartitionsAssignment(()),)),
        "INVALID_REPLICA_ASSIGNMENT",
        "The manual partition assignment includes an empty replica list.",
    ),
]


def test_partitions_that_cannot_be_made_are_refused_beside_others(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            for n, (wanted, code, words) in enumerate(GROWN_WRONG):
                good = f"good{n}"
                await peer.create(good)
                assert await grow(peer, wanted, CreatePartitionsTopic(good, 2, None)) == [
                    (wanted.name, code, words),
                    (good, "NONE", None),
                ]
            twice = [CreatePartitionsTopic("t", n, None) for n in (3, 4)]
            assert await grow(peer, *twice) == [("t", "INVALID_REQUEST", "Duplicate topic name.")]
            only = await grow(peer, CreatePartitionsTopic("t", 3, None), only=True)
            assert only == [("t", "NONE", None)]
            assert len(running.broker.image.topics["t"].partitions) == 2

    asyncio.run(story())


# ---- records -------------------------------------------------------------------------------------


def test_deleted_records_stay_deleted_when_the_power_goes(start: Start, tmp_path: Path) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", *(b"%d" % n for n in range(10)))
            assert await delete_records(peer, "t", 3) == [(3, "NONE")]
            assert await delete_records(peer, "t", 2) == [(3, "NONE")]  # they were gone before
            assert await peer.values("t", 3) == [b"%d" % n for n in range(3, 10)]
            with pytest.raises(AssertionError, match="OFFSET_OUT_OF_RANGE"):
                await peer.values("t", 2)
            data = tmp_path / "data"
            checkpoint = (data / checkpoints.LOG_START_OFFSETS).read_text()
            assert checkpoint == "0\n1\nt 0 3\n"
            shutil.copytree(data, tmp_path / "as it was", ignore=lambda *_: [".lock"])
        shutil.rmtree(data)
        (tmp_path / "as it was").rename(data)
        async with start() as running:
            log = running.broker.partition("t", 0).log
            assert (log.log_start_offset, log.log_end_offset) == (3, 10)
            peer = await running.connect()
            assert await delete_records(peer, "t", -1) == [(10, "NONE")]
            assert (await peer.produce("t", b"next")).base_offset == 10

    asyncio.run(story())


def test_records_that_may_not_be_deleted(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.create("compacted", cleanup_policy="compact")
            await peer.create("both", cleanup_policy="compact,delete")
            await peer.produce("t", b"a", b"b")
            refused = (-1, "OFFSET_OUT_OF_RANGE")
            assert await delete_records(peer, "t", 3, 0) == [refused, (0, "NONE")]
            assert await delete_records(peer, "t", -2) == [refused]
            assert await delete_records(peer, "compacted", 0) == [(-1, "POLICY_VIOLATION")]
            assert await delete_records(peer, "both", 0) == [(0, "NONE")]
            unknown = (-1, "UNKNOWN_TOPIC_OR_PARTITION")
            assert await delete_records(peer, "t", 1, 0, 0) == [(1, "NONE"), (0, "NONE"), unknown]
            assert await delete_records(peer, "no", 0) == [unknown]
            internal = await delete_records(peer, "__consumer_offsets", 0)
            assert internal == [(-1, "INVALID_TOPIC_EXCEPTION")]

    asyncio.run(story())


def test_a_log_start_that_cannot_be_written_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.produce("t", b"a", b"b")

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(checkpoints.OffsetCheckpoint, "_replace", full)
            told = await delete_records(peer, "t", 1, 7)
            assert told == [(-1, "KAFKA_STORAGE_ERROR"), (-1, "OFFSET_OUT_OF_RANGE")]
            monkeypatch.undo()

    asyncio.run(story())


# ---- settings ------------------------------------------------------------------------------------


def test_a_topics_settings_count_at_once_and_after_a_restart(start: Start) -> None:
    async def too_large(peer: Any) -> bool:
        answer = await peer.produce("t", b"x" * 500)
        return bool(answer.error_code is ErrorCode.MESSAGE_TOO_LARGE)

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", retention_ms="5000")
            assert not await too_large(peer)
            changes = (("max.message.bytes", 0, "200"), ("retention.ms", 1, None))
            assert await alter(peer, TOPIC, "t", *changes, only=True) == ("NONE", None)
            assert not await too_large(peer)
            assert await alter(peer, TOPIC, "t", *changes) == ("NONE", None)
            assert await too_large(peer)
            told = await describe(peer, TOPIC, "t", "max.message.bytes", "retention.ms")
            assert values(told) == {
                "max.message.bytes": ("200", 1),
                "retention.ms": ("604800000", 5),
            }
        async with start() as running:
            peer = await running.connect()
            assert await too_large(peer)
            resource = AlterConfigsResource(TOPIC, "t", (AlterableConfig("segment.ms", "9"),))
            (answer,) = (await peer.ask(AlterConfigsRequest((resource,), False))).responses
            assert (answer.error_code, answer.resource_name) == (ErrorCode.NONE, "t")
            assert not await too_large(peer)  # what AlterConfigs does not name is as by default
            assert running.broker.image.topics["t"].configs == {"segment.ms": "9"}

    asyncio.run(story())


def test_a_brokers_settings_reach_its_topics_at_once_and_after_a_restart(start: Start) -> None:
    async def limits(running: Any) -> Sequence[int]:
        return [running.broker.partition(t, 0).log.config.max_message_bytes for t in ("a", "b")]

    async def story() -> None:
        async with start(message_max_bytes="1000") as running:
            peer = await running.connect()
            await peer.create("a")
            await peer.create("b", max_message_bytes="7")
            assert await limits(running) == [1000, 7]
            size = "message.max.bytes"
            assert await alter(peer, BROKER, "", (size, 0, "900")) == ("NONE", None)
            assert await limits(running) == [900, 7]
            assert await alter(peer, BROKER, "1", (size, 0, "800")) == ("NONE", None)
            assert await limits(running) == [800, 7]
        async with start(message_max_bytes="1000") as running:
            assert await limits(running) == [800, 7]
            peer = await running.connect()
            (told,) = (await describe(peer, BROKER, "1", size)).values()
            assert [(s.value, s.source) for s in told.synonyms] == [
                ("800", 2), ("900", 3), ("1000", 4), ("1048588", 5),
            ]  # fmt: skip
            assert values(await describe(peer, BROKER, "")) == {size: ("900", 3)}
            (told,) = (await describe(peer, TOPIC, "a", "max.message.bytes")).values()
            assert (told.value, told.config_source) == ("800", 2)
            assert await alter(peer, BROKER, "1", (size, 1, None)) == ("NONE", None)
            assert await alter(peer, BROKER, "", (size, 1, None)) == ("NONE", None)
            assert await limits(running) == [1000, 7]

    asyncio.run(story())


def test_connections_are_limited_while_the_broker_runs(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            assert await alter(peer, BROKER, "1", ("max.connections", 0, "1")) == ("NONE", None)
            assert await (await running.connect()).is_hung_up_on()
            assert await alter(peer, BROKER, "1", ("max.connections", 1, None)) == ("NONE", None)
            other = await running.connect()
            assert await describe(other, BROKER, "1", "max.connections")

    asyncio.run(story())


def test_an_address_may_have_a_limit_of_its_own(start: Start) -> None:
    limits = {"max_connections_per_ip": "0", "max_connections_per_ip_overrides": "127.0.0.1:1"}

    async def story() -> None:
        async with start(**limits) as running:
            peer = await running.connect()
            assert await describe(peer, BROKER, "1", "max.connections.per.ip")
            assert await (await running.connect()).is_hung_up_on()
            name = "max.connections.per.ip.overrides"
            more = await alter(peer, BROKER, "1", (name, 0, "127.0.0.1:2,::1:9"))
            assert more == ("NONE", None)
            assert await describe(await running.connect(), BROKER, "1", name)

    asyncio.run(story())


def test_a_setting_without_effect_is_taken_and_told_to_the_operator(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            assert await alter(peer, BROKER, "1", ("num.io.threads", 0, "9")) == ("NONE", None)
            told = await describe(peer, BROKER, "1", "num.io.threads")
            assert values(told) == {"num.io.threads": ("9", 2)}
            assert "num.io.threads is accepted and has no effect" in caplog.text

    asyncio.run(story())


def test_refusals_come_in_the_order_of_the_request(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            wanted = [
                (BROKER, "7", "message.max.bytes", "INVALID_REQUEST"),
                (TOPIC, "t", "retention.ms", "NONE"),
                (TOPIC, "no", "retention.ms", "UNKNOWN_TOPIC_OR_PARTITION"),
                (BROKER, "1", "log.dirs", "INVALID_REQUEST"),
                (TOPIC, "t!", "retention.ms", "INVALID_TOPIC_EXCEPTION"),
                (3, "t", "retention.ms", "INVALID_REQUEST"),
            ]
            resources = tuple(
                IncrementalAlterConfigsResource(
                    kind, name, (IncrementalAlterableConfig(key, 0, "5"),)
                )
                for kind, name, key, _ in wanted
            )
            answer = await peer.ask(IncrementalAlterConfigsRequest(resources, False))
            assert [
                (r.resource_type, r.resource_name, r.error_code.name) for r in answer.responses
            ] == [(kind, name, code) for kind, name, _, code in wanted]
            assert running.broker.image.topics["t"].configs == {"retention.ms": "5"}

    asyncio.run(story())


def test_settings_of_a_broker_that_its_own_file_contradicts_do_not_keep_it_from_starting(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    lag = "log.cleaner.max.compaction.lag.ms"

    async def story() -> None:
        async with start() as running:
            assert await alter(await running.connect(), BROKER, "", (lag, 0, "5")) == ("NONE", None)
        async with start(log_cleaner_min_compaction_lag_ms="10") as running:
            assert running.broker.config[lag] == (1 << 63) - 1
            assert "settings changed while a broker ran are left out" in caplog.text

    asyncio.run(story())


def test_a_topic_whose_settings_the_brokers_new_ones_contradict_is_told_of(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", min_compaction_lag_ms="10", retention_ms="7")
            lag = "log.cleaner.max.compaction.lag.ms"
            assert await alter(peer, BROKER, "", (lag, 0, "5")) == ("NONE", None)
            assert "t: its settings are left out" in caplog.text
            assert (await describe(peer, TOPIC, "t"))["max.compaction.lag.ms"].value == "5"
            assert not (await peer.produce("t", b"still served")).error_code

    asyncio.run(story())


# ---- what one node can say of leaders and disks --------------------------------------------------


def test_elections_and_reassignments_on_one_node(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            for version in range(3):
                request = ElectLeadersRequest(0, (ElectLeadersTopic("t", (0, 7)),), 1_000)
                (told,) = (await peer.ask(request, version)).replica_election_results
                assert [r.error_code.name for r in told.partition_result] == [
                    "ELECTION_NOT_NEEDED",
                    "UNKNOWN_TOPIC_OR_PARTITION",
                ]
            same = (ReassignableTopic("t", (ReassignablePartition(0, (1,)),)),)
            answer = await peer.ask(AlterPartitionReassignmentsRequest(1_000, same))
            assert answer.responses[0].partitions[0].error_code is ErrorCode.NONE
            answer = await peer.ask(ListPartitionReassignmentsRequest(1_000, None))
            assert (answer.error_code, answer.topics) == (ErrorCode.NONE, ())

    asyncio.run(story())


def test_the_data_directory_and_its_disk_are_described(start: Start, tmp_path: Path) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("a", 2)
            await peer.create("b")
            await peer.produce("a", b"x" * 100)
            size = running.broker.partition("a", 0).log.size_bytes
            assert size > 100
            for version in range(5):
                (told,) = (await peer.ask(DescribeLogDirsRequest(None), version)).results
                assert (told.error_code, told.log_dir) == (ErrorCode.NONE, str(tmp_path / "data"))
                sizes = {(t.name, p.partition_index): p.partition_size
                         for t in told.topics for p in t.partitions}  # fmt: skip
                assert sizes == {("a", 0): size, ("a", 1): 0, ("b", 0): 0}
            assert 0 < told.usable_bytes < told.total_bytes
            asked = (DescribableLogDirTopic("a", (1, 9)), DescribableLogDirTopic("no", (0,)))
            (told,) = (await peer.ask(DescribeLogDirsRequest(asked))).results
            assert [(t.name, len(t.partitions)) for t in told.topics] == [("a", 1)]
            (told,) = (await peer.ask(DescribeLogDirsRequest(()))).results
            assert told.topics == ()

    asyncio.run(story())


def test_a_disk_that_does_not_say_how_large_it_is_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()

            def broken(path: object) -> None:
                raise OSError(5, "Input/output error")

            monkeypatch.setattr("os.statvfs", broken)
            (told,) = (await peer.ask(DescribeLogDirsRequest(None))).results
            assert told.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            monkeypatch.undo()

    asyncio.run(story())


@pytest.mark.parametrize(("kind", "code"), [(2, 114), (7, 115)])
def test_only_brokers_have_endpoints(start: Start, kind: int, code: int) -> None:
    async def story() -> None:
        async with start() as running:
            answer = await (await running.connect()).ask(DescribeClusterRequest(False, kind))
            assert answer.error_code == code

    asyncio.run(story())


def test_offsets_of_a_group_without_a_name_cannot_be_deleted(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            answer = await (await running.connect()).ask(OffsetDeleteRequest("", ()))
            assert answer.error_code is ErrorCode.INVALID_GROUP_ID

    asyncio.run(story())


# ---- server.properties ---------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["3.9", "4"])
def test_a_broker_runs_under_a_server_properties_and_tells_what_it_made_of_it(
    release: str, tmp_path: Path, connect: Any
) -> None:
    file = Path(__file__).parent.parent / "golden" / f"server_{release}.properties"
    text = file.read_text().replace(":19092", ":0")  # what is listened on
    settings, _ = split_known(parse_properties(text))
    settings.pop("zookeeper.connect", None)  # where no ZooKeeper is here

    async def story() -> None:
        node = await start_node(tmp_path / "data", overrides=settings)
        try:
            peer = await connect(str(node.address))
            await peer.create("t", -1)
            assert len(node.broker.image.topics["t"].partitions) == 3
            node_id = "0" if release == "3.9" else "4"
            told = values(
                await describe(peer, BROKER, node_id, "log.dirs", "node.id", "num.io.threads")
            )
            assert told == {
                "log.dirs": (str(tmp_path / "data"), 4),
                "node.id": (node_id, 4),
                "num.io.threads": ("8", 4),
            }
            (advertised,) = (await describe(peer, BROKER, node_id, "advertised.listeners")).values()
            assert advertised.value == f"PLAINTEXT://{node.address}"
        finally:
            await node.close()

    asyncio.run(story())


# ---- loggers -------------------------------------------------------------------------------------


def test_levels_of_loggers_are_told_and_changed_until_the_process_ends(start: Start) -> None:
    name = "kafkalite.test.of.levels"
    logger = logging.getLogger(name)

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            told = await describe(peer, LOGGERS, "1", "root", name)
            root = told["root"]
            assert (root.config_source, root.read_only, root.synonyms) == (6, False, ())
            assert told[name].value == root.value == "WARN"  # inherited
            assert "kafkalite.core.broker.broker" in await describe(peer, LOGGERS, "1")
            done = ("NONE", None)
            assert await alter(peer, LOGGERS, "1", (name, 0, "DEBUG"), only=True) == done
            assert not logger.isEnabledFor(logging.DEBUG)
            assert await alter(peer, LOGGERS, "1", (name, 0, "DEBUG")) == done
            assert logger.isEnabledFor(logging.DEBUG)
            assert (await describe(peer, LOGGERS, "1", name))[name].value == "DEBUG"
            assert await alter(peer, LOGGERS, "1", (name, 1, None)) == done
            assert not logger.isEnabledFor(logging.DEBUG)
            for change, code, words in (
                (("no.such", 0, "INFO"), "INVALID_CONFIG", "Logger no.such does not exist!"),
                ((name, 0, "LOUD"), "INVALID_CONFIG", "LOUD as it is not a supported log level."),
                (("root", 1, None), "INVALID_REQUEST", "Removing the log level of the root logger"),
                ((name, 2, "INFO"), "INVALID_REQUEST", "APPEND operation is not allowed"),
            ):
                both = ((name, 0, "ERROR"), change) if change[0] != name else (change,)
                told_code, told_words = await alter(peer, LOGGERS, "1", *both)
                assert told_code == code
                assert words in (told_words or "")
                assert logger.level == logging.NOTSET, "all or none"
            refused = await alter(peer, LOGGERS, "7", (name, 0, "INFO"))
            assert refused == (
                "INVALID_REQUEST",
                "Unexpected broker id, expected 1, but received 7",
            )
            assert "no.such" not in logging.root.manager.loggerDict

    asyncio.run(story())


def test_levels_are_not_replaced_as_a_whole(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            resource = AlterConfigsResource(LOGGERS, "1", (AlterableConfig("root", "INFO"),))
            (told,) = (await peer.ask(AlterConfigsRequest((resource,), False))).responses
            assert (told.error_code, told.error_message) == (
                ErrorCode.INVALID_REQUEST,
                "Unknown resource type 8",
            )

    asyncio.run(story())
