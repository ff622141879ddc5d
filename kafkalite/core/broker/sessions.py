"""Incremental fetch sessions: the broker remembers a reader's partitions and sends only news.  [P]

    session_epoch -1            no session; a session that the request names is closed
                   0            the same, all partitions are in the request, and a session begins
                                with the answer
                   1, 2, 3 …    the request has changed and forgotten partitions; its epoch must be
                                the next one

An answer within a session leaves out the partitions without news: no records, no error, and the
high watermark and log start offset that the reader knows. Partitions that had records move to the
end, so that the others come first the next time that `max_bytes` does not suffice for all.

When all slots are taken a new session gets one of a session that was not used for EVICTION_MS;
else of the smallest among those older than EVICTION_MS, if it has no more partitions than the new
one. If there is none the reader goes on without a session. Sessions of followers go only where they
were not used for so long, and begin even if there is no slot, if their broker is registered.

A broker whose followers fetch has one session at a time, but uses several connections: a request
that it has given up may come after later ones, with older positions, which their leaders note. Once
the broker goes on with the session of a later request, all of its partitions are looked at again.
If a request that it has given up waits here, it is answered when the next one closes its session:
the connection is needed again.

Owns   the sessions. A session is found by its id, from any connection.
Never  reads a partition.
Fails  with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
Source KIP-227, KIP-516; apache/kafka `FetchSession`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from kafkalite.core.broker.reading import Asked, Key, Reading, Replica
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
PARTITIONS_PER_SLICE: Final = 500  # of a long answer, each some 2 us
CONSUMER: Final = -1  # in the place of a replica's broker
UNKNOWN: Final = -1  # an offset that the reader was not told

T = TypeVar("T")

Told = tuple[int, int]  # a partition's high watermark and log start offset


@dataclass(slots=True, eq=False)
class FetchSession:
    """One reader's partitions, and the last answer about each of them."""

    session_id: int
    uses_topic_ids: bool
    created_ms: int
    used_ms: int
    epoch: int  # of the next request
    reading: Reading
    told: dict[Key, Told] = field(default_factory=dict)
    is_changing: bool = False  # a long request changes it in slices; all others are refused

    def take_in(self, asked: Iterable[tuple[Key, Asked]], forgotten: Iterable[Key]) -> None:
        """Takes in what a request adds, changes and forgets, and ends the wait of the one before
        it."""
        reading = self.reading
        reading.unpark()
        for key, each in asked:
            known = reading.asked.get(key)
            topic = each.topic if known is None else known.topic or each.topic
            reading.ask(key, Asked(topic, *each[1:]))
        for key in forgotten:
            reading.forget(key)
            self.told.pop(key, None)

    def resolve(self, names: Mapping[UUID, str]) -> None:
        """Looks again for the names of ids that no topic had: looks at them have failed."""
        asked = self.reading.asked
        for key in self.reading.unsettled():
            topic, topic_id, partition = asked[key]
            if topic is None and (name := names.get(topic_id)) is not None:
                asked[key] = Asked(name, topic_id, partition)

    def take_note(self, key: Key, found: PartitionData) -> bool:
        """Whether `found` is news; from now on the reader knows it."""
        failed = found.error_code is not ErrorCode.NONE
        failed = failed or found.diverging_epoch.end_offset != UNKNOWN  # as `has_failed`
        now = UNKNOWN if failed else found.high_watermark, found.log_start_offset
        is_news = failed or _size(found) > 0 or self.told.get(key) != now
        is_news |= found.preferred_read_replica != UNKNOWN
        self.told[key] = now
        return is_news

    def news(self) -> Iterable[tuple[Asked, PartitionData]]:
        """The found changes that the reader does not know yet."""
        reading = self.reading
        found, reading.found = reading.found, {}
        return self.news_of(found, reading.in_order(found))

    def news_of(
        self, found: Mapping[Key, PartitionData], keys: Iterable[Key]
    ) -> Iterator[tuple[Asked, PartitionData]]:
        """The same of some of what was found."""
        reading = self.reading
        for key in keys:
            asked, data = reading.asked[key], found[key]
            if self.take_note(key, data):
                if _size(data):
                    reading.move_to_end(key)
                yield asked, data


