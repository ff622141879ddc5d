"""One worker and two, on a topology that keeps a core busy: how many times faster two are.

Here workers are processes that begin together; in Kafka Streams they are threads of one process.
`hashes` has a Python function of some 10 us; Kafka Streams has no such case, so its JSON stands
beside ours. On two cores the broker takes its share from both.
"""

from __future__ import annotations

import subprocess
from typing import Final

from .report import OURS, PEER, Report
from .sides import ROOT, Figures, Ours, Peer, figures_of, parsed

NAMES: Final = ("scaling-hashes", "scaling-json")
SOURCE: Final = "keyed"


def ours_with(side: Ours, topology: str, workers: int) -> Figures:
    """The figures of so many processes together."""
    source = side.input(SOURCE)
    with side.target() as target:
        job = side.job(source, target, topology, processing_guarantee="at_least_once")
        running = [
            subprocess.Popen(job.command(), cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(workers)
        ]
        said = [parsed(process.communicate()[0]) for process in running]
    return figures_of(said, side.sizes[source])


def run(name: str, ours: Ours, peer: Peer | None, report: Report) -> None:
    """One round: one worker, then two."""
    topology = name.removeprefix("scaling-")
    rates = [ours_with(ours, topology, count)["records_per_second"] for count in (1, 2)]
    report.add(name, OURS, scaling_figures(*rates))
    if peer is not None and topology == "json":
        rates = [
            peer.measure(SOURCE, topology, threads=count)["records_per_second"] for count in (1, 2)
        ]
        report.add(name, PEER, scaling_figures(*rates))


def scaling_figures(one: float | None, two: float | None) -> Figures:
    """The rates, and how many times the second is the first. So few records that workers have read
    all of them at one look have no rate."""
    return {"one": one, "two": two, "speedup": two / one if one and two else None}
