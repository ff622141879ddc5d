"""The registry's part of the page `/metrics`, in Prometheus' text format.                   [IO]

    kafkalite_registry_…     requests by path and status, their duration, subjects, schemas

Owns   names and labels; docs/operations.md explains each.
Never  includes a broker in the same process; its page (`monitoring`) may follow.
Fails  never.
Source prometheus/client_python, custom collectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkalite.core.broker.metrics import LATENCY_BOUNDS_S

Gauges = Callable[[], Mapping[str, float]]


class RegistryMetrics:
    """The page with the registry's own counters."""

    PAGE_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, registry: Gauges) -> None:
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

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Counts a request; `path` is its route, so there are few values."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        """The page."""
        return generate_latest(self._page)


class _Gauges(Collector):
    """The gauges, computed when they are shown."""

    def __init__(self, prefix: str, gauges: Gauges) -> None:
        self._prefix, self._gauges = prefix, gauges

    def collect(self) -> Iterator[Metric]:
        for name, value in self._gauges().items():
            words = name.replace("_", " ")
            yield GaugeMetricFamily(self._prefix + name, f"{words.capitalize()}.", value)
