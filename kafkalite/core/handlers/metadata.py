"""Metadata, DescribeCluster, DescribeTopicPartitions: brokers, topics and leaders.         [P]

A topic that does not exist is made, where the broker's auto.create.topics.enable and the request
allow it, and the answer waits for it, so that a producer's first request succeeds.

A client is told the addresses of the listener by which it came in. A broker that advertises none
there is left out, and what it leads has LISTENER_NOT_FOUND.

Source KIP-4, KIP-103 (listeners), KIP-516 (topic ids), KIP-430 (authorized operations: all, there
is no authorizer), KIP-700, KIP-966.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kafkalite.core.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from kafkalite.core.cluster.placement import check_name
from kafkalite.core.handlers.routes import ENTRIES_AT_ONCE, handles
from kafkalite.core.handlers.slices import ENTRIES_PER_SLICE, Answered, Answering, in_slices
from kafkalite.core.pending import Encoded, Pending, after
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.cluster import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kafkalite.core.protocol.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkalite.core.protocol.primitives import ZERO_UUID
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

B = TypeVar("B")

NOT_ASKED: Final = -2_147_483_648
# Bits of AclOperation: all that exist for the kind of resource.
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

AUTO_CREATE_CHOICE_V: Final = 4
LISTENER_NOT_FOUND_V: Final = 6
TOPIC_ID_V: Final = 10
TOPIC_BY_ID_V: Final = 12
BROKER_ENDPOINTS: Final = 1
CONTROLLER_ENDPOINTS: Final = 2
PARTITIONS_PER_PAGE_MAX: Final = 2_000
KEPT_TOPICS_MAX: Final = 10_000  # that a request names, whose answer is kept
LARGE_PARTITIONS: Final = 200  # in an answer, from which on encoding it takes a millisecond


@handles(ApiKey.METADATA, versions=(0, 12))
def metadata(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse | Encoded | Pending[MetadataResponse]:
    """Returns the brokers and the given topics. Responses about very many partitions are cached."""
    doubt = None if broker.doubts is None else broker.doubts.wait()
    if doubt is not None:
        make: Callable[[Any], Any] = lambda _: _as_known(broker, request, context)  # noqa: E731
        return cast("Pending[MetadataResponse]", after(doubt, make))
    return _as_known(broker, request, context)


def _as_known(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse | Encoded | Pending[MetadataResponse]:
    """The answer at once, whoever is alive."""
    answer: Any = None
    if is_kept := len(request.topics or ()) <= KEPT_TOPICS_MAX:
        kept = broker.kept_answers
        _set_state(broker)
        answer = kept.find((request, context.api_version, context.listener))
    if answer is None:
        make = _slices if is_kept else _encoded_answer
        answer = in_slices(broker, ApiKey.METADATA, context, make(broker, request, context))
    return cast("MetadataResponse | Encoded | Pending[MetadataResponse]", answer)


def _slices(broker: Broker, request: MetadataRequest, context: RequestContext) -> Answering:
    """The answer of the client that asked first; those that ask the same meanwhile wait for it."""
    kept, asked = broker.kept_answers, (request, context.api_version, context.listener)
    if (making := kept.being_made(asked)) is not None:
        yield making
        _set_state(broker)
        if (answer := kept.find(asked)) is not None:
            return answer
    if kept.being_made(asked) is not None:  # the answer was not kept, and another makes it anew
        return (yield from _encoded_answer(broker, request, context))
    kept.begin(asked)
    try:
        return (yield from _encoded_answer(broker, request, context))
    finally:
        kept.end(asked)


def _encoded_answer(broker: Broker, request: MetadataRequest, context: RequestContext) -> Answering:
    kept, version = broker.kept_answers, context.api_version
    _set_state(broker)
    state = kept.state
    answer = yield from _metadata(broker, request, context)
    if not _is_large(answer):
        return answer
    encoding = broker.compute(lambda: codec.encode(answer, version))
    yield encoding
    data = encoding.result()
    _set_state(broker)
    if kept.state != state or len(request.topics or ()) > KEPT_TOPICS_MAX:
        return Encoded(answer, data)
    return kept.keep((request, version, context.listener), answer, lambda _: data)


def _set_state(broker: Broker) -> None:
    offline = broker.partitions.offline.keys()
    broker.kept_answers.set_state(broker.image, offline, broker.controller_id)


def _is_large(answer: MetadataResponse) -> bool:
    return sum(len(topic.partitions) for topic in answer.topics) >= LARGE_PARTITIONS


def _metadata(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> Generator[Any, None, MetadataResponse]:
    wanted = request.topics
    if wanted is None or (context.api_version == 0 and not wanted):
        every = tuple(broker.image.topics.values())
        return (yield from _response(broker, request, context, every))
    if TOPIC_ID_V <= context.api_version < TOPIC_BY_ID_V and any(map(_is_by_id, wanted)):
        return _refused_by_id(wanted)
    missing = yield from _to_create(broker, request, wanted, context)
    refused: dict[str, ErrorCode] = {}
    if missing:
        made = broker.create_topics(missing)
        yield Answered(made)
        assert made.response is not None
        refused = {t.name: t.error_code for t in made.response.topics}
    return (yield from _answer(broker, request, context, wanted, refused))


def _is_by_id(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != ZERO_UUID


def _refused_by_id(wanted: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    """Requests of these versions can hold ids, and may not."""
    code = ErrorCode.INVALID_REQUEST
    return MetadataResponse(
        topics=tuple(MetadataResponseTopic(code, t.name or "", t.topic_id) for t in wanted)
    )


def _to_create(
    broker: Broker,
    request: MetadataRequest,
    wanted: Iterable[MetadataRequestTopic],
    context: RequestContext,
) -> Generator[None, None, list[str]]:
    """The topics that asking makes."""
    allowed = request.allow_auto_topic_creation or context.api_version < AUTO_CREATE_CHOICE_V
    if not allowed or not broker.config["auto.create.topics.enable"]:
        return []
    topics = broker.image.topics
    names: dict[str, bool] = {}  # each with whether it may be one
    for count, topic in enumerate(wanted, start=1):
        if not count % ENTRIES_PER_SLICE:
            yield
        name = topic.name
        if name and not _is_by_id(topic) and name not in topics and name not in names:
            names[name] = not _name_refusal(name)
    return [name for name, is_good in names.items() if is_good]


def _name_refusal(name: str) -> ErrorCode:
    try:
        check_name(name)
    except ApiError as error:
        return error.error_code
    return ErrorCode.NONE


def _answer(
    broker: Broker,
    request: MetadataRequest,
    context: RequestContext,
    wanted: Iterable[MetadataRequestTopic],
    refused: dict[str, ErrorCode],
) -> Generator[None, None, MetadataResponse]:
    """The topics that are known, the others with why they are not."""
    image = broker.image
    found: dict[str, TopicImage] = {}
    unknown: list[MetadataResponseTopic] = []
    seen: set[MetadataRequestTopic] = set()
    for count, topic in enumerate(wanted, start=1):
        if not count % ENTRIES_PER_SLICE:
            yield
        if topic in seen:
            continue
        seen.add(topic)
        name = None if _is_by_id(topic) else topic.name
        known = image.topic_by_id(topic.topic_id) if name is None else image.topics.get(name)
        if known is not None:
            found[known.name] = known
        elif name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            no_name = None if context.api_version >= TOPIC_BY_ID_V else ""
            unknown.append(MetadataResponseTopic(code, no_name, topic.topic_id))
        else:
            code = _name_refusal(name) or _why_missing(refused.get(name, ErrorCode.NONE))
            unknown.append(
                MetadataResponseTopic(
                    code, name, topic_authorized_operations=_operations_asked(request)
                )
            )
    return (yield from _response(broker, request, context, tuple(found.values()), unknown))


def _operations_asked(request: MetadataRequest) -> int:
    """All, of any topic: there is no authorizer that would have to know it."""
    return TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED


def _why_missing(refusal: ErrorCode) -> ErrorCode:
    """A topic that was made a moment ago and is gone again is simply not there."""
    made = refusal in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if made else refusal


def _response(
    broker: Broker,
    request: MetadataRequest,
    context: RequestContext,
    topics: Iterable[TopicImage],
    unknown: Iterable[MetadataResponseTopic] = (),
) -> Generator[None, None, MetadataResponse]:
    image = broker.image
    view = _View.of(broker, context.listener, context.api_version)
    operations = _operations_asked(request)
    wants_cluster = request.include_cluster_authorized_operations
    described: list[MetadataResponseTopic] = []
    work = 0
    for topic in topics:
        if work >= ENTRIES_PER_SLICE:
            work = 0
            yield
        work += 1 + len(topic.partitions)
        described.append(_topic(view, topic, operations))
    listed = broker.doubts.listed() if broker.doubts is not None and described else image
    return MetadataResponse(
        brokers=_brokers(listed, context, MetadataResponseBroker),
        cluster_id=image.cluster_id,
        controller_id=broker.controller_id,
        topics=(*described, *unknown),
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants_cluster else NOT_ASKED,
    )


def _brokers(
    image: ClusterImage, context: RequestContext, kind: Callable[[int, str, int, str | None], B]
) -> tuple[B, ...]:
    return tuple(kind(*node, rack) for node, rack in image.nodes(context.listener))


@dataclass(frozen=True, slots=True)
class _View:
    """The cluster as the clients of one listener reach it."""

    broker: Broker
    reached: frozenset[int]  # brokers
    unreached: ErrorCode  # of a partition whose leader has no address for them
    hides_unreached: bool = False  # as the first version does, which has no list of them

    @classmethod
    def of(cls, broker: Broker, listener: str, version: int = LISTENER_NOT_FOUND_V) -> _View:
        reached = frozenset(node.node_id for node, _ in broker.image.nodes(listener))
        knows_listeners = version >= LISTENER_NOT_FOUND_V
        code = ErrorCode.LISTENER_NOT_FOUND if knows_listeners else ErrorCode.LEADER_NOT_AVAILABLE
        return cls(broker, reached, code, version == 0)

    def shown(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the brokers that the answer names."""
        if not self.hides_unreached:
            return nodes
        return tuple(node for node in nodes if node in self.reached)


