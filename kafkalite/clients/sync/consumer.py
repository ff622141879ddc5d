"""The blocking consumer.                                                                   [IO]

Owns   nothing: it is the twin of `kafkalite.clients.Consumer`.
Fails  as that does. An interrupt while a poll waits loses no records.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

from kafkalite.clients.consumer import consumer as asynchronous
from kafkalite.clients.consumer.consumer import Callback, Partitions
from kafkalite.clients.sync.loop_thread import in_the_callers_thread
from kafkalite.clients.sync.twin import Twin, blocking, closing, immediate, like, made_like
from kafkalite.core.types import Columns, TopicPartition


def _relayed(callback: Callback | None) -> Callable[[Partitions], Awaitable[None]] | None:
    """The callback as the loop calls it: it runs in the thread that polls."""
    if callback is None:
        return None

    async def relay(partitions: Partitions) -> None:
        await in_the_callers_thread(partial(callback, partitions))

    return relay


class Consumer(Twin[asynchronous.Consumer]):
    """Reads topics. Use it as a context manager; leaving it leaves the group.

    Its parameters are those of `kafkalite.clients.Consumer`. One thread polls; others may commit,
    pause and close meanwhile.

        from kafkalite.clients.sync import Consumer

        with Consumer(
            "127.0.0.1:9092", group_id="billing", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["orders"])
            for partition, columns in consumer:
                for key, value in zip(columns.keys, columns.values):
                    print(partition, key, value)
                if b"shipped" in columns.values:
                    break
    """

    @made_like(asynchronous.Consumer)
    def __init__(self) -> None: ...

    close = closing(asynchronous.Consumer.close)

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_revoked: Callback | None = None,
        on_assigned: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Reads these topics, or all whose whole name matches, shared with the rest of the group.

        The callbacks get the partitions concerned, and run in the thread that polls or closes.
        """
        self._subscribe(
            topics,
            on_revoked=_relayed(on_revoked),
            on_assigned=_relayed(on_assigned),
            on_lost=_relayed(on_lost),
        )

    _subscribe = immediate(asynchronous.Consumer.subscribe)
    assign = immediate(asynchronous.Consumer.assign)
    seek = immediate(asynchronous.Consumer.seek)
    seek_to_beginning = immediate(asynchronous.Consumer.seek_to_beginning)
    seek_to_end = immediate(asynchronous.Consumer.seek_to_end)
    position = immediate(asynchronous.Consumer.position)
    lag = immediate(asynchronous.Consumer.lag)
    pause = immediate(asynchronous.Consumer.pause)
    resume = immediate(asynchronous.Consumer.resume)
    give_back = immediate(asynchronous.Consumer.give_back)

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer reads now."""
        return self.read(lambda consumer: consumer.assignment)

    @property
    def paused(self) -> Partitions:
        """The partitions that are paused."""
        return self.read(lambda consumer: consumer.paused)

    @property
    def is_in_doubt(self) -> bool:
        """Whether others may have this member's partitions: the group was silent for a session."""
        return self.read(lambda consumer: consumer.is_in_doubt)

    @property
    def is_rebalancing(self) -> bool:
        """Whether a join is under way: commits may be refused until a poll has ended it."""
        return self.read(lambda consumer: consumer.is_rebalancing)

    @like(asynchronous.Consumer.poll)
    def poll(self, timeout_ms: float = 0) -> dict[TopicPartition, Columns]:
        """Records of the partitions that have some, or nothing after `timeout_ms`."""
        return self._thread.run(lambda: self._client.poll(timeout_ms), self._client.give_back)

    def wakeup(self) -> None:
        """Ends a poll of another thread that waits for records, or lets the next one not wait."""
        self.read(lambda consumer: consumer.wakeup())

    def __iter__(self) -> Iterator[tuple[TopicPartition, Columns]]:
        """All records from here on, a partition's columns at a time, until the consumer is closed.

        If the loop ends early, the next poll reads the columns again that it did not get.
        """
        records = aiter(self._client)

        async def following() -> tuple[TopicPartition, Columns] | None:
            return await anext(records, None)

        def give_back(pair: tuple[TopicPartition, Columns] | None) -> None:
            self._client.give_back(dict([pair] if pair else []))

        try:
            while (pair := self._thread.run(following, give_back)) is not None:
                yield pair
        finally:
            self._thread.run(records.aclose)

    commit = blocking(asynchronous.Consumer.commit)
    committed = blocking(asynchronous.Consumer.committed)
    group_metadata = immediate(asynchronous.Consumer.group_metadata)
    confirm_membership = blocking(asynchronous.Consumer.confirm_membership)
    enforce_rebalance = immediate(asynchronous.Consumer.enforce_rebalance)
    beginning_offsets = blocking(asynchronous.Consumer.beginning_offsets)
    end_offsets = blocking(asynchronous.Consumer.end_offsets)
    offsets_for_times = blocking(asynchronous.Consumer.offsets_for_times)
