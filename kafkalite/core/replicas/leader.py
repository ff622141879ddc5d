"""The leader's side of one partition: how far followers are, what is committed, who is in sync. [P]

    fetched, appended, tick ──> high watermark ──> produce requests and consumers are answered
               └──> AlterPartition ──sent to the controller──> altered: in force, given up, or again

A record is committed once every replica of the *maximal* in-sync set has it: the set in force and,
while a change is asked for, its new members, too. A joining follower counts from the moment the
leader asks, a leaving one until the answer. So the set that the controller has is always part of
the set whose logs hold all that is committed (KIP-497).

While the controller has eligible replicas outside the set (KIP-966), which is then smaller than
min.insync.replicas, nothing more is committed: so each of them has all that is, and may lead.

A follower that is caught up but not in the set yet holds the high watermark back, too: under
constant appends to a lone leader no follower would reach the high watermark otherwise.

Owns   the followers' states, the high watermark of this leader epoch, the one change in flight.
Never  lowers the high watermark. Never asks for two changes at once. Never touches the log.
Fails  with ApiError NOT_LEADER_OR_FOLLOWER for a fetch by no replica, or by an earlier life of it.
Source KIP-497, KIP-903 (broker epochs); apache/kafka `Partition`, `Replica`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.types import NO_OFFSET, NOTHING, Outcome, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

NO_BROKER_EPOCH: Final = -1
LONG_AGO_MS: Final = -(1 << 62)
RETRY_MS: Final = 200  # after an answer that says nothing about the change itself

# The controller has refused the change as it is; another one may do.
REVERTED: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
# The leader is out of date, and its next image settles the change. Until then the members of both
# sets count, of the one in force and of the one asked for: either may be the controller's.
AWAITS_IMAGE: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class InSyncReplica(NamedTuple):
    """A member of an in-sync set, and the broker epoch under which it fetched. The epoch of the
    leader's own broker is filled in by the sender of the question."""

    node_id: int
    broker_epoch: int = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """An effect: the controller is to be asked for another in-sync set."""

    topic_partition: TopicPartition
    leader_epoch: int
    partition_epoch: int  # of the state that the set is to follow
    in_sync_replicas: tuple[InSyncReplica, ...]

    @property
    def node_ids(self) -> frozenset[int]:
        """The members' brokers."""
        return frozenset(each.node_id for each in self.in_sync_replicas)


@dataclass(frozen=True, slots=True)
class Altered:
    """The controller's answer: the partition's state from now on."""

    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[int, ...]


class FollowerFetch(NamedTuple):
    """A follower asks for records from `fetch_offset` on, so its log holds all below."""

    node_id: int
    fetch_offset: int
    log_start_offset: int = NO_OFFSET
    broker_epoch: int = NO_BROKER_EPOCH
    is_eligible: bool = True  # its broker is registered in this very epoch, and not leaving
    confirmed_ms: int = LONG_AGO_MS  # it was sent then at the earliest


@dataclass(slots=True)
class FollowerState:
    """What the leader knows of one follower."""

    caught_up_ms: int  # until then, at least, it had all that the leader had
    log_end_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    broker_epoch: int = NO_BROKER_EPOCH
    fetched_ms: int = LONG_AGO_MS
    confirmed_ms: int = LONG_AGO_MS  # until then, at least, it took this broker for the leader
    left_ms: int = LONG_AGO_MS  # when it left the in-sync set
    leader_end_when_fetched: int = NO_OFFSET
    is_eligible: bool = True

    @property
    def has_fetched(self) -> bool:
        """Whether it fetched in this leader epoch, and since it left the in-sync set."""
        return self.fetched_ms > self.left_ms

    def note(self, fetch: FollowerFetch, leader_end: int, now_ms: int) -> None:
        """It fetches. If it now has what the leader had at its fetch before, it was caught up
        then, however fast the leader appends."""
        offset = fetch.fetch_offset
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_when_fetched:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.fetched_ms, self.leader_end_when_fetched = now_ms, leader_end
        self.log_end_offset, self.log_start_offset = offset, fetch.log_start_offset
        self.broker_epoch, self.is_eligible = fetch.broker_epoch, fetch.is_eligible
        self.confirmed_ms = max(self.confirmed_ms, fetch.confirmed_ms)


