"""How a worker runs: its settings, and those that follow from others.                     [IO]

Owns   the defaults.
Source KIP-62 (session, poll interval), KIP-345 (group_instance_id), KIP-441 (warm-ups).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkalite.streams.local.committer import Guarantee
from kafkalite.streams.local.placement import ACCEPTABLE_LAG, WARMUPS_MAX, Rules
from kafkalite.streams.local.topics import Wanted

FETCH_BYTES: Final = 2 << 20  # of a partition: a batch that costs little beside its records
COMMIT_INTERVAL_MS: Final[Mapping[Guarantee, int]] = {"exactly_once": 100, "at_least_once": 1_000}


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker runs. Times in milliseconds.

    Without a `processing_guarantee` it is exactly once where the broker has transactions. Without
    a `commit_interval_ms` it is 100 for exactly once, where readers see results only then, and
    1,000 for at least once. A user function may block for `max_poll_interval_ms`. The others take
    over a dead worker's tasks `session_timeout_ms` after its last heartbeat, of which it has six;
    a `group_instance_id` gives a worker its own tasks back if it returns earlier. With a
    `state_dir` it has one, unless another is given.

    Of each task with state `num_standby_replicas` other workers follow the changelogs. A task moves
    to a worker that is up to `acceptable_recovery_lag` records behind with its state; others warm
    up first, `max_warmup_replicas` in the whole group at a time.

    With `on_missing_topics` the worker waits for topics of its sources that do not exist, and
    reports them there whenever they change, at last as none. Without it they are an error.
    """

    processing_guarantee: Guarantee | None = None
    commit_interval_ms: int | None = None
    buffered_records_max: int = 100_000  # a partition's inbox; beyond it the partition is paused
    session_timeout_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    group_instance_id: str | None = None
    idle_ms: int = 5_000  # without a record an input holds the stream time of others no longer
    purge_interval_ms: int = 30_000  # how often committed records leave repartition topics
    state_dir: Path | None = None
    state_memory_bytes: int | None = None  # of rows as objects; None, and without state_dir: no end
    num_standby_replicas: int = 0
    acceptable_recovery_lag: int = ACCEPTABLE_LAG
    max_warmup_replicas: int = WARMUPS_MAX
    address: str | None = None  # HOST:PORT where the worker answers queries; other workers hear it
    on_missing_topics: Callable[[Sequence[Wanted]], None] | None = None

    @property
    def placement_rules(self) -> Rules:
        """What the leader goes by; all workers should have the same."""
        return Rules(
            self.num_standby_replicas, self.acceptable_recovery_lag, self.max_warmup_replicas
        )


DEFAULTS: Final = WorkerConfig()
