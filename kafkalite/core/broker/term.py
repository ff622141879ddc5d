"""A term of the controller: what its broker does as long as it holds the seat.             [IO]

    /brokers ──watch──> BrokerRegistered, BrokerGone ──┐
    requests of brokers and of clients ────────────────┼──> queue ──> controller ──> feed
    the clock ──> Tick ────────────────────────────────┘                              │
    FollowMetadata of every broker, this one included <──answered from, or held until─┘

A term begins with one reading of the tree, settles what its predecessor left undone, and ends with
the session, the seat or the broker. All its writes check the controller's epoch.
A vigil ends the registration of a broker whose process is gone, before its session ends.

Owns   the machine, its queue, its feed and its vigil; the requests for metadata that wait, one for
       each broker; the answers that wait until the brokers have the records.
Never  acts after `end`: requests are then refused with NOT_CONTROLLER.
Fails  with CoordinationError from `begin`, where the seat is lost at once or nothing answers.
Source apache/kafka `KafkaController`, `QuorumController`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kafkalite.core.broker.forwarding import is_of_clients
from kafkalite.core.broker.held_answers import HeldAnswers
from kafkalite.core.broker.vigil import Vigil, Watched
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import Controller, ControllerRequest, Tick
from kafkalite.core.cluster.coordination import Coordination, Stop
from kafkalite.core.cluster.feed import Feed
from kafkalite.core.cluster.image import BROKERS_PATH, ClusterImage, ClusterRecord
from kafkalite.core.cluster.queue import ControllerQueue
from kafkalite.core.cluster.registering import end_registration
from kafkalite.core.cluster.registrations import BrokerGone, BrokerRegistered, TakeOver
from kafkalite.core.cluster.seat import Seat
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.peers.channel import Peers
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.peers import FollowMetadataRequest, FollowMetadataResponse
from kafkalite.core.types import NO_OFFSET
from kafkalite.errors import CoordinationError, ErrorCode

log: Final = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 60_000  # of a request for metadata
LOOK_AGAIN_SECONDS: Final = 0.5  # after a failed look at the brokers
TICK_MS: Final = 1_000  # between looks at what is due

MakeController = Callable[[ClusterImage], Controller]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A broker that waits for metadata."""

    request: FollowMetadataRequest
    pending: Pending[FollowMetadataResponse]
    timer: asyncio.TimerHandle


