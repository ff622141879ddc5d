"""Keys that are put into order late, against a dict that is sorted each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.streams.local.state.late_sorted import LateSorted

keys = st.integers(0, 30).map(lambda n: b"%d" % n)
steps = st.lists(st.tuples(st.sampled_from(["put", "pop", "range", "all"]), keys, keys))


@given(steps)
def test_it_is_a_dict_in_order(done: list[tuple[str, bytes, bytes]]) -> None:
    late, plain = LateSorted[int](), dict[bytes, int]()
    for at, (word, key, other) in enumerate(done):
        match word:
            case "put":
                late[key] = plain[key] = at
            case "pop":
                late.pop(key)
                plain.pop(key, None)
            case "range":
                expected = sorted(each for each in plain if key <= each < other)
                assert list(late.irange(key, other)) == expected
                assert list(late.irange(key, other, reverse=True)) == expected[::-1]
            case _:
                assert list(late) == sorted(plain)
        assert (len(late), late.get(key), key in late) == (len(plain), plain.get(key), key in plain)
    assert dict(late.items()) == plain


def test_keys_that_come_and_go_between_two_looks_cost_the_order_nothing() -> None:
    late = LateSorted[int]()
    for n in range(1_000):
        late[b"%04d" % n] = n
    assert list(late)[:2] == [b"0000", b"0001"]
    order = late._order
    for _ in range(3):
        late[b"a"] = 1
        del late[b"a"]
        del late[b"0500"]
        late[b"0500"] = 2
    assert list(late.irange(b"0500", b"0502")) == [b"0500", b"0501"]
    assert late._order is order
