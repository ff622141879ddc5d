"""Where a consumer stands in each of its partitions, and what it has fetched ahead.         [P]

                       AWAITS_COMMITTED ──> AWAITS_OFFSET ──> FETCHING
                       the group's offset   earliest, latest      │
                                                   ^              │
                                                   └─ out of range┘

A partition has two offsets: `position`, the next that the user gets, and `fetch_offset`, the next
to ask a broker for. Between them lies the buffer: unchanged responses, whose record
batches are bytes with parsed headers. They become columns when the user takes them, a whole batch
at a time.

Under another leader epoch nothing is fetched before that leader has told where the epoch of the
last fetched record ends in its log. A leader may send the consumer to a follower for a while.

Owns   positions, the buffer and its bound: a node is asked for more only while less than
       `max_partition_fetch_bytes` of its records are unread, so no more than that and one response
       are held.
Never  talks to a broker: it makes fetch requests and takes in the answers.
Fails  `take` raises, for the partition concerned and by name: ApiError for a refused fetch or an
       offset out of range that nothing resets, LogTruncation likewise, CorruptBatchError for bytes
       that are no batch.
Source KIP-98 (aborted transactions), KIP-320 (leader epochs), KIP-392 (followers); apache/kafka
       `SubscriptionState`, `CompletedFetch`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Final

from kafkalite.core.backoff import delay_ms
from kafkalite.core.columns import FEW
from kafkalite.core.protocol import records
from kafkalite.core.protocol.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, Columns, TopicPartition, concat
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, LogTruncation

EARLIEST: Final = -2  # timestamps with a meaning of their own in ListOffsets
LATEST: Final = -1
READ_COMMITTED: Final = 1
CONSUMER_REPLICA_ID: Final = -1
SESSIONLESS_EPOCH: Final = -1
RETRY_INITIAL_MS: Final = 100
RETRY_MAX_MS: Final = 1_000
NO_LIMIT: Final = 2**63
FOLLOWER_LAGS: Final = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE})
NOBODY: Final = -1  # in the place of a broker
RESPONSE_SHARE: Final = 4  # a partition's bytes that are less than this part of a response


class Stage(Enum):
    """The data that a partition waits for."""

    AWAITS_COMMITTED = "the offset that its group has committed"
    AWAITS_OFFSET = "the offset of a timestamp, or of an end of the log"
    FETCHING = "records from its position on"


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How much to ask for. Sizes in bytes, times in ms."""

    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    fetch_max_wait_ms: int = 500
    auto_offset_reset: int | None = LATEST  # None: an offset out of range is an error
    read_committed: bool = False
    check_crcs: bool = True
    as_forms: bool = False
    client_rack: str = ""
    preferred_max_age_ms: int = 300_000  # then the leader is asked anew which replica to read


class Fetched:
    """One response's batches of one partition, to be read in order."""

    __slots__ = ("_aborted", "_batches", "_view", "_void", "leader_epoch", "next_offset")

    def __init__(self, view: memoryview, aborted: Iterable[AbortedTransaction]) -> None:
        self._view = view
        self._batches = deque(records.batches(view))
        self._aborted = deque(sorted(aborted, key=_first_offset))
        self._void: set[int] = set()  # producers inside a transaction that was aborted
        self.next_offset, self.leader_epoch = NO_OFFSET, NO_EPOCH
        if self._batches:
            last = self._batches[-1][1]
            self.next_offset, self.leader_epoch = last.next_offset, last.partition_leader_epoch

    @property
    def unread_bytes(self) -> int:
        """How many bytes have not been read yet."""
        return len(self._view) - self._batches[0][0] if self._batches else 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def read(
        self, check_crc: bool, as_forms: bool = False, few: int = FEW
    ) -> tuple[records.BatchHeader, Columns | None]:
        """The next batch: its header, and its records if the user is to see them. They are forms
        where that is wanted and there are `few` or more."""
        position, header = self._batches[0]
        columns = None
        if self._is_visible(position, header, check_crc):
            columns = records.decode(
                self._view, position, header=header, check_crc=check_crc, as_forms=as_forms, few=few
            )
        self._batches.popleft()
        return header, columns

    def _is_visible(self, position: int, header: records.BatchHeader, check_crc: bool) -> bool:
        while self._aborted and self._aborted[0].first_offset <= header.last_offset:
            self._void.add(self._aborted.popleft().producer_id)
        if header.is_control:
            control = records.decode(self._view, position, check_crc=check_crc)
            if not len(control):  # compaction kept the batch for its producer's sake
                return False
            marker = records.parse_end_transaction_marker(control.keys[0], control.values[0])
            if marker is not None and marker.control_type is records.ControlType.ABORT:
                self._void.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._void)


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset


