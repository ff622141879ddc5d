"""Stores of an application that runs: read-only, from any thread, or from a loop.           [IO]

    app.start("127.0.0.1:9092")
    counts = app.store("counts")
    sent = producer.send("words", b"apple").result()
    counts.get("apple", after=sent)            # the row, once the store has seen that record

Rows are those of the tasks that this process runs; they may be ahead of what is committed. Of a
store with windows, keys are `Windowed(key, start, end)`.

Owns   nothing.
Fails  with StoreUnavailable where the rows are not here, or not yet; with TopologyError for a store
       that there is not, and where a call would wait for its own loop.
Source Kafka Streams' ReadOnlyKeyValueStore, ReadOnlyWindowStore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice, takewhile
from typing import Any, Final, Generic, TypeAlias, TypeVar

from kafkalite.core.generics import K, V
from kafkalite.errors import TopologyError
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.local.queries import Place, Queries, StoreUnavailable

R = TypeVar("R")
Found: TypeAlias = tuple[asyncio.AbstractEventLoop, Queries]
Pairs: TypeAlias = list[tuple[K, V]]
Work: TypeAlias = Callable[[Queries], Coroutine[Any, Any, R]]

TIMEOUT: Final = "10s"
LIMIT: Final = 10_000


class Asking:
    """The way from a program to the worker that runs, if one does. `loop` is the worker's."""

    def __init__(
        self,
        application_id: str,
        find: Callable[[], tuple[asyncio.AbstractEventLoop, Queries] | None],
    ) -> None:
        self._application_id = application_id
        self._find = find

    @property
    def queries(self) -> Queries:
        """Those of the worker. StoreUnavailable while none runs."""
        return self._found()[1]

    async def ask(self, work: Work[R]) -> R:
        """Does `work` in the worker's loop."""
        loop, queries = self._found()
        if asyncio.get_running_loop() is loop:
            return await work(queries)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(queries), loop))

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine in the worker's loop, and waits for its end."""
        try:
            loop, _ = self._found()
            if asyncio._get_running_loop() is loop:
                raise TopologyError(
                    f"{self._application_id}: this call would wait for its own loop: await the "
                    "methods of async_store(name)"
                )
        except BaseException:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _found(self) -> Found:
        found = self._find()
        if found is None or found[0].is_closed():
            raise StoreUnavailable(f"{self._application_id} does not run in this process")
        return found


class AsyncLiveStore(Generic[K, V]):
    """A store, for programs with a loop: that in which the application runs, or another."""

    def __init__(self, name: str, asking: Asking) -> None:
        self.name = name
        self._asking = asking

    async def get(
        self,
        key: K,
        *,
        after: Place | None = None,
        timeout: Duration = TIMEOUT,  # noqa: ASYNC109 - the word of the blocking twin
        max_lag: int | None = None,
    ) -> V:
        """The row of a key, None when there is none.

        `after`: the place of a record that the store must have seen, as a producer's future gives
        it; StoreUnavailable when it has not after `timeout`. `max_lag`: where the key's task does
        not run here, a copy of it answers, a standby or one that is being restored, if it lacks at
        most so many records.
        """
        seconds = positive(timeout, f"store {self.name!r}: timeout") / 1000

        async def work(queries: Queries) -> V:
            if after is not None:
                await queries.seen(self.name, after, seconds)
            row: V = await queries.get(self.name, key, max_lag)
            return row

        return await self._asking.ask(work)

    async def lag(self, key: K) -> int:
        """How many records the rows lack that `get` looks into: 0 where the key's task runs here.
        StoreUnavailable where there is no copy either."""

        async def work(queries: Queries) -> int:
            return queries.lag(self.name, key)

        return await self._asking.ask(work)

    async def range(
        self,
        start: K | None = None,
        end: K | None = None,
        *,
        limit: int | None = LIMIT,
        max_lag: int | None = None,
    ) -> Pairs[K, V]:
        """The first `limit` pairs with keys from `start` to `end`, both included.

        None: no bound. Pairs stand in the order of the keys' bytes. Tasks wait meanwhile, some
        microseconds for each pair; the first call puts the keys of rows in memory into order.
        `max_lag`: the copies in this process answer, too, where they lack at most so many records.
        """
        return await self._rows(lambda view: view.range(start, end), limit, max_lag)

    async def all(self, *, limit: int | None = LIMIT, max_lag: int | None = None) -> Pairs[K, V]:
        """The first `limit` pairs, as `range`."""
        return await self._rows(lambda view: view.all(), limit, max_lag)

    async def prefix(
        self, prefix: K, *, limit: int | None = LIMIT, max_lag: int | None = None
    ) -> Pairs[K, V]:
        """The first `limit` pairs whose keys' bytes begin with those of `prefix`, as `range`."""

        async def work(queries: Queries) -> Pairs[K, V]:
            home = queries.home(self.name)
            (data,) = queries.key_bytes(home, [prefix])

            def begins(pair: tuple[K, V]) -> bool:
                return queries.key_bytes(home, [pair[0]])[0].startswith(data)

            def pick(view: Any) -> Pairs[K, V]:
                return list(islice(takewhile(begins, view.range(prefix, None)), limit))

            return (await queries.rows(self.name, pick, max_lag))[:limit]

        return await self._asking.ask(work)

    async def fetch(
        self,
        key: Any,
        start: int,
        end: int,
        *,
        limit: int | None = LIMIT,
        max_lag: int | None = None,
    ) -> Pairs[K, V]:
        """The first `limit` pairs of a key's windows that start in [start, end], epoch ms."""
        return await self._rows(lambda view: view.fetch(key, start, end), limit, max_lag)

    async def _rows(
        self, look: Callable[[Any], Any], limit: int | None, max_lag: int | None
    ) -> Pairs[K, V]:
        def pick(view: Any) -> Pairs[K, V]:
            return list(islice(look(view), limit))

        async def work(queries: Queries) -> Pairs[K, V]:
            return (await queries.rows(self.name, pick, max_lag))[:limit]

        return await self._asking.ask(work)


