"""Figures of both sides, and their ratios.

A line of JSON a run, and at the end a Markdown table. Of several rounds each side's best counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

OURS: Final = "kafkalite"
PEER: Final = "Kafka Streams"
Row = tuple[float | None, float | None, float | None]  # ours, the peer's, the ratio
RATE: Final = "records_per_second"
SECOND_HALF: Final = "second_half_records_per_second"
BETTER_IF_MORE: Final = frozenset({RATE, SECOND_HALF, "one", "two", "speedup"})
FIGURES: Final = (  # of the table, in this order; a line of JSON may hold more
    RATE, "start_to_close_s", "worker_cpu_s_per_million", "broker_cpu_s_per_million",
    "restore_s", "ready_s", "worker_cpu_s", "all_tasks_run_s", "speedup", "p50_ms", "p99_ms",
    "worker_cpu_ms_per_record", "engine_cpu_us_per_batch", "rss_mb",
)  # fmt: skip


def shown(value: float | None) -> str:
    """Three digits, or a whole number."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


@dataclass
class Report:
    """The best figures: case -> side -> figure -> value."""

    best: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def add(self, case: str, side: str, figures: dict[str, Any]) -> None:
        """Prints the figures of one run, and keeps what is better than before."""
        figures = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in figures.items()
        }
        print(json.dumps({"case": case, "side": side, **figures}), flush=True)
        best = self.best.setdefault(case, {}).setdefault(side, {})
        for name, value in figures.items():
            if isinstance(value, int | float):
                choose = max if name in BETTER_IF_MORE else min
                best[name] = choose(value, best.get(name, value))

    def ratios(self, case: str) -> None:
        """Prints ours ÷ the peer's, as a line of JSON."""
        if case not in self.best:  # it has several, each with a name of its own
            return
        found = {name: ratio for name, (_, _, ratio) in self._rows(case) if ratio is not None}
        if found:
            print(json.dumps({"case": case, "ratio": found}), flush=True)

    def _rows(self, case: str) -> Iterator[tuple[str, Row]]:
        ours, peer = (self.best[case].get(side, {}) for side in (OURS, PEER))
        for name in FIGURES:
            if name in ours or name in peer:
                yield name, _row(ours.get(name), peer.get(name))
        if warm := peer.get(SECOND_HALF):
            yield f"{RATE}, the peer's second half", _row(ours.get(RATE), warm)

    def table(self) -> Iterator[str]:
        """Lines of Markdown."""
        yield "| case | figure | kafkalite | Kafka Streams | ratio |"
        yield "|---|---|---|---|---|"
        for case in self.best:
            for name, values in self._rows(case):
                yield f"| {case} | {name} | {' | '.join(map(shown, values))} |"


def _row(ours: float | None, peer: float | None) -> Row:
    return ours, peer, round(ours / peer, 3) if ours is not None and peer else None
