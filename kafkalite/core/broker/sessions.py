"""Incremental fetch sessions: the broker remembers a reader's partitions and sends only news.  [P]

    session_epoch -1            no session; one that the request names is closed
                   0            all partitions are in the request; a session begins with the answer
                   1, 2, 3 …    the request holds what changed since the last one, and what is
                                forgotten; its epoch must be the one that is due

An answer within a session leaves out the partitions without news: no records, no error, and the
high watermark and log start offset that the reader knows. Partitions that had records move to the
end, so that the others come first the next time that `max_bytes` does not suffice for all.

When all slots are taken a new session gets one of a session that was not used for EVICTION_MS;
else of the smallest among those older than EVICTION_MS, if it has no more partitions than the new
one. If there is none the reader goes on without a session.

Owns   the sessions. A session is found by its id, from any connection.
Never  reads a partition.
Fails  with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
Source KIP-227, KIP-516; apache/kafka `FetchSession`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from kafkalite.core.protocol.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.protocol.primitives import ZERO_UUID, records_size
from kafkalite.errors import ErrorCode

EVICTION_MS: Final = 120_000
NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0  # of a request that begins a session
FINAL_EPOCH: Final = -1  # of one that wants none
ID_MAX: Final = (1 << 31) - 1
UNKNOWN: Final = -1  # an offset that the reader was not told

Key = tuple[str | UUID, int]  # the topic by name or by id, as the reader calls it; the partition


class Asked(NamedTuple):
    """One partition that is to be read. `topic` is None while no topic has the id."""

    topic: str | None
    topic_id: UUID  # zero where the reader calls topics by their names
    partition: FetchPartition


@dataclass(slots=True)
class CachedPartition:
    """A partition of a session: what is asked of it, and what its reader was told last."""

    asked: Asked
    high_watermark: int = UNKNOWN
    log_start_offset: int = UNKNOWN

    def take_note(self, found: PartitionData) -> bool:
        """Whether `found` is news; from now on the reader knows it."""
        is_news = (
            found.error_code is not ErrorCode.NONE
            or found.high_watermark != self.high_watermark
            or found.log_start_offset != self.log_start_offset
            or _size(found) > 0
        )
        # What failed is told again once it works, whatever it is then.
        failed = found.error_code is not ErrorCode.NONE
        self.high_watermark = UNKNOWN if failed else found.high_watermark
        self.log_start_offset = found.log_start_offset
        return is_news


@dataclass(slots=True, eq=False)
class FetchSession:
    """What one reader asks for."""

    session_id: int
    uses_topic_ids: bool
    created_ms: int
    used_ms: int
    epoch: int  # of the next request
    partitions: dict[Key, CachedPartition] = field(default_factory=dict)

    def update(self, asked: Mapping[Key, Asked], forgotten: Iterable[Key]) -> None:
        """Takes in what a request adds, changes and forgets."""
        for key, each in asked.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = CachedPartition(each)
            else:
                known.asked = Asked(known.asked.topic or each.topic, *each[1:])
        for key in forgotten:
            self.partitions.pop(key, None)

    def resolve(self, names: Mapping[UUID, str]) -> None:
        """Looks again for the names of ids that no topic had."""
        for cached in self.partitions.values():
            topic, topic_id, partition = cached.asked
            if topic is None and (name := names.get(topic_id)) is not None:
                cached.asked = Asked(name, topic_id, partition)


class OpenFetch(NamedTuple):
    """One fetch under way: what to read, and the session that it belongs to or begins."""

    asked: Mapping[Key, Asked]  # in the order to read them
    begins_session: bool = False
    uses_topic_ids: bool = False
    session: FetchSession | None = None
    epoch: int = FINAL_EPOCH  # that the session still has when the answer leaves


class FetchSessions:
    """The sessions of one broker, `slots_max` at the most."""

    def __init__(self, slots_max: int, random: Random) -> None:
        self._slots_max = slots_max
        self._random = random
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def open(
        self, request: FetchRequest, names: Mapping[UUID, str], by_id: bool, now_ms: int
    ) -> OpenFetch | ErrorCode:
        """What a request is to read. `by_id`: it calls topics by ids, and `names` has the names."""
        asked = _asked(request, names, by_id)
        epoch = request.session_epoch
        if epoch in (FIRST_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._sessions.pop(request.session_id, None)
            return OpenFetch(asked, epoch == FIRST_EPOCH, by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids is not by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.update(asked, _forgotten(request, by_id))
        del self._sessions[session.session_id]
        if not session.partitions:
            return OpenFetch(asked)
        self._sessions[session.session_id] = session
        session.used_ms = now_ms
        session.epoch = _after(epoch)
        session.resolve(names)
        everything = {key: cached.asked for key, cached in session.partitions.items()}
        return OpenFetch(everything, False, by_id, session, session.epoch)

    def answer(
        self, fetch: OpenFetch, found: Sequence[PartitionData], now_ms: int
    ) -> FetchResponse:
        """The answer to `fetch`, whose partitions' data is `found`, in the same order."""
        session = fetch.session
        if session is None:
            session_id = NO_SESSION
            if fetch.begins_session:
                session_id = self._begin(fetch, found, now_ms)
            answers = zip(fetch.asked.values(), found, strict=True)
            return FetchResponse(session_id=session_id, responses=_by_topic(answers))
        if session.epoch != fetch.epoch:  # somebody else went on with it meanwhile
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return FetchResponse(error_code=code, session_id=session.session_id)
        news = _news(session, fetch, found)
        return FetchResponse(session_id=session.session_id, responses=_by_topic(news))

    def _begin(self, fetch: OpenFetch, found: Sequence[PartitionData], now_ms: int) -> int:
        """A new session's id; NO_SESSION if there is no room for it."""
        if len(self._sessions) >= self._slots_max and not self._evict(len(found), now_ms):
            return NO_SESSION
        session_id = self._random.randint(1, ID_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, ID_MAX)
        session = FetchSession(session_id, fetch.uses_topic_ids, now_ms, now_ms, FIRST_EPOCH + 1)
        for (key, asked), data in zip(fetch.asked.items(), found, strict=True):
            session.partitions[key] = cached = CachedPartition(asked)
            cached.take_note(data)
        self._sessions[session_id] = session
        return session_id

    def _evict(self, size: int, now_ms: int) -> bool:
        """Makes room for a session of `size` partitions; False if none deserves to go for it."""
        if not self._sessions:
            return False
        session = next(iter(self._sessions.values()))
        if now_ms - session.used_ms <= EVICTION_MS:
            old = [s for s in self._sessions.values() if now_ms - s.created_ms > EVICTION_MS]
            if not old:
                return False
            session = min(old, key=lambda each: len(each.partitions))
            if len(session.partitions) > size:
                return False
        del self._sessions[session.session_id]
        self.evictions += 1
        return True


