"""What the tasks of one worker answer: rows of stores, while they run.                     [IO]

    a caller ── get(store, key) ──> task thread, between two slices of records
             <──────────────────── the row ─┘

A question runs in the task thread where no task is at work (reads.py), so it sees rows as one
record left them, some of them not committed yet. A caller who has written a record may wait until
the store has seen it: `after` is the record's place in its topic. The record may have gone through
repartition topics; of those in between, what the group has committed counts.

Global tables are asked in the same way; every worker has all of their rows. A copy of a task that
runs elsewhere, or that is restored here, is asked where that is wanted: its rows are committed
ones, and it says how many records of the changelog it lacks.

Owns   nothing: tasks, thread and client are the worker's.
Never  changes a store.
Fails  with StoreUnavailable where another worker has the key, or nobody yet; with TopologyError for
       a store that there is not, and for a topic that does not lead to it.
Source Kafka Streams' interactive queries; KIP-535 (who has a key).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.core.protocol.partitioner import murmur2, to_positive
from kafkalite.core.types import TopicPartition, Windowed
from kafkalite.errors import KafkaliteError, TopologyError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.serde.serde import SerdeContext
from kafkalite.streams import plan as p
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.global_store import GlobalView
from kafkalite.streams.local.global_tables import GlobalTables
from kafkalite.streams.local.peers import Peers
from kafkalite.streams.local.state import START
from kafkalite.streams.local.task import Task, TaskState
from kafkalite.streams.local.task_inputs import TaskInputs
from kafkalite.streams.local.task_thread import TaskThread
from kafkalite.streams.rewrites import SubTopology
from kafkalite.streams.stores import Store

R = TypeVar("R")

LOOK_SECONDS: Final = 0.01  # between two looks at positions while somebody waits
COMMITS_SECONDS: Final = 0.05  # the same at what the group has committed

Pair = tuple[Any, Any]


class StoreUnavailable(KafkaliteError):
    """A store's rows cannot be read here, or not yet. `partition` is that of the key."""

    def __init__(self, words: str, partition: int | None = None) -> None:
        super().__init__(words)
        self.partition = partition


class Place(Protocol):
    """A record in the log: a producer's RecordMetadata, or a Record that was read."""

    @property
    def topic(self) -> str | None:
        """Its topic."""

    @property
    def partition(self) -> int | None:
        """Its partition."""

    @property
    def offset(self) -> int | None:
        """Its offset."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a store is: its sub-topology, and how many tasks that has."""

    store: Store
    sub: SubTopology | None  # None: a global table
    width: int
    is_hashed: bool  # whether our own hash decided about the partition of every key

    @property
    def is_windowed(self) -> bool:
        """Whether its keys are windows."""
        return getattr(self.store.node, "window", None) is not None


