"""A client's view of a cluster: connections, metadata, coordinators.                       [IO]

Producers, consumers and admins share a client or have one each. Connections are kept by address
and lane: the requests of one lane may wait without holding up others, as a consumer's fetches do.

Owns   the connections and their reconnects (exponential backoff), the current `Cluster`, the
       coordinator of each group.
Never  retries a request that a broker may have carried out; callers whose requests may be repeated
       use `retrying`.
Fails  with BrokerUnavailable once no broker has answered for `unavailable_after_ms`, and with
       ApiError when a broker refuses.
Source KIP-144 (reconnects), KIP-699 (coordinators); apache/kafka `NetworkClient`, `Metadata`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, TypeVar

from kafkalite.clients.asking import (
    CONNECTED_LOOK_MS,
    UNCONNECTED_LOOK_MS,
    CoordinatorMoved,
    first_answer,
    unless_moved,
)
from kafkalite.clients.lifetime import Lifetime
from kafkalite.clients.metadata import NO_LEADER, Cluster, TopicInfo, merge
from kafkalite.clients.ports import MACHINE, ClientPorts
from kafkalite.core.backoff import Backoff
from kafkalite.core.peers.connection import (
    BrokerConnection,
    open_connection,
    show_address,
    why_unavailable,
)
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.types import Node
from kafkalite.errors import (
    ApiError,
    BrokerUnavailable,
    ConfigError,
    ErrorCode,
    KafkaliteError,
    WireError,
)

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger(__name__)

CONTROL: Final = "control"  # the lane of short questions: metadata, offsets, administration
GROUP_KEY: Final = 0  # what a coordinator is asked for by
TRANSACTION_KEY: Final = 1
KEY_KINDS: Final = {GROUP_KEY: "group", TRANSACTION_KEY: "transactional id"}
PORT_MAX: Final = 65_535
# Where clients speak fewer versions than we can read: topic ids in a fetch need bookkeeping.
NEWEST: Final[Mapping[ApiKey, int]] = {ApiKey.FETCH: 12}
UNKNOWN_TOPIC_TRIES: Final = 5  # a topic that was just made is unknown for a moment

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class Slot:
    """One address and lane, connected or not."""

    address: Address
    backoff: Backoff
    connection: BrokerConnection | None = None
    connecting: asyncio.Task[BrokerConnection] | None = None
    retry_at: float = 0
    trouble: str = ""  # what came of the first attempt since the last that succeeded
    is_silent: bool = False  # others were asked, as it did not answer
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one attempt at a time

    @property
    def open(self) -> BrokerConnection | None:
        """The connection while it lives."""
        found = self.connection
        return found if found is not None and found.is_open else None


@dataclass(slots=True)
class Timing:
    """How long things may take, in ms."""

    request_timeout_ms: int = 30_000
    unavailable_after_ms: int = 5_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000


class Client(Lifetime):
    """Connections to one cluster, by its bootstrap servers. Use it as an async context manager.

        async with Client("127.0.0.1:9092") as client:
            print(client.cluster.nodes)

    `bootstrap_servers` is `host:port,host:port` or a sequence of such. Times are in ms: a request
    is given up after `request_timeout_ms`, a broker after `unavailable_after_ms` of refused
    connections; metadata is asked for anew after `metadata_max_age_ms`. `random` spreads retries
    and picks partitions; a seeded one makes a client repeatable. `ports` is the world that the
    client lives in: this machine, unless a simulation hands in another.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "kafkalite",
        request_timeout_ms: int = 30_000,
        unavailable_after_ms: int = 5_000,
        metadata_max_age_ms: int = 300_000,
        random: Random | None = None,
        ports: ClientPorts | None = None,
    ) -> None:
        self.client_id = client_id
        self._ports = MACHINE if ports is None else ports
        self.timing = Timing(
            request_timeout_ms=request_timeout_ms,
            unavailable_after_ms=unavailable_after_ms,
            metadata_max_age_ms=metadata_max_age_ms,
        )
        self.cluster = Cluster()
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self.random = self._ports.random() if random is None else random
        self._slots: dict[tuple[Address, str], Slot] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._lanes = itertools.count(1)
        self._closed = False

    def now_ms(self) -> int:
        """The wall clock, epoch ms: the timestamp of records that have none."""
        return self._ports.now_ms()

    def backoff(self) -> Backoff:
        """The pauses between the attempts of one request that may be repeated."""
        timing = self.timing
        return Backoff(self.random, timing.retry_backoff_ms, timing.retry_backoff_max_ms)

    @staticmethod
    def _now() -> float:
        """The event loop's monotonic clock, in seconds."""
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Finds the cluster. BrokerUnavailable if no broker answers at the bootstrap servers."""
        if not self.cluster.nodes:
            try:
                await self.refresh(())
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Closes all connections; whatever is in flight fails."""
        self._closed = True
        await self._close_slots(list(self._slots))

    async def _close_slots(self, keys: Iterable[tuple[Address, str]]) -> None:
        slots = [self._slots.pop(key) for key in keys]
        for slot in slots:
            if slot.connecting is not None:
                slot.connecting.cancel()
                await asyncio.gather(slot.connecting, return_exceptions=True)
        for slot in slots:
            if slot.connection is not None:
                slot.connection.close()
                await slot.connection.closed()

    # ---- connections ----

    def new_lane(self, what: str) -> str:
        """A lane of one's own, for requests that may wait long."""
        return f"{what}-{next(self._lanes)}"

    async def close_lane(self, lane: str) -> None:
        """Closes the connections of a lane."""
        await self._close_slots([key for key in self._slots if key[1] == lane])

    def open_connection(self, node_id: int, lane: str = CONTROL) -> BrokerConnection | None:
        """The open connection to a broker, if there is one; never waits."""
        node = self.cluster.nodes.get(node_id)
        slot = self._slots.get(((node.host, node.port), lane)) if node is not None else None
        return None if slot is None else slot.open

    def connecting(self, node_id: int, lane: str = CONTROL) -> asyncio.Task[BrokerConnection]:
        """The one attempt to connect to a broker, begun if need be. Await it shielded.

        It fails with BrokerUnavailable after `unavailable_after_ms` of refusals.
        """
        node = self.cluster.nodes.get(node_id)
        if node is None:
            known = ", ".join(map(str, self.cluster.nodes.values())) or "none"
            raise BrokerUnavailable(f"broker {node_id} is not in the cluster; known are: {known}")
        slot = self._slot((node.host, node.port), lane)
        if slot.connecting is None or slot.connecting.done():
            slot.connecting = asyncio.create_task(self._connect_until([slot]))
            slot.connecting.add_done_callback(_observed)
        return slot.connecting

    async def connect(self, node_id: int, lane: str = CONTROL) -> BrokerConnection:
        """The open connection to a broker, once there is one."""
        found = self.open_connection(node_id, lane)
        if found is not None:
            return found
        return await asyncio.shield(self.connecting(node_id, lane))

    async def connect_any(self) -> BrokerConnection:
        """A connection to whichever broker answers; the bootstrap servers are asked last."""
        return (await self._open_one(self._slots_of_all()))[1]

    def _slots_of_all(self) -> list[Slot]:
        """All brokers' slots: connected ones first, and those that were silent last."""
        nodes = [(node.host, node.port) for node in self.cluster.nodes.values()]
        self.random.shuffle(nodes)
        slots = [self._slot(a, CONTROL) for a in dict.fromkeys([*nodes, *self._bootstrap])]
        slots.sort(key=lambda slot: (slot.is_silent, slot.open is None))
        return slots

    async def _open_one(self, slots: Sequence[Slot]) -> tuple[Slot, BrokerConnection]:
        """The first of these that is connected, or comes to be."""
        for slot in slots:
            if slot.open is not None:
                return slot, slot.open
        connection = await self._connect_until(slots)
        return next(slot for slot in slots if slot.connection is connection), connection

    def _slot(self, address: Address, lane: str) -> Slot:
        slot = self._slots.get((address, lane))
        if slot is None:
            timing = self.timing
            backoff = Backoff(
                self.random, timing.reconnect_backoff_ms, timing.reconnect_backoff_max_ms
            )
            slot = self._slots[address, lane] = Slot(address, backoff)
        return slot

    async def _connect_until(self, slots: Sequence[Slot]) -> BrokerConnection:
        """Tries these in turn, again and again until time is up.

        WireError or ApiError where one answers as no broker does, and the others do not either.
        """
        started = self._now()
        until = started + self.timing.unavailable_after_ms / 1000
        while True:
            refusal: KafkaliteError | None = None
            for tried, slot in enumerate(sorted(slots, key=_turn)):
                now = self._now()  # a silent address leaves time for the others
                try:
                    if found := await self._try(slot, now + (until - now) / (len(slots) - tried)):
                        return found
                except (ApiError, WireError) as error:
                    refusal = error
            if refusal is not None:
                raise refusal
            pause = min(slot.retry_at for slot in slots) - self._now()
            if self._now() + pause >= until:
                break
            await asyncio.sleep(max(pause, 0))
        places = ", ".join(show_address(*slot.address) for slot in slots)
        seconds = self.timing.unavailable_after_ms / 1000
        troubles = ", ".join(sorted({slot.trouble for slot in slots if slot.trouble}))
        why = f": {troubles}" if troubles else ""
        raise BrokerUnavailable(f"no broker answers at {places} (tried for {seconds:g} s){why}")

    async def _try(self, slot: Slot, until: float) -> BrokerConnection | None:
        """One attempt, unless the slot was refused a moment ago."""
        async with slot.lock:
            now = self._now()
            if slot.open is not None or slot.retry_at > now:
                return slot.open
            try:
                connection = await open_connection(
                    *slot.address,
                    client_id=self.client_id,
                    request_timeout_ms=self.timing.request_timeout_ms,
                    connect_timeout_ms=max(1, round((until - now) * 1000)),
                    connect=self._ports.connect,
                    newest=NEWEST,
                )
            except KafkaliteError as error:
                slot.retry_at = self._now() + slot.backoff.failed() / 1000
                log.debug("%s", error)
                if not isinstance(error, BrokerUnavailable):
                    raise
                if not slot.trouble:  # a later try may have been cut short
                    slot.trouble = why_unavailable(error)
                return None
            if self._closed:
                connection.close()
                raise BrokerUnavailable("the client is closed")
            slot.connection = connection
            slot.backoff.succeeded()
            slot.trouble = ""
            return connection

    # ---- requests ----

    async def request(
        self,
        message: Request[R],
        node_id: int | None = None,
        *,
        lane: str = CONTROL,
        timeout_ms: int | None = None,
    ) -> R:
        """Asks one broker, or whichever answers. The answer's error codes are the caller's."""
        if node_id is None:
            connection = await self.connect_any()
        else:
            connection = await self.connect(node_id, lane)
        return await connection.submit(message, timeout_ms)

    async def retrying(
        self,
        what: str,
        attempt: Callable[[], Awaitable[T]],
        codes: Collection[ErrorCode] | None = None,
        *,
        after_breaks: bool = True,
    ) -> T:
        """Repeats `attempt` after errors that may pass, for `request_timeout_ms`.

        Such errors are all retriable codes, or just these `codes`; and broken connections, unless
        `after_breaks` is false, as for what must not be done twice. Metadata is refreshed between
        two tries. The last error is raised unchanged.
        """
        backoff = self.backoff()
        until = self._now() + self.timing.request_timeout_ms / 1000
        while True:
            try:
                if backoff.failures:
                    await self.refresh(())
                return await attempt()
            except (ApiError, BrokerUnavailable) as error:
                pause = backoff.failed() / 1000
                may_pass = _may_pass(error, codes, after_breaks)
                if not may_pass or self._now() + pause > until:
                    raise
                log.debug("%s: %s, trying again in %.3f s", what, error, pause)
            await asyncio.sleep(pause)

    # ---- metadata ----

    async def refresh(self, topics: Collection[str] | None, *, create: bool = False) -> Cluster:
        """Asks for the brokers and these topics; None asks for all topics.

        With `create` the broker creates missing topics, if its settings allow it. The returned
        cluster has each topic in `topics` or its error in `errors`.
        """
        names = None if topics is None else sorted(topics)  # whatever set they come from
        asked = None if names is None else tuple(MetadataRequestTopic(name=t) for t in names)
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        response = await self._ask_anyone(request)
        self.cluster = merge(self.cluster, response, all_topics=topics is None)
        self._forget_addresses()
        return self.cluster

    async def _ask_anyone(self, message: Request[R], but: Address | None = None) -> R:
        """Asks brokers until one answers, but that at an address. BrokerUnavailable once none of
        them can be reached."""
        until = self._now() + self.timing.request_timeout_ms / 1000
        while True:
            slots = [slot for slot in self._slots_of_all() if slot.address != but]
            if not slots:
                raise BrokerUnavailable("there is no other broker to ask")
            left, count = list(slots), len(slots)

            def attempt() -> Coroutine[Any, Any, R] | None:
                nonlocal count
                count -= 1
                return self._ask_one(message, left) if count >= 0 and left else None  # noqa: B023

            try:
                return await first_answer(attempt)
            except BrokerUnavailable as error:
                is_anyone_there = not all(slot.trouble for slot in slots)
                if self._closed or self._now() > until or not is_anyone_there:
                    raise
                log.debug("%s, asking the brokers again", error)

    async def _ask_one(self, message: Request[R], left: list[Slot]) -> R:
        """Asks one of the brokers that are `left`, which it is taken from."""
        slot, connection = await self._open_one(tuple(left))
        if slot in left:  # no other attempt has had it
            left.remove(slot)
        slot.is_silent = True
        answer = await connection.submit(message)
        slot.is_silent = False
        return answer

    def _forget_addresses(self) -> None:
        """Closes connections to where no broker lives any more."""
        homes = {(node.host, node.port) for node in self.cluster.nodes.values()}
        homes.update(self._bootstrap)
        for slot in self._slots.values():
            if slot.address not in homes and slot.open is not None:
                slot.open.close()

    async def topic(self, name: str, *, create: bool = True) -> TopicInfo:
        """A topic, known already or asked for.

        ApiError UNKNOWN_TOPIC_OR_PARTITION once brokers have denied it five times in a row.
        """
        backoff = self.backoff()
        until = self._now() + self.timing.request_timeout_ms / 1000
        while True:
            if (known := self.cluster.topics.get(name)) is not None:
                return known
            await self.refresh((name,), create=create)
            if name in self.cluster.topics:
                continue
            code = self.cluster.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            denied = backoff.failures + 1 >= UNKNOWN_TOPIC_TRIES
            if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and denied:
                raise ApiError(code, f"topic {name} does not exist")
            if not code.is_retriable:
                raise ApiError(code, f"topic {name}")
            if self._now() > until:
                seconds = self.timing.request_timeout_ms / 1000
                raise ApiError(code, f"topic {name} is not ready after {seconds:g} s")
            await asyncio.sleep(backoff.failed() / 1000)

    # ---- coordinators ----

    async def coordinator(self, key: str, kind: int = GROUP_KEY) -> int:
        """The node that coordinates a group, or with TRANSACTION_KEY a transactional id.

        ApiError when no broker can say.
        """
        known = self._coordinators.get((kind, key))
        if known is not None and known in self.cluster.nodes:
            return known
        what = f"coordinator of {KEY_KINDS[kind]} {key}"
        return await self.retrying(what, lambda: self._find_coordinator(key, kind, what))

    async def _find_coordinator(
        self, key: str, kind: int, what: str, but: Node | None = None
    ) -> int:
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=(key,))
        address = None if but is None else (but.host, but.port)
        code, why, node = _coordinator_in(await self._ask_anyone(request, address))
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"{what}, {why}" if why else what)
        nodes = {**self.cluster.nodes, node.node_id: node}
        self.cluster = replace(self.cluster, nodes=nodes)
        self._coordinators[kind, key] = node.node_id
        return node.node_id

    async def ask_coordinator(
        self,
        message: Request[R],
        key: str,
        kind: int = GROUP_KEY,
        *,
        lane: str = CONTROL,
        timeout_ms: int | None = None,
    ) -> R:
        """Asks the coordinator of a key. The answer's error codes are the caller's.

        If the coordinator is out of reach, the next call looks it up again. If it is silent, other
        brokers are asked whether it still is one: BrokerUnavailable, at once, where it is not. Then
        the connection to it is reset: the request must not arrive once it coordinates again.
        """
        node_id = await self.coordinator(key, kind)
        connection = self.open_connection(node_id, lane)
        try:
            if connection is not None:
                asking, look_ms = connection.submit(message, timeout_ms), CONNECTED_LOOK_MS
            else:
                request = self.request(message, node_id, lane=lane, timeout_ms=timeout_ms)
                asking, look_ms = asyncio.ensure_future(request), UNCONNECTED_LOOK_MS
            return await unless_moved(asking, lambda: self._has_moved(key, kind, node_id), look_ms)
        except BrokerUnavailable as error:
            if isinstance(error, CoordinatorMoved) and (
                held := connection or self.open_connection(node_id, lane)
            ):
                held.give_up(str(error))
            if self._coordinators.get((kind, key)) == node_id:
                self.forget_coordinator(key, kind)
            raise

    async def _has_moved(self, key: str, kind: int, node_id: int) -> bool:
        """Whether the other brokers name another coordinator, which is noted then."""
        node = self.cluster.nodes.get(node_id)
        try:
            await self._find_coordinator(key, kind, "coordinator", but=node)
        except KafkaliteError:  # the coordinator may answer all the same
            return False
        return self._coordinators.get((kind, key), node_id) != node_id

    def forget_controller(self) -> None:
        """The controller is out of reach; the next request for it goes to any broker."""
        self.cluster = replace(self.cluster, controller_id=NO_LEADER)

    def forget_coordinator(self, key: str, kind: int = GROUP_KEY) -> None:
        """The coordinator has moved or is gone; the next request looks it up again."""
        self._coordinators.pop((kind, key), None)


