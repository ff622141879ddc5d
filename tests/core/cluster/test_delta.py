"""What changes for one broker between two images."""

from __future__ import annotations

from uuid import UUID

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.delta import LocalDelta, LocalPartition, local_delta
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord, PartitionImage, TopicImage

ME = 1


def image(*topics: TopicImage) -> ClusterImage:
    return images.replay(
        ClusterImage(), [record for topic in topics for record in images.creation_records(topic)]
    )


def topic(*partitions: PartitionImage, name: str = "t", number: int = 1) -> TopicImage:
    return TopicImage(name, UUID(int=number), partitions, {})


def state(leader: int, *replicas: int, epoch: int = 1) -> PartitionImage:
    return PartitionImage(replicas, leader, epoch, replicas, epoch)


def places(delta: LocalDelta) -> dict[str, list[str]]:
    names = ("lead", "follow", "stop", "delete")
    found = {n: [str(each.topic_partition) for each in getattr(delta, n)] for n in names}
    return {name: each for name, each in found.items() if each}


def test_a_broker_that_starts_learns_of_all_that_it_holds() -> None:
    after = image(topic(state(1, 1, 2), state(2, 2, 1), state(-1, 1), state(2, 2, 3)))
    delta = local_delta(ME, ClusterImage(), after)
    assert places(delta) == {"lead": ["t-0"], "follow": ["t-1"], "stop": ["t-2"]}
    (lead,) = delta.lead
    assert lead == LocalPartition(lead.topic_partition, UUID(int=1), state(1, 1, 2))
    assert local_delta(ME, after, after).is_empty


def test_only_what_differs_is_named() -> None:
    before = image(topic(state(1, 1, 2), state(2, 2, 1), state(2, 2, 3), state(1, 1)))
    new = [state(2, 1, 2, epoch=2), state(1, 2, 1, epoch=2), state(3, 2, 3, epoch=2)]
    records = [images.partition_record("t", index, each) for index, each in enumerate(new)]
    delta = local_delta(ME, before, images.replay(before, records))
    assert places(delta) == {"lead": ["t-1"], "follow": ["t-0"]}


def test_an_in_sync_set_of_its_own_is_news_for_a_leader() -> None:
    before = image(topic(state(1, 1, 2)))
    shrunk = PartitionImage((1, 2), 1, 1, (1,), 2)
    delta = local_delta(
        ME, before, images.replay(before, [images.partition_record("t", 0, shrunk)])
    )
    assert [each.image for each in delta.lead] == [shrunk]


def test_replicas_come_and_go() -> None:
    before = image(topic(state(1, 1, 2), state(2, 2)))
    records = [
        images.partition_record("t", 0, state(2, 2, 3, epoch=2)),
        images.partition_record("t", 1, state(2, 2, 1, epoch=2)),
    ]
    delta = local_delta(ME, before, images.replay(before, records))
    assert places(delta) == {"follow": ["t-1"], "delete": ["t-0"]}
    assert delta.delete[0].image == state(1, 1, 2)


def test_a_topic_goes_and_another_takes_its_name() -> None:
    before = image(topic(state(1, 1), state(2, 2)), topic(state(2, 1, 2), name="u", number=2))
    gone = images.replay(before, [ClusterRecord("/topics/t", None)])
    assert places(local_delta(ME, before, gone)) == {"delete": ["t-0"]}
    again = images.replay(before, images.creation_records(topic(state(1, 1), number=3)))
    delta = local_delta(ME, before, again)
    assert places(delta) == {"lead": ["t-0"], "delete": ["t-0"]}
    assert (delta.lead[0].topic_id, delta.delete[0].topic_id) == (UUID(int=3), UUID(int=1))


def test_partitions_are_added() -> None:
    before = image(topic(state(1, 1)))
    grown = topic(state(1, 1), PartitionImage((1,), 1, 0, (1,)))
    after = images.replay(before, [images.topic_record(grown)])
    assert places(local_delta(ME, before, after)) == {"lead": ["t-1"]}


def test_other_settings_of_topics_held_here_are_named() -> None:
    before = image(topic(state(1, 1)), topic(state(2, 2), name="u", number=2))
    records = [
        images.topic_record(images.replace(each, configs={"retention.ms": "5"}))
        for each in before.topics.values()
    ]
    delta = local_delta(ME, before, images.replay(before, records))
    assert (places(delta), delta.configured, delta.is_empty) == ({}, ["t"], False)


def test_a_snapshot_of_the_same_state_changes_nothing() -> None:
    before = image(topic(state(1, 1, 2), state(2, 2, 1)))
    after = images.replay(ClusterImage(), images.snapshot_records(before))
    assert after.topics["t"] is not before.topics["t"]
    assert local_delta(ME, before, after).is_empty
