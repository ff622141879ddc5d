"""What a user or a disk can do wrong: one line on stderr, a code, and the rest goes on."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hints import without_hint

from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.protocol.records import batches
from kafkalite.core.types import Columns, TopicPartition, concat
from kafkalite.errors import CorruptBatchError, KafkaliteError

SECONDS_MAX = 30
FAILED, MISUSED = 1, 2
LIBC = ctypes.CDLL(None)
PR_CAPBSET_DROP = 24  # of <linux/prctl.h>
CAP_DAC_OVERRIDE = 1  # of <linux/capability.h>


def kafkalite(*arguments: str | Path, before: Callable[[], None] | None = None) -> tuple[int, str]:
    """A command's exit code and stderr; it must end by itself, and without a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "kafkalite.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
        preexec_fn=before,
    )
    assert "Traceback" not in done.stderr
    assert not done.stdout or done.returncode == 0
    return done.returncode, without_hint(done.stderr)


def obey_permissions() -> None:
    """What this process starts may not write everywhere, though it be root."""
    if sys.platform == "linux" and os.geteuid() == 0:
        assert LIBC.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0


def start(
    data_dir: Path, *arguments: str | Path, before: Callable[[], None] | None = None
) -> tuple[int, str]:
    listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
    return kafkalite("server", "start", "--data-dir", data_dir, *listen, *arguments, before=before)


def assert_one_line(ended: tuple[int, str], *words: str) -> None:
    """It failed with one line, in which are all of `words`."""
    code, stderr = ended
    assert code == FAILED, stderr
    assert stderr.startswith("kafkalite: ")
    assert stderr.count("\n") == 1
    assert all(word in stderr for word in words), stderr


# ---- the server's flags --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("no.such.key=1", ["no.such.key"]),
        ("num.partitions=many", ["num.partitions", "many"]),
        ("num.partitions=0", ["num.partitions", "0"]),
        ("num.partitions=", ["num.partitions"]),
        ("log.segment.bytes=99999999999", ["log.segment.bytes", "99999999999"]),
        ("auto.create.topics.enable=perhaps", ["auto.create.topics.enable", "perhaps"]),
        ("compression.type=rar", ["compression.type", "rar"]),
        ("log.retention.hours=0", ["log.retention.hours", "0"]),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, override: str, words: list[str]) -> None:
    assert_one_line(start(tmp_path, "--override", override), *words)
    assert not list(tmp_path.iterdir()), "a refused start left files"


@pytest.mark.parametrize("flags", [["--override", "no-equals-sign"], ["--override", "=1"], ["-x"]])
def test_flags_that_make_no_sense(tmp_path: Path, flags: list[str]) -> None:
    code, stderr = start(tmp_path, *flags)
    assert code == MISUSED
    assert flags[-1] in stderr


def test_a_server_needs_a_directory() -> None:
    code, stderr = kafkalite("server", "start")
    assert code == MISUSED
    assert "--data-dir" in stderr


def test_a_configuration_file_that_is_none(tmp_path: Path) -> None:
    assert_one_line(start(tmp_path, "--config", tmp_path / "no-such-file"), "no-such-file")
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=many\n")
    assert_one_line(start(tmp_path / "data", "--config", file), "num.partitions", "many")
    file.write_bytes(b"\xff\xfe\x00")
    assert_one_line(start(tmp_path / "data", "--config", file), "server.properties")


@pytest.mark.parametrize(
    "listen",
    [
        "nonsense", "127.0.0.1", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:99999", "",
        "SSL://127.0.0.1:0", "203.0.113.7:9092", "no.such.host.invalid:9092",
    ],
)  # fmt: skip
def test_addresses_that_are_none(tmp_path: Path, listen: str) -> None:
    assert_one_line(start(tmp_path / "data", "--listen", listen), listen)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_one_line(start(tmp_path, "--listen", address), address, "in use")


