"""`kafkalite-streams run --reload`: a change starts the topology again, a mistake does not."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalite.cli import reloading
from kafkalite.cli.reloading import FILES_MAX, SETTLE_LOOKS_MAX, Reloading, sources
from kafkalite.clients import NewTopic
from kafkalite.clients.sync import Admin, Consumer, Producer
from kafkalite.core.types import TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import KafkaliteError

pytestmark = pytest.mark.timeout(180)

APP = """
from words import say
from kafkalite.streams import Streams, int64, string
app = Streams("again", key=string(), value=string())
counts = app.stream("again-in").group_by_key().count(name="counts")
counts.to_stream().map(say).to("again-out", value=string())
"""
WORDS = """
def say(count):
    return f"{count} WORD"
"""


class Run:
    """The command in a process, and what it says."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "kafkalite.cli.streams", "run", "app.py", "--reload"]
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ},
        )  # fmt: skip
        self.said = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def until_it_says(self, pattern: str) -> None:
        until(lambda: re.search(pattern, self.said), lambda: self.said)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


def until(is_so: Callable[[], object], told: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("again-in", 1), NewTopic("again-out", 1)])
        yield broker.bootstrap_servers


class Results:
    """What a topology makes of records."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._next = 0

    def of_one_more(self) -> str:
        with Producer(self._address) as producer:
            producer.send("again-in", b"x", key=b"k")
            producer.flush()
        partition = TopicPartition("again-out", 0)
        with Consumer(self._address, isolation_level="read_committed") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, self._next)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                for columns in consumer.poll(200).values():
                    assert columns.offsets is not None
                    self._next = columns.offsets[-1] + 1
                    value = columns.values[-1]
                    assert value is not None
                    return str(value, "utf-8")
        raise AssertionError("no result")


@pytest.mark.slow
def test_a_change_starts_again_with_the_state_and_a_mistake_leaves_the_old(
    address: str, tmp_path: Path
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "words.py").write_text(WORDS.replace("WORD", "first"))
    results = Results(address)
    run = Run(folder, "-b", address)
    try:
        assert results.of_one_more() == "1 first"
        (folder / "words.py").write_text("def say(count:\n")
        run.until_it_says(r"SyntaxError[^\n]*\n[^\n]*the topology that runs is the one before")
        assert results.of_one_more() == "2 first"
        (folder / "words.py").write_text(WORDS.replace("WORD", "second"))
        run.until_it_says("has changed, and starts again")
        assert results.of_one_more() == "3 second"
        assert run.end() == 0
    finally:
        run.process.kill()


def script(folder: Path, text: str) -> Reloading:
    """Runs a program instead of a topology; what it is told to say goes to `said`."""
    app = folder / "app.py"
    app.write_text(text)
    command = [sys.executable, str(app)]
    said: list[str] = []
    return Reloading(app, command, [sys.executable, "-m", "py_compile", str(app)], said.append)


def test_it_ends_as_the_run_ends(tmp_path: Path) -> None:
    assert script(tmp_path, "print('done')").run() == 0


def test_a_run_that_fails_waits_for_a_change(tmp_path: Path) -> None:
    reloading = script(tmp_path, "raise SystemExit(3)")
    said = threading.Event()
    reloading._say = lambda words: said.set() if "exit code 3" in words else None

    def mend() -> None:
        assert said.wait(60)
        (tmp_path / "app.py").write_text("print('mended')")

    mending = threading.Thread(target=mend)
    mending.start()
    assert reloading.run() == 0
    mending.join()


def test_files_of_others_are_left_out(tmp_path: Path) -> None:
    for place in ("app.py", "part/of.py", ".git/x.py", "venv/lib/y.py", "node_modules/z.py"):
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert {str(file.relative_to(tmp_path)) for file in sources(tmp_path)} == {
        "app.py",
        "part/of.py",
    }


def test_files_that_never_rest_do_not_hold_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()
    monkeypatch.setattr(reloading, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(reloading, "sources", lambda _: {tmp_path: (next(looks), 0)})
    assert script(tmp_path, "")._changes({}) is not None
    assert next(looks) == SETTLE_LOOKS_MAX + 1


def test_a_folder_of_very_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalite.cli.reloading.FILES_MAX", 3)
    assert FILES_MAX > 3
    for number in range(4):
        (tmp_path / f"f{number}.py").write_text("")
    with pytest.raises(KafkaliteError, match="more than 3 Python files"):
        sources(tmp_path)
