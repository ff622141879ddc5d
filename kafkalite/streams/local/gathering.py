"""Small outputs of tasks as fewer large ones, on their way to the producer.                  [P]

Owns   the rule of which outputs may be one.
Never  changes the order of records within a topic.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.types import concat
from kafkalite.streams.local.batch import Output

JOINED_RECORDS: Final = 1_000  # outputs smaller than this leave together


def join(outputs: list[Output]) -> list[Output]:
    """Small outputs of one sink to one topic as one; the order within a topic stays."""
    if len(outputs) <= 1:
        return outputs
    waiting: dict[str, list[Output]] = {}
    counts: dict[str, int] = {}
    joined: list[Output] = []
    for output in outputs:
        parts = waiting.setdefault(output.topic, [])
        count = counts.get(output.topic, 0)
        if parts and (count >= JOINED_RECORDS or not _are_alike(parts[0], output)):
            joined.append(_joined(parts))
            parts = waiting[output.topic] = []
            count = 0
        parts.append(output)
        counts[output.topic] = count + len(output.columns)
    return joined + [_joined(parts) for parts in waiting.values()]


def _are_alike(one: Output, other: Output) -> bool:
    """Whether two may be one. A stamped piece stays alone: it begins with its task's marker."""
    return (
        one.sink == other.sink
        and (one.partitions is None) == (other.partitions is None)
        and one.partition is None
        and other.partition is None
    )


def _joined(parts: list[Output]) -> Output:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    partitions = None
    if first.partitions is not None:
        partitions = [partition for part in parts for partition in part.partitions or ()]
    return Output(first.topic, concat(part.columns for part in parts), partitions, first.sink)