@dataclass(frozen=True, slots=True)
class Remainder:
    """Decoded records for which the last poll had no room."""

    columns: Columns
    next_offset: int
    leader_epoch: int


@dataclass(slots=True, eq=False)
class Position:
    """One partition's place. `position` is −1 until it is known."""

    topic_partition: TopicPartition
    stage: Stage = Stage.AWAITS_COMMITTED
    position: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH  # of the last record that the user got
    fetch_offset: int = NO_OFFSET
    fetched_epoch: int = NO_EPOCH  # of the last record before `fetch_offset`
    checked_epoch: int = NO_EPOCH  # the leader epoch whose log holds all that was fetched
    preferred: int = NOBODY  # the follower to read from
    preferred_until_ms: float = 0
    reset_to: int = LATEST  # a timestamp, EARLIEST or LATEST; for AWAITS_OFFSET
    is_paused: bool = False
    buffered: deque[Fetched] = field(default_factory=deque)
    rest: Remainder | None = None
    error: Exception | None = None
    failures: int = 0
    retry_at_ms: float = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET

    @property
    def unread_bytes(self) -> int:
        """How many bytes of batches are buffered."""
        return sum(fetched.unread_bytes for fetched in self.buffered)

    @property
    def has_records(self) -> bool:
        """Whether a poll would return records or raise an error."""
        if self.is_paused:
            return False
        return bool(self.buffered) or self.rest is not None or self.error is not None

    def seek(self, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Goes to `offset`; buffered records are dropped."""
        self.stage = Stage.FETCHING
        self.position = self.fetch_offset = offset
        self.leader_epoch = self.fetched_epoch = leader_epoch
        self.checked_epoch = NO_EPOCH
        self._forget()

    def reset(self, to: int) -> None:
        """Waits for the offset of the timestamp `to`, or of an end of the log."""
        self.stage, self.reset_to = Stage.AWAITS_OFFSET, to
        self._forget()

    def needs_check(self, epoch: int) -> bool:
        """Whether the leader of `epoch` must be asked for the fetched epoch's end: its log may lack
        records that were fetched from another leader. Its own records it has."""
        if self.stage is not Stage.FETCHING or epoch in (NO_EPOCH, self.checked_epoch):
            return False
        return self.fetched_epoch not in (NO_EPOCH, epoch)

    def drop_unread(self) -> None:
        """Fetches again what the user has not got."""
        self.buffered.clear()
        self.rest = None
        self.fetch_offset, self.fetched_epoch = self.position, self.leader_epoch

    def _forget(self) -> None:
        self.buffered.clear()
        self.rest = self.error = None
        self.failures, self.retry_at_ms = 0, 0


class Positions:
    """All partitions of a consumer. `stale_topics` collects those whose leaders have moved."""

    def __init__(self, settings: FetchSettings, random: Random) -> None:
        self.settings = settings
        self.stale_topics: set[str] = set()
        self.truncations: list[str] = []  # to be logged
        self.version = 0  # counts assignments, and changes of the replicas to read from
        self._random = random
        self._preferences_end_ms = math.inf  # when the first of them does
        self._of: dict[TopicPartition, Position] = {}  # who was served goes to the end

    # ---- which partitions, and where ----

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions from now on. Partitions that stay keep their position."""
        wanted = dict.fromkeys(partitions)
        self.version += 1
        self._of = {tp: p for tp, p in self._of.items() if tp in wanted} | {
            tp: Position(tp) for tp in wanted if tp not in self._of
        }

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The partitions, sorted."""
        return tuple(sorted(self._of))

    def __getitem__(self, topic_partition: TopicPartition) -> Position:
        """The place in a partition; ValueError if it is not assigned."""
        found = self._of.get(topic_partition)
        if found is None:
            raise ValueError(f"{topic_partition} is not assigned to this consumer")
        return found

    def get(self, topic_partition: TopicPartition) -> Position | None:
        """The place in a partition; None if it is not assigned."""
        return self._of.get(topic_partition)

    def awaiting_committed(self) -> list[TopicPartition]:
        """Partitions whose group must be asked where it stands."""
        return [tp for tp, p in self._of.items() if p.stage is Stage.AWAITS_COMMITTED]

    def awaiting_offset(self, now_ms: float) -> dict[TopicPartition, int]:
        """Partitions whose leader must be asked for an offset, with the timestamp."""
        return {
            tp: p.reset_to
            for tp, p in self._of.items()
            if p.stage is Stage.AWAITS_OFFSET and p.error is None and p.retry_at_ms <= now_ms
        }

    def committed(self, topic_partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """The group's offset, −1 if it has none: then the reset policy decides."""
        place = self._of.get(topic_partition)
        if place is None or place.stage is not Stage.AWAITS_COMMITTED:
            return
        if offset != NO_OFFSET:
            place.seek(offset, leader_epoch)
        elif (to := self.settings.auto_offset_reset) is not None:
            place.reset(to)
        else:
            place.stage = Stage.FETCHING
            place.error = ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{topic_partition}: there is no committed offset, and auto_offset_reset is none",
            )

    def found(self, topic_partition: TopicPartition, asked: int, offset: int, epoch: int) -> None:
        """The offset of the timestamp that was asked for."""
        place = self._of.get(topic_partition)
        if place is not None and (place.stage, place.reset_to) == (Stage.AWAITS_OFFSET, asked):
            place.seek(offset, epoch)

    def consumed(self) -> dict[TopicPartition, tuple[int, int]]:
        """Position and leader epoch of every partition that has a position to commit."""
        return {
            tp: (p.position, p.leader_epoch)
            for tp, p in self._of.items()
            if p.stage is Stage.FETCHING and p.position != NO_OFFSET
        }

    # ---- leaders change ----

    def to_check(
        self, epoch_of: Callable[[TopicPartition], int], now_ms: float
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Partitions whose leader must be asked whether it has what was fetched: its epoch, and
        that of the last fetched record."""
        return {
            tp: (epoch_of(tp), p.fetched_epoch)
            for tp, p in self._of.items()
            if p.error is None and p.retry_at_ms <= now_ms and p.needs_check(epoch_of(tp))
        }

    def checked(
        self, topic_partition: TopicPartition, asked: tuple[int, int], epoch: int, end_offset: int
    ) -> None:
        """The answer for one of `to_check`: the largest epoch up to the asked one that the leader
        knows, and where that ended; −1 if it knows none."""
        place = self._of.get(topic_partition)
        if place is None or not place.needs_check(asked[0]) or place.fetched_epoch != asked[1]:
            return
        if end_offset != NO_OFFSET and epoch == asked[1] and end_offset >= place.fetch_offset:
            place.checked_epoch, place.failures = asked[0], 0
        elif place.fetch_offset != place.position:
            place.drop_unread()  # and what the user has got is asked for next
        else:
            self._truncated(place, epoch, end_offset)

    def _truncated(self, place: Position, epoch: int, end_offset: int) -> None:
        tp, offset, policy = place.topic_partition, place.position, self.settings.auto_offset_reset
        words = f"{tp}: records before offset {offset}, of leader epoch {place.leader_epoch}, "
        if end_offset != NO_OFFSET and end_offset >= offset:
            end_offset = offset  # the epoch is not known there, and what came before it is
        words += "are gone from the log" + ("" if end_offset < 0 else f" from {end_offset} on")
        if policy is None:
            place.error = LogTruncation(words, end_offset)
            return
        self.truncations.append(words)
        if end_offset == NO_OFFSET:
            place.reset(policy)
        else:
            place.seek(end_offset, epoch)

    # ---- which replica ----

    def source(self, topic_partition: TopicPartition) -> int:
        """The follower to read a partition from; NOBODY: the leader."""
        return self._of[topic_partition].preferred

    def prefer(self, place: Position, node_id: int, now_ms: float) -> None:
        """Reads from that follower from now on; NOBODY: from the leader."""
        if place.preferred != node_id:
            place.preferred = node_id
            self.version += 1
        place.preferred_until_ms = now_ms + self.settings.preferred_max_age_ms
        if node_id != NOBODY:
            self._preferences_end_ms = min(self._preferences_end_ms, place.preferred_until_ms)

    def forget_old_preferences(self, now_ms: float) -> None:
        """Leaders are asked again which replica to read."""
        if now_ms < self._preferences_end_ms:
            return
        self._preferences_end_ms = math.inf
        for place in self._of.values():
            if place.preferred != NOBODY:
                is_over = place.preferred_until_ms <= now_ms
                self._preferences_end_ms = min(self._preferences_end_ms, place.preferred_until_ms)
                if is_over:
                    self.prefer(place, NOBODY, now_ms)

    # ---- fetch ----

    def fetch_request(
        self,
        partitions: Collection[TopicPartition],
        epoch_of: Callable[[TopicPartition], int],
        now_ms: float,
        *,
        all_is_taken: bool = False,
    ) -> tuple[FetchRequest, dict[TopicPartition, int]] | None:
        """A request to the leader of `partitions`, and the offset asked for in each.

        None while none of them wants records or enough of theirs are still unread; those do not
        count when `all_is_taken` next.
        """
        places = [
            place
            for tp, place in self._of.items()
            if tp in partitions and _wants(place, now_ms) and not place.needs_check(epoch_of(tp))
        ]
        unread_bytes = 0 if all_is_taken else sum(place.unread_bytes for place in places)
        if not places or unread_bytes >= self.settings.max_partition_fetch_bytes:
            return None
        topics: dict[str, list[FetchPartition]] = {}
        for place in places:
            topic, partition = place.topic_partition
            topics.setdefault(topic, []).append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=epoch_of(place.topic_partition),
                    fetch_offset=place.fetch_offset,
                    partition_max_bytes=self.settings.max_partition_fetch_bytes,
                )
            )
        request = FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            max_wait_ms=self.settings.fetch_max_wait_ms,
            min_bytes=self.settings.fetch_min_bytes,
            max_bytes=self.settings.fetch_max_bytes,
            isolation_level=READ_COMMITTED if self.settings.read_committed else 0,
            session_epoch=SESSIONLESS_EPOCH,
            topics=tuple(FetchTopic(topic=t, partitions=tuple(ps)) for t, ps in topics.items()),
            rack_id=self.settings.client_rack,
        )
        return request, {place.topic_partition: place.fetch_offset for place in places}

    def receive(
        self, response: FetchResponse, asked: Mapping[TopicPartition, int], now_ms: float
    ) -> None:
        """Buffers the records of an answer; outdated answers are dropped."""
        if response.error_code is not ErrorCode.NONE:
            for tp in asked:
                self.put_off(tp, now_ms)
            return
        for topic in response.responses:
            for answer in topic.partitions:
                tp = TopicPartition(topic.topic, answer.partition_index)
                place = self._of.get(tp)
                if place is None or place.stage is not Stage.FETCHING:
                    continue
                if place.fetch_offset == asked.get(tp):
                    self._receive(place, answer, now_ms)

    def _receive(self, place: Position, answer: PartitionData, now_ms: float) -> None:
        code = answer.error_code
        if code is not ErrorCode.NONE:
            self._refused(place, code, now_ms)
            return
        place.failures = 0
        if answer.preferred_read_replica != NOBODY:
            self.prefer(place, answer.preferred_read_replica, now_ms)
            return
        place.high_watermark = answer.high_watermark
        place.last_stable_offset = answer.last_stable_offset
        place.log_start_offset = answer.log_start_offset
        data = answer.records
        if not isinstance(data, bytes | bytearray | memoryview) or not data:
            return
        try:
            view = memoryview(data)
            if self.settings.as_forms:
                view = _on_its_own(view)
            fetched = Fetched(view, answer.aborted_transactions or ())
            if not fetched:
                raise CorruptBatchError(f"{len(data):,} bytes that are no whole batch")
        except CorruptBatchError as error:
            place.error = _placed(error, place.topic_partition, place.fetch_offset)
            self.put_off(place.topic_partition, now_ms)
            return
        place.buffered.append(fetched)
        place.fetch_offset = max(place.fetch_offset, fetched.next_offset)
        place.fetched_epoch = fetched.leader_epoch
        self._of[place.topic_partition] = self._of.pop(place.topic_partition)

    def _refused(self, place: Position, code: ErrorCode, now_ms: float) -> None:
        tp = place.topic_partition
        if place.preferred != NOBODY:
            self.prefer(place, NOBODY, now_ms)
            if code in FOLLOWER_LAGS:
                return  # the leader is asked at once
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if place.buffered or place.rest is not None:
                return  # what is buffered comes first, then the offset is asked for again
            if self.settings.auto_offset_reset is not None:
                place.reset(self.settings.auto_offset_reset)
                return
            place.error = ApiError(
                code, f"{tp}: offset {place.position} is not in the log, auto_offset_reset is none"
            )
        elif code.is_retriable and code is not ErrorCode.CORRUPT_MESSAGE:  # which stays so
            self.stale_topics.add(tp.topic)
        else:
            place.error = ApiError(code, f"{tp} from offset {place.fetch_offset}")
        self.put_off(tp, now_ms)

    def put_off(self, topic_partition: TopicPartition, now_ms: float) -> None:
        """Leaves a partition alone for a while, longer with each failure in a row."""
        place = self._of.get(topic_partition)
        if place is not None:
            place.retry_at_ms = now_ms + delay_ms(
                place.failures, RETRY_INITIAL_MS, RETRY_MAX_MS, self._random
            )
            place.failures += 1

    def next_retry_ms(self, now_ms: float) -> float | None:
        """When the next partition that was put off may be asked for again."""
        waiting = (p.retry_at_ms for p in self._of.values())
        return min((moment for moment in waiting if moment > now_ms), default=None)

    # ---- take ----

    def has_records(self) -> bool:
        """Whether `take` would return records or raise an error."""
        return any(place.has_records for place in self._of.values())

    def take(self, records_max: int | None = None) -> dict[TopicPartition, Columns]:
        """The buffered records of all partitions that are not paused, `records_max` at the most.

        Positions move past them. An error waits until the records before it have been taken.
        """
        taken: dict[TopicPartition, Columns] = {}
        room = records_max if records_max is not None else NO_LIMIT
        for place in [p for p in self._of.values() if p.has_records]:
            if room <= 0:
                break
            columns = self._take(place, room, keep_error=bool(taken))
            if len(columns):
                taken[place.topic_partition] = columns
                room -= len(columns)
                if records_max is not None:
                    self._of[place.topic_partition] = self._of.pop(place.topic_partition)
        return taken

    def _take(self, place: Position, room: int, keep_error: bool) -> Columns:
        parts: list[Columns] = []
        while room > 0 and (rest := self._next_records(place)) is not None:
            columns, next_offset = rest.columns, rest.next_offset
            if len(columns) > room:
                place.rest = replace(rest, columns=columns.slice(room, len(columns)))
                columns = columns.slice(0, room)
                assert columns.offsets is not None
                next_offset = columns.offsets[-1] + 1
            parts.append(columns)
            room -= len(columns)
            place.position, place.leader_epoch = next_offset, rest.leader_epoch
        if place.error is not None and not parts and not keep_error:
            error, place.error = place.error, None
            raise error
        return concat(parts)

    def _next_records(self, place: Position) -> Remainder | None:
        """The next decoded records that the user has not had; None when there are none."""
        if place.rest is not None:
            rest, place.rest = place.rest, None
            return rest
        while place.buffered and place.error is None:
            fetched = place.buffered[0]
            if not fetched:
                place.buffered.popleft()
                continue
            try:
                header, columns = fetched.read(self.settings.check_crcs, self.settings.as_forms)
            except CorruptBatchError as error:
                place.error = _placed(error, place.topic_partition, place.position)
                place.drop_unread()
                return None
            if columns is None or header.next_offset <= place.position:
                if header.next_offset > place.position:
                    place.position = header.next_offset
                    place.leader_epoch = header.partition_leader_epoch
                continue
            if header.base_offset < place.position:
                columns = _from(columns, place.position)
            return Remainder(columns, header.next_offset, header.partition_leader_epoch)
        return None


def _wants(place: Position, now_ms: float) -> bool:
    return (
        place.stage is Stage.FETCHING
        and not place.is_paused
        and place.error is None
        and place.retry_at_ms <= now_ms
    )


def _on_its_own(view: memoryview) -> memoryview:
    """The same bytes; a copy where they are a small part of a response, which forms would keep."""
    is_large = len(view) * RESPONSE_SHARE >= memoryview(view.obj).nbytes
    return view if is_large else memoryview(bytes(view))


def _from(columns: Columns, offset: int) -> Columns:
    """The records from `offset` on: a batch may begin before the position that was asked for."""
    assert columns.offsets is not None
    return columns.slice(bisect_left(columns.offsets, offset), len(columns))


def _placed(error: CorruptBatchError, tp: TopicPartition, offset: int) -> CorruptBatchError:
    placed = CorruptBatchError(f"{tp} from offset {offset}: {error}")
    placed.__cause__ = error
    return placed
