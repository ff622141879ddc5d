"""Rates at the moment, of counts that grow."""

from __future__ import annotations

from kafkalite.streams.web.rates import SECONDS, STEP_SECONDS, Rates

RECORDS = ("records",)
TASK = ("task", "0_1")


def test_nothing_is_known_before_the_first_look() -> None:
    assert Rates().of(5.0, {RECORDS: 1_000}) == {RECORDS: 0.0}


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """What came before, however much, counts no more."""
    rates, at = Rates(), 0.0
    for _ in range(20):
        rates.note(at, {RECORDS: 1_000_000 + int(100 * at)})
        at += STEP_SECONDS
    assert rates.of(at, {RECORDS: 1_000_000 + int(100 * at)}) == {RECORDS: 100.0}
    for _ in range(int(SECONDS / STEP_SECONDS)):
        rates.note(at, {RECORDS: 5_000_000})
        at += STEP_SECONDS
    assert rates.of(at, {RECORDS: 5_000_000}) == {RECORDS: 0.0}


def test_a_task_that_came_counts_from_nothing_and_one_that_began_anew_is_not_negative() -> None:
    rates = Rates()
    rates.note(0.0, {RECORDS: 50})
    assert rates.of(2.0, {RECORDS: 10, TASK: 30}) == {RECORDS: 0.0, TASK: 15.0}
