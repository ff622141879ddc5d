"""`Streams`: a topology with the means to run it.                                        [IO]

Without an address, `run` starts a broker of its own, prints its address on stderr, and waits for
topics that the topology reads and nobody has created yet: nobody could have before the start.

Owns   nothing while it is built; a run owns a worker, and perhaps a broker, until it ends. Signal
       handlers and the collector's settings are changed by `run` in the main thread alone.
Fails  with TopologyError for a setting that is wrong or not supported yet, before anything runs;
       for a topic that does not exist on somebody else's broker.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from kafkalite.core.config.listeners import Address, parse_address
from kafkalite.core.generics import K_co, V_co
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.serde.serde import Serde
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.collecting import collecting_seldom
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.live import Asking, AsyncLiveStore, LiveStore
from kafkalite.streams.local.queries import Queries
from kafkalite.streams.local.settings import DEFAULTS
from kafkalite.streams.local.topics import (
    Wanted,
    absence,
    create_command,
    remedy,
    spell_sources,
)
from kafkalite.streams.local.worker import Progress, Worker, WorkerConfig
from kafkalite.streams.plan import OnError, Plan
from kafkalite.streams.rewrites import without_cache
from kafkalite.streams.running import Background, Running, refuse_running_loop
from kafkalite.streams.sizes import Size, size_in_bytes
from kafkalite.streams.workers import Orders, Supervisor, own_command, seat_of

if TYPE_CHECKING:
    from kafkalite.streams.web.server import WorkerServer

DATA_DIR = Path("kafkalite-data")  # an embedded broker's log, if no other place is given
STATE_MEMORY: Final = "256MiB"  # of a worker with a state directory
GUARANTEES: Final = ("at_least_once", "exactly_once")


class Settings(TypedDict, total=False):
    """How an application runs. A setting of `None` counts as not given."""

    commit_interval: Duration | None
    data_dir: str | Path | None  # of a broker of its own
    workers: int  # processes of this machine, each the same program; for `run`
    processing_guarantee: Literal["at_least_once", "exactly_once"] | None
    state_dir: str | Path | None  # of this machine's state; without it state is in memory
    idle: Duration | None  # how long an input gives nothing until it holds no window open
    num_standby_replicas: int | None  # other workers that follow the state of each task
    state_memory: Size | None  # how much of the state in `state_dir` may also be objects
    http: str | None  # HOST:PORT where each worker answers; the second one on the next port
    cache: Any  # 0: every update of an aggregate goes on, none waits for the commit


class Streams(StreamsBuilder[K_co, V_co]):
    """An application: build a topology with it, then run, describe or test it.

    `Streams("flight-delays", key=string())`: the application id names the consumer group and the
    internal topics; `key=` and `value=` are the default serdes. Records further than `max_future`
    (a day) ahead of the wall clock count as errors: one of them would close every window before
    it. The settings are defaults for those of `run`.
    """

    def __init__(
        self,
        application_id: str,
        *,
        key: Serde[K_co] | None = None,
        value: Serde[V_co] | None = None,
        on_error: OnError = "fail",
        dead_letter_topic: str | None = None,
        max_future: Duration | None = None,
        bootstrap_servers: str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(
            application_id,
            key=key,
            value=value,
            on_error=on_error,
            dead_letter_topic=dead_letter_topic,
            max_future=max_future,
        )
        check_settings(application_id, settings)
        self.bootstrap_servers = bootstrap_servers
        self.data_dir = settings.get("data_dir") or DATA_DIR
        interval = settings.get("commit_interval")
        self.commit_interval = interval
        self.processing_guarantee = settings.get("processing_guarantee")
        self.state_dir = settings.get("state_dir")
        self.state_memory = settings.get("state_memory") or STATE_MEMORY
        self.idle = settings.get("idle")
        self.num_standby_replicas = settings.get("num_standby_replicas") or 0
        self.http = settings.get("http")
        self.cache = settings.get("cache")
        self.workers = settings.get("workers", 1)
        self._background: Background | None = None
        self._worker_here: Worker | None = None  # that runs in this process
        self._asking = Asking(application_id, self._find_queries)

    def plan(self) -> Plan:
        """The topology as it is now: immutable, so later operators do not change it."""
        return super().plan() if self.cache is None else without_cache(super().plan())

    def run(
        self,
        bootstrap_servers: str | None = None,
        *,
        until_caught_up: bool = False,
        **settings: Unpack[Settings],
    ) -> Progress:
        """Runs the topology until SIGINT or SIGTERM; returns what it did.

        Without `bootstrap_servers`, a broker over `data_dir` runs until this call returns. Topics
        that the topology reads are then waited for, unless `until_caught_up`.
        A second signal does not wait for the last commit: it raises KeyboardInterrupt.
        """
        refuse_running_loop(self.application_id)
        check_settings(self.application_id, settings)
        seat = seat_of(self.application_id)
        count = settings.get("workers") or self.workers
        if seat is None and count > 1:
            return self._supervise(count, bootstrap_servers, settings.get("data_dir"))
        with (
            self._worker(bootstrap_servers, settings, until_caught_up=until_caught_up) as worker,
            collecting_seldom() if _is_main_thread() else nullcontext(),
        ):
            try:
                progress = asyncio.run(_run(worker, until_caught_up, is_seated=seat is not None))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
        if seat is not None:
            seat.tell(progress)
            raise SystemExit(0)  # the rest of the program is the supervisor's
        return progress

    def _supervise(
        self, count: int, bootstrap_servers: str | None, data_dir: str | Path | None
    ) -> Progress:
        """Runs `count` workers as processes; a broker of its own is theirs together."""
        command = own_command(self.application_id)
        if bootstrap_servers is None:
            bootstrap_servers = self.bootstrap_servers
        with self.broker(bootstrap_servers, data_dir) as address:
            is_own = bootstrap_servers is None
            if is_own:
                self._say_own_broker(address, data_dir or self.data_dir)

            async def supervise() -> Progress:
                name = self.application_id
                return await Supervisor(name, command, count, address, is_own=is_own).run()

            return asyncio.run(supervise())

    def _say_own_broker(self, address: str, data_dir: str | Path) -> None:
        _say(
            f"{self.application_id}: a broker of its own runs at {address} (data in "
            f"{data_dir}). To create a topic there: {create_command(['TOPIC'], address)}"
        )

    async def run_async(
        self,
        bootstrap_servers: str | None = None,
        *,
        until_caught_up: bool = False,
        **settings: Unpack[Settings],
    ) -> Progress:
        """Runs the topology in the current event loop. Signal handlers stay as they are.

        Cancelled, it commits, leaves its group and ends; cancelled again, it ends at once.
        """
        running = self.running(bootstrap_servers, until_caught_up=until_caught_up, **settings)
        async with running:
            return await running.wait()

    def running(
        self,
        bootstrap_servers: str | None = None,
        *,
        until_caught_up: bool = False,
        **settings: Unpack[Settings],
    ) -> Running:
        """Runs the topology during a block: `async with app.running() as running:`."""
        check_settings(self.application_id, settings)
        if (settings.get("workers") or self.workers) > 1:
            raise TopologyError(
                f"{self.application_id}: workers= is for `run`, which starts processes; beside "
                "other work there is one worker"
            )

        def prepare() -> AbstractContextManager[Worker]:
            return self._worker(bootstrap_servers, settings, until_caught_up=until_caught_up)

        return Running(self.application_id, prepare, until_caught_up=until_caught_up)

    def start(self, bootstrap_servers: str | None = None, **settings: Unpack[Settings]) -> Progress:
        """Runs the topology in a thread until `stop()`. Returns its progress, a live object."""
        if self._background is not None:
            raise TopologyError(f"{self.application_id}: it is started already")
        background = Background(self.application_id, self.running(bootstrap_servers, **settings))
        progress = background.start()
        self._background = background
        return progress

    def stop(self) -> Progress:
        """Stops the run of `start` after a last commit. Raises the error if the run has failed."""
        if self._background is None:
            raise TopologyError(f"{self.application_id}: it is not started")
        background, self._background = self._background, None
        return background.stop()

    def store(self, name: str) -> LiveStore[Any, Any]:
        """A store, readable while the application runs in this process: `get`, `range`, `all`,
        `prefix`, `fetch`. Each call waits for its answer; any thread may ask."""
        return LiveStore(name, self._asking)

    def async_store(self, name: str) -> AsyncLiveStore[Any, Any]:
        """The same store with coroutine methods."""
        return AsyncLiveStore(name, self._asking)

    def _find_queries(self) -> tuple[asyncio.AbstractEventLoop, Queries] | None:
        worker = self._worker_here
        return None if worker is None or worker.loop is None else (worker.loop, worker.queries)

    @contextmanager
    def _worker(
        self, bootstrap_servers: str | None, settings: Settings, *, until_caught_up: bool
    ) -> Iterator[Worker]:
        """A worker, and all that it stands on. Nothing has run when a setting is refused."""
        check_settings(self.application_id, settings)
        interval = settings.get("commit_interval")
        interval = self.commit_interval if interval is None else interval
        interval_ms = None if interval is None else not_negative(interval, "commit_interval")
        idle = settings.get("idle")
        idle = self.idle if idle is None else idle
        state_dir = settings.get("state_dir") or self.state_dir
        memory = settings.get("state_memory") or self.state_memory
        standbys = settings.get("num_standby_replicas")
        if bootstrap_servers is None:
            bootstrap_servers = self.bootstrap_servers
        data_dir = settings.get("data_dir") or self.data_dir
        seat = seat_of(self.application_id)
        with self.broker(seat.address if seat else bootstrap_servers, data_dir) as address:
            report = None
            if seat.is_own_broker if seat else bootstrap_servers is None:
                report = _on_missing_topics(
                    self.application_id, address, data_dir, is_waiting=not until_caught_up
                )
            if seat is None and bootstrap_servers is None:
                self._say_own_broker(address, data_dir)
            http = settings.get("http") or self.http
            server = None if http is None else serving_at(http, 1 if seat is None else seat.number)
            config = WorkerConfig(
                address=None if server is None else server.address,
                processing_guarantee=settings.get("processing_guarantee")
                or self.processing_guarantee,
                commit_interval_ms=interval_ms,
                idle_ms=DEFAULTS.idle_ms if idle is None else not_negative(idle, "idle"),
                state_dir=None if state_dir is None else Path(state_dir),
                state_memory_bytes=size_in_bytes(memory, "state_memory"),
                num_standby_replicas=self.num_standby_replicas if standbys is None else standbys,
                on_missing_topics=report,
            )
            plan = self.plan()
            if settings.get("cache") is not None:
                plan = without_cache(plan)
            registry = LogRegistry(address)
            self._worker_here = worker = Worker(plan, address, registry, config)
            try:
                if server is not None:
                    server.start(plan, self._asking, worker.overview, worker.queries.peers.all)
                yield worker
            finally:
                self._worker_here = None
                if server is not None:
                    server.close()
                registry.close()

    @contextmanager
    def broker(
        self, bootstrap_servers: str | None = None, data_dir: str | Path | None = None
    ) -> Iterator[str]:
        """The address of the brokers that a run would use; one of its own runs meanwhile."""
        servers = self.bootstrap_servers if bootstrap_servers is None else bootstrap_servers
        with _broker(servers, data_dir or self.data_dir) as address:
            yield address


def check_settings(application_id: str, settings: Settings) -> None:
    """TopologyError for a setting that cannot be had, TypeError for one that there is not."""
    for name in settings.keys() - Settings.__annotations__.keys():
        raise TypeError(f"{application_id}: unexpected keyword argument {name!r}")
    if (interval := settings.get("commit_interval")) is not None:
        not_negative(interval, f"{application_id}: commit_interval")
    if (idle := settings.get("idle")) is not None:
        not_negative(idle, f"{application_id}: idle")
    if (memory := settings.get("state_memory")) is not None:
        size_in_bytes(memory, f"{application_id}: state_memory")
    workers = settings.get("workers", 1)
    if type(workers) is not int or workers < 1:
        raise TopologyError(f"{application_id}: workers: expected 1 or more, got {workers!r}")
    standbys = settings.get("num_standby_replicas")
    if standbys is not None and (type(standbys) is not int or standbys < 0):
        raise TopologyError(
            f"{application_id}: num_standby_replicas: expected 0 or more, got {standbys!r}"
        )
    guarantee = settings.get("processing_guarantee")
    if guarantee is not None and guarantee not in GUARANTEES:
        raise TopologyError(
            f"{application_id}: processing_guarantee is one of {GUARANTEES}, got {guarantee!r}"
        )
    lacking = {
        "cache=": (
            settings.get("cache") not in (None, 0),
            "updates of tables wait for the commit; with 0 none does",
        ),
    }
    for setting, (is_asked, instead) in lacking.items():
        if is_asked:
            raise TopologyError(f"{application_id}: {setting} is not supported yet; {instead}")


def serving_at(http: str, number: int) -> WorkerServer:
    """The HTTP server of a worker, bound: the first one's at HOST:PORT, others' behind it."""
    from kafkalite.streams.web.server import WorkerServer

    wanted = parse_address(http)
    port = wanted.port + number - 1 if wanted.port else 0
    server = WorkerServer(Address(wanted.host, port))
    _say(f"worker {number} answers at http://{server.address}")
    return server


@contextmanager
def _broker(bootstrap_servers: str | None, data_dir: str | Path) -> Iterator[str]:
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    with EmbeddedBroker(data_dir) as broker:
        yield broker.bootstrap_servers


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _on_missing_topics(
    application_id: str, address: str, data_dir: str | Path, *, is_waiting: bool
) -> Callable[[Sequence[Wanted]], None]:
    """What becomes of topics that do not exist on a broker of our own.

    The user can create them only while the broker runs, so a run without an end waits for them. A
    run until caught up has nothing to do without them.
    """

    def report(missing: Sequence[Wanted]) -> None:
        if not missing:
            _say(f"{application_id}: every topic exists, running")
        elif is_waiting:
            what = f"{spell_sources(missing)}, which the topology reads"
            _say(f"{application_id}: waiting for {what}. {remedy(missing, address)}")
        else:
            raise TopologyError(
                f"{absence(missing, f'in {data_dir}')}, and a run until caught up does not wait "
                "for topics: run without it, or against a broker that has them"
            )

    return report


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


async def _run(worker: Worker, until_caught_up: bool, *, is_seated: bool = False) -> Progress:
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None, "a coroutine runs in a task"

    orders = Orders(partial(worker.stop, comes_back=True)) if is_seated else None

    def stop(number: signal.Signals) -> None:  # the last commit may wait for a broker that is gone
        if worker.is_stopping:
            running.cancel()
            return
        is_for_good = number is signal.SIGINT or (orders is not None and orders.is_for_good)
        worker.stop(comes_back=not is_for_good)

    if _is_main_thread():  # signals come to no other
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
    return await worker.run(until_caught_up=until_caught_up)
