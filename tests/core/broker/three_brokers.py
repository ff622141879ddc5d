"""Three brokers of one cluster in a simulated world, and requests to any of them as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.cluster.image import ClusterImage, PartitionImage
from kafkalite.core.peers.connection import BrokerConnection, open_connection
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import Columns
from kafkalite.testing.cluster import PORT, SimulatedCluster
from kafkalite.testing.coordination import CoordinationServer

SESSION_TIMEOUT_MS = 6_000
NO_LIMITS: Mapping[ApiKey, int] = {}


class ThreeBrokers(SimulatedCluster):
    """Brokers 1, 2 and 3, all started, and the fake of ZooKeeper."""

    def __init__(self, seed: int = 1, *, racks: Mapping[int, str] | None = None, **settings: str):
        names = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(
            seed,
            settings=names,
            racks=racks,
            coordination=lambda host, _: self.server.client(
                host.name, host.loop, session_timeout_ms=SESSION_TIMEOUT_MS
            ),
        )
        self.server = CoordinationServer(self.host("zookeeper").loop, self.chance("zookeeper"))
        self.peer = self.host("peer")
        self._connections: dict[tuple[int, tuple[Any, ...]], BrokerConnection] = {}
        self.start(1)  # first, so that it is the controller
        self.wait_for(1)
        self.start_all()
        self.run(self.has_agreed, 60)
        assert self.controller() == 1

    # ---- what brokers know

    def broker(self, node_id: int) -> Any:
        node = self.brokers[node_id].node
        assert node is not None, f"broker {node_id} has not started"
        return node.broker

    def running(self) -> list[int]:
        return [node_id for node_id, broker in self.brokers.items() if broker.node is not None]

    def image(self, node_id: int | None = None) -> ClusterImage:
        image: ClusterImage = self.broker(node_id or self.running()[0]).image
        return image

    def has_agreed(self) -> bool:
        """Whether the running brokers have one image and one controller."""
        brokers = [self.broker(node_id) for node_id in self.running()]
        controllers = {broker.controller_id for broker in brokers}
        images = [broker.image for broker in brokers]
        is_one = all(image == images[0] for image in images) and len(controllers) == 1
        return is_one and {*images[0].brokers} == {*self.running()} and -1 not in controllers

    def agree(self, seconds: float = 60) -> ClusterImage:
        self.run(self.has_agreed, seconds)
        return self.image()

    def controller(self) -> int:
        self.agree()
        found: int = self.broker(self.running()[0]).controller_id
        return found

    def other(self, *node_ids: int) -> int:
        """A running broker that is none of those."""
        return next(node_id for node_id in self.running() if node_id not in node_ids)

    def state(self, topic: str, index: int = 0) -> PartitionImage:
        found = self.image().partition(topic, index)
        assert found is not None
        return found

    def held(self, node_id: int, topic: str, index: int = 0) -> Partition:
        found: Partition = self.broker(node_id).partition(topic, index)
        return found

    # ---- what clients do

    def create(self, *topics: NewTopic) -> None:
        async def go() -> None:
            async with Admin(client=self.client(*self.running())) as admin:
                await admin.create_topics(topics)

        self.result(self.peer, go())
        self.agree()

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> None:
        async def go() -> None:
            async with Producer(client=self.client(*self.running())) as producer:
                for value in values:
                    columns = Columns([b"k"], [value], [1_000])
                    await producer.send_columns(topic, columns, partition)
                    await producer.flush()

        self.result(self.peer, go())

    def ask(
        self, node_id: int, request: Any, newest: Mapping[ApiKey, int] = NO_LIMITS,
        timeout_ms: int = 30_000,
    ) -> Any:  # fmt: skip
        """A broker's answer to one request, in the newest version but for those of `newest`."""
        return self.result(self.peer, self.asking(node_id, request, newest, timeout_ms))

    async def asking(
        self, node_id: int, request: Any, newest: Mapping[ApiKey, int] = NO_LIMITS,
        timeout_ms: int = 30_000,
    ) -> Any:  # fmt: skip
        ports = self.world.client_ports(self.chance("peer"))
        connection = await open_connection(
            self.brokers[node_id].name,
            PORT,
            client_id="test",
            request_timeout_ms=timeout_ms,
            connect_timeout_ms=5_000,
            newest=newest,
            connect=ports.connect,
        )
        try:
            return await connection.submit(request, timeout_ms)
        finally:
            connection.close()
            await connection.closed()

    def fetch(self, node_id: int, topic: str, offset: int = 0, **more: Any) -> PartitionData:
        """A broker's answer to a consumer's fetch of partition 0; `rack`, `epoch`, `wait_ms`."""
        answer = self.ask(node_id, self.fetch_request(topic, offset, **more))
        assert not answer.error_code, answer
        data: PartitionData = answer.responses[0].partitions[0]
        return data

    def fetch_request(
        self, topic: str, offset: int = 0, *, rack: str = "", epoch: int = -1, wait_ms: int = 0
    ) -> FetchRequest:
        wanted = FetchPartition(0, epoch, offset, partition_max_bytes=1 << 20)
        topic_id = self.image().topics[topic].topic_id
        return FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, topics=(FetchTopic("", topic_id, (wanted,)),),
            rack_id=rack,
        )  # fmt: skip

    def until(self, is_so: Callable[[], Any], seconds: float = 60) -> None:
        self.run(lambda: bool(is_so()), seconds)
