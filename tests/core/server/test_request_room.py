"""The room for large requests: shared by what has come, and some holder always gets on."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.server.request_room import RequestRoom

GROWTH = 4


def test_room_is_taken_step_by_step_and_given_back() -> None:
    room: RequestRoom[str] = RequestRoom(100)
    assert room.take("a", 10, 500, now=0)
    assert room.take("a", 40, 500, now=1)
    assert room.take("a", 30, 500, now=1), "it has more"
    assert room.take("b", 80, 80, now=2), "the last one let in may pass what there is"
    assert (room.taken, room.holders, room.is_wanted) == (120, ("a", "b"), False)
    room.give_back("a")
    room.give_back("a")
    assert (room.taken, room.holders) == (80, ("b",))


def test_who_waits_is_let_in_in_order() -> None:
    room: RequestRoom[str] = RequestRoom(100)
    assert room.take("a", 100, 100, now=0)
    assert not room.take("b", 60, 60, now=0)
    assert not room.take("c", 60, 60, now=0)
    assert not room.take("d", 60, 60, now=0)
    assert room.let_in(now=1) == []
    room.give_back("a")
    assert room.let_in(now=1) == ["b", "c"]
    assert (room.taken, room.waiting) == (120, ("d",))


def test_where_every_holder_waits_the_first_is_let_in_for_good() -> None:
    room: RequestRoom[str] = RequestRoom(100)
    for name in "ab":
        assert room.take(name, 50, 900, now=0)
    assert not room.take("a", 200, 900, now=1)
    assert room.let_in(now=1) == [], "b still receives"
    assert not room.take("b", 200, 900, now=2)
    assert room.let_in(now=3) == ["a"]
    assert room.take("a", 900, 900, now=4), "and never has to ask again"
    assert (room.taken, room.waiting) == (950, ("b",))
    assert room.let_in(now=5) == [], "one at a time"


def test_overdue_is_who_receives_for_too_long() -> None:
    room: RequestRoom[str] = RequestRoom(100)
    assert room.take("slow", 10, 500, now=0)
    assert room.take("late", 50, 60, now=5)
    assert room.take("slow", 50, 500, now=9), "what it takes more does not make it younger"
    assert room.overdue(before=1) == ["slow"]
    assert not room.take("slow", 200, 500, now=10)
    assert room.overdue(before=9) == ["late"], "who waits is not to blame"
    room.give_back("late")
    assert room.let_in(now=11) == ["slow"]
    assert room.overdue(before=11) == [], "and begins anew"


def test_a_host_waits_for_its_share_and_others_do_not() -> None:
    room: RequestRoom[str] = RequestRoom(100, per_host=50)
    assert room.take("a", 60, 60, now=0, host="x")
    assert not room.take("b", 10, 10, now=0, host="x")
    assert room.take("c", 30, 30, now=0, host="y"), "who waits is no obstacle to another host"
    assert room.take("d", 30, 30, now=0, host="y")
    assert not room.take("e", 10, 10, now=0, host="z"), "all is taken"
    assert room.let_in(now=1) == []
    room.give_back("c")
    assert room.let_in(now=1) == ["e"], "b is still to wait for its host"
    room.give_back("a")
    assert room.let_in(now=2) == ["b"]
    for name in "bde":
        room.give_back(name)
    assert room == RequestRoom(100, per_host=50)


def test_where_all_of_a_host_wait_the_first_of_them_is_let_in_for_good() -> None:
    room: RequestRoom[str] = RequestRoom(100, per_host=50)
    for name in "ab":
        assert room.take(name, 25, 300, now=0, host="x")
    assert room.take("c", 10, 10, now=0, host="y")
    assert not room.take("a", 50, 300, now=1, host="x")
    assert not room.take("b", 50, 300, now=1, host="x")
    assert room.let_in(now=1) == ["a"]
    assert room.take("a", 300, 300, now=2, host="x")
    assert room.waiting == ("b",)


def test_slow_is_who_receives_too_little_between_two_looks() -> None:
    room: RequestRoom[str] = RequestRoom(100)
    arrived = {"fast": 10, "slow": 40, "waits": 5}
    assert room.take("fast", 50, 500, now=0)
    assert room.take("slow", 40, 500, now=0)
    assert room.take("waits", 10, 500, now=0)
    assert not room.take("waits", 20, 500, now=0)
    assert room.slow(10, arrived.__getitem__) == [], "nothing to compare with yet"
    arrived |= {"fast": 20, "slow": 49, "waits": 5}
    assert room.slow(10, arrived.__getitem__) == ["slow"]
    room.give_back("slow")
    assert room.let_in(now=1) == ["waits"]
    assert room.slow(1, arrived.__getitem__) == ["fast"]
    assert room.slow(1, arrived.__getitem__) == ["fast", "waits"]


@dataclass
class Peer:
    host: str
    whole: int
    step: int
    is_receiving: bool = False


@given(
    capacity=st.integers(1, 300),
    sizes=st.lists(st.integers(1, 1_000), min_size=1, max_size=12),
    per_host=st.integers(1, 300),
    choose=st.randoms(use_true_random=False),
)
def test_all_come_to_their_end_and_one_of_each_host_at_most_is_beyond(
    capacity: int, sizes: list[int], per_host: int, choose: object
) -> None:
    room: RequestRoom[int] = RequestRoom(capacity, per_host)
    peers = {
        number: Peer("xyz"[number % 3], size, min(size, 16)) for number, size in enumerate(sizes)
    }
    for number, peer in peers.items():
        peer.is_receiving = room.take(number, peer.step, peer.whole, 0, peer.host)
    let_in(room, peers)
    for _ in range(1_000):
        active = [number for number, peer in peers.items() if peer.is_receiving]
        if not peers:
            break
        assert active, "nobody gets on"
        number = choose.choice(active)  # type: ignore[attr-defined]
        peer = peers[number]
        if peer.step == peer.whole:
            del peers[number]
            room.give_back(number)
        else:
            peer.step = min(peer.whole, GROWTH * peer.step)
            peer.is_receiving = room.take(number, peer.step, peer.whole, 0, peer.host)
        let_in(room, peers)
        assert room.taken < capacity + 4 * max(sizes)
    assert not peers
    assert (room.taken, room.holders, room.waiting) == (0, (), ())


def let_in(room: RequestRoom[int], peers: dict[int, Peer]) -> None:
    for number in room.let_in(0):
        peers[number].is_receiving = True
