"""What the commands make of text: places, partitions, sizes, lines, templates. No broker."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.cli import output, status
from kafkalite.cli.guesses import first_unreadable, guess, is_text
from kafkalite.cli.options import (
    choose,
    parse_pairs,
    parse_partitions,
    parse_size,
    parse_topic_partition,
    parse_topic_partitions,
)
from kafkalite.cli.output import print_table, show_bytes, show_time
from kafkalite.cli.places import Kind, Place, parse_duration_ms, parse_place
from kafkalite.cli.records_in import LINE_BYTES_MAX, LineReader, Shape, parse_lines
from kafkalite.cli.records_out import json_lines, template_lines, text_lines
from kafkalite.cli.values import Kind as ValueKind
from kafkalite.cli.values import open_codec
from kafkalite.clients.metadata import PartitionInfo, TopicInfo
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ConfigError

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 3)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", Place(Kind.BEGINNING)),
        ("Latest", Place(Kind.END)),
        ("0", Place(Kind.OFFSET, 0)),
        (str((1 << 63) - 1), Place(Kind.OFFSET, (1 << 63) - 1)),
        ("20240501", Place(Kind.OFFSET, 20_240_501)),  # digits alone, like a date or not
        ("-0", Place(Kind.LAST, 0)),
        ("-12", Place(Kind.LAST, 12)),
        ("-90s", Place(Kind.TIME, NOW_MS - 90_000)),
        ("-2w", Place(Kind.TIME, NOW_MS - 1_209_600_000)),
        ("-9999999w", Place(Kind.TIME, 0)),
        ("@5", Place(Kind.TIME, 5)),
        ("2024-05-01T12:00:00.5+02:00", Place(Kind.TIME, 1_714_557_600_500)),
        ("2024-05-01T10:00Z", Place(Kind.TIME, 1_714_557_600_000)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text, "--from", NOW_MS) == place


@pytest.mark.parametrize(
    "text",
    ["", "-", "@", "--5", "-@5", "@-5", "1.5", "10m", "-5y", "2024-13-01", "1950-01-01",
     "soon", "²", "-٣", str(1 << 63)],
)  # fmt: skip
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_place(text, "--from", NOW_MS)


@given(st.text(max_size=12))
def test_any_text_is_a_place_or_refused(text: str) -> None:
    try:
        place = parse_place(text, "--from", NOW_MS)
    except typer.BadParameter:
        return
    assert place.number >= 0


def test_durations_and_sizes() -> None:
    assert [parse_duration_ms(t, "x") for t in ("250ms", "1s", "2m", "1h")] == [
        250, 1_000, 120_000, 3_600_000,
    ]  # fmt: skip
    sizes = {"5": 5, "64k": 64_000, "64Ki": 65_536, "1MiB": 1 << 20, "2MB": 2_000_000, "0": 0}
    assert {text: parse_size(text, "x") for text in sizes} == sizes
    for text in ("", "k", "-1", "1x", "1.5k", "1kk", "٣"):
        with pytest.raises(typer.BadParameter):
            parse_size(text, "x")


def test_partitions() -> None:
    assert parse_partitions(None) is None
    assert parse_partitions(["3", "0-2,2", "7"]) == [0, 1, 2, 3, 7]
    for text in ("", "a", "2-1", "-1", "1-", "0-99999999999", "1,,2"):
        with pytest.raises(typer.BadParameter):
            parse_partitions([text])
    assert parse_topic_partitions(["a", "b:0,2"], "x") == {"a": None, "b": [0, 2]}
    assert parse_topic_partition("a-b-3", "x") == TopicPartition("a-b", 3)
    assert parse_topic_partition("a:3", "x") == TopicPartition("a", 3)
    for text in ("a", "a-", ":1", "a:b"):
        with pytest.raises(typer.BadParameter):
            parse_topic_partition(text, "x")
    assert choose({"a": 2, "b": 1}, None) == [("a", 0), ("a", 1), ("b", 0)]
    with pytest.raises(typer.BadParameter, match="topic b has only partition 0, not 1"):
        choose({"a": 2, "b": 1}, [1])


def test_pairs() -> None:
    assert parse_pairs(["a=b=c", " d = "], "x") == {"a": "b=c", "d": " "}
    for text in ("a", "=b", " =b"):
        with pytest.raises(typer.BadParameter):
            parse_pairs([text], "x")


# ---- lines in -----------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_come_out_whole_however_they_come_in(data: bytes, cuts: list[int]) -> None:
    reader, lines, start = LineReader("x"), [], 0
    for cut in [*sorted(cuts), len(data)]:
        lines += reader.feed(data[start:cut])
        start = max(start, cut)
    lines += reader.end()
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == expected
    assert reader.number == len(expected)


def test_a_line_without_an_end_has_a_bound() -> None:
    reader = LineReader("file")
    reader.feed(b"a\n")
    piece = bytes(LINE_BYTES_MAX // 2)
    reader.feed(piece)
    reader.feed(piece)
    with pytest.raises(ConfigError, match="file, line 2: longer than"):
        reader.feed(b"x")


def shape(**changes: Any) -> Shape:
    kind = ValueKind.string
    return Shape("t", kind, kind, open_codec(kind), open_codec(kind), **changes)


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=5),
            st.none() | st.binary(max_size=5),
            st.integers(0, 1 << 40),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_json_lines_are_read_as_they_were_written(records: list[Any]) -> None:
    keys, values, timestamps, headers = map(list, zip(*records, strict=True))
    of_each = [tuple((n, None if v is None else v.encode()) for n, v in h) for h in headers]
    written = json_lines(
        TP, Columns(keys, values, timestamps, range(len(records)), of_each)
    ).splitlines()
    batch = parse_lines(shape(is_json=True), written, "x", 1, NOW_MS)
    assert list(batch.columns.keys) == keys
    assert list(batch.columns.values) == values
    assert list(batch.columns.timestamps) == timestamps
    assert list(batch.columns.headers or [()] * len(records)) == of_each
    assert batch.partitions == [3] * len(records)


def test_text_with_keys_and_nulls() -> None:
    wanted = shape(key_separator=b"::", null=b"-", key=b"k", headers=(("h", b"1"),))
    batch = parse_lines(wanted, [b"a::b::c", b"-::-", b"::"], "x", 1, NOW_MS)
    assert batch.columns.keys == [b"a", b"k", b""]
    assert batch.columns.values == [b"b::c", None, b""]
    assert batch.columns.timestamps == [NOW_MS] * 3
    assert batch.columns.headers == [(("h", b"1"),)] * 3


# ---- lines out ----------------------------------------------------------------------------------


def test_text_and_templates() -> None:
    columns = Columns([b"k", None], [b"\xff", None], [0, -1], range(7, 9), [(("h", b"1"),), ()])
    assert text_lines(b"~")(TP, columns) == b"\\xff\n~\n"
    assert text_lines(b"")(TP, Columns([None] * 3, [b"a", "é".encode(), b"c\0"], [0] * 3)) == (
        "a\né\nc\\x00\n".encode()
    )
    show = template_lines("{topic}/{partition}/{offset}\\t{time} {key}={value} {headers}", b"~")
    assert show(TP, columns) == b"t/3/7\t1970-01-01T00:00:00.000Z k=\\xff h=1\nt/3/8\t- ~=~ \n"
    assert template_lines("{{}}\\\\n\\0{offset}\\n", b"")(TP, columns) == (
        b"{}\\n\x007\n{}\\n\x008\n"
    )


@given(st.lists(st.none() | st.text() | st.binary(), max_size=5))
def test_any_column_is_printed_as_text(values: list[Any]) -> None:
    column = [value.encode() if isinstance(value, str) else value for value in values]
    count = len(column)
    columns = Columns([None] * count, column, [0] * count)
    out = text_lines(b"")(TP, columns) if count else b""
    assert out.decode().count("\0") == 0
    index = first_unreadable(column)
    assert index is None or not is_text(column[index])
    assert all(v is None or is_text(v) for v in column[:index])


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        (b"\0\0\0\0\x07\x02a", ["avro"]),
        (b"\0\0\0\0\x07", ["avro"]),
        (b'\0\0\0\0\x07{"a": 1}', []),
        (b"\0\0\0\0\0\x02a", None),
        (b"\x81\xa1a\x01", ["msgpack"]),
        (b"\x81\xa1a", None),
        ((5).to_bytes(8, "big"), ["int64"]),
        ((-2).to_bytes(8, "big", signed=True), ["int64"]),
        ((1_700_000_000_000).to_bytes(8, "big"), ["avro", "int64"]),
        (b"\x3f\xf8" + bytes(6), ["float64"]),
        (b"\xff\xfe", None),
    ],
)
def test_what_bytes_look_like(data: bytes, kinds: list[str] | None) -> None:
    found = guess(data)
    assert (None if found is None else list(found.kinds)) == kinds


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_guessed_at(data: bytes, is_key: bool) -> None:
    guess(data, is_key=is_key)


def test_tables_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count"], [["a", 5], ["long name", 123]])
    assert capsys.readouterr().out == "NAME       COUNT\na              5\nlong name    123\n"
    print_table(["name"], [])
    assert capsys.readouterr().out == "NAME\n"
    print_table(["a", "b", "c"], [[None, True, [1, 2]]])
    assert capsys.readouterr().out.splitlines()[1] == "-  yes  1,2"
    print_table(["message"], [["503: busy\nSee the manual."]])
    assert capsys.readouterr().out.splitlines()[1:] == ["503: busy See the manual."]
    assert [show_bytes(n) for n in (999, 1_500, 2_000_000)] == ["999 B", "1.5 KB", "2.0 MB"]
    assert (show_time(-1), show_time(1 << 62)) == ("-", f"{1 << 62} ms")


def test_a_table_on_a_terminal_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    print_table(["name", "count"], [["[b]a", 5]])
    out = capsys.readouterr().out
    assert "[b]a" in out  # no markup
    assert "─" in out


# ---- what a cluster may be in -------------------------------------------------------------------


def test_a_partition_without_a_leader_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        "cluster_id": "c", "controller": -1, "apis": [], "brokers": [], "topics": 1,
        "internal_topics": 0, "partitions": 2, "offline_partitions": ["t-0"],
        "under_replicated_partitions": ["t-0", "t-1"],
    }  # fmt: skip
    monkeypatch.setattr(status, "ask", lambda *_: told)
    with pytest.raises(typer.Exit) as end:
        status.status("x")
    assert end.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("2 partitions, 1 offline, 2 under-replicated")
    assert lines[-3:] == ["offline: t-0", "under-replicated: t-0", "under-replicated: t-1"]


def test_offline_and_under_replicated() -> None:
    partitions = (
        PartitionInfo(0, -1, replicas=(1, 2), in_sync_replicas=(1,)),
        PartitionInfo(1, 1, replicas=(1, 2), in_sync_replicas=(1, 2)),
    )
    topics = [TopicInfo("t", partitions)]
    assert status.offline(topics) == ["t-0"]
    assert status.under_replicated(topics) == ["t-0"]
