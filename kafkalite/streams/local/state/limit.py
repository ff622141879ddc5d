"""A bound on the memory of rows that are objects, over all tasks of a worker.             [P]

Rows are written to disk when the commit that they belong to went through, and not before: a row
that changed since cannot leave memory. So a worker whose rows take more than the bound commits
early, and lets rows go after each commit. Between two looks the rows of one round of records may
come on top.

Owns   the rule; sizes are estimates of the stores.
Source Kafka Streams' ThreadCache, which writes dirty rows when it evicts them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

KEPT_SHARE: Final = 0.75  # of the bound, after rows were let go: the next time is not at once


class Holder(Protocol):
    """A task, as far as memory goes."""

    @property
    def object_bytes(self) -> int:
        """About how many bytes its rows take that are objects."""

    def shrink(self, bytes_max: int) -> None:
        """Lets rows go that can be read again."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What the rows of all tasks together may take; None: any number of bytes."""

    bytes_max: int | None = None

    def is_exceeded(self, tasks: Collection[Holder]) -> bool:
        """Whether a commit is due, so that rows can be let go."""
        return self.bytes_max is not None and _sum(tasks) > self.bytes_max

    def enforce(self, tasks: Collection[Holder]) -> None:
        """After a commit: each task shrinks by the same share."""
        if self.bytes_max is None or (total := _sum(tasks)) <= self.bytes_max:
            return
        for task in tasks:
            task.shrink(int(task.object_bytes * self.bytes_max * KEPT_SHARE) // total)


def _sum(tasks: Collection[Holder]) -> int:
    return sum(task.object_bytes for task in tasks)
