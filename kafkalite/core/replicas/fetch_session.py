"""A broker's fetches from one leader: all its followers' positions in one session.           [P]

    positions ──request──> full, or what changed since ──> take ──> answers, each to its position
              ──short_request──> one position ──> take_news ──> the answer to it

A session's requests name the partitions whose position has changed, and those that are not fetched
any more; the leader answers with the partitions that have news (KIP-227). Without a session, which
a leader may refuse, each request names all. Where one position has changed, request and answer are
written and read without messages (`usual_fetch`).

Owns   what the leader knows of our positions.
Never  looks at a log. One request at a time: `take` or `reset` follows each.
Fails  by beginning anew, with a full request, where the leader does not know the session.
Source KIP-227, KIP-903; apache/kafka `FetchSessionHandler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast
from uuid import UUID

from kafkalite.core.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.usual_fetch import News, write_fetch
from kafkalite.core.replicas.follower import LeaderAnswer, Position
from kafkalite.errors import ErrorCode

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
EPOCH_MAX: Final = (1 << 31) - 1

Key = tuple[bytes, int]  # topic id and partition; bytes know their hash, a UUID does not


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much to ask for, and how long to wait for it."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10_485_760  # of an answer
    partition_max_bytes: int = 1_048_576


class Answer(NamedTuple):
    """The leader's answer to one position."""

    key: Key
    asked: Position
    answer: LeaderAnswer


@dataclass(slots=True)
class FetchSession:
    """The fetches of broker `node_id` from one leader."""

    node_id: int
    session_id: int = NO_SESSION
    epoch: int = FIRST_EPOCH
    positions: dict[Key, Position] = field(default_factory=dict)  # that are fetched
    _changed: dict[Key, None] = field(default_factory=dict)  # since the last request
    _forgotten: dict[Key, None] = field(default_factory=dict)

    def ask(self, key: Key, position: Position) -> None:
        """Fetches a partition from `position` on, with the next request."""
        if self.positions.get(key) != position:
            self.positions[key] = position
            self._changed[key] = None
            if self._forgotten:
                self._forgotten.pop(key, None)

    def forget(self, key: Key) -> None:
        """Fetches a partition no more."""
        if self.positions.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    @property
    def is_new(self) -> bool:
        """Whether the next request begins it."""
        return self.epoch == FIRST_EPOCH

    def request(self, broker_epoch: int, limits: FetchLimits) -> FetchRequest:
        """The next request."""
        is_full = self.is_new
        named = self.positions if is_full else self._changed
        request = FetchRequest(
            replica_state=ReplicaState(self.node_id, broker_epoch),
            max_wait_ms=limits.wait_max_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=tuple(
                FetchTopic("", UUID(bytes=topic_id), tuple(self._wanted(topic_id, indexes, limits)))
                for topic_id, indexes in _by_topic(named)
            ),
            forgotten_topics_data=()
            if is_full
            else tuple(
                ForgottenTopic("", UUID(bytes=topic_id), tuple(indexes))
                for topic_id, indexes in _by_topic(self._forgotten)
            ),
        )
        self._changed, self._forgotten = {}, {}
        return request

    def short_request(self, broker_epoch: int, limits: FetchLimits) -> bytes | None:
        """The body of the next request, if one position has changed and nothing else."""
        if self.is_new or len(self._changed) != 1 or self._forgotten:
            return None
        (key,) = self._changed
        self._changed.clear()
        return write_fetch(
            key,
            self.positions[key][1:],
            (self.session_id, self.epoch),
            (limits.wait_max_ms, limits.min_bytes, limits.max_bytes, limits.partition_max_bytes),
            (self.node_id, broker_epoch),
        )

    def _wanted(
        self, topic_id: bytes, indexes: Iterable[int], limits: FetchLimits
    ) -> Iterator[FetchPartition]:
        for index in indexes:
            position = self.positions[topic_id, index]
            yield FetchPartition(
                index,
                position.leader_epoch,
                position.fetch_offset,
                position.last_fetched_epoch,
                position.log_start_offset,
                limits.partition_max_bytes,
            )

    def take(self, response: FetchResponse) -> list[Answer]:
        """The answers, each with the position that it is for. None after an error of the session,
        which begins anew."""
        if response.error_code:
            self.reset()
            if response.error_code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            return []
        self.go_on(response.session_id)
        answers = []
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id.bytes, data.partition_index
                if (asked := self.positions.get(key)) is not None:
                    answers.append(Answer(key, asked, answer_of(data)))
        return answers

    def take_news(self, news: News) -> Answer | None:
        """The answer to a request, if it is about a position that is asked for."""
        key = news.topic_id, news.partition
        asked = self.positions.get(key)
        if asked is None:
            return None
        self.go_on(news.session_id)
        answer = LeaderAnswer(
            high_watermark=news.high_watermark,
            log_start_offset=news.log_start_offset,
            records=news.records,
        )
        return Answer(key, asked, answer)

    def go_on(self, session_id: int) -> None:
        """The leader has answered in this session: the next request is its next one."""
        self.session_id = session_id
        if session_id == NO_SESSION:
            self.epoch = FIRST_EPOCH  # the leader has no room for one
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def reset(self) -> None:
        """Begins anew: the leader was not reached, or is to answer something else. A full request
        that names a session ends it."""
        self.epoch = FIRST_EPOCH


def answer_of(data: PartitionData) -> LeaderAnswer:
    """What a partition's answer says."""
    is_bytes = isinstance(data.records, bytes | bytearray | memoryview)
    records = cast(Buffer, data.records) if is_bytes else b""
    return LeaderAnswer(
        data.error_code,
        data.high_watermark,
        data.log_start_offset,
        data.diverging_epoch.epoch,
        data.diverging_epoch.end_offset,
        records,
    )


def _by_topic(keys: Iterable[Key]) -> Iterator[tuple[bytes, list[int]]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    yield from topics.items()
