"""Counters: durations fall into their buckets, and every error of an answer is found."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.broker.metrics import (
    LATENCY_BOUNDS_S,
    BrokerMetrics,
    Histogram,
    count_errors_of,
)
from kafkalite.core.protocol.api_versions import ApiVersionsResponse
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kafkalite.core.protocol.fields import ERROR_CODE, Array, Struct, fields_of
from kafkalite.errors import ErrorCode


@given(st.lists(st.floats(0, 100)))
def test_every_duration_falls_into_one_bucket(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.observe(seconds)
    assert histogram.count == len(durations)
    assert histogram.sum_s == pytest.approx(sum(durations))
    edges = (-1.0, *LATENCY_BOUNDS_S, float("inf"))
    expected = [sum(a < d <= b for d in durations) for a, b in pairwise(edges)]
    assert histogram.counts == expected


def test_count_errors_of_partitions_and_of_the_whole_are_counted() -> None:
    partitions = (
        PartitionData(0),
        PartitionData(1, ErrorCode.OFFSET_OUT_OF_RANGE),
        PartitionData(2, ErrorCode.OFFSET_OUT_OF_RANGE),
    )
    topic = FetchableTopicResponse("t", partitions=partitions)
    response = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=(topic,))
    counters = BrokerMetrics().of(ApiKey.FETCH)
    counters.answered(response, 100, 0.2)
    counters.answered(ApiVersionsResponse(), 50, 0.3)
    counters.answered(b"encoded before", 14, 0.3)
    assert counters.errors == {
        ErrorCode.OFFSET_OUT_OF_RANGE: 2,
        ErrorCode.UNKNOWN_SERVER_ERROR: 1,
    }
    assert (counters.response_bytes, counters.latency.count) == (164, 3)


def with_errors(cls: type) -> tuple[Any, int]:
    """A value whose every error code is one, and how many there are."""
    values: dict[str, Any] = {}
    count = 0
    for each in fields_of(cls):
        inner, found = each.default, 0
        match each.element:
            case Array(Struct(part)):
                one, found = with_errors(part)
                inner, found = (one, one), 2 * found
            case Struct(part):
                inner, found = with_errors(part)
            case element if element is ERROR_CODE:
                inner, found = ErrorCode.INVALID_REQUEST, 1
        values[each.name] = inner
        count += found
    assert {f.name for f in dataclasses.fields(cls)} == set(values)
    return cls(**values), count


@pytest.mark.parametrize("key", list(API), ids=lambda key: key.name)
def test_no_response_hides_an_error(key: ApiKey) -> None:
    response, count = with_errors(API[key].response)
    errors: Counter[ErrorCode] = Counter()
    count_errors_of(type(response))(response, errors)
    assert errors.total() == count