def _topic(view: _View, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    every = range(len(topic.partitions))
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=_partitions(view, topic, every),
        topic_authorized_operations=operations,
    )


def _partitions(
    view: _View, topic: TopicImage, indexes: range
) -> tuple[MetadataResponsePartition, ...]:
    """Some of a topic's partitions."""
    made = []
    for index in indexes:
        partition = topic.partitions[index]
        error_code, leader, offline = _led(view, topic.name, index, partition)
        replicas, in_sync = partition.replicas, partition.in_sync_replicas
        if view.hides_unreached:
            shown, shown_in_sync = view.shown(replicas), view.shown(in_sync)
            if not error_code and (shown, shown_in_sync) != (replicas, in_sync):
                error_code = ErrorCode.REPLICA_NOT_AVAILABLE
            replicas, in_sync = shown, shown_in_sync
        made.append(
            MetadataResponsePartition(
                error_code=error_code,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=in_sync,
                offline_replicas=offline,
            )
        )
    return tuple(made)


def _led(
    view: _View, topic: str, index: int, partition: PartitionImage
) -> tuple[ErrorCode, int, tuple[int, ...]]:
    """What is wrong where nobody leads a partition, who does, and which replicas are out of reach:
    those of brokers that are gone, or not reached by the client's listener, those whose logs have
    failed, and this one's where its log cannot be opened."""
    broker, reached, offline = view.broker, view.reached, view.broker.partitions.offline
    lost = broker.node_id if offline and TopicPartition(topic, index) in offline else NO_LEADER
    failed = (lost, *partition.failed_replicas)
    away = tuple(node for node in partition.replicas if node not in reached or node in failed)
    if partition.leader not in broker.image.brokers or partition.leader == lost:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, away
    if partition.leader not in reached:
        return view.unreached, NO_LEADER, away
    return ErrorCode.NONE, partition.leader, away


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 1))
def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """The brokers; there are no separate controllers to ask for."""
    if request.endpoint_type != BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == CONTROLLER_ENDPOINTS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type}: only brokers (1) are known",
        )
    image = broker.image
    wants_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=broker.controller_id,
        brokers=_brokers(image, context, DescribeClusterBroker),
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants_operations else NOT_ASKED,
    )


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0))
def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse | Pending[DescribeTopicPartitionsResponse]:
    """A page of partitions, topics in the order of their names."""
    slices = _page(broker, request, context)
    is_large = len(request.topics) > ENTRIES_AT_ONCE
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    answer = in_slices(broker, key, context, slices, is_large=is_large)
    return cast(
        "DescribeTopicPartitionsResponse | Pending[DescribeTopicPartitionsResponse]", answer
    )


