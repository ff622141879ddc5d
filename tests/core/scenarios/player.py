"""Plays scenarios of coordinators' machines: text files of requests and of what comes of them.

A line is `<ms>  <verb> <who> <what>… <key=value>…`, after `#` a remark; the lines indented below it
are what the step comes to. After `hold` records stay on their way to the log, until `land` replays
them and lets the answers go, or `fail` says that they never will. `clock set=<ms>` sets the wall
clock forward, or back.

`KAFKALITE_WRITE_SCENARIOS=1` writes what comes out.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.types import Now, Outcome
from kafkalite.errors import ErrorCode
from kafkalite.testing.clock import at

INDENT = " " * 10


def scenarios(kind: str) -> list[Path]:
    """The files of a kind."""
    return sorted(Path(__file__).parent.glob(f"{kind}_*.txt"))


class Player(ABC):
    """A machine and its log. A verb is a method `do_<verb>` that yields what to show."""

    def __init__(self, **settings: int) -> None:
        self.settings = settings
        self.log: list[Any] = []
        self.held: list[Outcome[Record]] | None = None
        self.now_ms = 0
        self.set_ms = 0  # by how much the wall clock was set since
        self.machine = self.make()

    # -- what each kind of machine has of its own

    @abstractmethod
    def make(self) -> Any:
        """A machine with the settings in force, empty."""

    @abstractmethod
    def show_records(self, outcome: Outcome[Record]) -> Iterator[str]:
        """A line for each record."""

    @abstractmethod
    def land(self, outcome: Outcome[Record]) -> Iterator[str]:
        """Replays the records and notes them in the log, answers, and runs the effects."""

    @abstractmethod
    def replay_log(self) -> None:
        """Replays all that the log holds."""

    # -- the rim

    @property
    def now(self) -> Now:
        """The scenario's time is the monotonic clock's, and the wall clock's until that is set."""
        wall_ms = self.now_ms + self.set_ms
        return replace(at(self.now_ms), wall_ms=wall_ms, retention_ms=wall_ms)

    def run(self, line: str) -> Iterator[str]:
        """What one line comes to."""
        time, verb, *rest = line.split()
        self.now_ms = int(time.replace(",", ""))
        plain = [word for word in rest if "=" not in word]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        yield from getattr(self, "do_" + verb.replace("-", "_"))(*plain, **options)

    def settle(self, outcome: Outcome[Record]) -> Iterator[str]:
        """Shows the records of a step, and all the rest unless they are held."""
        yield from self.show_records(outcome)
        if self.held is not None and outcome.records:
            self.held.append(outcome)
        else:
            yield from self.land(outcome)

    # -- verbs

    def do_clock(self, **options: str) -> Iterator[str]:
        self.set_ms += int(options["set"])
        yield from ()

    def do_config(self, **options: str) -> Iterator[str]:
        self.settings.update({key: int(value) for key, value in options.items()})
        self.machine = self.make()
        yield from ()

    def do_restart(self, **options: str) -> Iterator[str]:
        yield from self.do_config(**options)
        self.replay_log()
        yield from self.settle(self.machine.loaded(self.now))

    def do_tick(self) -> Iterator[str]:
        yield from self.settle(self.machine.tick(self.now))

    def do_resign(self) -> Iterator[str]:
        yield from self.settle(self.machine.resign(self.now))

    def do_topic_deleted(self, *names: str) -> Iterator[str]:
        yield from self.settle(self.machine.topics_deleted(names, self.now))

    def do_hold(self) -> Iterator[str]:
        self.held = []
        yield from ()

    def do_land(self) -> Iterator[str]:
        held, self.held = self.held or [], None
        for outcome in held:
            yield from self.land(outcome)

    def do_fail(self, error: str) -> Iterator[str]:
        held, self.held = self.held or [], None
        for outcome in held:
            instead = self.machine.append_failed(outcome, ErrorCode[error], self.now)
            yield from self.settle(instead)


def check(path: Path, make: Callable[[], Player]) -> None:
    """Plays a scenario: what comes out must be what is written."""
    lines, player = [], make()
    for line in path.read_text().splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [INDENT + shown for shown in player.run(line.partition("  # ")[0])]
    played = "\n".join(lines) + "\n"
    if os.environ.get("KAFKALITE_WRITE_SCENARIOS"):
        path.write_text(played)
    assert played == path.read_text()
