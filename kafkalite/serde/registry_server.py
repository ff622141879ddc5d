"""The schema registry as a server: Confluent's REST API on the topic `_schemas` of any Kafka. [IO]

    with closing(RegistryServer("127.0.0.1:8081")) as server:
        server.start("127.0.0.1:9092")
        SchemaRegistryClient({"url": server.url})

    a thread ── event loop ── uvicorn ── registry_http ── schema log ── clients ── the brokers

The server has a thread of its own. A broker in the same process is reached over its socket like any
other broker, and does not wait while schemas are checked. Any number of servers, and of programs
that write to the topic themselves, may run side by side: the log decides (`registry_state`).

The server accepts requests as soon as its address is bound. It opens the schema log in the
background, and again if following the log has failed. Requests wait for the log for a short time.

Owns   the address, the thread, the log.
Never  blocks the loop that started it: `bind` is quick; call `start` and `close` in a thread.
Fails  with ConfigError if the address is not available, and on import if the extra `registry` is
       not installed. Later failures become answers and lines in the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from importlib import metadata
from random import Random
from typing import TYPE_CHECKING, Final

from kafkalite.core.backoff import Backoff
from kafkalite.core.config.listeners import Address, parse_address
from kafkalite.errors import BrokerUnavailable, ConfigError, KafkaliteError
from kafkalite.serde.registry_log import SchemaLog

try:
    import uvicorn

    from kafkalite.serde.registry_connection import IDLE_SECONDS, RegistryConnection
    from kafkalite.serde.registry_http import RegistryApp
    from kafkalite.serde.registry_metrics import RegistryMetrics
except ModuleNotFoundError as error:
    raise ConfigError(
        f"the schema registry's server needs {error.name}: pip install 'kafkalite[registry]'"
    ) from error

if TYPE_CHECKING:
    from kafkalite.monitoring.monitor import Monitor

log = logging.getLogger(__name__)

BACKLOG: Final = 128
HEAD_BYTES_MAX: Final = 65_536
DRAIN_SECONDS: Final = 5
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 20.0
CLOSE_SECONDS: Final = 10.0


class RegistryServer:
    """A registry at `listen`, HOST:PORT. Port 0 chooses a free port."""

    def __init__(self, listen: str) -> None:
        self._wanted = parse_address(listen)
        self._address: Address | None = None
        self._socket: socket.socket | None = None
        self._http: _Http | None = None
        self._thread: threading.Thread | None = None
        self._is_up = threading.Event()
        self._failure: BaseException | None = None

    @property
    def address(self) -> Address:
        """The address of the server, once it is bound."""
        assert self._address is not None, "not bound yet"
        return self._address

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://{self.address}"

    def bind(self) -> None:
        """Takes the address. ConfigError when it cannot be had."""
        host, port = self._wanted.host or "0.0.0.0", self._wanted.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol is named so that asyncio sets TCP_NODELAY: 3 ms for an answer, not 45.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            bound.close()
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "the address is in use" if in_use else str(error)
            raise ConfigError(
                f"the schema registry cannot listen on {self._wanted}: {why}"
            ) from error
        self._socket, self._address = bound, Address(*bound.getsockname()[:2])

    def start(self, bootstrap_servers: str, *, beside: Monitor | None = None) -> None:
        """Serves the schemas of the Kafka at `bootstrap_servers` from now on.

        The metrics and the health of the broker `beside` are shown, too. BrokerUnavailable when
        the server does not come up.
        """
        if self._socket is None:
            self.bind()
        work = (LogKeeper(bootstrap_servers), beside)
        self._thread = threading.Thread(
            target=self._run, args=work, name="kafkalite-registry", daemon=True
        )
        self._thread.start()
        if not self._is_up.wait(START_SECONDS) or self._failure is not None:
            self.close()
            raise BrokerUnavailable(f"the schema registry did not start: {self._failure}")

    def close(self) -> None:
        """Answers pending requests, closes connections and thread."""
        if self._http is not None:
            self._http.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        if self._socket is not None:
            self._socket.close()

    def _run(self, keeper: LogKeeper, beside: Monitor | None) -> None:
        try:
            asyncio.run(self._serve(keeper, beside))
        except BaseException as error:
            self._failure = error
            log.exception("the schema registry ended")
        finally:
            self._is_up.set()

    async def _serve(self, keeper: LogKeeper, beside: Monitor | None) -> None:
        assert self._socket is not None
        metrics = RegistryMetrics(keeper.gauges)
        app = RegistryApp(keeper.opened, metrics, version=_version(), beside=beside)
        config = uvicorn.Config(
            app,
            http=RegistryConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        opening = asyncio.create_task(keeper.open_sooner_or_later())
        self._http = _Http(config, self._is_up)
        try:
            await self._http.serve(sockets=[self._socket])
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await keeper.close()


def _version() -> str:
    """This program's version; from a source tree that is not installed, none."""
    try:
        return metadata.version("kafkalite")
    except metadata.PackageNotFoundError:
        return "not installed"


class _Http(uvicorn.Server):
    """uvicorn, which says when it takes requests."""

    def __init__(self, config: uvicorn.Config, is_up: threading.Event) -> None:
        super().__init__(config)
        self._is_up = is_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._is_up.set()


class LogKeeper:
    """The schema log. It is opened on first use, and again after a failure."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._log: SchemaLog | None = None
        self._opening = asyncio.Lock()

    async def opened(self) -> SchemaLog:
        """The log, open and followed. An error of the opening passes through."""
        if self._log is not None and self._log.failure is None:
            return self._log
        async with self._opening:
            if self._log is not None and self._log.failure is None:
                return self._log
            await self._close_failed()
            opened = SchemaLog(self._servers)
            try:
                await opened.open()
            except BaseException:
                await _close(opened)
                raise
            self._log = opened
            return opened

    async def open_sooner_or_later(self) -> None:
        """Opens the log as soon as it can be."""
        backoff = Backoff(Random())
        while True:
            try:
                await self.opened()
            except KafkaliteError as error:
                log.warning("the schema registry waits for its log at %s: %s", self._servers, error)
                await asyncio.sleep(backoff.failed() / 1000)
            else:
                return

    def gauges(self) -> dict[str, float]:
        """The gauges."""
        if self._log is None:
            return {"is_open": 0}
        registry = self._log.registry
        return {
            "is_open": float(self._log.failure is None),
            "subjects": registry.subject_count,
            "schemas": registry.schema_count,
        }

    async def close(self) -> None:
        """Closes the log."""
        if self._log is not None:
            await _close(self._log)

    async def _close_failed(self) -> None:
        if self._log is not None:
            failed, self._log = self._log, None
            log.warning("the schema registry opens its log again: %s", failed.failure)
            await _close(failed)


async def _close(opened: SchemaLog) -> None:
    """Closes a log, whatever comes of it."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await opened.close()
    except (KafkaliteError, TimeoutError) as error:
        log.warning("closing the schema registry's connections: %s", error)
