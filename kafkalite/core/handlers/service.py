"""The broker as its server asks it: each request goes to the handler of its API.            [D]

    Server ──request──> BrokerService ──message──> handler ──> Broker

Never  answers itself, but for ApiVersions in a version that is not known yet (KIP-511).
Fails  with UnanswerableError for an API or a version that is not served, WireError for a request
       that does not read: only hanging up is left.
Source apache/kafka `KafkaApis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.core.handlers import ROUTES
from kafkalite.core.handlers.api_versions import unsupported_version
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.connection import RequestReceived
from kafkalite.core.types import RequestContext
from kafkalite.errors import UnanswerableError

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker


class BrokerService:
    """What a `Server` serves."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.metrics = broker.metrics

    def answer(self, request: RequestReceived, client_host: str, listener: str) -> Any:
        """The response to one request; `Pending` if it must wait, None if it wants none."""
        self._broker.waiting.hold()
        key, version, _, client_id = request.header
        route = ROUTES.get(key)
        if route is None:
            raise UnanswerableError(f"{key.name} v{version} is not supported")
        first, last = route.versions
        if not first <= version <= last:
            if key is ApiKey.API_VERSIONS:
                return codec.encode(unsupported_version(), 0)
            raise UnanswerableError(f"{key.name} v{version} is not within v{first} to v{last}")
        message: Any = codec.decode(route.request, request.body, version)
        context = RequestContext(version, client_id, f"/{client_host}", listener=listener)
        return route.handler(self._broker, message, context)

    def settle(self) -> None:
        """Whoever waited for what the requests answered since have done gets its answer."""
        self._broker.waiting.settle()
