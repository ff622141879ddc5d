"""Durations as users write them: `timedelta`, milliseconds, or "250ms" "10s" "5m" "1h" "2d".  [P]

Fails  with TopologyError, which names what the duration is for and what was given.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from kafkalite.errors import TopologyError

Duration = timedelta | int | str

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MILLISECONDS_MAX: Final = (1 << 63) - 1  # as timestamps have
TEXT: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def milliseconds(duration: Duration, what: str = "duration") -> int:
    """`duration` in whole milliseconds; may be negative. TopologyError for anything else."""
    result: int | None = None
    if isinstance(duration, timedelta):
        result = duration // timedelta(milliseconds=1)
    elif isinstance(duration, int) and not isinstance(duration, bool):
        result = duration
    elif isinstance(duration, str) and (match := TEXT.fullmatch(duration.strip())):
        result = round(float(match[1]) * UNITS_MS[match[2]])
    if result is None:
        raise TopologyError(
            f'{what}: expected a timedelta, milliseconds or text such as "10s", got {duration!r}'
        )
    if abs(result) > MILLISECONDS_MAX:
        raise TopologyError(f"{what}: expected at most {MILLISECONDS_MAX} ms, got {duration!r}")
    return result


def positive(duration: Duration, what: str) -> int:
    """`duration` in milliseconds, at least one. TopologyError otherwise."""
    if (result := milliseconds(duration, what)) < 1:
        raise TopologyError(f"{what}: expected at least 1 ms, got {duration!r}")
    return result


def not_negative(duration: Duration, what: str) -> int:
    """`duration` in milliseconds, zero or more. TopologyError otherwise."""
    if (result := milliseconds(duration, what)) < 0:
        raise TopologyError(f"{what}: expected 0 or more, got {duration!r}")
    return result


def spell(duration_ms: int) -> str:
    """The shortest text for a duration: 60000 is "1m", 1500 is "1500ms"."""
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % UNITS_MS[unit] == 0:
            return f"{duration_ms // UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"
