"""The console blocks of a page: commands, the results that the page shows, and a shell for both.

A line that begins with `$ ` is a command; the lines below it are its output. A backslash at the end
of a line continues the command. Commands that serve (a broker, workers) run until the test ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BLOCK: Final = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE: Final = re.compile(r"^```(?:python|dockerfile|ini)\n# ([\w.]+)\n(.*?)^```", re.M | re.S)
SERVES: Final = re.compile(r"&$|kafkalite-streams run (?!.*--until-caught-up)")
IS_READY: Final = re.compile(rb"is ready at|answers at|: running on")
SECONDS_MAX: Final = 60
SCRIPTS: Final = Path(sys.executable).parent  # of the commands


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a page, in order, each with the output that the page shows."""
    for block in BLOCK.findall(text):
        lines = block.replace("\\\n", " ").splitlines()
        starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
        for at, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield lines[at][2:].strip(), [line for line in lines[at + 1 : end] if line]


@dataclass(slots=True)
class Shell:
    """Runs a page's commands in a folder. `places` maps the page's addresses to those of here."""

    folder: Path
    places: Mapping[str, str]
    served: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def run(self, command: str) -> list[str]:
        """The output of a command that ends; of one that serves, nothing, once it is ready."""
        here = self._here(command)
        if SERVES.search(command):
            self._serve(here.removesuffix("&"))
            return []
        done = subprocess.run(
            ["bash", "-c", here], cwd=self.folder, env=self._environment(),
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}{self.said()}"
        return [line for line in done.stdout.splitlines() if line]

    def said(self) -> str:
        """The output of all commands that serve."""
        return "".join(path.read_text() for _, path in self.served)

    def end(self) -> None:
        """Ends what serves, the last started first, as Ctrl-C in its terminal would."""
        for process, _ in reversed(self.served):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _serve(self, command: str) -> None:
        path = self.folder / f"served-{len(self.served)}.out"
        with path.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._environment(),
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.served.append((process, path))
        deadline = time.monotonic() + SECONDS_MAX
        while len(IS_READY.findall(path.read_bytes())) < _ready_lines(command):
            assert process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def _here(self, command: str) -> str:
        for place, ours in self.places.items():
            command = command.replace(place, ours)
        return command

    def _environment(self) -> dict[str, str]:
        paths = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
        broker = self.places.get("127.0.0.1:9092", "")
        return {**os.environ, "PATH": paths, "KAFKALITE_BOOTSTRAP_SERVERS": broker}


def _ready_lines(command: str) -> int:
    """The number of lines that a command prints until it serves: one, and one for each worker."""
    workers = re.search(r"--workers (\d+)", command)
    answering = "streams run" in command and "--http " in command
    return 1 + answering * int(workers[1] if workers else 1)


@contextmanager
def shell(folder: Path, places: Mapping[str, str]) -> Iterator[Shell]:
    """A shell whose servers end with the block."""
    ours = Shell(folder, places)
    try:
        yield ours
    finally:
        ours.end()


def write_files(text: str, folder: Path) -> None:
    """Writes the blocks of a page that are files: their first line names them."""
    for name, content in FILE.findall(text):
        (folder / name).write_text(content)
