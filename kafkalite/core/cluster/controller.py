"""The controller: makes, changes and unmakes topics and settings, hands out producer ids.   [P]

A machine over the cluster's image. Every step is validated against `image`, which `replay` alone
advances, so the rim takes steps one at a time: handle, append the records, replay, reply.

Owns   the image, as the records so far make it.
Never  touches a log or a socket; randomness (topic ids, first replicas) is handed in.
Fails  per topic, with Kafka's code and a message in the response.
Source KIP-4, KIP-195, KIP-464, KIP-516, KIP-730; apache/kafka `ReplicationControlManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final
from uuid import UUID

from kafkalite.core.cluster import config_changes, elections
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.config_changes import ChangeConfigs
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord, TopicImage
from kafkalite.core.cluster.placement import (
    check_configs,
    check_name,
    collision_key,
    place,
    place_more,
)
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
)
from kafkalite.core.protocol.primitives import ZERO_UUID
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kafkalite.core.types import Outcome, Reply, RequestContext
from kafkalite.errors import ApiError, ErrorCode

PRODUCER_ID_BLOCK_SIZE: Final = 1_000

Step = Outcome[ClusterRecord]
DescribeTopic = Callable[[TopicImage], Iterable[CreatableTopicConfigs]]


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """A broker asks for ids to give to its idempotent producers."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The ids [first, first + size), for one owner."""

    first: int
    size: int


ControllerRequest = (
    CreateTopicsRequest
    | DeleteTopicsRequest
    | CreatePartitionsRequest
    | ChangeConfigs
    | ElectLeadersRequest
    | AlterPartitionReassignmentsRequest
    | AllocateProducerIds
)


