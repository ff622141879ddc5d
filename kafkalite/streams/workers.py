"""Several workers on one machine: each a process that runs the same program.                [IO]

    app.py, workers=3 ──> a broker, if there is none       the supervisor
                     ├──> app.py as worker 1 ┐
                     ├──> app.py as worker 2 ├ know their seat by a variable of the environment
                     └──> app.py as worker 3 ┘

A worker runs the command line of its supervisor once more; where the supervisor supervises, it
runs, and it ends with that. Signals are passed on. A worker that is killed, or crashes, is started
again after a pause; one that ends with an error of its own ends all.

Owns   the worker processes, which do not outlive it: each ends when its stdin does.
Never  restarts what would fail the same way again.
Fails  with KafkaliteError naming the worker and its exit code; what was wrong, it has said itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kafkalite.errors import KafkaliteError, TopologyError
from kafkalite.streams.local.progress import Progress

VARIABLE: Final = "KAFKALITE_STREAMS_WORKER"
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
STABLE_SECONDS: Final = 60.0  # a worker that ran so long is started again soon
FOR_GOOD: Final = b"."
COUNTS: Final = ("records", "records_out", "records_restored", "commits")
DROPPED: Final = "dropped"


@dataclass(frozen=True, slots=True)
class Seat:
    """Which worker this process is, and of which application."""

    application_id: str
    number: int
    address: str
    is_own_broker: bool  # the supervisor's: topics that do not exist yet are waited for
    report: str  # the file that takes what the worker did

    def tell(self, progress: Progress) -> None:
        """Leaves the worker's counts to the supervisor."""
        counts = {name: getattr(progress, name) for name in COUNTS}
        told = counts | {DROPPED: progress.drops.document()}
        Path(self.report).write_text(json.dumps(told))
        what = f"{progress.records:,} records, {progress.records_out:,} written"
        say(f"{self.application_id}: worker {self.number}: {what}")
        for line in progress.drops.lines():
            say(f"{self.application_id}: worker {self.number}: {line}")


def seat_of(application_id: str) -> Seat | None:
    """This process' seat, if it is a worker of a supervisor of this application."""
    told = os.environ.get(VARIABLE)
    if told is None:
        return None
    seat = Seat(**json.loads(told))
    return seat if seat.application_id == application_id else None


def say(text: str) -> None:
    """A line for the terminal."""
    print(text, file=sys.stderr, flush=True)


def own_command(application_id: str) -> list[str]:
    """The command line of this process. TopologyError where there is none to run again."""
    if getattr(sys.modules.get("__main__"), "__file__", None) is None:
        raise TopologyError(
            f"{application_id}: workers= starts this program again, and there is no program: "
            "put the topology into a file"
        )
    return [sys.executable, *sys.orig_argv[1:]]


class Orders:
    """What a worker hears of its supervisor, on its stdin: that a stop is for good, and its end."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(0, self._read)
        self._is_for_good = False

    @property
    def is_for_good(self) -> bool:
        """Whether the supervisor does not expect to be started again; it says so before it sends
        a signal."""
        if select.select([0], [], [], 0)[0]:
            self._read()
        return self._is_for_good

    def _read(self) -> None:
        if os.read(0, 4096):
            self._is_for_good = True
        else:
            self._loop.remove_reader(0)
            self._gone()


class Supervisor:
    """Keeps `count` workers running until they end, or are stopped by a signal."""

    def __init__(
        self, application_id: str, command: list[str], count: int, address: str, *, is_own: bool
    ) -> None:
        self._application_id = application_id
        self._command = command
        self._count = count
        self._address = address
        self._is_own = is_own
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stops = 0
        self._stopping = asyncio.Event()

    async def run(self) -> Progress:
        """Returns what all workers did together."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop, each)
        total = Progress(loop.time)
        with tempfile.TemporaryDirectory() as reports:
            numbers = range(1, self._count + 1)
            keeping = [asyncio.create_task(self._keep(n, Path(reports) / f"{n}")) for n in numbers]
            try:
                codes = await asyncio.gather(*keeping)
            finally:
                for process in self._processes.values():
                    if process.returncode is None:
                        process.kill()
            if self._stops > 1:
                raise KeyboardInterrupt
            for number, code in zip(numbers, codes, strict=True):
                if code:
                    raise KafkaliteError(
                        f"{self._application_id}: worker {number} has ended with exit code {code}"
                    )
            for number in numbers:
                _add(total, Path(reports) / f"{number}")
        return total

    def _stop(self, number: signal.Signals) -> None:
        """The first signal lets workers commit; a second one does not wait for that.

        After a SIGTERM workers stay members for a while: they may be started again.
        """
        self._stops += 1
        self._stopping.set()
        for process in self._processes.values():
            if process.returncode is None:
                if number is signal.SIGINT and process.stdin is not None:
                    process.stdin.write(FOR_GOOD)
                process.terminate()

    async def _keep(self, number: int, report: Path) -> int:
        """Runs one worker until it ends for good; its exit code."""
        pause = PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self._run_once(number, report)
            if code >= 0 or self._stopping.is_set():
                if code > 0 and not self._stopping.is_set():
                    self._stop(signal.SIGINT)  # the others would go on without it
                return max(code, 0)
            pause = PAUSE_SECONDS if loop.time() - started > STABLE_SECONDS else pause
            say(
                f"{self._application_id}: worker {number} was killed by signal {-code}; it "
                f"restarts in {pause:g} s"
            )
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return 0
            except TimeoutError:
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _run_once(self, number: int, report: Path) -> int:
        seat = Seat(self._application_id, number, self._address, self._is_own, str(report))
        process = self._processes[number] = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, VARIABLE: json.dumps(asdict(seat))},
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C of the terminal reaches it through us alone
        )
        say(f"{self._application_id}: worker {number} is process {process.pid}")
        if self._stopping.is_set():
            process.terminate()
        return await process.wait()


def _add(total: Progress, report: Path) -> None:
    """Adds the work of one worker; a worker killed at the end has reported none."""
    told = json.loads(report.read_text()) if report.exists() else {}
    for name in COUNTS:
        setattr(total, name, getattr(total, name) + told.get(name, 0))
    total.drops.add_document(told.get(DROPPED, ()))
