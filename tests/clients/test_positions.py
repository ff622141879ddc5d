"""Where a consumer stands: fetch requests, what is buffered, what a poll takes, resets, errors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.clients.consumer.positions import EARLIEST, LATEST, FetchSettings, Positions, Stage
from kafkalite.core.columns import FEW
from kafkalite.core.protocol import records
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kafkalite.core.protocol.record_codec import NATIVE, Spans
from kafkalite.core.types import NO_OFFSET, Columns, TopicPartition
from kafkalite.errors import ApiError, CorruptBatchError, ErrorCode, LogTruncation

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
BOTH = (TP, OTHER)


def positions(
    *, at: int = 0, tps: Sequence[TopicPartition] = (TP,), **changes: object
) -> Positions:
    made = Positions(FetchSettings(**changes), Random(1))  # type: ignore[arg-type]
    made.assign(tps)
    for tp in tps:
        made[tp].seek(at)
    return made


def batch(
    base_offset: int, count: int, *, transactional_id: int | None = None, codec: int = 0
) -> bytes:
    offsets = range(base_offset, base_offset + count)
    values = [str(offset).encode() for offset in offsets]
    return records.encode(
        Columns([None] * count, values, [0] * count, offsets),
        compression=Compression(codec),
        producer_id=-1 if transactional_id is None else transactional_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional_id is not None,
        leader_epoch=4,
    )


def marker(offset: int, producer_id: int, kind: records.ControlType) -> bytes:
    return records.encode_end_transaction_marker(
        records.EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )


def answer(
    data: bytes = b"",
    code: ErrorCode = ErrorCode.NONE,
    aborted: tuple[AbortedTransaction, ...] = (),
    tp: TopicPartition = TP,
) -> FetchResponse:
    partition = PartitionData(
        tp.partition,
        code,
        high_watermark=100,
        aborted_transactions=aborted,
        records=memoryview(data),
    )
    return FetchResponse(responses=(FetchableTopicResponse(tp.topic, partitions=(partition,)),))


def asked(places: Positions, now_ms: float = 0) -> dict[TopicPartition, int]:
    made = places.fetch_request(BOTH, lambda _: 4, now_ms)
    return {} if made is None else made[1]


def offsets(taken: dict[TopicPartition, Columns]) -> list[int]:
    return [offset for columns in taken.values() for offset in columns.offsets or ()]


def test_a_request_asks_from_the_position_with_the_leader_epoch() -> None:
    made = positions(at=17, max_partition_fetch_bytes=1_000).fetch_request([TP], lambda _: 4, 0)
    assert made is not None
    request, from_offsets = made
    (partition,) = request.topics[0].partitions
    assert (partition.fetch_offset, partition.current_leader_epoch) == (17, 4)
    assert partition.partition_max_bytes == 1_000
    assert (request.session_id, request.session_epoch, request.replica_id) == (0, -1, -1)
    assert from_offsets == {TP: 17}


def test_records_are_taken_as_columns_and_the_position_moves() -> None:
    places = positions()
    places.receive(answer(batch(0, 3) + batch(3, 2)), asked(places), 0)
    taken = places.take()
    assert list(taken[TP].values) == [b"0", b"1", b"2", b"3", b"4"]
    assert offsets(taken) == [0, 1, 2, 3, 4]
    assert (places[TP].position, places[TP].leader_epoch) == (5, 4)
    assert places.take() == {}
    assert places.consumed() == {TP: (5, 4)}


def test_the_next_request_goes_out_while_records_are_still_unread() -> None:
    places = positions()
    places.receive(answer(batch(0, 3)), asked(places), 0)
    assert asked(places) == {TP: 3}
    assert places[TP].position == 0


def test_no_more_is_asked_for_than_the_buffer_holds() -> None:
    places = positions(max_partition_fetch_bytes=100)
    places.receive(answer(batch(0, 30)), asked(places), 0)
    assert asked(places) == {}
    places.take()
    assert asked(places) == {TP: 30}


def test_a_batch_that_begins_before_the_position_is_cut() -> None:
    places = positions(at=2)
    places.receive(answer(batch(0, 5)), asked(places), 0)
    assert offsets(places.take()) == [2, 3, 4]


def test_an_incomplete_last_batch_is_asked_for_again() -> None:
    places = positions()
    places.receive(answer(batch(0, 2) + batch(2, 2)[:-1]), asked(places), 0)
    assert offsets(places.take()) == [0, 1]
    assert asked(places) == {TP: 2}


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 3))
def test_any_limit_gives_every_record_once_and_in_order(
    counts: list[int], records_max: int, codec: int
) -> None:
    places, data, end = positions(), b"", 0
    for count in counts:
        data += batch(end, count, codec=codec)
        end += count
    places.receive(answer(data), asked(places), 0)
    seen: list[int] = []
    while taken := places.take(records_max):
        assert sum(map(len, taken.values())) <= records_max
        seen += offsets(taken)
        assert places[TP].position == seen[-1] + 1
    assert seen == list(range(end))
    assert places[TP].position == end


def test_partitions_take_turns_under_a_limit() -> None:
    places = positions(tps=BOTH)
    requested = asked(places)
    for tp in BOTH:
        places.receive(answer(batch(0, 4), tp=tp), requested, 0)
    assert [list(places.take(2)) for _ in range(4)] == [[TP], [OTHER], [TP], [OTHER]]


def test_a_paused_partition_is_neither_asked_nor_taken_and_keeps_its_records() -> None:
    places = positions()
    places.receive(answer(batch(0, 2)), asked(places), 0)
    places[TP].is_paused = True
    assert asked(places) == {}
    assert places.take() == {}
    places[TP].is_paused = False
    assert offsets(places.take()) == [0, 1]


def test_an_answer_from_before_a_seek_is_dropped() -> None:
    places = positions()
    before = asked(places)
    places[TP].seek(50)
    places.receive(answer(batch(0, 2)), before, 0)
    assert places.take() == {}
    assert asked(places) == {TP: 50}


def test_an_answer_for_a_partition_that_went_away_is_dropped() -> None:
    places = positions(tps=BOTH)
    before = asked(places)
    places.assign([OTHER])
    places.receive(answer(batch(0, 2)), before, 0)
    assert places.take() == {}
    assert places.assigned == (OTHER,)


def test_partitions_that_stay_assigned_keep_their_place() -> None:
    places = positions(at=9)
    places.assign(BOTH)
    assert places[TP].position == 9
    assert places.awaiting_committed() == [OTHER]


def test_control_batches_are_skipped() -> None:
    places = positions()
    data = batch(0, 2, transactional_id=7) + marker(2, 7, records.ControlType.COMMIT) + batch(3, 1)
    places.receive(answer(data), asked(places), 0)
    assert offsets(places.take()) == [0, 1, 3]


def test_a_poll_moves_past_a_control_batch_at_the_end() -> None:
    places = positions()
    places.receive(answer(marker(0, 7, records.ControlType.COMMIT)), asked(places), 0)
    assert places.take() == {}
    assert places[TP].position == 1


def test_records_of_aborted_transactions_are_left_out() -> None:
    places = positions(read_committed=True)
    data = b"".join(
        [
            batch(0, 1, transactional_id=7),  # aborted below
            batch(1, 1, transactional_id=8),
            batch(2, 1),
            marker(3, 7, records.ControlType.ABORT),
            batch(4, 1, transactional_id=7),  # another transaction of the same producer
            marker(5, 7, records.ControlType.COMMIT),
            batch(6, 1, transactional_id=7),  # aborted as well
            marker(7, 7, records.ControlType.ABORT),
        ]
    )
    aborted = (AbortedTransaction(7, 6), AbortedTransaction(7, 0))
    places.receive(answer(data, aborted=aborted), asked(places), 0)
    assert offsets(places.take()) == [1, 2, 4]
    assert places[TP].position == 8


def test_a_moved_leader_is_looked_for_after_a_pause() -> None:
    places = positions()
    places.receive(answer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), asked(places), 0)
    assert places.stale_topics == {"orders"}
    assert asked(places, 50) == {}
    assert places.next_retry_ms(50) is not None
    assert asked(places, 121) == {TP: 0}


@pytest.mark.parametrize("to", [EARLIEST, LATEST])
def test_an_offset_out_of_range_is_reset(to: int) -> None:
    places = positions(at=5, auto_offset_reset=to)
    places.receive(answer(code=ErrorCode.OFFSET_OUT_OF_RANGE), asked(places), 0)
    assert places.awaiting_offset(0) == {TP: to}
    assert places.consumed() == {}
    places.found(TP, to, 40, 2)
    assert (places[TP].stage, places[TP].position) == (Stage.FETCHING, 40)


def test_an_offset_out_of_range_that_nothing_resets_is_an_error() -> None:
    places = positions(at=5, auto_offset_reset=None)
    places.receive(answer(code=ErrorCode.OFFSET_OUT_OF_RANGE), asked(places), 0)
    with pytest.raises(ApiError, match=r"orders-0: offset 5 is not in the log"):
        places.take()
    places[TP].seek(0)
    assert asked(places) == {TP: 0}


def test_an_offset_found_for_an_older_question_is_dropped() -> None:
    places = positions()
    places[TP].reset(EARLIEST)
    places[TP].reset(LATEST)
    places.found(TP, EARLIEST, 0, 0)
    assert places.awaiting_offset(0) == {TP: LATEST}


def test_a_committed_offset_is_where_reading_begins() -> None:
    places = Positions(FetchSettings(), Random(1))
    places.assign(BOTH)
    places.committed(TP, 33, 2)
    places.committed(OTHER, NO_OFFSET, -1)
    assert (places[TP].position, places[TP].leader_epoch) == (33, 2)
    assert places.awaiting_offset(0) == {OTHER: LATEST}


def test_without_a_commit_and_without_a_reset_there_is_an_error() -> None:
    places = Positions(FetchSettings(auto_offset_reset=None), Random(1))
    places.assign([TP])
    places.committed(TP, NO_OFFSET, -1)
    with pytest.raises(ApiError, match="orders-0: there is no committed offset"):
        places.take()


def test_a_corrupt_batch_is_named_and_may_be_skipped() -> None:
    places = positions()
    bad = bytearray(batch(2, 2))
    bad[-1] ^= 1
    places.receive(answer(batch(0, 2) + bytes(bad)), asked(places), 0)
    assert offsets(places.take()) == [0, 1]
    with pytest.raises(CorruptBatchError, match=r"orders-0 from offset 2: .*CRC"):
        places.take()
    assert asked(places) == {TP: 2}
    places[TP].seek(4)
    assert asked(places) == {TP: 4}


def test_crcs_need_not_be_checked() -> None:
    places = positions(check_crcs=False)
    bad = bytearray(batch(0, 2))
    bad[17] ^= 1
    places.receive(answer(bytes(bad)), asked(places), 0)
    assert offsets(places.take()) == [0, 1]


def test_bytes_that_are_no_batch_are_an_error() -> None:
    places = positions()
    places.receive(answer(batch(0, 1)[:-1]), asked(places), 0)
    with pytest.raises(CorruptBatchError, match="orders-0 from offset 0: 68 bytes that are no"):
        places.take()


def test_a_refused_partition_does_not_hold_up_the_others() -> None:
    places = positions(tps=BOTH)
    requested = asked(places)
    places.receive(answer(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), requested, 0)
    places.receive(answer(batch(0, 1), tp=OTHER), requested, 0)
    with pytest.raises(ApiError, match="orders-0 from offset 0: TOPIC_AUTHORIZATION_FAILED"):
        places.take()
    assert list(places.take()) == [OTHER]


def test_a_batch_that_the_broker_finds_corrupt_is_an_error_each_time() -> None:
    places = positions()
    for now_ms in (0, 10_000):
        places.receive(answer(code=ErrorCode.CORRUPT_MESSAGE), asked(places, now_ms), now_ms)
        with pytest.raises(ApiError, match="orders-0 from offset 0: CORRUPT_MESSAGE"):
            places.take()
    assert not places.stale_topics


def test_a_partition_nobody_assigned_is_named() -> None:
    with pytest.raises(ValueError, match="orders-1 is not assigned"):
        positions()[OTHER]


class TestForms:
    """A consumer that asks for forms gets the same records; small batches stay lists."""

    @given(
        st.lists(st.tuples(st.sampled_from([1, FEW - 1, FEW, 300]), st.integers(0, 4)), max_size=4),
        st.none() | st.integers(1, 400),
    )
    def test_the_records_are_those_of_lists(
        self, sizes: list[tuple[int, int]], records_max: int | None
    ) -> None:
        data, end = b"", 0
        for count, codec in sizes:
            data += batch(end, count, codec=codec)
            end += count

        def taken(**settings: object) -> list[tuple[list[bytes | None], list[int], list[int]]]:
            place, found = positions(**settings), []
            place.receive(answer(data), asked(place), 0)
            while got := place.take(records_max):
                columns = got[TP]
                assert columns.offsets is not None
                found.append(
                    (list(columns.values), list(columns.timestamps), list(columns.offsets))
                )
            return found

        assert taken(as_forms=True) == taken()

    def test_large_batches_are_forms_and_small_ones_join_them(self) -> None:
        place = positions(as_forms=True)
        place.receive(answer(batch(0, FEW) + batch(FEW, 5) + batch(FEW + 5, FEW)), asked(place), 0)
        columns = place.take()[TP]
        assert type(columns.values) is (Spans if NATIVE else list)
        assert list(columns.values) == [b"%d" % offset for offset in range(2 * FEW + 5)]
        place.receive(answer(batch(2 * FEW + 5, FEW - 1)), asked(place), 0)
        assert type(place.take()[TP].values) is list

    def test_a_response_is_not_kept_for_a_small_part_of_it(self) -> None:
        data = batch(0, FEW)
        for others, is_kept in ((1, True), (8, False)):
            place = positions(as_forms=True)
            response = memoryview(data * (1 + others))
            place.receive(answer(response[: len(data)]), asked(place), 0)
            columns = place.take()[TP]
            if NATIVE:
                assert isinstance(columns.values, Spans)
                assert (columns.values.data is response.obj) == is_kept
                assert columns.values.held_bytes <= 4 * len(data)

    def test_damaged_records_are_refused_alike(self) -> None:
        data = bytearray(batch(0, FEW))
        data[-1] = 9
        said = []
        for as_forms in (False, True):
            place = positions(as_forms=as_forms, check_crcs=False)
            place.receive(answer(bytes(data)), asked(place), 0)
            with pytest.raises(CorruptBatchError) as failed:
                place.take()
            said.append(str(failed.value))
        assert said[0] == said[1]


# ---- leaders change ------------------------------------------------------------------------------


def read_up_to_5(**settings: Any) -> Positions:
    """Records 0 to 4 of leader epoch 4 were taken, 5 and 6 are buffered."""
    places = positions(**settings)
    places.receive(answer(batch(0, 5)), asked(places), 0)
    places.take()
    places.receive(answer(batch(5, 2)), asked(places), 0)
    return places


def to_check(places: Positions, epoch: int) -> dict[TopicPartition, tuple[int, int]]:
    return places.to_check(lambda _: epoch, 1e9)


def fetches(places: Positions, epoch: int) -> int | None:
    made = places.fetch_request([TP], lambda _: epoch, 1e9, all_is_taken=True)
    return None if made is None else made[1][TP]


def test_a_new_leader_is_asked_before_anything_is_fetched_from_it() -> None:
    places = read_up_to_5()
    assert not to_check(places, 4), "its own records it has"
    assert to_check(places, 6) == {TP: (6, 4)}
    assert fetches(places, 6) is None
    places.checked(TP, (6, 4), 4, 7)
    assert not to_check(places, 6)
    assert fetches(places, 6) == 7
    assert to_check(places, 7), "and the next one, too"


def test_unread_records_that_are_gone_are_fetched_again() -> None:
    places = read_up_to_5()
    places.checked(TP, (6, 4), 4, 6)
    assert not places.take(), "record 6 is no more, so neither is told"
    assert to_check(places, 6) == {TP: (6, 4)}, "now for what was taken"
    places.checked(TP, (6, 4), 4, 6)
    assert fetches(places, 6) == 5


@pytest.mark.parametrize(("epoch", "end", "goes_on"), [(4, 3, 3), (2, 3, 3), (2, 9, 5)])
def test_what_was_read_and_is_gone_moves_the_position(epoch: int, end: int, goes_on: int) -> None:
    places = read_up_to_5(auto_offset_reset=EARLIEST)
    for _ in range(2):
        places.checked(TP, (6, 4), epoch, end)
    assert places[TP].position == goes_on
    assert f"from {goes_on} on" in places.truncations[0]


def test_without_a_known_end_the_policy_resets() -> None:
    places = read_up_to_5(auto_offset_reset=EARLIEST)
    for _ in range(2):
        places.checked(TP, (6, 4), -1, -1)
    assert places.awaiting_offset(1e9) == {TP: EARLIEST}


def test_without_a_policy_truncation_is_an_error() -> None:
    places = read_up_to_5(auto_offset_reset=None)
    for _ in range(2):
        places.checked(TP, (6, 4), 4, 3)
    with pytest.raises(LogTruncation, match="before offset 5, of leader epoch 4") as raised:
        places.take()
    assert raised.value.offset == 3


def test_an_answer_that_comes_too_late_checks_nothing() -> None:
    places = read_up_to_5()
    places[TP].seek(2)
    places.checked(TP, (6, 4), 4, 1)
    assert places[TP].position == 2
    assert not to_check(places, 6), "a place without an epoch is not checked"


# ---- followers -----------------------------------------------------------------------------------


def sent_to(node_id: int) -> FetchResponse:
    data = PartitionData(TP.partition, preferred_read_replica=node_id, records=b"")
    return FetchResponse(responses=(FetchableTopicResponse(TP.topic, partitions=(data,)),))


def test_a_consumer_reads_where_the_leader_sends_it_for_a_while() -> None:
    places = positions(client_rack="b", preferred_max_age_ms=1_000)
    made = places.fetch_request([TP], lambda _: 4, 0)
    assert made is not None
    assert made[0].rack_id == "b"
    version = places.version
    places.receive(sent_to(2), asked(places), 10)
    assert (places.source(TP), places.version > version) == (2, True)
    places.forget_old_preferences(1_009)
    assert places.source(TP) == 2
    places.forget_old_preferences(1_010)
    assert places.source(TP) == -1


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE])
def test_a_follower_that_lags_is_left_for_the_leader_at_once(code: ErrorCode) -> None:
    places = positions(auto_offset_reset=None)
    places.receive(sent_to(2), asked(places), 0)
    places.receive(answer(code=code), asked(places), 0)
    assert places.source(TP) == -1
    assert fetches(places, 4) == 0
    assert not places.take(), "the leader may have the offset"
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        places.receive(answer(code=code), asked(places), 0)
        with pytest.raises(ApiError, match="OFFSET_OUT_OF_RANGE"):
            places.take()


def test_a_follower_that_follows_no_more_is_left_after_a_pause() -> None:
    places = positions()
    places.receive(sent_to(2), asked(places), 0)
    places.receive(answer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), asked(places), 0)
    assert places.source(TP) == -1
    assert places.stale_topics == {TP.topic}
