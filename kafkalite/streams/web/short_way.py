"""The short way of a question for one row: no parser, no task, no turn of a loop.        [IO]

    GET /stores/NAME/KEY

A head that is plain (a GET of a row, no query, no body) and asks for a key whose task runs in this
worker is read and answered in one go. A connection that has asked so is lent to the task thread:

    loop          reads ... answers the first question ... lends          takes back ... usual way
    task thread                                            reads, answers  gives back

The task thread looks at lent connections where it serves reads, in the middle of its work, and
sleeps on them while it rests. So the two threads wait neither for each other nor for the GIL.

Everything else takes the usual way, and so does a question that went wrong: the usual way knows
what to say about it. Connections come back for that, and when the task thread is stuck.

Owns   the questions of a connection that wait for the task thread, PIPELINED_MAX at most.
Never  answers in another order than was asked; reads on while a client does not.
Fails  never: the usual way answers instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_ident
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import h11
from uvicorn.server import ServerState

from kafkalite.serde.registry_connection import IDLE_SECONDS, RegistryConnection
from kafkalite.streams.live import Asking
from kafkalite.streams.local.queries import StoreUnavailable
from kafkalite.streams.web.at_once import Sockets
from kafkalite.streams.web.documents import (
    END_OF_TIME,
    LIMIT,
    WORKER,
    encoded,
    key_of,
    no_row,
    row_document,
)

log: Final = logging.getLogger(__name__)

PIPELINED_MAX: Final = 16
STUCK_SECONDS: Final = 0.1  # a task thread that serves nobody for so long
SLEEP_SECONDS: Final = 1.0
PHRASES: Final = {200: b"OK", 404: b"Not Found"}
QUESTION: Final = re.compile(
    rb"GET /stores/([^/? \r\n]+)/([^/? \r\n]+) HTTP/1\.1\r\n"
    rb"(?:(?!(?i:content-length|transfer-encoding|expect|upgrade"
    rb"|connection:(?![ \t]*keep-alive\r\n)))[\w!#$%&'*+.^`|~-]+:[^\r\n\0]*\r\n)*\r\n"
)

Headers: TypeAlias = list[tuple[bytes, bytes]]  # of uvicorn, which makes a new list each second
Look: TypeAlias = Callable[[], bytes]  # the whole answer; where no task is at work


class Rows:
    """Single rows of one worker, and the connections that ask for them."""

    def __init__(self, asking: Asking, address: str) -> None:
        self._asking = asking
        self._done: deque[Callable[[], None]] = deque()  # by the task thread, for the loop
        self._lent: dict[int, Connection] = {}
        self._is_watched = False
        self._sockets = Sockets()
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.EPOLLIN)
        weakref.finalize(self, os.close, self._bell)
        self._headers = b"content-type: application/json\r\n%b: %b\r\n" % (
            WORKER.encode(),
            address.encode(),
        )
        self._heads: tuple[Headers, dict[int, bytes]] = [], {}

    def look(self, question: re.Match[bytes]) -> Look | None:
        """What answers a question; None where it does not take the short way."""
        name, text = map(_text, question.groups())
        try:
            queries = self._asking.queries
            home = queries.home(name)
            key = key_of(home.store, text)
            partition = queries.partition_of(home, key)
        except Exception:  # the usual way meets it again, and says what it is
            return None
        if not queries.runs(home, partition):
            return None

        def look() -> bytes:
            if home.is_windowed:
                pairs = queries.look_at_windows(home, key, partition, 0, END_OF_TIME, LIMIT)
                return self._answer(200, {"rows": [row_document(*p) for p in pairs]})
            row = queries.look(home, key, partition)
            if row is None:
                return self._answer(404, {"error": no_row(name, text)})
            return self._answer(200, row_document(key, row))

        return look

    def _answer(self, status: int, document: dict[str, Any]) -> bytes:
        body, usual = encoded(document), self._state.default_headers
        made_of, heads = self._heads
        if made_of is not usual:
            heads = {each: self._head(each, usual) for each in PHRASES}
            self._heads = usual, heads
        return b"%bcontent-length: %d\r\n\r\n%b" % (heads[status], len(body), body)

    def _head(self, status: int, usual: Headers) -> bytes:
        """The head of an answer up to its length."""
        first = b"HTTP/1.1 %d %b\r\n" % (status, PHRASES[status])
        return b"".join((first, *(b"%b: %b\r\n" % each for each in usual), self._headers))

    def read(self, read: Callable[[], None]) -> None:
        """Does it here if the task thread rests; else that does it soon."""
        self._asking.queries.reads.read(read)

    def begin(self, loop: asyncio.AbstractEventLoop, state: ServerState) -> None:
        """What all connections share."""
        self._loop = loop
        self._state = state

    def call_loop(self, call: Callable[[], None]) -> None:
        """Has the loop call this. The loop is woken once for all until it comes."""
        self._done.append(call)
        if len(self._done) == 1:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        calls = self._done
        while calls:
            try:
                calls[0]()
            except Exception:
                log.exception("an answer could not be written")
            calls.popleft()  # behind the call: who adds to an empty queue wakes the loop

    # Connections that are lent

    def lend(self, connection: Connection, number: int) -> bool:
        """Lends a connection to the task thread; False where there is none."""
        try:
            reads = self._asking.queries.reads
        except StoreUnavailable:
            return False
        if not self._is_watched:
            self._is_watched = True
            self._loop.call_later(STUCK_SECONDS, self._look_after)
        self._lent[number] = connection
        self._poll.register(number, select.EPOLLIN)
        reads.open(self)
        return True

    def forget(self, number: int) -> None:
        """The connection is lent no more."""
        if self._lent.pop(number, None) is not None:
            with suppress(OSError):
                self._poll.unregister(number)

    def _look_after(self) -> None:
        """Takes connections back from a task thread that is stuck, or has ended."""
        try:
            is_stuck = self._asking.queries.reads.served_ago > STUCK_SECONDS
        except StoreUnavailable:
            is_stuck = True
        if is_stuck:
            for connection in list(self._lent.values()):
                connection.take_back()
        self._is_watched = bool(self._lent)
        if self._is_watched:
            self._loop.call_later(STUCK_SECONDS, self._look_after)

    def close(self) -> None:
        """No connection is left."""
        self._lent.clear()
        self.wake()

    # The task thread

    @property
    def is_open(self) -> bool:
        """Whether there is somebody to serve."""
        return bool(self._lent)

    def serve(self) -> bool:
        """Answers what lent connections have asked; whether there was anything.

        All questions are read, then answered, then their answers sent: a client that each send
        wakes would take the core away, or the caches.
        """
        lent, sockets = self._lent, self._sockets
        ready = sockets.ready(self._poll.fileno()) if lent else ()
        heard = [
            connection
            for number in ready
            if (connection := lent.get(number)) is not None and connection.hear(sockets)
        ]
        for connection in heard:
            connection.answer()
        return sum(connection.send(sockets) for connection in heard) > 0

    def sleep(self) -> None:
        """Until somebody asks, or `wake`, but not for ever."""
        for number, _ in self._poll.poll(SLEEP_SECONDS):
            if number == self._bell:
                os.eventfd_read(self._bell)

    def wake(self) -> None:
        """Ends `sleep`; from any thread."""
        os.eventfd_write(self._bell, 1)


@dataclass(slots=True, eq=False)
class Question:
    """A question of a connection, and its answer once there is one."""

    head: bytes
    answer: bytes | None = None  # also where there is none this way
    is_done: bool = False


class Connection(RegistryConnection):
    """A client's connection.

    The lock is held by the thread that has it in hand. While it is lent, the loop reads nothing of
    it; what the task thread could not answer is `_early`, and what it could not write `_unsent`.
    """

    rows: Rows

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = Lock()
        self._is_lent = False
        self._early = b""
        self._unsent = b""
        self._asked: deque[Question] = deque()
        self._held = b""  # came behind questions, and must wait for their answers
        self._is_usual = False  # what is held begins with a question that has no short answer
        self._short_until = 0.0  # how long the connection may stay after the last short answer
        self._ends = False

    @property
    def is_at_work(self) -> bool:
        """Whether a question is under way."""
        return bool(self._asked) or super().is_at_work

    @property
    def _is_plain(self) -> bool:
        """Whether nothing is under way: what comes now begins with a head."""
        usual = self.conn
        return not (
            self._asked
            or self._held
            or self._ends
            or super().is_at_work
            or usual.our_state is not h11.IDLE
            or usual.their_state is not h11.IDLE
            or usual.trailing_data[0]
        )

    # In the task thread

    def hear(self, sockets: Sockets) -> bool:
        """Reads what has come, if anything. The lock is held from now on until `send`."""
        if not self._lock.acquire(blocking=False):
            return False
        data = sockets.read(self._number) if self._is_lent else None
        if data is None:
            self._lock.release()
            return False
        self._early = data
        return True

    def answer(self) -> None:
        """Answers what was read, where no task is at work, up to a question that has no answer
        this way, and to `PIPELINED_MAX`: others wait."""
        data, at = self._early, 0
        answers: list[bytes] = []
        while len(answers) < PIPELINED_MAX and (question := QUESTION.match(data, at)) is not None:
            if (look := self.rows.look(question)) is None:
                break
            try:
                answers.append(look())
            except Exception:  # the usual way meets it again, and says what it is
                break
            at = question.end()
        self._early, self._unsent = data[at:], b"".join(answers)

    def send(self, sockets: Sockets) -> bool:
        """Sends the answers, if any, and gives the connection back where the rest is the loop's."""
        has_answered = bool(self._unsent)
        is_end = not has_answered and not self._early
        if has_answered:
            self._note_question()
            self._unsent = sockets.write(self._number, self._unsent)
        if is_end or self._early or self._unsent:
            self._give_back()
            self.rows.call_loop(self._read_on)
        self._lock.release()
        return has_answered

    def _give_back(self) -> None:
        self.rows.forget(self._number)
        self._is_lent = False

    # In the loop

    def take_back(self) -> None:
        """The task thread is stuck. What it has in hand stays with it: the loop must not wait."""
        if self._lock.acquire(blocking=False):
            if self._is_lent:
                self._give_back()
                self.flow.resume_reading()
            self._lock.release()

    def _read_on(self) -> None:
        """The task thread has given it back."""
        with self._lock:
            if self.transport.is_closing():
                return
            unsent, early, self._unsent, self._early = self._unsent, self._early, b"", b""
            if not self._is_lent:
                self.flow.resume_reading()
            if unsent:
                self.transport.write(unsent)
            if early:
                self._held = early
                self._go_on()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a client in."""
        self._number = transport.get_extra_info("socket").fileno()
        self._thread = get_ident()
        self.rows.begin(self.loop, self.server_state)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Takes the short way with all questions that can."""
        with self._lock:
            if self._asked or self._held or self._is_plain:
                self._held += data
                self._go_on()
            else:
                super().data_received(data)

    def _go_on(self) -> None:
        """Asks the questions held, writes their answers, and leaves the rest to the usual way."""
        has_answered = False
        while True:
            if not self._is_usual:
                self._take()
            if not self._settle():
                break
            has_answered = True
        if self._asked:
            if self._held:
                self.flow.pause_reading()
            return
        held, self._held, self._is_usual = self._held, b"", False
        if not self.flow.write_paused:
            self.flow.resume_reading()
        if self._ends:
            self.transport.close()
        elif held and not self.transport.is_closing():
            super().data_received(held)
        elif has_answered and not self.transport.is_closing():
            self._lend()

    def _lend(self) -> None:
        if self.transport.get_write_buffer_size() or not self._is_plain:
            return
        if self.rows.lend(self, self._number):
            self._is_lent = True
            self.flow.pause_reading()

    def _take(self) -> None:
        """Asks the first of the questions held, as many as may wait."""
        while self._held and len(self._asked) < PIPELINED_MAX and not self.flow.write_paused:
            head = QUESTION.match(self._held)
            if head is None or (look := self.rows.look(head)) is None:
                return
            question = Question(head.group())
            self._held = self._held[head.end() :]
            self._asked.append(question)
            self._note_question()
            self.rows.read(partial(self._answer, question, look))

    def _answer(self, question: Question, look: Look) -> None:
        """In this thread or the task thread, where no task is at work."""
        with suppress(Exception):  # the usual way meets it again, and says what it is
            question.answer = look()
        question.is_done = True
        if get_ident() != self._thread:
            self.rows.call_loop(self._come_back)

    def _come_back(self) -> None:
        with self._lock:
            self._go_on()

    def _settle(self) -> bool:
        """Writes answers that are due; whether that made room for questions. One that has none
        goes the usual way, and all behind it."""
        ready = []
        while self._asked and self._asked[0].is_done:
            if (answer := self._asked[0].answer) is None:
                self._is_usual = True
                self._held = b"".join(question.head for question in self._asked) + self._held
                self._asked.clear()
                break
            ready.append(answer)
            self._asked.popleft()
        if ready and not self.transport.is_closing():
            self.transport.write(b"".join(ready))
        return bool(ready)

    def _note_question(self) -> None:
        self._waits_since = self.loop.time()
        self._short_until = self._waits_since + IDLE_SECONDS

    # The life of the connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the client."""
        with self._lock:
            self._give_back()
            self._asked.clear()
            self._held = self._early = self._unsent = b""
            self._ends = True
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read: it is heard no more."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        with self._lock:
            self._go_on()

    def shutdown(self) -> None:
        """Ends the connection behind the questions that were taken."""
        with self._lock:
            self._ends = True
            if not self._asked:
                super().shutdown()

    def _give_up(self) -> None:
        """A connection that has asked the short way lately stays for a while."""
        if (left := self._short_until - self.loop.time()) > 0:
            self._watch(left)
        else:
            super()._give_up()

    def timeout_keep_alive_handler(self) -> None:
        """As `_give_up`, where an answer before those went the usual way."""
        if (left := self._short_until - self.loop.time()) > 0:
            self._watch(left)
        else:
            super().timeout_keep_alive_handler()


def _text(part: bytes) -> str:
    """A part of a path."""
    text = part.decode("latin-1")
    return unquote(text) if "%" in text else text


def connection_with(rows: Rows) -> type[Connection]:
    """The class of connections that ask these rows, as uvicorn wants it."""
    return type("Connection", (Connection,), {"rows": rows})
