"""Who waits for a partition, when more wait than there is room for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kafkalite.core.broker.agenda import Agenda
from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.broker.waiting import Waiting
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
