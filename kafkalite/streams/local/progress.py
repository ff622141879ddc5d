"""What a worker has done so far.                                                          [P]

Owns   the counts of one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kafkalite.streams.local.drops import Drops


@dataclass(slots=True)
class Progress:
    """The counts of a worker, or of several together. `clock` gives seconds."""

    clock: Callable[[], float]
    records: int = 0
    records_out: int = 0
    records_restored: int = 0
    commits: int = 0
    commit_seconds: float = 0.0  # that commits took, all together
    drops: Drops = field(default_factory=Drops)  # records that were left out
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self.clock() - self.started
