"""Large requests to the controller in parts, each of which is one step of it.               [P]

A request's topics do not depend on each other, except those with equal or colliding names: these
stay in one part.

Owns   the size of a part.
Source apache/kafka `ReplicationControlManager`: a response has one result for each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from kafkalite.core.cluster.config_changes import ChangeConfigs
from kafkalite.core.cluster.controller import ControllerRequest
from kafkalite.core.cluster.placement import collision_key
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

T = TypeVar("T")

TOPICS_PER_PART: Final = 20  # a topic takes up to 1 ms: its settings are told
PARTITIONS_PER_PART: Final = 5_000  # and as many more as the last topic has, some 0.5 us each
CHANGES_PER_PART: Final = 100


def parts(request: ControllerRequest) -> Iterator[ControllerRequest]:
    """The request in parts; one at least, and small requests as they are."""
    match request:
        case CreateTopicsRequest() if _is_large(request.topics, _count):
            for topics in _grouped(request.topics, _collides, _count):
                yield replace(request, topics=topics)
        case CreatePartitionsRequest() if _is_large(request.topics, _count_grown):
            for grown in _grouped(request.topics, lambda topic: topic.name, _count_grown):
                yield replace(request, topics=grown)
        case DeleteTopicsRequest() if len(request.topics) > TOPICS_PER_PART:
            for going in _grouped(request.topics, lambda topic: topic):
                yield replace(request, topics=going)
        case DeleteTopicsRequest() if len(request.topic_names) > TOPICS_PER_PART:
            for names in _grouped(request.topic_names, lambda name: name):
                yield replace(request, topic_names=names)
        case ChangeConfigs() if len(request.changes) > CHANGES_PER_PART:
            for first in range(0, len(request.changes), CHANGES_PER_PART):
                changes = request.changes[first : first + CHANGES_PER_PART]
                yield replace(request, changes=changes)
        case _:
            yield request


def joined(responses: Sequence[Any]) -> Any:
    """The response to a request, made of those to its parts."""
    first = responses[0]
    if len(responses) == 1:
        return first
    match first:
        case CreateTopicsResponse():
            return CreateTopicsResponse(topics=tuple(t for r in responses for t in r.topics))
        case CreatePartitionsResponse():
            return CreatePartitionsResponse(results=tuple(t for r in responses for t in r.results))
        case DeleteTopicsResponse():
            return DeleteTopicsResponse(responses=tuple(t for r in responses for t in r.responses))
        case list():
            return [result for results in responses for result in results]
    raise AssertionError(f"{type(first).__name__} is never in parts")


def _collides(topic: CreatableTopic) -> str:
    return collision_key(topic.name)


def _count(topic: CreatableTopic) -> int:
    return max(topic.num_partitions, len(topic.assignments))


def _count_grown(topic: CreatePartitionsTopic) -> int:
    return topic.count


def _is_large(items: Sequence[T], partitions: Callable[[T], int]) -> bool:
    return len(items) > TOPICS_PER_PART or sum(map(partitions, items)) > PARTITIONS_PER_PART


def _grouped(
    items: Sequence[T], key: Callable[[T], Hashable], partitions: Callable[[T], int] = lambda _: 0
) -> Iterator[tuple[T, ...]]:
    """The items in parts; those with equal keys in one, however many they are."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    part: list[T] = []
    count = size = 0
    for group in groups.values():
        part += group
        count += 1
        size += sum(map(partitions, group))
        if count >= TOPICS_PER_PART or size >= PARTITIONS_PER_PART:
            yield tuple(part)
            part = []
            count = size = 0
    if part:
        yield tuple(part)
