"""`/metrics` and `/health` over HTTP.                                                        [IO]

    GET /metrics   200 Prometheus' text; 503 with the reason while there is no broker to ask
    GET /health    200 when ready, else 503: {"status", "reasons", "partitions", …}

The server runs on a loop of its own in a thread that the composition root gives it. So it answers
also while the broker reads its logs at the start, or hangs.

Owns   statuses and content types.
Never  takes a thread or a socket for itself; never lets more than CONNECTIONS_MAX clients in.
Fails  never: every failure is an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import orjson
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kafkalite.monitoring.exposition import PAGE_TYPE
from kafkalite.monitoring.monitor import Monitor, Unready
from kafkalite.serde.registry_connection import IDLE_SECONDS, RegistryConnection

log: Final = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 16_384
DRAIN_SECONDS: Final = 1
READING: Final = frozenset({"GET", "HEAD"})

Page = Callable[[], Awaitable[Response]]


class MonitorApp:
    """The ASGI application."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._pages: dict[str, Page] = {
            "/metrics": self._metrics,
            "/health": partial(health_page, monitor),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        assert scope["type"] == "http", scope["type"]
        request = Request(scope, receive)
        response = await self._answer(request)
        if request.method == "HEAD":
            response.body = b""  # the headers stay
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        page = self._pages.get(request.scope["path"])
        if page is None:
            known = " and ".join(self._pages)
            return Response(f"there are {known}\n", 404, media_type="text/plain")
        if request.method not in READING:
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        try:
            return await page()
        except Unready as error:
            return Response(f"{error}\n", 503, media_type="text/plain")
        except Exception:
            log.exception("%s", request.scope["path"])
            return Response("a fault of the broker's; its log says which\n", 500)

    async def _metrics(self) -> Response:
        return Response(await self._monitor.metrics(), media_type=PAGE_TYPE)


async def health_page(monitor: Monitor) -> Response:
    """The answer to `GET /health`."""
    health = await monitor.health()
    told = {
        "status": health.state.value,
        "reasons": health.reasons,
        "partitions": health.partitions,
        "offline_partitions": health.offline_partitions,
    }
    status = 200 if health.is_ready else 503
    return Response(orjson.dumps(told), status, media_type="application/json")


class MonitorServer(uvicorn.Server):
    """uvicorn on a socket that is bound already; `run([socket])` returns after `stop()`."""

    def __init__(self, monitor: Monitor) -> None:
        config = uvicorn.Config(
            MonitorApp(monitor),
            loop="asyncio",
            http=RegistryConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        super().__init__(config)

    def stop(self) -> None:
        """Answers pending requests, and ends `run`. For another thread to call."""
        self.should_exit = True
