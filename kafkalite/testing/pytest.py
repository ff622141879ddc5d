"""Fixtures for the tests of those who use kafkalite.                                      [IO]

    # conftest.py
    pytest_plugins = ["kafkalite.testing.pytest"]

    # test_orders.py
    def test_orders_are_counted(driver):                   # in memory, record by record
        orders = driver(app)
        orders.pipe("orders", {"amount": 5}, key="ann", timestamp=0)
        assert orders.store("counts").get("ann") == 1

    def test_orders_are_counted_on_a_broker(broker, topic):
        orders = topic("orders", value=json(), partitions=2)
        orders.put({"amount": 5}, key=b"ann")
        app.run(broker.bootstrap_servers, until_caught_up=True)

Owns   what the fixtures made, until the test that asked for them ends.
Fails  as pytest reports it: drivers, brokers and topics are closed in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

import pytest

from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde.serde import Serde
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.testing.topics import TestTopic

MakeDriver: TypeAlias = Callable[..., TopologyTestDriver]
MakeTopic: TypeAlias = Callable[..., TestTopic]


@pytest.fixture
def driver() -> Iterator[MakeDriver]:
    """Makes drivers: `driver(app, wall_clock=0, cached=False)`, as TopologyTestDriver takes it."""
    with ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(TopologyTestDriver(*given, **options))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of the test's own: `broker.bootstrap_servers`. It takes a second to start."""
    with EmbeddedBroker(tmp_path / "kafkalite-broker") as started:
        yield started


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Iterator[MakeTopic]:
    """Makes topics: `topic("orders", key=string(), value=json(), partitions=1, configs={…})`.

    A topic that exists, one that the application made for instance, is taken as it is.
    """
    address = broker.bootstrap_servers
    with ExitStack() as stack:

        def make(
            name: str,
            *,
            key: Serde | None = None,
            value: Serde | None = None,
            partitions: int = 1,
            configs: Mapping[str, str | int] | None = None,
        ) -> TestTopic:
            with Admin(address) as admin:
                texts = {name: str(value) for name, value in (configs or {}).items()}
                admin.create_missing_topics([NewTopic(name, partitions, configs=texts)])
            return stack.enter_context(closing(TestTopic(address, name, key=key, value=value)))

        yield make
