"""Rates from what workers have seen: when how many records were done.

As the program for Kafka Streams counts: from the first record that is seen to be done to the last,
so without the start.
"""

from __future__ import annotations

from collections.abc import Sequence

Seen = Sequence[tuple[float, int]]  # seconds, and records done so far


def together(workers: Sequence[Seen]) -> Seen:
    """What several workers have done in sum."""
    looks = sorted((at, worker, done) for worker, seen in enumerate(workers) for at, done in seen)
    latest = [0] * len(workers)
    total = []
    for at, worker, done in looks:
        latest[worker] = done
        total.append((at, sum(latest)))
    return total


def rate(seen: Seen, records: int, share: float = 0.0) -> float | None:
    """Input records a second, from the first look after this share of them to the last.

    A topology with two stages counts a record in each, so only shares of what was seen count.
    """
    end, total = seen[-1]
    at, done = next(look for look in seen if look[1] > share * total)
    return (total - done) / total * records / (end - at) if end > at else None
