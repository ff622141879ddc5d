"""A broker's metrics in Prometheus' text format; docs/operations.md explains each.          [IO]

    kafkalite_…   counters (`core.broker.metrics`), gauges, and the last look at topics and groups
    process_…     of this process, where the system has /proc

Owns   names, types and labels.
Never  keeps a number: they are handed in, or read when the page is made. The counters belong to the
       broker's thread, so those of one page may be of slightly different moments.
Fails  never.
Source prometheus/client_python, custom collectors.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kafkalite.core.broker.metrics import LATENCY_BOUNDS_S, ApiMetrics, BrokerMetrics, Histogram
from kafkalite.core.protocol import record_codec

if TYPE_CHECKING:
    from kafkalite.core.broker.survey import Survey

PAGE_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TOPIC_LOG_BYTES: Final = "kafkalite_topic_log_bytes"
GROUP_LAG: Final = "kafkalite_group_lag_records"
TOPIC_COUNTERS: Final = {
    "records_in": "Records appended by producers.",
    "bytes_in": "Bytes of batches appended by producers.",
    "bytes_out": "Bytes of batches given to consumers.",
}


@dataclass(frozen=True, slots=True)
class BrokerPage(Collector):
    """One page."""

    counters: BrokerMetrics
    gauges: Mapping[str, float]
    survey: Survey

    def text(self) -> bytes:
        """The page."""
        many = chain(_topics(self.counters), _surveyed(self.survey))
        return generate_latest(self) + "".join(many).encode()

    def collect(self) -> Iterator[Metric]:
        """The metrics with few series."""
        yield _build()
        yield from _totals(self.counters)
        yield from _apis({key.name: counted for key, counted in list(self.counters.api.items())})
        for name, value in self.gauges.items():
            words = name.replace("_", " ").capitalize()
            yield GaugeMetricFamily(f"kafkalite_{name}", f"{words}.", value)
        yield from _led(self.survey)
        yield _left_out(self.survey)
        yield from ProcessCollector(registry=None).collect()


def version() -> str:
    """This program's version; from a source tree that is not installed, none."""
    try:
        return metadata.version("kafkalite")
    except metadata.PackageNotFoundError:
        return "not installed"


def _build() -> Metric:
    build = GaugeMetricFamily(
        "kafkalite_build_info", "Which program this is.", labels=["version", "python", "codec"]
    )
    codec = "native" if record_codec.NATIVE else "python"
    build.add_metric([version(), platform.python_version(), codec], 1)
    return build


def _totals(counters: BrokerMetrics) -> Iterator[Metric]:
    connections = CounterMetricFamily(
        "kafkalite_connections", "Connections, by what became of them.", labels=["outcome"]
    )
    for outcome in ("accepted", "refused", "idle", "failed"):
        connections.add_metric([outcome], getattr(counters, f"connections_{outcome}"))
    yield connections
    for name, words in {"batches_in": "Batches appended by producers.", **TOPIC_COUNTERS}.items():
        yield CounterMetricFamily(f"kafkalite_{name}", words, getattr(counters, name))
    if counters.loop_lag is not None:
        lag = HistogramMetricFamily(
            "kafkalite_loop_lag_seconds", "How late the broker's event loop runs what is due."
        )
        lag.add_metric([], _buckets(counters.loop_lag), counters.loop_lag.sum_s)
        yield lag


def _apis(apis: Mapping[str, ApiMetrics]) -> Iterator[Metric]:
    """The counters of every API that was asked for."""
    for name, words in (
        ("requests", "Requests received."),
        ("request_bytes", "Bytes of requests, without their headers."),
        ("response_bytes", "Bytes of answers."),
    ):
        family = CounterMetricFamily(f"kafkalite_{name}", words, labels=["api"])
        for api, counted in apis.items():
            family.add_metric([api], getattr(counted, name))
        yield family
    errors = CounterMetricFamily(
        "kafkalite_errors", "Error codes in answers.", labels=["api", "error"]
    )
    latency = HistogramMetricFamily(
        "kafkalite_request_seconds", "From a request's turn to its answer.", labels=["api"]
    )
    for api, counted in apis.items():
        for code, count in list(counted.errors.items()):
            errors.add_metric([api, code.name], count)
        latency.add_metric([api], _buckets(counted.latency), counted.latency.sum_s)
    yield errors
    yield latency


def _led(survey: Survey) -> Iterator[Metric]:
    for name, words in (
        ("leader_partitions", "Partitions that this broker leads."),
        ("under_replicated_partitions", "Of these, partitions with replicas that are not in sync."),
        (
            "below_min_isr_partitions",
            "Of these, partitions with fewer in sync than acks=all needs.",
        ),
    ):
        yield GaugeMetricFamily(f"kafkalite_{name}", words, getattr(survey, name))


def _left_out(survey: Survey) -> Metric:
    left_out = GaugeMetricFamily(
        "kafkalite_series_left_out", "Series for which there is no room.", labels=["metric"]
    )
    left_out.add_metric([TOPIC_LOG_BYTES], survey.topics_left_out)
    left_out.add_metric([GROUP_LAG], survey.lags_left_out)
    return left_out


# ---- thousands of series: text at once, no object for each ---------------------------------------


def _topics(counters: BrokerMetrics) -> Iterator[str]:
    """The counters of every topic that had some traffic."""
    topics = list(counters.topics.items())
    for name, words in TOPIC_COUNTERS.items():
        full_name = f"kafkalite_topic_{name}_total"
        yield _head(full_name, "counter", words)
        for topic, counted in topics:
            yield f'{full_name}{{topic="{_quoted(topic)}"}} {getattr(counted, name)}\n'


def _surveyed(survey: Survey) -> Iterator[str]:
    yield _head(TOPIC_LOG_BYTES, "gauge", "Bytes of the topic's logs here.")
    for topic, size in survey.topic_bytes.items():
        yield f'{TOPIC_LOG_BYTES}{{topic="{_quoted(topic)}"}} {size}\n'
    yield _head(GROUP_LAG, "gauge", "High watermark less committed offset.")
    for group, (topic, partition), records in survey.lags:
        labels = f'group="{_quoted(group)}",topic="{_quoted(topic)}",partition="{partition}"'
        yield f"{GROUP_LAG}{{{labels}}} {records}\n"


def _head(name: str, kind: str, words: str) -> str:
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def _quoted(text: str) -> str:
    """A label's value; bytes that are not Unicode, as in a group's name, become escapes."""
    if text.isalnum():
        return text
    escaped = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return escaped.encode("utf-8", "backslashreplace").decode()


def _buckets(durations: Histogram) -> list[tuple[str, int]]:
    """How many durations were at most each bound."""
    bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))
