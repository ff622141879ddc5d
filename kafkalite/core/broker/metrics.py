"""The counters of one broker: plain numbers that an exporter can read.                      [P]

    topics[name] records and bytes appended, bytes fetched, of the first TOPICS_MAX topics
    api[key]     requests, error codes in answers, bytes both ways, and how long an answer took
                 from the request's turn on its connection to the write, waiting included
    the rest     connections and their ends, records and bytes appended, bytes fetched

Counters only ever grow and begin at 0 with the process; gauges come from the broker itself
(`Broker.gauges`). A histogram's counts are per bucket, not cumulative.

Never  reads a clock: callers measure durations. Never fails, and costs less than two microseconds a
       request.
Source KIP-188 (error codes by API), KAFKA-4480; apache/kafka `RequestMetrics`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final

from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fields import ERROR_CODE, Array, Struct, fields_of
from kafkalite.errors import ErrorCode

LATENCY_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip

NONE: Final = ErrorCode.NONE
TOPICS_MAX: Final = 2_000  # with counters of their own
OTHER_TOPICS: Final = "(others)"  # no topic can have this name

CountErrors = Callable[[Any, "Counter[ErrorCode]"], None]

_counters: Final[dict[type, CountErrors]] = {}  # made once for each class of responses


@dataclass(slots=True)
class Histogram:
    """Durations, in buckets: `counts[i]` of them were at most LATENCY_BOUNDS_S[i] seconds and more
    than the bound before; the last count is of all above the last bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """How many durations."""
        return sum(self.counts)


@dataclass(slots=True)
class ApiMetrics:
    """The requests of one API."""

    requests: int = 0
    request_bytes: int = 0  # of messages, without their headers
    response_bytes: int = 0  # of frames
    errors: Counter[ErrorCode] = field(default_factory=Counter)  # one answer may count several
    latency: Histogram = field(default_factory=Histogram)

    def answered(self, response: object, response_bytes: int, seconds: float) -> None:
        """Counts one answer: a message, or the errors in one where they were counted aside."""
        self.sent(response_bytes, seconds)
        if type(response) is Counter:
            self.errors.update(response)
            return
        count = _counters.get(type(response)) or count_errors_of(type(response))
        count(response, self.errors)

    def sent(self, response_bytes: int, seconds: float) -> None:
        """Counts one answer without an error."""
        self.response_bytes += response_bytes
        latency = self.latency
        latency.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        latency.sum_s += seconds


@dataclass(slots=True)
class TopicMetrics:
    """The traffic into and out of a topic."""

    records_in: int = 0
    bytes_in: int = 0  # of batches appended by producers
    bytes_out: int = 0  # of batches given to consumers


@dataclass(slots=True)
class BrokerMetrics:
    """All counters of one broker."""

    api: dict[ApiKey, ApiMetrics] = field(default_factory=dict)
    topics: dict[str, TopicMetrics] = field(default_factory=dict)  # TOPICS_MAX, and OTHER_TOPICS
    connections_accepted: int = 0
    connections_refused: int = 0  # one too many
    connections_idle: int = 0  # closed for being silent
    connections_failed: int = 0  # closed for what their peers sent, or for a fault of ours
    batches_in: int = 0
    records_in: int = 0
    bytes_in: int = 0  # of batches appended by producers
    bytes_out: int = 0  # of batches given to consumers
    loop_lag: Histogram | None = None  # of the event loop, where the process measures it

    def of(self, key: ApiKey) -> ApiMetrics:
        """The counters of one API."""
        found = self.api.get(key)
        if found is None:
            found = self.api[key] = ApiMetrics()
        return found

    def appended(self, topic: str, record_count: int, byte_count: int) -> None:
        """Counts a batch of a producer."""
        self.batches_in += 1
        self.records_in += record_count
        self.bytes_in += byte_count
        of_topic = self.topics.get(topic) or self.of_topic(topic)
        of_topic.records_in += record_count
        of_topic.bytes_in += byte_count

    def fetched(self, topic: str, byte_count: int) -> None:
        """Counts batches for a consumer."""
        self.bytes_out += byte_count
        of_topic = self.topics.get(topic) or self.of_topic(topic)
        of_topic.bytes_out += byte_count

    def of_topic(self, name: str) -> TopicMetrics:
        """The counters of one topic, or of all those together for which there is no room."""
        found = self.topics.get(name)
        if found is None:
            if len(self.topics) >= TOPICS_MAX:
                name = OTHER_TOPICS
            found = self.topics.setdefault(name, TopicMetrics())
        return found

    def forget_topic(self, name: str) -> None:
        """The topic is gone: there is room for another one."""
        self.topics.pop(name, None)


def errors_in(response: object) -> Counter[ErrorCode]:
    """The error codes, other than NONE, in a response."""
    errors: Counter[ErrorCode] = Counter()
    count_errors_of(type(response))(response, errors)
    return errors


def count_errors_of(cls: type) -> CountErrors:
    """A function that counts the error codes, other than NONE, in a response of class `cls`."""
    if cls not in _counters:
        _counters[cls] = _counter(cls)
    return _counters[cls]


def _counter(cls: type) -> CountErrors:
    codes, arrays, structs = _places(cls)
    if not codes and not arrays and not structs:
        return _count_nothing

    def count(response: Any, errors: Counter[ErrorCode]) -> None:
        for name in codes:
            code = getattr(response, name)
            if code is not NONE:
                errors[code] += 1
        for name, count_in in arrays:
            for each in getattr(response, name) or ():
                count_in(each, errors)
        for name, count_in in structs:
            if (part := getattr(response, name)) is not None:
                count_in(part, errors)

    return count


def _places(
    cls: type,
) -> tuple[list[str], list[tuple[str, CountErrors]], list[tuple[str, CountErrors]]]:
    """The paths to a class's error codes: fields, and arrays and structs with such fields."""
    codes: list[str] = []
    arrays: list[tuple[str, CountErrors]] = []
    structs: list[tuple[str, CountErrors]] = []
    if not is_dataclass(cls):  # bytes of a response that was encoded before
        return codes, arrays, structs
    for each in fields_of(cls):
        match each.element:
            case Array(Struct(inner)) if (count := count_errors_of(inner)) is not _count_nothing:
                arrays.append((each.name, count))
            case Struct(inner) if (count := count_errors_of(inner)) is not _count_nothing:
                structs.append((each.name, count))
            case element if element is ERROR_CODE:
                codes.append(each.name)
    return codes, arrays, structs


def _count_nothing(response: object, errors: Counter[ErrorCode]) -> None:
    """There are no error codes in it."""
