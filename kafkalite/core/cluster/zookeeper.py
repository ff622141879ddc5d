"""The cluster's shared state in ZooKeeper: the `Coordination` port over kazoo.              [IO]

    ZooKeeperCoordination("zk1:2181,zk2:2181,zk3:2181/kafka", in_thread=asyncio.to_thread)

kazoo talks to ZooKeeper in a thread of its own. All that it has to say (answers, watches, states
of the session) comes through one inbox into the event loop, in kazoo's order, so that nothing here
runs in another thread and no answer is lost while a client closes.

    caller ──> unsent ──> kazoo's queue ──> socket        at most IN_FLIGHT_MAX unanswered
    caller <── loop   <── inbox         <── kazoo's thread

Reads that lose their connection are sent again until their time is over. After a write whose
outcome is unknown the next read begins with `sync`, and so does the first read of a session: in an
ensemble its server may not have applied yet what the leader has already taken.

A watch of kazoo's fires once. It is set again first and the watcher called then, so the watcher's
reads miss nothing. After each connection all are set again and all watchers called.

Owns   a session, and its thread until `close`. The only module that imports kazoo.
Never  waits without a bound: for a connection, an answer, or the end of the thread.
Fails  as the port says; ConfigError for an address that is none.
Source ZooKeeper programmer's guide; kazoo `client`, `protocol.connection`, `handlers.threading`.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.retry import KazooRetry

from kafkalite.core.cluster.coordination import (
    Create,
    Delete,
    Entry,
    Operation,
    Session,
    SessionListener,
    Set,
    Stop,
    Watcher,
    check_operations,
    check_path,
)
from kafkalite.core.cluster.zookeeper_address import parse_address
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    NoSuchNode,
    OutcomeUnknown,
    VersionMismatch,
)

log: Final = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = (
    1_048_000  # ZooKeeper's jute.maxbuffer is 1,048,575; larger ones end a connection
)
READS_MAX: Final = 1_000  # sent together
IN_FLIGHT_MAX: Final = 128  # kazoo wakes its thread by a byte for each; its pipe holds some 270
CONNECT_SECONDS_MAX: Final = 2.0  # to one server, before the next is tried
CLOSE_SECONDS: Final = 2.0  # for ZooKeeper's answer to the end of a session
RETRY_SECONDS: Final = 0.1  # before a lost read is sent again
RESTART_SECONDS: Final = 1.0
OWN_NODE: Final = "zookeeper"  # the child of the root that is ZooKeeper's own

InThread = Callable[[Callable[[], None]], Awaitable[None]]
Send = Callable[[], Any]  # hands a request to kazoo and returns its AsyncResult

LOST: Final = (  # without an answer
    errors.ConnectionLoss,
    errors.SessionExpiredError,
    errors.SessionMovedError,
    errors.OperationTimeoutError,
    errors.RequestTimeoutError,
)
NOT_CULPABLE: Final = (errors.RolledBackError, errors.RuntimeInconsistency)  # others in a multi


class _Inbox:
    """Calls from kazoo's thread, which the loop makes in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_scheduled = False

    def put(self, call: Callable[[], object]) -> None:
        """From any thread. After the end of the loop nobody listens any more."""
        self._calls.append(call)
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        self._is_scheduled = False  # first: a call that comes now is scheduled again
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                log.exception("a callback of ZooKeeper")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """What kazoo's client runs on: one thread for the socket; all callbacks go to the loop."""

    def __init__(self, inbox: _Inbox) -> None:
        super().__init__()
        self.completion_queue = inbox  # where answers are put
        self._inbox = inbox
        self._connection: socket.socket | None = None
        self.is_connected = False  # the server has answered the new connection
        self._patience = CONNECT_SECONDS_MAX  # with a server that has not; longer each time

    @property
    def running(self) -> bool:
        """Answers always go through the inbox."""
        return True

    def start(self) -> None:
        """There are no worker threads."""

    def stop(self) -> None:
        """There are no worker threads."""

    def dispatch_callback(self, callback: Any) -> None:
        """A watch."""
        self._inbox.put(partial(callback.func, *callback.args))

    def select(
        self,
        readers: Sequence[socket.socket],
        writers: Sequence[socket.socket],
        _: object,
        timeout: float | None = None,
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        """kazoo would open an epoll for each request, twice: half of its time. And it would wait
        for the first answer as long as a session lasts; a server that was asked while it started
        may never give it."""
        if self.is_connected:
            self._patience = CONNECT_SECONDS_MAX
        elif timeout is not None:
            timeout = min(timeout, self._patience)
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        found = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
        if not found and not self.is_connected:
            self._patience *= 2
        ready = [[each for each in group if each.fileno() in found] for group in (readers, writers)]
        return ready[0], ready[1], []

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        """kazoo would wait for one server as long as a session lasts."""
        kwargs["timeout"] = min(kwargs.get("timeout") or CONNECT_SECONDS_MAX, CONNECT_SECONDS_MAX)
        connection: socket.socket = super().create_connection(*args, **kwargs)
        self._connection = connection
        return connection

    def cut(self) -> None:
        """Ends the connection under kazoo's thread."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


class _Watch:
    """The watchers of one path, and whether a watch at ZooKeeper is being set for them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.watchers: list[Watcher] = []
        self.fired: Callable[[Any], None] = lambda event: None  # one object: kazoo keeps a set
        self.is_arming = False
        self.fired_again = False  # while it was being set


class ZooKeeperCoordination:
    """The `Coordination` port over a session with ZooKeeper, on the running event loop."""

    def __init__(
        self,
        address: str,
        *,
        in_thread: InThread,
        session_timeout_ms: int = 6_000,
        connection_timeout_ms: int | None = None,
    ) -> None:
        """`in_thread` runs the end of the session, which waits for kazoo's thread. Requests wait
        `connection_timeout_ms` for a connection, else as long as a session lasts without one."""
        servers, self._chroot = parse_address(address)
        self.address = address
        self._in_thread = in_thread
        self._loop = asyncio.get_running_loop()
        self._request_seconds = session_timeout_ms / 1000
        self._wait_seconds = (connection_timeout_ms or session_timeout_ms) / 1000
        self._session = Session.SUSPENDED
        self._is_connected = asyncio.Event()
        self._is_closing = False
        self._is_prepared = not self._chroot
        self._listeners: list[SessionListener] = []
        self._watches: dict[str, _Watch] = {}
        self._unsent: deque[tuple[Send, asyncio.Future[Any]]] = deque()
        self._in_flight = 0
        self._unknown = 1  # sessions that began, and writes whose outcome is unknown
        self._synced = 0  # of these, how many a `sync` has followed
        self._tasks: set[asyncio.Task[None]] = set()
        self._inbox = _Inbox(self._loop)
        self._handler = _Handler(self._inbox)
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_jitter=0.4, max_delay=0.5)
        self._client = KazooClient(
            [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers],
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            connection_retry=retry,
            logger=log.getChild("kazoo"),
        )
        self._client.add_listener(self._state_changed)
        self._client.start_async()

    # -- the port

    @property
    def session(self) -> Session:
        """The state of the session."""
        return self._session

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """The id and the password of the session; None without a connection."""
        client_id: tuple[int, bytes] | None = self._client.client_id
        return client_id

    def listen(self, listener: SessionListener) -> Stop:
        """Calls `listener` with each new state of the session."""
        self._listeners.append(listener)
        return partial(_remove, self._listeners, listener)

    async def get(self, path: str) -> Entry:
        """The value at `path`. NoSuchNode if there is none."""
        check_path(path)
        (entry,) = await self.get_many([path])
        if entry is None:
            raise NoSuchNode(f"{path} does not exist")
        return entry

    async def children(self, path: str) -> list[str]:
        """The names directly below `path`, sorted. NoSuchNode if the path does not exist."""
        check_path(path)
        (names,) = await self.children_many([path])
        if names is None:
            raise NoSuchNode(f"{path} does not exist")
        return names

    async def get_many(self, paths: Sequence[str]) -> list[Entry | None]:
        """The values at `paths` in their order, None where there is none."""
        found = await self._read([partial(self._client.get_async, self._full(p)) for p in paths])
        return [None if each is None else _entry(*each) for each in found]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names below each of `paths`, None where there is none."""
        asked = [partial(self._client.get_children_async, self._full(p)) for p in paths]
        found = await self._read(asked)
        for path, names in zip(paths, found, strict=True):
            if path == "/" and not self._chroot:
                names.remove(OWN_NODE)
        return [None if names is None else sorted(names) for names in found]

    async def transact(self, operations: Sequence[Operation]) -> None:
        """Runs all operations or none; durable when it returns."""
        if not operations:
            return
        self._check(operations)
        await self._connected(self._loop.time() + self._wait_seconds)
        sent: list[bool] = []
        answer = self._submit(partial(self._commit, operations, sent))
        first = operations[0].path
        try:
            async with asyncio.timeout(self._request_seconds):
                results = await answer
        except (TimeoutError, *LOST) as error:
            why = str(error) or type(error).__name__
            if not sent or isinstance(error, errors.ConnectionClosedError):
                raise self._unavailable(f"the write of {first} was not sent: {why}") from None
            self._unknown += 1
            raise OutcomeUnknown(
                f"the answer to the write of {first} was lost ({why}): it may have happened"
            ) from None
        except asyncio.CancelledError:
            self._unknown += bool(sent)
            raise
        except errors.ZookeeperError as error:
            raise CoordinationError(
                f"{first}: ZooKeeper answered {type(error).__name__}"
            ) from error
        for operation, result in zip(operations, results, strict=False):
            if isinstance(result, Exception) and not isinstance(result, NOT_CULPABLE):
                raise _refusal(operation, result)

    def watch(self, path: str, watcher: Watcher) -> Stop:
        """Calls `watcher` after each change of the value at `path`, of whether it exists, and of
        the set of its children."""
        check_path(path)
        watch = self._watches.get(path)
        if watch is None:
            watch = self._watches[path] = _Watch(path)
            watch.fired = partial(self._fired, watch)
        watch.watchers.append(watcher)
        if len(watch.watchers) == 1 and self._session is Session.CONNECTED:
            self._arm(watch, is_heard=False)

        return partial(self._unwatch, watch, watcher)

    async def close(self) -> None:
        """Ends the session at once, if there is a connection: its ephemeral paths go."""
        if self._is_closing:
            return
        self._is_closing = True
        self._is_connected.set()  # who waits for a connection waits no longer
        for task in self._tasks:
            task.cancel()
        seconds = CLOSE_SECONDS if self._client.connected else 0
        cut = self._loop.call_later(seconds, self._handler.cut)
        try:
            await self._in_thread(self._stop_client)
        finally:
            cut.cancel()

    def _stop_client(self) -> None:
        self._client.stop()
        self._client.close()

    # -- requests

    def _full(self, path: str) -> str:
        """The path in ZooKeeper."""
        return (self._chroot + path).rstrip("/") or "/"

    def _unavailable(self, why: str) -> CoordinationUnavailable:
        return CoordinationUnavailable(f"ZooKeeper at {self.address}: {why}")

    async def _connected(self, deadline: float) -> None:
        """Waits for a connection."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._is_connected.wait()
        except TimeoutError:
            raise self._unavailable(f"no connection for {self._wait_seconds:g} s") from None
        if self._is_closing:
            raise self._unavailable("the session was closed")

    def _submit(self, send: Send) -> asyncio.Future[Any]:
        """Sends a request after those before it, as soon as few enough are unanswered."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._unsent.append((send, answer))
        self._send()
        return answer

    def _send(self) -> None:
        while self._unsent and self._in_flight < IN_FLIGHT_MAX:
            send, answer = self._unsent.popleft()
            if not answer.done():  # nobody waits any more for one that is
                self._in_flight += 1
                send().rawlink(partial(self._answered, answer))

    def _answered(self, answer: asyncio.Future[Any], result: Any) -> None:
        self._in_flight -= 1
        if not answer.done():
            if result.exception is None:
                answer.set_result(result.value)
            else:
                answer.set_exception(result.exception)
        self._send()

    async def _read(self, requests: Sequence[Send]) -> list[Any]:
        """The answers to all requests, None for a path that does not exist."""
        found: list[Any] = []
        for first in range(0, len(requests), READS_MAX):
            found += await self._read_some(requests[first : first + READS_MAX])
        return found

    async def _read_some(self, requests: Sequence[Send]) -> list[Any]:
        deadline = self._loop.time() + self._wait_seconds
        while True:
            await self._connected(deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._read_once(requests)
            except TimeoutError:
                raise self._unavailable(f"no answer for {self._wait_seconds:g} s") from None
            except LOST as error:
                log.debug("a read is sent again: %r", error)
            except errors.ZookeeperError as error:
                raise CoordinationError(f"ZooKeeper answered {type(error).__name__}") from error
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_once(self, requests: Sequence[Send]) -> list[Any]:
        unknown = self._unknown
        root = self._full("/")
        syncs = [partial(self._client.sync_async, root)] if self._synced < unknown else []
        sends: list[Send] = [*syncs, *requests]
        answers = [self._submit(send) for send in sends]
        found = await asyncio.gather(*answers, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, errors.NoNodeError):
                raise each
        self._synced = max(self._synced, unknown)
        values = found[len(syncs) :]
        return [None if isinstance(each, errors.NoNodeError) else each for each in values]

    def _check(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        extra = len(operations) * len(self._chroot.encode())
        values = (each.value for each in operations if isinstance(each, Create | Set))
        paths = sum(len(each.path.encode()) + 72 for each in operations)
        if (size := sum(map(len, values)) + paths + extra) > REQUEST_BYTES_MAX:
            raise CoordinationError(
                f"{operations[0].path}: a request of {size} bytes, at most {REQUEST_BYTES_MAX} fit"
            )

    def _commit(self, operations: Sequence[Operation], sent: list[bool]) -> Any:
        sent.append(True)
        multi = self._client.transaction()
        for operation in operations:
            path = self._full(operation.path)
            if isinstance(operation, Create):
                multi.create(path, operation.value, ephemeral=operation.is_ephemeral)
            elif isinstance(operation, Set):
                multi.set_data(path, operation.value, operation.version)
            elif isinstance(operation, Delete):
                multi.delete(path, operation.version)
            else:
                multi.check(path, operation.version)
        return multi.commit_async()

    # -- the session

    def _state_changed(self, state: str) -> None:
        """From kazoo's thread."""
        self._handler.is_connected = state == KazooState.CONNECTED
        is_dead = self._client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        self._inbox.put(partial(self._take_state, state, is_dead))

    def _take_state(self, state: str, is_dead: bool) -> None:
        if state == KazooState.CONNECTED:
            if self._is_prepared:
                self._become(Session.CONNECTED)
            else:
                self._begin(self._prepare())
        elif state == KazooState.SUSPENDED:
            self._become(Session.SUSPENDED)
        elif not self._is_closing:
            self._unknown += 1
            self._become(Session.EXPIRED)
            if is_dead:
                self._begin(self._restart())

    def _become(self, session: Session) -> None:
        if session is self._session:
            return
        self._session = session
        if session is Session.CONNECTED:
            self._is_connected.set()
            for watch in list(self._watches.values()):
                self._arm(watch, is_heard=True)
        elif not self._is_closing:
            self._is_connected.clear()
        log.info("the session with ZooKeeper at %s is %s", self.address, session.name)
        for listener in tuple(self._listeners):
            try:
                listener(session)
            except Exception:
                log.exception("a listener to the session")

    def _begin(self, program: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(program)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepare(self) -> None:
        """Makes the chroot, before anybody may know of the connection."""
        names = self._chroot.split("/")[1:]
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            try:
                await self._submit(partial(self._client.create_async, path, b""))
            except errors.NodeExistsError:
                pass
            except LOST:
                return  # with the next connection
            except errors.ZookeeperError as error:
                log.error("%s cannot be made in ZooKeeper: %s", path, type(error).__name__)
                return
        self._is_prepared = True
        if self._client.connected:
            self._become(Session.CONNECTED)

    async def _restart(self) -> None:
        """kazoo's thread has failed: a new session, though the old one has not ended yet."""
        log.error("the client of ZooKeeper at %s failed and starts again", self.address)
        await asyncio.sleep(RESTART_SECONDS)
        await self._in_thread(self._client.start_async)

    # -- watches

    def _arm(self, watch: _Watch, *, is_heard: bool) -> None:
        """Sets a watch at ZooKeeper for the next change; calls the watchers then if `is_heard`."""
        if watch.is_arming:
            watch.fired_again = True
            return
        watch.is_arming = True
        path = self._full(watch.path)
        asked = (self._client.exists_async, self._client.get_children_async)
        answers = [self._submit(partial(ask, path, watch.fired)) for ask in asked]
        armed = asyncio.gather(*answers, return_exceptions=True)
        armed.add_done_callback(partial(self._armed, watch, is_heard))

    def _armed(self, watch: _Watch, is_heard: bool, armed: asyncio.Future[list[Any]]) -> None:
        watch.is_arming = False
        again, watch.fired_again = watch.fired_again, False
        if self._is_closing:
            return
        for each in armed.result():
            if isinstance(each, Exception) and not isinstance(each, errors.NoNodeError):
                self._loop.call_later(RETRY_SECONDS, self._arm_later, watch)
                return
        if is_heard:
            for watcher in tuple(watch.watchers):
                try:
                    watcher(watch.path)
                except Exception:
                    log.exception("a watcher of %s", watch.path)
        if again:
            self._arm(watch, is_heard=True)

    def _arm_later(self, watch: _Watch) -> None:
        """After an error, unless a new connection has done it."""
        if watch.watchers and self._session is Session.CONNECTED and not self._is_closing:
            self._arm(watch, is_heard=True)

    def _fired(self, watch: _Watch, event: Any) -> None:
        """A change; also the end of a connection, after which the next one sets all watches."""
        if event.type != EventType.NONE and watch.watchers and not self._is_closing:
            self._arm(watch, is_heard=True)

    def _unwatch(self, watch: _Watch, watcher: Watcher) -> None:
        _remove(watch.watchers, watcher)
        if not watch.watchers and self._watches.get(watch.path) is watch:
            del self._watches[watch.path]


def _remove(things: list[Any], thing: object) -> None:
    if thing in things:
        things.remove(thing)


def _entry(value: bytes | None, stat: Any) -> Entry:
    return Entry(value or b"", stat.version, stat.ephemeralOwner != 0)


def _refusal(operation: Operation, error: Exception) -> CoordinationError:
    """The port's error for an operation that ZooKeeper refused."""
    path = operation.path
    match error:
        case errors.NoNodeError() if isinstance(operation, Create):
            return NoSuchNode(f"the parent of {path} does not exist, so it cannot be made")
        case errors.NoNodeError():
            return NoSuchNode(f"{path} does not exist")
        case errors.NodeExistsError():
            return NodeExists(f"{path} exists")
        case errors.NotEmptyError():
            return NodeExists(f"{path} has children")
        case errors.BadVersionError() if not isinstance(operation, Create):
            return VersionMismatch(f"{path} is in another version, expected {operation.version}")
        case errors.NoChildrenForEphemeralsError():
            return CoordinationError(f"the parent of {path} is ephemeral and can have no children")
    return CoordinationError(f"{path}: ZooKeeper answered {type(error).__name__}")
