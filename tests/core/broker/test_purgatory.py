"""The waiting room, alone and against the plain model that defines it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.broker.purgatory import STALE_MAX, DelayedFetch, DelayedProduce, Purgatory


def fetch(name: str, bytes_missing: int = 1) -> DelayedFetch[str]:
    return DelayedFetch(name, bytes_missing)


def tokens(operations: list) -> list[str]:
    return [operation.token for operation in operations]


def test_a_fetch_waits_for_its_bytes_over_all_its_partitions() -> None:
    purgatory: Purgatory[str] = Purgatory()
    assert purgatory.park(fetch("f", 100), ["a", "b"], deadline_ms=500)
    assert purgatory.advance("a", 1, 60) == []
    assert purgatory.advance("c", 1, 60) == []
    assert tokens(purgatory.advance("b", 1, 40)) == ["f"]
    assert len(purgatory) == 0
    assert not purgatory.waits_on("a")
    assert purgatory.expire(10_000) == []


def test_a_produce_waits_for_the_high_watermark_of_every_partition() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park(DelayedProduce("p", {"a": 10, "b": 5}), ["a", "b"], deadline_ms=500)
    assert purgatory.advance("a", 9) == []
    assert purgatory.advance("a", 12) == []
    assert tokens(purgatory.advance("b", 5)) == ["p"]


def test_what_waits_too_long_expires_in_the_order_of_deadlines() -> None:
    purgatory: Purgatory[str] = Purgatory()
    for name, deadline_ms in (("late", 30), ("early", 10), ("never", 1_000)):
        purgatory.park(fetch(name), ["a"], deadline_ms)
    assert purgatory.next_deadline_ms() == 10
    assert purgatory.expire(9) == []
    assert tokens(purgatory.expire(30)) == ["early", "late"]
    assert tokens(purgatory.drop("a")) == ["never"]


def test_a_full_room_refuses() -> None:
    purgatory: Purgatory[str] = Purgatory(capacity=1)
    first = fetch("first")
    assert purgatory.park(first, ["a"], 10)
    assert not purgatory.park(fetch("second"), ["a"], 10)
    assert purgatory.cancel(first)
    assert not purgatory.cancel(first)
    assert purgatory.park(fetch("second"), ["a"], 10)


def test_the_heap_does_not_grow_with_what_has_left() -> None:
    purgatory: Purgatory[str] = Purgatory()
    for number in range(10 * STALE_MAX):
        purgatory.park(fetch(str(number)), ["a"], deadline_ms=number + 1_000_000)
        purgatory.advance("a", number, 1)
    assert len(purgatory._deadlines) <= STALE_MAX + 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.sets(st.sampled_from("abc"), min_size=1), st.integers(1, 5)),
        st.tuples(st.just("advance"), st.sampled_from("abc"), st.integers(0, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("expire"), st.integers(0, 30), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_it_equals_a_list_that_is_searched(script: list) -> None:
    purgatory: Purgatory[str] = Purgatory()
    operations: list[DelayedFetch[str]] = []
    model: dict[int, list] = {}  # number -> [keys, bytes missing, deadline]
    for what, subject, amount in script:
        if what == "park":
            number, deadline = len(operations), amount * 5
            operations.append(fetch(str(number), amount))
            assert purgatory.park(operations[-1], sorted(subject), deadline)
            model[number] = [subject, amount, deadline]
        elif what == "advance":
            for each in model.values():
                each[1] -= amount if subject in each[0] else 0
            done = [n for n, (keys, missing, _) in model.items() if subject in keys and missing < 1]
            assert tokens(purgatory.advance(subject, 0, amount)) == [str(n) for n in done]
            model = {n: each for n, each in model.items() if n not in done}
        elif what == "cancel" and subject < len(operations):
            assert purgatory.cancel(operations[subject]) == (model.pop(subject, None) is not None)
        elif what == "expire":
            due = sorted((e[2], n) for n, e in model.items() if e[2] <= subject)
            assert tokens(purgatory.expire(subject)) == [str(n) for _, n in due]
            model = {n: each for n, each in model.items() if each[2] > subject}
    assert len(purgatory) == len(model)
    assert all(purgatory.waits_on(k) == any(k in e[0] for e in model.values()) for k in "abc")
