"""What a log relies on, of either storage; and what only one of them can do."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from kafkalite.core.log.port import Storage
from kafkalite.core.log.storage import FileStorage
from kafkalite.errors import DataDirectoryInUse
from kafkalite.testing.storage import MemoryStorage, PowerLoss


def test_what_is_appended_can_be_read_at_once(storage: Storage) -> None:
    file = storage.open("a")
    assert file.append(b"hello ") == 0
    assert file.append(bytearray(b"world")) == 6
    assert file.append(memoryview(b"!")) == 11
    assert file.read(6, 5) == b"world"
    assert file.read(6, 100) == b"world!"
    assert file.read(12, 5) == b""
    assert file.size_bytes == 12
    assert storage.files("") == {"a": 12}


def test_opening_makes_no_file(storage: Storage) -> None:
    file = storage.open("a")
    assert file.size_bytes == 0
    file.sync()
    assert storage.files("") == {}
    file.create()
    assert storage.files("") == {"a": 0}


def test_the_disk_has_a_size(storage: Storage) -> None:
    storage.open("a").append(b"some")
    total, usable = storage.capacity()
    assert 0 < usable < total
    assert storage.location


def test_a_file_opened_again_goes_on_where_it_ended(storage: Storage) -> None:
    first = storage.open("a")
    first.append(b"one")
    first.close()
    again = storage.open("a")
    assert again.size_bytes == 3
    assert again.append(b"two") == 3
    assert storage.open("a", 6).read(0, 6) == b"onetwo"


def test_a_truncated_file_is_appended_to_at_its_end(storage: Storage) -> None:
    file = storage.open("a")
    file.append(b"0123456789")
    file.truncate(4)
    assert file.append(b"abc") == 4
    assert file.read(0, 100) == b"0123abc"


def test_a_reader_outlives_name_and_file(storage: Storage) -> None:
    file = storage.open("a")
    file.append(b"bytes")
    reader = file.reader()
    file.rename("b")
    file.append(b" more")
    file.close()
    assert storage.files("") == {"b": 10}
    file.delete()
    assert storage.files("") == {}
    assert reader.read(0, 10) == b"bytes more"


def test_deleting_what_is_not_there_is_no_error(storage: Storage) -> None:
    storage.open("a").delete()
    storage.delete("b")
    assert storage.read_small("a") is None
    assert storage.files("nowhere") == {}


def test_directories(storage: Storage) -> None:
    storage.make_directory("orders-0")
    storage.make_directory("orders-0")
    storage.open("orders-0/x").append(b"1")
    assert storage.directories("") == ["orders-0"]
    assert storage.files("") == {}
    assert storage.files("orders-0") == {"x": 1}
    storage.rename("orders-0", "gone")
    assert storage.files("gone") == {"x": 1}
    storage.delete("gone")
    assert storage.directories("") == []


def test_a_promised_directory_comes_with_its_first_file(storage: Storage) -> None:
    filled: list[str] = []

    def promise(name: str) -> None:
        def fill() -> None:
            filled.append(name)
            storage.open(f"{name}/whose").append(b"mine")

        storage.promise_directory(name, fill)
        assert storage.is_promised(name)

    for name in ("a", "b", "c", "d"):
        promise(name)
    storage.sync_directory("a")
    assert (storage.files("a"), storage.read_small("a/x")) == ({}, None)
    storage.open("a/x", 0).delete()
    assert (storage.directories(""), filled) == ([], [])
    file = storage.open("a/x")
    file.append(b"1")
    file.append(b"2")
    storage.replace("b/y", b"3")
    assert filled == ["a", "b"]
    assert storage.files("a") == {"whose": 4, "x": 2}
    assert storage.files("b") == {"whose": 4, "y": 1}
    storage.rename("c", "gone")
    storage.delete("d")
    assert sorted(storage.directories("")) == ["a", "b"]
    assert not any(map(storage.is_promised, ("a", "b", "c", "d", "gone")))
    with pytest.raises(FileNotFoundError):
        storage.open("c/x").append(b"1")


def test_a_promise_that_could_not_be_kept_is_kept_the_next_time(storage: Storage) -> None:
    tries: list[int] = []

    def fill() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "no space")
        storage.open("a/whose").append(b"mine")

    storage.promise_directory("a", fill)
    file = storage.open("a/x")
    with pytest.raises(OSError, match="no space"):
        file.append(b"1")
    assert storage.is_promised("a")
    assert storage.files("a") == {}
    assert file.append(b"1") == 0
    assert storage.files("a") == {"whose": 4, "x": 1}
    assert len(tries) == 2


def test_small_files_are_replaced_whole(storage: Storage) -> None:
    storage.replace("checkpoint", b"0\n1\n")
    storage.replace("checkpoint", b"2")
    assert storage.read_small("checkpoint") == b"2"
    assert storage.files("") == {"checkpoint": 1}


def test_files_say_when_they_were_written(storage: Storage) -> None:
    storage.open("a").append(b"1")
    assert storage.modified_ms("a") >= 0


def test_appending_below_a_missing_directory_fails(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.open("nowhere/a").append(b"1")


def test_it_is_locked_once(storage: Storage) -> None:
    storage.lock()
    with pytest.raises(DataDirectoryInUse, match="in use by"):
        (FileStorage(storage.root) if isinstance(storage, FileStorage) else storage).lock()
    storage.close()
    storage.lock()


# ---- the disk ----------------------------------------------------------------------------------


def open_descriptors(below: Path) -> int:
    """Of files in the directory; its own stays open for `sync_all`."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.exists(link) and os.readlink(link).startswith(f"{below}/") for link in links)


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, open_files_max=3)
    files = [storage.open(f"f{i}") for i in range(10)]
    for round_number in range(3):
        for file in files:
            file.append(b"%d" % round_number)
            assert open_descriptors(tmp_path) <= 3
    assert all(file.read(0, 9) == b"012" for file in files)
    storage.close()
    assert open_descriptors(tmp_path) == 0


