"""The broker's log cleaner: it picks logs, cleans them in threads, and logs the result.    [IO]

    each log.cleaner.backoff.ms ──> the filthiest log ──> Cleaning.steps, on the event loop
                                          ^                    └─ work ──> a thread of its own
                                          └── at once, after a cleaning

The cleaner runs up to log.cleaner.threads cleanings at once. They share the dedupe buffer, the I/O
buffer and the rate log.cleaner.io.max.bytes.per.second. All settings but log.cleaner.enable may
change while it runs.

Owns   the threads, and the lists of logs that are being cleaned or cannot be cleaned.
Never  works on bytes on the event loop. Never stops at a failing log: a damaged log is reported
       once and left out until the broker restarts; after a disk error the cleaner tries again
       later.
Source apache/kafka LogCleaner, LogCleanerManager, Throttler.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, Protocol

from kafkalite.compaction.cleaner import (
    CleanerSettings,
    Cleaning,
    CleaningAborted,
    CleaningStats,
    DirtyRange,
)
from kafkalite.compaction.cleaning_pure import SECRET_BYTES
from kafkalite.compaction.schedule import Candidate, candidate, filthiest
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.duties import Duty, Slices
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.types import Now, TopicPartition
from kafkalite.errors import ApiError, CorruptBatchError, StorageError

log: Final = logging.getLogger(__name__)

LOGS_PER_SLICE: Final = 64
LOOK_MS: Final = 1_000  # how often it is asked whether the backoff is over, at the least
RETRY_MS: Final = 60_000  # after the disk refused
WAIT_S_MIN: Final = 0.001  # less than this is not worth the wait
WAIT_S_MAX: Final = 0.25  # then it is asked anew whether to go on, and at which rate


class Host(Protocol):
    """The part of the broker that the cleaner uses."""

    config: BrokerConfig
    logs: LogStore

    def now(self) -> Now:
        """This moment."""

    def monotonic_ms(self) -> int:
        """The monotonic clock, in ms."""

    def add_duty(self, duty: Duty) -> None:
        """Does something now and then."""

    def run_slices(self, slices: Slices, name: str, then: Callable[[], None] | None = None) -> None:
        """Does something in slices on the event loop."""


class Throttle:
    """A limit in bytes a second for all threads that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead = 0.0  # bytes that were taken before their time
        self._seen_at = 0.0  # when that was so, monotonic seconds

    def wait_s(self, byte_count: int, bytes_per_second: float, now: float) -> float:
        """How long to wait after `byte_count` more bytes, if the rate stays what it is now."""
        with self._lock:
            passed_s = max(0.0, now - self._seen_at)  # threads look at the clock before they wait
            self._ahead = max(0.0, self._ahead - bytes_per_second * passed_s) + byte_count
            self._seen_at += passed_s
            return self._ahead / bytes_per_second


