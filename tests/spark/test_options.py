"""The source's options: the official names, and a clear word on wrong ones."""

from __future__ import annotations

import pytest

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.spark.options import format_offsets, parse_offsets, parse_options

GOOD = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}


def test_defaults_are_those_of_the_official_connector() -> None:
    batch, stream = parse_options(GOOD, streaming=False), parse_options(GOOD, streaming=True)
    assert batch.topics == ("orders",)
    assert (batch.starting_offsets, batch.ending_offsets) == ("earliest", "latest")
    assert stream.starting_offsets == "latest"
    assert batch.fail_on_data_loss
    assert not batch.include_headers


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
        ({"subscribe": "a,b", "value.format": "avro"}, "reads one topic, not 2"),
        ({"subscribeTo": "x"}, "'subscribeto' is not one of"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_options(GOOD | wrong, streaming=False)


def test_the_broker_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        parse_options({"subscribe": "orders"}, streaming=False)
