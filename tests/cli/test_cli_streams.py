"""`kafkalite-streams` tells a user what is wrong with an app file in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hints import without_hint

Run = Callable[..., Any]
SCHEMA = '{"type": "record", "name": "O", "fields": [{"name": "amount", "type": "long"}]}'
MISSPELT = f"""from kafkalite.streams import Streams, avro, col
app = Streams("a")
(
    app.stream("in", value=avro(schema='{SCHEMA}'))
    .filter(col("amount") > 1)
    .filter(col("amonut") > 2)
    .to("out")
)
"""
GOOD = 'from kafkalite.streams import Streams\napp = Streams("a")\napp.stream("in").to("out")\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n", "has no Streams object"),
        ("x = 1\ny = 1 / 0\n", "app.py:2: ZeroDivisionError"),
        ("def f(:\n", "app.py:1: SyntaxError"),
        (MISSPELT, "app.py:6: TopologyError: filter of 'in-filter': col(\"amonut\"): there is no"),
        (GOOD + 'other = Streams("b")\n', "several Streams objects (app, other)"),
    ],
)
def test_a_wrong_app_file_is_one_clear_line(
    refused: Run, kafkalite_streams: Run, tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(text)
    for app in (str(path), os.path.relpath(path)):
        assert complaint in refused("describe", app, program=kafkalite_streams)


def test_a_missing_file_is_named(refused: Run, kafkalite_streams: Run) -> None:
    told = refused("run", "no_such_app.py", program=kafkalite_streams)
    assert told == "no_such_app.py: no such file"


def test_a_state_that_is_not_on_spark_is_not_exported(
    refused: Run, kafkalite_streams: Run, bootstrap: str, tmp_path: Path
) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD.replace('"a"', f'"{tmp_path.name}"'))
    words = ["export-state", str(path), "-b", bootstrap, "--checkpoint", str(tmp_path / "none")]
    told = refused(*words, program=kafkalite_streams)
    assert "the local engine holds the state" in told
    assert "none is no checkpoint of this application" in told


def test_describe_prints_the_topology_and_runs_nothing(
    kafkalite_streams: Run, tmp_path: Path
) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD)
    text = kafkalite_streams("describe", str(path), "--format", "text").out
    assert b"in" in text
    assert b"out" in text


def test_a_named_object_is_taken_among_several(
    refused: Run, kafkalite_streams: Run, tmp_path: Path
) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD + 'other = Streams("b")\nother.stream("x").to("y")\n')
    kafkalite_streams("describe", f"{path}:other")
    told = refused("describe", f"{path}:third", program=kafkalite_streams)
    assert "no Streams object called 'third'" in told


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_named(kafkalite_streams: Run, tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD)
    ran = kafkalite_streams("run", str(path), "--bootstrap-servers", "127.0.0.1:1", code=1)
    assert "127.0.0.1:1" in ran.err
    assert "Traceback" not in ran.err


def test_what_is_there_runs_through_the_topology(
    kafkalite: Run, kafkalite_streams: Run, make_topic: Run, tmp_path: Path
) -> None:
    made = make_topic(1)
    path = tmp_path / "app.py"
    path.write_text(GOOD.replace('"in"', f'"{made}"').replace('"out"', f'"{made}-out"'))
    kafkalite("topics", "create", f"{made}-out")
    kafkalite("produce", made, stdin=b"one\ntwo\n")
    told = kafkalite_streams("run", str(path), "--until-caught-up", "--json").json
    assert (told["records"], told["written"]) == (2, 2)
    assert kafkalite("consume", f"{made}-out", "--until-end").lines == ["one", "two"]


def test_an_application_begins_anew(
    kafkalite: Run, kafkalite_streams: Run, make_topic: Run, tmp_path: Path
) -> None:
    made = make_topic(1)
    path = tmp_path / "app.py"
    path.write_text(GOOD.replace('"a"', f'"app-of-{made}"').replace('"in"', f'"{made}"'))
    kafkalite("produce", made, stdin=b"one\n")
    run = ("run", str(path), "--until-caught-up", "--json")
    assert kafkalite_streams(*run).json["records"] == 1
    assert kafkalite_streams("reset", str(path)).lines[:2] == [
        f"app-of-{made} would be reset:",
        f"  offset  {made}-0: 1 -> none",
    ]
    assert kafkalite_streams(*run).json["records"] == 0
    assert kafkalite_streams("reset", str(path), "--execute", "--json").json["executed"] is True
    assert kafkalite_streams(*run).json["records"] == 1


def test_the_status_of_an_application_tells_its_tasks_and_lags(
    kafkalite: Run, kafkalite_streams: Run, make_topic: Run, tmp_path: Path
) -> None:
    made = make_topic(2)
    path = tmp_path / "app.py"
    path.write_text(GOOD.replace('"a"', f'"app-of-{made}"').replace('"in"', f'"{made}"'))
    kafkalite("produce", made, stdin=b"one\ntwo\nthree\n")
    assert kafkalite_streams("status", str(path)).lines[0] == f"app-of-{made} does not run; lag 3"
    status = kafkalite_streams("status", str(path), "--json").json
    assert (status["lag"], status["workers"]) == (3, [])
    assert [task["task"] for task in status["tasks"]] == ["0_0", "0_1"]
    assert sum(task["lag"] for task in status["tasks"]) == 3
    assert {task["worker"] for task in status["tasks"]} == {None}


def with_dead_letters(topic: str, serde: str, function: str) -> str:
    """An application that calls a function for each record, and whose dead letters stay."""
    return (
        "from kafkalite.streams import Streams, avro, string\n"
        f'app = Streams("app-of-{topic}", value={serde}, on_error="dlq", '
        f'dead_letter_topic="{topic}-dead")\n'
        f'app.stream("{topic}").for_each({function})\n'
    )


def test_dead_letters_are_counted_shown_and_replayed(
    kafkalite: Run, kafkalite_streams: Run, make_topic: Run, tmp_path: Path
) -> None:
    made, path = make_topic(1), tmp_path / "app.py"
    kafkalite("topics", "create", f"{made}-dead")
    path.write_text(with_dead_letters(made, "string()", "int"))
    kafkalite("produce", made, stdin=b"one\n")
    kafkalite_streams("run", str(path), "--until-caught-up")
    (row,) = kafkalite_streams("dlq", "list", str(path), "--json").json
    assert (row["topic"], row["error"], row["last"]) == (made, "ValueError", "0:0")
    shown = kafkalite_streams("dlq", "show", str(path), "0:0", "--json").json
    assert (shown["value"], shown["offset"]) == ("'one'", 0)
    dry = kafkalite_streams("dlq", "replay", str(path)).lines
    assert dry[-1] == "Nothing has been sent. --execute does it."
    done = kafkalite_streams("dlq", "replay", str(path), "--execute", "--json").json
    assert done["sent"] == {made: 1}
    assert kafkalite_streams("dlq", "replay", str(path), "--json").json["replayed_before"] == 1


def test_a_dead_letter_of_avro_is_shown_with_the_schema_that_wrote_it(
    kafkalite: Run, kafkalite_streams: Run, make_topic: Run, tmp_path: Path
) -> None:
    made, schema, path = make_topic(1), tmp_path / "schema.avsc", tmp_path / "app.py"
    kafkalite("topics", "create", f"{made}-dead")
    path.write_text(with_dead_letters(made, "avro()", 'lambda order: order["number"]'))
    schema.write_text(SCHEMA)
    written = ("produce", made, "--value", "avro", "--schema", str(schema))
    kafkalite(*written, stdin=b'{"amount": 17}\n')
    kafkalite("produce", made, stdin=b"not Avro\n")
    kafkalite_streams("run", str(path), "--until-caught-up")
    shown = [
        kafkalite_streams("dlq", "show", str(path), where, "--json").json
        for where in ("0:0", "0:1")
    ]
    assert [letter["value"] for letter in shown] == ["{'amount': 17}", "b'not Avro'"]


def test_no_address_where_one_is_given_starts_no_broker(
    kafkalite_streams: Run, tmp_path: Path
) -> None:
    path, data = tmp_path / "app.py", tmp_path / "data"
    path.write_text(GOOD)
    nowhere = ("--bootstrap-servers", "", "--data-dir", str(data))
    assert (
        "no bootstrap server is given" in kafkalite_streams("run", str(path), *nowhere, code=1).err
    )
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
        told = filter(without_hint, process.stderr)
        ready, waiting = next(told), next(told)
        address = ready.partition(" runs at ")[2].partition(" ")[0]
        assert f"(data in {data})" in ready
        assert ready.endswith(f": kafkalite topics create TOPIC -b {address}\n")
        create = f"kafkalite topics create in -b {address}"
        assert waiting == (
            f"a: waiting for topic 'in', which the topology reads. To create it: {create}\n"
        )
        words = create.split()[1:]
        subprocess.run([sys.executable, "-m", "kafkalite.cli", *words], check=True, timeout=60)
        assert next(told) == "a: every topic exists, running\n"
        process.send_signal(signal.SIGINT)
        assert '"records": 0' in process.communicate(timeout=60)[0]
        assert process.returncode == 0


@pytest.mark.slow
def test_who_waits_for_a_topic_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD)
    with started(str(path), "--data-dir", str(tmp_path / "data")) as process:
        assert process.stderr is not None
        told = filter(without_hint, process.stderr)
        next(told)
        assert "waiting for topic 'in'" in next(told)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_topic_that_another_broker_lacks_is_an_error_with_the_command(
    kafkalite_streams: Run, tmp_path: Path, bootstrap: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(GOOD.replace('"in"', '"no-such-topic"'))
    ran = kafkalite_streams("run", str(path), "--bootstrap-servers", bootstrap, code=1)
    assert ran.err.splitlines()[-1] == (
        f"kafkalite: topic 'no-such-topic' does not exist at {bootstrap}; the topology reads it. "
        f"To create it: kafkalite topics create no-such-topic -b {bootstrap}"
    )


@pytest.fixture
def catch_up(
    kafkalite: Run, kafkalite_streams: Run, tmp_path: Path, bootstrap: str
) -> Callable[..., Run]:
    """`run = catch_up(topic, records, text)` writes the records, lines, to a new topic; `run()`
    runs the app of that text until it has caught up."""

    def write(topic: str, records: bytes, text: str) -> Run:
        path = tmp_path / "app.py"
        path.write_text(text)
        kafkalite("produce", topic, "--create", stdin=records)
        return partial(kafkalite_streams, "run", str(path), "-b", bootstrap, "--until-caught-up")

    return write


def test_a_run_ends_with_what_it_left_out_and_warns_of_it_meanwhile(catch_up: Run) -> None:
    run = catch_up(
        "dropping-in",
        b"1\nx\ny\n",
        "from kafkalite.streams import Streams, string\n"
        'app = Streams("dropping", value=string(), on_error="skip")\n'
        'app.stream("dropping-in").map(int, name="number").map(str).to("dropping-out")\n',
    )
    ran = run()
    assert "dropping: 2 records skipped by on_error=\"skip\", at 'number'" in ran.lines
    assert "records left out: " in ran.err
    assert run("--json").json["dropped"] == []


def test_an_error_of_the_users_code_names_its_line_and_traceback_shows_all(
    catch_up: Run, tmp_path: Path
) -> None:
    run = catch_up(
        "tracing-in",
        b"x\n",
        "from kafkalite.streams import Streams, string\n"
        'app = Streams("tracing", value=string())\n'
        "def number(value):\n"
        "    return int(value)\n"
        'app.stream("tracing-in").map(number).to("tracing-out")\n',
    )
    short = run(code=1).err
    long = run("--traceback", code=1).err
    assert f"({tmp_path / 'app.py'}:4). To go on without such records" in short.splitlines()[-1]
    assert "Traceback" not in short
    assert "return int(value)" in long
    assert long.splitlines()[-1] == short.splitlines()[-1]


@pytest.mark.slow
def test_sigterm_while_the_file_is_imported_ends_the_run_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n" + GOOD)
    with started(str(path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
