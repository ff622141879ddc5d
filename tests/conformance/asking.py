"""Asks a broker questions and writes its answers down in a form that two brokers can share.

What differs from run to run (ids, times, addresses, sizes on disk) is replaced by a word, and the
words of an error message are left out: the code counts.
"""

from __future__ import annotations

import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.connection import ClientConnection
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from kafkalite.core.protocol.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from kafkalite.core.protocol.transactions import InitProducerIdRequest
from kafkalite.errors import WireError

CLOSED = "the connection was closed"
SECONDS_MAX = 60
LEFT_OUT = {
    "throttle_time_ms", "host", "port", "rack", "cluster_id", "log_dir", "total_bytes",
    "usable_bytes", "partition_size", "documentation", "current_leader", "node_endpoints",
    "log_append_time_ms", "error_message", "batch_index_error_message",
}  # fmt: skip
FIRST = {"producer_id": 0, "session_id": 1, "last_timestamp": 1, "transaction_start_time_ms": 1}
NO_FIRST = 1 << 63  # of numbers that are the same everywhere
UUIDS = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ORDER = ("name", "topic", "group_id", "partition_index", "partition", "index")
SORTED = {
    "topics", "groups", "partitions", "responses", "results", "configs", "results_by_partition",
    "active_producers",
}  # fmt: skip


class Talk:
    """A conversation with one broker; `answers` are what it said, by the label of the question."""

    def __init__(self, host: str, port: int) -> None:
        self.answers: dict[str, Any] = {}
        self._address = (host, port)
        self._tag = uuid.uuid4().hex[:8]
        self._connection: ClientConnection | None = None

    def name(self, word: str) -> str:
        """A name that no other conversation uses."""
        return f"{word}-{self._tag}"

    def ask(self, label: str, request: Request[Any], version: int) -> Any:
        """Asks, and writes the answer down."""
        assert label not in self.answers, label
        answer = self.say(request, version)
        self.answers[label] = self._plain(answer)
        return answer

    def say(self, request: Request[Any], version: int) -> Any:
        """Asks, and writes nothing down."""
        if self._connection is None:
            self._socket = socket.create_connection(self._address, timeout=SECONDS_MAX)
            self._connection = ClientConnection("talk")
        try:
            _, parts = self._connection.send(request, version)
            self._socket.sendall(b"".join(map(bytes, parts)))
            while (event := self._connection.next_event()) is None:
                data = self._socket.recv(1 << 20)
                if not data:
                    raise ConnectionError(CLOSED)
                self._connection.receive_data(data)
        except (OSError, WireError) as error:
            self.close()
            return CLOSED if isinstance(error, ConnectionError) else str(error)
        return event.message

    def until(self, question: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
        """Asks again and again until the answer is good."""
        deadline = time.monotonic() + SECONDS_MAX
        while not good(answer := question()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return answer

    def close(self) -> None:
        """Hangs up."""
        if self._connection is not None:
            self._connection = None
            self._socket.close()

    # -- what most conversations begin with

    def topic(self, word: str, partitions: int = 1, **configs: str) -> str:
        """Makes a topic and waits for its leaders; `retention_ms` stands for retention.ms."""
        name = self.name(word)
        settings = [CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()]
        topic = CreatableTopic(name, partitions, 1, (), tuple(settings))
        self.say(CreateTopicsRequest((topic,)), 5)
        wanted = MetadataRequest((MetadataRequestTopic(name=name),), False)

        def is_led(answer: Any) -> bool:
            found = answer.topics[0]
            return not found.error_code and all(p.leader_id >= 0 for p in found.partitions)

        self.until(lambda: self.say(wanted, 9), is_led)
        latest = tuple(ListOffsetsPartition(i, -1, -1) for i in range(partitions))
        ends = ListOffsetsRequest(-1, 0, (ListOffsetsTopic(name, latest),))

        def is_served(answer: Any) -> bool:
            return all(not p.error_code for t in answer.topics for p in t.partitions)

        self.until(lambda: self.say(ends, 5), is_served)
        return name

    def coordinator(self, key: str, key_type: int = 0) -> str:
        """Waits until a group (0) or a transactional id (1) has a coordinator that is ready."""
        request = FindCoordinatorRequest(key, key_type)
        self.until(lambda: self.say(request, 2), lambda answer: not answer.error_code)
        if key_type == 0:
            fetch = OffsetFetchRequest(key, (OffsetFetchRequestTopic("t", (0,)),))
            self.until(lambda: self.say(fetch, 5), lambda answer: not answer.error_code)
        return key

    def producer_id(self, transactional_id: str | None = None) -> Any:
        """The answer to an InitProducerId that succeeded."""
        request = InitProducerIdRequest(transactional_id, 60_000)
        return self.until(lambda: self.say(request, 3), lambda answer: not answer.error_code)

    # -- answers in plain words

    def _plain(self, value: Any, field: str = "") -> Any:
        if isinstance(value, CreatableTopicResult) and value.configs:
            value = replace(value, configs=())  # every setting, as the broker's are
        if is_dataclass(value):
            names = [f.name for f in fields(value) if f.name not in LEFT_OUT]
            return {name: self._plain(getattr(value, name), name) for name in names}
        if isinstance(value, tuple):
            items = [self._plain(item, field) for item in value]
            if field in SORTED and items and isinstance(items[0], dict):
                items.sort(key=lambda item: (*(str(item.get(key)) for key in ORDER), str(item)))
            return items
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, (bytes, bytearray, memoryview)):
            return f"{len(value)} bytes"
        if isinstance(value, uuid.UUID):
            return "an id" if value.int else "no id"
        if isinstance(value, str):
            return UUIDS.sub("an id", value.replace(self._tag, "*"))
        if isinstance(value, int) and value >= FIRST.get(field, NO_FIRST):
            return "some number"
        return value


def answers(host: str, port: int, conversation: Callable[[Talk], None]) -> dict[str, Any]:
    """All that is answered in one conversation, by the question's label."""
    talk = Talk(host, port)
    try:
        conversation(talk)
    finally:
        talk.close()
    return talk.answers
