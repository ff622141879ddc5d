"""The source's options: the official names, and a clear word on wrong ones."""

from __future__ import annotations

import pytest

from kafkalite.columnar.ranges import check_no_loss
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, StorageError
from kafkalite.spark.options import check_partitions, format_offsets, parse_offsets, parse_options

GOOD = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}


def test_defaults_are_those_of_the_official_connector() -> None:
    batch, stream = parse_options(GOOD, streaming=False), parse_options(GOOD, streaming=True)
    assert batch.topics == ("orders",)
    assert (batch.starting_offsets, batch.ending_offsets) == ("earliest", "latest")
    assert stream.starting_offsets == "latest"
    assert batch.fail_on_data_loss
    assert not batch.include_headers


def test_earliest_and_latest_may_be_written_in_capitals() -> None:
    options = parse_options(
        GOOD | {"startingOffsets": "LATEST", "endingOffsets": " Latest "}, streaming=False
    )
    assert (options.starting_offsets, options.ending_offsets) == ("latest", "latest")


def test_offsets_survive_the_round_trip() -> None:
    offsets = {TopicPartition("a", 0): 23, TopicPartition("a", 1): -2, TopicPartition("b", 0): -1}
    assert parse_offsets(format_offsets(offsets)) == offsets


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"subscribe": ""}, "names no topic"),
        ({"assign": "{}"}, "one of the options 'subscribe' and 'assign'"),
        ({"startingOffsets": "soon"}, "startingOffsets: 'soon'"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "below -2"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe'"),
        ({"value.format": "xml"}, "value.format: 'xml'"),
        ({"value.format": "json"}, "value.schema is for value.format json, which needs one"),
        ({"value.schema": "{}"}, "value.schema is for value.format json"),
        ({"subscribe": "a,b", "value.format": "avro"}, "reads one topic, not 2"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets: earliest"),
        ({"key.format": "windowed:soon"}, "key.format: 'windowed:soon'"),
        ({"key.format": "string:1h"}, "key.format: 'string:1h'"),
        ({"kafka.security.protocol": "SSL"}, "'kafka.security.protocol' is not one of"),
        ({"subscribeTo": "x"}, "'subscribeto' is not one of"),
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
