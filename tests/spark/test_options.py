"""The source's options: the official names, and a clear word on wrong ones."""

from __future__ import annotations

import pytest

from kafkalite.columnar.ranges import check_no_loss
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, StorageError
from kafkalite.spark.options import (
    COLUMNS,
    Times,
    check_partitions,
    format_offsets,
    parse_offsets,
    parse_options,
)

GOOD = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}


def test_defaults_are_those_of_the_official_connector() -> None:
    batch, stream = parse_options(GOOD, streaming=False), parse_options(GOOD, streaming=True)
    assert batch.topics == ("orders",)
    assert (batch.starting, batch.ending) == ("earliest", "latest")
    assert stream.starting == "latest"
    assert batch.fail_on_data_loss
    assert batch.columns == COLUMNS[:-1]


def test_earliest_and_latest_may_be_written_in_capitals() -> None:
    options = parse_options(
        GOOD | {"startingOffsets": "LATEST", "endingOffsets": " Latest "}, streaming=False
    )
    assert (options.starting, options.ending) == ("latest", "latest")


def test_offsets_survive_the_round_trip() -> None:
    offsets = {TopicPartition("a", 0): 23, TopicPartition("a", 1): -2, TopicPartition("b", 0): -1}
    assert parse_offsets(format_offsets(offsets)) == offsets


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"subscribe": ""}, "names no topic"),
        ({"assign": "{}"}, "one of the options 'subscribe', 'subscribePattern', 'assign'"),
        ({"startingOffsets": "soon"}, "startingOffsets: 'soon'"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "below -2"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe'"),
        ({"value.format": "xml"}, "value.format: 'xml'"),
        ({"value.schema": "{}"}, "value.schema is for value.format avro and json, value.format is"),
        ({"inferSchema": "true"}, "inferSchema is for value.format json, value.format is 'binary'"),
        (
            {"value.format": "json", "value.schema": "{}", "value.schema.id": "5"},
            r"value\.schema and value\.schema\.id both name the schema",
        ),
        ({"value.format": "json", "value.schema.version": "0"}, r"value\.schema\.version: '0'"),
        ({"value.format": "json", "inferSchema": "1"}, "inferSchema: '1' is neither true nor"),
        ({"columns": ","}, "columns names no column"),
        ({"columns": "value,headers"}, "'headers' is not one of .*: it needs includeHeaders=true"),
        ({"value.columns": "id"}, "value.columns is for value.format avro and json"),
        ({"value.format": "avro", "value.columns": " ,"}, "value.columns names no field"),
        ({"mode": "lenient"}, "mode: 'lenient' is not one of failfast, dropmalformed"),
        ({"subscribe": "a,b", "value.format": "avro"}, "reads one topic, not 2"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets: earliest"),
        ({"key.format": "windowed:soon"}, "key.format: 'windowed:soon'"),
        ({"key.format": "string:1h"}, "key.format: 'string:1h'"),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol is not a setting of this"),
        ({"kafka.auto.offset.reset": "none"}, "kafka.auto.offset.reset cannot be set: starting"),
        ({"kafka.isolation.level": "none"}, "kafka.isolation.level: 'none' is not one of"),
        ({"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers is missing"),
        ({"subscribePattern": "a.*"}, "give one of the options"),
        ({"startingTimestamp": "noon"}, "startingTimestamp: 'noon' is not a moment"),
        ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp: '5' is not"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "has a moment before 1970"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "Strategy: 'guess' is not one of"),
        ({"minPartitions": "none"}, "minPartitions: 'none' is not a positive number"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition: '0'"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon': it is for streams"),
        ({"pushFilters": "true"}, "pushFilters: 'true': Spark would give the filters of one query"),
        ({"pushFilters": "on"}, "pushFilters: 'on' is not one of false, once"),
        (
            {"endOffsets": "x"},
            r"endoffsets: 'x': format\('kafkalite'\) has no option of this name, perhaps endingOff",
        ),
        ({"fetchOffset.numRetries": "3"}, "fetchoffset.numretries: '3': requests are sent again"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_options(GOOD | wrong, streaming=False)


def test_the_broker_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        parse_options({"subscribe": "orders"}, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match="endingOffsets"):
        parse_options(GOOD | {"endingOffsets": "latest"}, streaming=True)


def test_offsets_are_of_the_partitions_that_are_read_and_of_all() -> None:
    zero, one, other = (TopicPartition(*tp) for tp in (("a", 0), ("a", 1), ("b", 0)))
    check_partitions("startingOffsets", {zero: 1, one: -1}, [zero, one])
    with pytest.raises(
        ConfigError, match="startingOffsets names b-0, which the query does not read"
    ):
        check_partitions("startingOffsets", {zero: 1, one: -1, other: 3}, [zero, one])
    with pytest.raises(ConfigError, match="startingOffsets does not name a-1"):
        check_partitions("startingOffsets", {zero: 1}, [zero, one])


def test_a_partition_that_has_gone_is_lost_data_unless_its_topic_is_not_read_any_more() -> None:
    one, two, other = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    check_no_loss({one: 5, other: 7}, {one: 5})
    with pytest.raises(StorageError, match="t-1 was read up to offset 3 and is not there any more"):
        check_no_loss({one: 5, two: 3}, {one: 9})


def test_a_log_that_has_become_shorter_is_named() -> None:
    tp = TopicPartition("a", 0)
    check_no_loss({tp: 5}, {tp: 5, TopicPartition("a", 1): 0})
    with pytest.raises(StorageError, match="a-0 ends at offset 4, before 5"):
        check_no_loss({tp: 5}, {tp: 4})


def test_a_stream_has_options_of_its_own() -> None:
    options = parse_options(
        GOOD | {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "2 min", "groupIdPrefix": "spark"},
        streaming=True,
    )
    assert options.min_offsets_per_trigger == 5
    assert options.max_trigger_delay_seconds == 120
    assert options.group_id == "spark-orders"
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=f"{name}: 'latest': a stream has no end"):
            parse_options(GOOD | {name: "latest"}, streaming=True)
    with pytest.raises(ConfigError, match="maxTriggerDelay: 'soon' is not a duration"):
        parse_options(GOOD | {"maxTriggerDelay": "soon"}, streaming=True)


def test_a_moment_for_all_comes_before_moments_and_these_before_offsets() -> None:
    given = GOOD | {"startingOffsets": "latest"}
    assert parse_options(given, streaming=False).starting == "latest"
    given |= {"startingOffsetsByTimestamp": '{"orders": {"0": 7}}'}
    of_each = Times(each={TopicPartition("orders", 0): 7})
    assert parse_options(given, streaming=False).starting == of_each
    given |= {"startingTimestamp": "9"}
    options = parse_options(given, streaming=False)
    assert (options.starting_name, options.starting) == ("startingTimestamp", Times(9))


def test_settings_of_the_client_have_their_prefix() -> None:
    given = {"kafka.isolation.level": "read_uncommitted", "kafka.group.id": "lag"}
    options = parse_options(GOOD | given, streaming=False)
    assert not options.settings.read_committed
    assert options.group_id == "lag"
    pattern = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "a.*"}
    assert parse_options(pattern, streaming=False).pattern == "a.*"
    with pytest.raises(ConfigError, match=r"subscribePattern: '\(': "):
        parse_options(pattern | {"subscribePattern": "("}, streaming=False)


def test_fields_and_the_way_with_bad_records_are_options() -> None:
    given = {"value.format": "avro", "value.columns": "id, at,id", "mode": "DROPMALFORMED"}
    options = parse_options(GOOD | given, streaming=False)
    assert options.value_columns == ("id", "at")
    assert options.on_error == "skip"
