"""Fetch sessions: epochs, news, forgetting, eviction, and a reader that is never left behind."""

from __future__ import annotations

import gc
from collections.abc import Generator
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.broker.reading import Asked, Key, Reading, Replica
from kafkalite.core.broker.sessions import (
    EVICTION_MS,
    ID_MAX,
    PARTITIONS_PER_SLICE,
    FetchSession,
    FetchSessions,
    OpenFetch,
    partitions_asked,
)
from kafkalite.core.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode

ID, OTHER_ID = UUID(int=7), UUID(int=8)
BROKERS = (1, 2, 3)  # that are registered


def request(
    session_id: int, epoch: int, *partitions: int, forget: tuple[int, ...] = (), topic: str = "t"
) -> FetchRequest:
    topics = (FetchTopic(topic, ID, tuple(FetchPartition(p) for p in partitions)),)
    forgotten = (ForgottenTopic(topic, ID, forget),)
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=topics if partitions else (),
        forgotten_topics_data=forgotten if forget else (),
    )


def data(index: int, high_watermark: int = 0, records: bytes = b"") -> PartitionData:
    return PartitionData(index, ErrorCode.NONE, high_watermark, log_start_offset=0, records=records)


class Told:
    """Sessions whose partitions all have the same to tell."""

    def __init__(self, slots_max: int = 10) -> None:
        self.sessions = FetchSessions(slots_max, Random(1), BROKERS.__contains__)

    def open(self, asked: FetchRequest, now_ms: int = 0, by_id: bool = False) -> OpenFetch:
        opened = self.sessions.open(asked, {ID: "t"}, by_id, now_ms)
        assert isinstance(opened, OpenFetch), opened
        return opened

    def ask(
        self,
        asked: FetchRequest,
        has: dict[int, PartitionData] | None = None,
        now_ms: int = 0,
    ) -> FetchResponse:
        opened = self.open(asked, now_ms)
        reading = opened.reading
        for key, each in reading.asked.items():
            place = each.partition.partition
            reading.found[key] = (has or {}).get(place) or data(place)
        return self.sessions.answer(opened, lambda: now_ms)

    def refusal(self, asked: FetchRequest, by_id: bool = False) -> ErrorCode:
        opened = self.sessions.open(asked, {}, by_id, 0)
        assert isinstance(opened, ErrorCode)
        return opened


def told(response: FetchResponse) -> list[int]:
    return [p.partition_index for topic in response.responses for p in topic.partitions]


def test_only_news_is_told() -> None:
    it = Told()
    first = it.ask(request(0, 0, 0, 1, 2))
    assert first.session_id > 0
    assert told(first) == [0, 1, 2]
    session = first.session_id
    assert told(it.ask(request(session, 1))) == []
    assert told(it.ask(request(session, 2), {1: data(1, 5)})) == [1]
    assert told(it.ask(request(session, 3), {1: data(1, 5)})) == []
    assert told(it.ask(request(session, 4), {1: data(1, 5, b"abc"), 2: data(2)})) == [1]
    moved = PartitionData(0, high_watermark=0, log_start_offset=3, records=b"")
    assert told(it.ask(request(session, 5), {0: moved, 1: data(1, 5)})) == [0]


def test_an_error_is_always_told_and_so_is_its_end() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0)).session_id
    failed = PartitionData(0, ErrorCode.KAFKA_STORAGE_ERROR, -1, records=b"")
    assert told(it.ask(request(session, 1), {0: failed})) == [0]
    assert told(it.ask(request(session, 2), {0: failed})) == [0]
    assert told(it.ask(request(session, 3))) == [0]
    assert told(it.ask(request(session, 4))) == []


def test_a_request_adds_changes_and_forgets() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0, 1)).session_id
    assert told(it.ask(request(session, 1, 2, forget=(0,)))) == [2]
    changed = FetchRequest(
        session_id=session,
        session_epoch=2,
        topics=(FetchTopic("t", partitions=(FetchPartition(1, fetch_offset=9),)),),
    )
    wanted = [each.partition for each in it.open(changed).reading.asked.values()]
    assert [(w.partition, w.fetch_offset) for w in wanted] == [(1, 9), (2, 0)]


