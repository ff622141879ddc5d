"""A rate of replication: what passes, what waits, and which replicas it is about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.config.rates import FOLLOWER_RATE, LEADER_RATE, check_rates
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.replicas.throttling import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    Throttle,
    Throttles,
    is_throttled,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError

WINDOWS, WINDOW_MS = 11, 1_000


def test_a_burst_passes_and_is_paid_for() -> None:
    throttle = Throttle(WINDOWS, WINDOW_MS)
    throttle.rate = 1_000
    assert not throttle.is_exceeded(0)
    throttle.record(3_000, 0)
    assert throttle.is_exceeded(1)
    assert throttle.is_exceeded(2_999)
    assert not throttle.is_exceeded(3_000)


def test_without_a_rate_nothing_counts() -> None:
    throttle = Throttle(WINDOWS, WINDOW_MS)
    throttle.record(1 << 40, 0)
    assert not throttle.is_exceeded(0)
    throttle.rate = 1
    assert not throttle.is_exceeded(0)


@given(
    rate=st.integers(0, 1 << 20),
    chunks=st.lists(
        st.tuples(st.integers(1, 1 << 20), st.integers(0, 3_000)), min_size=1, max_size=200
    ),
)
def test_what_goes_when_it_may_keeps_to_the_rate(rate: int, chunks: list[tuple[int, int]]) -> None:
    """Over any stretch of windows no more than the rate and the last chunk; and what waits may go
    at the latest once all windows are over."""
    throttle = Throttle(WINDOWS, WINDOW_MS)
    throttle.rate = rate
    now_ms, sent = 0, list[tuple[int, int]]()
    for size, pause_ms in chunks:
        now_ms += pause_ms
        waited_ms = 0
        while throttle.is_exceeded(now_ms):
            now_ms += 100
            waited_ms += 100
            assert waited_ms <= WINDOWS * WINDOW_MS
        recent = [(at, count) for at, count in sent if at > now_ms - (WINDOWS - 1) * WINDOW_MS]
        span_ms = max(WINDOW_MS, now_ms - recent[0][0] + WINDOW_MS) if recent else WINDOW_MS
        assert sum(count for _, count in recent) * 1_000 <= rate * span_ms
        throttle.record(size, now_ms)
        sent.append((now_ms, size))


@pytest.mark.parametrize(
    ("text", "found"),
    [("", []), ("*", [(0, 1), (0, 2), (1, 1), (1, 2)]), ("0:1, 1:2", [(0, 1), (1, 2)])],
)
def test_replicas_are_named_by_partition_and_broker(
    text: str, found: list[tuple[int, int]]
) -> None:
    configs = {LEADER_REPLICAS: text}
    every = [(partition, node) for partition in (0, 1) for node in (1, 2)]
    assert [each for each in every if is_throttled(configs, LEADER_REPLICAS, *each)] == found
    assert not is_throttled(configs, FOLLOWER_REPLICAS, 0, 1)


def test_rates_are_those_of_the_broker_or_of_all() -> None:
    throttles = Throttles(1, WINDOWS, 1)
    own, of_all = {LEADER_RATE: "5"}, {LEADER_RATE: "6", FOLLOWER_RATE: "7"}
    throttles.configure(BrokerConfig.parse({}, dynamic=own, dynamic_default=of_all))
    assert (throttles.leader.rate, throttles.follower.rate) == (5, 7)
    where, topic = TopicPartition("t", 0), {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}
    assert throttles.gives(topic, where)
    assert not throttles.takes(topic, where), "that is broker 2's"
    throttles.configure(BrokerConfig.parse({}))
    assert (throttles.leader.rate, throttles.follower.rate) == (None, None)
    assert not throttles.gives(topic, where)


@pytest.mark.parametrize("value", ["x", "-1", "1.5"])
def test_a_rate_is_a_number_of_bytes(value: str) -> None:
    with pytest.raises(ConfigError, match=LEADER_RATE):
        check_rates({LEADER_RATE: value})
    check_rates({LEADER_RATE: "0", "other": value})