class LogCleaner:
    """Compacts the logs of one broker.

    `threads` run up to log.cleaner.threads cleanings at once; the one thread of
    `checkpointing` writes checkpoints in order. `close` shuts both down. `monotonic` is in seconds.
    """

    def __init__(
        self,
        host: Host,
        *,
        threads: Executor,
        checkpointing: Executor,
        random_bytes: Callable[[int], bytes],
        monotonic: Callable[[], float],
    ) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._checkpointing = checkpointing
        self._random_bytes = random_bytes
        self._monotonic = monotonic
        self._throttle = Throttle()
        self._stopping = threading.Event()
        self._running: dict[TopicPartition, asyncio.Future[None]] = {}
        self._resting: dict[TopicPartition, int] = {}  # until when, monotonic
        self._looked_ms = host.monotonic_ms()
        self._max_ratio = 0.0  # of the logs that were last looked at
        self.uncleanable: dict[TopicPartition, str] = {}  # and why

    def start(self) -> None:
        """Begins to look for logs to clean, unless log.cleaner.enable says not to."""
        if self._host.config["log.cleaner.enable"]:
            interval_ms = max(1, min(LOOK_MS, self._host.config["log.cleaner.backoff.ms"]))
            self._host.add_duty(Duty("log cleaner", interval_ms, self._look_in_time))

    def gauges(self) -> dict[str, int]:
        """The current values of the gauges."""
        return {
            "cleaner_running": len(self._running),
            "cleaner_max_dirty_percent": round(100 * self._max_ratio),
            "cleaner_uncleanable_partitions": len(self.uncleanable),
        }

    async def close(self) -> None:
        """Breaks off cleanings, and returns when no thread uses a log any more."""
        self._stopping.set()
        while self._running:
            await asyncio.wait(self._running.values())
        self._threads.shutdown()
        self._checkpointing.shutdown()

    # -- what to clean

    def _look_in_time(self, monotonic_ms: int) -> Slices:
        """Looks, unless it did within log.cleaner.backoff.ms, which may be another by now."""
        if monotonic_ms - self._looked_ms < self._host.config["log.cleaner.backoff.ms"]:
            return iter(())
        return self._look(monotonic_ms)

    def _look(self, monotonic_ms: int) -> Slices:
        """Begins to clean as many logs as there are threads."""
        self._looked_ms = monotonic_ms
        self._forget_gone()
        threads = self._host.config["log.cleaner.threads"]
        while len(self._running) < threads and not self._stopping.is_set():
            found: list[Candidate] = []
            yield from self._candidates(monotonic_ms, found)
            self._max_ratio = max((each.ratio for each in found), default=0.0)
            free = [each for each in found if self._is_free(each.log.topic_partition)]
            chosen = filthiest(free)
            if chosen is None or self._stopping.is_set() or len(self._running) >= threads:
                return
            self._begin(chosen)

    def _candidates(self, monotonic_ms: int, found: list[Candidate]) -> Slices:
        """Collects the logs that have something to clean, LOGS_PER_SLICE looked at in a slice."""
        retention_ms = self._host.now().retention_ms
        for number, (where, opened) in enumerate(list(self._host.logs.logs.items()), start=1):
            if number % LOGS_PER_SLICE == 0:
                yield None
            if not (self._is_wanted(opened) and self._is_free(where)):
                continue
            if self._resting.get(where, monotonic_ms) > monotonic_ms:
                continue
            try:
                each = candidate(opened, self._host.logs.cleaned_offsets.get(where), retention_ms)
            except (ApiError, OSError, StorageError, CorruptBatchError) as error:
                self._failed(opened, error)
            else:
                found.extend(() if each is None else (each,))

    def _is_wanted(self, opened: PartitionLog) -> bool:
        """Whether the log is to be compacted, and is open and sound."""
        return (
            opened.config.is_compacted
            and opened.failure is None
            and self._host.logs.logs.get(opened.topic_partition) is opened
        )

    def _is_free(self, where: TopicPartition) -> bool:
        """Whether the log is not being cleaned, and can be."""
        return where not in self._running and where not in self.uncleanable

    def _forget_gone(self) -> None:
        there = self._host.logs.logs
        for known in (self.uncleanable, self._resting):
            for where in [where for where in known if where not in there]:
                del known[where]

    # -- cleaning

    def _begin(self, chosen: Candidate) -> None:
        where = chosen.log.topic_partition
        done = self._running[where] = self._loop.create_future()

        def then() -> None:
            del self._running[where]
            done.set_result(None)
            if not self._stopping.is_set():
                self._host.run_slices(self._look(self._host.monotonic_ms()), "log cleaner")

        self._host.run_slices(self._clean(chosen.log, chosen.dirty), f"cleaning {where}", then)

    def _clean(self, opened: PartitionLog, dirty: DirtyRange) -> Slices:
        where, started = opened.topic_partition, self._monotonic()
        store, now = self._host.logs, self._host.now()
        if not self._is_wanted(opened):
            return
        self._tell_reset(opened, store.cleaned_offsets.get(where))
        try:
            secret = self._random_bytes(SECRET_BYTES)
            pace = partial(self._pace, opened)
            cleaning = Cleaning(opened, dirty, self._settings(), secret, now, pace)
            if where not in store.cleaned_offsets:  # before the first gap is made
                store.cleaned_offsets[where] = dirty.first_dirty_offset
                yield from self._write_checkpoint()
            yield from self._work_through(cleaning)
        except CleaningAborted as aborted:
            log.info("%s", aborted)
        except (ApiError, OSError, StorageError, CorruptBatchError) as error:
            self._failed(opened, error)
        except Exception as error:  # a fault of ours: not again and again
            log.exception("%s: cleaning", where)
            self._failed(opened, error)
        else:
            if store.logs.get(where) is opened:
                store.cleaned_offsets[where] = cleaning.mapped_until
                yield from self._write_checkpoint()
            self._tell(where, dirty, cleaning, self._monotonic() - started)

    def _work_through(self, cleaning: Cleaning) -> Slices:
        """Goes through a cleaning's steps, their work done in a thread."""
        steps = cleaning.steps()
        work = next(steps, None)
        while work is not None:
            future = self._loop.run_in_executor(self._threads, work)
            yield future
            error = future.exception()
            work = next(steps, None) if error is None else steps.throw(error)

    def _write_checkpoint(self) -> Iterator[Any]:
        """Writes how far each log is cleaned; one writer at a time, in order."""
        write = self._host.logs.cleaned_offsets_writer()
        if write is not None:
            future = self._loop.run_in_executor(self._checkpointing, write)
            yield future
            future.result()

    def _settings(self) -> CleanerSettings:
        """Each thread has its share of the buffers."""
        config = self._host.config
        threads = config["log.cleaner.threads"]
        return CleanerSettings(
            config["log.cleaner.dedupe.buffer.size"] // threads,
            config["log.cleaner.io.buffer.load.factor"],
            max(1, config["log.cleaner.io.buffer.size"] // threads),
        )

    def _pace(self, opened: PartitionLog, byte_count: int) -> None:
        """Called by a thread after each run of bytes: waits as the throttle says. CleaningAborted
        when there is nothing to go on for."""
        wait_s = self._wait_s(byte_count)
        while not self._stopping.is_set() and self._is_wanted(opened):
            if wait_s <= WAIT_S_MIN:
                return
            self._stopping.wait(min(wait_s, WAIT_S_MAX))
            wait_s = self._wait_s(0)
        where = opened.topic_partition
        if self._stopping.is_set():
            raise CleaningAborted(f"{where}: the broker stops: its cleaning was broken off")
        raise CleaningAborted(
            f"{where}: gone, failed or no longer compacted: its cleaning was broken off"
        )

    def _wait_s(self, byte_count: int) -> float:
        rate = max(1.0, self._host.config["log.cleaner.io.max.bytes.per.second"])
        return self._throttle.wait_s(byte_count, rate, self._monotonic())

    # -- what the operator is told

    def _failed(self, opened: PartitionLog, error: Exception) -> None:
        where = opened.topic_partition
        if self._host.logs.logs.get(where) is not opened:
            return  # it was deleted
        if opened.failure is not None:
            log.error("%s", error)
        elif isinstance(error, OSError | ApiError):
            self._resting[where] = self._host.monotonic_ms() + RETRY_MS
            log.warning(
                "%s: not compacted, tried again in %d s: %s", where, RETRY_MS // 1_000, error
            )
        else:
            self.uncleanable[where] = str(error)
            log.error("%s: not compacted until the broker starts again: %s", where, error)

    @staticmethod
    def _tell_reset(opened: PartitionLog, cleaned_offset: int | None) -> None:
        if cleaned_offset is not None and cleaned_offset > opened.log_end_offset:
            log.warning(
                "%s: was compacted up to offset %d and ends at %d; all of it is looked at again",
                opened.topic_partition,
                cleaned_offset,
                opened.log_end_offset,
            )

    @staticmethod
    def _tell(
        where: TopicPartition, dirty: DirtyRange, cleaning: Cleaning, elapsed_s: float
    ) -> None:
        stats: CleaningStats = cleaning.stats
        log.info(
            "%s: compacted up to offset %d, dirty from %d: %.1f MB to %.1f MB, %d segments to %d, "
            "%d keys (map %d %% full), %.1f s, %.0f MB/s",
            where,
            cleaning.mapped_until,
            dirty.first_dirty_offset,
            stats.read_bytes / 1e6,
            stats.written_bytes / 1e6,
            stats.segments_before,
            stats.segments_after,
            stats.keys,
            100 * stats.keys // stats.map_slots,
            elapsed_s,
            stats.read_bytes / 1e6 / max(elapsed_s, 1e-9),
        )