def test_a_data_directory_in_use(serve: Callable[..., Any], tmp_path: Path) -> None:
    server = serve(tmp_path)
    assert_one_line(start(tmp_path), str(tmp_path), "in use")
    assert server.stop() == 0  # nothing happened to it
    again = serve(tmp_path)  # and now the directory is free
    assert again.stop() == 0


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert_one_line(start(file), f"data directory {file}: not a directory")
    assert_one_line(start(file / "below"), f"data directory {file / 'below'}: Not a directory")


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    try:
        subprocess.run(["true"], preexec_fn=obey_permissions, check=True)
    except subprocess.SubprocessError:
        pytest.skip("root may write everywhere, and may not give that up here")
    tmp_path.chmod(0o500)
    for directory in (tmp_path, tmp_path / "below"):
        told = f"data directory {directory}: Permission denied; the broker must be able to write it"
        assert_one_line(start(directory, before=obey_permissions), told)


def test_a_data_directory_where_nobody_can_write() -> None:
    assert_one_line(start(Path("/proc/kafkalite")), "/proc/kafkalite")


# ---- the topics' commands ------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "", "127.0.0.1:99999"])
def test_brokers_that_are_no_address(address: str) -> None:
    assert_one_line(kafkalite("topics", "list", "--bootstrap-servers", address), address)


@pytest.mark.slow
def test_nobody_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # but does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert_one_line(kafkalite("topics", "list", "--bootstrap-servers", address), address)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a/b"], ["a/b"]),
        (["t", "--config", "no.such=1"], ["no.such"]),
        (["t", "--config", "retention.ms=long"], ["retention.ms"]),
    ],
)
def test_topics_that_cannot_be(bootstrap: str, arguments: list[str], words: list[str]) -> None:
    at = ["--bootstrap-servers", bootstrap]
    assert_one_line(kafkalite("topics", "create", *at, *arguments), *words)


def test_a_setting_without_a_value(bootstrap: str) -> None:
    create = ["topics", "create", "--bootstrap-servers", bootstrap, "t"]
    code, stderr = kafkalite(*create, "--config", "retention.ms")
    assert code == MISUSED
    assert "'retention.ms' is not KEY=VALUE" in stderr


def test_a_topic_that_exists(bootstrap: str, topic: str) -> None:
    create = ["topics", "create", "--bootstrap-servers", bootstrap, topic]
    assert kafkalite(*create) == (0, "")
    assert_one_line(kafkalite(*create), topic)
    assert kafkalite(*create, "--if-not-exists") == (0, "")


# ---- files that are not as they were written -----------------------------------------------------

BATCHES, RECORDS = 10, 10
LOG = f"{0:020}.log"
INDEX, TIME_INDEX = f"{0:020}.index", f"{0:020}.timeindex"


def fill(bootstrap: str) -> None:
    """Ten batches of ten records in each of `damaged` and `whole`."""

    async def run() -> None:
        for topic in ("damaged", "whole"):
            async with Producer(bootstrap) as producer:
                for start_ms in range(0, BATCHES * RECORDS, RECORDS):
                    times = range(start_ms, start_ms + RECORDS)
                    values = [b"%d" % ms * 20 for ms in times]
                    columns = Columns([None] * RECORDS, values, list(times))
                    await producer.send_columns(topic, columns, partition=0)
                    await producer.flush()

    asyncio.run(run())


def read(bootstrap: str, topic: str, count: int) -> list[int]:
    """The timestamps of the first `count` records, which are their numbers; the error instead."""

    async def run() -> list[int]:
        where = TopicPartition(topic, 0)
        got: list[Columns] = []
        async with asyncio.timeout(SECONDS_MAX), Consumer(bootstrap) as consumer:
            consumer.assign([where])
            consumer.seek_to_beginning([where])
            while sum(map(len, got)) < count:
                got += (await consumer.poll(1_000)).values()
            ends = await consumer.end_offsets([where])
        read = concat(got)
        assert list(read.offsets or ()) == list(range(len(read)))
        assert ends == {where: len(read)}
        return list(read.timestamps)

    return asyncio.run(run())


def append(bootstrap: str, topic: str, timestamp: int) -> int:
    """Appends a record; its offset."""

    async def run() -> int:
        async with Producer(bootstrap, delivery_timeout_ms=2_000) as producer:
            stored = await producer.send(topic, b"more", timestamp_ms=timestamp, partition=0)
            return (await stored).offset

    return asyncio.run(run())


