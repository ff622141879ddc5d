"""How long to wait before trying again: exponential, bounded, spread by jitter.            [P]

Owns   nothing but the count of failures in a row.
Never  sleeps: the caller does.
Source KIP-580 (exponential backoff), KIP-144 (reconnects).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

JITTER: Final = 0.2
DOUBLINGS_MAX: Final = 30  # keeps the power small, whatever the bound


@dataclass(slots=True)
class Backoff:
    """Delays for one thing that is tried again: a connection, a coordinator, a batch.

    `initial_ms` is the delay after the first failure; it doubles up to `max_ms`, then each delay
    is spread by ±20 % so that clients do not return together.
    """

    random: Random = field(repr=False)
    initial_ms: int = 100
    max_ms: int = 1_000
    failures: int = 0

    def failed(self) -> int:
        """Counts one more failure. Returns how many ms to wait now."""
        delay = delay_ms(self.failures, self.initial_ms, self.max_ms, self.random)
        self.failures += 1
        return delay

    def succeeded(self) -> None:
        """The next failure waits `initial_ms` again."""
        self.failures = 0


def delay_ms(failures: int, initial_ms: int, max_ms: int, random: Random) -> int:
    """The delay after `failures` earlier failures in a row, in ms."""
    exact = min(initial_ms << min(failures, DOUBLINGS_MAX), max_ms)
    return round(exact * random.uniform(1 - JITTER, 1 + JITTER))
