"""A look at all topics and groups: what it finds, within which bounds, in slices of which size."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kafkalite.core.broker import survey as surveys
from kafkalite.core.broker.survey import LAGS_PER_SLICE, PARTITIONS_PER_SLICE, Survey
from kafkalite.core.types import TopicPartition


@dataclass
class Log:
    host: Host
    high_watermark: int = 100

    @property
    def config(self) -> Any:
        return SimpleNamespace(min_insync_replicas=2)

    @property
    def size_bytes(self) -> int:
        self.host.looked += 1
        return 10


@dataclass
class Held:
    log: Log


@dataclass
class Topic:
    name: str
    partitions: tuple[Partition, ...] = ()


class Partition(NamedTuple):
    leader: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass
class Image:
    topics: dict[str, Any]


@dataclass
class Machine:
    offsets: dict[str, list[tuple[TopicPartition, int]]]

    def committing(self) -> list[str]:
        return list(self.offsets)

    def committed_offsets(self, group: str) -> tuple[list[TopicPartition], list[int]]:
        pairs = self.offsets.get(group, [])
        return [partition for partition, _ in pairs], [offset for _, offset in pairs]


@dataclass
class Host:
    """A broker with some topics of as many partitions each."""

    counts: dict[str, int]
    offsets: dict[str, list[tuple[TopicPartition, int]]] = field(default_factory=dict)
    looked: int = 0
    node_id: int = 1
    topics: dict[str, Topic] = field(default_factory=dict)

    @property
    def image(self) -> Image:
        return Image(self.topics or {name: Topic(name) for name in self.counts})

    @property
    def partitions(self) -> Host:
        return self

    @property
    def groups(self) -> Host:
        return self

    def machines(self) -> list[Machine]:
        return [Machine(self.offsets)]

    def of_topic(self, name: str) -> list[Held]:
        return [Held(Log(self))] * self.counts.get(name, 0)

    def find(self, name: str, index: int) -> Held | None:
        self.looked += 1
        return Held(Log(self)) if index < self.counts.get(name, 0) else None


def take(host: Any) -> tuple[Survey, list[int]]:
    """What was found, and how many logs each slice looked at."""
    survey = Survey()
    looks, before = [], 0
    for _ in survey.take(host):
        looks.append(host.looked - before)
        before = host.looked
    return survey, [*looks, host.looked - before]


def test_sizes_and_lags_are_found() -> None:
    offsets = [(TopicPartition("a", 0), 70), (TopicPartition("a", 1), 130)]
    gone = [(TopicPartition("a", 5), 1), (TopicPartition("z", 0), 1)]
    survey, _ = take(Host({"b": 1, "a": 3}, {"g": offsets + gone}))
    assert survey.topic_bytes == {"a": 30, "b": 10}
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    assert list(survey.lags) == [("g", first, 30), ("g", second, 0)]
    assert (survey.topics_left_out, survey.lags_left_out) == (0, 0)


def test_partitions_that_lack_replicas_are_counted_where_they_are_led() -> None:
    states = (
        Partition(1, (1, 2, 3), (1, 2, 3)),
        Partition(1, (1, 2, 3), (3, 1)),
        Partition(1, (1, 2, 3), (1,)),
        Partition(1, (1,), (1,)),  # of one replica, acks=all needs one
        Partition(2, (2, 1), (2,)),
        Partition(-1, (3,), (3,)),
    )
    survey, _ = take(Host({"t": 6}, topics={"t": Topic("t", states)}))
    assert survey.leader_partitions == 4
    assert survey.under_replicated_partitions == 2
    assert survey.below_min_isr_partitions == 1


@pytest.mark.parametrize("counts", [{"t": 10_000}, {f"t{n}": 5 for n in range(2_000)}])
def test_ten_thousand_partitions_are_looked_at_in_small_slices(counts: dict[str, int]) -> None:
    offsets = [(TopicPartition(t, i), 1) for t, n in counts.items() for i in range(n)]
    host = Host(counts, {"g": offsets[:5_000], "h": offsets[5_000:]})
    survey, looks = take(host)
    assert sum(looks) == 20_000
    assert max(looks) <= PARTITIONS_PER_SLICE + 2 * LAGS_PER_SLICE
    assert sum(survey.topic_bytes.values()) == 100_000


def test_what_is_beyond_the_bounds_is_counted_and_the_same_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(surveys, "TOPICS_MAX", 2)
    monkeypatch.setattr(surveys, "LAGS_MAX", 3)
    offsets = [(TopicPartition("c", index), 0) for index in range(2)]
    survey, _ = take(Host({"c": 2, "a": 1, "b": 1}, {"h": offsets, "g": offsets}))
    assert list(survey.topic_bytes) == ["a", "b"]
    kept = [(group, partition.partition) for group, partition, _ in survey.lags]
    assert kept == [("g", 0), ("g", 1), ("h", 0)]
    assert (survey.topics_left_out, survey.lags_left_out) == (1, 1)


def test_many_small_groups_are_looked_at_in_slices() -> None:
    offsets = {f"g{n}": [(TopicPartition("t", 0), 1)] for n in range(1_000)}
    _, looks = take(Host({"t": 1}, offsets))
    assert max(looks) <= 2 * LAGS_PER_SLICE
