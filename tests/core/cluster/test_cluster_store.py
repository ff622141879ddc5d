"""The cluster's records in the coordination tree: lost answers, refusals, guards, large steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.coordination import (
    TRANSACTION_BYTES_MAX,
    Check,
    Create,
    Entry,
    Operation,
    Set,
    size_bytes,
)
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.cluster.image import ClusterRecord as Record
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.cluster.store import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    ClusterStore,
    StaleState,
    batches,
)
from kafkalite.errors import (
    ControllerDeposed,
    CoordinationUnavailable,
    NoSuchNode,
    OutcomeUnknown,
    VersionMismatch,
)
from kafkalite.testing.storage import MemoryStorage

EPOCH = "/controller_epoch"
TOPIC = images.topic_record(
    images.TopicImage("t", images.UUID(int=1), images.new_partitions([(1,), (2,)]))
)


class Faulty(LocalCoordination):
    """Loses answers, and has no connection, as often as the script says."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.lost: list[str] = []  # of the next transactions: "done", "not done"
        self.refused_reads = 0
        self.reads = 0
        self.sizes: list[int] = []

    async def get_many(self, paths: Sequence[str]) -> list[Entry | None]:
        self.reads += 1
        if self.refused_reads:
            self.refused_reads -= 1
            raise CoordinationUnavailable("no connection")
        return await super().get_many(paths)

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        self.reads += 1
        return await super().children_many(paths)

    async def transact(self, operations: Sequence[Operation]) -> None:
        self.sizes.append(sum(map(size_bytes, operations)))
        fault = self.lost.pop(0) if self.lost else None
        if fault != "not done":
            await super().transact(operations)
        if fault is not None:
            raise OutcomeUnknown("the answer was lost")


async def opened() -> tuple[Faulty, ClusterStore]:
    coordination = Faulty()
    store = ClusterStore(coordination)
    await store.load()
    await coordination.transact([Create(EPOCH, b"1")])
    return coordination, store


@pytest.mark.parametrize("lost", [["done"], ["not done"], ["not done", "not done", "done"]])
def test_a_lost_answer_is_looked_for_in_the_tree(lost: list[str]) -> None:
    async def story() -> None:
        coordination, store = await opened()
        for value in (b"1", b"2", None, b"3"):
            coordination.lost = list(lost)
            await store.append([Record("/cluster", value)])
            assert not coordination.lost
            assert not store.is_unsettled
        assert await coordination.get("/cluster") == Entry(b"3", 0)
        await store.append([Record("/cluster", b"4")])  # its version is known

    asyncio.run(story())


def test_a_write_that_never_happens_is_given_up() -> None:
    async def story() -> None:
        coordination, store = await opened()
        coordination.lost = ["not done"] * 100
        with pytest.raises(CoordinationUnavailable, match="/cluster were not written in 5 att"):
            await store.append([Record("/cluster", b"1")])
        assert len(coordination.lost) == 95
        coordination.lost = []
        await store.append([Record("/cluster", b"1")])

    asyncio.run(story())


@pytest.mark.parametrize("fault", ["done", "not done"])
def test_without_a_connection_the_outcome_stays_unknown_until_it_is_settled(fault: str) -> None:
    async def story() -> None:
        coordination, store = await opened()
        coordination.lost, coordination.refused_reads = [fault], 2
        with pytest.raises(OutcomeUnknown, match="/cluster may be written or not"):
            await store.append([Record("/cluster", b"1")])
        assert store.is_unsettled
        with pytest.raises(CoordinationUnavailable):
            await store.settle()
        assert await store.settle() == ((Record("/cluster", b"1"),) if fault == "done" else ())
        assert not store.is_unsettled
        await store.append([Record("/cluster", b"2")])

    asyncio.run(story())


def test_a_refused_write_heals_the_versions_and_names_what_others_wrote() -> None:
    async def story() -> None:
        coordination, store = await opened()
        await store.append([Record("/cluster", b"1"), TOPIC])
        await coordination.transact([Set("/cluster", b"of another"), Set(EPOCH, b"2")])
        with pytest.raises(StaleState, match="/cluster is in version 1, expected 0") as caught:
            await store.append([Record("/cluster", b"2"), Record(TOPIC.path, b"{}")])
        assert caught.value.records == (Record("/cluster", b"of another"),)
        await store.append([Record("/cluster", b"2")])
        assert (await coordination.get("/cluster")).version == 2

    asyncio.run(story())


def test_a_refusal_that_no_other_writer_explains_is_raised_as_it_is() -> None:
    async def story() -> None:
        _, store = await opened()
        with pytest.raises(NoSuchNode, match="/nowhere does not exist"):
            await store.append([Record("/nowhere/a", b"")])

    asyncio.run(story())


