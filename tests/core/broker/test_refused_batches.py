"""Batches that follow one which was refused for now, at a broker and at the machine alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkalite.core.broker.refused_batches import (
    BATCHES_MAX,
    FOR_MS,
    OLD_LEADER_MS,
    PRODUCERS_MAX,
    RefusedBatches,
)
from kafkalite.core.log.producer_state import ProducerState
from kafkalite.core.protocol.records import encode, read_header
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

Start = Any
WHERE = TopicPartition("t", 0)
NOT_YET = ErrorCode.NOT_LEADER_OR_FOLLOWER
LATE = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def batch(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    columns = Columns([None], [b"v"], [1_000])
    return encode(columns, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_behind_a_refused_one_is_told_the_same_and_both_come_in_order(
    start: Start,
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()

            async def code(sequence: int, epoch: int = 0) -> ErrorCode:
                found = await peer.produce("t", batch=batch(sequence, epoch=epoch))
                return ErrorCode(found.error_code)

            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await code(0) is unknown
            await peer.create("t")
            assert await code(1) is unknown  # 0 comes first, though the producer is not known
            assert [await code(n) for n in (0, 1, 2)] == [ErrorCode.NONE] * 3
            broker, error = running.broker, ApiError(NOT_YET, "x")
            broker.refused_batches.answer(WHERE, batch(3), error, None, broker.monotonic_ms())
            assert await code(4) is NOT_YET  # 3 comes first
            assert await code(9, epoch=1) is LATE  # of another epoch
            assert [await code(n) for n in (3, 4)] == [ErrorCode.NONE] * 2
            assert await code(6) is LATE  # 5 was never here
            assert await code(5) is ErrorCode.NONE

    asyncio.run(story())


class Scene:
    """A partition whose producer 7 has written up to a sequence, and refusals."""

    def __init__(self, last: int = 4) -> None:
        self.refused, self.now_ms = RefusedBatches(), 0
        self.producers = ProducerState(WHERE)
        self.producers.append(read_header(batch(last)), 0, 0)

    def told(self, sequence: int, code: ErrorCode, led_from: int = -1, **more: int) -> ErrorCode:
        records, error = batch(sequence, **more), ApiError(code, "x")
        answer = self.refused.answer
        return answer(WHERE, records, error, self.producers, self.now_ms, led_from).error_code


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_what_is_refused_for_now(code: ErrorCode) -> None:
    scene = Scene()
    assert scene.told(5, code) is code
    assert [scene.told(n, LATE) for n in (6, 7)] == [code, code]
    assert scene.told(6, LATE, producer_id=8) is LATE
    assert scene.told(6, LATE, epoch=1) is LATE


def test_what_is_refused_for_good_is_not_waited_for() -> None:
    scene = Scene()
    assert scene.told(5, ErrorCode.MESSAGE_TOO_LARGE) is ErrorCode.MESSAGE_TOO_LARGE
    assert scene.told(6, LATE) is LATE


def test_it_remembers_for_a_while_and_so_many() -> None:
    scene, code = Scene(), NOT_YET
    scene.told(5, code)
    scene.now_ms = FOR_MS - 1
    assert scene.told(6, LATE) is code
    scene.now_ms = FOR_MS
    assert scene.told(6, LATE) is LATE
    for sequence in range(5, 5 + BATCHES_MAX + 2):
        scene.told(sequence, code)
    assert scene.told(99, LATE) is LATE, "the first one gave way"
    scene.told(5, code)
    for producer_id in range(100, 100 + PRODUCERS_MAX):
        scene.told(0, code, producer_id=producer_id)
    assert scene.told(6, LATE) is LATE


def test_strange_batches_are_answered_as_they_were() -> None:
    scene, error = Scene(), ApiError(NOT_YET, "x")
    for records in (b"", b"x" * 200, encode(Columns([None], [b"v"], [0]))):
        assert scene.refused.answer(WHERE, records, error, None, 0) is error
    late = ApiError(LATE, "x")
    assert scene.refused.answer(WHERE, batch(6), late, None, 0) is late


def test_a_producer_that_is_not_known_begins_with_what_was_refused_first() -> None:
    scene = Scene()
    assert not scene.refused.by_producer
    scene.told(0, NOT_YET, producer_id=8)
    assert scene.refused.by_producer

    def check(sequence: int, producer_id: int = 8) -> None:
        header = read_header(batch(sequence, producer_id=producer_id))
        scene.refused.check(WHERE, header, scene.producers, scene.now_ms)

    with pytest.raises(ApiError, match="sequence 0, an earlier one, was refused") as told:
        check(1)
    assert told.value.error_code is NOT_YET
    check(0)
    check(5, producer_id=7)  # which is known
    check(5, producer_id=9)  # of which nothing was refused
    scene.now_ms = FOR_MS
    check(1)
    assert not scene.refused.by_producer


def test_what_the_leader_before_may_have_refused_is_waited_for_once() -> None:
    scene, led_from = Scene(), 1
    assert scene.told(6, LATE, led_from=0) is LATE  # 4 was written to this leader
    assert scene.told(3, LATE, led_from) is LATE  # it misses none
    assert [scene.told(n, LATE, led_from) for n in (6, 7, 99)] == [NOT_YET] * 3
    scene.now_ms = FOR_MS
    assert [scene.told(n, LATE, led_from) for n in (6, 7)] == [LATE] * 2
    assert scene.told(6, LATE, led_from, epoch=1) is NOT_YET  # of another epoch
    scene.producers.append(read_header(batch(5)), 1, 0)
    assert scene.told(7, LATE, led_from) is LATE


def test_a_producer_that_a_new_leader_does_not_know_begins_with_its_first() -> None:
    scene = Scene()

    def check(sequence: int, since_ms: int = 0, *, producer_id: int = 8) -> None:
        header = read_header(batch(sequence, producer_id=producer_id))
        scene.refused.check(WHERE, header, scene.producers, scene.now_ms, since_ms)

    check(1, -OLD_LEADER_MS)
    check(0)
    check(9, producer_id=7)  # which is known
    for sequence in (1, 2):
        with pytest.raises(ApiError, match="sequence 0, an earlier one, was refused") as told:
            check(sequence)
        assert told.value.error_code is NOT_YET
    check(0)
    scene.now_ms = FOR_MS
    check(1)  # it was waited for


def test_it_remembers_so_many_that_it_has_waited_for() -> None:
    scene, led_from = Scene(), 1
    assert scene.told(6, LATE, led_from) is NOT_YET
    scene.now_ms = FOR_MS
    for epoch in range(1, PRODUCERS_MAX):
        scene.told(6, LATE, led_from, epoch=epoch)
    assert scene.told(6, LATE, led_from) is LATE
    scene.told(6, LATE, led_from, epoch=PRODUCERS_MAX)
    assert scene.told(6, LATE, led_from) is NOT_YET, "the first one gave way"


def test_batches_that_are_sent_again_and_again_do_not_push_out_the_one_that_they_wait_for() -> None:
    scene = Scene()

    def refuse(sequence: int) -> None:
        header = read_header(batch(sequence, producer_id=8))
        with pytest.raises(ApiError, match="sequence 0, an earlier one, was refused") as told:
            scene.refused.check(WHERE, header, scene.producers, scene.now_ms, 0)
        scene.told(sequence, told.value.error_code, producer_id=8)

    for _ in range(4):
        for sequence in range(1, BATCHES_MAX + 1):
            refuse(sequence)
    (known,) = scene.refused.by_producer.values()
    assert len(known) == BATCHES_MAX + 1


def test_only_batches_of_idempotent_producers_are_checked() -> None:
    scene = Scene()
    plain = encode(Columns([None], [b"v"], [1_000]), base_sequence=5)
    assert not scene.refused.must_check(read_header(plain), scene.producers)
    scene.told(3, NOT_YET, producer_id=8)
    assert not scene.refused.must_check(read_header(plain), scene.producers)
    assert scene.refused.must_check(read_header(batch(4, producer_id=8)), scene.producers)
