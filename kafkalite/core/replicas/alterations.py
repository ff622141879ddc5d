"""The questions of this broker's leaders to the controller: who is to be in sync.              [P]

    leaders ──ask──> waiting ──one request at a time──> controller ──answered──> each leader

What is asked while a request is on its way goes together into the next one: a broker that dies
leaves thousands of in-sync sets at once.

Owns   the questions that are not answered yet; one of a partition at a time, the latest.
Never  repeats a question: its leader does, after an answer that settles nothing.
Fails  by answering each question with the error of its request.
Source KIP-497; apache/kafka `DefaultAlterPartitionManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from kafkalite.core.protocol.peers import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)
from kafkalite.core.replicas.leader import Altered, AlterPartition
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode

PARTITIONS_MAX: Final = 5_000  # of a request; some 40 bytes each

Answered = Callable[[Altered | ErrorCode], None]
Send = Callable[[AlterPartitionRequest, Callable[[AlterPartitionResponse | ErrorCode], None]], None]


class Question(NamedTuple):
    """One leader's question and where its answer goes."""

    asked: AlterPartition
    answered: Answered


class Alterations:
    """The questions of the leaders on broker `node_id`. `topic_id` gives the id of a topic, None if
    there is none of that name; `broker_epoch` that of this broker now; `send` calls back once, with
    the response or an error that says why there is none."""

    def __init__(
        self,
        node_id: int,
        topic_id: Callable[[str], UUID | None],
        broker_epoch: Callable[[], int],
        send: Send,
    ) -> None:
        self.send = send
        self._node_id = node_id
        self._topic_id = topic_id
        self._broker_epoch = broker_epoch
        self._waiting: dict[TopicPartition, Question] = {}
        self._is_asking = False

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, asked: AlterPartition, answered: Answered) -> None:
        """Asks for another in-sync set. An earlier question about the partition that has not left
        yet is forgotten: its leader asks another one by now, or is another one."""
        self._waiting[asked.topic_partition] = Question(asked, answered)
        self._go_on()

    def _go_on(self) -> None:
        if self._is_asking or not self._waiting:
            return
        sent: dict[tuple[UUID, int], Question] = {}
        lost: list[Question] = []
        for where in list(self._waiting)[:PARTITIONS_MAX]:
            question, topic_id = self._waiting.pop(where), self._topic_id(where.topic)
            if topic_id is None:
                lost.append(question)
            else:
                sent[topic_id, where.partition] = question
        if sent:
            self._is_asking = True
            self.send(self._request(sent), lambda response: self._take(sent, response))
        for question in lost:
            question.answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _request(self, sent: Mapping[tuple[UUID, int], Question]) -> AlterPartitionRequest:
        epoch = self._broker_epoch()
        topics: dict[UUID, list[AlterPartitionPartition]] = {}
        for (topic_id, index), (asked, _) in sent.items():
            members = tuple(
                BrokerState(node, epoch if node == self._node_id else known)
                for node, known in asked.in_sync_replicas
            )
            topics.setdefault(topic_id, []).append(
                AlterPartitionPartition(
                    index,
                    asked.leader_epoch,
                    tuple(member.broker_id for member in members),
                    members,
                    partition_epoch=asked.partition_epoch,
                )
            )
        listed = tuple(AlterPartitionTopic(each, tuple(of)) for each, of in topics.items())
        return AlterPartitionRequest(self._node_id, epoch, listed)

    def _take(
        self,
        sent: Mapping[tuple[UUID, int], Question],
        response: AlterPartitionResponse | ErrorCode,
    ) -> None:
        """Gives each question its answer; the next request leaves first, as an answer may ask."""
        answers: dict[tuple[UUID, int], Altered | ErrorCode] = {}
        other = ErrorCode.UNKNOWN_SERVER_ERROR  # to what the response leaves out
        if isinstance(response, ErrorCode):
            other = response
        elif response.error_code:
            other = response.error_code
        else:
            for topic in response.topics:
                for each in topic.partitions:
                    altered = Altered(each.leader_epoch, each.partition_epoch, each.isr)
                    answers[topic.topic_id, each.partition_index] = each.error_code or altered
        self._is_asking = False
        self._go_on()
        for key, question in sent.items():
            question.answered(answers.get(key, other))
