"""The task manager: any sequence of events leaves each task in one life, and no dead one runs."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.task_manager import (
    CLOSED,
    CREATED,
    FOLLOWING,
    RESTORING,
    RETRY_MS,
    RETRY_MS_MAX,
    RUNNING,
    SUSPENDED,
    Abort,
    Close,
    Commit,
    Effects,
    Follow,
    Life,
    Prepare,
    Promote,
    Restore,
    Run,
    TaskManager,
)

A, B = TaskId(0, 0), TaskId(0, 1)


def partitions(task_id: TaskId) -> tuple[TopicPartition, ...]:
    return (TopicPartition("in", task_id.partition),)


def given(*task_ids: TaskId) -> dict[TaskId, tuple[TopicPartition, ...]]:
    return {task_id: partitions(task_id) for task_id in task_ids}


def running(manager: TaskManager, *task_ids: TaskId) -> list[Life]:
    """Tasks that have come as far as that."""
    (prepare,) = manager.assigned(given(*task_ids))
    assert isinstance(prepare, Prepare)
    manager.prepared(prepare.lives)
    for life in prepare.lives:
        assert manager.restored(life) == (Run(life),)
    return list(prepare.lives)


class TestLife:
    def test_from_the_assignment_to_the_first_record(self) -> None:
        manager = TaskManager()
        (prepare,) = manager.assigned(given(B, A))
        assert isinstance(prepare, Prepare)
        first, second = prepare.lives
        assert (first.task_id, second.task_id) == (A, B)
        assert manager.prepared([first]) == (Restore((first,)),)
        assert manager.state(second) is CREATED
        assert manager.restored(second) == (), "its offsets are not known yet"
        assert manager.restored(first) == (Run(first),)
        assert not manager.is_settled
        manager.prepared([second])
        manager.restored(second)
        assert manager.is_settled

    def test_what_stays_hears_nothing_of_a_rebalance(self) -> None:
        manager = TaskManager()
        stays, goes = running(manager, A, B)
        assert manager.revoked([B]) == (Commit(),)
        assert (manager.state(stays), manager.state(goes)) == (RUNNING, SUSPENDED)
        assert manager.committed() == (Close(goes),)
        assert manager.lives(RUNNING) == [stays]
        assert manager.owned == {A}

    def test_a_task_that_goes_before_it_ran_needs_no_commit(self) -> None:
        manager = TaskManager()
        (prepare,) = manager.assigned(given(A))
        assert isinstance(prepare, Prepare)
        (life,) = prepare.lives
        manager.prepared([life])
        assert manager.revoked([A]) == (Close(life),)
        assert manager.restored(life) == (), "its restore ends too late"

    def test_a_worker_that_the_group_has_forgotten_keeps_nothing(self) -> None:
        manager = TaskManager()
        first, second = running(manager, A, B)
        assert manager.lost() == (Abort(), Close(first), Close(second))
        assert manager.owned == frozenset()
        assert manager.tick(1e9) == ()

    def test_a_failure_gives_every_task_a_new_life_after_a_pause_that_grows(self) -> None:
        manager = TaskManager()
        (life,) = running(manager, A)
        assert manager.failed(1_000) == (Abort(), Close(life))
        assert manager.tick(1_000 + RETRY_MS - 1) == ()
        (prepare,) = manager.tick(1_000 + RETRY_MS)
        assert isinstance(prepare, Prepare)
        assert prepare.lives[0].task_id == A
        assert prepare.lives[0] != life
        manager.failed(2_000)
        assert manager.tick(2_000 + 2 * RETRY_MS - 1) == ()
        assert manager.tick(2_000 + 2 * RETRY_MS)
        for _ in range(50):
            manager.failed(3_000)
        assert manager.tick(3_000 + RETRY_MS_MAX)
        manager.committed()
        assert manager.failures == 0

    def test_a_suspended_task_does_not_come_back_when_its_last_commit_fails(self) -> None:
        manager = TaskManager()
        stays, goes = running(manager, A, B)
        manager.revoked([B])
        assert manager.failed(0) == (Abort(), Close(stays), Close(goes))
        (prepare,) = manager.tick(RETRY_MS)
        assert isinstance(prepare, Prepare)
        assert [life.task_id for life in prepare.lives] == [A]


def following(manager: TaskManager, *task_ids: TaskId) -> list[Life]:
    """Standbys that have come as far as that."""
    assert manager.follow(task_ids) == ()
    (prepare,) = manager.tick(0)
    assert isinstance(prepare, Prepare)
    assert manager.prepared(prepare.lives) == (Follow(prepare.lives),)
    return list(prepare.lives)


class TestStandbys:
    def test_one_is_followed_until_nobody_wants_it(self) -> None:
        manager = TaskManager()
        first, second = following(manager, A, B)
        assert manager.owned == frozenset()
        assert manager.is_settled, "it runs all that it owns"
        assert manager.follow([B]) == (Close(first),)
        assert manager.state(second) is FOLLOWING
        assert manager.tick(1e9) == ()

    def test_one_that_becomes_active_goes_on_with_what_it_has(self) -> None:
        manager = TaskManager()
        (standby,) = following(manager, A)
        promote, prepare = manager.assigned(given(A))
        assert isinstance(prepare, Prepare)
        (life,) = prepare.lives
        assert promote == Promote(standby, life)
        assert manager.state(standby) is CLOSED
        assert manager.prepared([life]) == (Restore((life,)),)
        assert manager.restored(life) == (Run(life),)
        assert manager.follow([A]) == (), "nobody follows what it runs"
        assert manager.tick(1e9) == ()

    def test_one_that_is_pending_is_kept_and_not_begun(self) -> None:
        manager = TaskManager()
        (standby,) = following(manager, A)
        assert manager.follow([], kept=[A, B]) == ()
        assert manager.tick(1e9) == ()
        assert manager.state(standby) is FOLLOWING

    def test_failures_of_commits_and_a_lost_membership_leave_it_alone(self) -> None:
        manager = TaskManager()
        (standby,) = following(manager, A)
        (life,) = running(manager, B)
        assert manager.failed(0) == (Abort(), Close(life))
        assert manager.lost() == (Abort(),)
        assert manager.state(standby) is FOLLOWING

    def test_after_a_failure_of_its_own_it_begins_anew_after_a_pause(self) -> None:
        manager = TaskManager()
        (standby,) = following(manager, A)
        assert manager.following_failed(1_000) == (Close(standby),)
        assert manager.tick(1_000 + RETRY_MS_MAX - 1) == ()
        (prepare,) = manager.tick(1_000 + RETRY_MS_MAX)
        assert isinstance(prepare, Prepare)
        assert prepare.lives[0].is_standby

    def test_a_task_that_ends_here_is_followed_once_it_has_ended(self) -> None:
        manager = TaskManager()
        (life,) = running(manager, A)
        manager.revoked([A])
        manager.follow([A])
        assert manager.tick(1e9) == (), "its last commit is under way"
        assert manager.committed() == (Close(life),)
        (prepare,) = manager.tick(1e9)
        assert isinstance(prepare, Prepare)
        assert prepare.lives[0].is_standby


class AnySequence(RuleBasedStateMachine):
    """The rim as it could be: late, early, twice. It does what effects say, and watches."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = TaskManager()
        self.now_ms = 0.0
        self.to_prepare: list[Life] = []
        self.to_restore: list[Life] = []
        self.lives: list[Life] = []
        self.open: set[Life] = set()  # prepared and not closed
        self.running: set[Life] = set()
        self.owned: set[TaskId] = set()
        self.standbys: set[TaskId] = set()
        self.must_commit = False

    def do(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Prepare(lives):
                    taken = {life.task_id for life in self.open}
                    assert not taken & {life.task_id for life in lives}, "two lives of one task"
                    self.open |= set(lives)
                    self.lives += lives
                    self.to_prepare += lives
                case Follow(lives):
                    assert set(lives) <= self.open
                    assert all(life.is_standby for life in lives)
                case Promote(standby, life):
                    assert standby in self.open
                    assert standby.task_id == life.task_id
                    self.open.remove(standby)
                case Restore(lives):
                    assert set(lives) <= self.open
                    assert not any(life.is_standby for life in lives)
                    self.to_restore += lives
                case Run(life):
                    assert life in self.open
                    self.running.add(life)
                case Commit():
                    self.must_commit = True
                case Abort():
                    self.must_commit = False
                case Close(life):
                    self.open.remove(life)
                    self.running.discard(life)

    @precondition(lambda self: not self.must_commit)
    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        free = [TaskId(0, n) for n in range(4) if TaskId(0, n) not in self.owned]
        chosen = data.draw(st.sets(st.sampled_from(free)) if free else st.just(set()))
        self.owned |= chosen
        self.standbys -= chosen
        self.do(self.manager.assigned(given(*chosen)))

    @precondition(lambda self: not self.must_commit)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        mine = sorted(self.owned)
        chosen = data.draw(st.sets(st.sampled_from(mine)) if mine else st.just(set()))
        self.owned -= chosen
        self.do(self.manager.revoked(chosen))

    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        if self.to_prepare:
            life = data.draw(st.sampled_from(self.to_prepare))
            self.to_prepare.remove(life)
            self.do(self.manager.prepared([life]))

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        if self.lives:
            self.do(self.manager.restored(data.draw(st.sampled_from(self.lives))))

    @precondition(lambda self: not self.must_commit)
    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        all_tasks = st.sampled_from([TaskId(0, n) for n in range(4)])
        self.standbys = data.draw(st.sets(all_tasks)) - self.owned
        self.do(self.manager.follow(self.standbys))

    @rule()
    def fail_following(self) -> None:
        self.do(self.manager.following_failed(self.now_ms))

    @rule()
    def commit(self) -> None:
        self.must_commit = False
        self.do(self.manager.committed())

    @rule()
    def fail(self) -> None:
        self.do(self.manager.failed(self.now_ms))

    @rule()
    def lose(self) -> None:
        self.owned.clear()
        self.do(self.manager.lost())

    @rule(pause_ms=st.sampled_from([1.0, RETRY_MS, RETRY_MS_MAX]))
    def wait(self, pause_ms: float) -> None:
        self.now_ms += pause_ms
        self.do(self.manager.tick(self.now_ms))

    @invariant()
    def the_rim_and_the_manager_agree(self) -> None:
        states = CREATED, RESTORING, FOLLOWING, RUNNING, SUSPENDED
        assert set(self.manager.lives(*states)) == self.open
        assert len({life.task_id for life in self.open}) == len(self.open)
        assert self.manager.standbys.keys() <= self.standbys
        assert set(self.manager.lives(RUNNING, SUSPENDED)) == self.running
        assert self.manager.owned == self.owned
        assert {life.task_id for life in self.manager.lives(RUNNING)} <= self.owned

    @invariant()
    def only_a_commit_keeps_a_task_that_is_given_up(self) -> None:
        given_up = [
            life for life in self.open if not (life.is_standby or life.task_id in self.owned)
        ]
        assert all(self.manager.state(life) is SUSPENDED for life in given_up)
        assert not given_up or self.must_commit
        assert all(self.manager.state(life) is CLOSED for life in set(self.lives) - self.open)

    def teardown(self) -> None:
        """From wherever it stands, all that the worker has comes to run."""
        self.commit()
        self.wait(2 * RETRY_MS_MAX)
        while self.to_prepare:
            self.do(self.manager.prepared([self.to_prepare.pop()]))
        while self.to_restore:
            self.do(self.manager.restored(self.to_restore.pop()))
        for life in self.manager.lives(RESTORING):
            self.do(self.manager.restored(life))
        assert self.manager.is_settled
        assert {life.task_id for life in self.running} == self.owned
        assert {life.task_id for life in self.manager.lives(FOLLOWING)} == self.standbys


TestAnySequence = AnySequence.TestCase