@pytest.fixture(scope="module")
def filled(serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`filled(signal)`: the directory of a broker that ended by this signal, to be copied."""
    made: dict[int, Path] = {}

    def directory(signal_number: int) -> Path:
        if signal_number not in made:
            path = tmp_path_factory.mktemp("filled") / "data"
            server = serve(path)
            fill(server.address)
            if signal_number == signal.SIGKILL:
                server.kill()
            else:
                assert server.stop(signal_number) == 0
            made[signal_number] = path
        return made[signal_number]

    return directory


KILLED, STOPPED = signal.SIGKILL, signal.SIGTERM


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x55
    file.write_bytes(data)


def position_of_batch(file: Path, number: int) -> int:
    return [position for position, _ in batches(file.read_bytes())][number]


def flip_in_a_batch(directory: Path) -> None:
    file = directory / LOG
    flip(file, position_of_batch(file, 5) + 200)


def flip_in_an_offset(directory: Path) -> None:
    """What the CRC does not cover."""
    file = directory / LOG
    flip(file, position_of_batch(file, 5))


def flip_in_a_length(directory: Path) -> None:
    file = directory / LOG
    flip(file, position_of_batch(file, 5) + 8)


def tear_the_last_batch(directory: Path) -> None:
    file = directory / LOG
    os.truncate(file, file.stat().st_size - 7)


def add_garbage(directory: Path) -> None:
    with (directory / LOG).open("ab") as file:
        file.write(Random(1).randbytes(77))


def add_zeros(directory: Path) -> None:
    """As file systems do that lose power between the size and the data."""
    with (directory / LOG).open("ab") as file:
        file.write(bytes(4_096))


@pytest.mark.parametrize(
    ("ended", "damage", "kept"),
    [
        (KILLED, flip_in_a_batch, 50),
        (KILLED, flip_in_an_offset, 50),
        (KILLED, flip_in_a_length, 50),
        (KILLED, tear_the_last_batch, 90),
        (KILLED, add_garbage, 100),
        (KILLED, add_zeros, 100),
        (STOPPED, tear_the_last_batch, 90),
        (STOPPED, add_garbage, 100),
        (STOPPED, add_zeros, 100),
    ],
)
def test_what_is_torn_is_cut_and_told_and_the_rest_is_served(
    serve: Callable[..., Any],
    filled: Callable[[int], Path],
    tmp_path: Path,
    ended: int,
    damage: Callable[[Path], None],
    kept: int,
) -> None:
    data_dir = shutil.copytree(filled(ended), tmp_path / "data")
    damage(data_dir / "damaged-0")
    server = serve(data_dir)
    (told,) = [line for line in server.stderr.splitlines() if "WARNING" in line]
    assert "damaged-0: " in told
    assert f"from offset {kept} on" in told
    assert read(server.address, "whole", 100) == list(range(100))
    assert read(server.address, "damaged", kept) == list(range(kept))
    assert append(server.address, "damaged", kept) == kept
    assert server.stop() == 0

    again = serve(data_dir)  # it is mended
    assert "WARNING" not in again.stderr
    assert read(again.address, "damaged", kept + 1) == list(range(kept + 1))


def test_a_flipped_byte_behind_a_clean_shutdown_is_found_by_who_reads_it(
    serve: Callable[..., Any], filled: Callable[[int], Path], tmp_path: Path
) -> None:
    """Nothing is scanned then; the batch's CRC, which reaches the client, tells."""
    data_dir = shutil.copytree(filled(STOPPED), tmp_path / "data")
    flip_in_a_batch(data_dir / "damaged-0")
    server = serve(data_dir)
    assert read(server.address, "whole", 100) == list(range(100))
    with pytest.raises(CorruptBatchError, match="damaged-0"):
        read(server.address, "damaged", 100)
    assert append(server.address, "damaged", 100) == 100


def garble_indexes(directory: Path) -> None:
    """Whole entries that nobody wrote."""
    (directory / INDEX).write_bytes(b"\xff" * 16)
    (directory / TIME_INDEX).write_bytes(b"\xff" * 24)


def tear_indexes(directory: Path) -> None:
    (directory / INDEX).write_bytes(bytes(7))
    (directory / TIME_INDEX).write_bytes(bytes(7))


def remove_all_but_the_log(directory: Path) -> None:
    for file in directory.iterdir():
        if file.name != LOG:
            file.unlink()


def remove_the_log(directory: Path) -> None:
    (directory / LOG).unlink()


@pytest.mark.parametrize("ended", [KILLED, STOPPED], ids=["killed", "stopped"])
@pytest.mark.parametrize("damage", [garble_indexes, tear_indexes, remove_all_but_the_log])
def test_indexes_are_made_anew(
    serve: Callable[..., Any],
    filled: Callable[[int], Path],
    tmp_path: Path,
    ended: int,
    damage: Callable[[Path], None],
) -> None:
    data_dir = shutil.copytree(filled(ended), tmp_path / "data")
    damage(data_dir / "damaged-0")
    server = serve(data_dir)
    assert read(server.address, "damaged", 100) == list(range(100))
    assert append(server.address, "damaged", 100) == 100


@pytest.mark.parametrize("damage", [remove_the_log, shutil.rmtree])
def test_records_that_are_gone_are_told_of(
    serve: Callable[..., Any],
    filled: Callable[[int], Path],
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    data_dir = shutil.copytree(filled(STOPPED), tmp_path / "data")
    damage(data_dir / "damaged-0")
    server = serve(data_dir)
    (told,) = [line for line in server.stderr.splitlines() if "WARNING" in line]
    assert "damaged-0" in told
    assert "100" in told
    assert read(server.address, "whole", 100) == list(range(100))
    assert append(server.address, "damaged", 0) == 0


@pytest.mark.slow
def test_a_partition_that_cannot_be_opened_is_refused_and_the_rest_is_served(
    serve: Callable[..., Any], filled: Callable[[int], Path], tmp_path: Path
) -> None:
    data_dir = shutil.copytree(filled(STOPPED), tmp_path / "data")
    unreadable = data_dir / "damaged-0" / "leader-epoch-checkpoint"
    unreadable.unlink(missing_ok=True)
    unreadable.mkdir()
    server = serve(data_dir)
    (told,) = [line for line in server.stderr.splitlines() if "ERROR" in line]
    assert "damaged-0" in told
    assert "leader-epoch-checkpoint" in told
    assert read(server.address, "whole", 100) == list(range(100))
    with pytest.raises(KafkaliteError, match="damaged-0"):
        append(server.address, "damaged", 100)
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recovery-point-offset-checkpoint", b"nonsense\n"),
        ("log-start-offset-checkpoint", b"0\n5\nwhole 0 1\n"),
        ("replication-offset-checkpoint", b"\xff\xfe\n"),
    ],
)
@pytest.mark.parametrize("ended", [KILLED, STOPPED], ids=["killed", "stopped"])
def test_a_checkpoint_that_is_damaged_is_made_anew_from_the_log(
    serve: Callable[..., Any],
    filled: Callable[[int], Path],
    tmp_path: Path,
    ended: int,
    name: str,
    content: bytes,
) -> None:
    data_dir = shutil.copytree(filled(ended), tmp_path / "data")
    (data_dir / name).write_bytes(content)
    server = serve(data_dir)
    assert [line for line in server.stderr.splitlines() if "WARNING" in line and name in line]
    for topic in ("whole", "damaged"):
        assert read(server.address, topic, 100) == list(range(100))
        assert append(server.address, topic, 100) == 100
    assert server.stop() == 0


def test_a_directory_whose_journal_is_damaged_is_not_opened(
    filled: Callable[[int], Path], tmp_path: Path
) -> None:
    data_dir = shutil.copytree(filled(STOPPED), tmp_path / "data")
    (data_dir / "coordination.journal").write_bytes(b"nonsense\nnonsense\n")
    before = (data_dir / "whole-0" / LOG).read_bytes()
    assert_one_line(start(data_dir), "coordination.journal")
    assert (data_dir / "whole-0" / LOG).read_bytes() == before


def test_a_damaged_line_in_the_middle_of_the_journal_is_not_skipped(
    filled: Callable[[int], Path], tmp_path: Path
) -> None:
    data_dir = shutil.copytree(filled(STOPPED), tmp_path / "data")
    journal = data_dir / "coordination.journal"
    flip(journal, journal.stat().st_size // 2)
    assert_one_line(start(data_dir), "coordination.journal", "line")