def client_of(client: Client | str | Sequence[str], client_id: str) -> tuple[Client, bool]:
    """The client that was handed in, or one for these bootstrap servers; and whether it is new."""
    if isinstance(client, Client):
        return client, False
    return Client(client, client_id=client_id), True


def parse_bootstrap(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """`host:port` pairs. ConfigError names the wrong pair."""
    listed = servers.split(",") if isinstance(servers, str) else servers
    addresses: list[Address] = []
    for text in filter(None, map(str.strip, listed)):
        host, colon, port = text.rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) <= PORT_MAX
        if not (colon and is_port and _is_host(host)):
            raise ConfigError(f"bootstrap server {text!r} is not host:port, such as 127.0.0.1:9092")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise ConfigError("no bootstrap server is given")
    return tuple(dict.fromkeys(addresses))


def _is_host(name: str) -> bool:
    """Whether the name is well formed; it is not looked up."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def _coordinator_in(response: FindCoordinatorResponse) -> tuple[ErrorCode, str, Node]:
    """The answer's error code, message and node, in every version."""
    answer = response.coordinators[0] if response.coordinators else response
    node = Node(answer.node_id, answer.host, answer.port)
    return answer.error_code, answer.error_message or "", node


def _may_pass(
    error: ApiError | BrokerUnavailable, codes: Collection[ErrorCode] | None, after_breaks: bool
) -> bool:
    if isinstance(error, ApiError):
        return error.error_code.is_retriable if codes is None else error.error_code in codes
    return after_breaks


def _turn(slot: Slot) -> tuple[bool, float]:
    """What is tried first: not what another tries already, which may be silent; then by the time
    at which it may be tried again."""
    return slot.lock.locked(), slot.retry_at


def _observed(task: asyncio.Task[Any]) -> None:
    """Marks a failure to connect as seen: callers that wait get it, and asyncio does not log it."""
    if not task.cancelled():
        task.exception()
