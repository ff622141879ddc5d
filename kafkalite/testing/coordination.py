"""A fake ZooKeeper for many brokers in one process, on virtual or on real time.              [IO]

    server = CoordinationServer(world.host("zookeeper").loop, Random(seed))
    one = server.client("broker-1", host.loop)      # a `Coordination`, for programs of that host
    server.cut("broker-1")                          # nothing passes between them until `restore`,
                                                    # and a connection that lost a message is dead
    server.reset("broker-1")                        # the connection breaks, and comes back
    server.expire("broker-1")                       # the session ends behind the client's back
    server.lost_answers = 0.1                       # of the writes: done or not, without an answer
    server.stop(); server.start()                   # sessions outlive it, with a full time-out each

Each message between a client and the server takes a while and keeps its order within a connection.
A client that hears nothing drops its connection and makes another. A session ends when the server
has had no message of it for its time-out: so a host that is paused or killed loses its session, and
a server whose loop is paused answers nobody.

    client ── message, after a delay ──> server's loop ──> tree
    client's loop <── answer or change, after a delay ──┘

Owns   the tree and the sessions; all chance comes from the `Random` that it was given.
Never  writes after a client was told, by a later read, that the write did not happen: a new
       connection of a session closes the one before.
Fails  as the port says.
Source ZooKeeper's sessions, `SessionTrackerImpl` and `ClientCnxn`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from kafkalite.core.cluster.coordination import (
    LEGAL,
    Create,
    Delete,
    Entry,
    Operation,
    Session,
    SessionListener,
    Stop,
    Watcher,
    check_operations,
    check_path,
)
from kafkalite.core.cluster.tree import Changes, Tree, touched
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    NoSuchNode,
    OutcomeUnknown,
)

R = TypeVar("R")

ORDER_SECONDS: Final = 1e-6  # between two messages of one connection
RECONNECT_SECONDS: Final = 0.2
HEARTBEATS: Final = 6  # in a time-out; a client gives up after four without an answer


@dataclass(eq=False, slots=True)
class _Session:
    """A client as the server knows it."""

    number: int
    name: str
    timeout_seconds: float
    deadline: float
    paths: set[str] = field(default_factory=set)  # ephemeral ones
    link: _Link | None = None


@dataclass(eq=False, slots=True)
class _Link:
    """A connection."""

    client: SimulatedCoordination
    is_closed: bool = False  # by the server, which takes no more of its messages
    is_dead: bool = False  # a cut has lost a message, so none that follows arrives, either
    session: _Session | None = None
    last_arrival: float = 0.0  # of a message at the server
    last_answer: float = 0.0  # at the client
    watched: set[str] = field(default_factory=set)


class CoordinationServer:
    """The server, whose work is done in `loop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        *,
        note: Callable[[str], None] = lambda what: None,
        written: Callable[[Changes], None] = lambda changes: None,
    ) -> None:
        """`note` is told what happens to sessions and connections, `written` each change."""
        self.loop = loop
        self.tree = Tree()
        self.delay_seconds = (0.000_2, 0.002)
        self.lost_answers = 0.0
        self._random = random
        self._note = note
        self._written = written
        self._sessions: dict[int, _Session] = {}
        self._numbers = 0
        self._cut: set[str] = set()
        self._is_down = False

    def client(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        session_timeout_ms: int = 6_000,
    ) -> SimulatedCoordination:
        """A client for programs of `loop`, by default of the running one."""
        loop = loop or asyncio.get_running_loop()
        return SimulatedCoordination(self, name, loop, session_timeout_ms / 1000)

    # -- faults

    def cut(self, name: str) -> None:
        """Nothing passes between the server and these clients; nobody sees a reset."""
        self._note(f"coordination: cut {name}")
        self._cut.add(name)

    def restore(self, *names: str) -> None:
        """Ends the cuts of these clients, of all by default."""
        self._note(f"coordination: restore {' '.join(names)}")
        self._cut -= set(names or self._cut)

    def reset(self, name: str) -> None:
        """Breaks the connections of these clients once."""
        for session in self._of(name):
            if session.link is not None:
                self._break(session.link)

    def expire(self, name: str) -> None:
        """Ends the sessions of these clients."""
        for session in self._of(name):
            self._end(session, "expires by force")

    def stop(self) -> None:
        """The server's process is gone: connections break, and none can be made."""
        self._note("coordination: stop")
        self._is_down = True
        for session in self._sessions.values():
            if session.link is not None:
                self._break(session.link)

    def start(self) -> None:
        """The server is back, with its tree and its sessions."""
        self._note("coordination: start")
        self._is_down = False
        for session in self._sessions.values():
            self._touch(session)
            self.loop.call_at(session.deadline, self._look, session)

    def sessions(self) -> dict[str, int]:
        """The number of sessions of each client."""
        names = [session.name for session in self._sessions.values()]
        return {name: names.count(name) for name in names}

    # -- messages

    def delay(self) -> float:
        """How long a message takes."""
        return self._random.uniform(*self.delay_seconds)

    def send(self, link: _Link, act: Callable[[], None]) -> None:
        """A message of a client, whose loop runs: `act` is done when it arrives."""
        when = max(link.client.loop.time() + self.delay(), link.last_arrival + ORDER_SECONDS)
        link.last_arrival = when
        if self._passes(link):
            self.loop.call_at(when, self._arrive, link, act)

    def _passes(self, link: _Link) -> bool:
        """Whether a message passes now. One that does not takes the connection with it: messages of
        one connection get lost from some point on, never between others."""
        link.is_dead = link.is_dead or link.client.name in self._cut
        return not link.is_dead

    def _arrive(self, link: _Link, act: Callable[[], None]) -> None:
        if not self._passes(link):
            return
        if link.is_closed or self._is_down:
            self._answer(link, partial(link.client.lose, link))
            return
        if link.session is not None:
            self._touch(link.session)
        act()

    def _answer(self, link: _Link, act: Callable[[], None]) -> None:
        when = max(self.loop.time() + self.delay(), link.last_answer + ORDER_SECONDS)
        link.last_answer = when
        link.client.loop.call_at(when, self._deliver, link, act)

    def _deliver(self, link: _Link, act: Callable[[], None]) -> None:
        if self._passes(link):
            act()

    def _break(self, link: _Link) -> None:
        link.is_closed = True
        self._answer(link, partial(link.client.lose, link))

    # -- requests, when they have arrived

    def hello(self, link: _Link, number: int | None, timeout_seconds: float) -> None:
        """A connection begins, for a new session or for the one with a number."""
        session = self._sessions.get(number) if number is not None else None
        if number is not None and session is None:
            self._answer(link, partial(link.client.refused, link))
            return
        if session is None:
            self._numbers += 1
            name = link.client.name
            session = _Session(self._numbers, name, timeout_seconds, 0.0)
            self._sessions[session.number] = session
            self._note(f"coordination: session {session.number} of {name}")
        elif session.link is not None:
            session.link.is_closed = True
        session.link, link.session = link, session
        is_new = number is None
        self._touch(session)
        if is_new:
            self.loop.call_at(session.deadline, self._look, session)
        self._answer(link, partial(link.client.welcomed, link, session.number))

    def ping(self, link: _Link) -> None:
        """A client tells that it lives."""
        self._answer(link, partial(link.client.heard, link))

    def read(
        self, link: _Link, answer: asyncio.Future[Any], look: Callable[[Tree], object]
    ) -> None:
        """What `look` finds in the tree."""
        found = look(self.tree)
        self._answer(link, partial(link.client.answered, link, answer, found, None))

    def watch(self, link: _Link, path: str) -> None:
        """The client is told of changes from now on."""
        link.watched.add(path)

    def transact(
        self, link: _Link, answer: asyncio.Future[Any], operations: Sequence[Operation]
    ) -> None:
        """A write, whose answer may be lost."""
        loses = self._random.random() < self.lost_answers
        if loses and self._random.random() < 0.5:
            self._break(link)
            return
        refusal: CoordinationError | None = None
        try:
            self._change(operations, link.session)
        except CoordinationError as error:
            refusal = error
        if loses:
            self._break(link)
        else:
            self._answer(link, partial(link.client.answered, link, answer, None, refusal))

    def bye(self, link: _Link, answer: asyncio.Future[Any]) -> None:
        """A session ends by the will of its client."""
        if link.session is not None:
            self._end(link.session, "is closed")
        self._answer(link, partial(link.client.answered, link, answer, None, None))

    def _change(self, operations: Sequence[Operation], owner: _Session | None) -> None:
        """Changes the tree, and tells those who watch."""
        changes = self.tree.check(operations)
        self.tree.apply(changes)
        self._written(changes)
        for operation in operations:
            if isinstance(operation, Delete | Create):
                for session in self._sessions.values():
                    session.paths.discard(operation.path)
            if isinstance(operation, Create) and operation.is_ephemeral and owner is not None:
                owner.paths.add(operation.path)
        paths = sorted(touched(operations))
        for session in self._sessions.values():
            link = session.link
            for path in paths if link is not None and not link.is_closed else ():
                assert link is not None
                if path in link.watched:
                    self._answer(link, partial(link.client.changed, link, path))

    # -- sessions

    def _of(self, name: str) -> list[_Session]:
        return [each for each in self._sessions.values() if each.name == name]

    def _touch(self, session: _Session) -> None:
        session.deadline = self.loop.time() + session.timeout_seconds

    def _look(self, session: _Session) -> None:
        """Ends a session whose time is over."""
        if session.number not in self._sessions or self._is_down:
            return
        if self.loop.time() < session.deadline:
            self.loop.call_at(session.deadline, self._look, session)
        else:
            self._end(session, "expires")

    def _end(self, session: _Session, how: str) -> None:
        self._note(f"coordination: session {session.number} of {session.name} {how}")
        del self._sessions[session.number]
        if session.paths:
            self._change([Delete(path) for path in sorted(session.paths)], None)
        if session.link is not None:
            self._break(session.link)


class SimulatedCoordination:
    """The `Coordination` port of one host."""

    def __init__(
        self,
        server: CoordinationServer,
        name: str,
        loop: asyncio.AbstractEventLoop,
        timeout_seconds: float,
    ) -> None:
        self.name = name
        self.loop = loop
        self._server = server
        self._timeout_seconds = timeout_seconds
        self._session = Session.SUSPENDED
        self._number: int | None = None  # of the session
        self._link: _Link | None = None
        self._last_heard = loop.time()
        self._is_connected = asyncio.Event()
        self._is_closed = False
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._listeners: list[SessionListener] = []
        self._watchers: dict[str, list[Watcher]] = {}
        loop.call_soon(self._connect)
        self._beating = loop.call_later(timeout_seconds / HEARTBEATS, self._beat)

    # -- the port

    @property
    def session(self) -> Session:
        """The state of the session."""
        return self._session

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
        wanted = tuple(paths)
        return await self._read(lambda tree: tree.get_many(wanted))

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names below each of `paths`, None where there is none."""
        wanted = tuple(paths)
        return await self._read(lambda tree: tree.children_many(wanted))

    async def transact(self, operations: Sequence[Operation]) -> None:
        """Runs all operations or none; durable when it returns."""
        check_operations(operations)
        link = await self._connected(self.loop.time() + self._timeout_seconds)
        answer = self._expect()
        written = tuple(operations)
        self._server.send(link, partial(self._server.transact, link, answer, written))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await answer
        except (TimeoutError, ConnectionError):
            first = written[0].path if written else "nothing"
            raise OutcomeUnknown(f"the answer to the write of {first} was lost") from None
        finally:
            self._pending.pop(answer, None)

    def watch(self, path: str, watcher: Watcher) -> Stop:
        """Calls `watcher` after each change of the value at `path`, of whether it exists, and of
        the set of its children."""
        check_path(path)
        watchers = self._watchers.setdefault(path, [])
        watchers.append(watcher)
        if self._session is Session.CONNECTED and self._link is not None:
            self._server.send(self._link, partial(self._server.watch, self._link, path))
        return partial(_remove, watchers, watcher)

    async def close(self) -> None:
        """Ends the session at once, if there is a connection: its ephemeral paths go."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_connected.set()
        self._beating.cancel()
        if (link := self._link) is not None and self._session is Session.CONNECTED:
            answer = self._expect()
            self._server.send(link, partial(self._server.bye, link, answer))
            try:
                async with asyncio.timeout(self._timeout_seconds / HEARTBEATS):
                    await answer
            except (TimeoutError, ConnectionError):
                pass  # the session ends by itself
        self._drop()

    # -- requests

    def _expect(self) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self.loop.create_future()
        self._pending[answer] = None
        return answer

    def _unavailable(self, why: str) -> CoordinationUnavailable:
        return CoordinationUnavailable(f"coordination of {self.name}: {why}")

    async def _connected(self, deadline: float) -> _Link:
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._is_connected.wait()
            except TimeoutError:
                why = f"no connection for {self._timeout_seconds:g} s"
                raise self._unavailable(why) from None
            if self._is_closed:
                raise self._unavailable("the session was closed")
            if self._link is not None and self._session is Session.CONNECTED:
                return self._link

    async def _read(self, look: Callable[[Tree], R]) -> R:
        """Reads, again after a lost connection, until the time is over."""
        deadline = self.loop.time() + self._timeout_seconds
        while True:
            link = await self._connected(deadline)
            answer = self._expect()
            self._server.send(link, partial(self._server.read, link, answer, look))
            try:
                async with asyncio.timeout_at(deadline):
                    found: R = await answer
                    return found
            except TimeoutError:
                why = f"no answer for {self._timeout_seconds:g} s"
                raise self._unavailable(why) from None
            except ConnectionError:
                await asyncio.sleep(0)
            finally:
                self._pending.pop(answer, None)

    # -- the connection

    def _connect(self) -> None:
        """Begins a connection; another one follows if it is not answered."""
        if self._is_closed:
            return
        self._link = link = _Link(self)
        number, timeout_seconds = self._number, self._timeout_seconds
        self._server.send(link, partial(self._server.hello, link, number, timeout_seconds))
        self.loop.call_later(timeout_seconds / HEARTBEATS, self._give_up, link)

    def _give_up(self, link: _Link) -> None:
        if link is self._link and self._session is not Session.CONNECTED:
            self._connect()

    def _beat(self) -> None:
        """Tells the server that this client lives, and looks whether the server does."""
        self._beating = self.loop.call_later(self._timeout_seconds / HEARTBEATS, self._beat)
        link = self._link
        if link is None or self._session is not Session.CONNECTED:
            return
        if self.loop.time() - self._last_heard > self._timeout_seconds * 4 / HEARTBEATS:
            self.lose(link)
        else:
            self._server.send(link, partial(self._server.ping, link))

    def _drop(self) -> None:
        """The connection is gone, and with it all answers that it owes."""
        self._link = None
        pending, self._pending = self._pending, {}
        for answer in pending:
            if not answer.done():
                answer.set_exception(ConnectionResetError())

    def _become(self, session: Session) -> None:
        if session is self._session or self._is_closed:
            return
        assert session in LEGAL[self._session], f"{self._session} -> {session}"
        self._session = session
        if session is Session.CONNECTED:
            self._is_connected.set()
        else:
            self._is_connected.clear()
        for listener in tuple(self._listeners):
            self._call(listener, session)

    def _call(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            callback(value)
        except Exception as error:
            context = {"message": f"a callback of {self.name}'s coordination", "exception": error}
            self.loop.call_exception_handler(context)

    # -- messages of the server, in this client's loop

    def welcomed(self, link: _Link, number: int) -> None:
        """The connection is there: every watcher is called, as something may have changed."""
        if link is not self._link or self._is_closed:
            return
        self._number, self._last_heard = number, self.loop.time()
        for path in self._watchers:
            self._server.send(link, partial(self._server.watch, link, path))
        self._become(Session.CONNECTED)
        for path in list(self._watchers):
            self.changed(link, path)

    def refused(self, link: _Link) -> None:
        """The session has ended; a new one begins."""
        if link is self._link and not self._is_closed:
            self._number = None
            self._become(Session.EXPIRED)
            self._connect()

    def heard(self, link: _Link) -> None:
        """The server lives."""
        if link is self._link:
            self._last_heard = self.loop.time()

    def answered(
        self,
        link: _Link,
        answer: asyncio.Future[Any],
        found: object,
        refusal: CoordinationError | None,
    ) -> None:
        """A request is done."""
        self.heard(link)
        if link is self._link and not answer.done():
            if refusal is None:
                answer.set_result(found)
            else:
                answer.set_exception(refusal)

    def changed(self, link: _Link, path: str) -> None:
        """Something at a watched path changed."""
        self.heard(link)
        if link is self._link:
            for watcher in tuple(self._watchers.get(path, ())):
                self._call(watcher, path)

    def lose(self, link: _Link) -> None:
        """The connection broke; another one is made after a while."""
        if link is self._link and not self._is_closed:
            self._drop()
            if self._session is Session.CONNECTED:
                self._become(Session.SUSPENDED)
            self.loop.call_later(RECONNECT_SECONDS, self._connect_again)

    def _connect_again(self) -> None:
        if self._link is None:
            self._connect()


def _remove(things: list[Any], thing: object) -> None:
    if thing in things:
        things.remove(thing)
