"""The controller: topics, settings, brokers that come and go, leaders, in-sync sets, ids.   [P]

A machine over the cluster's image. Every step is validated against `image`, which `replay` alone
advances, so the rim takes steps one at a time: handle, append the records, replay, reply.

The rules are elsewhere: `registrations` (brokers), `elections`, `in_sync` (AlterPartition),
`reassignments`, `config_changes`, `placement`; `partition_changes` is what they share.

Owns   the image, as the records so far make it; when leaders are balanced next.
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

from kafkalite.core.cluster import (
    config_changes,
    elections,
    failures,
    in_sync,
    reassignments,
    registrations,
)
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.config_changes import ChangeConfigs
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord, PartitionImage, TopicImage
from kafkalite.core.cluster.partition_changes import LiveBrokers, PartitionChanges, next_state
from kafkalite.core.cluster.placement import (
    all_leaving,
    check_configs,
    check_name,
    collision_key,
    place,
    place_more,
)
from kafkalite.core.cluster.registrations import BrokerGone, BrokerRegistered, TakeOver
from kafkalite.core.config.settings import BrokerConfig, LogConfig
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
)
from kafkalite.core.protocol.peers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ReportReplicasRequest,
    ReportReplicasResponse,
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
from kafkalite.errors import ApiError, ConfigError, ErrorCode

PRODUCER_ID_BLOCK_SIZE: Final = 1_000
FIRST_BALANCE_MS: Final = 5_000  # after a controller begins
ELECTIONS_PER_STEP: Final = 1_000
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
MIN_IN_SYNC: Final = "min.insync.replicas"

Step = Outcome[ClusterRecord]
Records = tuple[ClusterRecord, ...]
DescribeTopic = Callable[[TopicImage], Iterable[CreatableTopicConfigs]]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to `Controller.due_ms`. The answer: how many partitions changed."""

    now_ms: int


ControllerRequest = (
    CreateTopicsRequest
    | DeleteTopicsRequest
    | CreatePartitionsRequest
    | ChangeConfigs
    | ElectLeadersRequest
    | AlterPartitionReassignmentsRequest
    | AlterPartitionRequest
    | ControlledShutdownRequest
    | AllocateProducerIdsRequest
    | ReportReplicasRequest
    | BrokerRegistered
    | BrokerGone
    | TakeOver
    | Tick
)


