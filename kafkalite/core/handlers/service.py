"""The broker as its server asks it: each request goes to the handler of its API.            [D]

    Server ──request──> BrokerService ──message──> handler ──> Broker

Never  answers itself, but for ApiVersions in a version that is not known yet (KIP-511).
Fails  with UnanswerableError for an API or a version that is not served, WireError for a request
       that does not read: only hanging up is left.
Source apache/kafka `KafkaApis`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.handlers import ROUTES
from kafkalite.core.handlers.api_versions import unsupported_version
from kafkalite.core.handlers.routes import Route
from kafkalite.core.handlers.slices import Answering, in_slices
from kafkalite.core.handlers.usual import USUAL
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import RequestReceived
from kafkalite.core.types import PeerIdentity, RequestContext
from kafkalite.errors import TooManyEntries, UnanswerableError

if TYPE_CHECKING:
    from asyncio import Future

    from kafkalite.core.broker.broker import Broker


ENTRIES_MAX: Final = 50_000  # 10,000 partitions, each of another topic, are 20,000


class BrokerService:
    """The service behind a `Server`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.metrics = broker.metrics
        # Whoever waited for what the requests answered since have done gets its answer.
        self.settle = broker.waiting.settle

    def answer(self, request: RequestReceived, peer: PeerIdentity) -> Any:
        """The response to one request; `Pending` if it must wait, None if it wants none."""
        self._broker.waiting.hold()
        key, version, _, client_id = request.header
        usual = USUAL.get(key)
        if usual is not None:
            answer = usual(self._broker, request, peer.listener)
            if answer is not None:
                return answer
        route = ROUTES.get(key)
        if route is None:
            raise UnanswerableError(f"{key.name} v{version} is not supported")
        first, last = route.versions
        if not first <= version <= last:
            if key is ApiKey.API_VERSIONS:
                return codec.encode(unsupported_version(), 0)
            raise UnanswerableError(f"{key.name} v{version} is not within v{first} to v{last}")
        context = RequestContext(
            version, client_id, f"/{peer.host}", None, peer.listener, peer.principal
        )
        try:
            message: Any = codec.decode(route.request, request.body, version, route.at_once)
        except TooManyEntries:
            slices = self._answer_aside(route, request, context)
            is_produce = key is ApiKey.PRODUCE
            return in_slices(self._broker, key, context, slices, keeps_peer=is_produce)
        return route.handler(self._broker, message, context)

    def _answer_aside(
        self, route: Route, request: RequestReceived, context: RequestContext
    ) -> Answering:
        """The same for a request with many entries: a thread reads it, and where the API has parts
        they are answered one by one."""
        broker, version, body = self._broker, context.api_version, request.body
        reading: Future[Any] = broker.compute(
            lambda: codec.decode(route.request, body, version, ENTRIES_MAX)
        )
        # The peer may leave before the error is asked for below; then nobody needs it.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        yield reading
        message = reading.result()
        for parts in route.parts:
            if parts.fits(message):
                return (yield from parts.answer(message, partial(_handle, route, broker, context)))
        return route.handler(broker, message, context)


def _handle(route: Route, broker: Broker, context: RequestContext, part: Any) -> Any:
    return route.handler(broker, part, context)