def test_others_who_wrote_while_an_answer_was_lost_are_named() -> None:
    async def story() -> None:
        coordination, store = await opened()
        await store.append([Record("/cluster", b"1")])
        coordination.lost, coordination.refused_reads = ["not done"], 1
        with pytest.raises(OutcomeUnknown):
            await store.append([Record("/cluster", b"2")])
        await coordination.transact([Set("/cluster", b"of another")])
        with pytest.raises(StaleState) as caught:
            await store.settle()
        assert caught.value.records == (Record("/cluster", b"of another"),)

    asyncio.run(story())


@pytest.mark.parametrize("lost", [[], ["not done"]])
def test_every_write_is_guarded_by_the_epoch_of_the_controller(lost: list[str]) -> None:
    async def story() -> None:
        coordination, store = await opened()
        store.guard = Check(EPOCH, 0)
        await store.append([TOPIC])
        await coordination.transact([Set(EPOCH, b"2")])
        coordination.lost = lost
        with pytest.raises(ControllerDeposed, match="/controller_epoch is in version 1, expected"):
            await store.append([Record(TOPIC.path, b"{}")])
        assert not store.is_unsettled
        assert (await coordination.get(TOPIC.path)).version == 0

    asyncio.run(story())


def test_a_tree_is_read_in_a_few_rounds_however_large_it_is() -> None:
    async def story() -> None:
        coordination, store = await opened()
        names = [f"t{number}" for number in range(300)]
        for name in names:
            children = [Record(f"/topics/{name}/{index}", b"{}") for index in range(3)]
            await store.append([Record(f"/topics/{name}", b"{}"), *children])
        before = coordination.reads
        again = ClusterStore(coordination)
        records = await again.load()
        assert coordination.reads - before <= 6
        assert len(records) == 1_200
        places = {record.path: number for number, record in enumerate(records)}
        assert all(places[f"/topics/{n}"] < places[f"/topics/{n}/2"] for n in names)
        await again.append([Record("/topics/t7/1", b"x"), Record("/topics/t8", b"x")])

    asyncio.run(story())


def test_steps_are_cut_into_transactions_that_keep_topics_whole() -> None:
    topics = [
        [Record(f"/topics/{n}", b"x" * 50), *(Record(f"/topics/{n}/{i}", b"y") for i in range(9))]
        for n in range(130)
    ]
    cut = list(batches([record for topic in topics for record in topic]))
    assert [record for batch in cut for record in batch] == [r for topic in topics for r in topic]
    assert [len(batch) for batch in cut] == [500, 500, 300]
    whole = [Record(f"/topics/t/{i}", b"y") for i in range(3 * BATCH_RECORDS_MAX)]
    assert list(batches(whole)) == [tuple(whole)], "one topic fits, however many records it has"
    large = [Record(f"/topics/{n}", b"x" * 400_000) for n in range(5)]
    assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert list(batches([])) == []


def test_records_of_one_topic_that_do_not_fit_are_written_in_order() -> None:
    records = [Record(f"/topics/t/{i}", b"y" * 1_000) for i in range(2_000)]
    cut = list(batches(records))
    assert len(cut) == 3
    assert [record for batch in cut for record in batch] == records
    for batch in cut:
        assert sum(len(r.path) + len(r.value or b"") for r in batch) <= BATCH_BYTES_MAX
        assert (
            sum(size_bytes(Create(r.path, r.value or b"")) for r in batch) < TRANSACTION_BYTES_MAX
        )


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_topic_too_large_to_delete_at_once_is_gone_from_the_first_write(written: int) -> None:
    name = "t" * 240

    async def story() -> None:
        coordination, store = await opened()
        children = [Record(f"/topics/{name}/{index}", b"{}") for index in range(5_000)]
        topic = Record(f"/topics/{name}", TOPIC.value)
        for batch in batches([topic, *children]):
            await store.append(batch)
        going = [Record(child.path, None) for child in children]
        cut = list(batches([*going, Record(topic.path, None)]))
        assert len(cut) == 2
        for batch in cut[:written]:
            await store.append(batch)
        image = images.replay(ClusterImage(), [topic, *cut[0]])
        assert not image.topics
        if written == 3:  # ended twice
            await store.append(cut[1])
        again = ClusterStore(coordination)
        assert await again.load() == ()
        assert await coordination.children("/topics") == []
        await again.append([topic])
        assert max(coordination.sizes) < TRANSACTION_BYTES_MAX

    asyncio.run(story())


def test_roots_are_made_although_others_make_them_and_answers_are_lost() -> None:
    async def story() -> None:
        coordination = Faulty()
        await coordination.transact([Create(images.ROOTS[0], b"")])
        coordination.lost = ["done", "not done", "not done"]
        await ClusterStore(coordination).load()
        assert await coordination.children("/") == sorted(root[1:] for root in images.ROOTS)

    asyncio.run(story())


def test_a_write_without_a_guard_still_fails_by_version() -> None:
    async def story() -> None:
        coordination, old = await opened()
        new = ClusterStore(coordination)
        await old.append([images.producer_ids_record(1_000)])
        await new.load()
        await new.append([images.producer_ids_record(2_000)])
        with pytest.raises(VersionMismatch):
            await old.append([images.producer_ids_record(2_000)])

    asyncio.run(story())
