"""One connection to the registry: uvicorn's, with a deadline for whatever it is doing.     [IO]

uvicorn waits for a head for as long as the client likes, and for a client that does not read. So a
thousand clients that send half a head would keep all others out. Here

    waits for a head   ends after HEAD_SECONDS, and at once if it is the longest and room is needed
    is at work         ends after WORK_SECONDS; body and log have shorter times of their own
    was answered       ends after IDLE_SECONDS, unless something comes
    is closing         ends after FLUSH_SECONDS, read or not

Owns   the deadline, and how many connections there are.
Never  keeps more than CONNECTIONS_MAX: the longest idle connection makes room for a new one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 1_024
HEAD_SECONDS: Final = 10.0
WORK_SECONDS: Final = 120.0
IDLE_SECONDS: Final = 75
FLUSH_SECONDS: Final = 10.0


class RegistryConnection(H11Protocol):
    """A client's connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._is_idle = False  # answered, and not one byte of another head has come

    @property
    def is_at_work(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a client in, in the place of another one if need be."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._watch(HEAD_SECONDS)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the client."""
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request; the first ones of a head begin its time."""
        was_at_work, was_idle = self.is_at_work, self._is_idle
        super().data_received(data)
        self._is_idle = False
        if self.is_at_work:
            if not was_at_work:
                self._watch(WORK_SECONDS)
        elif self.transport.is_closing():
            self._watch(FLUSH_SECONDS)
        elif was_idle:
            self._watch(HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """Waits for the next request, if that is not here already."""
        super().on_response_complete()
        self._waits_since = self.loop.time()
        if self.is_at_work:
            self._watch(WORK_SECONDS)
        elif self.transport.is_closing():
            self._watch(FLUSH_SECONDS)
        else:
            self._is_idle = True
            self._forget_deadline()  # uvicorn's own begins

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, once its answers are sent."""
        super().timeout_keep_alive_handler()
        self._watch(FLUSH_SECONDS)

    def _watch(self, seconds: float) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.is_at_work or self.transport.is_closing():
            self.transport.abort()
        else:
            self.timeout_keep_alive_handler()

    def _make_room(self) -> None:
        """Ends the connection that has waited longest, if there are too many."""
        if len(self.connections) <= CONNECTIONS_MAX:
            return
        others = (each for each in self.connections if isinstance(each, RegistryConnection))
        held = [each for each in others if not each.transport.is_closing()]
        if len(held) > CONNECTIONS_MAX:
            waiting = (each for each in held if not each.is_at_work)
            min(waiting, key=lambda each: each._waits_since).transport.abort()
