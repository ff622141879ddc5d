"""This broker's followers fetch: one loop for each leader that they follow.                 [IO]

    put_in_force ──look──> a loop for each leader: positions ──Fetch──> answers ──> the logs
                                      └── rests after errors; ends when nothing is followed there

A request is given up where other partitions are to be fetched, and the next one goes out on another
connection. It names the session of the one before, which its leader answers then: so that one does
not hold up the next but one, on the first connection, until its wait is over.

While all goes well there is no task to wake: the turn of the event loop in which an answer arrives
appends it and sends the next fetch (`Exchange`). A producer with acks=all waits for just that.

Owns   the loops and their fetch sessions.
Never  looks at all partitions for one fetch: after an answer at those that it is about.
Fails  by resting, PAUSE_MS after the leader could not be reached and REST_MS for a partition that
       it refused; the operator gets one line. A leader that is silent for SILENCE_MS is asked on
       another connection, and given twice as long each time: this one may be dead, or the leader
       slow.
Source apache/kafka `ReplicaFetcherManager`, `AbstractFetcherThread`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from enum import Enum
from typing import Final, Protocol, cast

from kafkalite.core.broker import reaching
from kafkalite.core.broker.reaching import OtherBrokers
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.peers.channel import PeerChannel
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.fetch import FetchRequest, FetchResponse
from kafkalite.core.protocol.usual_fetch import FETCH_V, News, read_news
from kafkalite.core.replicas.fetch_session import Answer, FetchLimits, FetchSession, Key
from kafkalite.core.replicas.follower import Position
from kafkalite.core.replicas.manager import Partitions
from kafkalite.core.replicas.partition import FETCH_WAIT_MS_MAX, Partition
from kafkalite.core.replicas.throttling import Throttles
from kafkalite.errors import ErrorCode, KafkaliteError

log: Final = logging.getLogger(__name__)

LANES: Final = ("fetch", "fetch again")
SESSION_IS_GONE: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
PAUSE_MS: Final = 200
FIRST_WAIT_MS: Final = 10  # of a request that begins a session
SILENCE_MS: Final = 2_000  # of a leader, beyond its wait; longer once it proves to be slow
BYTES_PER_SLICE: Final = 1 << 20  # appended in one turn of the loop


class End(Enum):
    """Why an exchange of fetches ended."""

    NOTHING_TO_ASK = "all partitions rest, or the leader is not registered"
    PAUSE = "the leader refuses"
    LEAVES_ANSWER = "`follow` gives the request up before its answer comes"


class Host(reaching.Host, Protocol):
    """The fetching's interface to its broker."""

    config: BrokerConfig
    partitions: Partitions
    throttles: Throttles


