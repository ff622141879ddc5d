"""Loads of topics: one round, or a round every so often, until a signal ends them.          [IO]

    signal ─▶ between commits: the command ends at once
              during a commit: the command ends after it

A load that breaks off goes on in the next one, so no moment is wrong for kill -9; a signal spares
that next load the work.

Owns   the handlers of SIGINT and SIGTERM while rounds run.
Fails  with the error of a load, in rounds that repeat only if the error stays for TRIES_MAX loads.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkalite.cli import SIGNALLED
from kafkalite.cli.output import counted, warn
from kafkalite.cli.refusals import in_words
from kafkalite.cli.spark_progress import progress
from kafkalite.errors import ApiError, BrokerUnavailable, KafkaliteError

if TYPE_CHECKING:
    from kafkalite.warehouse.load import Load, Loaded

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
TRIES_MAX: Final = 10  # loads in a row that fail with errors that may pass
WAIT_MAX_S: Final = 60.0


@dataclass(slots=True)
class Signals:
    """Ends the process between commits. `code` is its exit code, where that is not the signal's."""

    code: int | None = None
    load: Load | None = None
    received: int = field(default=0, init=False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handles the signals in the place of others."""
        before = {number: signal.getsignal(number) for number in ENDING}
        self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Takes the signals, again where a library took them: Spark does so when it starts."""
        for number in ENDING:
            signal.signal(number, self._on_signal)

    def check(self) -> None:
        """Ends the process if a signal came and no commit is under way."""
        if self.received and not (self.load is not None and self.load.is_committing):
            raise SystemExit(SIGNALLED + self.received if self.code is None else self.code)

    def _on_signal(self, number: int, frame: object) -> None:
        self.received = number
        self.check()


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of loads. `make` gives a topic's load of a round; `tell` gets lines for people,
    `after` the summaries of a round's tables.
    """

    topics: Sequence[str]
    make: Callable[[str], Load]
    tell: Callable[[str], None]
    signals: Signals
    after: Callable[[list[dict[str, Any]]], None] = lambda _: None

    def every(
        self,
        interval_s: float,
        done: Callable[[dict[str, Any]], None],
        until_ms: int | None = None,
    ) -> None:
        """Rounds that begin `interval_s` after the beginning of the one before, until the clock is
        past `until_ms`; `done` gets the summary of each. An error that may pass is named, and the
        load tried again.
        """
        failures = 0
        while True:
            started, is_last = time.monotonic(), until_ms is not None and _now_ms() >= until_ms
            wait_s = interval_s
            try:
                done(self.once())
                failures = 0
            except KafkaliteError as error:
                failures += 1
                if not may_pass(error) or failures == TRIES_MAX:
                    raise
                wait_s = min(WAIT_MAX_S, 2.0 ** (failures - 1))
                warn(f"{in_words(error)}; load {failures + 1} of {TRIES_MAX} in {wait_s:g} s")
                started = time.monotonic()
            if is_last and not failures:
                return
            self._wait(started + wait_s, until_ms)

    def _wait(self, until_s: float, until_ms: int | None) -> None:
        left_s = until_s - time.monotonic()
        if until_ms is not None:
            left_s = min(left_s, (until_ms - _now_ms()) / 1000)
        self.signals.check()
        time.sleep(max(0.0, left_s))

    def once(self) -> dict[str, Any]:
        """Loads each table; returns the summary."""
        started = time.monotonic()
        tables = [self._load(topic) for topic in self.topics]
        self.after(tables)
        seconds = time.monotonic() - started
        records = sum(table["records"] for table in tables)
        rate = records / seconds
        self.tell(f"loaded: {records:,} records in {seconds:.1f} s ({rate:,.0f} records/s)")
        lag = sum(table["lag"] for table in tables)
        return {"tables": tables, "records": records, "seconds": seconds, "rate": rate, "lag": lag}

    def _load(self, topic: str) -> dict[str, Any]:
        load, started = self.make(topic), time.monotonic()
        self.signals.load = load
        try:
            with progress(topic, load) as load.progress:
                for _ in load.steps():
                    self.signals.check()
        finally:
            self.signals.load = None
        self.signals.check()
        done = load.done
        self.tell(f"{topic} -> {shown(load.target.table)}: {_what(done)}")
        for line in done.changes:
            self.tell(f"  {line}")
        if done.rewritten:
            self.tell(f"  {done.rewritten:,} files were written anew for that")
        for gap in done.gaps:
            self.tell(f"  {gap} was deleted from the log before it could be loaded")
        if done.dead:
            self.tell(f"  {done.dead:,} dead letters -> {shown(load.dead.table)}")
        elif done.skipped:
            self.tell(f"  {done.skipped:,} records could not be decoded and were skipped")
        if done.lag:
            self.tell(f"  {counted(done.lag, 'record')} of the log to go")
        return {
            "topic": topic,
            "table": str(load.target.table),
            "records": done.records,
            "files": done.files,
            "updated": done.updated,
            "deleted": done.deleted,
            "skipped": done.skipped,
            "dead_letters": done.dead,
            "gaps": [asdict(gap) for gap in done.gaps],
            "changes": done.changes,
            "rewritten_files": done.rewritten,
            "lag": done.lag,
            "seconds": time.monotonic() - started,
        }


def may_pass(error: KafkaliteError) -> bool:
    """Whether the same load may succeed later."""
    if isinstance(error, ApiError):
        return error.error_code.is_retriable
    from kafkalite.warehouse.workspace import TableHeld

    return isinstance(error, BrokerUnavailable | TableHeld)


def _now_ms() -> float:
    return time.time() * 1000


def _what(done: Loaded) -> str:
    if done.updated or done.deleted:
        changed = f"{done.updated:,} rows updated, {done.deleted:,} keys deleted"
        return f"{done.records:,} changes, {changed}"
    if done.records:
        return f"{done.records:,} new rows in {done.files:,} files"
    return "no new rows" if done.ranges else "up to date"


def shown(table: Path) -> Path:
    """A path as short as it can be said here."""
    return table.relative_to(Path.cwd()) if table.is_relative_to(Path.cwd()) else table
