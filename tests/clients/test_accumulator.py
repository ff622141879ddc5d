"""Batches by partition: sizes, sequences, order under retries, epochs, timeouts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.clients.producer.accumulator import Accumulator, Answer, Batch, Settings, Settled
from kafkalite.clients.producer.batching import OpenBatch, chunks, estimate_bytes, restamp
from kafkalite.core.protocol import records
from kafkalite.core.protocol.record_codec import NATIVE, Spans
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ErrorCode

TP = TopicPartition("orders", 3)
OTHER = TopicPartition("orders", 4)
OK = Answer(ErrorCode.NONE, 7)


def accumulator(**changes: object) -> Accumulator:
    made = Accumulator(Settings(**changes), Random(1))  # type: ignore[arg-type]
    made.identify(producer_id=9, producer_epoch=0)
    return made


def known(**changes: object) -> Accumulator:
    """One whose first batch, of a single record, the broker has."""
    queue = accumulator(**changes)
    queue.append_columns(TP, column([b"first"]), 1_000_000, 0)
    (batch,) = drain(queue)
    queue.settle(batch, OK, 0)
    return queue


def column(values: list[bytes]) -> Columns:
    return Columns([None] * len(values), values, [5] * len(values))


def append(queue: Accumulator, value: bytes, now_ms: float = 0, tp: TopicPartition = TP) -> None:
    queue.append(tp, None, value, 5, (), value, now_ms)


def drain(queue: Accumulator, now_ms: float = 0, free: int = 5) -> list[Batch]:
    requests = queue.drain(lambda _: 1, {1: free}, now_ms)
    return [batch for _, batches in requests for batch in batches]


def values(batch: Batch) -> list[bytes | None]:
    return list(records.decode(batch.data).values)


def stamp(batch: Batch) -> tuple[int, int]:
    header = records.read_header(batch.data)
    return header.producer_epoch, header.base_sequence


def whose(settled: list[Settled]) -> list[object]:
    return [waiter for one in settled for _, _, waiter in one.batch.waiters]


def test_records_gather_until_they_linger() -> None:
    queue = accumulator(linger_ms=10)
    append(queue, b"a", 100)
    append(queue, b"b", 105)
    assert drain(queue, 109) == []
    assert queue.next_deadline_ms(109) == 110
    (batch,) = drain(queue, 110)
    assert values(batch) == [b"a", b"b"]


def test_a_full_batch_leaves_at_once() -> None:
    queue = accumulator(linger_ms=1_000, batch_bytes=100)
    for value in (b"a" * 60, b"b" * 60):
        append(queue, value)
    (batch,) = drain(queue)
    assert values(batch) == [b"a" * 60]


def test_a_flush_closes_what_still_gathers() -> None:
    queue = accumulator(linger_ms=1_000)
    append(queue, b"a")
    last = queue.close_open()
    (batch,) = drain(queue)
    assert not queue.has_settled(last)
    queue.settle(batch, OK, 0)
    assert queue.has_settled(last)
    assert queue.buffered_bytes == 0


def test_a_flush_does_not_wait_for_what_comes_after_it() -> None:
    queue = accumulator()
    append(queue, b"a")
    last = queue.close_open()
    append(queue, b"b", tp=OTHER)
    batch = next(b for b in drain(queue) if b.topic_partition == TP)
    queue.settle(batch, OK, 0)
    assert queue.has_settled(last)


def test_sequences_follow_the_records() -> None:
    queue = known()
    for count in (3, 2, 4):
        queue.append_columns(TP, column([b"x"] * count), 1_000_000, 0)
    assert [stamp(batch) for batch in drain(queue)] == [(0, 1), (0, 4), (0, 6)]


def test_sequences_start_over_after_the_largest_int32() -> None:
    queue = known()
    queue._queues[TP].next_order = 2**31 - 1
    queue.append_columns(TP, column([b"x", b"y"]), 1_000_000, 0)
    queue.append_columns(TP, column([b"z"]), 1_000_000, 0)
    assert [stamp(batch)[1] for batch in drain(queue)] == [2**31 - 1, 1]


def test_the_first_batch_of_all_goes_alone() -> None:
    queue = accumulator()
    for _ in range(3):
        queue.append_columns(TP, column([b"x"]), 1_000_000, 0)
    (first,) = drain(queue)
    queue.settle(first, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    (again,) = drain(queue, 1_000)
    assert again is first
    queue.settle(again, OK, 1_000)
    assert len(drain(queue, 1_000)) == 2


def test_at_most_five_batches_of_a_partition_are_in_flight() -> None:
    queue = known()
    for _ in range(7):
        queue.append_columns(TP, column([b"x"]), 1_000_000, 0)
    sent = drain(queue, free=10)
    assert len(sent) == 5
    queue.settle(sent[0], OK, 0)
    assert len(drain(queue, free=10)) == 1


def test_a_request_takes_one_batch_of_each_partition() -> None:
    queue = known()
    for tp in (TP, TP, OTHER):
        queue.append_columns(tp, column([b"x"]), 1_000_000, 0)
    requests = queue.drain(lambda _: 1, {1: 5}, 0)
    assert [[b.topic_partition for b in batches] for _, batches in requests] == [[TP, OTHER], [TP]]


def test_a_request_is_bounded_and_partitions_take_turns() -> None:
    queue = accumulator(request_bytes_max=1_000)
    for tp in (TP, OTHER) * 2:
        queue.append_columns(tp, column([b"x" * 600]), 1_000_000, 0)
    served = [drain(queue, free=1)[0].topic_partition for _ in range(2)]
    assert served == [TP, OTHER]


def test_columns_too_large_for_a_request_are_halved() -> None:
    queue = known(request_bytes_max=1_000)
    queue.append_columns(TP, column([b"x" * 400] * 8), 10, 0)
    queue.append_columns(OTHER, column([b"x" * 5_000]), 5_000, 0)  # one record: as it is
    queue.close_open()
    sent = drain(queue)
    assert [batch.record_count for batch in sent if batch.topic_partition == TP] == [2, 2, 2, 2]
    assert [stamp(batch)[1] for batch in sent if batch.topic_partition == TP] == [1, 3, 5, 7]


def test_small_columns_join_the_open_batch() -> None:
    queue = accumulator(linger_ms=10)
    queue.append_columns(TP, column([b"a"]), 20, 0)
    append(queue, b"b")
    queue.append_columns(TP, column([b"c"]), 20, 0)
    (batch,) = drain(queue, 10)
    assert values(batch) == [b"a", b"b", b"c"]
    assert whose(queue.settle(batch, OK, 0)) == [b"b"]


@pytest.mark.parametrize("size", [20, 1_000_000])
def test_columns_that_are_no_bytes_are_refused_and_leave_no_trace(size: int) -> None:
    queue = accumulator()
    with pytest.raises(TypeError, match="1"):
        queue.append_columns(TP, column([b"a", "b"]), size, 0)  # type: ignore[list-item]
    assert queue.has_settled(queue.close_open())
    assert queue.buffered_bytes == 0


def test_a_retry_sends_the_same_bytes_after_a_pause() -> None:
    queue = accumulator(retry_backoff_ms=100)
    append(queue, b"a")
    (batch,) = drain(queue)
    before = batch.data
    assert queue.settle(batch, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0) == []
    assert queue.stale_topics == {"orders"}
    assert drain(queue, 50) == []
    (again,) = drain(queue, 121)
    assert again.data == before


def test_a_retry_waits_for_what_is_in_flight() -> None:
    queue = known()
    for value in (b"a", b"b", b"c"):
        queue.append_columns(TP, column([value]), 1_000_000, 0)
    first, second, third = drain(queue)
    queue.settle(first, Answer(ErrorCode.NOT_ENOUGH_REPLICAS), 0)
    queue.settle(second, Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert drain(queue, 1_000) == []  # the third may yet come back
    queue.settle(third, Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    order = []
    for _ in range(3):
        (batch,) = drain(queue, 1_000)
        order.append(values(batch)[0])
        queue.settle(batch, OK, 1_000)
    assert order == [b"a", b"b", b"c"]


def test_a_duplicate_is_as_good_as_stored() -> None:
    queue = accumulator()
    append(queue, b"a")
    (batch,) = drain(queue)
    (settled,) = queue.settle(batch, Answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER), 0)
    assert settled.error is None
    assert settled.base_offset == -1


def test_a_refused_batch_fails_and_the_rest_goes_on_in_a_new_epoch() -> None:
    queue = known()
    for value in (b"a", b"b", b"c"):
        queue.append_columns(TP, column([value]), 1_000_000, 0)
    sent = drain(queue, free=2)
    (settled,) = queue.settle(sent[0], Answer(ErrorCode.INVALID_RECORD, message="no key"), 0)
    assert str(settled.error) == "orders-3: 1 records, no key: INVALID_RECORD"
    assert drain(queue, 1_000) == []  # one of the old epoch is still in flight
    queue.settle(sent[1], Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    (second,) = drain(queue, 1_000)
    assert (values(second), stamp(second)) == ([b"b"], (1, 0))
    records.verify_crc(second.data, 0, records.read_header(second.data))
    queue.settle(second, OK, 1_000)
    (third,) = drain(queue, 1_000)
    assert (values(third), stamp(third)) == ([b"c"], (1, 1))


def test_a_lost_sequence_starts_an_epoch_and_tries_again() -> None:
    queue = accumulator()
    queue.append_columns(TP, column([b"a", b"b"]), 1_000_000, 0)
    (batch,) = drain(queue)
    assert queue.settle(batch, Answer(ErrorCode.UNKNOWN_PRODUCER_ID), 0) == []
    (again,) = drain(queue, 1_000)
    assert (values(again), stamp(again)) == ([b"a", b"b"], (1, 0))


def test_when_epochs_run_out_another_producer_id_is_asked_for() -> None:
    queue = Accumulator(Settings(), Random(1))
    queue.identify(9, 2**15 - 1)
    queue.append_columns(TP, column([b"a"]), 1_000_000, 0)
    (batch,) = drain(queue)
    queue.settle(batch, Answer(ErrorCode.UNKNOWN_PRODUCER_ID), 0)
    assert drain(queue, 1_000) == []
    assert queue.needs_producer_id
    queue.identify(10, 0)
    (again,) = drain(queue, 1_000)
    assert records.read_header(again.data).producer_id == 10
    assert stamp(again) == (0, 0)


def test_a_batch_that_the_broker_finds_too_large_is_split() -> None:
    queue = accumulator()
    for value in (b"a", b"b", b"c"):
        append(queue, value)
    (batch,) = drain(queue)
    queue.settle(batch, Answer(ErrorCode.MESSAGE_TOO_LARGE), 0)
    last = queue.close_open()
    seen = []
    for _ in range(2):
        (half,) = drain(queue, 1_000)
        seen.append((values(half), stamp(half), whose(queue.settle(half, OK, 1_000))))
    assert seen == [([b"a"], (0, 0), [b"a"]), ([b"b", b"c"], (0, 1), [b"b", b"c"])]
    assert queue.has_settled(last)
    assert queue.buffered_bytes == 0


def test_a_single_record_that_is_too_large_fails() -> None:
    queue = accumulator()
    append(queue, b"a")
    (batch,) = drain(queue)
    (settled,) = queue.settle(batch, Answer(ErrorCode.MESSAGE_TOO_LARGE), 0)
    assert settled.error is not None
    assert settled.error.error_code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_nobody_takes_expires() -> None:
    queue = accumulator(delivery_timeout_ms=30_000)
    append(queue, b"a", 0)
    assert queue.drain(lambda _: None, {1: 5}, 0) == []
    assert queue.stale_topics == {"orders"}
    assert queue.expire(29_999) == []
    (settled,) = queue.expire(30_000)
    assert str(settled.error) == (
        "orders-3: 1 records, not acknowledged in 30 s: REQUEST_TIMED_OUT"
    )
    assert queue.has_settled(queue.close_open())


def test_a_node_without_room_gets_nothing() -> None:
    queue = accumulator()
    append(queue, b"a")
    assert queue.drain(lambda _: 1, {}, 0) == []
    assert queue.drain(lambda _: 2, {1: 5}, 0) == []


def test_acks_0_ends_a_batch_when_it_is_sent() -> None:
    queue = Accumulator(Settings(idempotent=False), Random(1))
    append(queue, b"a")
    (batch,) = drain(queue)
    assert stamp(batch) == (-1, -1)
    assert whose(queue.acknowledge_all([batch])) == [b"a"]
    assert queue.buffered_bytes == 0


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=200), st.integers(20, 2_000))
def test_chunks_are_all_records_in_order_and_near_the_wanted_size(
    column_values: list[bytes], batch_bytes: int
) -> None:
    whole = column(column_values)
    pieces = list(chunks(whole, batch_bytes))
    assert [v for piece, _ in pieces for v in piece.values] == column_values
    assert all(len(piece) == 1 or size <= batch_bytes for piece, size in pieces)


def test_chunks_follow_records_that_grow() -> None:
    whole = column([b"x"] * 1_000 + [b"x" * 1_000] * 1_000)
    largest = max(
        estimate_bytes(piece, 0, 1) * len(piece)
        for piece, _ in chunks(whole, 10_000)
        if piece.values[0] == piece.values[-1]
    )
    assert largest <= 10_100


def test_a_restamped_batch_has_the_right_crc() -> None:
    data = records.encode(column([b"a", b"b"]), producer_id=1, producer_epoch=2, base_sequence=3)
    changed = restamp(data, 4, 5, 6)
    header = records.read_header(changed)
    records.verify_crc(changed, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 5, 6)


class StrictBroker:
    """Takes a partition's batches as Kafka does: sequences in order, known ones once.

    Of a producer that it has not heard of it takes any sequence for the first.
    """

    def __init__(self) -> None:
        self.log: list[bytes | None] = []
        self.epoch, self.next_sequence = -1, 0
        self.known: dict[tuple[int, int], int] = {}

    def produce(self, batch: Batch) -> Answer:
        epoch, sequence = stamp(batch)
        if (epoch, sequence) in self.known:
            return Answer(ErrorCode.NONE, self.known[epoch, sequence])
        if epoch > self.epoch and (sequence == 0 or self.epoch == -1):
            self.epoch, self.next_sequence = epoch, sequence
        if (epoch, sequence) != (self.epoch, self.next_sequence):
            return Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.known[epoch, sequence] = base_offset = len(self.log)
        self.log.extend(values(batch))
        self.next_sequence += batch.record_count
        return Answer(ErrorCode.NONE, base_offset)


FAULTS = st.sampled_from(["ok", "ok", "ok", "lost request", "lost answer", "not leader", "large"])


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.lists(FAULTS, max_size=30))
def test_every_record_is_stored_once_and_in_order_whatever_is_lost(
    sizes: list[int], faults: list[str]
) -> None:
    queue, broker, now_ms = accumulator(), StrictBroker(), 0.0
    sent = [bytes([i, j]) for i, size in enumerate(sizes) for j in range(size)]
    for i, size in enumerate(sizes):
        queue.append_columns(TP, column([bytes([i, j]) for j in range(size)]), 1_000_000, now_ms)
    last, todo, ends = queue.close_open(), list(faults), list[Settled]()
    for _ in range(500):
        if queue.has_settled(last):
            break
        for batch in drain(queue, now_ms):
            fault = todo.pop() if todo else "ok"
            answer = Answer(ErrorCode.NETWORK_EXCEPTION)
            if fault in ("ok", "lost answer"):
                answer = broker.produce(batch)
            if fault in ("lost request", "lost answer"):
                answer = Answer(ErrorCode.REQUEST_TIMED_OUT)
            if fault == "large" and batch.record_count > 1 and not batch.failures:
                answer = Answer(ErrorCode.MESSAGE_TOO_LARGE)
            ends += queue.settle(batch, answer, now_ms)
        now_ms += 500
    assert queue.has_settled(last)
    assert broker.log == sent
    assert all(end.error is None for end in ends)
    assert broker.epoch == 0, "nothing failed for good, so no epoch was needed"


steps = st.lists(st.tuples(st.sampled_from(["one", "lists", "forms"]), st.integers(1, 4)))


@given(steps, st.booleans())
def test_forms_gather_with_records_and_lists_in_order(
    steps: list[tuple[str, int]], has_headers: bool
) -> None:
    queue = accumulator(linger_ms=10)
    expected: list[tuple[bytes, tuple[tuple[str, bytes], ...]]] = []
    places: list[int] = []
    for kind, count in steps:
        added = [b"%d" % (len(expected) + i) for i in range(count)]
        if kind == "one":
            headers = (("h", added[0]),) if has_headers else ()
            places.append(len(expected))
            expected.append((added[0], headers))
            queue.append(TP, None, added[0], 5, headers, None, 0)
            continue
        columns = column(added)
        if kind == "forms":
            columns = Columns(_gathered(columns.keys), _gathered(added), columns.timestamps)
        queue.append_columns(TP, columns, 10 * count, 0)
        expected += [(value, ()) for value in added]
    made = drain(queue, 20)
    assert len(made) == bool(steps)
    for batch in made:
        got = records.decode(batch.data)
        assert list(zip(got.values, got.headers or [()] * len(got), strict=True)) == expected
        assert [place for place, _, _ in batch.waiters] == places


def _gathered(entries: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """The entries as spans, as lists where there is no native code."""
    return Spans.gathered(entries) or entries if NATIVE else entries


@pytest.mark.skipif(not NATIVE, reason="columns are lists without native modules")
def test_what_gathers_keeps_no_far_larger_buffer() -> None:
    held = Spans.gathered([b"x" * 100] * 1000)
    assert held is not None
    few = held[:2]
    open_batch = OpenBatch(0, 0)
    open_batch.extend(Columns(few, few, [1, 2]), 200)
    kept = open_batch.columns().values
    assert isinstance(kept, Spans)
    assert kept.held_bytes == 200
