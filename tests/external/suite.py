"""What a suite of others is to the runner: where it comes from, how it runs, what it told.

Owns   the cache of fetched sources, the words for outcomes.
Never  decides whether a run was good: `run.py` does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kafkalite.embedded_cluster import EmbeddedCluster


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One test of a suite, by the name under which it can be excluded."""

    name: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under test."""

    host: str
    port: int
    version: str  # of Apache Kafka, whose abilities it claims, as in 3.9
    is_ours: bool
    others: tuple[str, ...] = ()  # the addresses of the other brokers of its cluster

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def all_brokers(self) -> str:
        return ",".join((self.bootstrap, *self.others))

    @property
    def replication_factor(self) -> int:
        return min(3, 1 + len(self.others))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a suite: what to leave out, and where to write."""

    source: Path  # what `fetch` made
    target: Target
    excluded: Sequence[str]
    log: Path  # all that the suite prints
    scratch: Path  # an empty folder
    cluster: EmbeddedCluster | None = None  # of several fresh brokers of ours
    brokers_log: Path | None = None  # what these log, each line with the broker's name before it


@dataclass(frozen=True, slots=True)
class Suite:
    """A pinned suite. `passing_min` is what must pass on ours: a suite that runs nothing fails."""

    name: str
    version: str
    programs: tuple[str, ...]  # that must be in PATH
    fetch: Callable[[Path], None]  # fills an empty folder, once a machine
    run: Callable[[Run], Iterable[Result]]
    passing_min: int
    excluded: Mapping[str, str]  # a test, and why it is not run anywhere
    settings: Mapping[str, str] = field(default_factory=dict)  # of our broker
    listen: str = "127.0.0.1:0"  # where ours does
    excluded_in_cluster: Mapping[str, str] = field(default_factory=dict)  # of several brokers
    excluded_alone: Mapping[str, str] = field(default_factory=dict)  # on a single broker
    brokers_min: int = 1  # of ours, at least
    settings_of: Callable[[int], Mapping[str, str]] = lambda node_id: {}  # one of several brokers
    recipe: int = 1  # raised when `fetch` makes something else of the same version

    def excluded_on(self, target: Target) -> Mapping[str, str]:
        """The tests that are not run there, and why."""
        there = self.excluded_in_cluster if target.others else self.excluded_alone
        return {**self.excluded, **there}

    @property
    def missing_programs(self) -> list[str]:
        return [program for program in self.programs if program_path(program) is None]


GO_OUTSIDE_PATH = Path("/usr/local/go/bin/go")  # where Go's own archive is unpacked


def program_path(program: str) -> str | None:
    """The path of a program, or None where it is not installed."""
    found = shutil.which(program)
    if found is None and program == "go" and GO_OUTSIDE_PATH.exists():
        return str(GO_OUTSIDE_PATH)
    return found


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalite"


def cached(suite: Suite) -> Path:
    """The suite's folder in the user's cache; a fetch that broke off leaves nothing there."""
    place = cache_dir() / "external" / f"{suite.name}-{suite.version}-{suite.recipe}"
    if not place.exists():
        unfinished = place.with_name(f"{place.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        suite.fetch(unfinished)
        unfinished.rename(place)
    return place


def call(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    """What a command prints; it must not fail."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{tail}")
    return done.stdout


def change(path: Path, old: str, new: str, *, may_be_absent: bool = False) -> None:
    """Replaces what a regular expression matches in a file of the suite."""
    text, count = re.subn(old, new, path.read_text())
    assert count or may_be_absent, f"{path}: nothing matches {old}"
    path.write_text(text)


def record(
    command: Sequence[str | Path],
    run: Run,
    cwd: Path,
    environment: Mapping[str, str],
    seconds_max: float,
) -> None:
    """Runs a suite's command into the log, whatever its exit code; at the limit it is killed."""
    with run.log.open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            log.write(f"\nkilled after {seconds_max:g} s\n".encode())
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started, which share its new process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
