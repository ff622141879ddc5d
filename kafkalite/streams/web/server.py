"""The HTTP server of a worker, in a thread of its own.                                    [IO]

It answers also while the worker waits for its group, restores, or hangs.

Owns   the address, from `start` to `close`.
Fails  with ConfigError where the address cannot be had; on import where the extra `registry`, which
       brings the web server, is not installed.
"""

from __future__ import annotations

import asyncio
import errno
import platform
from collections.abc import Callable
from typing import Any, Final

from kafkalite.clients.lifetime import Lifetime
from kafkalite.clients.sync.loop_thread import LoopThread
from kafkalite.core.config.listeners import Address
from kafkalite.errors import ConfigError
from kafkalite.streams.live import Asking
from kafkalite.streams.local.overview import Overview
from kafkalite.streams.plan import Plan

try:
    import uvicorn

    from kafkalite.serde.registry_connection import IDLE_SECONDS
    from kafkalite.streams.web.application import LookUp, WorkerApp
    from kafkalite.streams.web.short_way import Rows, connection_with
except ModuleNotFoundError as error:
    raise ConfigError(f"--http needs {error.name}: pip install 'kafkalite[registry]'") from error

HEAD_BYTES_MAX: Final = 16_384
DRAIN_SECONDS: Final = 1
EVERYWHERE: Final = ("", "0.0.0.0", "::")


class WorkerServer:
    """A server at `wanted`. Port 0 chooses a free port."""

    def __init__(self, wanted: Address) -> None:
        self._wanted = wanted
        self._rows: Rows | None = None
        self._thread = LoopThread("kafkalite-http")
        try:
            self._thread.run(self._bind)
        except BaseException:
            self._thread.close()
            raise

    @property
    def address(self) -> str:
        """Where others reach it: the machine's name stands for all of its addresses."""
        host = self._wanted.host
        return str(Address(platform.node() if host in EVERYWHERE else host, self._port))

    def start(
        self, plan: Plan, asking: Asking, overview: Callable[[], Overview | None], peers: LookUp
    ) -> None:
        """Answers from now on, as WorkerApp does."""
        app = WorkerApp(plan, asking, overview, peers, self.address)
        rows = self._rows = Rows(asking, self.address)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=connection_with(rows),
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
        serving = _Serving(uvicorn.Server(config), [self._socket], app)

        async def serve() -> None:
            await serving.start()
            self._thread.keep(serving)  # until the thread closes

        self._thread.run(serve)

    def close(self) -> None:
        """Answers what was asked, and lets go of the address."""
        self._thread.close()
        self._socket.close()
        if self._rows is not None:
            self._rows.close()

    async def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        host = self._wanted.host or None
        try:
            bound = await loop.create_server(
                asyncio.Protocol, host, self._wanted.port, start_serving=False
            )
        except (OSError, OverflowError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "the address is in use" if in_use else str(error)
            raise ConfigError(f"--http: cannot listen on {self._wanted}: {why}") from error
        self._socket = bound.sockets[0].dup()  # which stays when this server closes
        self._port: int = self._socket.getsockname()[1]
        bound.close()


class _Serving(Lifetime):
    """uvicorn in a task of the thread's loop."""

    def __init__(self, server: uvicorn.Server, sockets: list[Any], app: WorkerApp) -> None:
        self._app = app
        self._server = server
        self._sockets = sockets

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=self._sockets))
        self._watching = asyncio.create_task(self._app.watch())

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.wait([self._watching])
        self._server.should_exit = True
        await self._task