class LiveStore(Generic[K, V]):
    """A store, for programs without a loop. Any thread may ask, and waits for the answer."""

    def __init__(self, name: str, asking: Asking) -> None:
        self.name = name
        self._store: AsyncLiveStore[K, V] = AsyncLiveStore(name, asking)
        self._wait = asking.wait

    def get(
        self,
        key: K,
        *,
        after: Place | None = None,
        timeout: Duration = TIMEOUT,
        max_lag: int | None = None,
    ) -> V:
        """The row of a key, None when there is none.

        `after`: the place of a record that the store must have seen, as a producer's future gives
        it; StoreUnavailable when it has not after `timeout`. `max_lag`: where the key's task does
        not run here, a copy of it answers, a standby or one that is being restored, if it lacks at
        most so many records.
        """
        return self._wait(self._store.get(key, after=after, timeout=timeout, max_lag=max_lag))

    def lag(self, key: K) -> int:
        """How many records the rows lack that `get` looks into: 0 where the key's task runs here.
        StoreUnavailable where there is no copy either."""
        return self._wait(self._store.lag(key))

    def range(
        self,
        start: K | None = None,
        end: K | None = None,
        *,
        limit: int | None = LIMIT,
        max_lag: int | None = None,
    ) -> Pairs[K, V]:
        """The first `limit` pairs with keys from `start` to `end`, both included.

        None: no bound. Pairs stand in the order of the keys' bytes. Tasks wait meanwhile, some
        microseconds for each pair; the first call puts the keys of rows in memory into order.
        `max_lag`: the copies in this process answer, too, where they lack at most so many records.
        """
        return self._wait(self._store.range(start, end, limit=limit, max_lag=max_lag))

    def all(self, *, limit: int | None = LIMIT, max_lag: int | None = None) -> Pairs[K, V]:
        """The first `limit` pairs, as `range`."""
        return self._wait(self._store.all(limit=limit, max_lag=max_lag))

    def prefix(
        self, prefix: K, *, limit: int | None = LIMIT, max_lag: int | None = None
    ) -> Pairs[K, V]:
        """The first `limit` pairs whose keys' bytes begin with those of `prefix`, as `range`."""
        return self._wait(self._store.prefix(prefix, limit=limit, max_lag=max_lag))

    def fetch(
        self,
        key: Any,
        start: int,
        end: int,
        *,
        limit: int | None = LIMIT,
        max_lag: int | None = None,
    ) -> Pairs[K, V]:
        """The first `limit` pairs of a key's windows that start in [start, end], epoch ms."""
        return self._wait(self._store.fetch(key, start, end, limit=limit, max_lag=max_lag))
