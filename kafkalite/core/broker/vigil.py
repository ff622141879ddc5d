"""The controller's watch over brokers: it notices at once that a process is gone.           [IO]

    a connection to each broker ── breaks ──> connects again ──┬─ it answers: nothing has happened
                                                               ├─ refused: the process is gone
                                                               └─ silent: the session will tell

A session in the coordination ends some seconds after its broker. A killed process is noticed
earlier: its machine closes its connections and refuses new ones. This is a hint, not a proof, and
it may be wrong without harm. A broker that lives loses its registration, and registers again under
another epoch. Leaders may move early, because leader epochs and the versioned in-sync sets keep a
leader that was replaced from committing anything.

Only a broker to which this process has had a connection counts as gone. So a broker whose address
cannot be reached from here is not declared gone over and over.

Owns   a connection to each registered broker, except the controller's own.
Never  decides: `gone` does what there is to do, and the image tells that it was done.
Fails  by trying again: a silent broker, or one that `gone` could not remove.
Source apache/kafka `BrokerHeartbeatManager` for what it replaces; KIP-631 (fencing).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final, NamedTuple

from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.peers.channel import Address, Peers, refused
from kafkalite.errors import BrokerUnavailable, KafkaliteError

log: Final = logging.getLogger(__name__)

LANE: Final = "life"
CONNECT_MS: Final = 5_000
RETRY_SECONDS: Final = 0.05  # after an attempt that tells nothing


class Watched(NamedTuple):
    """A start of a broker, and where it is."""

    node_id: int
    epoch: int
    address: Address


Gone = Callable[[Watched], Coroutine[None, None, None]]


class Vigil:
    """The watch of the controller on broker `node_id`; other brokers are reached by their listener
    of that name. `gone` ends the registration of a broker whose process is gone."""

    def __init__(self, node_id: int, peers: Peers, listener: str, gone: Gone) -> None:
        self._node_id = node_id
        self._peers = peers
        self._listener = listener
        self._gone = gone
        self._watching: dict[Watched, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Future[None]] = set()  # what `gone` does now

    def look(self, image: ClusterImage) -> None:
        """The image is another: watches over the brokers that are registered now."""
        wanted = set()
        for node_id, broker in image.brokers.items():
            at = broker.endpoints.get(self._listener)
            if node_id != self._node_id and at is not None:
                wanted.add(Watched(node_id, broker.epoch, (at.host, at.port)))
        for watched in self._watching.keys() - wanted:
            self._watching.pop(watched).cancel()
        for watched in sorted(wanted - self._watching.keys()):
            self._watching[watched] = asyncio.create_task(self._watch(watched))

    async def close(self) -> None:
        """Watches no more; what `gone` has begun is done."""
        tasks = list(self._watching.values())
        self._watching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    async def _watch(self, watched: Watched) -> None:
        node_id, address = watched.node_id, watched.address
        was_met = False
        while True:
            channel = self._peers.channel(node_id, address, LANE)
            try:
                await channel.hold(CONNECT_MS)
                continue
            except BrokerUnavailable as error:
                was_met = was_met or self._peers.has_met(node_id, address)
                if refused(error) and was_met:
                    await self._declare_gone(watched)
            except KafkaliteError as error:
                log.warning("broker %d: %s", node_id, error)
            except Exception:  # a fault of ours: the watch goes on
                log.exception("the watch over broker %d", node_id)
            await asyncio.sleep(RETRY_SECONDS)

    async def _declare_gone(self, watched: Watched) -> None:
        node_id, (host, port) = watched.node_id, watched.address
        log.warning("broker %d is gone: nobody listens at %s:%d", node_id, host, port)
        self._peers.forget(node_id)  # its next start counts as gone only after it was reached
        ending = asyncio.ensure_future(self._end(watched))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)  # a write is not to be cancelled

    async def _end(self, watched: Watched) -> None:
        """Its failure is told here: the watch may have been cancelled by then."""
        try:
            await self._gone(watched)
        except KafkaliteError as error:
            log.warning("the registration of broker %d: %s", watched.node_id, error)
