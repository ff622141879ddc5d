"""How fast counts grow at the moment.                                                     [P]

Owns   the counts of the last SECONDS seconds, one every STEP_SECONDS.
Never  reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

STEP_SECONDS: Final = 2.0
SECONDS: Final = 10.0

Name = tuple[str, ...]
Counts = Mapping[Name, int]


class Rates:
    """The rates of counts that only grow; one that shrinks has begun anew."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, Counts]] = deque(maxlen=int(SECONDS / STEP_SECONDS))

    def note(self, now: float, counts: Counts) -> None:
        """The counts as they are."""
        self._noted.append((now, counts))

    def of(self, now: float, counts: Counts) -> dict[Name, float]:
        """What each grew by, in a second, since the first time noted; 0 where that is not known."""
        then, before = self._noted[0] if self._noted else (now, counts)
        passed = now - then
        if passed <= 0:
            return dict.fromkeys(counts, 0.0)
        return {
            name: round(max(0, count - before.get(name, 0)) / passed, 1)
            for name, count in counts.items()
        }