def test_a_session_without_partitions_is_closed() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0)).session_id
    response = it.ask(request(session, 1, forget=(0,)))
    assert (response.session_id, len(it.sessions)) == (0, 0)


def test_partitions_with_records_go_to_the_end() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0, 1, 2)).session_id
    it.ask(request(session, 1), {0: data(0, 1, b"x")})
    order = [
        each.partition.partition for each in it.open(request(session, 2)).reading.asked.values()
    ]
    assert order == [1, 2, 0]


def test_refusals() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0)).session_id
    assert it.refusal(request(session ^ 1, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert it.refusal(request(0, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert it.refusal(request(session, 2)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert it.refusal(request(session, 1), by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert told(it.ask(request(session, 1))) == []  # a refusal changes nothing


def test_a_session_that_went_on_elsewhere_gives_no_answer_twice() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0)).session_id
    slow = it.open(request(session, 1))
    it.open(request(session, 2))
    answer = it.sessions.answer(slow, int)
    assert (answer.error_code, answer.session_id) == (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        session,
    )


def test_full_requests_close_the_session_they_name() -> None:
    it = Told()
    first = it.ask(request(0, 0, 0)).session_id
    second = it.ask(request(first, 0, 0)).session_id
    assert it.refusal(request(first, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert it.ask(request(second, -1, 0)).session_id == 0
    assert not len(it.sessions)


def test_epochs_wrap_to_1() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0)).session_id
    it.sessions._sessions[session].epoch = ID_MAX
    it.ask(request(session, ID_MAX))
    assert told(it.ask(request(session, 1))) == []


def test_topics_by_id() -> None:
    it = Told()
    unknown = FetchRequest(
        session_epoch=0, topics=(FetchTopic("", OTHER_ID, (FetchPartition(0),)),)
    )
    opened = it.open(unknown, by_id=True)
    assert [each.topic for each in opened.reading.asked.values()] == [None]
    opened.reading.found[OTHER_ID.bytes, 0] = data(0)
    answer = it.sessions.answer(opened, int)
    assert answer.responses[0].topic_id == OTHER_ID
    # It has a name by now, which stays the session's even when another topic takes it.
    later = request(answer.session_id, 1)
    for epoch, names in ((1, {OTHER_ID: "u"}), (2, {})):
        later = request(answer.session_id, epoch)
        again = it.sessions.open(later, names, True, 0)
        assert isinstance(again, OpenFetch)
        assert [each.topic for each in again.reading.asked.values()] == ["u"]


def test_what_stands_twice_counts_once() -> None:
    it = Told()
    assert told(it.ask(request(0, -1, 0, 0, 1))) == [0, 1]


def test_a_full_cache_gives_no_session_unless_another_deserves_to_go() -> None:
    it = Told(slots_max=2)
    large = it.ask(request(0, 0, 0, 1, 2), now_ms=0).session_id
    small = it.ask(request(0, 0, 0, 1), now_ms=1).session_id
    assert it.ask(request(0, 0, 0, 1, 2, 3), now_ms=2).session_id == 0  # both are new
    old_ms = EVICTION_MS + 2
    it.ask(request(large, 1), now_ms=old_ms)
    it.ask(request(small, 1), now_ms=old_ms)  # both are in use
    assert it.ask(request(0, 0, 0), now_ms=old_ms).session_id == 0  # not more than the small one
    assert it.ask(request(0, 0, 0, 1), now_ms=old_ms).session_id > 0
    assert it.refusal(request(small, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert it.ask(request(0, 0, 5), now_ms=2 * old_ms).session_id > 0  # the large one is stale
    assert it.refusal(request(large, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(it.sessions), it.sessions.evictions) == (2, 2)


def test_without_slots_there_are_no_sessions_but_those_of_followers() -> None:
    it = Told(slots_max=0)
    assert it.ask(request(0, 0, 0)).session_id == 0
    assert it.ask(replace(request(0, 0, 0), replica_state=ReplicaState(2, 7))).session_id > 0
    old_ms = EVICTION_MS + 2
    assert it.ask(request(0, 0, 1, 2), now_ms=old_ms - 3).session_id == 0
    assert it.sessions.evictions == 0


def test_a_client_that_calls_itself_a_broker_gets_no_session_without_a_slot() -> None:
    it = Told(slots_max=2)
    begun = [
        it.ask(replace(request(0, 0, 0), replica_state=ReplicaState(node_id, 7))).session_id
        for node_id in range(10, 20)
    ]
    assert [session > 0 for session in begun] == [True] * 2 + [False] * 8
    assert len(it.sessions) == 2


def test_one_request_is_kept_of_clients_that_call_themselves_brokers() -> None:
    """A reading knows its partitions, up to some ten thousand."""
    it = Told(slots_max=0)
    for node_id in range(10, 20):
        it.ask(replace(request(0, 0, 0), replica_state=ReplicaState(node_id, 7)))
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is Reading]
    assert [reading.replica_id for reading in kept if reading.replica_id >= 10] == [19]


def test_a_follower_confirms_its_leader_by_the_answers_that_it_has_had() -> None:
    """Its request may have waited for a broker that was paused: when it was sent nobody knows."""
    it, state = Told(), ReplicaState(2, 7)
    begun = it.open(replace(request(0, 0, 0), replica_state=state), now_ms=100)
    assert begun.reading.confirmed_ms < 0
    begun.reading.answered_ms = 110
    begun.reading.found = {key: data(0) for key in begun.reading.asked}
    found = it.sessions.answer(begun, lambda: 110).session_id
    next_one = it.open(replace(request(found, 1), replica_state=state), now_ms=9_000)
    assert (next_one.reading.confirmed_ms, next_one.reading.fetched_ms) == (110, 9_000)


def test_a_follower_that_asks_for_one_position_goes_on_as_with_any_request() -> None:
    """`resume_at` changes nothing for other requests, and the caller opens them as usual."""
    life, other_life = Replica(2, 7), Replica(2, 8)
    key, there = (ID.bytes, 0), FetchPartition(0, 1, fetch_offset=5, last_fetched_epoch=1)

    def begun() -> tuple[FetchSessions, FetchSession]:
        sessions = FetchSessions(10, Random(1), BROKERS.__contains__)
        state = ReplicaState(*life)
        whole = replace(request(0, 0, 0, 1), replica_state=state)
        opened = sessions.open(whole, {ID: "t"}, True, 0)
        assert isinstance(opened, OpenFetch)
        opened.reading.found = {key: data(key[1]) for key in opened.reading.asked}
        sessions.answer(opened, lambda: 0)
        (session,) = sessions._sessions.values()
        session.reading.looked({key})
        session.reading.answered_ms = 3
        return sessions, session

    def state(session: FetchSession) -> object:
        reading = session.reading
        parked, confirmed = reading._parked, reading.confirmed_ms
        times = session.used_ms, reading.fetched_ms, confirmed
        return session.epoch, dict(reading.asked), set(reading.unsettled()), parked, times

    sessions, session = begun()
    session.reading.park(DelayedFetch(None, 1), lambda _: None)
    opened = sessions.resume_at(session.session_id, 1, key, there, 9, life)
    twins, twin = begun()
    asked = {key: Asked("t", ID, there)}
    expected = twins.resume(twin.session_id, 1, True, asked, {ID: "t"}, 9, life)
    assert opened is not None
    assert expected is not None
    assert (opened.epoch, opened.session) == (expected.epoch, session)
    assert state(session) == state(twin)
    for epoch, where, who in (
        (1, key, life),
        (3, key, life),
        (2, (ID.bytes, 7), life),
        (2, (OTHER_ID.bytes, 0), life),
        (2, key, other_life),
    ):
        before = state(session)
        assert sessions.resume_at(session.session_id, epoch, where, there, 9, who) is None
        assert state(session) == before
    assert sessions.resume_at(session.session_id + 1, 2, key, there, 9, life) is None
    for stale in (set[Key](), {key, (ID.bytes, 1)}):
        session.reading.looked(stale)
        assert sessions.resume_at(session.session_id, 2, key, there, 9, life) is None
    session.reading.looked({key})
    session.reading.found = {(ID.bytes, 1): data(1)}
    assert sessions.resume_at(session.session_id, 2, key, there, 9, life) is None
    session.reading.found = {}
    session.is_changing = True
    assert sessions.resume_at(session.session_id, 2, key, there, 9, life) is None
    session.is_changing = False
    sessions.open(replace(request(0, 0, 1), replica_state=ReplicaState(*life)), {}, True, 0)
    assert sessions.resume_at(session.session_id, 2, key, there, 9, life) is None, "out of order"


def test_a_partition_that_is_forgotten_is_not_asked_for_though_it_is_watched() -> None:
    class Held:
        topic_partition = TopicPartition("t", 0)

        def __init__(self) -> None:
            self.watchers: dict[Any, None] = {}
            self.followers: dict[Any, None] = {}

    held, it = Held(), Told()
    reading = it.open(request(0, 0, 0, 1)).reading
    (key, _) = reading.asked
    assert not reading.still_asks(held)
    reading.watch(held, key)
    assert reading.still_asks(held)
    reading.forget(key)
    assert not reading.still_asks(held)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30))
def test_a_reader_that_believes_what_it_is_told_knows_everything(
    steps: list[tuple[int, bool, bool]],
) -> None:
    """High watermarks and errors as the reader pieces them together are those of the broker."""
    it = Told()
    marks = dict.fromkeys(range(4), 0)
    failing: set[int] = set()
    believed: dict[int, tuple[int, ErrorCode]] = {}

    def now() -> dict[int, PartitionData]:
        return {
            p: PartitionData(p, ErrorCode.KAFKA_STORAGE_ERROR, -1, records=b"")
            if p in failing
            else data(p, marks[p])
            for p in marks
        }

    def learn(response: FetchResponse) -> None:
        for topic in response.responses:
            for p in topic.partitions:
                believed[p.partition_index] = (p.high_watermark, p.error_code)

    first = it.ask(request(0, 0, *marks), now())
    learn(first)
    for epoch, (partition, grows, fails) in enumerate(steps, start=1):
        marks[partition] += grows
        (failing.add if fails else failing.discard)(partition)
        truth = now()
        learn(it.ask(request(first.session_id, epoch), truth))
        assert believed == {p: (d.high_watermark, d.error_code) for p, d in truth.items()}


def slices_of(it: Told, asked: FetchRequest, now_ms: int = 0) -> Generator[None, None, Any]:
    names = {ID: "t"}
    wanted = partitions_asked(asked, names, False)
    return it.sessions.open_in_slices(asked, names, False, now_ms, wanted)


def finished(slices: Generator[None, None, Any]) -> tuple[Any, int]:
    """What slices return, and how many there are."""
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value, count
        count += 1


MANY = range(10, 10 + 2 * PARTITIONS_PER_SLICE + 1)


def test_very_many_partitions_come_and_go_in_slices() -> None:
    one, other = Told(), Told()
    for it in (one, other):
        session = it.ask(request(0, 0, 0, 1)).session_id
    for epoch, asked in enumerate(
        (request(session, 1, *MANY), request(session, 2, 0, forget=tuple(MANY))), start=1
    ):
        opened, count = finished(slices_of(one, asked))
        assert count >= 3
        assert opened.reading.asked == other.open(asked).reading.asked
        assert (opened.epoch, opened.is_superseded) == (epoch + 1, False)
        for each in opened.reading.asked:
            opened.reading.found[each] = data(each[1])
        one.sessions.answer(opened, int)
    assert told(one.ask(request(session, 3), {1: data(1, 7)})) == [1]


def test_a_session_that_changes_in_slices_refuses_all_others() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0, 1)).session_id
    slices = slices_of(it, request(session, 1, *MANY))
    next(slices)
    for epoch in (1, 2):
        code = it.refusal(request(session, epoch))
        assert code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    opened, _ = finished(slices)
    assert len(opened.reading.asked) == 2 + len(MANY)
    assert len(it.open(request(session, 2)).reading.asked) == 2 + len(MANY)


def test_a_session_is_closed_where_its_reader_leaves_halfway() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0, 1)).session_id
    slices = slices_of(it, request(session, 1, *MANY))
    next(slices)
    slices.close()
    assert it.refusal(request(session, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(it.sessions) == 0


def test_a_session_that_is_closed_meanwhile_does_not_go_on() -> None:
    it = Told()
    session = it.ask(request(0, 0, 0, 1)).session_id
    slices = slices_of(it, request(session, 1, *MANY))
    next(slices)
    it.open(request(session, -1))
    assert finished(slices)[0] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
