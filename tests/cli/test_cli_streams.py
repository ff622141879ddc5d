"""`kafkalite-streams` tells a user what is wrong with an app file in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = 'from kafkalite.streams import Streams\napp = Streams("a")\napp.stream("in").to("out")\n'


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kafkalite.cli.streams", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n", "has no Streams object"),
        ("x = 1\ny = 1 / 0\n", "app.py:2: ZeroDivisionError"),
        ("def f(:\n", "app.py:1: SyntaxError"),
        (GOOD + 'other = Streams("b")\n', "several Streams objects (app, other)"),
    ],
)
def test_a_wrong_app_file_is_one_clear_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "app.py"
    path.write_text(text)
    for app in (str(path), os.path.relpath(path)):
        ran = command("describe", app)
        assert ran.returncode == 1
        assert complaint in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1


def test_a_missing_file_is_named() -> None:
    ran = command("run", "no_such_app.py")
    assert ran.returncode == 1
    assert "no_such_app.py: no such file" in ran.stderr


def test_describe_prints_the_topology_and_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD)
    ran = command("describe", str(path), "--format", "text")
    assert ran.returncode == 0, ran.stderr
    assert "in" in ran.stdout
    assert "out" in ran.stdout


def test_a_named_object_is_taken_among_several(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD + 'other = Streams("b")\nother.stream("x").to("y")\n')
    assert command("describe", f"{path}:other").returncode == 0
    ran = command("describe", f"{path}:third")
    assert ran.returncode == 1
    assert "no Streams object called 'third'" in ran.stderr


def test_a_broker_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD)
    ran = command("run", str(path), "--bootstrap-servers", "127.0.0.1:1")
    assert ran.returncode == 1
    assert "127.0.0.1:1" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_no_address_where_one_is_given_starts_no_broker(tmp_path: Path) -> None:
    path, data = tmp_path / "app.py", tmp_path / "data"
    path.write_text(GOOD)
    ran = command("run", str(path), "--bootstrap-servers", "", "--data-dir", str(data))
    assert ran.returncode == 1
    assert "no bootstrap server is given" in ran.stderr
    assert not data.exists()
