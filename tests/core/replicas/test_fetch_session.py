"""A follower's fetch session as it begins, goes on and begins anew."""

from __future__ import annotations

from uuid import UUID

from kafkalite.core.protocol import codec
from kafkalite.core.protocol.fetch import FetchRequest, FetchResponse
from kafkalite.core.protocol.usual_fetch import FETCH_V, News
from kafkalite.core.replicas.fetch_session import FetchLimits, FetchSession
from kafkalite.core.replicas.follower import Position
from kafkalite.errors import ErrorCode

KEY, OTHER = (UUID(int=1).bytes, 0), (UUID(int=2).bytes, 0)


def begun() -> FetchSession:
    """A session that the leader has just made."""
    session = FetchSession(2)
    session.ask(KEY, Position(1, 5, 10, 4, 0))
    assert named(session) == (0, 0, 1)
    session.take(FetchResponse(session_id=7))
    return session


def named(session: FetchSession) -> tuple[int, int, int]:
    """The session that the next request names, its epoch, and how many partitions."""
    request = session.request(33, FetchLimits())
    partitions = sum(len(topic.partitions) for topic in request.topics)
    return request.session_id, request.session_epoch, partitions


def test_what_has_not_changed_is_named_once() -> None:
    session = begun()
    assert named(session) == (7, 1, 0)
    session.take(FetchResponse(session_id=7))
    session.ask(KEY, Position(1, 5, 11, 5, 0))
    assert named(session) == (7, 2, 1)


def test_a_new_session_ends_the_one_before() -> None:
    """Else the leader keeps it, and tells it of each append, until others want its place."""
    session = begun()
    session.reset()
    assert named(session) == (7, 0, 1)
    session.take(FetchResponse(session_id=8))
    assert named(session) == (8, 1, 0)
    session.take(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
    assert named(session) == (8, 0, 1)


def test_a_session_that_the_leader_does_not_know_is_not_named_again() -> None:
    session = begun()
    session.take(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    assert named(session) == (0, 0, 1)


def short(session: FetchSession) -> FetchRequest | None:
    body = session.short_request(33, FetchLimits())
    return None if body is None else codec.decode(FetchRequest, memoryview(body), FETCH_V)


def test_one_changed_position_is_asked_for_in_short() -> None:
    session, other = begun(), begun()
    assert short(session) is None, "nothing has changed"
    for each in (session, other):
        each.ask(KEY, Position(1, 5, 11, 5, 0))
    assert short(session) == other.request(33, FetchLimits())
    assert short(session) is None, "the leader knows it now"
    session.ask(OTHER, Position(1, 3, 1, 3, 0))
    session.ask(KEY, Position(1, 5, 12, 5, 0))
    assert short(session) is None, "two have changed"
    assert named(session) == (7, 1, 2)
    session.ask(KEY, Position(1, 5, 13, 5, 0))
    session.forget(OTHER)
    assert short(session) is None, "the leader must hear of the other, too"
    session.reset()
    session.ask(KEY, Position(1, 5, 14, 5, 0))
    assert short(session) is None, "a new session names all"


def test_news_are_for_the_position_that_was_asked_for() -> None:
    session = begun()
    asked = Position(1, 5, 11, 5, 0)
    session.ask(KEY, asked)
    assert short(session) is not None
    answer = session.take_news(News(7, *KEY, 15, 3, memoryview(b"r")))
    assert answer is not None
    assert (answer.key, answer.asked) == (KEY, asked)
    assert (answer.answer.high_watermark, answer.answer.log_start_offset) == (15, 3)
    assert answer.answer.records == b"r"
    assert session.take_news(News(7, *OTHER, 15, 3, memoryview(b"r"))) is None
    assert named(session) == (7, 2, 0), "what it did not take does not count"
