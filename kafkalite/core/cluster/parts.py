"""Large requests to the controller in parts, each of which is one step of it.               [P]

What is asked of a topic does not depend on the others that a request names, but for those with the
same name or one that collides with it: they stay in one part.

Owns   how large a part is.
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
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

T = TypeVar("T")

TOPICS_PER_PART: Final = 20  # a topic takes up to 1 ms: its settings are told
CHANGES_PER_PART: Final = 100


def parts(request: ControllerRequest) -> Iterator[ControllerRequest]:
    """The request in parts; one at least, and small requests as they are."""
    match request:
        case CreateTopicsRequest() if len(request.topics) > TOPICS_PER_PART:
            for topics in _grouped(request.topics, lambda topic: collision_key(topic.name)):
                yield replace(request, topics=topics)
        case CreatePartitionsRequest() if len(request.topics) > TOPICS_PER_PART:
            for grown in _grouped(request.topics, lambda topic: topic.name):
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


def _grouped(items: Sequence[T], key: Callable[[T], Hashable]) -> Iterator[tuple[T, ...]]:
    """The items in parts; those with equal keys in one, however many they are."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    part: list[T] = []
    for count, group in enumerate(groups.values(), start=1):
        part += group
        if not count % TOPICS_PER_PART:
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)
