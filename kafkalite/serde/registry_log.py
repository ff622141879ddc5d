"""The schema registry over the wire: `_schemas` read, followed and written by any client. [IO]

    registry = LogRegistry("127.0.0.1:9092")
    registry.register("flights-value", schema)      # blocks; any thread may call

There is no registry server and no leader. Every program folds the topic itself (`registry`). To
register a schema, a program takes these steps:

    1  It reads to the end of the log.
    2  It decides from the fold: the schema has an id already, or it needs these records.
    3  It appends the records and reads to the end again.
    4  If one of the records does not count, it decides again.

Before step 2 the program appends the repairs that the fold asks for, until there are none left.

Step 4 settles races: the first record in the log that claims a (subject, version) or an id wins,
and every fold ignores later claims that differ. The loser tries the next version or id. Each round
has a winner, so everyone finishes. The loser's record must not remain the last of its key, or
compaction would keep it and remove the winner's. The repair writes the winner's record once more,
or a tombstone.

The first writer creates the topic: one partition, compacted, with a compaction lag of a day. If a
writer dies before its repair, others have this day to do it.

Owns   a daemon thread with an event loop, and in it a client, a consumer and a producer. Nothing
       is opened before the first call.
Never  lets a caller wait longer than `timeout_ms`.
Fails  with BrokerUnavailable if no answer comes in time, ApiError if a broker refuses, ConfigError
       if `_schemas` is not a compacted topic of one partition, SchemaError as the fold does.
Source confluentinc/schema-registry `KafkaStore`; its leader election is replaced by the rule above.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from kafkalite.clients.admin.client import Admin, ConfigResource, NewTopic, ResourceType
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import BrokerUnavailable, ConfigError, KafkaliteError, SchemaError
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import (
    SCHEMAS_TOPIC,
    Record,
    RegisteredSchema,
    Registry,
)

T = TypeVar("T")
Decision: TypeAlias = tuple[T, tuple[Record, ...]]  # an answer, and what makes it true

log = logging.getLogger(__name__)

SCHEMAS: Final = TopicPartition(SCHEMAS_TOPIC, 0)
TOPIC_CONFIGS: Final = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
TIMEOUT_MS: Final = 30_000
POLL_MS: Final = 500
LOOK_SECONDS: Final = 0.02  # between looks at the position while somebody waits for the end
STOP_SECONDS: Final = 10.0


class SchemaLog:
    """The topic, followed from its start. Lives in one event loop; `opened` says when it is up."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.registry = Registry()
        self.lock = threading.Lock()  # the fold is read by callers' threads
        self.cluster_id = ""
        self._servers = bootstrap_servers
        self._stack = AsyncExitStack()
        self._following: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._writing = asyncio.Lock()
        self._ignored: set[int] = set()  # offsets of what does not count, while somebody writes

    async def open(self) -> None:
        """Finds or makes the topic and reads it to its end."""
        client = await self._stack.enter_async_context(
            Client(self._servers, client_id="kafkalite-schemas")
        )
        admin = await self._stack.enter_async_context(Admin(client))
        await _ensure_topic(client, admin)
        self.cluster_id = client.cluster.cluster_id or ""
        self._producer = await self._stack.enter_async_context(Producer(client))
        self._consumer = await self._stack.enter_async_context(Consumer(client))
        self._consumer.assign([SCHEMAS])
        self._consumer.seek_to_beginning([SCHEMAS])
        self._following = asyncio.create_task(self._follow())
        await self.catch_up()

    async def close(self) -> None:
        """Stops following and closes the connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._stack.aclose()

    async def _follow(self) -> None:
        """Replays what the topic gets, for as long as the log is open."""
        while True:
            found = await self._consumer.poll(POLL_MS)
            columns = found.get(SCHEMAS)
            if columns is not None:
                with self.lock:
                    self._replay(columns)
            self._moved.set()

    def _replay(self, columns: Columns) -> None:
        offsets = columns.offsets
        assert offsets is not None, "what is read has offsets"
        for offset, key, value in zip(offsets, columns.keys, columns.values, strict=True):
            if not self.registry.replay(key, value):
                log.info("%s: record %d with key %r does not count", SCHEMAS_TOPIC, offset, key)
                if self._writing.locked():
                    self._ignored.add(offset)

    async def catch_up(self) -> None:
        """Waits until all that is in the topic now is in the fold."""
        assert self._following is not None
        end = (await self._consumer.end_offsets([SCHEMAS]))[SCHEMAS]
        while (self._consumer.position(SCHEMAS) or 0) < end:
            if self._following.done():
                self._following.result()
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            await asyncio.wait({moved, self._following}, timeout=LOOK_SECONDS,
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            moved.cancel()

    @property
    def failure(self) -> BaseException | None:
        """Why the topic is not followed any more, if it is not. Then a new log must be opened."""
        following = self._following
        if following is None or not following.done():
            return None
        return asyncio.CancelledError() if following.cancelled() else following.exception()

    async def write(self, decide: Callable[[Registry], Decision[T]]) -> T:
        """Appends what `decide` makes of the fold, until all of it counts: its answer.

        So its result holds, even if other writers use the topic.
        """
        async with self._writing:
            await self.catch_up()
            await self._put_right()
            while True:
                with self.lock:
                    answer, records = decide(self.registry)
                counts = await self._counts(records)
                await self._put_right()
                if counts:
                    return answer

    async def _put_right(self) -> None:
        """Appends the repairs of what does not count, until there are none.

        If another writer's record came first, the fold ignores ours and asks for another.
        """
        while repairs := self.registry.repairs():
            await self._counts(repairs)

    async def _counts(self, records: tuple[Record, ...]) -> bool:
        """Appends records and reads them back. True if the fold accepted all of them."""
        if not records:
            return True
        self._ignored.clear()
        sent = [
            await self._producer.send(SCHEMAS_TOPIC, value, key, partition=0)
            for key, value in records
        ]
        await self._producer.flush()
        stored = await asyncio.gather(*sent)
        await self.catch_up()
        return self._ignored.isdisjoint(record.offset for record in stored)


async def _ensure_topic(client: Client, admin: Admin) -> None:
    """Creates `_schemas` if it is missing, and refuses an existing one that would lose schemas."""
    await admin.create_missing_topics([NewTopic(SCHEMAS_TOPIC, 1, configs=TOPIC_CONFIGS)])
    count = len((await client.topic(SCHEMAS_TOPIC, create=False)).partitions)
    if count != 1:
        raise ConfigError(f"topic {SCHEMAS_TOPIC} has {count} partitions, expected 1")
    resource = ConfigResource(ResourceType.TOPIC, SCHEMAS_TOPIC)
    entries = (await admin.describe_configs([resource]))[resource]
    policy = entries["cleanup.policy"].value if "cleanup.policy" in entries else None
    if policy != "compact":
        raise ConfigError(
            f"topic {SCHEMAS_TOPIC} has cleanup.policy {policy}, expected compact: "
            "schemas would be lost"
        )


class LogRegistry:
    """A schema registry for any thread, over a topic. Close it, or use it as a context manager.

    `timeout_ms` limits every call. The first call reads the whole topic, within the same limit.
    """

    def __init__(self, bootstrap_servers: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._servers, self._timeout_ms = bootstrap_servers, timeout_ms
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._log: SchemaLog | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections and thread. Calls that are under way end with BrokerUnavailable."""
        with self._starting:
            self._closed = True
            loop, thread, opened = self._loop, self._thread, self._log
            self._loop = self._thread = self._log = None
        if loop is None or thread is None:
            return
        if opened is not None:
            asyncio.run_coroutine_threadsafe(_bounded(opened.close()), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_SECONDS)

    # --- what is known -----------------------------------------------------------------

    def schema(self, id: int) -> str:  # noqa: A002
        """The text of the schema with this id; an unknown id is looked up in the log."""
        opened = self._opened()
        with opened.lock:
            if opened.registry.has_id(id):
                return opened.registry.by_id(id)
        return self._fresh(lambda registry: registry.by_id(id))

    def latest(self, subject: str) -> RegisteredSchema:
        """The subject's newest version as of now, its schema as a text without references."""
        return self._fresh(lambda r: r.without_references(r.latest(subject)))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject, also a deleted one, as `latest` has it."""
        return self._fresh(lambda r: r.without_references(r.version(subject, version)))

    def stored(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version as it is stored, of any schema type; the newest without a number."""
        return self._fresh(
            lambda r: r.latest(subject) if version is None else r.version(subject, version)
        )

    def stored_id(self, id: int) -> RegisteredSchema:  # noqa: A002
        """A version that has this id, as it is stored, of any schema type."""
        found = self._fresh(lambda registry: registry.find_id(id))
        if found is None:
            raise SchemaError(f"schema id {id} is not known to the schema registry")
        return found

    def versions(self, subject: str) -> tuple[int, ...]:
        """The subject's versions as of now; none for an unknown subject."""
        return self._fresh(lambda registry: registry.versions(subject))

    def subjects(self) -> tuple[str, ...]:
        """All subjects as of now."""
        return self._fresh(lambda registry: registry.subjects())

    def check(self, subject: str, schema: object) -> tuple[str, ...]:
        """Why the subject would refuse the schema as its next version; empty when it would not."""
        return self._fresh(lambda registry: registry.check(subject, schema))

    def compatibility(self, subject: str | None = None) -> Compatibility:
        """The level of a subject, or that of those without one."""
        return self._fresh(lambda registry: registry.compatibility(subject))

    # --- what changes it ---------------------------------------------------------------

    def register(self, subject: str, schema: object) -> int:
        """The id of the schema, which the subject now has. SchemaError when it is refused."""

        def decide(registry: Registry) -> Decision[int]:
            registration = registry.register(subject, schema)
            return registration.id, registration.records

        return self._ask(self._opened().write(decide), f"registering {subject!r}")

    def set_compatibility(self, level: Compatibility, subject: str | None = None) -> None:
        """Sets a subject's level, or that of all that have none of their own."""
        self._write(lambda registry: registry.set_compatibility(level, subject))

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> None:
        """Hides a version, or forgets a hidden one for good."""
        self._write(lambda r: r.delete_version(subject, version, permanent=permanent))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        """Hides a subject's versions, or forgets hidden ones for good."""
        self._write(lambda registry: registry.delete_subject(subject, permanent=permanent))

    # --- from any thread into the loop's -------------------------------------------------

    def _write(self, decide: Callable[[Registry], tuple[Record, ...]]) -> None:
        self._ask(self._opened().write(lambda registry: (None, decide(registry))), "writing")

    def _fresh(self, question: Callable[[Registry], T]) -> T:
        """The answer of a fold that has all that is in the topic now."""
        opened = self._opened()
        self._ask(opened.catch_up(), "reading")
        with opened.lock:
            return question(opened.registry)

    def _opened(self) -> SchemaLog:
        """The log, opened by the first call. A failure is not kept: the next call tries again."""
        with self._starting:
            if self._closed:
                raise BrokerUnavailable(f"the schema registry at {self._servers} is closed here")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="kafkalite-schemas", daemon=True
                )
                self._thread.start()
            if self._log is not None and self._log.failure is not None:
                failed, self._log = self._log, None
                self._ask(_bounded(failed.close()), "closing")
            if self._log is None:
                opened = SchemaLog(self._servers)
                try:
                    self._ask(opened.open(), "opening")
                except BaseException:
                    self._ask(_bounded(opened.close()), "closing")
                    raise
                self._log = opened
            return self._log

    def _ask(self, work: Coroutine[Any, Any, T], doing: str) -> T:
        """Runs `work` in the loop's thread and waits for it, but not for ever."""
        loop = self._loop
        if loop is None:
            work.close()
            raise BrokerUnavailable(f"the schema registry at {self._servers} is closed here")
        assert threading.current_thread() is not self._thread, "it would wait for itself"

        async def bounded() -> T:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await work

        try:
            return asyncio.run_coroutine_threadsafe(bounded(), loop).result()
        except TimeoutError:
            seconds = self._timeout_ms / 1000
            raise BrokerUnavailable(
                f"the schema registry at {self._servers} gave no answer in {seconds:g} s ({doing})"
            ) from None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The thread: runs the loop until it is stopped, then ends its remaining tasks."""
    asyncio.set_event_loop(loop)
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


async def _bounded(closing: Coroutine[Any, Any, None]) -> None:
    """Closes, whatever comes of it."""
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await closing
    except (KafkaliteError, TimeoutError) as error:
        log.warning("closing the schema registry's connections: %s", error)


_registries: dict[tuple[int, str], LogRegistry] = {}
_registries_lock = threading.Lock()


def registry_at(bootstrap_servers: str) -> LogRegistry:
    """This process's registry for these servers: made by the first call, never closed.

    A forked child gets one of its own, since threads do not live on in it.
    """
    with _registries_lock:
        place = (os.getpid(), bootstrap_servers)
        if place not in _registries:
            _registries[place] = LogRegistry(bootstrap_servers)
        return _registries[place]
