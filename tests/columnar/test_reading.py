"""Offset ranges read from a broker: every record once, in parts of a bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa
import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.admin.configs import ConfigResource, ResourceType
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.columnar import rows as bounds
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.rows import Rows
from kafkalite.columnar.settings import ReadSettings, settings_of
from kafkalite.core.protocol.record_codec import NATIVE
from kafkalite.core.protocol.records import TimestampType
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ConfigError, StorageError

Fill = Callable[..., None]


@pytest.fixture
def fill(bootstrap: str) -> Fill:
    """Makes a topic of one partition with numbered records, in batches of at most so many."""

    def go(topic: str, count: int, batch: int = 1_000, **configs: str) -> None:
        async def send() -> None:
            async with Admin(bootstrap) as admin:
                await admin.create_topics([NewTopic(topic, 1, configs=configs)])
            async with Producer(bootstrap) as producer:
                for start in range(0, count, batch):
                    numbers = range(start, min(count, start + batch))
                    texts = [b"%d" % i for i in numbers]
                    await producer.send_columns(topic, Columns(texts, texts, list(numbers)), 0)
                    await producer.flush()

        asyncio.run(send())

    return go


def offsets(parts: list[Rows]) -> list[int]:
    return [offset for rows in parts for offset in rows.offsets]


@pytest.mark.parametrize("batch", [3, 700])
def test_a_range_begins_and_ends_within_batches(bootstrap: str, fill: Fill, batch: int) -> None:
    topic = f"range-{batch}"
    fill(topic, 2_000, batch)
    settings = ReadSettings(bootstrap, max_partition_fetch_bytes=4_096)  # many answers
    parts = list(read_range(settings, OffsetRange(topic, 0, 5, 1_995)))
    assert offsets(parts) == list(range(5, 1_995))
    table = pa.Table.from_batches([rows.to_arrow() for rows in parts])
    assert table.column("value").to_pylist() == [b"%d" % i for i in range(5, 1_995)]
    assert table.schema.names == ["key", "value", "timestamp", "offset", "headers"]


def test_parts_are_bounded_in_records_and_in_bytes(
    bootstrap: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("range-bounded", 3_000)
    wanted = OffsetRange("range-bounded", 0, 0, 3_000)
    monkeypatch.setattr(bounds, "ROWS_MAX", 256)
    assert max(map(len, read_range(ReadSettings(bootstrap), wanted))) <= 256
    monkeypatch.setattr(bounds, "BYTES_MAX", 100)
    parts = list(read_range(ReadSettings(bootstrap), wanted))
    assert max(bounds.payload_bytes(rows.columns) for rows in parts) <= 100
    assert offsets(parts) == list(range(3_000))


@pytest.mark.parametrize("batch", [1_000, 128, 16])
def test_the_columns_are_spans_of_what_was_fetched(bootstrap: str, fill: Fill, batch: int) -> None:
    """No object a record: 16 KB and more of a producer's batch stay what native code made."""
    topic = f"range-forms-{batch}"
    fill(topic, 1_000, batch)
    (rows,) = read_range(ReadSettings(bootstrap), OffsetRange(topic, 0, 0, 992))
    assert type(rows.columns.values).__name__ == ("Spans" if NATIVE else "list")
    assert rows.to_arrow().column("value").to_pylist() == [b"%d" % i for i in range(992)]
    assert isinstance(rows.offsets, range)


def test_the_type_of_timestamps_is_that_of_each_batch(bootstrap: str, fill: Fill) -> None:
    fill("range-stamps", 10)
    settings, wanted = ReadSettings(bootstrap), OffsetRange("range-stamps", 0, 0, 20)

    async def go_on() -> None:
        async with Admin(bootstrap) as admin:
            stamps = {"message.timestamp.type": "LogAppendTime"}
            await admin.alter_configs(ConfigResource(ResourceType.TOPIC, "range-stamps"), stamps)
        async with Producer(bootstrap) as producer:
            texts = [b"later"] * 10
            await producer.send_columns("range-stamps", Columns(texts, texts, [1] * 10), 0)
            await producer.flush()

    asyncio.run(go_on())
    first, later = read_range(settings, wanted)
    assert first.timestamp_type is TimestampType.CREATE_TIME
    assert later.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert list(later.offsets) == list(range(10, 20))


def test_deleted_records_are_an_error_or_a_gap(bootstrap: str, fill: Fill) -> None:
    fill("range-gone", 50)
    tp = TopicPartition("range-gone", 0)

    async def delete() -> None:
        async with Admin(bootstrap) as admin:
            await admin.delete_records({tp: 20})

    asyncio.run(delete())
    wanted, settings = OffsetRange(*tp, 0, 50), ReadSettings(bootstrap)
    with pytest.raises(StorageError, match="the records from offset 0 are gone"):
        list(read_range(settings, wanted))
    rest = list(read_range(settings, wanted, fail_on_data_loss=False))
    assert offsets(rest) == list(range(20, 50))
    short = OffsetRange(*tp, 60, 90)  # of a log that was longer once
    assert list(read_range(settings, short, fail_on_data_loss=False)) == []


def test_aborted_records_stay_out_unless_uncommitted_ones_are_wanted(bootstrap: str) -> None:
    async def send() -> int:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic("range-aborted", 1)])
        async with TransactionalProducer(bootstrap, "range-aborts") as producer:
            for outcome in (producer.abort, producer.commit):
                producer.begin()
                await producer.send("range-aborted", b"v", partition=0)
                await producer.flush()
                await outcome()
        return 4  # two records, two markers

    end = asyncio.run(send())
    wanted = OffsetRange("range-aborted", 0, 0, end)
    assert offsets(list(read_range(ReadSettings(bootstrap), wanted))) == [2]
    dirty = ReadSettings(bootstrap, isolation_level="read_uncommitted")
    assert offsets(list(read_range(dirty, wanted))) == [0, 2]


def test_a_reader_that_is_left_early_closes_its_connections(bootstrap: str, fill: Fill) -> None:
    fill("range-left", 100)
    settings = ReadSettings(bootstrap, max_partition_fetch_bytes=256)
    reading = read_range(settings, OffsetRange("range-left", 0, 0, 100))
    next(reading)
    reading.close()  # a pending fetch or an open loop would warn, and warnings are errors here
    assert list(reading) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "bootstrap.servers is missing"),
        ({"auto.offset.reset": "latest"}, "startingOffsets says where to begin"),
        ({"isolation.level": "serializable"}, "isolation.level: 'serializable' is not one of"),
        ({"fetch.min.bytes": "many"}, "fetch.min.bytes: 'many' is not a number"),
        ({"check.crcs": "yes"}, "check.crcs: 'yes' is neither true nor false"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism is not a setting of this client"),
    ],
)
def test_a_setting_that_is_wrong_is_named(given: dict[str, str], complaint: str) -> None:
    servers = {"bootstrap.servers": "x"} if given else {}
    with pytest.raises(ConfigError, match=complaint):
        settings_of(servers | given)


def test_settings_have_the_names_of_kafka() -> None:
    given = {
        "bootstrap.servers": "a:1",
        "isolation.level": "read_uncommitted",
        "max.partition.fetch.bytes": "100",
        "check.crcs": "false",
        "security.protocol": "PLAINTEXT",
    }
    assert settings_of(given) == ReadSettings(
        "a:1", isolation_level="read_uncommitted", max_partition_fetch_bytes=100, check_crcs=False
    )