class OpenFetch(NamedTuple):
    """One fetch under way: its partitions, and the session that it belongs to or begins."""

    reading: Reading
    begins_session: bool = False
    uses_topic_ids: bool = False
    session: FetchSession | None = None
    epoch: int = FINAL_EPOCH  # that the session still has when the answer leaves

    @property
    def is_superseded(self) -> bool:
        """Whether somebody else went on with the session meanwhile."""
        return self.session is not None and self.session.epoch != self.epoch

    def knows_less(self, key: Key, high_watermark: int) -> bool:
        """Whether the reader was told an earlier high watermark."""
        told = None if self.session is None else self.session.told.get(key)
        return told is not None and told[0] < high_watermark

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        if not self.is_superseded:
            self.reading.unpark()
            if self.session is None:
                self.reading.end()


class FetchSessions:
    """The sessions of one broker: `slots_max`, and those of followers of registered brokers.
    `is_broker` says whether a broker is registered; any client can say that it is one."""

    def __init__(self, slots_max: int, random: Random, is_broker: Callable[[int], bool]) -> None:
        self._slots_max = slots_max
        self._random = random
        self._is_broker = is_broker
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first
        self._last_asked: dict[int, Reading] = {}  # by brokers whose followers fetch
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions."""
        return sum(len(session.reading.asked) for session in self._sessions.values())

    def open(
        self,
        request: FetchRequest,
        names: Mapping[UUID, str],
        by_id: bool,
        now_ms: int,
    ) -> OpenFetch | ErrorCode:
        """The partitions to read for a request. `by_id`: it has topic ids, `names` their names."""
        asked = partitions_asked(request, names, by_id)
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            return self._open_anew(request, by_id, asked, now_ms)
        replica = replica_of(request)
        session = self._find(request.session_id, request.session_epoch, by_id, replica)
        if isinstance(session, ErrorCode):
            return session
        session.take_in(asked.items(), _forgotten(request, by_id))
        return self._go_on(session, _after(session.epoch), names, now_ms)

    def open_in_slices(
        self,
        request: FetchRequest,
        names: Mapping[UUID, str],
        by_id: bool,
        now_ms: int,
        asked: dict[Key, Asked],
    ) -> Generator[None, None, OpenFetch | ErrorCode]:
        """The same for very many partitions; `asked` is `partitions_asked` of the request.

        Others find a session as it was before or after the request, or are refused: its epoch rises
        at once. A session whose request is given up halfway is closed.
        """
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            return self._open_anew(request, by_id, asked, now_ms)
        replica = replica_of(request)
        session = self._find(request.session_id, request.session_epoch, by_id, replica)
        if isinstance(session, ErrorCode):
            return session
        session.epoch = epoch = _after(session.epoch)
        session.is_changing = True
        try:
            for some in _batched(asked.items()):
                session.take_in(some, ())
                yield
            for keys in _batched(_forgotten(request, by_id)):
                session.take_in((), keys)
                yield
            session.is_changing = False
        finally:
            if session.is_changing and self._sessions.get(session.session_id) is session:
                self._close(session.session_id)
        if self._sessions.get(session.session_id) is not session:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # evicted, or closed by its reader
        return self._go_on(session, epoch, names, now_ms)

    def _open_anew(
        self, request: FetchRequest, by_id: bool, asked: dict[Key, Asked], now_ms: int
    ) -> OpenFetch:
        """All partitions are in the request, which may begin a session."""
        if request.session_id != NO_SESSION:
            self._leave(request.session_id)
        replica = replica_of(request)
        reading = Reading(asked, replica, now_ms)
        if replica is not None:
            self._note_order(reading, replica)
        return OpenFetch(reading, request.session_epoch == FIRST_EPOCH, by_id)

    def _note_order(self, reading: Reading, replica: Replica) -> None:
        """Looks at all partitions of a follower's session again if another of its requests came
        in between."""
        last_asked, node_id = self._last_asked, replica.node_id
        if last_asked.get(node_id) is reading:
            return
        if node_id not in last_asked:
            for other in [each for each in last_asked if not self._is_broker(each)]:
                del last_asked[other]
        last_asked[node_id] = reading
        reading.look_at_all()

    def resume(
        self,
        session_id: int,
        epoch: int,
        by_id: bool,
        asked: Mapping[Key, Asked],
        names: Mapping[UUID, str],
        now_ms: int,
        replica: Replica | None = None,
    ) -> OpenFetch | None:
        """The same for a request that goes on with a session and forgets nothing. None, and nothing
        is done, where `open` would tell an error."""
        session = self._find(session_id, epoch, by_id, replica)
        if isinstance(session, ErrorCode):
            return None
        session.take_in(asked.items(), ())
        return self._go_on(session, _after(session.epoch), names, now_ms)

    def resume_at(
        self, session_id: int, epoch: int, key: Key, wanted: FetchPartition, now_ms: int,
        replica: Replica,
    ) -> OpenFetch | None:  # fmt: skip
        """The same for a follower's request that changes the position of one partition, which it
        names by id, while no other partition of the session has news. None, and nothing is done,
        for any other request."""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.is_changing:
            return None
        reading = session.reading
        known = reading.asked.get(key)
        is_its_own = reading.replica == replica and session.uses_topic_ids
        if known is None or known.topic is None or not is_its_own:
            return None
        is_in_order = self._last_asked.get(replica.node_id) is reading
        if not is_in_order or reading.found or not reading.must_look_only_at(key):
            return None
        reading.unpark()
        reading.asked[key] = Asked(known.topic, known.topic_id, wanted)
        return self._go_on(session, _after(epoch), {}, now_ms)  # the topic has a name

    def _find(
        self, session_id: int, epoch: int, by_id: bool, replica: Replica | None
    ) -> FetchSession | ErrorCode:
        """The session whose next request has this epoch. A follower's session is its own, in one
        life of its broker: it shows more than consumers may see."""
        session = self._sessions.get(session_id)
        if session is None or session.reading.replica != replica:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids is not by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        is_due = session.epoch == epoch and not session.is_changing
        return session if is_due else ErrorCode.INVALID_FETCH_SESSION_EPOCH

    def _go_on(
        self, session: FetchSession, epoch: int, names: Mapping[UUID, str], now_ms: int
    ) -> OpenFetch:
        """The partitions to read for an updated session."""
        if not session.reading.asked:
            self._close(session.session_id)
            return OpenFetch(Reading({}))
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.used_ms, session.epoch = now_ms, epoch
        session.reading.fetched_ms = now_ms
        if session.reading.replica is not None:
            session.reading.confirmed()
            self._note_order(session.reading, session.reading.replica)
        if session.uses_topic_ids:
            session.resolve(names)
        return OpenFetch(session.reading, False, session.uses_topic_ids, session, session.epoch)

    def answer(self, fetch: OpenFetch, clock: Callable[[], int]) -> FetchResponse:
        """The answer to `fetch`, of what was found in its partitions. `clock` is asked the time
        (ms) if a session begins."""
        session, reading = fetch.session, fetch.reading
        if session is not None:
            if fetch.is_superseded:
                code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
                return FetchResponse(error_code=code, session_id=session.session_id)
            return FetchResponse(session_id=session.session_id, responses=by_topic(session.news()))
        found = reading.found
        responses = by_topic((asked, found[key]) for key, asked in reading.asked.items())
        began = self._begin(fetch, clock()) if fetch.begins_session else None
        if began is None:
            reading.end()
            return FetchResponse(responses=responses)
        for key, data in found.items():
            began.take_note(key, data)
        reading.found = {}
        return FetchResponse(session_id=began.session_id, responses=responses)

    def answer_in_slices(
        self, fetch: OpenFetch, clock: Callable[[], int]
    ) -> Generator[None, None, tuple[FetchResponse, list[tuple[Asked, PartitionData]]]]:
        """The same for very many partitions: the answer without them, and what it tells of them,
        for `by_topic`, which may run in a thread. `fetch` is not superseded yet."""
        reading = fetch.reading
        found, reading.found = reading.found, {}
        keys = list(reading.asked if fetch.session is None else reading.in_order(found))
        told: list[tuple[Asked, PartitionData]] = []
        notes: dict[Key, Told] = {}
        for first in range(0, len(keys), PARTITIONS_PER_SLICE):
            if fetch.is_superseded:
                break
            some = keys[first : first + PARTITIONS_PER_SLICE]
            if fetch.session is not None:
                told += fetch.session.news_of(found, some)
            else:
                told += [(reading.asked[key], found[key]) for key in some]
            if fetch.begins_session:
                notes.update((key, _known_after(found[key])) for key in some)
            yield
        if fetch.session is not None:
            session_id = fetch.session.session_id
            if fetch.is_superseded:
                code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
                return FetchResponse(error_code=code, session_id=session_id), []
            return FetchResponse(session_id=session_id), told
        began = self._begin(fetch, clock()) if fetch.begins_session else None
        if began is None:
            reading.end()
            return FetchResponse(), told
        began.told = notes
        return FetchResponse(session_id=began.session_id), told

    def _begin(self, fetch: OpenFetch, now_ms: int) -> FetchSession | None:
        """A new session; None if there is no room for it. There always is for followers of a
        registered broker: by their sessions they confirm who leads."""
        reading = fetch.reading
        replica = reading.replica
        size = len(reading.asked)
        is_full = len(self._sessions) >= self._slots_max
        is_follower = replica is not None and self._is_broker(replica.node_id)
        if is_full and not self._evict(size, now_ms) and not is_follower:
            return None
        session_id = self._random.randint(1, ID_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, ID_MAX)
        session = FetchSession(
            session_id, fetch.uses_topic_ids, now_ms, now_ms, FIRST_EPOCH + 1, reading
        )
        self._sessions[session_id] = session
        return session

    def _leave(self, session_id: int) -> None:
        """The reader of the session has begun anew. Its request that waits there, on another
        connection, is answered: somebody else went on."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.epoch = FINAL_EPOCH
            session.reading.wake()
            self._close(session_id)

    def _close(self, session_id: int) -> None:
        """The session, if there is one, is no more."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.reading.end()

    def _evict(self, size: int, now_ms: int) -> bool:
        """Makes room for a session of `size` partitions; False if none deserves to go for it."""
        if not self._sessions:
            return False
        session = next(iter(self._sessions.values()))
        if now_ms - session.used_ms <= EVICTION_MS:
            old = [
                each
                for each in self._sessions.values()
                if now_ms - each.created_ms > EVICTION_MS and each.reading.replica is None
            ]
            if not old:
                return False
            session = min(old, key=lambda each: len(each.reading.asked))
            if len(session.reading.asked) > size:
                return False
        self._close(session.session_id)
        self.evictions += 1
        return True


def replica_of(request: FetchRequest) -> Replica | None:
    """The broker that fetches for its followers; None for a consumer."""
    state = request.replica_state
    node_id = state.replica_id if request.replica_id == CONSUMER else request.replica_id
    return None if node_id < 0 else Replica(node_id, state.replica_epoch)


def has_failed(data: PartitionData) -> bool:
    """Whether the answer is no news of records, but an error or where histories part."""
    return data.error_code is not ErrorCode.NONE or data.diverging_epoch.end_offset != UNKNOWN


def _known_after(data: PartitionData) -> Told:
    """What the reader knows after `data`: nothing after an error, so the next success is sent."""
    return UNKNOWN if has_failed(data) else data.high_watermark, data.log_start_offset


def _size(data: PartitionData) -> int:
    return 0 if data.records is None else records_size(data.records)


def _after(epoch: int) -> int:
    """The epoch after `epoch`, without the values that begin or end a session."""
    return 1 if epoch == ID_MAX else epoch + 1


def partitions_asked(
    request: FetchRequest, names: Mapping[UUID, str], by_id: bool
) -> dict[Key, Asked]:
    """The partitions of a request; if one stands there twice, the last entry counts."""
    asked: dict[Key, Asked] = {}
    for topic in request.topics:
        if by_id:
            named, topic_id = names.get(topic.topic_id), topic.topic_id
            raw = topic_id.bytes  # hashed without a call
            for partition in topic.partitions:
                asked[raw, partition.partition] = Asked(named, topic_id, partition)
        else:
            name = topic.topic
            for partition in topic.partitions:
                asked[name, partition.partition] = Asked(name, ZERO_UUID, partition)
    return asked


def _batched(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """The items in slices."""
    left = iter(items)
    while some := tuple(islice(left, PARTITIONS_PER_SLICE)):
        yield some


def _forgotten(request: FetchRequest, by_id: bool) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        name = topic.topic_id.bytes if by_id else topic.topic
        for partition in topic.partitions:
            yield name, partition


def by_topic(
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
