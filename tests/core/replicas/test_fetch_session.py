"""A follower's fetch session as it begins, goes on and begins anew."""

from __future__ import annotations

from uuid import UUID

from kafkalite.core.protocol.fetch import FetchResponse
from kafkalite.core.replicas.fetch_session import FetchLimits, FetchSession
from kafkalite.core.replicas.follower import Position
from kafkalite.errors import ErrorCode

KEY = UUID(int=1), 0


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
