"""An answer of a coordinator elsewhere counts until a marker, or another leader epoch, comes."""

from __future__ import annotations

import gc

import pytest

from kafkalite.core.cluster.image import PartitionImage
from kafkalite.core.replicas.replication import LogEnds, PartitionReplication
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.transactions.verification import Verification, Verifications
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode

WHERE = TopicPartition("t", 0)
AGAIN = ErrorCode.NOT_ENOUGH_REPLICAS


def replication(epoch: int = 3) -> PartitionReplication:
    made = PartitionReplication(WHERE, 1)
    made.replay(PartitionImage((1, 2), 1, epoch, (1, 2), epoch), LogEnds(0, 0, 0), 0)
    return made


def asked(verifications: Verifications, at: PartitionReplication | None = None) -> Verification:
    return verifications.begin("tx", ProducerIdentity(7, 0), at or replication())


def code_of(verification: Verification) -> ErrorCode:
    try:
        verification.check(AGAIN)
    except ApiError as error:
        return error.error_code
    return ErrorCode.NONE


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NOT_COORDINATOR, AGAIN),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, AGAIN),
        (ErrorCode.NETWORK_EXCEPTION, AGAIN),
        (ErrorCode.CONCURRENT_TRANSACTIONS, AGAIN),
    ],
)
def test_the_coordinators_word_decides_if_it_has_one(answer: ErrorCode, code: ErrorCode) -> None:
    verification = asked(Verifications())
    assert code_of(verification) is AGAIN
    verification.answer.complete(answer)
    assert code_of(verification) is code


def test_a_marker_of_the_producer_takes_the_answer_back() -> None:
    verifications = Verifications()
    before, after = asked(verifications), asked(verifications)
    before.answer.complete(ErrorCode.NONE)
    verifications.marker_appended(WHERE, 8)
    verifications.marker_appended(TopicPartition("t", 1), 7)
    assert code_of(before) is ErrorCode.NONE
    verifications.marker_appended(WHERE, 7)
    after.answer.complete(ErrorCode.NONE)
    assert code_of(before) is code_of(after) is AGAIN
    fresh = asked(verifications)
    fresh.answer.complete(ErrorCode.NONE)
    assert code_of(fresh) is ErrorCode.NONE


def test_an_answer_counts_in_the_leader_epoch_of_its_question() -> None:
    at = replication()
    verification = asked(Verifications(), at)
    verification.answer.complete(ErrorCode.NONE)
    at.replay(PartitionImage((1, 2), 1, 4, (1, 2), 4), LogEnds(0, 0, 0), 0)
    assert code_of(verification) is AGAIN


def test_what_no_request_needs_is_forgotten() -> None:
    verifications = Verifications()
    kept = asked(verifications)
    for _ in range(10):
        asked(verifications)
    gc.collect()
    assert list(verifications._known) == [kept]
