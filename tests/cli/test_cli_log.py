"""`kafkalite log dump` and `verify` on sound files, and on files with one thing wrong."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.log.inspection import (
    Seen,
    check_transaction_index,
    offset_entries,
    time_entries,
)
from kafkalite.core.protocol.records import batches
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.node import start_node

Run = Callable[..., Any]
SETTINGS = {
    "log.index.interval.bytes": "150",
    "log.segment.bytes": "2000",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that was closed: `orders-0` has several segments with indexes."""
    path = tmp_path_factory.mktemp("sound") / "data"

    async def fill() -> None:
        node = await start_node(path, "127.0.0.1:0", SETTINGS)
        async with Client(str(node.address)) as client, Admin(client) as admin:
            await admin.create_topics([NewTopic("orders", 1)])
            async with Producer(client, compression="gzip") as producer:
                for i in range(30):
                    key, value = b"k%d" % i, b"v" * 20
                    columns = Columns([key], [value], [1_000 + i], headers=[(("h", b"1"),)])
                    await producer.send_columns("orders", columns)
                    await producer.flush()
            offset = OffsetAndMetadata(7, metadata="note")
            await admin.alter_group_offsets("billing", {TopicPartition("orders", 0): offset})
        await node.close()

    asyncio.run(fill())
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    """The partition's directory, to be spoilt."""
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data" / "orders-0"


def file(directory: Path, suffix: str, number: int = 0) -> Path:
    return sorted(directory.glob(f"*{suffix}"))[number]


def state(directory: Path) -> dict[str, tuple[bytes, int]]:
    """All files with their contents and times: reading changes neither."""
    return {
        str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in directory.rglob("*") if p.is_file()
    }


def test_a_sound_directory(kafkalite: Run, sound: Path) -> None:
    before = state(sound)
    told = kafkalite("log", "verify", str(sound), "--json").json
    assert told["faults"] == []
    (orders,) = [log for log in told["logs"] if log["directory"].endswith("/orders-0")]
    assert orders["segments"] > 1
    assert (orders["batches"], orders["records"]) == (30, 30)
    ran = kafkalite("log", "verify", str(sound))
    assert any(line.split()[:1] == [str(sound / "orders-0")] for line in ran.lines)
    assert len(ran.lines) == 1 + sum(log["segments"] > 0 for log in told["logs"])
    assert ran.err.endswith("without segments: no faults\n")
    kafkalite("log", "dump", str(sound), "--records")
    assert state(sound) == before


def test_everything_is_dumped(kafkalite: Run, sound: Path) -> None:
    told = kafkalite("log", "dump", str(sound), "--records", "--json").json_lines
    kinds = {document["what"] for document in told}
    assert kinds >= {
        "batch", "record", "index_entry", "time_index_entry", "producer", "epoch", "offset",
        "partition_metadata", "property",
    }  # fmt: skip
    orders = [d for d in told if "/orders-0/" in d["file"]]
    of_batches = [d for d in orders if d["what"] == "batch"]
    assert [b["base_offset"] for b in of_batches] == list(range(30))
    assert {b["compression"] for b in of_batches} == {"gzip"}
    records = [d for d in orders if d["what"] == "record"]
    assert [r["key"] for r in records] == [f"k{i}" for i in range(30)]
    assert records[0]["headers"] == [["h", "1"]]
    entries = [d for d in orders if d["what"] == "index_entry"]
    assert entries
    assert all(e["position"] > 0 for e in entries)
    (commit,) = [d["means"] for d in told if d.get("means")]
    assert (commit["group"], commit["topic"], commit["offset"]) == ("billing", "orders", 7)


def test_one_file_is_dumped_as_text(kafkalite: Run, sound: Path) -> None:
    log = file(sound / "orders-0", ".log")
    lines = kafkalite("log", "dump", str(log), "--records").lines
    assert lines[0] == str(log)
    assert lines[1].startswith("  batch position=0 base_offset=0 last_offset=0 records=1 ")
    assert lines[2].startswith("    record offset=0 timestamp=1000 key=k0 value=vvv")