class Queries:
    """Questions to the stores of one worker."""

    def __init__(
        self,
        application_id: str,
        subs: Sequence[SubTopology],
        registry: SchemaRegistry,
        client: Client,
        thread: TaskThread,
        tasks: Callable[[], Mapping[TaskId, Task]],
        inputs: Callable[[], TaskInputs],
        copies: Callable[[], Mapping[TaskId, tuple[Task, int]]],
        global_tables: GlobalTables,
    ) -> None:
        self._application_id = application_id
        self._subs = {sub.id: sub for sub in subs}
        self._context = SerdeContext(registry, is_key=True)
        self._client = client
        self._read = thread.read
        self.reads = thread.reads  # for those who wait in a way of their own
        self._homes: tuple[TaskInputs | None, dict[str, Home]] = None, {}
        self._tasks = tasks
        self._inputs = inputs
        self._copies = copies
        self._globals = global_tables
        self.peers = Peers(application_id, client, self._task_of)

    # What is asked

    async def get(self, name: str, key: Any, max_lag: int | None = None) -> Any:
        """The row of a key, None where there is none; also of a copy that lacks at most `max_lag`
        records, in the worker's loop."""
        home = self.home(name)
        partition = self.partition_of(home, key)
        if max_lag is not None and (copy := self.copy(home, partition, max_lag)) is not None:
            return copy.store(name).get(key)
        return await self._read(lambda: self.look(home, key, partition), is_short=True)

    def lag(self, name: str, key: Any) -> int:
        """How many records the rows that `get` looks into lack; 0 where the task runs."""
        home = self.home(name)
        partition = self.partition_of(home, key)
        if self.runs(home, partition):
            return 0
        if (copy := self._copy(home, partition)) is None:
            raise self._elsewhere(home, key, partition)
        return copy[1]

    def copy(self, home: Home, partition: int, max_lag: int) -> Task | None:
        """A copy of a task that does not run here, for the worker's loop. StoreUnavailable where it
        lacks more records than `max_lag`."""
        if self.runs(home, partition) or (found := self._copy(home, partition)) is None:
            return None
        return _near(home, *found, max_lag)

    def _copies_of(self, home: Home, max_lag: int) -> list[Task]:
        """The copies of all tasks that have a store and do not run here, as `copy` for each."""
        return [
            _near(home, task, lag, max_lag)
            for task_id, (task, lag) in sorted(self._copies().items())
            if home.sub is not None
            and task_id.sub_topology == home.sub.id
            and not self.runs(home, task_id.partition)
        ]

    def _copy(self, home: Home, partition: int) -> tuple[Task, int] | None:
        return None if home.sub is None else self._copies().get(TaskId(home.sub.id, partition))

    def look(self, home: Home, key: Any, partition: int) -> Any:
        """The row of a key of that partition, None where there is none; in the task thread."""
        name = home.store.name
        if home.sub is None:
            return self._global(name).get(key)
        row = None
        if (task := self._running(home, partition)) is not None:
            row = task.store(name).get(key)
        if row is None and not home.is_hashed:
            others = (each for each in self._tasks_of(home) if each is not task)
            rows = (each.store(name).get(key) for each in others)
            row = next((each for each in rows if each is not None), None)
        if row is None and task is None:
            raise self._elsewhere(home, key, partition)
        return row

    def look_at_windows(
        self, home: Home, key: Any, partition: int, start: int, end: int, limit: int
    ) -> list[Pair]:
        """The pairs of a key's windows that start in [start, end]; in the task thread."""
        if (task := self._running(home, partition)) is None:
            raise self._elsewhere(home, key, partition)
        return windows_of(task, home, key, start, end, limit)

    def _global(self, name: str) -> GlobalView:
        if not self._globals.are_read:
            raise StoreUnavailable(f"global table {name!r}: its topic is being read")
        return self._globals.stores[name].view()

    def runs(self, home: Home, partition: int) -> bool:
        """Whether the task of that partition runs in this worker."""
        return home.sub is None or self._running(home, partition) is not None

    def _running(self, home: Home, partition: int) -> Task | None:
        assert home.sub is not None, "global tables have no tasks"
        task = self._tasks().get(TaskId(home.sub.id, partition))
        return None if task is None or task.state is TaskState.FAILED else task

    def _elsewhere(self, home: Home, key: Any, partition: int) -> StoreUnavailable:
        name = home.store.name
        if home.sub is None or not self.has_tasks(home):
            return self._nothing_of(name)
        return StoreUnavailable(
            f"store {name!r}: the key {key!r} belongs to task {home.sub.id}_{partition}, which "
            f"does not run in this worker of {self._application_id!r}",
            partition,
        )

    async def rows(
        self, name: str, pick: Callable[[Any], Sequence[Pair]], max_lag: int | None = None
    ) -> list[Pair]:
        """The pairs that `pick` takes of each task's view, in the order of their keys' bytes; also
        of copies that lack at most `max_lag` records."""
        home = self.home(name)
        if home.sub is None:
            return list(await self._read(lambda: pick(self._global(name))))
        tasks = self._tasks_of(home)
        copies = [] if max_lag is None else self._copies_of(home, max_lag)
        if not tasks and not copies:
            raise self._nothing_of(name)
        found: list[Pair] = []
        for copy in copies:  # before the first await: one may begin to run meanwhile
            found += _picked(copy, name, pick)
        for task in tasks:
            found += await self._read(partial(_picked, task, name, pick))
        if len(tasks) + len(copies) > 1:
            keys = self.key_bytes(home, [key for key, _ in found])
            order = sorted(range(len(found)), key=lambda at: (keys[at], *_window(found[at][0])))
            found = [found[at] for at in order]
        return found

    async def seen(self, name: str, after: Place, seconds: float) -> None:
        """Returns once the store has seen the record at `after`. StoreUnavailable if not in time.

        Only the tasks of this worker are asked about the last step.
        """
        topic, partition, offset = after.topic, after.partition, after.offset
        if topic is None or partition is None or offset is None or offset < 0:
            raise TopologyError(f"store {name!r}: after: expected a record's place, got {after!r}")
        home = self.home(name)
        try:
            async with asyncio.timeout(seconds):
                await self._wait(home, TopicPartition(topic, partition), offset + 1)
        except TimeoutError:
            raise StoreUnavailable(
                f"store {name!r} has not seen offset {offset} of {topic}-{partition} within "
                f"{seconds:g} s"
            ) from None

    def _nothing_of(self, name: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"store {name!r}: no task that has it runs in this worker of {self._application_id!r}"
        )

    # Where things are

    @property
    def names(self) -> list[str]:
        """The stores of the application."""
        stores = [store.name for sub in self._subs.values() for store in sub.stores]
        return sorted(stores + [table.name for table in self._globals.tables])

    def _partitions_of(self) -> Mapping[str, int]:
        return self._inputs().partitions_of

    def _task_of(self, tp: TopicPartition) -> TaskId | None:
        inputs = self._inputs()
        return inputs.task_of(tp) if tp.topic in inputs.topics else None

    def home(self, name: str) -> Home:
        """Where a store is. TopologyError when there is none of that name."""
        inputs, homes = self._homes
        if inputs is not self._inputs():
            self._homes = self._inputs(), (homes := {})
        if (found := homes.get(name)) is not None:
            return found
        for sub in self._subs.values():
            for store in sub.stores:
                if store.name == name:
                    width = self._partitions_of().get(store.changelog_topic, 0)
                    home = homes[name] = Home(store, sub, width, _is_hashed(sub))
                    return home
        for table in self._globals.tables:
            if table.name == name:
                (topic,) = table.topics
                store = Store(name, topic, table, table.key, table.value)
                return homes.setdefault(name, Home(store, None, 0, is_hashed=True))
        raise TopologyError(
            f"{self._application_id}: no store is called {name!r}; stores are {self.names}"
        )

    def key_bytes(self, home: Home, keys: Sequence[Any]) -> list[bytes]:
        """The bytes of keys in topics; of a windowed key those of the key in the window."""
        inner = [key.key if isinstance(key, Windowed) else key for key in keys]
        codec = home.store.key.open(self._context)
        found = codec.serialize(home.store.changelog_topic, inner)
        if None in found:
            raise TopologyError(f"store {home.store.name!r}: None is no key")
        return [data for data in found if data is not None]

    def partition_of(self, home: Home, key: Any) -> int:
        """The partition of a key, by the hash of Kafka's producers."""
        if home.sub is None:
            return 0
        (data,) = self.key_bytes(home, [key])
        if not home.width:
            raise StoreUnavailable(f"store {home.store.name!r}: the application has not started")
        return to_positive(murmur2(data)) % home.width

    def order_of(self, home: Home, key: Any) -> bytes:
        """The place of a key among others; that of a window behind its key's."""
        (data,) = self.key_bytes(home, [key])
        return data + b"".join(START.pack(at) for at in _window(key) if isinstance(key, Windowed))

    def key_of_order(self, home: Home, order: bytes) -> Any:
        """The key of a place that `order_of` gave; of a window the key in it. SerdeError for bytes
        that are no place."""
        data = order[: -2 * START.size] if home.is_windowed else order
        codec = home.store.key.open(self._context)
        return codec.deserialize(home.store.changelog_topic, [data])[0]

    def has_tasks(self, home: Home) -> bool:
        """Whether this worker has rows of a store."""
        return home.sub is None or bool(self._tasks_of(home))

    def _tasks_of(self, home: Home) -> list[Task]:
        assert home.sub is not None, "global tables have no tasks"
        tasks = self._tasks()
        return [
            task
            for task_id, task in sorted(tasks.items())
            if task_id.sub_topology == home.sub.id and task.state is not TaskState.FAILED
        ]

    # Read your writes

    async def _wait(self, home: Home, tp: TopicPartition, end: int) -> None:
        if home.sub is None:
            await self._until_read(home.store, tp, end)
            return
        begin = next((s.id for s in self._subs.values() if s.source_of(tp.topic)), None)
        ways = None if begin is None else self._ways(begin, home.sub.id)
        if begin is None or ways is None:
            raise TopologyError(
                f"store {home.store.name!r}: topic {tp.topic!r} does not lead to it"
            )
        ends: dict[int, dict[TopicPartition, int]] = {sub: {} for sub in ways}
        ends[begin] = {tp: end}
        async with Admin(self._client) as admin:
            for sub in TopologicalSorter(ways).static_order():
                if sub == home.sub.id:
                    break
                await self._until_committed(admin, ends[sub])
                for topic in self._subs[sub].repartition_sinks:
                    below = next((s for s in ways if self._subs[s].source_of(topic)), None)
                    if below is not None:
                        ends[below] |= await self._ends(admin, topic)
            await self._until_processed(admin, ends[home.sub.id])

    async def _until_read(self, table: Store, tp: TopicPartition, end: int) -> None:
        if tp.topic != table.changelog_topic:
            raise TopologyError(f"global table {table.name!r} is not of topic {tp.topic!r}")
        store = self._globals.stores.get(table.name)
        while store is None or store.offsets.get(tp.partition, 0) < end:
            await asyncio.sleep(LOOK_SECONDS)
            store = self._globals.stores.get(table.name)

    def _ways(self, begin: int, end: int) -> dict[int, set[int]] | None:
        """The sub-topologies on ways from one to another, each with those just above it."""
        below: dict[int, set[int]] = {
            sub.id: {s.id for s in self._subs.values() for t in sub.repartition_sinks
                     if s.source_of(t)}
            for sub in self._subs.values()
        }  # fmt: skip

        def reached(start: int, edges: Mapping[int, set[int]]) -> set[int]:
            found, todo = {start}, [start]
            while todo:
                new = edges.get(todo.pop(), set()) - found
                found |= new
                todo += new
            return found

        above: dict[int, set[int]] = {sub: set() for sub in below}
        for sub, subs in below.items():
            for each in subs:
                above[each].add(sub)
        between = reached(begin, below) & reached(end, above)
        if end not in between:
            return None
        return {sub: above[sub] & between for sub in between}

    async def _ends(self, admin: Admin, topic: str) -> dict[TopicPartition, int]:
        count = self._partitions_of()[topic]
        partitions = [TopicPartition(topic, number) for number in range(count)]
        return await admin.end_offsets(partitions, isolation_level="read_committed")

    async def _until_committed(self, admin: Admin, ends: Mapping[TopicPartition, int]) -> None:
        while waiting := {tp: end for tp, end in ends.items() if end}:
            committed = await admin.list_group_offsets(self._application_id)
            if all(tp in committed and committed[tp].offset >= waiting[tp] for tp in waiting):
                return
            await asyncio.sleep(COMMITS_SECONDS)

    async def _until_processed(self, admin: Admin, ends: Mapping[TopicPartition, int]) -> None:
        """As the tasks of this worker know; where they do not, as the group has committed."""
        while waiting := {
            tp: end for tp, end in ends.items() if end and not self._has_processed(tp, end)
        }:
            committed = await admin.list_group_offsets(self._application_id)
            ends = {
                tp: end
                for tp, end in waiting.items()
                if tp not in committed or committed[tp].offset < end
            }
            if ends:
                await asyncio.sleep(LOOK_SECONDS)

    def _has_processed(self, tp: TopicPartition, end: int) -> bool:
        tasks = (task for task in self._tasks().values() if task.partition == tp.partition)
        positions = (task.position(tp.topic) for task in tasks)
        return any(position is not None and position >= end for position in positions)


def _near(home: Home, copy: Task, lag: int, max_lag: int) -> Task:
    """The copy; StoreUnavailable where it lacks more records than `max_lag`."""
    if lag > max_lag:
        raise StoreUnavailable(
            f"store {home.store.name!r}: the copy of task {copy} in this worker lacks {lag:,} "
            f"records, more than max_lag={max_lag}",
            copy.partition,
        )
    return copy


def _picked(task: Task, name: str, pick: Callable[[Any], Sequence[Pair]]) -> Sequence[Pair]:
    return pick(task.store(name))


def windows_of(task: Task, home: Home, key: Any, start: int, end: int, limit: int) -> list[Pair]:
    """The pairs of a key's windows that start in [start, end]."""
    return list(islice(task.store(home.store.name).fetch(key, start, end), limit))


def _is_hashed(sub: SubTopology) -> bool:
    internal = {topic.name for topic in sub.repartition_sources}
    return all(internal.issuperset(source.topics) for source in sub.sources) and not any(
        isinstance(node, p.Sink) and node.topic in internal and node.partitioner is not None
        for node in sub.plan.nodes
    )


def _window(key: Any) -> tuple[int, int]:
    return (key.start, key.end) if isinstance(key, Windowed) else (0, 0)