@dataclass(slots=True)
class Controller:
    """The machine. `describe_topic` returns a topic's settings with their sources (KIP-525)."""

    config: BrokerConfig
    random: Random
    describe_topic: DescribeTopic
    image: ClusterImage = field(default_factory=ClusterImage)
    _taken: dict[str, str] = field(init=False)  # what collides with a topic -> the topic

    def __post_init__(self) -> None:
        self._taken = {collision_key(name): name for name in self.image.topics}

    def handle(self, request: ControllerRequest, context: RequestContext) -> Step:
        """One step. Its records must be replayed before the next one."""
        match request:
            case CreateTopicsRequest():
                return self._create_topics(request, context)
            case DeleteTopicsRequest():
                return self._delete_topics(request, context)
            case CreatePartitionsRequest():
                return self._create_partitions(request, context)
            case ChangeConfigs():
                return self._change_configs(request, context)
            case ElectLeadersRequest():
                response, records = elections.elect_leaders(request, self.image)
                return Outcome(records, (Reply(context.token, response),))
            case AlterPartitionReassignmentsRequest():
                moved, records = elections.alter_reassignments(request, self.image)
                return Outcome(records, (Reply(context.token, moved),))
            case AllocateProducerIds():
                return self._allocate_producer_ids(context)

    def refuse(self, request: ControllerRequest, error: ApiError) -> object:
        """The response to a request whose records could not be written."""
        code, words = error.error_code, error.words
        match request:
            case CreateTopicsRequest():
                results = [_refused(t.name, words, code) for t in request.topics]
                return CreateTopicsResponse(topics=tuple(results))
            case DeleteTopicsRequest():
                going = request.topics or [DeleteTopicState(name) for name in request.topic_names]
                return DeleteTopicsResponse(
                    responses=tuple(
                        DeletableTopicResult(t.name, t.topic_id, code, words) for t in going
                    )
                )
            case CreatePartitionsRequest():
                grown = (CreatePartitionsTopicResult(t.name, code, words) for t in request.topics)
                return CreatePartitionsResponse(results=tuple(grown))
            case ChangeConfigs():
                return [error] * len(request.changes)
            case ElectLeadersRequest():
                return elections.refuse_elections(request, error)
            case AlterPartitionReassignmentsRequest():
                return AlterPartitionReassignmentsResponse(error_code=code, error_message=words)
            case AllocateProducerIds():
                return error

    def replay(self, records: Collection[ClusterRecord]) -> None:
        """Takes durable records into the image."""
        self.image = images.replay(self.image, records)
        for name in {images.topic_of(record.path) for record in records} - {None}:
            assert name is not None
            key = collision_key(name)
            if name in self.image.topics:
                self._taken[key] = name
            elif self._taken.get(key) == name:
                del self._taken[key]

    # -- topics come

    def _create_topics(self, request: CreateTopicsRequest, context: RequestContext) -> Step:
        times_named = Counter(topic.name for topic in request.topics)
        taken = dict(self._taken)
        records: list[ClusterRecord] = []
        results: list[CreatableTopicResult] = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            if times_named[topic.name] > 1:
                results.append(_refused(topic.name, "Duplicate topic name."))
                continue
            try:
                made = self._new_topic(topic, taken)
                record = images.checked(images.topic_record(made))
            except ApiError as error:
                results.append(_refused(topic.name, error.words, error.error_code))
                continue
            taken[collision_key(topic.name)] = topic.name
            records.append(record)
            results.append(self._created(made, validate_only=request.validate_only))
        response = CreateTopicsResponse(topics=tuple(results))
        return Outcome(
            () if request.validate_only else tuple(records), (Reply(context.token, response),)
        )

    def _new_topic(self, topic: CreatableTopic, taken: Mapping[str, str]) -> TopicImage:
        check_name(topic.name)
        if topic.name in self.image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if (twin := taken.get(collision_key(topic.name))) is not None:
            words = f"Topic '{topic.name}' collides with existing topic: {twin}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, words)
        configs = check_configs(topic.configs, self.config)
        defaults = {
            name: self.config[name] for name in ("num.partitions", "default.replication.factor")
        }
        placed = place(topic, self.image.brokers, defaults, self.random)
        partitions = images.new_partitions(placed)
        return TopicImage(topic.name, self._new_topic_id(), partitions, configs)

    def _new_topic_id(self) -> UUID:
        """A random id (version 4) that no topic has; Kafka's clients take the zero id for none."""
        while True:
            topic_id = UUID(int=self.random.getrandbits(128), version=4)
            if topic_id not in self.image.names:
                return topic_id

    def _created(self, topic: TopicImage, *, validate_only: bool) -> CreatableTopicResult:
        return CreatableTopicResult(
            name=topic.name,
            topic_id=ZERO_UUID if validate_only else topic.topic_id,
            error_message=None,
            num_partitions=len(topic.partitions),
            replication_factor=len(topic.partitions[0].replicas),
            configs=tuple(self.describe_topic(topic)),
        )

    # -- topics grow, and get other settings

    def _create_partitions(self, request: CreatePartitionsRequest, context: RequestContext) -> Step:
        times_named = Counter(topic.name for topic in request.topics)
        records: list[ClusterRecord] = []
        results: list[CreatePartitionsTopicResult] = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            try:
                if times_named[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                records.append(images.checked(images.topic_record(self._grown(topic))))
                results.append(CreatePartitionsTopicResult(topic.name))
            except ApiError as error:
                words = error.words or None
                results.append(CreatePartitionsTopicResult(topic.name, error.error_code, words))
        response = CreatePartitionsResponse(results=tuple(results))
        durable = () if request.validate_only else tuple(records)
        return Outcome(durable, (Reply(context.token, response),))

    def _grown(self, wanted: CreatePartitionsTopic) -> TopicImage:
        topic = self.image.topics.get(wanted.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        placed = place_more(
            topic, wanted.count, wanted.assignments, self.image.brokers, self.random
        )
        return replace(topic, partitions=(*topic.partitions, *images.new_partitions(placed)))

    def _change_configs(self, request: ChangeConfigs, context: RequestContext) -> Step:
        records: list[ClusterRecord] = []
        results: list[ApiError | None] = []
        for change in request.changes:
            try:
                record = config_changes.carry_out(change, self.image, self.config)
            except ApiError as error:
                results.append(error)
                continue
            results.append(None)
            if record is not None:
                records.append(record)
        durable = () if request.validate_only else tuple(records)
        return Outcome(durable, (Reply(context.token, results),))

    # -- topics go

    def _delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> Step:
        by_name = tuple(DeleteTopicState(name) for name in request.topic_names)
        wanted = Counter(request.topics or by_name)
        going: dict[str, TopicImage] = {}
        results: list[DeletableTopicResult] = []
        for state in wanted:
            try:
                topic = self._find(state)
                if topic.name in going or wanted[state] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                going[topic.name] = topic
                results.append(DeletableTopicResult(topic.name, topic.topic_id))
            except ApiError as error:
                refusal = DeletableTopicResult(
                    state.name, state.topic_id, error.error_code, error.words
                )
                results.append(refusal)
        records = tuple(
            record for topic in going.values() for record in images.deletion_records(topic)
        )
        response = DeleteTopicsResponse(responses=tuple(results))
        return Outcome(records, (Reply(context.token, response),))

    def _find(self, state: DeleteTopicState) -> TopicImage:
        """The topic that a request means."""
        if not self.config["delete.topic.enable"]:
            raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        if state.name is not None and state.topic_id != ZERO_UUID:
            words = "You may not specify both topic name and topic id."
            raise ApiError(ErrorCode.INVALID_REQUEST, words)
        if state.name is None and state.topic_id == ZERO_UUID:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if state.name is not None:
            topic = self.image.topics.get(state.name)
            if topic is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{state.name}'"
                )
            return topic
        found = self.image.topic_by_id(state.topic_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic {state.topic_id}")
        return found

    # -- producer ids

    def _allocate_producer_ids(self, context: RequestContext) -> Step:
        """The next block. Ids that a broker does not use before its end are lost: ids abound."""
        first = self.image.next_producer_id_block
        block = ProducerIdBlock(first, PRODUCER_ID_BLOCK_SIZE)
        record = images.producer_ids_record(first + PRODUCER_ID_BLOCK_SIZE)
        return Outcome((record,), (Reply(context.token, block),))


def _refused(
    name: str, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST
) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)