def spoil(path: Path, position: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[position : position + len(data)] = data
    path.write_bytes(whole)


def faults(kafkalite: Run, path: Path) -> list[dict[str, Any]]:
    ran = kafkalite("log", "verify", str(path), "--json", code=1)
    return list(ran.json["faults"])


def second_batch(path: Path) -> int:
    return [position for position, _ in batches(path.read_bytes())][1]


@pytest.mark.parametrize(
    ("at", "data", "what"),
    [
        (80, b"\xff", "CRC"),
        (0, struct.pack(">q", 0), "base offset 0, expected 1 or more"),
        (0, struct.pack(">q", 1 << 40), "is out of the segment's range"),
        (8, struct.pack(">i", 1 << 29), "a batch of 536870924 bytes"),
        (8, struct.pack(">i", 3), "batch length 3"),
        (16, b"\x01", "magic 1"),
    ],
)
def test_a_spoilt_batch_is_named(
    kafkalite: Run, refused: Run, copy: Path, at: int, data: bytes, what: str
) -> None:
    log = file(copy, ".log")
    position = second_batch(log)
    spoil(log, position + at, data)
    found = faults(kafkalite, copy)[0]
    assert (found["file"], found["position"]) == (str(log), position)
    assert what in found["fault"]
    ran = kafkalite("log", "verify", str(log), code=1)
    assert ran.err.startswith(f"{log}: byte {position}: ")


def test_after_a_wrong_crc_the_rest_is_checked(kafkalite: Run, copy: Path) -> None:
    log = file(copy, ".log")
    places = [position for position, _ in batches(log.read_bytes())]
    for position in places[1:3]:
        spoil(log, position + 70, b"\xff\xff")
    assert [f["position"] for f in faults(kafkalite, log)] == places[1:3]


def test_a_torn_end_is_named(kafkalite: Run, copy: Path) -> None:
    log = file(copy, ".log", -1)
    whole = log.read_bytes()
    last = [position for position, _ in batches(whole)][-1]
    log.write_bytes(whole[:-1])
    assert (faults(kafkalite, log)[0]["position"], last) == (last, last)


def test_a_dump_ends_at_the_first_fault(kafkalite: Run, copy: Path) -> None:
    log = file(copy, ".log")
    position = second_batch(log)
    spoil(log, position + 80, b"\xff")
    ran = kafkalite("log", "dump", str(log), "--json", code=1)
    assert [d["base_offset"] for d in ran.json_lines] == [0]
    assert ran.err.startswith(f"kafkalite: {log}: byte {position}: ")


@pytest.mark.parametrize(
    ("suffix", "at", "data", "what"),
    [
        (".index", 4, struct.pack(">i", 5), "no batch begins at byte 5"),
        (".index", 0, struct.pack(">i", 999), "begins at"),
        (".index", 8, struct.pack(">ii", 0, 0), "does not follow"),
        (".timeindex", 0, struct.pack(">q", 77), "time 77 at offset"),
        (".timeindex", 8, struct.pack(">i", 29), "the log has"),
    ],
)
def test_a_wrong_index_entry_is_named(
    kafkalite: Run, copy: Path, suffix: str, at: int, data: bytes, what: str
) -> None:
    index = file(copy, suffix)
    spoil(index, at, data)
    found = faults(kafkalite, copy)
    assert {f["file"] for f in found} == {str(index)}
    assert what in found[0]["fault"]
    assert found[0]["position"] <= at
    assert faults(kafkalite, index) == found


def test_an_index_of_an_odd_size_is_named(kafkalite: Run, copy: Path) -> None:
    index = file(copy, ".index")
    index.write_bytes(index.read_bytes() + b"\x01")
    assert "1 bytes, where entries have 8" in faults(kafkalite, copy)[0]["fault"]


def test_what_kafka_reserves_in_an_open_index_is_no_entry(kafkalite: Run, copy: Path) -> None:
    for suffix in (".index", ".timeindex"):
        index = file(copy, suffix)
        index.write_bytes(index.read_bytes() + bytes(240))
    kafkalite("log", "verify", str(copy))


def test_an_index_without_its_log_is_named(kafkalite: Run, copy: Path) -> None:
    file(copy, ".log").unlink()
    assert "does not exist" in faults(kafkalite, copy)[0]["fault"]


@pytest.mark.parametrize(
    ("pattern", "at", "data", "what"),
    [
        ("*.snapshot", 8, b"\xff", "batches in"),
        ("*.snapshot", 12, b"\xff", "the CRC does not match"),
        ("leader-epoch-checkpoint", 0, b"9", "version 9"),
        ("partition.metadata", 0, b"version: 7", "version 7"),
        ("../recovery-point-offset-checkpoint", 2, b"9", "9"),
    ],
)
def test_spoilt_small_files_are_named(
    kafkalite: Run, copy: Path, pattern: str, at: int, data: bytes, what: str
) -> None:
    path = (copy / pattern).resolve() if pattern.startswith("..") else next(copy.glob(pattern))
    spoil(path, at, data)
    (found,) = faults(kafkalite, copy.parent)
    assert found["file"] == str(path)
    assert what in found["fault"]
    assert str(path) in kafkalite("log", "dump", str(path), code=1).err


def test_what_is_no_log(refused: Run, tmp_path: Path) -> None:
    for command in ("dump", "verify"):
        assert refused("log", command, "/no/such").endswith("no such file or directory")
        assert "no files of a log" in refused("log", command, str(tmp_path))
        other = tmp_path / "notes.txt"
        other.write_text("x")
        assert "not a file of a log: expected .log, " in refused("log", command, str(other))
        other.unlink()


def test_a_running_broker_s_directory_is_read(kafkalite: Run, files: Path, topic: str) -> None:
    kafkalite("produce", topic, "--create", "-q", stdin=b"a\n")
    (batch,) = kafkalite("log", "dump", str(files / f"{topic}-0"), "--json").json_lines[:1]
    assert (batch["what"], batch["records"]) == ("batch", 1)


def test_zero_entries_that_are_real_are_kept() -> None:
    data = struct.pack(">iiii", 1, 256, 2, 512)
    assert [e[1:] for e in offset_entries(data + bytes(16), 0)] == [(1, 256), (2, 512)]
    times = struct.pack(">qi", 5, 256)
    assert [e[1:] for e in time_entries(times + bytes(24), 10)] == [(5, 266)]


def test_an_aborted_transaction_needs_its_marker() -> None:
    entry = struct.pack(">hqqqq", 0, 7, 1, 5, 6)
    marker = Seen(0, 5, 5, 0, 7)
    assert list(check_transaction_index(entry, [marker])) == []
    (fault,) = check_transaction_index(entry, [marker._replace(aborts=8)])
    assert "no abort marker of producer 7 at offset 5" in fault.what
    (fault,) = check_transaction_index(struct.pack(">hqqqq", 3, 7, 1, 5, 6), [marker])
    assert "version 3" in fault.what


def test_json_stays_json(kafkalite: Run, sound: Path) -> None:
    lines = kafkalite("log", "dump", str(sound), "--json").out.splitlines()
    assert lines
    assert all(json.loads(line)["file"].startswith(str(sound)) for line in lines)
