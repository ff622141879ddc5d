"""How long a call takes where nothing disturbs it, for the benchmarks beside."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter


def fastest(call: Callable[[], object], repeat: int, seconds_max: float) -> float:
    """The seconds of the fastest of `repeat` calls; none begins after `seconds_max` of them."""
    best, spent = float("inf"), 0.0
    for _ in range(repeat):
        began = perf_counter()
        call()
        took = perf_counter() - began
        best, spent = min(best, took), spent + took
        if spent > seconds_max:
            break
    return best