class ReplicaFetching:
    """All fetches of one broker's followers."""

    def __init__(self, host: Host, others: OtherBrokers) -> None:
        self._host = host
        self._others = others
        self._loops: dict[int, LeaderLoop] = {}  # by leader
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def look(self) -> None:
        """The image is another: begins to fetch what is followed now, from where it is led now."""
        if self._is_closed:
            return
        followed: dict[int, dict[Key, Partition]] = {}
        for partition in self._host.partitions.following():
            follower, where = partition.replication.follower, partition.topic_partition
            topic = self._host.image.topics.get(where.topic)
            if follower is not None and topic is not None and follower.leader_id >= 0:
                key = topic.topic_id.bytes, where.partition
                followed.setdefault(follower.leader_id, {})[key] = partition
        for leader_id in followed.keys() | self._loops.keys():
            loop = self._loops.get(leader_id)
            if loop is None:
                loop = self._loops[leader_id] = LeaderLoop(self._host, leader_id)
                task = asyncio.get_running_loop().create_task(self._run(loop))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            loop.follow(followed.get(leader_id, {}))

    async def close(self) -> None:
        """Ends all fetches. Nothing is appended by them any more."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, loop: LeaderLoop) -> None:
        try:
            await loop.run(self._others)
        except Exception:
            log.exception("the fetches from broker %d", loop.leader_id)
            await asyncio.sleep(PAUSE_MS / 1_000)
        finally:
            if self._loops.get(loop.leader_id) is loop:
                del self._loops[loop.leader_id]
        if loop.followed:
            self.look()  # after a fault of ours, which is logged: not for good


class LeaderLoop:
    """The fetches from one leader."""

    def __init__(self, host: Host, leader_id: int) -> None:
        self.leader_id = leader_id
        self.followed: dict[Key, Partition] = {}
        self._host = host
        self._session = FetchSession(host.node_id)
        # Whose position may be another: in an order that is the same in each process.
        self._stale: dict[Key, None] = {}
        self._resting: dict[Key, int] = {}  # until when, monotonic
        self._caught_up: set[Key] = set()  # as far as the last answer says
        self._woken = asyncio.Event()
        self._exchange: Exchange | None = None
        self._lane = 0
        self._silence_ms = SILENCE_MS
        self._due_ms = 0  # the answer to the request under way, at the latest
        self._config: BrokerConfig | None = None  # from which these two were read:
        self._usual_limits = FetchLimits()
        self._silence_ms_max = 0

    def follow(self, followed: dict[Key, Partition]) -> None:
        """Fetches these partitions from now on. If one of them is new, or has another leader epoch,
        the request under way is given up: it may wait for records of the others."""
        positions = self._session.positions
        is_other = followed.keys() != self.followed.keys()
        for key, partition in followed.items():
            position = positions.get(key)
            epoch = partition.replication.leader_epoch
            if position is None or position.leader_epoch != epoch:
                self._stale[key] = None
                is_other = True
        self._stale |= dict.fromkeys(key for key in self.followed if key not in followed)
        self._caught_up &= followed.keys()
        self.followed = followed
        if is_other:
            self._woken.set()
            if self._exchange is not None:
                self._exchange.finish(End.LEAVES_ANSWER)

    async def run(self, others: OtherBrokers) -> None:
        """Fetches until nothing is followed there."""
        while self.followed:
            self._woken.clear()
            channel = others.channel(self.leader_id, LANES[self._lane])
            self._position(self._host.monotonic_ms())
            if channel is None or not self._session.positions:
                await self._pause()
                continue
            try:
                connection = await self._connected(channel)
                end = None if connection is None else await self._exchange_over(connection)
            except KafkaliteError as error:
                self._host.note(f"broker {self.leader_id} is not fetched from: {error}")
                self._session.reset()
                self._read_config()
                self._silence_ms = min(2 * self._silence_ms, self._silence_ms_max)
                end = End.PAUSE
            if end is End.PAUSE:
                await self._pause()
            elif end is End.LEAVES_ANSWER:
                self._session.reset()
                self._lane = 1 - self._lane  # on this connection the next answer waits for that one

    async def _connected(self, channel: PeerChannel) -> BrokerConnection | None:
        """A connection; None if `follow` changes the partitions before there is one."""
        limits = self._limits(self._host.monotonic_ms())
        connecting = asyncio.ensure_future(channel.connected(self._timeout_ms(limits)))
        waking = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((connecting, waking), return_when=asyncio.FIRST_COMPLETED)
            return connecting.result() if connecting.done() else None
        finally:
            waking.cancel()
            connecting.cancel()

    async def _exchange_over(self, connection: BrokerConnection) -> End:
        """Fetches over a connection as long as nothing else is to be done. KafkaliteError."""
        exchange = self._exchange = Exchange(self, connection)
        try:
            exchange.ask()
            return await exchange.end
        finally:
            self._exchange = None
            exchange.end.cancel()  # a late answer changes nothing

    def next_request(self, *, may_be_short: bool) -> tuple[FetchRequest | bytes, int] | None:
        """What to ask for now, and how long to wait for the answer; None: nothing. Bytes are the
        body of a request of version FETCH_V, if it `may_be_short`."""
        now_ms = self._host.monotonic_ms()
        if self._stale or self._resting:
            self._position(now_ms)
        if not self._session.positions:
            return None
        limits, epoch = self._limits(now_ms), self._host.broker_epoch
        short = self._session.short_request(epoch, limits) if may_be_short else None
        self._due_ms = now_ms + limits.wait_max_ms
        return short or self._session.request(epoch, limits), self._timeout_ms(limits)

    def append_news(self, news: News) -> bool:
        """Appends the leader's `news`, if they are the one batch that comes next. False, and
        nothing has changed, if they are others or the disk refuses them."""
        host, key = self._host, (news.topic_id, news.partition)
        asked, partition = self._session.positions.get(key), self.followed.get(key)
        if asked is None or partition is None or host.throttles.follower.rate is not None:
            return False
        if not host.partitions.append_next(partition, asked, news):
            return False
        self._answered_in_time()
        self._session.go_on(news.session_id)
        own, (leader_id, leader_epoch, _, last_epoch, _) = partition.log, asked
        end, start = own.log_end_offset, own.log_start_offset
        self._session.ask(key, Position(leader_id, leader_epoch, end, last_epoch, start))
        if own.failure is not None:  # `_position` looks whether to ask on
            self._stale[key] = None
        if end >= news.high_watermark:
            self._caught_up.add(key)
        else:
            self._caught_up.discard(key)
        return True

    def answer_of_news(self, news: News) -> Answer | None:
        """The answer, for `carry_out`, that the leader's `news` are; None if they are others."""
        self._answered_in_time()
        return self._session.take_news(news)

    def answers_of(self, response: FetchResponse) -> list[Answer] | None:
        """The answers of a response, for `carry_out`; None after an error of the leader's."""
        self._answered_in_time()
        answers = self._session.take(response)
        if response.error_code in (ErrorCode.NONE, *SESSION_IS_GONE):
            return answers
        code = response.error_code.name
        self._host.note(f"broker {self.leader_id} answers fetches with {code}")
        return None

    def _answered_in_time(self) -> None:
        """The next answer may take as long as this one did, twice."""
        self._silence_ms = max(SILENCE_MS, 2 * (self._host.monotonic_ms() - self._due_ms))

    def carry_out(self, answer: Answer) -> int:
        """The bytes that the partition's log got."""
        partition = self.followed.get(answer.key)
        self._stale[answer.key] = None
        if partition is None:
            return 0
        followed = self._host.partitions.answered(partition, answer.asked, answer.answer)
        if partition.log.log_end_offset >= answer.answer.high_watermark:
            self._caught_up.add(answer.key)
        else:
            self._caught_up.discard(answer.key)
        if followed.byte_count and self._is_throttled(partition):
            now_ms = self._host.monotonic_ms()
            self._host.throttles.follower.record(followed.byte_count, now_ms)
        return followed.byte_count

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether what the partition takes counts for the rate of followers."""
        throttles, where = self._host.throttles, partition.topic_partition
        if throttles.follower.rate is None:
            return False
        topic = self._host.image.topics.get(where.topic)
        return topic is not None and throttles.takes(topic.configs, where)

    def _is_held_back(self, key: Key, partition: Partition, now_ms: int) -> bool:
        """Whether the partition waits, as followers took more than their rate lately. One that has
        caught up goes on."""
        if key in self._caught_up or not self._host.throttles.follower.is_exceeded(now_ms):
            return False
        return self._is_throttled(partition)

    def _position(self, now_ms: int) -> None:
        """Looks where the logs end that may have changed, and at those whose rest is over."""
        if self._resting:
            ended = [key for key, until_ms in self._resting.items() if until_ms <= now_ms]
            self._stale |= dict.fromkeys(ended)
            for key in self._stale:
                self._resting.pop(key, None)
        for key in self._stale:
            partition = self.followed.get(key)
            position = None if partition is None else partition.wanted(now_ms)
            is_asked = position is not None and position.leader_id == self.leader_id
            if is_asked and partition is not None and position is not None:
                if not self._is_held_back(key, partition, now_ms):
                    self._session.ask(key, position)
                    continue
                self._resting[key] = now_ms + PAUSE_MS
            elif partition is not None:
                self._resting[key] = _rests_until_ms(partition, now_ms)
            self._session.forget(key)
        self._stale.clear()

    def _limits(self, now_ms: int) -> FetchLimits:
        """What to ask for; the answer is not waited for beyond the end of a rest."""
        self._read_config()
        limits = self._usual_limits
        if not self._resting and not self._session.is_new:
            return limits
        wait_ms = limits.wait_max_ms
        if self._session.is_new:  # its second request tells the leader that it is one
            wait_ms = min(wait_ms, FIRST_WAIT_MS)
        rests = [until_ms - now_ms for until_ms in self._resting.values()]
        return replace(limits, wait_max_ms=max(0, min([wait_ms, *rests])))

    def _timeout_ms(self, limits: FetchLimits) -> int:
        """How long an answer may take."""
        return limits.wait_max_ms + min(self._silence_ms, self._silence_ms_max)

    def _read_config(self) -> None:
        """Takes over what the settings say, if they are others. A leader may be silent for so long
        that a connection that broke without a reset is noticed before this follower leaves the
        in-sync set for it."""
        config = self._host.config
        if config is self._config:
            return
        self._config = config
        self._usual_limits = FetchLimits(
            min(config["replica.fetch.wait.max.ms"], FETCH_WAIT_MS_MAX),
            config["replica.fetch.min.bytes"],
            config["replica.fetch.response.max.bytes"],
            config["replica.fetch.max.bytes"],
        )
        lag_ms: int = config["replica.lag.time.max.ms"]
        timeout_ms: int = config["replica.socket.timeout.ms"]
        self._silence_ms_max = min(timeout_ms, max(1, lag_ms // 2))

    async def _pause(self) -> None:
        """Waits until `follow` changes the partitions, PAUSE_MS at the most."""
        try:
            async with asyncio.timeout(PAUSE_MS / 1_000):
                await self._woken.wait()
        except TimeoutError:
            pass


class Exchange:
    """Fetch after fetch over one connection; each answer is carried out and followed by the next
    request in the turn in which it arrives, but for long ones."""

    def __init__(self, fetches: LeaderLoop, connection: BrokerConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self.end: asyncio.Future[End] = self._loop.create_future()
        self.end.add_done_callback(lambda end: end.cancelled() or end.exception())  # it is seen
        self._fetches = fetches
        self._connection = connection
        self._may_be_short = connection.version_of(ApiKey.FETCH) == FETCH_V

    def finish(self, end: End) -> None:
        """Nothing more is asked, and no answer taken."""
        if not self.end.done():
            self.end.set_result(end)

    def ask(self) -> None:
        """Sends the next request."""
        asked = self._fetches.next_request(may_be_short=self._may_be_short)
        if asked is None:
            self.finish(End.NOTHING_TO_ASK)
            return
        request, timeout_ms = asked
        if type(request) is bytes:
            self._connection.call_with(
                ApiKey.FETCH, FETCH_V, request, self._answered_short, timeout_ms
            )
        else:
            self._connection.call(cast("FetchRequest", request), self._answered, timeout_ms)

    def _answered_short(self, body: memoryview | Exception) -> None:
        if self.end.done():
            return
        if isinstance(body, Exception):
            self._fail(body)
            return
        try:
            news = read_news(body)
            if news is not None and self._fetches.append_news(news):
                self.ask()
                return
            answer = None if news is None else self._fetches.answer_of_news(news)
            if answer is None:
                self._answered(codec.decode(FetchResponse, body, FETCH_V))
            else:
                self._carry_out(deque((answer,)))
        except Exception as error:
            self._fail(error)

    def _answered(self, response: FetchResponse | Exception) -> None:
        if self.end.done():
            return
        if isinstance(response, Exception):
            self._fail(response)
            return
        try:
            answers = self._fetches.answers_of(response)
        except Exception as error:
            self._fail(error)
            return
        if answers is None:
            self.finish(End.PAUSE)
        else:
            self._carry_out(deque(answers))

    def _carry_out(self, answers: deque[Answer]) -> None:
        """Appends what a response has, BYTES_PER_SLICE in a turn, and asks on."""
        byte_count = 0
        try:
            while answers and byte_count < BYTES_PER_SLICE and not self.end.done():
                byte_count += self._fetches.carry_out(answers.popleft())
            if self.end.done():
                return
            if answers:
                self._loop.call_soon(self._carry_out, answers)
            else:
                self.ask()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The loop rests, or logs it."""
        if not self.end.done():
            self.end.set_exception(error)


def _rests_until_ms(partition: Partition, now_ms: int) -> int:
    """When to look again at a partition that asks for nothing: it rests, is fenced, or failed."""
    follower = partition.replication.follower
    until_ms = None if follower is None else follower.rests_until_ms
    return now_ms + PAUSE_MS if until_ms is None else max(until_ms, now_ms + 1)
