"""Where state on disk is, and which process has it.                                      [IO]

    <state_dir>/<application.id>/<sub-topology>_<partition>/         a task
                                                       .lock         locked while a process has it
                                                       .offsets      how far its stores are, by name
                                                       <store>/      RocksDB
                                 worker-1                            see identity.py

A task that moves between workers of one machine finds its state: locks are on tasks, not on the
whole directory. A lock goes with its process, so a worker that was killed leaves the state to the
next one. Where another process has the task's directory (it is paused, say, and the group went on
without it) the task gets a directory of its own: 0_1.2, 0_1.3 and so on. Where there are several,
the one that is furthest is tried first. Offsets beside a directory may be some seconds old.

Owns   the directory of one application.
Fails  with TopologyError where a directory cannot be made, or `SLOTS_MAX` processes have the task.
Source Kafka Streams' StateDirectory.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from kafkalite.errors import TopologyError
from kafkalite.streams.local.state.backend import Place, StateDamaged
from kafkalite.streams.local.state.identity import Identity, take_identity
from kafkalite.streams.local.state.memory import InMemory
from kafkalite.streams.local.state.rocks import RocksBackend, new_cache

SLOTS_MAX: Final = 16
LOCK: Final = ".lock"
OFFSETS: Final = ".offsets"
TASK: Final = re.compile(r"\d+_\d+")
NOTE_MS: Final = 5_000
LOCK_TRIES: Final = 20
LOCK_WAIT_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


class Places:
    """Where a worker keeps the state of its tasks: in a directory, or nowhere but in memory."""

    def __init__(self, state_dir: str | Path | None, application_id: str) -> None:
        self._directory = None
        if state_dir is not None:
            self._directory = StateDirectory(state_dir, application_id)

    def take_identity(self, random: Random) -> Identity | None:
        """A name that outlives this worker, until it is closed; None without a directory."""
        return None if self._directory is None else take_identity(self._directory.path, random)

    def offsets(self) -> dict[str, dict[str, int]]:
        """How far the stores of tasks on disk follow their changelogs, by task and store."""
        return {} if self._directory is None else self._directory.offsets()

    def of_worker(self, name: str) -> Place:
        """A place for what every worker has for itself. Others on this machine have one each: the
        first that no process has is taken, and none is waited for."""
        return InMemory() if self._directory is None else self._directory.task(name)

    async def open(self, tasks: Iterable[str]) -> dict[str, Place]:
        """A place for each task.

        The worker that had a task a moment ago, on the same machine, may be about to let it go:
        that is waited for, all tasks at once.
        """
        directory = self._directory
        if directory is None:
            return {task: InMemory() for task in tasks}
        opened: dict[str, Place] = {}
        missing = list(tasks)
        for _ in range(LOCK_TRIES):
            for task in list(missing):
                if (place := directory.first_choice(task)) is not None:
                    opened[task] = place
                    missing.remove(task)
            if not missing:
                return opened
            await asyncio.sleep(LOCK_WAIT_SECONDS)
        return opened | {task: directory.task(task) for task in missing}


class StateDirectory:
    """The state of an application on this machine."""

    def __init__(self, state_dir: str | Path, application_id: str) -> None:
        self._cache = new_cache()  # where RocksDB is missing: an error now, not at the first task
        self.path = Path(state_dir) / application_id
        with _named(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def first_choice(self, name: str) -> TaskDirectory | None:
        """The directory of a task such as `0_3`, unless another process has it."""
        return _lock(self._slots(name)[0], self._cache)

    def task(self, name: str) -> TaskDirectory:
        """The directory of a task, or the first one beside it that no process has."""
        for path in self._slots(name):
            if (found := _lock(path, self._cache)) is not None:
                return found
        raise TopologyError(f"{self.path}: {SLOTS_MAX} processes have the state of task {name}")

    def offsets(self) -> dict[str, dict[str, int]]:
        """How far the stores of each task are, by task and store, where something is known."""
        names = {path.name.partition(".")[0] for path in self.path.iterdir()}
        found = {n: _read_offsets(self._slots(n)[0]) for n in names if TASK.fullmatch(n)}
        return {name: offsets for name, offsets in found.items() if offsets}

    def _slots(self, name: str) -> list[Path]:
        """The directories that a task may have, those that are furthest first."""
        numbers = range(2, SLOTS_MAX + 1)
        paths = [self.path / name, *(self.path / f"{name}.{number}" for number in numbers)]
        return sorted(paths, key=lambda path: -sum(_read_offsets(path).values()))


class TaskDirectory:
    """The stores of a task that this process has. Closing it leaves them to the next one."""

    def __init__(self, path: Path, lock: int, cache: Any) -> None:
        self.path = path
        self._cache = cache
        self._lock: int | None = lock
        self._backends: dict[str, RocksBackend] = {}
        self._noted_ms = 0

    def backend(self, store: str) -> RocksBackend:
        """The backend of a store; one that cannot be read is made anew."""
        path = self.path / store
        if RocksBackend.is_damaged(path):
            _throw_away(path, "it could not be read before")
        try:
            opened = RocksBackend(path, self._cache)
        except StateDamaged as error:
            _throw_away(path, str(error.__cause__))
            opened = RocksBackend(path, self._cache)
        self._backends[store] = opened
        return opened

    def note(self, now_ms: int) -> None:
        """Writes the offsets down if that was some seconds ago."""
        if now_ms - self._noted_ms >= NOTE_MS:
            self._noted_ms = now_ms
            self._write_offsets()

    def _write_offsets(self) -> None:
        """A process that looks meanwhile finds the old file or the new one."""
        found = {store: backend.metadata("offset") for store, backend in self._backends.items()}
        offsets = {store: int(offset) for store, offset in found.items() if offset is not None}
        new = self.path / f"{OFFSETS}.new"
        new.write_text(json.dumps(offsets))
        new.replace(self.path / OFFSETS)

    def close(self) -> None:
        """Closes every backend, then gives the lock back."""
        if self._backends:
            with suppress(StateDamaged, OSError):
                self._write_offsets()
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Says which directory cannot be used, and why."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise TopologyError(f"state_dir: {path} cannot be used: {reason}") from error


def _lock(path: Path, cache: Any) -> TaskDirectory | None:
    """Takes a task's directory if no process has it, and writes down which one has it now."""
    with _named(path):
        path.mkdir(exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "?"
        log.info("%s: process %s has this state", path, holder)
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return TaskDirectory(path, lock, cache)


def _read_offsets(path: Path) -> dict[str, int]:
    """What was noted beside a directory; nothing where that cannot be read."""
    try:
        found = json.loads((path / OFFSETS).read_text())
        return {str(store): int(offset) for store, offset in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _throw_away(path: Path, reason: str) -> None:
    log.warning("%s: deleted and rebuilt from the changelog: %s", path, reason)
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
