"""The routes: the function that answers each API, and the versions that it speaks.         [P]

    @handles(ApiKey.HEARTBEAT, versions=(0, 4))
    def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> ...:

A handler returns the response; a `Pending` when it must wait; None when the request wants no
answer (Produce with acks=0). It runs to its end without yielding, so it sees one state. A request
with more than `at_once` entries is read in a thread; if its API has `parts`, the handler then
answers it part by part.

Owns   `ROUTES`, filled as the modules of this package are imported; ApiVersions is built from it.
Never  lets a handler claim versions whose messages are not defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafkalite.core.handlers.parts import Parts
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.types import RequestContext

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

    Handler = Callable[[Broker, Any, RequestContext], Any]
    H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Route:
    """One API that the broker answers. `versions` are the first and the last, advertised so."""

    key: ApiKey
    versions: tuple[int, int]
    request: type
    handler: Handler
    at_once: int
    parts: tuple[Parts, ...]  # the first that fits a request is how it is split


ENTRIES_AT_ONCE: Final = 1_000  # of a request's arrays; reading takes 1 to 2 us for each
ROUTES: Final[dict[int, Route]] = {}


def handles(
    key: ApiKey, versions: tuple[int, int], *parts: Parts, at_once: int = ENTRIES_AT_ONCE
) -> Callable[[H], H]:
    """Makes the decorated function the answer to an API."""

    def register(handler: H) -> H:
        first, last = API[key].versions
        assert first <= versions[0] <= versions[1] <= last, f"{key.name}: {versions}"
        assert key not in ROUTES, f"{key.name} has two handlers"
        ROUTES[key] = Route(key, versions, API[key].request, handler, at_once, parts)
        return handler

    return register
