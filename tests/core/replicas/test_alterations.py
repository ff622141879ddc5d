"""Questions about in-sync sets, batched into one request at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from kafkalite.core.protocol.peers import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from kafkalite.core.replicas.alterations import Alterations
from kafkalite.core.replicas.leader import Altered, AlterPartition, InSyncReplica
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode

IDS = {"a": UUID(int=1), "b": UUID(int=2)}


class Controller:
    """Requests that have come, answered when a test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[AlterPartitionRequest, Callable[[Any], None]]] = []
        self.told: list[tuple[str, Altered | ErrorCode]] = []
        self.alterations = Alterations(
            1, IDS.get, lambda: 33, lambda *request: self.requests.append(request)
        )

    def ask(self, topic: str, index: int, epoch: int = 4) -> None:
        members = (InSyncReplica(1), InSyncReplica(2, 9))
        asked = AlterPartition(TopicPartition(topic, index), 5, epoch, members)
        self.alterations.ask(asked, partial(self._tell, f"{topic}-{index}@{epoch}"))

    def _tell(self, name: str, answer: Altered | ErrorCode) -> None:
        self.told.append((name, answer))


def test_what_is_asked_meanwhile_goes_together() -> None:
    controller = Controller()
    controller.ask("a", 0)
    controller.ask("a", 1)
    controller.ask("b", 0, epoch=4)
    controller.ask("b", 0, epoch=6)
    assert len(controller.requests) == 1
    request, answered = controller.requests.pop()
    assert (request.broker_id, request.broker_epoch) == (1, 33)
    (wanted,) = request.topics[0].partitions
    assert (wanted.leader_epoch, wanted.partition_epoch, wanted.new_isr) == (5, 4, (1, 2))
    assert [(each.broker_id, each.broker_epoch) for each in wanted.new_isr_with_epochs] == [
        (1, 33),
        (2, 9),
    ]
    done = AlteredPartition(0, leader_id=1, leader_epoch=5, isr=(1, 2), partition_epoch=5)
    answered(AlterPartitionResponse(topics=(AlteredTopic(IDS["a"], (done,)),)))
    assert controller.told == [("a-0@4", Altered(5, 5, (1, 2)))]
    ((request, answered),) = controller.requests
    asked = [
        (topic.topic_id, part.partition_epoch)
        for topic in request.topics
        for part in topic.partitions
    ]
    assert asked == [(IDS["a"], 4), (IDS["b"], 6)], "of a partition the latest question"
    refused = AlteredPartition(1, ErrorCode.INVALID_UPDATE_VERSION)
    answered(AlterPartitionResponse(topics=(AlteredTopic(IDS["a"], (refused,)),)))
    assert controller.told[1:] == [
        ("a-1@4", ErrorCode.INVALID_UPDATE_VERSION),
        ("b-0@6", ErrorCode.UNKNOWN_SERVER_ERROR),  # left out
    ]


def test_an_error_of_the_request_is_one_of_each_question() -> None:
    controller = Controller()
    for answer in (
        ErrorCode.NETWORK_EXCEPTION,
        AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
    ):
        controller.ask("a", 0)
        _, answered = controller.requests.pop()
        answered(answer)
    assert [answer for _, answer in controller.told] == [
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.STALE_BROKER_EPOCH,
    ]
    assert not len(controller.alterations)


def test_of_a_topic_that_is_gone_nobody_is_asked() -> None:
    controller = Controller()
    controller.ask("gone", 0)
    assert controller.told == [("gone-0@4", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert not controller.requests
    controller.ask("a", 0)
    assert len(controller.requests) == 1
