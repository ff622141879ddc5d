"""`kafkalite produce` and `consume` on a running broker: formats, places, ends."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgpack
import pytest

Run = Callable[..., Any]
SCHEMA = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "by", "type": ["null", "string"]}],
}  # fmt: skip
CODECS = ("gzip", "snappy", "lz4", "zstd")


def letters(kafkalite: Run, topic: str) -> None:
    """Five records in partition 0, a second apart from 1,000 s on, and one in partition 1."""
    lines = [
        {"value": value, "timestamp": 1_000_000 + 1_000 * i, "partition": 0}
        for i, value in enumerate("abcde")
    ]
    lines.append({"value": "x", "timestamp": 1_002_500, "partition": 1})
    data = "\n".join(map(json.dumps, lines)).encode()
    kafkalite("produce", topic, "--format", "json", "-q", stdin=data)


@pytest.fixture(scope="module")
def lettered(kafkalite: Run) -> str:
    """A topic that tests only read."""
    topic = f"letters-{uuid4().hex[:12]}"
    kafkalite("topics", "create", topic, "--partitions", "2")
    letters(kafkalite, topic)
    return topic


@pytest.mark.parametrize(
    ("acks", "compression"),
    [
        *(("all", codec) for codec in CODECS),
        *((acks, "none") for acks in ("all", "1", "0")),
        *(
            pytest.param(acks, codec, marks=pytest.mark.slow)
            for acks, codec in product(("1", "0"), CODECS)
        ),
    ],
)
def test_lines_go_in_and_come_out(
    kafkalite: Run, make_topic: Run, acks: str, compression: str
) -> None:
    topic = make_topic(1)
    data = b"one\n\ntwo \xff\nthree"
    told = kafkalite("produce", topic, "-z", compression, "--acks", acks, "--json", stdin=data).json
    assert (told["records"], told["bytes"], told["interrupted"]) == (4, len(data), False)
    assert told["records_per_second"] > 0
    consume = ["consume", topic, "--max-records", "4"]
    assert kafkalite(*consume, "--value", "bytes").out == data + b"\n"


def test_files_keys_headers_and_nulls(kafkalite: Run, make_topic: Run, tmp_path: Path) -> None:
    topic, one, two = make_topic(1), tmp_path / "one", tmp_path / "two"
    one.write_text("a\t1\nb\tNULL\n")
    two.write_text("NULL\t3:4\n")
    ran = kafkalite(
        "produce", topic, str(one), str(two), "-K", "\\t", "--null", "NULL", "-H", "h=1", "-H",
        "i=", "--with-key", "k",
    )  # fmt: skip
    assert "3 records" in ran.err
    told = kafkalite("consume", topic, "--until-end", "--json").json_lines
    assert [(r["key"], r["value"]) for r in told] == [("a", "1"), ("b", None), ("k", "3:4")]
    assert [r["offset"] for r in told] == [0, 1, 2]
    assert all(r["headers"] == [["h", "1"], ["i", ""]] for r in told)
    assert told[0].keys() == {
        "topic", "partition", "offset", "timestamp", "key", "value", "headers",
    }  # fmt: skip


def test_what_json_prints_json_reads(kafkalite: Run, make_topic: Run, topic: str) -> None:
    make_topic(2)
    lines = [
        {
            "key": "k",
            "value": "v",
            "timestamp": 5,
            "partition": 1,
            "headers": {"a": "1", "b": None},
        },
        {"value_base64": "/w==", "key": None, "partition": 1, "headers": [["a", "1"], ["a", "2"]]},
        {"value": {"nested": [1]}, "partition": 1, "timestamp": "1970-01-01T00:00:01Z"},
        {"key": "tombstone", "partition": 0},
    ]
    data = "\n\n".join(map(json.dumps, lines)).encode()
    kafkalite("produce", topic, "--format", "json", "-q", stdin=data)
    first = kafkalite("consume", topic, "--until-end", "--json", "--partition", "1").json_lines
    assert [r.get("value") for r in first] == ["v", None, '{"nested":[1]}']
    assert first[1]["value_base64"] == "/w=="
    assert [r["headers"] for r in first] == [
        [["a", "1"], ["b", None]], [["a", "1"], ["a", "2"]], [],
    ]  # fmt: skip
    assert (first[0]["timestamp"], first[2]["timestamp"]) == (5, 1_000)
    everything = kafkalite("consume", topic, "--until-end", "--json").out
    copy = f"{topic}-copy"
    kafkalite("topics", "create", copy, "--partitions", "2")
    kafkalite("produce", copy, "--format", "json", "-q", stdin=everything)
    again = kafkalite("consume", copy, "--until-end", "--json").out
    renamed = again.replace(copy.encode(), topic.encode())
    assert sorted(renamed.splitlines()) == sorted(everything.splitlines())


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        ([], "abcde"),
        (["--from", "beginning"], "abcde"),
        (["--from", "end"], ""),
        (["--from", "3"], "de"),
        (["--from", "-2"], "de"),
        (["--from", "-99"], "abcde"),
        (["--from", "@1001500"], "cde"),
        (["--from", "1970-01-01T00:16:43"], "de"),
        (["--from", "1970-01-01T00:16:43+00:00"], "de"),
        (["--from", "-1m"], ""),
        (["--from", "1", "--to", "3"], "bc"),
        (["--to", "@1001000"], "a"),
        (["--to", "-1"], "abcd"),
        (["--from", "3", "--to", "1"], ""),
        (["--to", "end", "--max-records", "2"], "ab"),
    ],
)
def test_places(kafkalite: Run, lettered: str, flags: list[str], printed: str) -> None:
    end = [] if "--to" in flags else ["--until-end"]
    ran = kafkalite("consume", lettered, "--partition", "0", *flags, *end)
    assert "".join(ran.lines) == printed


def test_several_topics_and_partitions(kafkalite: Run, lettered: str, topic: str) -> None:
    other = f"{topic}-other"
    kafkalite("produce", other, "--create", "-q", stdin=b"z\n")
    both = kafkalite("consume", lettered, other, "--until-end").lines
    assert sorted(both) == ["a", "b", "c", "d", "e", "x", "z"]
    last = kafkalite("consume", lettered, "--partition", "0-1", "--from", "-1", "--until-end").lines
    assert sorted(last) == ["e", "x"]


def test_templates(kafkalite: Run, lettered: str) -> None:
    consume = ["consume", lettered, "-n", "1", "-p", "0", "--null", "~", "--format"]
    told = kafkalite(*consume, "{topic}\\t{partition} {offset} {timestamp} {{{key}}}={value}").out
    assert told == f"{lettered}\t0 0 1000000 {{~}}=a\n".encode()
    assert kafkalite(*consume, "{time}\\n").out == b"1970-01-01T00:16:40.000Z\n"


@pytest.mark.parametrize("template", ["{nonsense}", "{key", "{value!r}", "{offset:>9}", "{}"])
def test_templates_that_make_no_sense(refused: Run, template: str) -> None:
    assert refused("consume", "x", "--format", template).startswith("--format")


@pytest.mark.parametrize(
    ("kind", "text", "data"),
    [
        ("json", '{"a": [1, null]}', b'{"a":[1,null]}'),
        ("msgpack", '{"a":1}', msgpack.packb({"a": 1})),
        ("int64", "-2", (-2).to_bytes(8, "big", signed=True)),
        ("float64", "1.5", b"\x3f\xf8" + bytes(6)),
        ("hex", "00ff", b"\x00\xff"),
        ("base64", "AP8=", b"\x00\xff"),
    ],
)
def test_kinds_of_values(
    kafkalite: Run, make_topic: Run, kind: str, text: str, data: bytes
) -> None:
    topic = make_topic(1)
    kafkalite("produce", topic, "-q", "--value", kind, stdin=text.encode())
    plain = kafkalite("consume", topic, "--until-end", "--value", "bytes")
    assert (plain.out, plain.err) == (data + b"\n", "")
    back = kafkalite("consume", topic, "--until-end", "--value", kind, "--json").json_lines
    shown = json.loads(text) if kind in ("json", "msgpack", "int64", "float64") else text
    assert back[0]["value"] == shown
    assert kafkalite("consume", topic, "--until-end", "--value", kind).lines == [
        text.replace(" ", "")
    ]


def test_what_is_not_text_is_escaped_and_hinted_at_once(kafkalite: Run, make_topic: Run) -> None:
    topic = make_topic(1)
    key = b"JFK" + (1_357_000_000_000).to_bytes(8, "big")
    lines = [
        {"key_base64": base64.b64encode(key).decode(), "value_base64": "gaFhAQ=="},
        {"key_base64": "/w==", "value_base64": "/w=="},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    kafkalite("produce", topic, "--format", "json", "-q", stdin=data)
    text = kafkalite("consume", topic, "--until-end")
    assert text.lines == ["\\x81\\xa1a\\x01", "\\xff"]
    msgpack_hint = (
        f"kafkalite: {topic}-0, offset 0: the value is not text but looks like MessagePack: "
        "try --value msgpack\n"
    )
    assert text.err == msgpack_hint
    window_hint = (
        f"kafkalite: {topic}-0, offset 0: the key is not text but looks like the key of a window: "
        "try --key windowed:1h (the window's size)\n"
    )
    assert kafkalite("consume", topic, "--until-end", "--json").err == window_hint + msgpack_hint
    windows = ["consume", topic, "-n", "1", "--value", "msgpack", "--key", "windowed:1m"]
    window = {"key": "JFK", "start": 1_357_000_000_000, "end": 1_357_000_060_000}
    (told,) = kafkalite(*windows, "--json").json_lines
    assert (told["key"], told["value"]) == (window, {"a": 1})
    told = kafkalite(*windows, "--format", "{key}")
    assert (json.loads(told.out), told.err) == (window, "")
    wrong = kafkalite("consume", topic, "--key", "windowed:soon", code=2).err
    assert "'windowed:soon': window size 'soon': expected milliseconds" in wrong
    assert "did you mean 'msgpack'?" in kafkalite("consume", topic, "--key", "msgpak", code=2).err


def test_avro_through_the_registry(
    kafkalite: Run, refused: Run, make_topic: Run, tmp_path: Path
) -> None:
    topic, schema = make_topic(1), tmp_path / "order.avsc"
    schema.write_text(json.dumps(SCHEMA))
    produce = ["produce", topic, "--value", "avro", "--schema", str(schema)]
    kafkalite(*produce, "-q", stdin=b'{"id": 1, "by": null}\n{"id": 2, "by": "x"}\n')
    told = kafkalite("consume", topic, "--until-end", "--value", "avro", "--json").json_lines
    assert [r["value"] for r in told] == [{"id": 1, "by": None}, {"id": 2, "by": "x"}]
    plain = kafkalite("consume", topic, "--until-end")
    assert all(line.startswith("\\x00\\x00") for line in plain.lines)  # the wire format's header
    assert plain.err.startswith(f"kafkalite: {topic}-0, offset 0: the value is not text but looks")
    assert "like Avro in Confluent's wire format with the schema id " in plain.err
    assert plain.err.endswith(": try --value avro\n")
    wrong = refused(*produce, stdin=b'{"id": 1, "by": null}\n{"id": "x"}\n')
    assert wrong.startswith("stdin, line 2: ")
    kafkalite("produce", topic, "--schema", str(schema), code=2)
    assert "no such file" in refused("produce", topic, "--value", "avro", "--schema", "/no/such")


def test_bytes_that_are_no_avro_are_named(kafkalite: Run, make_topic: Run) -> None:
    topic = make_topic(1)
    kafkalite("produce", topic, "-q", stdin=b"plain\n")
    for kind in ("avro", "json", "msgpack", "int64"):
        ran = kafkalite("consume", topic, "--until-end", "--value", kind, code=1)
        assert ran.err.startswith(f"kafkalite: {topic}-0, offset 0, value: "), ran
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "data", "told"),
    [
        (["-K", ":"], b"a:b\nc\n", "stdin, line 2: the line has no key separator ':'"),
        (["--value", "json"], b"1\n{\n", "stdin, line 2: not valid JSON: unexpected end of data"),
        (["--value", "int64"], b"x\n", "stdin, line 1: 'x' is not a whole number"),
        (["--value", "float64"], b"x\n", "stdin, line 1: 'x' is not a number"),
        (["--value", "hex"], b"0g\n", "stdin, line 1: "),
        (["-f", "json"], b"{}\n\nx\n", "stdin, line 3: not valid JSON: unexpected character"),
        (["-f", "json"], b"[]\n", "stdin, line 1: expected a JSON object with fields of"),
        (
            ["-f", "json"],
            b'{"keys": 1}\n',
            "stdin, line 1: unknown field 'keys'; did you mean 'key'?",
        ),
        (["-f", "json"], b'{"timestamp": "soon"}\n', "stdin, line 1: timestamp 'soon'"),
        (["-f", "json"], b'{"partition": -1}\n', "stdin, line 1: partition -1"),
        (["-f", "json"], b'{"partition": 7}\n', "has partitions 0 to 0, not 7"),
        (["-f", "json"], b'{"headers": [1]}\n', "stdin, line 1: headers must be an object"),
        (["-f", "json"], b'{"value_base64": "?"}\n', "stdin, line 1: value_base64"),
        (["-p", "1"], b"x\n", "has only partition 0, not 1"),
        (["/no/such/file"], b"", "/no/such/file: No such file"),
        (["/"], b"", "/: is a directory"),
        pytest.param([], b"x" * 2_000_000, "MESSAGE_TOO_LARGE", id="too large"),
    ],
)
def test_input_that_cannot_be_sent_is_named(
    refused: Run, make_topic: Run, flags: list[str], data: bytes, told: str
) -> None:
    assert told in refused("produce", make_topic(1), *flags, stdin=data)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["produce", "no-such-topic"], "topic 'no-such-topic' does not exist at "),
        (["consume", "no-such-topic"], ". To see which topics exist: kafkalite topics list -b "),
        (["consume", "no such topic"], "INVALID_TOPIC_EXCEPTION"),
    ],
)
def test_topics_that_are_not_there(refused: Run, command: list[str], told: str) -> None:
    assert told in refused(*command)


def test_a_topic_that_was_probably_meant_is_named(
    refused: Run, bootstrap: str, make_topic: Run
) -> None:
    topic = make_topic(1)
    told = f"topic '{topic}s' does not exist at {bootstrap}; did you mean '{topic}'?"
    for command in (
        ["consume"], ["topics", "describe"], ["topics", "alter", "--partitions", "3"],
        ["topics", "trim", "--before", "end"], ["topics", "delete", "--yes"],
        ["configs", "describe"], ["perf", "consume"], ["transactions", "producers"],
    ):  # fmt: skip
        assert refused(*command, f"{topic}s") == told
    assert refused("produce", f"{topic}s") == f"{told} With --create it is made."


def test_places_outside_of_the_log(kafkalite: Run, refused: Run, lettered: str) -> None:
    told = refused("consume", lettered, "--partition", "0", "--from", "99")
    assert told == f"{lettered}-0: offset 99 is outside the log, which has 0 to 5"
    kafkalite("consume", lettered, "--partition", "2", code=2)
    for flags in (
        ["--from", "yesterday"],
        ["--from", "-5y"],
        ["--from", "2024-99-01"],
        ["--from", "99999999999999999999"],
        ["--partition", "x"],
        ["--max-records", "0"],
        ["--format", "plain"],
        ["--to", "end", "--until-end"],
        ["--group", "g", "--partition", "0"],
        ["--group", "g", "--from", "3"],
        ["--group", "g", "--to", "3"],
        ["--value", "xml"],
    ):
        kafkalite("consume", lettered, *flags, code=2)


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_goes_on_after_what_was_printed(kafkalite: Run, lettered: str, group: str) -> None:
    consume = ["consume", lettered, "--group", group]
    first = kafkalite(*consume, "--max-records", "2").lines
    rest = kafkalite(*consume, "--until-end").lines
    assert sorted([*first, *rest]) == ["a", "b", "c", "d", "e", "x"]
    assert kafkalite(*consume, "--until-end").lines == []
    new = kafkalite("consume", lettered, "--group", f"{group}-2", "--from", "end", "--until-end")
    assert new.lines == []


def test_a_group_does_not_pass_what_could_not_be_read(
    kafkalite: Run, make_topic: Run, group: str
) -> None:
    topic = make_topic(1)
    kafkalite("produce", topic, "-q", stdin=b"1\nplain\n2\n")
    consume = ["consume", topic, "--group", group, "--until-end"]
    kafkalite(*consume, "--value", "json", code=1)
    assert kafkalite(*consume).lines == ["1", "plain", "2"]


# ---- signals and pipes ---------------------------------------------------------------------------


def test_ctrl_c_ends_a_consumer_and_commits(
    kafkalite: Run, start_command: Run, lettered: str, group: str
) -> None:
    running = start_command("consume", lettered, "--group", group)
    got = b"".join(running.stdout.readline() for _ in range(6))
    assert sorted(got.split()) == [b"a", b"b", b"c", b"d", b"e", b"x"]
    time.sleep(0.5)  # a line that is interrupted before the command knows of it comes again
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, b"", b"")
    (told,) = kafkalite("groups", "describe", group, "--json").json
    assert (told["lag"], told["state"]) == (0, "Empty")


@pytest.mark.slow
def test_sigterm_ends_a_consumer(start_command: Run, lettered: str) -> None:
    running = start_command("consume", lettered, "--partition", "0")
    assert running.stdout.readline() == b"a\n"
    running.terminate()
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (128 + signal.SIGTERM, b"")


@pytest.mark.slow
def test_ctrl_c_ends_a_producer_after_what_it_has_read(
    kafkalite: Run, start_command: Run, make_topic: Run
) -> None:
    topic = make_topic(1)
    running = start_command("produce", topic, "--json")
    running.stdin.write(b"a\nb\n")
    running.stdin.flush()
    while kafkalite("topics", "describe", topic, "--json").json[0]["partitions"][0]["end"] < 2:
        pass
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, b"")
    assert (json.loads(out)["records"], json.loads(out)["interrupted"]) == (2, True)


@pytest.mark.slow
def test_a_pipe_that_closes_ends_a_consumer(start_command: Run, lettered: str) -> None:
    """Also one that waits for records that never come."""
    running = start_command("consume", lettered, "--partition", "0")
    assert running.stdout.readline() == b"a\n"
    running.stdout.close()
    assert running.wait(30) == 0
    assert running.stderr.read() == b""


@pytest.mark.slow
def test_a_pipe_that_closes_while_much_is_printed(
    kafkalite: Run, start_command: Run, make_topic: Run
) -> None:
    topic = make_topic(1)
    kafkalite("produce", topic, "-q", stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 50_000)
    for format_ in ("text", "json"):
        running = start_command("consume", topic, "--until-end", "--format", format_)
        assert b"xxx" in running.stdout.readline()
        running.stdout.close()
        assert running.wait(30) == 0
        assert running.stderr.read() == b""


@pytest.mark.slow
def test_ctrl_c_ends_a_consumer_whose_reader_sleeps(
    kafkalite: Run, start_command: Run, make_topic: Run, group: str
) -> None:
    topic = make_topic(1)
    kafkalite("produce", topic, "-q", stdin=(b"y" * 99 + b"\n") * 50_000)
    running = start_command("consume", topic, "--group", group)
    assert running.stdout.read(1) == b"y"  # and the pipe is full soon
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert running.stderr.read() == b""
    assert running.stdout.read(100)
    (told,) = kafkalite("groups", "describe", group, "--json").json
    assert told["lag"] in (0, 50_000)  # 0: where the pipe took it all


@pytest.mark.slow
def test_a_second_ctrl_c_gives_up_what_no_broker_takes(serve: Run, tmp_path: Path) -> None:
    server = serve(tmp_path / "data")
    command = [sys.executable, "-m", "kafkalite.cli", "produce", "t", "--create"]
    running = subprocess.Popen(
        [*command, "-b", server.address], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdin is not None
    running.stdin.write(b"a\n")
    running.stdin.flush()
    read = ["consume", "t", "-n", "1", "-b", server.address]
    while b"a" not in subprocess.run([*command[:3], *read], capture_output=True).stdout:
        pass
    os.kill(server.pid, signal.SIGSTOP)
    running.stdin.write(b"b\n")
    running.stdin.flush()
    while fcntl.ioctl(running.stdin, termios.FIONREAD, bytes(4)) != bytes(4):
        pass  # until it has read it
    running.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(1)  # it waits for the acknowledgement
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert b"Traceback" not in running.communicate()[1]
    server.kill()


@pytest.mark.slow
def test_a_broker_that_dies_is_told_and_waited_for(serve: Run, tmp_path: Path) -> None:
    server = serve(tmp_path / "data")
    command = [sys.executable, "-m", "kafkalite.cli"]
    make = [*command, "produce", "t", "--create", "-b", server.address]
    subprocess.run(make, input=b"a\n", capture_output=True, check=True)
    running = subprocess.Popen(
        [*command, "consume", "t", "-b", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline() == b"a\n"
    server.kill()
    assert running.stderr.readline().startswith(b"kafkalite: fetching from broker ")
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert b"Traceback" not in running.communicate()[1]


@pytest.mark.slow
def test_a_list_in_a_closed_pipe(kafkalite: Run, start_command: Run, make_topic: Run) -> None:
    make_topic(1)
    running = start_command("topics", "list")
    running.stdout.close()
    assert running.wait(30) == 0
    assert running.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize("command", [["topics", "list"], ["--help"], ["consume"]])
def test_stdout_that_is_full_or_closed(bootstrap: str, lettered: str, command: list[str]) -> None:
    wanted = [*command, lettered, "--until-end"] if command == ["consume"] else command
    shell = f"{sys.executable} -m kafkalite.cli {' '.join(wanted)}"
    environment = {**os.environ, "KAFKALITE_BOOTSTRAP_SERVERS": bootstrap}
    for redirected, code, told in (
        ("> /dev/full", 1, "kafkalite: stdout: No space left on device\n"),
        (">&-", 0, ""),
        ("<&- > /dev/null", 0, ""),
    ):
        done = subprocess.run(
            f"{shell} {redirected}", shell=True, capture_output=True, text=True, env=environment
        )
        assert (done.returncode, done.stderr) == (code, told), redirected


@pytest.mark.slow
def test_a_consumer_waits_for_more(start_command: Run, kafkalite: Run, make_topic: Run) -> None:
    topic = make_topic(1)
    running = start_command("consume", topic, "--json")
    for value in ("first", "second"):
        kafkalite("produce", topic, "-q", stdin=value.encode())
        assert json.loads(running.stdout.readline())["value"] == value
    running.kill()
    running.communicate()


@pytest.mark.slow
def test_input_that_comes_slowly_is_sent_at_once(
    start_command: Run, kafkalite: Run, make_topic: Run
) -> None:
    topic = make_topic(1)
    producing = start_command("produce", topic, "-q")
    reading = start_command("consume", topic)
    for line in (b"one\n", b"two\n"):
        producing.stdin.write(line)
        producing.stdin.flush()
        assert reading.stdout.readline() == line
    producing.stdin.close()
    assert producing.wait(30) == 0
    reading.kill()
    for process in (producing, reading):
        process.stdin = None
        process.communicate()


@pytest.mark.slow
def test_no_input_at_all(kafkalite: Run, bootstrap: str, make_topic: Run) -> None:
    topic = make_topic(1)
    assert kafkalite("produce", topic, "/dev/null", "--json").json["records"] == 0
    assert kafkalite("produce", topic, "--json").json["records"] == 0
    with open(os.devnull, "rb") as nothing:
        done = subprocess.run(
            [sys.executable, "-m", "kafkalite.cli", "produce", topic, "-b", bootstrap],
            stdin=nothing,
            capture_output=True,
        )
    assert done.returncode == 0