@dataclass(slots=True)
class Controller:
    """The machine. `describe_topic` returns a topic's settings with their sources (KIP-525)."""

    config: BrokerConfig
    random: Random
    describe_topic: DescribeTopic
    image: ClusterImage = field(default_factory=ClusterImage)
    due_ms: int = 0  # the monotonic time at which a `Tick` has work to do
    _taken: dict[str, str] = field(init=False)  # what collides with a topic -> the topic

    def __post_init__(self) -> None:
        self._taken = {collision_key(name): name for name in self.image.topics}

    def handle(self, request: ControllerRequest, context: RequestContext) -> Step:
        """One step. Its records must be replayed before the next one."""
        response: object
        match request:
            case CreateTopicsRequest():
                response, records = self._create_topics(request)
            case DeleteTopicsRequest():
                response, records = self._delete_topics(request)
            case CreatePartitionsRequest():
                response, records = self._create_partitions(request)
            case ChangeConfigs():
                response, records = self._change_configs(request)
            case ElectLeadersRequest():
                response, records = elections.elect_leaders(request, self._changes())
            case AlterPartitionReassignmentsRequest():
                response, records = reassignments.alter_reassignments(request, self._changes())
            case AlterPartitionRequest():
                response, records = in_sync.alter_partition(request, self._changes())
            case ReportReplicasRequest():
                response, records = failures.report_replicas(request, self._changes())
            case ControlledShutdownRequest():
                response, records = registrations.controlled_shutdown(request, self._changes())
            case BrokerRegistered():
                response, records = registrations.registered(request, self._changes())
            case BrokerGone():
                response, records = registrations.gone(request, self._changes())
            case TakeOver():
                response, records = registrations.taken_over(self._changes())
            case AllocateProducerIdsRequest():
                response, records = self._allocate_producer_ids(request)
            case Tick():
                response, records = self._tick(request.now_ms)
        return Outcome(records, (Reply(context.token, response),))

    @staticmethod
    def refuse(request: ControllerRequest, error: ApiError) -> object:
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
            case AlterPartitionRequest():
                return AlterPartitionResponse(error_code=code)
            case ControlledShutdownRequest():
                return ControlledShutdownResponse(code)
            case AllocateProducerIdsRequest():
                return AllocateProducerIdsResponse(error_code=code)
            case ReportReplicasRequest():
                return ReportReplicasResponse(code)
            case BrokerRegistered() | BrokerGone() | TakeOver() | Tick():
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

    # -- partitions

    def _changes(self) -> PartitionChanges:
        """The partitions that the next step changes: none so far."""
        return self._changes_of(self.image)

    def _changes_of(self, image: ClusterImage) -> PartitionChanges:
        live = LiveBrokers.of(image)
        return PartitionChanges(image, live, self._may_lose_records, self._in_sync_min)

    def _may_lose_records(self, topic: TopicImage) -> bool:
        return self._settings(topic).unclean_leader_election_enable

    def _in_sync_min(self, topic: TopicImage) -> int:
        return self._settings(topic).min_insync_replicas

    def _settings(self, topic: TopicImage) -> LogConfig:
        try:
            return self.config.topic(topic.configs).log
        except ConfigError:  # the settings of topic and broker do not go together any more
            return self.config.topic().log

    def _tick(self, now_ms: int) -> tuple[int, Records]:
        """Balances leaders every leader.imbalance.check.interval.seconds, and looks for leaders of
        partitions without one; in several steps if there is much to do."""
        if now_ms < self.due_ms:
            return 0, ()
        if self.due_ms == 0:
            self.due_ms = now_ms + FIRST_BALANCE_MS
            return 0, ()
        changes, is_balanced = self._changes(), True
        elections.elect_missing(changes)
        elections.reconsider_eligible(changes)
        if self.config["auto.leader.rebalance.enable"]:
            percentage: int = self.config["leader.imbalance.per.broker.percentage"]
            is_balanced = elections.balance(changes, percentage, ELECTIONS_PER_STEP)
        seconds: int = self.config["leader.imbalance.check.interval.seconds"]
        self.due_ms = now_ms + 1_000 * seconds if is_balanced else now_ms
        return len(changes), changes.records()

    def _in_service(
        self, partitions: tuple[PartitionImage, ...], first: int = 0, *, manual: bool
    ) -> tuple[PartitionImage, ...]:
        """New partitions, without brokers that shut down or are away in their in-sync sets. The
        first has the number `first`."""
        live = LiveBrokers.of(self.image)
        served = []
        for index, made in enumerate(partitions, first):
            active = tuple(node for node in made.replicas if node in live.active)
            if not active:
                raise all_leaving(index, made.replicas, manual=manual)
            if active == made.replicas:
                served.append(made)
            else:
                served.append(next_state(made, replace(made, in_sync_replicas=active), live))
        return tuple(served)

    def _racks(self) -> dict[int, str | None]:
        return {node_id: broker.rack for node_id, broker in self.image.brokers.items()}

    def _away(self) -> list[int]:
        """The brokers that hold replicas and are not registered now: they are taken to come back,
        so that topics can be made while one restarts."""
        missing = self.image.settled_epochs.keys() - self.image.brokers.keys()
        if not missing:
            return []
        topics = self.image.topics.values()
        partitions = (partition for topic in topics for partition in topic.partitions)
        return sorted(missing & {node for each in partitions for node in each.replicas})

    # -- topics come

    def _create_topics(self, request: CreateTopicsRequest) -> tuple[CreateTopicsResponse, Records]:
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
                creation = images.creation_records(made)
                images.checked(creation[0])
            except ApiError as error:
                results.append(_refused(topic.name, error.words, error.error_code))
                continue
            taken[collision_key(topic.name)] = topic.name
            records += creation
            results.append(self._created(made, validate_only=request.validate_only))
        response = CreateTopicsResponse(topics=tuple(results))
        return response, () if request.validate_only else tuple(records)

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
        placed = place(topic, self._racks(), defaults, self.random, self._away())
        partitions = self._in_service(images.new_partitions(placed), manual=bool(topic.assignments))
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

    def _create_partitions(
        self, request: CreatePartitionsRequest
    ) -> tuple[CreatePartitionsResponse, Records]:
        times_named = Counter(topic.name for topic in request.topics)
        records: list[ClusterRecord] = []
        results: list[CreatePartitionsTopicResult] = []
        for topic in {topic.name: topic for topic in request.topics}.values():
            try:
                if times_named[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                records += self._grown(topic)
                results.append(CreatePartitionsTopicResult(topic.name))
            except ApiError as error:
                words = error.words or None
                results.append(CreatePartitionsTopicResult(topic.name, error.error_code, words))
        response = CreatePartitionsResponse(results=tuple(results))
        return response, () if request.validate_only else tuple(records)

    def _grown(self, wanted: CreatePartitionsTopic) -> Records:
        """The records of the larger topic, and of its new partitions that need their own."""
        topic = self.image.topics.get(wanted.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        placed = place_more(
            topic, wanted.count, wanted.assignments, self._racks(), self.random, self._away()
        )
        first, made = len(topic.partitions), images.new_partitions(placed)
        more = self._in_service(made, first, manual=wanted.assignments is not None)
        grown = replace(topic, partitions=(*topic.partitions, *more))
        own, *children = images.creation_records(grown, since=first)
        return (images.checked(own), *children)

    def _change_configs(self, request: ChangeConfigs) -> tuple[list[ApiError | None], Records]:
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
        if request.validate_only:
            return results, ()
        return results, (*records, *self._after_settings(request, records))

    def _after_settings(self, request: ChangeConfigs, records: Iterable[ClusterRecord]) -> Records:
        """Leaders for partitions without one, of topics that may lose records from now on; and
        leaders that may commit, of topics with another min.insync.replicas."""
        named = [
            (change.resource_name, change.names)
            for change in request.changes
            if change.resource_type == config_changes.TOPIC
        ]
        if not any({UNCLEAN_ELECTION, MIN_IN_SYNC}.intersection(names) for _, names in named):
            return ()
        changes = self._changes_of(images.replay(self.image, records))
        for topic, names in named:
            if UNCLEAN_ELECTION in names:
                elections.elect_missing(changes, topic)
            if MIN_IN_SYNC in names:
                elections.reconsider_eligible(changes, topic)
        return changes.records()

    # -- topics go

    def _delete_topics(self, request: DeleteTopicsRequest) -> tuple[DeleteTopicsResponse, Records]:
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
        return DeleteTopicsResponse(responses=tuple(results)), records

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

    def _allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> tuple[AllocateProducerIdsResponse, Records]:
        """The next block. Ids that a broker does not use before its end are lost: ids abound."""
        try:
            registrations.check_broker_epoch(self.image, request.broker_id, request.broker_epoch)
        except ApiError as error:
            return AllocateProducerIdsResponse(error_code=error.error_code), ()
        first = self.image.next_producer_id_block
        record = images.producer_ids_record(first + PRODUCER_ID_BLOCK_SIZE)
        response = AllocateProducerIdsResponse(
            producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE
        )
        return response, (record,)


def _refused(
    name: str, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST
) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)
