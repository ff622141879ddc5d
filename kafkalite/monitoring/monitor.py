"""A broker's health and metrics, for other threads.                                        [IO]

    starting ──serves──> ready <──> failing ──> stopping
       503                200         503          503

A broker is failing while none of its partitions can be written, or while its loop gives no answer
in LOOP_SECONDS_MAX. Single partitions that cannot be opened are reported, and the broker stays
ready: it serves the others.

Owns   the state, and the way from another thread to the broker's loop and back.
Never  holds the loop: long work runs there in slices (`core.broker.survey`).
Fails  with Unready, which says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafkalite.errors import BrokerUnavailable
from kafkalite.monitoring.exposition import BrokerPage

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker
    from kafkalite.core.broker.survey import Survey

T = TypeVar("T")
Gauges = Callable[[], Mapping[str, float]]

LOOP_SECONDS_MAX: Final = 5.0  # for a word
SURVEY_SECONDS_MAX: Final = 30.0  # for a look at all topics and groups


class State(Enum):
    """How far a broker's life is; beyond `STARTING` there is a broker to ask."""

    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"
    STOPPING = "stopping"


class Unready(BrokerUnavailable):
    """The broker cannot be asked now."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a broker is; `reasons` is empty if it is ready."""

    state: State
    reasons: tuple[str, ...] = ()
    partitions: int = 0
    offline_partitions: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether clients are served."""
        return self.state is State.READY


@dataclass(slots=True)
class Monitor:
    """Answers for the broker that runs, or is to run, on `loop`."""

    loop: asyncio.AbstractEventLoop
    _state: State = State.STARTING
    _broker: Broker | None = None
    _gauges: Gauges = field(default=dict)

    def ready(self, broker: Broker, gauges: Gauges) -> None:
        """Clients can connect."""
        self._broker, self._gauges, self._state = broker, gauges, State.READY

    def stopping(self) -> None:
        """Clients are sent away."""
        self._state = State.STOPPING

    async def health(self) -> Health:
        """How the broker is."""
        if self._state is not State.READY:
            return Health(self._state, (f"the broker is {self._state.value}",))
        try:
            return await self._ask(self._look(), LOOP_SECONDS_MAX)
        except Unready as error:
            return Health(State.FAILING, (str(error),))

    async def metrics(self) -> bytes:
        """The page of metrics. Unready while there is no broker to ask."""
        broker = self._broker
        if broker is None or self._state is not State.READY:
            raise Unready(f"the broker is {self._state.value}")
        gauges, survey = await self._ask(self._count(broker), SURVEY_SECONDS_MAX)
        return BrokerPage(broker.metrics, gauges, survey).text()

    # -- on the broker's loop

    async def _look(self) -> Health:
        assert self._broker is not None
        held, offline = self._broker.partitions, len(self._broker.partitions.offline)
        logs = (partition.log for topic in held.by_topic() for partition in topic)
        if len(held) + offline and all(log.failure is not None for log in logs):
            why = f"none of {len(held) + offline} partitions can be written"
            return Health(State.FAILING, (why,), len(held), offline)
        return Health(State.READY, (), len(held), offline)

    async def _count(self, broker: Broker) -> tuple[Mapping[str, float], Survey]:
        return self._gauges(), await broker.survey()

    # -- from one loop to the other

    async def _ask(self, question: Coroutine[Any, Any, T], seconds_max: float) -> T:
        """The answer of the broker's loop. Unready if there is none in time."""
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self.loop)
        except RuntimeError:  # the loop is closed
            question.close()
            raise Unready("the broker has stopped") from None
        try:
            async with asyncio.timeout(seconds_max):
                answer: Awaitable[T] = asyncio.wrap_future(asked)
                return await answer
        except TimeoutError:
            words = f"the broker's loop gave no answer in {seconds_max:g} s"
            raise Unready(words) from None
