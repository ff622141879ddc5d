"""The page `/metrics` in Prometheus' text format: the registry, and a broker beside it.       [IO]

    kafkalite_registry_…     requests by path and status, their duration, subjects, schemas
    kafkalite_…              a broker's counters (`core/metrics`) and gauges, if there is a broker

Owns   names and labels.
Never  keeps a broker's numbers: they are read when the page is asked for. Between a broker's thread
       and ours they may be of slightly different moments; each is right.
Fails  never.
Source prometheus/client_python, custom collectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kafkalite.core.broker.metrics import LATENCY_BOUNDS_S, ApiMetrics, BrokerMetrics
from kafkalite.core.broker.metrics import Histogram as Durations

Gauges = Callable[[], Mapping[str, float]]


class RegistryMetrics:
    """The page, and the counters of the registry's own that are on it."""

    PAGE_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self, registry: Gauges, broker: BrokerMetrics | None = None, gauges: Gauges = dict
    ) -> None:
        self._page = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "kafkalite_registry_requests", "Requests answered.", ["path", "status"],
            registry=self._page,
        )  # fmt: skip
        self._seconds = Histogram(
            "kafkalite_registry_request_seconds", "From a request to its answer.", ["path"],
            registry=self._page, buckets=LATENCY_BOUNDS_S,
        )  # fmt: skip
        self._page.register(_Gauges("kafkalite_registry_", registry))
        if broker is not None:
            self._page.register(_Broker(broker))
            self._page.register(_Gauges("kafkalite_", gauges))

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Counts a request; `path` is its route, of which there are few."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        """The page."""
        return generate_latest(self._page)


class _Gauges(Collector):
    """What goes up and down, asked for when it is shown."""

    def __init__(self, prefix: str, gauges: Gauges) -> None:
        self._prefix, self._gauges = prefix, gauges

    def collect(self) -> Iterator[Metric]:
        for name, value in self._gauges().items():
            words = name.replace("_", " ")
            yield GaugeMetricFamily(self._prefix + name, f"{words.capitalize()}.", value)


class _Broker(Collector):
    """A broker's counters."""

    def __init__(self, broker: BrokerMetrics) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        connections = CounterMetricFamily(
            "kafkalite_connections", "Connections, by what became of them.", labels=["outcome"]
        )
        for outcome in ("accepted", "refused", "idle", "failed"):
            connections.add_metric([outcome], getattr(broker, f"connections_{outcome}"))
        yield connections
        for name, words in (
            ("batches_in", "Batches appended by producers."),
            ("records_in", "Records appended by producers."),
            ("bytes_in", "Bytes of batches appended by producers."),
            ("bytes_out", "Bytes of batches given to consumers."),
        ):
            yield CounterMetricFamily(f"kafkalite_{name}", words, getattr(broker, name))
        if broker.loop_turns is not None:
            turns = HistogramMetricFamily(
                "kafkalite_loop_turn_seconds", "One turn of the broker's event loop."
            )
            turns.add_metric([], _buckets(broker.loop_turns), broker.loop_turns.sum_s)
            yield turns
        yield from _apis({key.name: counted for key, counted in list(broker.api.items())})


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


def _buckets(durations: Durations) -> list[tuple[str, int]]:
    """How many durations were at most each bound."""
    bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))
