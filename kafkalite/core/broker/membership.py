"""A broker's membership in a cluster: registered, following the controller, or being it.    [IO]

    coordination ── session ──> registered again under a new epoch, where it expired
               ├── /brokers/<id> ──> the same, where the controller took this broker for dead
               └── /controller ──> the seat: free, taken by us (a Term begins), or by another
    the controller ── metadata, one long poll ──> image ──> Broker.put_in_force
    Broker.control ── in our term its queue, else a request to the controller's broker

What needs no decision goes on while the coordination is away: the image stays in force. Decisions
wait for the controller, and are refused with a retriable error after a time.

Where the controller's connection breaks and its address refuses another one, its process is gone:
the seat is taken in its place before its session ends.

Owns   the registration, the term while this broker holds the seat, the following of metadata.
Never  lets a term outlive its session or its seat. Never puts an older image in force.
Fails  from `start` with ConfigError where the id is taken, CoordinationError without coordination.
       Later failures are logged, and tried again.
Source apache/kafka `BrokerLifecycleManager`, `KafkaController`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.broker.forwarding import forwarded, is_of_clients, result_of, wire_form
from kafkalite.core.broker.term import Term, answered
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import Controller, ControllerRequest
from kafkalite.core.cluster.coordination import Coordination, Session, Stop
from kafkalite.core.cluster.following import ImageFollower
from kafkalite.core.cluster.image import BrokerImage, ClusterRecord
from kafkalite.core.cluster.registering import register
from kafkalite.core.cluster.seat import CONTROLLER_PATH, Seat, holder, take
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.peers.channel import Address, Peers, refused
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.peers import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    FollowMetadataRequest,
    FollowMetadataResponse,
)
from kafkalite.core.types import NO_EPOCH, NO_OFFSET
from kafkalite.errors import (
    ApiError,
    BrokerUnavailable,
    ConfigError,
    CoordinationError,
    ErrorCode,
    KafkaliteError,
)

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

log: Final = logging.getLogger(__name__)

FOLLOW_MS: Final = 2_000  # a request for metadata waits so long at the controller
SILENCE_MS: Final = 2_000  # beyond it the controller is taken for dead, and asked again
CONTROL_MS: Final = 15_000  # for a request that the controller's broker answers
ALTER_MS: Final = 5_000  # the same for AlterPartition: its leader asks again, by another connection
RETRY_SECONDS: Final = 0.1  # between attempts to reach the controller, or the coordination
REGISTER_SECONDS: Final = 60.0  # for an earlier session of the same broker to end
JOIN_SECONDS: Final = 60.0  # until the first metadata


@dataclass(frozen=True, slots=True)
class Home:
    """Where a broker is: its addresses by the names of listeners, that for brokers, its rack, and
    whether it had closed its logs before this start."""

    endpoints: Mapping[str, Address]
    inter_broker: str
    rack: str | None
    stopped_cleanly: bool


class Membership:
    """The `Steering` of `broker` in a cluster."""

    def __init__(
        self, broker: Broker, coordination: Coordination, peers: Peers, home: Home
    ) -> None:
        self._broker = broker
        self._coordination = coordination
        self.peers = peers
        self._home = home
        self._epoch = NO_EPOCH
        self._seat: Seat | None = None  # of the controller now
        self._taken: Seat | None = None  # by this session
        self._controller_at: Address | None = None
        self._term: Term | None = None
        self._follower = ImageFollower()
        self._is_expired = False
        self._is_settled = False  # this start, by a controller, whatever the logs lacked at first
        self._is_leaving = False
        self._dead: Seat | None = None  # whose holder's process is gone
        self._look = asyncio.Event()  # at the session and the seat
        self._moved = asyncio.Event()  # the seat
        self._joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stops: list[Stop] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- life

    async def join(self) -> None:
        """Registers, and returns once the image in force has this start of the broker."""
        self._stops.append(self._coordination.listen(self._on_session))
        for path in (CONTROLLER_PATH, images.broker_path(self._broker.node_id)):
            self._stops.append(self._coordination.watch(path, self._on_change))
        await self._register()
        self._look.set()
        for work in (self._watch(), self._follow()):
            self._spawn(work)
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                await self._joined
        except TimeoutError as error:
            words = f"broker {self._broker.node_id} heard nothing of a controller"
            raise CoordinationError(f"{words} in {JOIN_SECONDS:g} s") from error

    def start(self) -> None:
        """It takes requests as soon as it is made."""

    async def leave(self) -> None:
        """Asks that others lead what this broker leads: as often as Kafka does, then it stops."""
        self._is_leaving = True
        config = self._broker.config
        if not config["controlled.shutdown.enable"]:
            return
        retry_s = config["controlled.shutdown.retry.backoff.ms"] / 1000
        for left in reversed(range(config["controlled.shutdown.max.retries"])):
            request = ControlledShutdownRequest(self._broker.node_id, self._epoch)
            answer = await answered(self.control(request))
            if not answer.error_code and not answer.remaining_partitions:
                return
            log.warning(
                "controlled shutdown: error %d, %d partitions have no other leader",
                answer.error_code, len(answer.remaining_partitions),
            )  # fmt: skip
            if left:
                await asyncio.sleep(retry_s)

    async def close(self) -> None:
        """Gives the seat up and follows nobody any more. The coordination's session is ended by
        its owner, and with it the registration."""
        for stop in self._stops:
            stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_term()
        await self.peers.close()

    # -- what the broker asks

    @property
    def controller_id(self) -> int:
        """The broker that controls the cluster now; -1 while nobody knows."""
        return -1 if self._seat is None else self._seat.node_id

    @property
    def is_start_settled(self) -> bool:
        """Whether a controller has settled this start, or need not: the logs were whole."""
        return self._home.stopped_cleanly or self._is_settled

    def configure(self, config: BrokerConfig) -> None:
        """The broker has other settings."""
        if self._term is not None:
            self._term.configure(config)

    def control(self, request: ControllerRequest, *, from_peer: int | None = None) -> Pending[Any]:
        """Hands a request to the controller, in this process or at another broker."""
        if self._term is not None:
            asker = self._broker.node_id if from_peer is None else from_peer
            return self._term.submit_for(asker, request)
        pending: Pending[Any] = Pending()
        if from_peer is None and is_of_clients(request):
            ask = partial(self._forwarded_for_client, request)
            self._spawn(self._complete(pending, request, ask))
            return pending
        if from_peer is None and isinstance(request, Request) and self._controller_at is not None:
            timeout_ms = ALTER_MS if isinstance(request, AlterPartitionRequest) else CONTROL_MS
            ask = partial(self._ask, request, "control", timeout_ms)
            self._spawn(self._complete(pending, request, ask))
            return pending
        words = f"broker {self._broker.node_id} is not the controller"
        refusal = ApiError(ErrorCode.NOT_CONTROLLER, words)
        pending.complete(Controller.refuse(request, refusal))
        return pending

    def follow(
        self, request: FollowMetadataRequest
    ) -> FollowMetadataResponse | Pending[FollowMetadataResponse]:
        """Metadata for a broker."""
        if self._term is None:
            return FollowMetadataResponse(error_code=ErrorCode.NOT_CONTROLLER)
        return self._term.follow(request)

    async def _forwarded_for_client(self, request: ControllerRequest) -> Any:
        """The answer of the controller, once there is one: clients wait for a decision where
        brokers ask again."""

        async def ask(timeout_ms: int) -> Any:
            if self._term is not None:
                return await answered(self.control(request))
            if self._controller_at is None:
                return None
            answer = await self._ask(wire_form(request), "clients", timeout_ms)
            return result_of(request, answer)

        return await forwarded(request, ask, CONTROL_MS)

    async def _complete(
        self,
        pending: Pending[Any],
        request: ControllerRequest,
        ask: Callable[[], Coroutine[Any, Any, Any]],
    ) -> None:
        """Completes `pending` with the answer of `ask`, or with a refusal in the form of one.
        Leaders that wait for an answer ask for no other change before."""
        try:
            answer = await ask()
        except KafkaliteError as error:
            refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error))
            answer = Controller.refuse(request, refusal)
        except Exception as error:
            log.exception("%s for the controller", type(request).__name__)
            refusal = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            answer = Controller.refuse(request, refusal)
        pending.complete(answer)

    async def _ask(self, request: Request[Any], lane: str, timeout_ms: int) -> Any:
        """The answer of the controller's broker."""
        seat, at = self._seat, self._controller_at
        if seat is None or at is None:
            raise BrokerUnavailable("no broker is the controller now")
        return await self.peers.channel(seat.node_id, at, lane).ask(request, timeout_ms)

    # -- session and seat

    def _on_session(self, state: Session) -> None:
        if state is Session.EXPIRED:
            self._is_expired = True
        self._look.set()

    def _on_change(self, _: str) -> None:
        self._look.set()

    async def _watch(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._look_around()
            except CoordinationError as error:
                log.warning("the controller's seat: %s", error)
            except ConfigError as error:
                log.error("%s", error)
            except Exception:
                log.exception("the controller's seat")
            else:
                continue
            await asyncio.sleep(RETRY_SECONDS)
            self._look.set()

    async def _look_around(self) -> None:
        """Registers again after the session has expired, and finds or takes the seat."""
        if self._is_expired:
            log.warning("the session of broker %d has expired", self._broker.node_id)
            self._is_expired, self._taken = False, None
            if self._seat is not None:  # this broker was cut off: that connection may be dead, too
                self.peers.forget(self._seat.node_id)
            await self._end_term()
            self._sit(None, None)
        if not self._is_leaving and not await self._is_registered():
            await self._register()
        seat = await holder(self._coordination)
        if self._term is not None:
            if seat is not None and seat.epoch == self._term.seat.epoch:
                return
            await self._end_term()
        if seat is None or self._is_dead(seat):
            self._taken = await take(self._coordination, self._broker.node_id, seat)
            seat = self._taken or await holder(self._coordination)
        if seat is None:
            raise CoordinationError("the seat was free twice, and others took it in between")
        if self._taken is not None and seat.epoch == self._taken.epoch:
            self._sit(self._taken, None)
            await self._begin_term(self._taken)
        else:
            self._sit(seat, await self._address_of(seat.node_id))

    def _is_dead(self, seat: Seat) -> bool:
        """Whether nobody controls from that seat: the process is gone, or the seat is of an earlier
        session of this broker, which is the one that is registered."""
        if seat.node_id == self._broker.node_id:
            return self._taken is None or self._taken.epoch != seat.epoch
        return self._dead is not None and seat.epoch == self._dead.epoch

    def _sit(self, seat: Seat | None, at: Address | None) -> None:
        if (seat, at) != (self._seat, self._controller_at):
            self._seat, self._controller_at = seat, at
            self._moved.set()

    async def _begin_term(self, seat: Seat) -> None:
        broker = self._broker
        term = Term(
            seat, self._coordination, broker.new_controller, broker.monotonic_ms,
            self.peers, self._home.inter_broker,
        )  # fmt: skip
        try:
            await term.begin()
        except BaseException:
            await term.end()
            raise
        self._term = term
        self._moved.set()

    async def _end_term(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            await term.end()

    async def _address_of(self, node_id: int) -> Address:
        path = images.broker_path(node_id)
        (found,) = await self._coordination.get_many([path])
        if found is None:
            raise CoordinationError(f"{path}: the controller is not registered")
        broker: BrokerImage = images.registration(ClusterRecord(path, found.value))[1]
        node = broker.endpoints.get(self._home.inter_broker)
        if node is None:
            raise CoordinationError(f"{path} has no listener {self._home.inter_broker}")
        return node.host, node.port

    async def _is_registered(self) -> bool:
        """Whether this start of the broker is. The controller may have taken it for dead."""
        if self._epoch == NO_EPOCH:
            return False
        path = images.broker_path(self._broker.node_id)
        (found,) = await self._coordination.get_many([path])
        if found is not None:
            known = images.registration(ClusterRecord(path, found.value))[1]
            if known.epoch == self._epoch:
                return True
        log.warning("the registration of this broker in epoch %d was ended", self._epoch)
        self._epoch = NO_EPOCH
        return False

    async def _register(self) -> None:
        """Registers this start, or its next session. After an unclean stop the logs count as whole
        once a controller has settled an earlier registration of this start: no in-sync set has
        this broker since but by what it has fetched."""
        home, node_id = self._home, self._broker.node_id
        stopped_cleanly = self.is_start_settled

        def record_of(epoch: int) -> ClusterRecord:
            return images.broker_record(
                node_id, home.endpoints, home.rack, epoch=epoch, stopped_cleanly=stopped_cleanly
            )

        record = await register(self._coordination, node_id, record_of, REGISTER_SECONDS)
        self._epoch = images.registration(record)[1].epoch
        log.info("broker %d is registered, in epoch %d", node_id, self._epoch)

    # -- metadata

    async def _follow(self) -> None:
        pause = 0.0
        while True:
            self._moved.clear()
            try:
                answer = await self._asked_for_metadata()
                if answer is not None and await self._take(answer):
                    pause = 0.0
                    continue
            except KafkaliteError as error:
                log.warning("metadata: %s", error)
                self._suspect(error)
                self._look.set()
            except Exception:
                log.exception("metadata")
            if not self._moved.is_set():
                await asyncio.sleep(pause)
            pause = RETRY_SECONDS  # a broken connection is made anew at once, once

    async def _asked_for_metadata(self) -> FollowMetadataResponse | None:
        """What the controller answers; None if the seat moved meanwhile, or is free."""
        request = self._follower.request(self._broker.node_id, self._epoch, FOLLOW_MS)
        if self._term is not None:
            answer = self._term.follow(request)
            if not isinstance(answer, Pending):
                return answer
            asking = asyncio.ensure_future(answered(answer))
        elif self._controller_at is not None:
            asking = asyncio.ensure_future(self._ask(request, "metadata", FOLLOW_MS + SILENCE_MS))
        else:
            await self._moved.wait()
            return None
        moving = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait({asking, moving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return None
            found: FollowMetadataResponse = asking.result()
            return found
        finally:
            asking.cancel()
            moving.cancel()

    def _suspect(self, error: KafkaliteError) -> None:
        """The controller did not answer. If its process is gone, its seat is free."""
        seat, at = self._seat, self._controller_at
        if seat is None or at is None or not isinstance(error, BrokerUnavailable):
            return
        if refused(error) and self.peers.has_met(seat.node_id, at):
            self._dead = seat

    async def _take(self, answer: FollowMetadataResponse) -> bool:
        """Puts what the controller answers in force; False if it says that it is none. An image in
        which this start is not settled is of no use: in it the broker may still lead partitions
        whose last records its logs have lost."""
        if answer.error_code:
            self._look.set()
            return False
        self._dead = None
        before = self._follower.image.brokers
        try:
            if self._follower.take(answer):
                image = self._follower.image
                for node_id in before.keys() - image.brokers.keys():
                    self.peers.forget(node_id)
                self._is_settled |= image.settled_epochs.get(self._broker.node_id) == self._epoch
                if self._is_settled:
                    await self._broker.put_in_force(image)
                    self._look_at_own_registration()
        except BaseException:
            self._follower.offset = NO_OFFSET  # the next answer is all of it, and comes at once
            raise
        return True

    def _look_at_own_registration(self) -> None:
        image, node_id = self._follower.image, self._broker.node_id
        own = image.brokers.get(node_id)
        if own is None or own.epoch != self._epoch:
            return
        if not self._joined.done():  # the controller has heard of this start: its image is no older
            self._broker.partitions.remove_strays()
            self._joined.set_result(None)

    # -- tasks

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
