"""A worker as others may watch it: counts, tasks, lags.                                    [P]

Owns   nothing: the numbers are those of one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.progress import Progress
from kafkalite.streams.local.task import Task


@dataclass(frozen=True, slots=True)
class Overview:
    """A worker at one moment. `restoring`: the tasks that do not run yet, with the offsets to go.
    `standbys`: the tasks that it follows, with the records that it is behind."""

    counts: Progress
    tasks: Mapping[TaskId, Task]
    lags: Mapping[TopicPartition, int | None]
    restoring: Mapping[TaskId, int]
    standbys: Mapping[TaskId, int]
    restore_seconds: Mapping[TaskId, float]  # what the last restore of each task took
    is_settled: bool  # whether the group has given it all its tasks, and all of them run

    @property
    def passed(self) -> Counter[str]:
        """How many records each operator has passed on, in the tasks that run here."""
        total: Counter[str] = Counter()
        for task in self.tasks.values():
            total.update(dict(task.passed))  # its thread may add a name meanwhile
        return total
