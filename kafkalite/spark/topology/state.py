"""A task's state between micro-batches: what its changelogs would hold, as blobs in Spark.  [P]

    commit of a task ──► a delta: the changelog's rows of each store, as packets
    deltas of more rows than a fold of them pays  ──► a snapshot in the place of all blobs
    the next micro-batch ──► the worker's task goes on, or a new one is restored from the blobs

A head stands beside the blobs: a token of the last commit, and how many rows there are. A worker
process keeps the tasks that it ran, each with the token of its last commit. Spark repeats failed
batches, moves tasks between processes and goes back to its last checkpoint; a kept task is used
only while its token is the head's, so state is never ahead of Spark's. Every commit writes a new
token, one without rows too: a task remembers more than its stores while it lives.

    head    msgpack [version, token, rows of the last snapshot, rows of the deltas since]
    blob    msgpack [[store, packet], ...]

Owns   the forms of head and blobs, and the tasks of a worker process that are kept.
Never  keeps more than `tasks_max` tasks; the one that was used longest ago goes.
Fails  with CorruptBatchError for a head or a blob that is none, with ProcessingError where a row is
       none of its store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgpack

from kafkalite.clients.producer.batching import chunks
from kafkalite.core.types import Columns, concat
from kafkalite.errors import CorruptBatchError
from kafkalite.spark.topology.packets import pack, unpack
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.task import Task

VERSION: Final = 1
ROWS_MIN: Final = 1_000  # deltas of fewer rows are never folded
DELTAS_PER_ROW: Final = 2  # a snapshot is due when deltas have more rows than so many snapshots
BLOB_BYTES: Final = 1 << 20  # of one blob, about
TASKS_MAX: Final = 256  # of a worker process

StoreRows = tuple[str, Columns]


class Blobs(Protocol):
    """Where Spark keeps the state of one task. Changes belong to the micro-batch."""

    def head(self) -> bytes | None:
        """What was written last beside the blobs; None: the task is new."""

    def read(self) -> Iterable[bytes]:
        """All blobs, in the order in which they were appended."""

    def append(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Adds blobs, perhaps none, and writes the head."""

    def replace(self, blobs: Sequence[bytes], head: bytes) -> None:
        """Puts blobs in the place of all others, and writes the head."""


class Head(NamedTuple):
    """What stands beside the blobs."""

    token: bytes
    rows: int  # of the last snapshot
    changes: int  # rows of the deltas since

    def encode(self) -> bytes:
        """The head as bytes."""
        packed: bytes = msgpack.packb([VERSION, *self])
        return packed

    @staticmethod
    def decode(data: bytes) -> Head:
        """The head in some bytes. CorruptBatchError for anything else."""
        try:
            version, token, rows, changes = msgpack.unpackb(data)
            if version != VERSION:
                raise ValueError(f"version {version!r}, expected {VERSION}")
            return Head(token, rows, changes)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise CorruptBatchError(f"the head of a task's state cannot be read: {error}") from None

    @property
    def is_heavy(self) -> bool:
        """Whether a snapshot is due."""
        return self.changes > max(ROWS_MIN, DELTAS_PER_ROW * self.rows)


def encode_rows(rows: Iterable[StoreRows]) -> list[bytes]:
    """Rows of stores as blobs of about BLOB_BYTES."""
    blobs: list[bytes] = []
    entries: list[tuple[str, bytes]] = []
    size = 0
    for store, columns in rows:
        for part, _ in chunks(columns, BLOB_BYTES):
            packet = pack(part)
            if entries and size + len(packet) > BLOB_BYTES:
                blobs.append(msgpack.packb(entries))
                entries, size = [], 0
            entries.append((store, packet))
            size += len(packet)
    if entries:
        blobs.append(msgpack.packb(entries))
    return blobs


def decode_rows(blobs: Iterable[bytes]) -> Iterator[StoreRows]:
    """The rows of stores in blobs, in their order. CorruptBatchError for anything else."""
    for blob in blobs:
        try:
            entries: list[tuple[str, bytes]] = msgpack.unpackb(blob)
            yield from [(store, unpack(packet)) for store, packet in entries]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise CorruptBatchError(f"a blob of a task's state cannot be read: {error}") from None


def folded(rows: Iterable[StoreRows]) -> dict[str, Columns]:
    """The last row of each key by store, in the order of a compacted log; deleted rows are gone."""
    by_store: dict[str, list[Columns]] = {}
    for store, columns in rows:
        by_store.setdefault(store, []).append(columns)
    found: dict[str, Columns] = {}
    for store, parts in by_store.items():
        whole = concat(parts)
        last = {key: at for at, key in enumerate(whole.keys)}
        keep = bytearray(len(whole))
        for at in last.values():
            keep[at] = whole.values[at] is not None
        if any(keep):
            found[store] = whole.where(keep)
    return found


def seed(blobs: Blobs, rows: Iterable[StoreRows], token: bytes) -> None:
    """Puts rows of changelogs, whole or a part of them, into the state of a task that is new."""
    columns = list(rows)
    before = blobs.head()
    changes = sum(len(each) for _, each in columns)
    rows_before, changes_before = (0, 0) if before is None else Head.decode(before)[1:]
    head = Head(token, rows_before, changes_before + changes)
    blobs.append(encode_rows(columns), head.encode())


@dataclass(slots=True)
class _Kept:
    """A task after its last commit."""

    task: Task
    token: bytes


class Tasks:
    """The tasks of one worker process, by query run and name. `token` makes unique bytes."""

    def __init__(self, token: Callable[[], bytes], tasks_max: int = TASKS_MAX) -> None:
        self._token = token
        self._tasks_max = tasks_max
        self._kept: dict[tuple[str, str], _Kept] = {}  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, run: str, name: str, blobs: Blobs, make: Callable[[], Task]) -> Task:
        """The task as Spark's state has it: the kept one, or a new one that is restored.

        It is not kept any more: `commit` keeps it again, and after a failure nobody does.
        """
        head = blobs.head()
        kept = self._kept.pop((run, name), None)
        if kept is not None:
            if head is not None and Head.decode(head).token == kept.token:
                return kept.task
            kept.task.close()
        task = make()
        if head is not None:
            try:
                for store, columns in decode_rows(blobs.read()):
                    task.restore(store, columns)
            except BaseException:
                task.close()
                raise
        return task

    def commit(
        self, run: str, name: str, blobs: Blobs, task: Task, changelog: Iterable[Output]
    ) -> None:
        """Writes what a commit of `task` changed into Spark's state, and keeps the task."""
        token = self._token()
        rows = [(output.sink, output.columns) for output in changelog]
        write(blobs, rows, token)
        self._kept[run, name] = _Kept(task, token)
        while len(self._kept) > self._tasks_max:
            self._kept.pop(next(iter(self._kept))).task.close()

    def close(self) -> None:
        """Ends all tasks."""
        while self._kept:
            self._kept.popitem()[1].task.close()


def write(blobs: Blobs, rows: Sequence[StoreRows], token: bytes) -> None:
    """Appends a delta, or folds all blobs and the delta where deltas have become heavy."""
    data = blobs.head()
    before = Head(token, 0, 0) if data is None else Head.decode(data)
    changes = before.changes + sum(len(columns) for _, columns in rows)
    head = Head(token, before.rows, changes)
    if not head.is_heavy:
        blobs.append(encode_rows(rows), head.encode())
        return
    stores = folded([*decode_rows(blobs.read()), *rows])
    total = sum(len(columns) for columns in stores.values())
    blobs.replace(encode_rows(stores.items()), Head(token, total, 0).encode())
