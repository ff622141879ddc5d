"""Deadlines: what is due comes out once and in order, whatever was put off meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.coordinators.deadlines import LEFT_OVER_MIN, Deadlines

KEYS = st.sampled_from("abcdef")
TIMES = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, TIMES),
        st.tuples(st.just("cancel"), KEYS, TIMES),
        st.tuples(st.just("due"), KEYS, TIMES),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_it_agrees_with_a_plain_dict(steps: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    plain: dict[str, int] = {}
    for verb, key, time_ms in steps:
        if verb == "set":
            deadlines.set(key, time_ms)
            plain[key] = time_ms
        elif verb == "cancel":
            deadlines.cancel(key)
            plain.pop(key, None)
        else:
            due = {k for k, ms in plain.items() if ms <= time_ms}
            came = list(deadlines.due(time_ms))
            assert len(came) == len(due)
            assert set(came) == due
            plain = {k: ms for k, ms in plain.items() if k not in due}
        assert len(deadlines) == len(plain)
        assert {k: deadlines.time(k) for k in plain} == plain
        next_ms = deadlines.next_ms()
        assert (next_ms is None) == (not plain)
        assert next_ms is None or next_ms <= min(plain.values())


def test_what_is_due_comes_earliest_first_and_what_was_put_off_does_not_come() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, time_ms in [("late", 30), ("early", 10), ("kept alive", 5), ("later", 99)]:
        deadlines.set(key, time_ms)
    deadlines.set("kept alive", 100)
    assert list(deadlines.due(50)) == ["early", "late"]
    assert "kept alive" in deadlines
    assert list(deadlines.due(100)) == ["later", "kept alive"]


def test_a_key_may_be_set_anew_while_others_come_out() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1)
    deadlines.set("b", 2)
    came = []
    for key in deadlines.due(10):
        came.append(key)
        deadlines.cancel("b")
        deadlines.set("c", 3)
        if len(came) == 2:
            break
    assert came == ["a", "c"]


def test_heartbeats_do_not_grow_the_heap() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for time_ms in range(10_000):
        deadlines.set(time_ms % 3, time_ms + 10)
        deadlines.set(7, 1_000_000 - time_ms)  # always earlier: a new heap entry each time
        deadlines.cancel(time_ms % 2)
    assert len(deadlines._heap) <= 2 * len(deadlines) + LEFT_OVER_MIN