@dataclass(slots=True)
class Leader:
    """One partition as the leader on broker `node_id` sees it, in one leader epoch."""

    topic_partition: TopicPartition
    node_id: int
    leader_epoch: int
    epoch_start_offset: int  # the log's end when it began to lead
    high_watermark: int  # as far as this broker knew when it began to lead, at first
    log_end_offset: int  # of its own safe records
    lag_time_max_ms: int = 30_000
    began_ms: int = LONG_AGO_MS  # when it began to lead
    in_sync_min: int = 1  # min.insync.replicas, as this broker knows it
    partition_epoch: int = -1
    replicas: tuple[int, ...] = ()
    in_sync_replicas: frozenset[int] = frozenset()  # in force
    failed_replicas: frozenset[int] = frozenset()  # whose logs cannot be written, as the image says
    asked: AlterPartition | None = None  # not answered, or not in a way that settles it
    followers: dict[int, FollowerState] = field(default_factory=dict)
    _retry_ms: int | None = None  # when to ask the same again
    _rests_until_ms: int = LONG_AGO_MS  # before it asks for anything else
    _counted: tuple[FollowerState, ...] = ()  # that hold the high watermark back
    _commits_nothing: bool = False  # there are eligible replicas, or the image may name some

    @property
    def maximal_in_sync(self) -> frozenset[int]:
        """The set in force and the one asked for: nothing is committed without all of them."""
        asked = self.asked
        return self.in_sync_replicas if asked is None else self.in_sync_replicas | asked.node_ids

    # -- what the image says

    def replay(self, image: PartitionImage, now_ms: int) -> Outcome[Any]:
        """Takes the partition's image of this leader epoch; an older one changes nothing."""
        assert image.leader_epoch == self.leader_epoch, (image, self.leader_epoch)
        if image.epoch < self.partition_epoch:
            return NOTHING
        self.replicas = image.replicas
        known, in_sync = self.followers, image.in_sync_replicas
        self.followers = {
            node: known.get(node) or FollowerState(now_ms if node in in_sync else LONG_AGO_MS)
            for node in dict.fromkeys((*image.replicas, *image.in_sync_replicas))
            if node != self.node_id
        }
        self.failed_replicas = frozenset(image.failed_replicas)
        self._commits_nothing = bool(image.eligible_leader_replicas)
        return self._in_force(frozenset(image.in_sync_replicas), image.epoch, now_ms)

    def _in_force(self, members: frozenset[int], epoch: int, now_ms: int) -> Outcome[Any]:
        """The controller's state: an earlier change, asked for or not, is settled by it."""
        if epoch > self.partition_epoch:
            self.asked, self._retry_ms = None, None
        for node in self.in_sync_replicas - members:
            if (left := self.followers.get(node)) is not None:
                left.left_ms = now_ms  # it comes back by a fetch, not by what it once had
        self.in_sync_replicas, self.partition_epoch = members, epoch
        return self._reconsidered(now_ms)

    # -- what happens

    def appended(self, log_end_offset: int) -> bool:
        """Notes the end of the leader's own log; True if the high watermark moved."""
        self.log_end_offset = log_end_offset
        if self._counted or self._commits_nothing:
            return self._advance()
        if log_end_offset <= self.high_watermark:
            return False
        self.high_watermark = log_end_offset  # as on every append of a cluster of one broker
        return True

    def fetched(self, fetch: FollowerFetch, now_ms: int) -> Outcome[Any]:
        """Notes how far a follower is. ApiError if it is none."""
        state = self.followers.get(fetch.node_id)
        if state is None:
            words = f"broker {fetch.node_id} has no replica, which are {list(self.replicas)}"
            self._refuse(words)
        assert state is not None
        if NO_BROKER_EPOCH < fetch.broker_epoch < state.broker_epoch:
            words = f"broker {fetch.node_id} fetches under epoch {fetch.broker_epoch}"
            self._refuse(f"{words}, its current one is {state.broker_epoch}")
        state.note(fetch, self.log_end_offset, now_ms)
        if self.asked is None and len(self.in_sync_replicas) == len(self.replicas):
            self._advance()  # as nearly always
            return NOTHING
        return self._reconsidered(now_ms)

    def low_watermark(self, log_start_offset: int, live: Collection[int]) -> int:
        """The smallest log start of the replicas on live brokers; ours is `log_start_offset`. A
        follower that has not fetched in this epoch counts as far behind."""
        starts = (each.log_start_offset for node, each in self.followers.items() if node in live)
        return min((log_start_offset, *starts))

    def _refuse(self, words: str) -> None:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition}: {words}")

    def still_fetches(self, node_id: int, fetched_ms: int) -> None:
        """A follower has fetched at that time, and this partition has nothing new for it: within
        a fetch session it does not name the partition again."""
        state = self.followers.get(node_id)
        if state is not None and state.log_end_offset >= self.log_end_offset:
            state.fetched_ms = max(state.fetched_ms, fetched_ms)
            state.caught_up_ms = max(state.caught_up_ms, fetched_ms)

    def still_confirms(self, node_id: int, confirmed_ms: int) -> None:
        """The same, of the time at which the follower took this broker for the leader."""
        state = self.followers.get(node_id)
        if state is not None:
            state.confirmed_ms = max(state.confirmed_ms, confirmed_ms)

    def is_confirmed(self, since_ms: int, *, by_all: bool) -> bool:
        """Whether members of the maximal in-sync set took this broker for the leader since then:
        all, or one at least.

        A successor would be one of these members. So there is none if all confirm this broker; but
        they do not while one is merely paused. If one does, it may be cut off together with it.
        """
        known = self.followers
        confirmed = [
            node in known and known[node].confirmed_ms >= since_ms
            for node in self.maximal_in_sync - {self.node_id}
        ]
        return not confirmed or (all(confirmed) if by_all else any(confirmed))

    def tick(self, now_ms: int, eligible: Mapping[int, int] | None = None) -> Outcome[Any]:
        """Finds followers that lag, and repeats a question without an answer. `eligible` are the
        brokers that may be in an in-sync set, with their epochs; None: not known."""
        for node in self.in_sync_replicas:
            state = self.followers.get(node)
            if state is not None and state.log_end_offset >= self.log_end_offset:
                state.caught_up_ms = max(state.caught_up_ms, now_ms)  # until the next append
        if eligible is not None:
            for node, state in self.followers.items():
                state.is_eligible = eligible.get(node) == state.broker_epoch
        if self.asked is not None and self._retry_ms is not None and self._retry_ms <= now_ms:
            self._retry_ms = None
            return Outcome(effects=(self.asked,))
        return self._reconsidered(now_ms)

    def altered(
        self, asked: AlterPartition, answer: Altered | ErrorCode, now_ms: int
    ) -> Outcome[Any]:
        """The controller has answered, or an error says that it was not reached."""
        if asked is not self.asked:
            return NOTHING  # the image was faster
        if isinstance(answer, Altered):
            is_news = answer.partition_epoch > self.partition_epoch
            if answer.leader_epoch != self.leader_epoch or not is_news:
                return NOTHING  # so the image settles it
            members = frozenset(answer.in_sync_replicas)
            if len(members) < min(self.in_sync_min, len(self.replicas)):
                self._commits_nothing = True  # until the image tells who is eligible
            return self._in_force(members, answer.partition_epoch, now_ms)
        if answer in REVERTED:
            self.asked, self._rests_until_ms = None, now_ms + RETRY_MS
            return self._reconsidered(now_ms)
        if answer not in AWAITS_IMAGE:
            self._retry_ms = now_ms + RETRY_MS
        return NOTHING

    # -- what follows

    def _reconsidered(self, now_ms: int) -> Outcome[Any]:
        """Asks for the in-sync set that should be, if it is another; the high watermark follows."""
        outcome: Outcome[Any] = NOTHING
        if self.asked is None and now_ms >= self._rests_until_ms:
            wanted = {self.node_id} | {
                node for node, state in self.followers.items() if self._belongs(node, state, now_ms)
            }
            if wanted != self.in_sync_replicas:
                self.asked = self._asking_for(wanted)
                outcome = Outcome(effects=(self.asked,))
        maximal = self.maximal_in_sync
        self._counted = tuple(
            state
            for node, state in self.followers.items()
            if node in maximal or self._is_about_to_join(node, state, now_ms)
        )
        self._advance()
        return outcome

    def _belongs(self, node: int, state: FollowerState, now_ms: int) -> bool:
        """Whether a follower should be in the in-sync set."""
        if node in self.in_sync_replicas:
            return self._is_caught_up(state, now_ms)
        has_enough = state.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)
        return has_enough and self._may_join(node, state)

    def _may_join(self, node: int, state: FollowerState) -> bool:
        """Whether the controller would take the follower in. If one member of a set may not join,
        the controller refuses the whole set, and no other follower joins either."""
        return state.has_fetched and state.is_eligible and node not in self.failed_replicas

    def _is_about_to_join(self, node: int, state: FollowerState, now_ms: int) -> bool:
        return self._may_join(node, state) and self._is_caught_up(state, now_ms)

    def _is_caught_up(self, state: FollowerState, now_ms: int) -> bool:
        is_at_end = state.log_end_offset >= self.log_end_offset
        return is_at_end or now_ms - state.caught_up_ms <= self.lag_time_max_ms

    def _asking_for(self, members: Collection[int]) -> AlterPartition:
        """The members in the order of the replicas."""
        asked = tuple(
            InSyncReplica(
                node,
                NO_BROKER_EPOCH if node == self.node_id else self.followers[node].broker_epoch,
            )
            for node in self.replicas
            if node in members
        )
        return AlterPartition(self.topic_partition, self.leader_epoch, self.partition_epoch, asked)

    def _advance(self) -> bool:
        """Moves the high watermark to the smallest end that counts; True if it moved."""
        if self._commits_nothing:
            return False
        committed = self.log_end_offset
        for state in self._counted:
            committed = min(committed, state.log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
