"""A worker's metrics in Prometheus' text format.                                          [IO]

Owns   names, types and labels.
Never  keeps a number.
Source prometheus/client_python, custom collectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkalite.streams.local.overview import Overview

PAGE_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "kafkalite_streams"


def page(overview: Overview) -> bytes:
    """The page of one worker."""
    return generate_latest(_Page(overview))


@dataclass(frozen=True, slots=True)
class _Page(Collector):
    overview: Overview

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        yield from self._counts()
        yield from self._tasks()
        yield self._nodes()
        yield self._lags()
        yield from ProcessCollector(registry=None).collect()

    def _counts(self) -> Iterator[Metric]:
        counts = self.overview.counts
        for name, words, count in (
            ("records", "Records that were read and processed.", counts.records),
            ("records_written", "Records that were written.", counts.records_out),
            ("records_restored", "Records of changelogs that were read.", counts.records_restored),
            ("commits", "Commits that wrote something.", counts.commits),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", words, count)
        seconds = counts.commit_seconds
        yield CounterMetricFamily(f"{PREFIX}_commit_seconds", "What commits took.", seconds)
        dropped = CounterMetricFamily(
            f"{PREFIX}_records_dropped", "Records left out.", labels=["reason", "operator"]
        )
        for drop, records in list(counts.drops.counts.items()):
            dropped.add_metric([drop.reason.name.lower(), drop.operator], records)
        yield dropped

    def _tasks(self) -> Iterator[Metric]:
        overview = self.overview
        states = GaugeMetricFamily(f"{PREFIX}_tasks", "Tasks, by their state.", labels=["state"])
        for state, tasks in (
            ("running", overview.tasks),
            ("restoring", overview.restoring),
            ("standby", overview.standbys),
        ):
            states.add_metric([state], len(tasks))
        yield states
        records = CounterMetricFamily(
            f"{PREFIX}_task_records", "Records that a task processed.", labels=["task"]
        )
        state_bytes = GaugeMetricFamily(
            f"{PREFIX}_task_object_bytes", "About the memory of a task's rows.", labels=["task"]
        )
        for task_id, task in sorted(overview.tasks.items()):
            records.add_metric([str(task_id)], task.metrics.get("process-total", 0))
            state_bytes.add_metric([str(task_id)], task.object_bytes)
        yield records
        yield state_bytes
        took = GaugeMetricFamily(
            f"{PREFIX}_task_restore_seconds", "What its last restore took.", labels=["task"]
        )
        for task_id, seconds in sorted(overview.restore_seconds.items()):
            took.add_metric([str(task_id)], seconds)
        yield took
        behind = GaugeMetricFamily(
            f"{PREFIX}_restore_lag_records", "Offsets that a task has to restore.", labels=["task"]
        )
        for task_id, lag in sorted({**overview.standbys, **overview.restoring}.items()):
            behind.add_metric([str(task_id)], lag)
        yield behind

    def _nodes(self) -> Metric:
        passed = CounterMetricFamily(
            f"{PREFIX}_node_records", "Records that an operator passed on.", labels=["operator"]
        )
        for name, records in sorted(self.overview.passed.items()):
            passed.add_metric([name], records)
        return passed

    def _lags(self) -> Metric:
        lags = GaugeMetricFamily(
            f"{PREFIX}_input_lag_records",
            "Records of an input that were not read yet.",
            labels=["topic", "partition"],
        )
        for tp, lag in sorted(self.overview.lags.items()):
            lags.add_metric([tp.topic, str(tp.partition)], lag or 0)
        return lags
