"""Answers about leaders wait a moment while a broker seems to die.                          [IO]

    a connection to broker 2 breaks ──> broker 2 is in doubt ───┬─ the image no longer has it
    Metadata ──NOTICED_SECONDS──> somebody is in doubt? ──held──├─ a connection to it is open
                                                                └─ DOUBT_SECONDS are over: as it is

Clients notice the death of a broker when the others do, and ask at once for new leaders. The
controller needs some milliseconds to move them. A client that hears of the old ones meanwhile asks
again only after a pause, a second for librdkafka. The question may come before the asked broker's
own connection breaks, so each question waits NOTICED_SECONDS before the broker looks for doubts.

A broker that has left is listed for LISTED_SECONDS more in answers about topics, though it leads
nothing: librdkafka loses the new leaders of its partitions when they come in the answer that no
longer lists it. Not for long: what is under way to a broker fails once it is listed no more.
Answers about brokers alone are exact.

Owns   the requests that wait, WAITING_MAX of them: others are answered at once.
Never  lets a request wait for longer than the doubt lasts.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from kafkalite.core.broker.kept_answers import KeptAnswers
from kafkalite.core.broker.reaching import OtherBrokers
from kafkalite.core.cluster.image import BrokerImage, ClusterImage
from kafkalite.core.pending import Pending

NOTICED_SECONDS: Final = 0.005
LOOK_SECONDS: Final = 0.02
LISTED_SECONDS: Final = 0.3
WAITING_MAX: Final = 10_000


class Host(Protocol):
    """The doubts' interface to their broker."""

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""

    kept_answers: KeptAnswers


class Doubts:
    """The requests at one broker that wait until it is clear who is alive."""

    def __init__(self, host: Host, others: OtherBrokers) -> None:
        self._host = host
        self._others = others
        self._new_count = 0  # requests that have not waited for NOTICED_SECONDS
        self._waiting: list[Pending[bool]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._left: dict[int, BrokerImage] = {}

    def listed(self) -> ClusterImage:
        """The cluster, and the brokers that have just left it."""
        image = self._host.image
        if not self._left:
            return image
        return replace(image, brokers={**self._left, **image.brokers})

    def wait(self) -> Pending[bool] | None:
        """Completed once there is no doubt; None if too many requests wait."""
        if self._new_count + len(self._waiting) >= WAITING_MAX:
            return None
        pending: Pending[bool] = Pending()
        self._new_count += 1
        asyncio.get_running_loop().call_later(NOTICED_SECONDS, self._decide, pending)
        return pending

    def _decide(self, pending: Pending[bool]) -> None:
        """The broker has noticed by now what the client had noticed when it asked."""
        self._new_count -= 1
        if not self._others.in_doubt():
            pending.complete(True)
            return
        self._waiting.append(pending)
        if self._timer is None:
            self._look_later()

    def note(self, before: ClusterImage) -> None:
        """The image is another than `before`."""
        for node_id in before.brokers.keys() - self._host.image.brokers.keys():
            self._left[node_id] = before.brokers[node_id]
            asyncio.get_running_loop().call_later(
                LISTED_SECONDS, self._unlist, node_id, before.brokers[node_id]
            )

    def _unlist(self, node_id: int, broker: BrokerImage) -> None:
        if self._left.get(node_id) is broker:
            del self._left[node_id]
            self._host.kept_answers.clear()

    def answer(self) -> None:
        """Lets requests go on, if there is no doubt any more."""
        if self._waiting and not self._others.in_doubt():
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each.complete(True)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.answer()
        if self._waiting:
            self._look_later()
