"""The cluster's code, broken on purpose: each break is one rule of replication left out.

A break patches the code, and says what is left out in its first line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafkalite.core.broker.membership import Membership
from kafkalite.core.broker.purgatory import DelayedProduce
from kafkalite.core.cluster import in_sync, partition_changes, registrations
from kafkalite.core.replicas.follower import Follower, FollowerPhase
from kafkalite.core.replicas.leader import FollowerState, Leader
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.replicas.replication import PartitionReplication
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import ErrorCode

Break = Callable[[pytest.MonkeyPatch], None]


def truncates_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new follower cuts its log at its high watermark, which lags, instead of by epochs."""
    whole = Partition.replay

    def replay(self: Partition, image: Any, now_ms: int) -> Any:
        epoch = self.replication.leader_epoch
        change = whole(self, image, now_ms)
        is_new = self.replication.leader_epoch > epoch
        if is_new and self.replication.follower is not None and self.log.failure is None:
            self.log.truncate_to(self.log.high_watermark)
        return change

    patch.setattr(Partition, "replay", replay)


def counts_a_follower_too_early(patch: pytest.MonkeyPatch) -> None:
    """A follower counts with what is sent to it, not with what it says that it has."""
    whole = FollowerState.note

    def note(self: FollowerState, fetch: Any, leader_end: int, now_ms: int) -> None:
        whole(self, fetch, leader_end, now_ms)
        self.log_end_offset = leader_end

    patch.setattr(FollowerState, "note", note)


def acknowledges_before_the_in_sync_set_has_it(patch: pytest.MonkeyPatch) -> None:
    """The high watermark is the end of the leader's own log."""

    def advance(self: Leader) -> bool:
        self.high_watermark, before = self.log_end_offset, self.high_watermark
        return self.high_watermark > before

    patch.setattr(Leader, "_advance", advance)


def skips_the_leader_epoch_of_requests(patch: pytest.MonkeyPatch) -> None:
    """A request is answered in whatever leader epoch its sender lives."""

    def check_leader(self: PartitionReplication, current_leader_epoch: int = NO_EPOCH) -> None:
        self.led()

    patch.setattr(PartitionReplication, "check_leader", check_leader)


def skips_the_partition_epoch_at_the_controller(patch: pytest.MonkeyPatch) -> None:
    """A leader's request may overwrite a state that it has not seen."""
    whole = in_sync._refused_epochs

    def refused(asked: Any, known: Any, node_id: int) -> ErrorCode | None:
        found = whole(asked, known, node_id)
        return None if found is ErrorCode.INVALID_UPDATE_VERSION else found

    patch.setattr(in_sync, "_refused_epochs", refused)


def elects_outside_the_in_sync_set(patch: pytest.MonkeyPatch) -> None:
    """Any live replica may lead."""

    def elect(partition: Any, live: Any, election: Any) -> tuple[int, bool]:
        able = [node for node in partition.replicas if node in live.active]
        if partition.leader in able:
            return partition.leader, True
        return (able[0], able[0] in partition.in_sync_replicas) if able else (-1, True)

    patch.setattr(partition_changes, "_elect", elect)


def forgets_broker_epochs(patch: pytest.MonkeyPatch) -> None:
    """A broker that was started again counts as the one that it was before."""
    patch.setattr(registrations, "_restarted", lambda image, brokers: {})


def acknowledges_after_its_deposition(patch: pytest.MonkeyPatch) -> None:
    """A leader that was replaced answers what waits as if it had been committed."""

    def lose(self: DelayedProduce[Any], key: Any) -> bool:
        self.offsets_wanted.pop(key, None)
        return not self.offsets_wanted

    patch.setattr(DelayedProduce, "lose", lose)


def followers_show_what_may_not_be_committed(patch: pytest.MonkeyPatch) -> None:
    """A consumer that reads a follower gets all that its log has."""
    whole = Partition.end

    def end(self: Partition, isolation_level: int) -> int:
        follows = self.replication.leader is None
        return self.log.log_end_offset if follows else whole(self, isolation_level)

    patch.setattr(Partition, "end", end)


def appends_whatever_its_position(patch: pytest.MonkeyPatch) -> None:
    """A follower appends an answer, though its log is another since it asked."""
    whole = Follower.answered

    def answered(self: Follower, asked: Any, answer: Any, log: Any, now_ms: int) -> Any:
        if self.phase is FollowerPhase.FETCHING:
            asked = self._position(log)
        return whole(self, asked, answer, log, now_ms)

    patch.setattr(Follower, "answered", answered)


def commits_by_the_set_in_force(patch: pytest.MonkeyPatch) -> None:
    """A joining follower does not count until the leader has heard that it has joined."""
    patch.setattr(Leader, "maximal_in_sync", property(lambda self: self.in_sync_replicas))
    patch.setattr(Leader, "_is_about_to_join", lambda *asked: False)


def joins_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """A follower joins once it has what its leader knows to be committed, not all that may be."""

    def belongs(self: Leader, node: int, state: FollowerState, now_ms: int) -> bool:
        if node in self.in_sync_replicas:
            return self._is_caught_up(state, now_ms)
        has_enough = state.log_end_offset >= self.high_watermark
        return has_enough and self._may_join(node, state)

    patch.setattr(Leader, "_belongs", belongs)


def joins_under_any_broker_epoch(patch: pytest.MonkeyPatch) -> None:
    """A follower joins by what it fetched before it was started again."""
    whole = in_sync._refused_brokers

    def refused(members: Any, leader: int, image: Any) -> Any:
        return whole(tuple(replace(m, broker_epoch=NO_EPOCH) for m in members), leader, image)

    patch.setattr(in_sync, "_refused_brokers", refused)


def counts_every_stop_as_clean(patch: pytest.MonkeyPatch) -> None:
    """A broker that was killed, or has lost its disk, registers as one that closed its logs."""
    whole = Membership._register

    async def register(self: Membership) -> None:
        self._is_settled = True
        await whole(self)

    patch.setattr(Membership, "_register", register)
