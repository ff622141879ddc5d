"""Who waits for a partition, when more wait than there is room for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from kafkalite.core.broker.agenda import Agenda
from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.broker.waiting import KEPT_MAX, Waiting
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import TopicPartition

HERE = TopicPartition("t", 0)


def test_what_is_appended_is_told_of_however_many_wait() -> None:
    async def main() -> None:
        waiting = Waiting(Agenda(lambda: 0))
        waiting.purgatory.capacity = 3
        told: list[str] = []
        for name, deadline_ms in (("late", 300), ("early", 100), ("later", 400)):
            fetch: Any = DelayedFetch(lambda name=name: told.append(name), 1 << 30)
            assert waiting.park(fetch, [HERE], deadline_ms)
        partition: Any = SimpleNamespace(
            topic_partition=HERE,
            log=SimpleNamespace(high_watermark=4),
            watchers={},
            counts=lambda byte_count: None,
            replication=SimpleNamespace(leader_epoch=3),
            why_unsafe=lambda leader_epoch: None,
        )
        waiting.when_committed(
            partition, 5, lambda: told.append("committed"), lambda: told.append("lost")
        )
        await asyncio.sleep(0)
        assert told == ["early"], "it could have waited, and is answered with what there is"
        assert len(waiting) == 3
        partition.log.high_watermark = 5
        waiting.advanced(partition, 100)
        await asyncio.sleep(0)
        assert told == ["early", "committed"]

    asyncio.run(main())


def test_the_last_batch_that_does_not_count_yet_is_kept_for_consumers() -> None:
    """Of few partitions, and until it counts, another follows, or the partition is another's."""

    def held(number: int) -> Any:
        partition = Partition(TopicPartition("t", number), MagicMock(), MagicMock())
        partition.log.high_watermark = 0
        partition.watchers[MagicMock()] = None
        return partition

    def read(partition: Any, high_watermark: int) -> Any:
        """What consumers find in memory once so much counts."""
        partition.log.high_watermark = high_watermark
        waiting.hold()
        waiting.advanced(partition, 1)
        lent = partition.fresh
        waiting.settle()
        assert partition.fresh is None
        return lent

    def append(partition: Any, batch: MemoryRecords | None) -> None:
        waiting.hold()
        waiting.grew(partition, 1, batch)
        waiting.settle()

    async def main() -> None:
        nonlocal waiting
        waiting = Waiting(Agenda(lambda: 0))
        one, other, third = held(1), held(2), held(3)
        first, second = MemoryRecords(b"a", 0, 1), MemoryRecords(b"b", 1, 2)
        append(one, first)
        assert read(one, 0) is None, "it does not count yet"
        assert read(one, 1) is first
        assert read(one, 1) is None
        append(one, first)
        append(one, second)
        assert read(one, 1) is None, "only the last one is kept"
        assert read(one, 2) is second
        append(other, first)
        append(other, None)  # a large one
        assert read(other, 1) is None
        append(third, first)
        waiting.gone(third)
        assert read(third, 1) is None
        many = [held(number) for number in range(KEPT_MAX + 1)]
        for each in many:
            append(each, first)
        assert [read(each, 1) for each in many] == [None] + [first] * KEPT_MAX

    waiting: Any = None
    asyncio.run(main())