def _page(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Answering:
    image = broker.image
    if len(request.topics) > ENTRIES_AT_ONCE:
        sorting = broker.compute(lambda: _sorted_names(request))
        yield sorting
        asked = sorting.result()
    else:
        asked = _sorted_names(request)
    if _is_lost(request, asked):
        return DescribeTopicPartitionsResponse(
            topics=tuple(
                DescribeTopicPartitionsResponseTopic(ErrorCode.INVALID_REQUEST, name)
                for name in asked
            )
        )
    names = asked or sorted(image.topics)
    first: dict[str, int] = {}  # where the topic begins in which the last page ended
    if request.cursor is not None:
        names = names[bisect_left(names, request.cursor.topic_name) :]
        first[request.cursor.topic_name] = max(0, request.cursor.partition_index)
    room = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    view = _View.of(broker, context.listener)
    described: list[DescribeTopicPartitionsResponseTopic] = []
    for count, name in enumerate(names, start=1):
        if not count % ENTRIES_PER_SLICE:
            yield
        topic = image.topics.get(name)
        if topic is None:
            described.append(_undescribed(name))
            continue
        if not room:
            rest = Cursor(name, 0)
            return DescribeTopicPartitionsResponse(topics=tuple(described), next_cursor=rest)
        start = first.get(name, 0)
        page = range(len(topic.partitions))[start : start + room]
        described.append(_described(view, topic, page))
        if page.stop < len(topic.partitions):
            rest = Cursor(name, page.stop)
            return DescribeTopicPartitionsResponse(topics=tuple(described), next_cursor=rest)
        room -= len(page)
    return DescribeTopicPartitionsResponse(topics=tuple(described))


def _sorted_names(request: DescribeTopicPartitionsRequest) -> list[str]:
    return sorted({topic.name for topic in request.topics})


def _undescribed(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = _name_refusal(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeTopicPartitionsResponseTopic(
        code, name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _is_lost(request: DescribeTopicPartitionsRequest, names: Sequence[str]) -> bool:
    """Whether the cursor points where no answer to this request could have led."""
    cursor = request.cursor
    if cursor is None:
        return False
    return cursor.partition_index < 0 or bool(names and cursor.topic_name not in names)


def _described(
    view: _View, topic: TopicImage, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_described_partition(view, topic, index) for index in indexes),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described_partition(
    view: _View, topic: TopicImage, index: int
) -> DescribeTopicPartitionsResponsePartition:
    """One partition. That nobody leads it is no error here, as in Kafka."""
    partition = topic.partitions[index]
    _, leader, offline = _led(view, topic.name, index, partition)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.in_sync_replicas,
        eligible_leader_replicas=partition.eligible_leader_replicas,
        offline_replicas=offline,
    )
