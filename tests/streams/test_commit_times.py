"""When a worker commits: once an interval, and at once after a quiet time."""

from __future__ import annotations

from kafkalite.streams.local.commit_times import CommitTimes


def test_records_after_a_quiet_time_are_committed_at_once() -> None:
    times = CommitTimes(0.5, 50.0)
    assert times.wait_ms(50.0, 100) == 100
    assert times.due_in(50.0) == 0.5
    times.committed(50.5, wrote=False)
    times.processed(1)
    assert times.wait_ms(50.75, 100) == 0
    assert times.due_in(50.75) < 0


def test_a_busy_worker_commits_once_an_interval_and_does_not_wait_longer() -> None:
    times = CommitTimes(0.5, 50.0)
    times.processed(1)
    times.committed(50.0, wrote=True)
    times.processed(0)
    assert times.wait_ms(50.25, 1_000) == 1_000, "nothing is there to commit"
    times.processed(3)
    assert times.wait_ms(50.25, 1_000) == 250
    assert times.wait_ms(50.25, 100) == 100
    assert times.wait_ms(51.0, 100) == 0
    assert times.due_in(50.25) == 0.25


def test_a_commit_that_is_put_off_comes_an_interval_later() -> None:
    times = CommitTimes(0.5, 50.0)
    times.processed(1)
    times.put_off(60.0)
    assert times.due_in(60.0) == 0.5
    assert times.wait_ms(60.25, 1_000) == 250
