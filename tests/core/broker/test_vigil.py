"""The controller's watch over brokers: what becomes of a broker's end once nobody watches it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from kafkalite.core.broker.vigil import Vigil, Watched
from kafkalite.core.cluster.image import BrokerImage, ClusterImage, Node
from kafkalite.core.peers.channel import Peers
from kafkalite.errors import BrokerUnavailable, CoordinationUnavailable

ONE_BROKER = ClusterImage(brokers={2: BrokerImage({"X": Node(2, "broker-2", 9092)}, None, 7)})


class _DeadBroker:
    """Peers, of which the one broker was met before, and refuses a connection now."""

    def channel(self, *_: object) -> _DeadBroker:
        return self

    async def hold(self, _: int) -> None:
        raise BrokerUnavailable("refused") from ConnectionRefusedError()

    def has_met(self, *_: object) -> bool:
        return True

    def forget(self, _: int) -> None:
        pass


def test_an_end_that_fails_after_its_watch_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    unseen: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        begun, answered = asyncio.Event(), asyncio.Event()

        async def gone(_: Watched) -> None:
            begun.set()
            await answered.wait()
            raise CoordinationUnavailable("no answer")

        vigil = Vigil(1, cast("Peers", _DeadBroker()), "X", gone)
        vigil.look(ONE_BROKER)
        await begun.wait()
        vigil.look(ClusterImage())  # the broker has left otherwise meanwhile
        answered.set()
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        await vigil.close()
        gc.collect()

    asyncio.run(story())
    assert unseen == []
    assert caplog.text.count("the registration of broker 2: no answer") == 1
