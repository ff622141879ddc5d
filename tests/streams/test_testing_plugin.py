"""The topics of the pytest plugin, on a real broker: what is put is read, and what is not there."""

from __future__ import annotations

import pytest

from kafkalite.errors import SerdeError
from kafkalite.serde import avro, json, string
from kafkalite.testing.pytest import MakeTopic, broker, driver, topic

pytestmark = pytest.mark.slow
__all__ = ["broker", "driver", "topic"]  # the fixtures of this module

SCHEMA = '{"type": "record", "name": "P", "fields": [{"name": "n", "type": "long"}]}'


def test_records_come_as_they_were_put_each_once(topic: MakeTopic) -> None:
    orders = topic("orders", key=string(), value=json(), partitions=3)
    orders.put({"n": 1}, key="a", timestamp=5, headers=[("trace", b"1")], partition=2)
    orders.put(None, key="b", timestamp=6, partition=2)
    first, second = orders.read(2)
    assert (first.key, first.value, first.timestamp) == ("a", {"n": 1}, 5)
    assert (first.headers, first.topic, first.partition) == ((("trace", b"1"),), "orders", 2)
    assert (second.key, second.value, second.offset) == ("b", None, 1)
    assert orders.read_all() == []
    orders.put({"n": 2}, key="c", partition=0)
    assert [record.value for record in orders.read_all()] == [{"n": 2}]
    assert str(orders) == "orders"


def test_records_that_do_not_come_are_told_with_those_that_did(topic: MakeTopic) -> None:
    orders = topic("orders")
    orders.put(b"here")
    with pytest.raises(AssertionError, match=r"orders: 1 of 2 records came in time: .*b'here'"):
        orders.read(2, within="500ms")
    assert [record.value for record in orders.read(1)] == [b"here"]


def test_schemas_are_in_the_log_and_a_topic_that_is_there_is_taken_as_it_is(
    topic: MakeTopic,
) -> None:
    written = topic(
        "payments", value=avro(schema=SCHEMA), partitions=2, configs={"retention.ms": -1}
    )
    written.put({"n": 7})
    assert topic("payments", value=avro()).read(1)[0].value == {"n": 7}
    with pytest.raises(SerdeError, match="payments"):
        written.put({"m": 7})
