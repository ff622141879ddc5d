"""Requests of an admin client to any broker, the controller, leaders, coordinators, all.     [IO]

Owns   the client, if it was not handed in; the retries of each family of calls.
Never  repeats a change that a broker may have made, unless the broker said that it did not, or
       twice does what once does.
Fails  with ApiError for the first refused topic, partition or group, naming it and the broker's
       reason; with BrokerUnavailable if no broker answers.
Source apache/kafka `AdminApiDriver` and its lookup strategies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafkalite.clients.cluster import GROUP_KEY, KEY_KINDS, Client, client_of
from kafkalite.clients.consumer.membership import FIND_COORDINATOR
from kafkalite.clients.lifetime import Lifetime
from kafkalite.core.protocol.codec import Request
from kafkalite.core.types import TopicPartition, by_topic
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode

TIMEOUT_MS: Final = 30_000
ELSEWHERE: Final = frozenset({ErrorCode.NOT_CONTROLLER})  # the broker has done nothing
NO_COORDINATOR: Final = FIND_COORDINATOR | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
NOT_LEADER: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,  # a new leader does not know yet what is committed
        ErrorCode.KAFKA_STORAGE_ERROR,  # others will lead what this broker cannot write
    }
)

R = TypeVar("R")
T = TypeVar("T")
Refusal = tuple[str, ErrorCode, str | None]  # the subject, the code (NONE: not refused), the reason
Reader = Callable[[Any], Iterable[Refusal]]


class AdminCalls(Lifetime):
    """A client, and the ways to ask it."""

    def __init__(
        self, client: Client | str | Sequence[str], *, client_id: str = "kafkalite-admin"
    ) -> None:
        self._client, self._owns_client = client_of(client, client_id)

    async def start(self) -> None:
        """Finds the cluster."""
        await self._client.start()

    async def close(self) -> None:
        """Closes the connections, unless the client is shared."""
        if self._owns_client:
            await self._client.close()

    @property
    def client(self) -> Client:
        """The client that asks, to be shared."""
        return self._client

    async def _ask_controller(self, request: Request[R], read: Reader) -> R:
        async def attempt() -> R:
            controller = self._client.cluster.controller_id
            known = controller in self._client.cluster.nodes
            try:
                response = await self._client.request(request, controller if known else None)
            except BrokerUnavailable:  # it may have carried the request out
                self._client.forget_controller()
                raise
            raise_for(read(response))
            return response

        return await self._client.retrying("the controller", attempt, ELSEWHERE, after_breaks=False)

    async def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        make: Callable[[Mapping[str, Sequence[int]]], Request[Any]],
        read: Callable[[Any], Iterable[tuple[TopicPartition, ErrorCode, str | None, T]]],
    ) -> dict[TopicPartition, T]:
        """Asks each partition's leader, a request each. ApiError for the first one refused.

        `make` turns partition numbers by topic into a request. Partitions whose leader has moved
        or gone away are asked for again; the others' answers stay.
        """
        todo = dict.fromkeys(partitions)
        found: dict[TopicPartition, T] = {}

        async def attempt() -> None:
            topics = {tp.topic for tp in todo}
            await self._client.refresh(topics)  # a leader that was known may be gone
            for topic in sorted(topics):
                await self._client.topic(topic, create=False)
            for leader, led in self._by_leader(todo).items():
                answer = await self._client.request(make(by_topic(led)), leader)
                refused: list[Refusal] = []
                for tp, code, reason, result in read(answer):
                    if code is ErrorCode.NONE:
                        found[tp] = result
                        todo.pop(tp, None)
                    else:
                        refused.append((str(tp), code, reason))
                raise_for(refused)

        await self._client.retrying("partition leaders", attempt, NOT_LEADER)
        return found

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        led: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            if self._client.cluster.partition(tp) is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
            leader = self._client.cluster.leader_id(tp)
            if leader is None:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
            led.setdefault(leader, []).append(tp)
        return led

    async def _ask_all(self, request: Request[R], read: Reader) -> dict[int, R]:
        """Every broker's answer, by its id. If one goes away meanwhile, all are asked again: others
        may have taken over what it knew."""

        async def attempt() -> dict[int, R]:
            await self._client.refresh(())
            answers: dict[int, R] = {}
            for node_id in sorted(self._client.cluster.nodes):
                answer = await self._client.request(request, node_id)
                raise_for(read(answer))
                answers[node_id] = answer
            return answers

        return await self._client.retrying("all brokers", attempt, NO_COORDINATOR)

    async def _ask_coordinator(
        self,
        key: str,
        request: Request[R],
        read: Reader,
        *,
        kind: int = GROUP_KEY,
        after_breaks: bool = True,
    ) -> R:
        """Asks the coordinator of a group, or with TRANSACTION_KEY of a transactional id."""

        async def attempt() -> R:
            response = await self._client.ask_coordinator(request, key, kind)
            raise_for(read(response))
            return response

        return await self._at_coordinator(key, attempt, kind=kind, after_breaks=after_breaks)

    async def _at_coordinator(
        self,
        key: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        kind: int = GROUP_KEY,
        codes: Collection[ErrorCode] = NO_COORDINATOR,
        after_breaks: bool = True,
    ) -> T:
        """Repeats `attempt` while the coordinator is another one, not ready or, `after_breaks`,
        out of reach."""

        async def forgetful() -> T:
            try:
                return await attempt()
            except ApiError as error:
                if error.error_code in NO_COORDINATOR:
                    self._client.forget_coordinator(key, kind)
                raise

        return await self._client.retrying(
            f"{KEY_KINDS[kind]} {key}", forgetful, codes, after_breaks=after_breaks
        )


def raise_for(answers: Iterable[Refusal]) -> None:
    """Raises ApiError for the first of (subject, code, reason) that was refused."""
    for subject, code, reason in answers:
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"{subject}: {reason.rstrip('.')}" if reason else subject)
