"""`kafkalite-streams` tells a user what is wrong with an app file in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_named_object_is_taken_among_several(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD + 'other = Streams("b")\nother.stream("x").to("y")\n')
    assert command("describe", f"{path}:other").returncode == 0
    ran = command("describe", f"{path}:third")
    assert ran.returncode == 1
    assert "no Streams object called 'third'" in ran.stderr


@pytest.mark.slow
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


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`kafkalite-streams run`, ended at the latest with the test."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "kafkalite.cli.streams", "run", *arguments]
    environment = {n: v for n, v in os.environ.items() if n != "KAFKALITE_BOOTSTRAP_SERVERS"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_broker_of_its_own_says_where_it_is_and_waits_for_its_topics(tmp_path: Path) -> None:
    path, data = tmp_path / "app.py", tmp_path / "data"
    path.write_text(GOOD)
    with started(str(path), "--data-dir", str(data), "--json") as process:
        assert process.stderr is not None
        ready, waiting = process.stderr.readline(), process.stderr.readline()
        address = ready.partition(" runs at ")[2].partition(" ")[0]
        assert f"(data in {data})" in ready
        assert ready.endswith(f": kafkalite topics create TOPIC -b {address}\n")
        create = f"kafkalite topics create in -b {address}"
        assert waiting == (
            f"a: waiting for topic 'in', which the topology reads. To create it: {create}\n"
        )
        words = create.split()[1:]
        subprocess.run([sys.executable, "-m", "kafkalite.cli", *words], check=True, timeout=60)
        assert process.stderr.readline() == "a: every topic exists, running\n"
        process.send_signal(signal.SIGINT)
        assert '"records": 0' in process.communicate(timeout=60)[0]
        assert process.returncode == 0


@pytest.mark.slow
def test_who_waits_for_a_topic_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD)
    with started(str(path), "--data-dir", str(tmp_path / "data")) as process:
        assert process.stderr is not None
        process.stderr.readline()
        assert "waiting for topic 'in'" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_topic_that_another_broker_lacks_is_an_error_with_the_command(
    tmp_path: Path, bootstrap: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD.replace('"in"', '"no-such-topic"'))
    ran = command("run", str(path), "--bootstrap-servers", bootstrap)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        f"kafkalite: topic 'no-such-topic' does not exist at {bootstrap}; the topology reads it. "
        f"To create it: kafkalite topics create no-such-topic -b {bootstrap}"
    )


@pytest.mark.slow
def test_a_run_ends_with_what_it_left_out_and_warns_of_it_meanwhile(
    tmp_path: Path, bootstrap: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        "from kafkalite.streams import Streams, string\n"
        'app = Streams("dropping", value=string(), on_error="skip")\n'
        'app.stream("dropping-in").map(int, name="number").map(str).to("dropping-out")\n'
    )
    produce = [sys.executable, "-m", "kafkalite.cli", "produce", "dropping-in", "-b", bootstrap]
    produce.append("--create")
    subprocess.run(produce, input="1\nx\ny\n", text=True, check=True, timeout=60)
    run = ("run", str(path), "-b", bootstrap, "--until-caught-up")
    ran = command(*run)
    assert ran.returncode == 0, ran.stderr
    assert "dropping: 2 records skipped by on_error=\"skip\", at 'number'\n" in ran.stdout
    assert "records left out: " in ran.stderr
    assert json.loads(command(*run, "--json").stdout)["dropped"] == []