class Term:
    """The term that `seat` names. `make` makes the machine over the image that was read; `peers`
    reaches other brokers by their listener of that name."""

    def __init__(
        self,
        seat: Seat,
        coordination: Coordination,
        make: MakeController,
        monotonic_ms: Callable[[], int],
        peers: Peers,
        listener: str,
    ) -> None:
        self.seat = seat
        self._coordination = coordination
        self._make = make
        self._monotonic_ms = monotonic_ms
        self._feed = Feed(seat.node_id, seat.epoch)
        self._controller: Controller | None = None
        self._queue: ControllerQueue | None = None
        self._vigil = Vigil(seat.node_id, peers, listener, self._end_registration)
        self._waiting: dict[int, _Waiting] = {}  # by broker
        self._answers = HeldAnswers()
        self._is_over = False
        self._brokers_changed = asyncio.Event()
        self._stops: list[Stop] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Reads the tree and takes over. Requests are taken from then on."""
        store = ClusterStore(self._coordination, self.seat.guard)
        image = images.replay(ClusterImage(), await store.load())
        self._controller = self._make(image)
        self._queue = ControllerQueue(self._controller, store, self._apply)
        self._queue.start()
        self._stops.append(self._coordination.watch(BROKERS_PATH, self._on_brokers))
        answer = await answered(self._queue.submit(TakeOver()))
        if isinstance(answer, Exception):
            raise CoordinationError(f"the term {self.seat.epoch} has not begun: {answer}")
        log.info("controller of term %d, %d partitions changed", self.seat.epoch, answer)
        self._brokers_changed.set()
        self._vigil.look(self._controller.image)
        for work in (self._watch_brokers(), self._tick()):
            self._tasks.append(asyncio.create_task(work))

    async def end(self) -> None:
        """Ends the term; brokers that wait are told to look for another controller."""
        for stop in self._stops:
            stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._vigil.close()
        if self._queue is not None:
            await self._queue.close()
        self._is_over = True
        self._answers.release_all()
        for waiting in tuple(self._waiting.values()):
            self._answer(waiting, _not_controller())

    def configure(self, config: BrokerConfig) -> None:
        """The broker has other settings."""
        assert self._controller is not None, "the term has begun"
        self._controller.config = config
        self._controller.due_ms = min(self._controller.due_ms, 1)  # other settings, other states

    def submit(self, request: ControllerRequest) -> Pending[Any]:
        """Hands a request to the controller."""
        assert self._queue is not None, "the term has begun"
        return self._queue.submit(request)

    def submit_for(self, broker_id: int, request: ControllerRequest) -> Pending[Any]:
        """The same for a broker. An answer to a client is held until that broker and the others
        have put the change in force, so that the client finds it wherever it turns to next."""
        if not is_of_clients(request):
            return self.submit(request)
        held: Pending[Any] = Pending()
        self.submit(request).when_done(lambda answer: self._hold(broker_id, answer, held))
        return held

    # -- metadata

    def follow(
        self, request: FollowMetadataRequest
    ) -> FollowMetadataResponse | Pending[FollowMetadataResponse]:
        """What the broker lacks, at once or when there is something. A broker's later request takes
        the place of an earlier one, which gets no records."""
        assert self._controller is not None, "the term has begun"
        self._note_known(request)
        known = self._waiting.get(request.broker_id)
        if known is not None:
            self._answer(known, self._nothing(known.request))
        answer = self._feed.answer(request, self._controller.image)
        if answer is not None:
            return answer
        pending: Pending[FollowMetadataResponse] = Pending()
        wait_s = min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        timer = asyncio.get_running_loop().call_later(wait_s, self._on_timeout, request.broker_id)
        waiting = self._waiting[request.broker_id] = _Waiting(request, pending, timer)
        pending.when_abandoned(lambda: self._forget(waiting))
        return pending

    def _hold(self, broker_id: int, answer: Any, pending: Pending[Any]) -> None:
        assert self._controller is not None, "the term has begun"
        if self._is_over:
            pending.complete(answer)
            return
        brokers = self._controller.image.brokers
        release = partial(pending.complete, answer)
        self._answers.hold(self._feed.end_offset, broker_id, brokers, release)

    def _note_known(self, request: FollowMetadataRequest) -> None:
        """A broker asks for what follows the records that it has put in force."""
        assert self._controller is not None, "the term has begun"
        known = request.offset if request.controller_epoch == self.seat.epoch else NO_OFFSET
        brokers = self._controller.image.brokers
        self._answers.note(request.broker_id, known, self._feed.end_offset, brokers)

    async def _apply(self, records: Sequence[ClusterRecord]) -> None:
        """Durable records are in force, and on their way to the brokers."""
        assert self._controller is not None, "the term has begun"
        before = self._controller.image.brokers
        self._controller.replay(records)
        self._feed.append(records)
        if self._controller.image.brokers != before:
            self._answers.keep(self._controller.image.brokers)
            if self._tasks:
                self._vigil.look(self._controller.image)
        for waiting in tuple(self._waiting.values()):
            answer = self._feed.answer(waiting.request, self._controller.image)
            if answer is not None:
                self._answer(waiting, answer)

    def _on_timeout(self, broker_id: int) -> None:
        waiting = self._waiting[broker_id]
        self._answer(waiting, self._nothing(waiting.request))

    def _nothing(self, request: FollowMetadataRequest) -> FollowMetadataResponse:
        return FollowMetadataResponse(
            controller_id=self.seat.node_id,
            controller_epoch=self.seat.epoch,
            base_offset=request.offset,
        )

    def _answer(self, waiting: _Waiting, answer: FollowMetadataResponse) -> None:
        self._forget(waiting)
        waiting.pending.complete(answer)

    def _forget(self, waiting: _Waiting) -> None:
        waiting.timer.cancel()
        if self._waiting.get(waiting.request.broker_id) is waiting:
            del self._waiting[waiting.request.broker_id]

    # -- brokers come and go, time passes

    def _on_brokers(self, _: str) -> None:
        self._brokers_changed.set()

    async def _watch_brokers(self) -> None:
        while True:
            await self._brokers_changed.wait()
            self._brokers_changed.clear()
            try:
                await self._look_at_brokers()
                continue
            except CoordinationError as error:
                log.warning("the brokers' registrations: %s", error)
            except Exception:  # a fault of ours: without a look nobody's death would be noticed
                log.exception("the brokers' registrations")
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            self._brokers_changed.set()

    async def _look_at_brokers(self) -> None:
        """Tells the controller which brokers have come, restarted or gone since its image."""
        assert self._controller is not None, "the term has begun"
        (names,) = await self._coordination.children_many([BROKERS_PATH])
        paths = [f"{BROKERS_PATH}/{name}" for name in names or ()]
        entries = await self._coordination.get_many(paths)
        found = {p: e.value for p, e in zip(paths, entries, strict=True) if e is not None}
        known = self._controller.image.brokers
        steps: list[ControllerRequest] = [
            BrokerGone(node_id, broker.epoch)
            for node_id, broker in known.items()
            if images.broker_path(node_id) not in found
        ]
        for path, value in found.items():
            record = ClusterRecord(path, value)
            node_id, broker = images.registration(record)
            if node_id not in known or known[node_id].epoch != broker.epoch:
                steps.append(BrokerRegistered(record))
        for step in steps:
            answer = await answered(self.submit(step))
            if isinstance(answer, Exception):
                raise CoordinationError(f"{type(step).__name__}: {answer}")
            log.info("%s: %d partitions changed", type(step).__name__, answer)

    async def _end_registration(self, gone: Watched) -> None:
        """The watch over the registrations does the rest."""
        await end_registration(self._coordination, self.seat.guard, gone.node_id, gone.epoch)

    async def _tick(self) -> None:
        assert self._controller is not None, "the term has begun"
        while True:
            now_ms = self._monotonic_ms()
            if now_ms >= self._controller.due_ms:
                await answered(self.submit(Tick(now_ms)))
            await asyncio.sleep(TICK_MS / 1000)


def _not_controller() -> FollowMetadataResponse:
    return FollowMetadataResponse(error_code=ErrorCode.NOT_CONTROLLER)


async def answered(pending: Pending[Any]) -> Any:
    """The answer, once it is there. Whoever stops waiting abandons it."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending.when_done(future.set_result)
    try:
        return await future
    except asyncio.CancelledError:
        pending.abandon()
        raise
