"""Batches that were refused for now: what follows them is refused for the same reason.      [D]

    sequence 5   NOT_LEADER_OR_FOLLOWER: this broker does not lead yet
    sequence 6   it leads by now, and misses 5: NOT_LEADER_OR_FOLLOWER, not OUT_OF_ORDER_SEQUENCE

An idempotent producer sends several batches before it has the first answer. Both errors send it
back to the missing batch. But after a sequence out of order librdkafka begins another producer
epoch, in which it sends again what is unanswered in all its partitions: records that are in a log
by then, though their answers were lost, would be there twice. And a partition that does not know
the producer would take 6 without 5, from which librdkafka concludes that 5 is there as well.

    sequence 5   NOT_LEADER_OR_FOLLOWER, at the leader before this one
    sequence 6   to this one, before 5 comes again: NOT_LEADER_OR_FOLLOWER

librdkafka answers for each broker in a thread of its own. The thread of the old leader counts 5 as
answered a moment before it puts 5 back into the queue, and in that moment the new leader's thread
takes what is behind it. So a batch that misses another one, of a producer that has written nothing
since this broker leads, is refused as if the missing one had been refused here. So is one that is
not the first of its producer where nothing else is known of it, for as long as librdkafka waits for
the old leader.

Owns   the sequences of the last BATCHES_MAX refused batches of the last PRODUCERS_MAX producers,
       each in one partition, for FOR_MS, and of one more that they wait for. Those of batches that
       the leader before may have refused, so that each is waited for once: of the last
       PRODUCERS_MAX.
Never  changes the answer to a batch that misses another one than those.
Fails  never.
Source librdkafka `rd_kafka_handle_idempotent_Produce_error`, and
       `rd_kafka_msgbatch_handle_Produce_result` (`rktp_msgs_inflight`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from kafkalite.core.log.producer_state import SEQUENCE_MAX, ProducerState
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.records import BatchHeader, read_header
from kafkalite.core.replicas.leader import LONG_AGO_MS
from kafkalite.core.types import NO_OFFSET, TopicPartition
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode

PRODUCERS_MAX: Final = 1_000
BATCHES_MAX: Final = 5  # that an idempotent producer sends before the first answer
FOR_MS: Final = 5_000  # the batches behind it were sent already, or come again after it
OLD_LEADER_MS: Final = 60_000  # socket.timeout.ms of librdkafka
FOR_NOW: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class _Refused(NamedTuple):
    base_sequence: int
    error_code: ErrorCode
    until_ms: int


class RefusedBatches:
    """What a broker's producers have to send again."""

    def __init__(self) -> None:
        self.by_producer: OrderedDict[tuple[TopicPartition, int, int], deque[_Refused]] = (
            OrderedDict()
        )
        self._waited_for: OrderedDict[tuple[TopicPartition, int, int, int], None] = OrderedDict()

    def answer(
        self,
        where: TopicPartition,
        records: Buffer,
        error: ApiError,
        producers: ProducerState | None,
        now_ms: int,
        led_from: int = NO_OFFSET,
    ) -> ApiError:
        """The error for a batch that was refused with `error`; `producers` are the partition's, and
        an earlier leader may have written all below `led_from`."""
        is_out_of_order = error.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not is_out_of_order and error.error_code not in FOR_NOW:
            return error
        header = _header_of(records)
        if header is None:
            return error
        key = where, header.producer_id, header.producer_epoch
        if not is_out_of_order:
            self._note(key, _Refused(header.base_sequence, error.error_code, now_ms + FOR_MS))
            return error
        if producers is None:
            return error
        missing = producers.next_sequence(header)
        if producers.last_offset(header.producer_id) < led_from and _is_ahead(header, missing):
            self._note_missing(key, missing, now_ms)
        for refused in self.by_producer.get(key, ()):
            if refused.base_sequence == missing and now_ms < refused.until_ms:
                words = f"{where}: sequence {missing}, which comes first, was refused"
                return ApiError(refused.error_code, words)
        return error

    def must_check(self, header: BatchHeader, producers: ProducerState) -> bool:
        """Whether `check` is to be asked: nearly never."""
        if not header.has_producer_id:
            return False
        return bool(self.by_producer) or (
            header.base_sequence > 0 and header.producer_id not in producers.entries
        )

    def check(
        self,
        where: TopicPartition,
        header: BatchHeader,
        producers: ProducerState,
        now_ms: int,
        led_since_ms: int = LONG_AGO_MS,
    ) -> None:
        """ApiError for a batch whose producer the partition does not know, and which is not the
        first that this producer has sent there. This broker took over at `led_since_ms`."""
        while self.by_producer:
            refusals = next(iter(self.by_producer.values()))
            if now_ms < refusals[-1].until_ms:
                break
            self.by_producer.popitem(last=False)
        if header.producer_id in producers.entries:
            return
        key = where, header.producer_id, header.producer_epoch
        if header.base_sequence > 0 and now_ms - led_since_ms < OLD_LEADER_MS:
            self._note_missing(key, 0, now_ms)
        for refused in self.by_producer.get(key, ()):
            if refused.base_sequence < header.base_sequence and now_ms < refused.until_ms:
                words = f"{where}: sequence {refused.base_sequence}, an earlier one, was refused"
                raise ApiError(refused.error_code, words)

    def _note_missing(
        self, key: tuple[TopicPartition, int, int], sequence: int, now_ms: int
    ) -> None:
        """The leader before may have refused it: it is waited for as if this one had, once."""
        missing = *key, sequence
        if missing in self._waited_for:
            return
        self._waited_for[missing] = None
        if len(self._waited_for) > PRODUCERS_MAX:
            self._waited_for.popitem(last=False)
        self._note(key, _Refused(sequence, ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms + FOR_MS))

    def _note(self, key: tuple[TopicPartition, int, int], refused: _Refused) -> None:
        known = self.by_producer.setdefault(key, deque(maxlen=BATCHES_MAX + 1))
        for each in known:
            if each.base_sequence == refused.base_sequence:  # which was refused again
                known.remove(each)
                break
        known.append(refused)
        self.by_producer.move_to_end(key)
        if len(self.by_producer) > PRODUCERS_MAX:
            self.by_producer.popitem(last=False)


def _is_ahead(header: BatchHeader, sequence: int) -> bool:
    """Whether the batch comes after `sequence`, and does not repeat what is before it."""
    return 0 < (header.base_sequence - sequence) & SEQUENCE_MAX <= SEQUENCE_MAX // 2


def _header_of(records: Buffer) -> BatchHeader | None:
    """The header of an idempotent producer's batch."""
    try:
        header = read_header(records)
    except CorruptBatchError:
        return None
    return header if header.has_producer_id and header.base_sequence >= 0 else None