def _news(
    session: FetchSession, fetch: OpenFetch, found: Sequence[PartitionData]
) -> Iterable[tuple[Asked, PartitionData]]:
    """What the session's reader does not know yet."""
    partitions = session.partitions
    for (key, asked), data in zip(fetch.asked.items(), found, strict=True):
        if partitions[key].take_note(data):
            if _size(data):
                partitions[key] = partitions.pop(key)
            yield asked, data


def _size(data: PartitionData) -> int:
    return 0 if data.records is None else records_size(data.records)


def _after(epoch: int) -> int:
    """The epoch after `epoch`: never one that begins or ends a session."""
    return 1 if epoch == ID_MAX else epoch + 1


def _asked(request: FetchRequest, names: Mapping[UUID, str], by_id: bool) -> dict[Key, Asked]:
    """The partitions of a request; of one that stands there twice the last word counts."""
    asked: dict[Key, Asked] = {}
    for topic in request.topics:
        if by_id:
            named, topic_id = names.get(topic.topic_id), topic.topic_id
            for partition in topic.partitions:
                asked[topic_id, partition.partition] = Asked(named, topic_id, partition)
        else:
            name = topic.topic
            for partition in topic.partitions:
                asked[name, partition.partition] = Asked(name, ZERO_UUID, partition)
    return asked


def _forgotten(request: FetchRequest, by_id: bool) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield (topic.topic_id if by_id else topic.topic), partition


def _by_topic(
    answers: Iterable[tuple[Asked, PartitionData]],
) -> tuple[FetchableTopicResponse, ...]:
    """Answers in their order; neighbours of one topic stand together."""
    topics: list[tuple[Asked, list[PartitionData]]] = []
    for asked, data in answers:
        last = topics[-1][0] if topics else None
        if last is not None and (last.topic, last.topic_id) == (asked.topic, asked.topic_id):
            topics[-1][1].append(data)
        else:
            topics.append((asked, [data]))
    return tuple(
        FetchableTopicResponse(asked.topic or "", asked.topic_id, tuple(partitions))
        for asked, partitions in topics
    )
