"""What is sent to ZooKeeper for a read, without a ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from kazoo.protocol.states import KazooState

from kafkalite.core.cluster import zookeeper
from kafkalite.core.cluster.zookeeper import ZooKeeperCoordination


class Answer:
    """An answer that is there at once."""

    exception = None

    def __init__(self, value: Any) -> None:
        self.value = value

    def rawlink(self, call: Callable[[Answer], None]) -> None:
        call(self)


class FakeClient:
    """The part of kazoo's client that a read needs."""

    sent: ClassVar[list[str]] = []
    connected = True

    def __init__(self, *_: object, **__: object) -> None:
        """As kazoo's."""

    def add_listener(self, _: object) -> None:
        """Never called."""

    def start_async(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def close(self) -> None:
        """Nothing to close."""

    def sync_async(self, path: str) -> Answer:
        self.sent.append(f"sync {path}")
        return Answer(path)

    def get_async(self, path: str) -> Answer:
        self.sent.append(f"get {path}")
        return Answer((b"value", SimpleNamespace(version=3, ephemeralOwner=0)))


def test_the_first_read_of_each_session_begins_with_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that a session begins at may lag, and not know of what was written long ago."""
    monkeypatch.setattr(zookeeper, "KazooClient", FakeClient)
    monkeypatch.setattr(FakeClient, "sent", [])

    async def story() -> None:
        coordination = ZooKeeperCoordination("zk:2181", in_thread=asyncio.to_thread)
        for _ in range(2):
            coordination._take_state(KazooState.CONNECTED, False)
            for _ in range(2):
                assert (await coordination.get("/a")).value == b"value"
            coordination._take_state(KazooState.LOST, False)
        await coordination.close()

    asyncio.run(story())
    assert FakeClient.sent == ["sync /", "get /a", "get /a"] * 2
