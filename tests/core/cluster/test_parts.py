"""Large requests to the controller in parts: what belongs together stays so, and answers join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafkalite.core.cluster.config_changes import ChangeConfigs, ConfigChange
from kafkalite.core.cluster.parts import CHANGES_PER_PART, TOPICS_PER_PART, joined, parts
from kafkalite.core.protocol.peers import AllocateProducerIdsRequest
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
)

NAMES = [f"t.{number}" for number in range(3 * TOPICS_PER_PART)]


def creation(names: list[str]) -> CreateTopicsRequest:
    return CreateTopicsRequest(tuple(CreatableTopic(name, 1, 1, (), ()) for name in names), 7, True)


def test_a_small_request_is_its_only_part() -> None:
    small = creation(NAMES[:TOPICS_PER_PART])
    assert list(parts(small)) == [small]
    request = AllocateProducerIdsRequest(1)
    assert list(parts(request)) == [request]


@pytest.mark.parametrize(
    ("request_of_all", "field"),
    [
        (creation(NAMES), "topics"),
        (
            CreatePartitionsRequest(
                tuple(CreatePartitionsTopic(name, 3, None) for name in NAMES), 1, False
            ),
            "topics",
        ),
        (DeleteTopicsRequest(tuple(DeleteTopicState(name) for name in NAMES)), "topics"),
        (DeleteTopicsRequest(topic_names=tuple(NAMES)), "topic_names"),
    ],
)
def test_each_topic_is_in_one_part(request_of_all: Any, field: str) -> None:
    made = list(parts(request_of_all))
    assert [len(getattr(part, field)) for part in made] == [TOPICS_PER_PART] * 3
    together = tuple(topic for part in made for topic in getattr(part, field))
    assert replace(made[0], **{field: together}) == request_of_all


@pytest.mark.parametrize(
    "large",
    [
        CreateTopicsRequest(tuple(CreatableTopic(n, 3_000, 1, (), ()) for n in "abcde")),
        CreatePartitionsRequest(
            tuple(CreatePartitionsTopic(name, 3_000, None) for name in "abcde"), 1, False
        ),
    ],
)
def test_topics_of_very_many_partitions_are_few_in_a_part(large: Any) -> None:
    made = list(parts(large))
    assert [[topic.name for topic in part.topics] for part in made] == [  # type: ignore[union-attr]
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]


def test_names_that_are_one_or_collide_are_in_one_part() -> None:
    made = [
        {topic.name for topic in part.topics}
        for part in parts(creation([*NAMES, "t.0", "t_1", "t.1"]))
        if isinstance(part, CreateTopicsRequest)
    ]
    assert made[0] >= {"t.0", "t.1", "t_1"}
    assert "t.0" not in made[1] | made[2]


def test_changes_of_settings_keep_their_order() -> None:
    changes = tuple(ConfigChange(2, name, ()) for name in NAMES * CHANGES_PER_PART)
    made = list(parts(ChangeConfigs(changes, False)))
    assert [len(part.changes) for part in made if isinstance(part, ChangeConfigs)] == [
        CHANGES_PER_PART
    ] * len(NAMES)
    assert joined([["a"], ["b", "c"]]) == ["a", "b", "c"]


def test_responses_join() -> None:
    results = [CreatableTopicResult(name) for name in "abc"]
    responses = [CreateTopicsResponse(topics=(each,)) for each in results]
    assert joined(responses) == CreateTopicsResponse(topics=tuple(results))
    assert joined(responses[:1]) is responses[0]
