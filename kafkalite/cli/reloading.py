"""`kafkalite-streams run --reload`: the topology starts again when its source changes.       [IO]

    change ──> does it load? ── no ──> the error is shown, the old topology goes on
                             └─ yes ─> the old one commits and ends, the new one starts

A run is a process of its own, so every module is imported anew. Its state stays where it is: the
new topology takes it over, or is refused if the state is not of its shape, and then the next change
is waited for.

Owns   the process that runs the topology.
Never  stops a run for a source that does not load.
Fails  with KafkaliteError where there are too many files to watch; else it ends as the run does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from kafkalite.errors import KafkaliteError

LOOK_SECONDS: Final = 0.3
SETTLE_SECONDS: Final = 0.1  # an editor may write several files
SETTLE_LOOKS_MAX: Final = 50
FILES_MAX: Final = 5_000
LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Seen = Mapping[Path, tuple[int, int]]  # when each file was changed, and its size


def sources(folder: Path) -> Seen:
    """The Python files below a folder, but not those of hidden folders and virtual environments."""
    seen: dict[Path, tuple[int, int]] = {}
    for place, folders, files in os.walk(folder):
        inside = Path(place)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in LEFT_OUT
            and not (inside / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                try:
                    found = (inside / name).stat()
                except FileNotFoundError:  # an editor has just replaced it
                    continue
                seen[inside / name] = (found.st_mtime_ns, found.st_size)
        if len(seen) > FILES_MAX:
            raise KafkaliteError(
                f"--reload: more than {FILES_MAX:,} Python files below {folder}: put the "
                "application into a folder of its own"
            )
    return seen


class Reloading:
    """Runs `command` again whenever a Python file beside or below `app` has changed and `check`
    succeeds."""

    def __init__(
        self, app: Path, command: list[str], check: list[str], say: Callable[[str], None]
    ) -> None:
        self._app = app
        self._command = command
        self._check = check
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def run(self) -> int:
        """The exit code of the last run, once one has ended by itself or was stopped."""
        seen = sources(self._folder)
        with self._signals():
            while True:
                code = self._run_once(seen)
                if code is not None and (code == 0 or self._is_stopped):
                    return code
                if code is not None:
                    self._say(f"{self._app}: it has ended with exit code {code}; save a change")
                    if self._wait_for_change(seen) is None:
                        return code
                seen = sources(self._folder)

    @property
    def _folder(self) -> Path:
        return self._app.resolve().parent

    def _run_once(self, seen: Seen) -> int | None:
        """Runs until it ends; None where a change ended it. A session of its own: a Ctrl-C of the
        terminal reaches it through us alone."""
        process = self._process = subprocess.Popen(self._command, start_new_session=True)
        try:
            while (code := process.poll()) is None:
                time.sleep(LOOK_SECONDS)
                changed = self._changes(seen)
                if changed and process.poll() is None and not self._is_stopped:
                    seen = changed
                    if self._loads():
                        process.terminate()
                        process.wait()
                        self._say(f"{self._app}: has changed, and starts again")
                        return None
            return code
        finally:
            self._process = None
            if process.poll() is None:
                process.kill()
                process.wait()

    def _changes(self, seen: Seen) -> Seen | None:
        """The files once they rest, or a signal comes; None where they are as they were."""
        now = sources(self._folder)
        if now == seen:
            return None
        for _ in range(SETTLE_LOOKS_MAX):  # files that never rest are taken as they are
            time.sleep(SETTLE_SECONDS)
            before, now = now, sources(self._folder)
            if now == before or self._is_stopped:
                break
        return now

    def _wait_for_change(self, seen: Seen) -> Seen | None:
        """The next change that loads; None where a signal comes first."""
        while not self._is_stopped:
            time.sleep(LOOK_SECONDS)
            if (changed := self._changes(seen)) is not None:
                seen = changed
                if self._loads():
                    return changed
        return None

    def _loads(self) -> bool:
        """Whether the topology can be built; prints the error if not."""
        done = subprocess.run(self._check, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            self._say(f"{self._app}: the topology that runs is the one before this change")
        return not done.returncode

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals are passed on to the run, which commits and ends."""

        def stop(number: int, _: FrameType | None) -> None:
            self._is_stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

        before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def command_without(option: str) -> list[str]:
    """The command line of this process, but for an option."""
    return [sys.executable, *(word for word in sys.orig_argv[1:] if word != option)]
