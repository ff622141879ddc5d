"""The producer of a worker's outputs under at least once: it sends as a member of the group.  [IO]

A batch may wait in the producer while its broker is away. If the worker is paused meanwhile, the
group gives its tasks to others, and the batch would come behind their results. So nothing leaves
after a silence of the group until the group has confirmed the membership.

Owns   the question whether the worker is still a member, one at a time.
Never  sends for a worker that the group has gone on without.
Fails  at `flush`, with the group's refusal; all that was not sent is dropped then.
"""

from __future__ import annotations

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable


class MemberProducer(Producer):
    """Sends records at once, for as long as `consumer` is a member of its group."""

    def __init__(self, client: Client, consumer: Consumer) -> None:
        super().__init__(client, linger_ms=0)
        self._consumer = consumer
        self._is_held = self._is_confirming = False

    def _may_send(self, topic_partition: TopicPartition) -> bool:
        return not self._is_held

    def _send_ready(self) -> None:
        self._is_held = self._consumer.is_in_doubt
        super()._send_ready()
        if self._is_held and not self._is_confirming and self._accumulator.topics:
            self._is_confirming = True
            self._background.run(self._confirm())

    async def _confirm(self) -> None:
        try:
            await self._consumer.confirm_membership()
        except ApiError as error:
            self._finish(self._accumulator.abandon(error))
        except BrokerUnavailable:
            pass  # the pump asks again
        finally:
            self._is_confirming = False
        self._pump()
