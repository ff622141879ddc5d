"""Our broker answers as Apache Kafka 3.9.2 did, but for what stands in `OTHERWISE` with a reason.

The questions are kept in `questions_*.py`; what Kafka said is in `apache-kafka-3.9.2.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from asking import Talk, answers
from conversations import CONVERSATIONS

KAFKA = Path(__file__).with_name("apache-kafka-3.9.2.jsonl")
OTHERWISE = {
    ("changing_settings", "operation 9"): "INVALID_REQUEST, not a NullPointerException's -1",
}


@pytest.fixture(scope="module")
def kafka() -> dict[str, dict[str, Any]]:
    said: dict[str, dict[str, Any]] = {}
    for line in KAFKA.read_text().splitlines():
        conversation, label, answer = json.loads(line)
        said.setdefault(conversation, {})[label] = answer
    return said


def is_otherwise(conversation: str, label: str) -> bool:
    return any(name == conversation and fnmatchcase(label, like) for name, like in OTHERWISE)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.__name__)
def test_every_answer_is_apache_kafkas(
    conversation: Callable[[Talk], None], kafka: dict[str, dict[str, Any]], bootstrap: str
) -> None:
    host, _, port = bootstrap.rpartition(":")
    name = conversation.__name__
    ours = json.loads(json.dumps(answers(host, int(port), conversation)))
    assert list(ours) == list(kafka[name]), "the questions are those that Kafka was asked"
    others = {label for label in ours if ours[label] != kafka[name][label]}
    unexplained = {label for label in others if not is_otherwise(name, label)}
    told = {label: (kafka[name][label], ours[label]) for label in sorted(unexplained)}
    assert not told, "Kafka's answer and ours"
    same_again = [
        like
        for named, like in OTHERWISE
        if named == name and not any(fnmatchcase(label, like) for label in others)
    ]
    assert not same_again, "is the same by now"
