"""A command within the test's own process does as a process does, and leaves nothing behind."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inside import run_inside
from warm import PROGRAMS

Run = Callable[..., Any]
ENDS_SECONDS_MAX = 20


@pytest.mark.parametrize(
    "words",
    [
        ("kafkalite", "topics", "create"),
        ("kafkalite-streams", "describe", "no_such_app.py"),
        ("kafkalite-spark", "load", "--help"),
    ],
    ids=" ".join,
)
def test_a_process_of_its_own_says_the_same(words: tuple[str, ...]) -> None:
    module = PROGRAMS[words[0]]
    environ = os.environ | {"COLUMNS": "100"}
    command = [sys.executable, "-m", module, *words[1:]]
    real = subprocess.run(command, executable=sys.executable, capture_output=True, env=environ)
    said = [
        text.replace(f"python -m {module}".encode(), words[0].encode())
        for text in (real.stdout, real.stderr)
    ]
    assert [real.returncode, *said] == list(run_inside(words, b"", environ))


def test_the_process_is_as_it_was(bootstrap: str, make_topic: Run, tmp_path: Path) -> None:
    topic = make_topic(1)
    app = tmp_path / "app_of_a_user.py"
    app.write_text(
        "import os, sys, logging\n"
        "os.environ['LEFT_BEHIND'] = 'yes'\n"
        "logging.basicConfig()\n"
        "sys.stdin.read()\n"
        "from kafkalite.streams import Streams\n"
        f"app = Streams('a')\napp.stream('{topic}').to('out')\n"
    )
    environ = os.environ | {"KAFKALITE_BOOTSTRAP_SERVERS": bootstrap, "TZ": "Asia/Tokyo"}
    run_inside(("kafkalite", "topics", "list"), b"", environ)  # imports what it needs

    def seen() -> list[Any]:
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        files = [os.fstat(number).st_ino for number in range(3)]
        streams = [sys.stdin, sys.stdout, sys.stderr, sys.argv, list(sys.path)]
        assert logging.lastResort is not None
        logs = [list(logging.root.handlers), logging.lastResort.formatter, logging.root.level]
        logs += [logging.getLogger("kafkalite").level]
        names = {"app_of_a_user"} & set(sys.modules)
        writers = [thread for thread in threading.enumerate() if thread.name == "stdout"]
        for thread in writers:  # of `consume`; it ends by itself
            thread.join(ENDS_SECONDS_MAX)
        alive = sum(thread.is_alive() for thread in writers)
        hooks = [threading.excepthook, sys.unraisablehook, warnings.showwarning]
        limits = [sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)]
        return [handlers, files, streams, logs, dict(os.environ), names, alive, hooks, limits]

    taken = ("--data-dir", str(tmp_path), "--listen", bootstrap, "--log-format", "json")
    before = seen()
    assert run_inside(("kafkalite", "produce", topic), b"a\n", environ)[0] == 0
    assert run_inside(("kafkalite", "consume", topic, "--until-end"), b"", environ)[1] == b"a\n"
    assert run_inside(("kafkalite", "consume", topic, "--from", "?"), b"", environ)[0] == 2
    assert run_inside(("kafkalite-streams", "describe", str(app)), b"read", environ)[0] == 0
    assert run_inside(("kafkalite", "server", "start", *taken), b"", environ)[0] == 1
    assert seen() == before