def test_half_of_the_descriptors_are_left_to_others(tmp_path: Path) -> None:
    gc.collect()  # connections of other tests may still be open
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        storage = FileStorage(tmp_path)
        for i in range(700):
            storage.open(f"f{i}").append(b"1")
        assert open_descriptors(tmp_path) == 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_keeps_its_descriptor_when_the_file_must_give_way(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, open_files_max=1)
    first, second = storage.open("a"), storage.open("b")
    first.append(b"one")
    reader = first.reader()
    second.append(b"two")
    second.append(b"three")
    fd = reader.fileno()
    assert fd is not None
    assert os.pread(fd, 3, 0) == b"one"
    del reader
    assert open_descriptors(tmp_path) == 1


def test_the_one_used_last_stays_open(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, open_files_max=2)
    hot, cold, new = storage.open("hot"), storage.open("cold"), storage.open("new")
    hot.append(b"1")
    cold.append(b"1")
    hot_fd = hot.reader().fileno()
    hot.recent = cold.recent = False
    hot.append(b"2")
    new.append(b"1")
    assert hot.reader().fileno() == hot_fd


def test_a_full_disk_leaves_the_file_as_long_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes a part of the bytes, then none."""
    file = FileStorage(tmp_path).open("a")
    file.append(b"0123")
    write = os.write
    answers = iter([lambda fd, data: write(fd, data[:3])])

    def half(fd: int, data: bytes) -> int:
        for answer in answers:
            return answer(fd, data)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        file.append(b"abcdef")
    monkeypatch.undo()
    assert file.size_bytes == 7
    assert (tmp_path / "a").read_bytes() == b"0123abc"
    file.truncate(4)
    assert file.append(b"z") == 4


def test_the_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    FileStorage(tmp_path).root.joinpath(".lock").touch()
    holder = FileStorage(tmp_path)
    holder.lock()
    program = (
        "import sys\n"
        "from kafkalite.core.log.storage import FileStorage\n"
        "from kafkalite.errors import DataDirectoryInUse\n"
        "try: FileStorage(sys.argv[1]).lock()\n"
        "except DataDirectoryInUse as error: print(error)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    words = f"in use by process {os.getpid()}, one broker at a time may use it"
    assert out.stdout.strip() == f"{tmp_path}: {words}"


# ---- memory ------------------------------------------------------------------------------------


def test_a_crash_keeps_what_was_synced(memory: MemoryStorage) -> None:
    file = memory.open("a")
    file.append(b"safe")
    file.sync()
    memory.sync_directory("")
    file.append(b" perhaps")
    found = {memory.after_crash(Random(seed)).read_small("a") for seed in range(300)}
    assert all(data is not None and data.startswith(b"safe") for data in found)
    assert b"safe" in found
    assert b"safe perhaps" in found
    assert any(data is not None and b"\0" in data for data in found)


def test_a_crash_may_forget_names_but_not_out_of_order(memory: MemoryStorage) -> None:
    for name in "abc":
        memory.open(name).create()
    found = {tuple(sorted(memory.after_crash(Random(seed)).files(""))) for seed in range(100)}
    assert found == {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_a_killed_process_leaves_everything(memory: MemoryStorage) -> None:
    memory.open("a").append(b"not synced")
    assert memory.after_kill().read_small("a") == b"not synced"


def test_a_crash_tears_the_append_it_hits(memory: MemoryStorage) -> None:
    file = memory.open("a")
    file.append(b"12")
    memory.crash_after(1)
    with pytest.raises(PowerLoss):
        file.append(b"3456")
    with pytest.raises(PowerLoss):
        file.append(b"dead is dead")
    assert memory.after_kill().read_small("a") == b"1234"


def test_faults_come_as_ordered(memory: MemoryStorage) -> None:
    file = memory.open("a")
    memory.fail("append", errno.EIO)
    with pytest.raises(OSError, match="EIO") as error:
        file.append(b"1234")
    assert error.value.errno == errno.EIO
    assert file.size_bytes == 2
    file.truncate(0)
    file.append(b"1234")
    assert file.size_bytes == 4
